"""The gate, the counters and the shared update with many threads."""

import sys
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf

from a3c.agent import moments
from a3c.agent.shared import POLL_SECONDS, Counters, Gate, SharedState
from a3c.contract import Counts, Moments, Snapshot
from a3c.settings.params import Params
from tests.tools.crews import TIMEOUT_SECONDS
from tests.tools.processes import wait_until


@pytest.fixture(autouse=True)
def threads_change_places_often() -> Iterator[None]:
    """Let Python switch threads 5,000 times as often as usual, to find a missing lock."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run_threads(functions: list[Callable[[], object]]) -> None:
    """Run them all at once to their end; raise the first error."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def guarded(function: Callable[[], object]) -> None:
        try:
            start.wait(TIMEOUT_SECONDS)
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(f,), daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_many_may_be_inside_the_gate_at_once() -> None:
    """Analytic: eight threads meet inside, which they could not if only one were let in."""
    gate, meeting = Gate(), threading.Barrier(8)

    def visit() -> None:
        with gate:
            meeting.wait(TIMEOUT_SECONDS)

    run_threads([visit] * 8)


def test_shutting_the_gate_waits_until_everybody_is_out() -> None:
    """Analytic: the one inside leaves, then the gate is shut, then a late one gets in."""
    gate, events = Gate(), []
    somebody_inside, somebody_late = threading.Event(), threading.Event()

    def insider() -> None:
        with gate:
            somebody_inside.set()
            somebody_late.wait(TIMEOUT_SECONDS)
            events.append("left")

    def shutter() -> None:
        somebody_inside.wait(TIMEOUT_SECONDS)
        with gate.shut():
            events.append("shut")

    def latecomer() -> None:
        wait_until(lambda: gate._is_shut)  # the shutter waits
        somebody_late.set()
        with gate:
            events.append("late")

    run_threads([insider, shutter, latecomer])
    assert events == ["left", "shut", "late"]


def test_one_thread_at_a_time_has_the_gate_shut() -> None:
    """Analytic: a checkpoint is read while a worker that begins late copies the weights."""
    gate, inside, at_once = Gate(), [0], set()

    def shut() -> None:
        for _ in range(50):
            with gate.shut():
                inside[0] += 1
                time.sleep(0)  # others may go on
                at_once.add(inside[0])
                inside[0] -= 1

    run_threads([shut] * 8)
    assert at_once == {1}


def test_an_error_inside_the_gate_leaves_it_usable(monkeypatch) -> None:
    """Analytic: after an error inside, one while it is shut and one while it waits for that, it can be shut and
    passed again.
    """
    gate = Gate()
    with pytest.raises(ZeroDivisionError), gate:
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), gate.shut():
        raise ZeroDivisionError
    with monkeypatch.context() as patch:  # such as Ctrl-C
        patch.setattr(gate._changed, "wait_for", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError), gate.shut():
            pass
    passed = []

    def use() -> None:  # in a thread, so that a gate left shut fails instead of hanging
        with gate:
            passed.append("inside")
        with gate.shut():
            passed.append("shut")
        with gate:
            passed.append("inside again")

    run_threads([use])
    assert passed == ["inside", "shut", "inside again"]


class SlowInt(int):
    """A number that lets other threads run between reading it and storing a sum of it."""

    def __add__(self, other: int) -> "SlowInt":
        time.sleep(0)
        return SlowInt(int(self) + other)


NOW = lambda: True  # noqa: E731 (who waits for steps goes at once)
SLOW_COUNTS = Counts(*map(SlowInt, (0, 0, 0, 0)))


@pytest.mark.parametrize("n_updates", [3, 57, 211, 500])
def test_counts_are_exact_when_sixteen_threads_are_stopped(n_updates: int) -> None:
    """Analytic: the counts are exactly what the threads did, whenever they are stopped."""
    counters, stopped = Counters(10**9, SLOW_COUNTS), threading.Event()
    done = [Counts()] * 16

    def work(mine: int) -> None:
        while not stopped.is_set() and counters.reserve(5, NOW):
            steps, updates, games, frames = done[mine]
            n_games = updates % 3
            counters.add_update(5, 20 + mine, updates, n_games)
            done[mine] = Counts(steps + 5, updates + 1, games + n_games, frames + 20 + mine)

    def stop() -> None:
        wait_until(lambda: counters.read().updates >= n_updates)
        stopped.set()

    run_threads([lambda mine=mine: work(mine) for mine in range(16)] + [stop])
    assert counters.read() == tuple(map(sum, zip(*done, strict=True)))
    assert counters.read().updates >= n_updates


