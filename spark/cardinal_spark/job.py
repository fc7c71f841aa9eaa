"""The pipeline for spark-submit, with the arguments of `cardinal lake run`.

spark-submit --master spark://… "$(python -c 'import cardinal_spark.job as job; print(job.__file__)')" --from … --to …
"""

from __future__ import annotations

from cardinal_spark.cli import run

if __name__ == "__main__":
    run()
