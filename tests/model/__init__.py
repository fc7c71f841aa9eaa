"""Model checker of the streams core: seeded schedules against a naive reference implementation.

Run it from the root of the repository: ``python -m tests.model --seeds 1000``. Tests import it as ``model``.
"""
