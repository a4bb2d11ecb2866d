"""Settings of Hypothesis for all tests: the same examples in every run, so that no push fails by bad luck, and no limit
on an example's time, which says more of the machine than of the code."""

import hypothesis

hypothesis.settings.register_profile(
    "same every time",
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("same every time")