def test_what_is_returned_is_what_was_counted() -> None:
    """Analytic: each number of updates from 1 to 800 is returned once, to one of the threads."""
    counters = Counters(10**9, SLOW_COUNTS)
    returned: list[list[int]] = [[] for _ in range(16)]

    def count(mine: list[int]) -> None:
        mine.extend(counters.add_update(1, 1, 0).updates for _ in range(50))

    run_threads([lambda mine=mine: count(mine) for mine in returned])
    assert sorted(sum(returned, [])) == list(range(1, 801))
    assert all(mine == sorted(mine) for mine in returned)
    assert counters.read().games == 0


@pytest.mark.parametrize(
    ("wanted", "n_rollouts"), [(700, 100), (699, 100), (701, 101), (1, 1), (0, 0)]
)
def test_steps_are_reserved_up_to_one_rollout_past_the_end(wanted: int, n_rollouts: int) -> None:
    """Analytic: 16 threads ask for 7 steps at a time until they are refused."""
    counters = Counters(wanted, SLOW_COUNTS)
    granted: list[int] = []

    def ask() -> None:
        while counters.reserve(7, NOW):
            granted.append(7)

    run_threads([ask] * 16)
    assert len(granted) == n_rollouts
    assert counters.read() == Counts()  # reserved is not yet done


def test_steps_given_back_can_be_reserved_again() -> None:
    """Analytic: two rollouts of 5 reach 10; one gives back 2, so one more is granted, and no more."""
    counters = Counters(10)
    assert [counters.reserve(5, NOW) for _ in range(3)] == [True, True, False]
    counters.give_back(2)
    assert [counters.reserve(5, NOW) for _ in range(2)] == [True, False]
    assert counters.read() == Counts()


def test_who_finds_all_steps_reserved_waits_for_what_comes_back() -> None:
    """Analytic: of 10 steps, 5 are counted and 5 come back to one of two who wait; the other leaves when these are
    counted, too.
    """
    counters, granted = Counters(10), []
    assert [counters.reserve(5, NOW) for _ in range(2)] == [True, True]
    counters.add_update(5, 5, 0)

    def work() -> None:
        while counters.reserve(5, lambda: False):
            granted.append(5)
            counters.add_update(5, 5, 0)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert not counters.are_complete()
    counters.give_back(5)
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()
    assert granted == [5]
    assert counters.are_complete()
    assert counters.read().steps == 10


def test_who_waits_for_steps_leaves_the_core_to_others() -> None:
    """Analytic: two pauses between three looks at whether the run is stopped."""
    counters, looks = Counters(10), []
    assert counters.reserve(10, NOW)

    def is_stopped() -> bool:
        looks.append(time.monotonic())
        return len(looks) == 3

    assert not counters.reserve(5, is_stopped)
    assert looks[-1] - looks[0] >= 2 * POLL_SECONDS


def test_restored_counts_go_on() -> None:
    """Analytic: 95 of 100 steps are done, so there is one rollout of 10 more, without a lag."""
    counters = Counters(100, Counts(steps=95, updates=19, games=3, frames=400))
    assert counters.read() == Counts(95, 19, 3, 400)
    assert counters.reserve(10, NOW)
    assert not counters.reserve(10, NOW)
    assert counters.add_update(10, 40, 19, n_games=2) == Counts(105, 20, 5, 440)
    assert counters.take_policy_lag() == (0.0, 0.0)


def test_policy_lag_by_hand() -> None:
    """Analytic: three updates from one copy lag 0, 1, 2, one from a new copy 0; lags are taken once."""
    counters = Counters(100)
    for _ in range(3):
        counters.add_update(5, 20, n_updates_at_copy=0)
    assert counters.take_policy_lag() == (1.0, 2.0)
    assert np.isnan(counters.take_policy_lag()).all()
    counters.add_update(5, 20, n_updates_at_copy=3)
    assert counters.take_policy_lag() == (0.0, 0.0)


def shared_state(weights: dict[str, np.ndarray], **settings: float) -> SharedState:
    return SharedState(
        weights, Params("x", **{"rmsprop_epsilon": 0.1, "max_grad_norm": 1e9} | settings)
    )


