"""What the tests of a run's parts share."""

import pytest

from a3c.machine.stopping import StopSignals
from tests.tools import processes


@pytest.fixture
def signals():
    """A run's signals; the handlers are put back."""
    with processes.handlers_kept():
        yield StopSignals()
