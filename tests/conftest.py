"""What every test shares: how hard hypothesis looks. Fixtures stand beside the tests that use them."""

from hypothesis import settings

# No deadlines: the machine may be busy, and no test of ours asserts on wall time.
# "ci" draws the same examples every time, so that a red check is the fault of the change;
# "nightly" (make fuzz) draws fresh ones and many more.
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True, print_blob=True)
settings.register_profile("nightly", max_examples=5000, deadline=None, print_blob=True)
settings.load_profile("ci")