@pytest.mark.parametrize(
    ("shape", "n_updates"),
    # Large enough for two updates to meet in one array; and 100,000 updates in all.
    [((500, 1000), 25), ((64,), 12_500)],
)
def test_no_update_is_lost_under_eight_threads(shape: tuple[int, ...], n_updates: int) -> None:
    """Analytic: with m held at 1 (α = 1, ε = 0), each update of thread i subtracts exactly i, its gradient.

    There are two arrays, and a thread's copies of both after its update must be of one moment.
    """
    n_threads = 8
    zeros = {name: np.zeros(shape, np.float32) for name in ("v", "w")}
    shared = shared_state(zeros, rmsprop_decay=1.0, rmsprop_epsilon=0.0)
    n_torn = tf.Variable(0)  # entries of copies that are not of the same moment as the first

    # All updates of a thread in one call, which does not need the GIL.
    def updates(size: int) -> Callable[[], None]:
        local = {name: tf.Variable(array) for name, array in zeros.items()}

        @tf.function
        def apply() -> None:
            for _ in tf.range(n_updates):
                gradients = {name: tf.fill(shape, float(size)) for name in zeros}
                shared.apply(gradients, tf.constant(1.0), local)
                first = local["v"][..., :1]
                for copy in local.values():
                    torn = tf.math.count_nonzero(copy != first, dtype=tf.int32)
                    n_torn.assign_add(torn, use_locking=True)

        return apply.get_concrete_function()

    run_threads([updates(i) for i in range(1, n_threads + 1)])
    assert n_torn.numpy() == 0
    total = n_updates * sum(range(1, n_threads + 1))
    assert total < 2**24  # whole numbers up to there are exact
    for name in zeros:
        np.testing.assert_array_equal(shared.weights[name], np.full(shape, -total))
        np.testing.assert_array_equal(shared.mean_squares[name], np.ones(shape))


