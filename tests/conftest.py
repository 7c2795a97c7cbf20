"""Settings of every test: the same generated examples in each run, and no stopwatch on them."""

from hypothesis import settings

# A busy machine is not a failure, and a failure is never a matter of luck.
settings.register_profile("forerun", deadline=None, derandomize=True, database=None)
settings.load_profile("forerun")
