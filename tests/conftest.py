"""Settings for all tests, made before any of their modules is loaded.

Hypothesis takes the same examples in every run, so that no push fails by bad luck, and sets no limit on an example's
time, which says more of the machine than of the code.

NumPy multiplies matrices on one thread: that serves the oracle alone, and on a machine which does anything else,
several threads wait for each other ten times as long as they compute.
"""

import os

import hypothesis

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads it as it is loaded

hypothesis.settings.register_profile(
    "same every time",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same every time")