@pytest.mark.parametrize("shape", [(500, 1000), (64,)])
def test_no_update_is_lost_within_a_compiled_program(shape: tuple[int, ...]) -> None:
    """Analytic: the same where XLA compiles what the gradients come from as well; what is returned is of one moment."""
    n_threads, n_updates = 8, 50
    zeros = {name: np.zeros(shape, np.float32) for name in ("v", "w")}
    shared = shared_state(zeros, rmsprop_decay=1.0, rmsprop_epsilon=0.0)

    @tf.function(jit_compile=True)
    def apply(size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        gradients = {name: tf.fill(shape, size) for name in zeros}
        _, new = shared.apply(gradients, tf.constant(1.0), None, tf.constant(True))
        return new["v"], new["w"]

    def work(size: int) -> None:
        for _ in range(n_updates):
            found.append(np.unique(apply(tf.constant(float(size)))))

    found: list[np.ndarray] = []  # the numbers in each copy, which are all the same
    run_threads([lambda size=size: work(size) for size in range(1, n_threads + 1)])
    assert {len(each) for each in found} == {1}
    total = n_updates * sum(range(1, n_threads + 1))
    for name in zeros:
        np.testing.assert_array_equal(shared.weights[name], np.full(shape, -total))


def test_moments_are_exact_and_of_one_moment_with_the_weights() -> None:
    """Analytic: eight threads each make 100 updates, which add 1 to a weight and one row, the thread's number. What
    each gets with its copy of the weight, and every snapshot, has as many rows as the weight says.
    """
    n_threads, n_updates = 8, 100
    none = Moments(SlowInt(0), np.zeros(()), np.zeros(()))
    shared = SharedState(example(), Params("x"), first_moments={"returns": none})
    weight = [SlowInt(0)]
    pairs: list[tuple[int, int]] = []

    def work(mine: int) -> None:
        def learn() -> None:
            weight[0] = weight[0] + 1
            copies.append(weight[0])

        for _ in range(n_updates):
            copies: list[int] = []
            with shared.gate:
                found = shared.update(learn, {"returns": moments.of(np.array([mine]))})
                pairs.append((copies[0], found["returns"].n))

    def look() -> None:
        for n in range(0, n_threads * n_updates, 80):
            wait_until(lambda n=n: weight[0] >= n)
            taken, at_the_time = shared.snapshot(lambda: weight[0])
            pairs.append((at_the_time, taken.moments["returns"].n))

    run_threads([lambda mine=mine: work(mine) for mine in range(n_threads)] + [look])
    assert len(pairs) == n_threads * n_updates + 10
    assert [pair for pair in pairs if pair[0] != pair[1]] == []
    rows = np.repeat(np.arange(n_threads), n_updates)
    n, mean, squares = shared.moments["returns"]
    assert n == len(rows)
    np.testing.assert_allclose([mean, squares / n], [rows.mean(), rows.var()], rtol=1e-9)


def test_without_moments_nobody_waits_for_another_to_learn() -> None:
    """Analytic: eight threads meet in the middle of learning."""
    shared, meeting = SharedState(example(), Params("x")), threading.Barrier(8)
    run_threads([lambda: shared.update(lambda: meeting.wait(TIMEOUT_SECONDS), {})] * 8)


def test_a_snapshots_moments_stay_as_they_were() -> None:
    """Analytic: a later update does not change them, and other names than the run's are not restored."""
    none = Moments(0, np.zeros(2), np.zeros(2))
    shared = SharedState(example(), Params("x"), first_moments={"observations": none})
    shared.update(lambda: None, {"observations": moments.of(np.array([[1.0, 5.0], [3.0, 5.0]]))})
    taken, _ = shared.snapshot(lambda: None)
    shared.update(lambda: None, {"observations": moments.of(np.array([[9.0, 9.0]]))})
    n, mean, squares = taken.moments["observations"]
    assert (n, mean.tolist(), squares.tolist()) == (2, [2, 5], [2, 0])
    for kept in (["observations"], ["observations", "returns"], ["returns"], []):
        other = SharedState(example(), Params("x"), first_moments=dict.fromkeys(kept, none))
        other.restore(taken)
        assert [*other.moments] == kept
        for name in kept:
            assert other.moments[name] is (taken.moments[name] if name == "observations" else none)


def example(size: float = 1.0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(3)
    shapes = (("a", (2, 3)), ("b", (4,)))
    return {n: (size * generator.standard_normal(s)).astype(np.float32) for n, s in shapes}


def test_a_snapshot_gives_back_what_it_was_made_of() -> None:
    """Analytic: to the bit, in copies that later updates do not change, with what was read while the gate was shut."""
    counts = Counts(95, 19, 3, 400)
    shared = SharedState(example(), Params("x"), counts)
    apply = tf.function(shared.apply)
    local = {name: tf.Variable(value) for name, value in example().items()}
    apply(example(0.5), tf.constant(0.1), local)
    at_the_time = [
        {n: v.copy() for n, v in part.items()} for part in (shared.weights, shared.mean_squares)
    ]
    taken, was_shut = shared.snapshot(lambda: shared.gate._is_shut)
    assert was_shut
    apply(example(0.5), tf.constant(0.1), local)
    assert taken.counts == counts
    other = SharedState(example(0.0), Params("x"))
    other.restore(taken)
    for part, found, restored in zip(
        at_the_time, taken[1:3], (other.weights, other.mean_squares), strict=True
    ):
        assert found.keys() == restored.keys() == part.keys()
        for name, array in part.items():
            np.testing.assert_array_equal(found[name], array)
            np.testing.assert_array_equal(restored[name], array)
    assert np.all(shared.weights["a"] != taken.weights["a"])
    assert other.counters.read() == Counts()  # its own


def test_without_statistics_they_stay_as_they_were() -> None:
    """Analytic: a published agent has none."""
    shared = shared_state(example(0.0), rmsprop_initial=0.25)
    shared.restore(Snapshot(Counts(), example(), {}))
    for name, value in example().items():
        np.testing.assert_array_equal(shared.weights[name], value)
        np.testing.assert_array_equal(shared.mean_squares[name], np.full(value.shape, 0.25))


@pytest.mark.parametrize("part", ["weights", "mean_squares"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"a": None}, "a"),
        ({"c": np.zeros(2, np.float32)}, "c"),
        ({"b": np.zeros(5)}, "b has shape"),
    ],
)
def test_what_does_not_fit_is_refused(part: str, change: dict, said: str) -> None:
    """Analytic: names and shapes of either part; the error names what is wrong."""
    arrays = {"weights": example(0.0), "mean_squares": example(0.0)}
    changed = arrays[part] | change
    arrays[part] = {name: array for name, array in changed.items() if array is not None}
    with pytest.raises(ValueError, match=said):
        shared_state(example()).restore(Snapshot(Counts(), **arrays))
