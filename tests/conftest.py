"""Settings for all tests, made before any of their modules is loaded.

Hypothesis takes the same examples in every run, so that no push fails by bad luck; `make test-slow` looks for new ones,
fifty times as many. No limit is set on an example's time, which says more of the machine than of the code.

NumPy multiplies matrices on one thread: that serves the oracle alone, and on a machine which does anything else,
several threads wait for each other ten times as long as they compute.
"""

import os

import hypothesis

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy reads it as it is loaded
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # and TensorFlow this, or says much of itself

for name, derandomize, n_examples in (("same every time", True, 100), ("new ones", False, 5000)):
    hypothesis.settings.register_profile(
        name,
        derandomize=derandomize,
        max_examples=n_examples,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
hypothesis.settings.load_profile("same every time")
