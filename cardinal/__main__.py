"""`python -m cardinal`: the same as the `cardinal` script."""

from .cli import main

if __name__ == "__main__":
    main()
