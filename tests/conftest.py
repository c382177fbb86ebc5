"""What every test shares: how hard hypothesis looks, and that programs can be interrupted. Fixtures stand beside the
tests that use them.
"""

import signal

from hypothesis import HealthCheck, settings

# A shell without job control has its background jobs ignore interrupts, and what they start inherits that: then no
# program under test would ever hear of Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines, and no fault in examples that took long to draw: the machine may be busy, and no test of ours asserts on
# wall time.
# "ci" draws the same examples every time, so that a red check is the fault of the change;
# "nightly" (make fuzz) draws fresh ones and many more.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", unhurried, max_examples=100, derandomize=True)
settings.register_profile("nightly", unhurried, max_examples=5000)
settings.load_profile("ci")
