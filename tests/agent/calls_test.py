"""How functions of TensorFlow are called: the first call alone."""

import threading
import time

import pytest

from a3c.agent.calls import FirstAlone

SECONDS = 60.0


def test_no_call_begins_before_the_first_has_ended() -> None:
    """Analytic: then, calls run at the same time."""
    first_alone = FirstAlone()
    both, begun, may_end = threading.Barrier(2), threading.Event(), threading.Event()
    ended: list[str] = []

    def first(name: str) -> None:
        begun.set()
        assert may_end.wait(SECONDS)
        time.sleep(0.2)  # a second call that did not wait would be over by now
        ended.append(name)

    threads = [threading.Thread(target=first_alone, args=(first, "first"))]
    threads[0].start()
    assert begun.wait(SECONDS)
    threads.append(threading.Thread(target=first_alone, args=(ended.append, "second")))
    threads[1].start()
    may_end.set()
    for thread in threads:
        thread.join(SECONDS)
    assert ended == ["first", "second"]

    third = threading.Thread(target=first_alone, args=(both.wait, SECONDS))
    third.start()
    first_alone(both.wait, SECONDS)  # which raises an error if they wait for each other
    third.join(SECONDS)


def test_a_first_call_that_fails_was_none() -> None:
    """Analytic: the next one is the first, and gets the lock."""
    first_alone = FirstAlone()
    with pytest.raises(ZeroDivisionError):
        first_alone(divmod, 1, 0)
    assert first_alone(divmod, 7, 2) == (3, 1)
