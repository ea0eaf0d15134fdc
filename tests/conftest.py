"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("kvtwin", deadline=None, derandomize=True, database=None)
settings.load_profile("kvtwin")  # no examples that depend on chance, no failures of a busy machine
