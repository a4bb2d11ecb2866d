"""What the project promises, the test that says so, and a change of the code that turns it red.

    python3 -m tests.tools.proofs          makes each change in a copy of the tree and runs its test there
    python3 -m tests.tools.proofs table    prints the README's table

A row that names a test without a case stands for all its cases but the weekly ones: each has to turn
red.

`make test-slow` does the first, and the fast tests check that the README has the second.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LEFT_BEHIND = shutil.ignore_patterns(".*", "runs", "results", "images", "__pycache__")


class Proof(NamedTuple):
    """In `module`, the text `old` (which stands there once) becomes `new`, and `test` fails: the case
    that it names, or else each of its cases."""

    guarantee: str
    test: str  # of tests/, as pytest names it
    change: str  # in words
    module: str
    old: str
    new: str

    def row(self) -> str:
        """Of the README's table."""
        file, _, name = self.test.partition("::")
        return f"| {self.guarantee} | [`{name}`](tests/{file}) | {self.change} |"


PROOFS = [
    Proof(
        "100 updates do the paper's arithmetic: actions, weights and statistics are those of an"
        " independent program in float64",
        "oracle_replay_test.py::test_the_oracle_gets_the_same_actions_weights_and_statistics[mlp-sum-4]",
        "values of the next episode flow back over an end",
        "a3c/agent/losses.py",
        "discount * continues[t] * following",
        "discount * following",
    ),
    Proof(
        "So they are where the network sees images",
        "oracle_replay_test.py::test_the_oracle_gets_the_same_actions_weights_and_statistics[small-mean-1]",
        "a convolution's gradient has height and width exchanged",
        "a3c/agent/kernels.py",
        "tf.transpose(blocks, (0, 2, 1, 3, 4, 5))",
        "tf.transpose(blocks, (1, 3, 0, 2, 4, 5))",
    ),
    Proof(
        "100 updates with the preset `ocd` change the weights as they always did",
        "pins_test.py::test_100_updates_are_as_they_were[pong-ocd]",
        "the learning rate is 1.01e-4 instead of 1e-4",
        "a3c/settings/params.py",
        'OPTIMIZER, 1e-4, "per update"',
        'OPTIMIZER, 1.01e-4, "per update"',
    ),
    Proof(
        "So do 100 with the preset `paper`",
        "pins_test.py::test_100_updates_are_as_they_were[pong-paper]",
        "the learning rate begins at 7.01e-4 instead of 7e-4",
        "a3c/settings/presets/paper.toml",
        "initial_lr = 7e-4",
        "initial_lr = 7.01e-4",
    ),
    Proof(
        "So do 100 of a worker with four environments",
        "pins_test.py::test_100_updates_are_as_they_were[pong-1x4]",
        "`sum` averages over environments",
        "a3c/agent/losses.py",
        '"sum": tf.reduce_sum',
        '"sum": lambda x: tf.reduce_sum(tf.reduce_mean(x, axis=1))',
    ),
    Proof(
        "Step t of a rollout saw observation t, acted on it and was paid for it",
        "agent/worker_test.py::test_a_rollout_holds_what_was_seen_done_and_paid",
        "a rollout begins with the last observation but one",
        "a3c/agent/worker.py",
        "observations[0] = observations[-1]",
        "observations[0] = observations[-2]",
    ),
    Proof(
        "Nothing after an episode's end counts for it",
        "agent/losses_test.py::test_an_episode_that_ends_mid_rollout_cuts_the_sum",
        "returns run on through ends",
        "a3c/agent/losses.py",
        "discount * continues[t] * following",
        "discount * following",
    ),
    Proof(
        "A time limit is no death: its last step is paid γ·V of the true last observation",
        "agent/worker_test.py::test_a_truncation_is_paid_the_value_it_hides_and_a_termination_is_not",
        "the hidden value is left out",
        "a3c/agent/worker.py",
        "if only_truncated.any():",
        "if False:",
    ),
    Proof(
        "No gradient flows into the returns, nor from the policy's loss into the value",
        "agent/losses_test.py::test_no_gradient_crosses_from_policy_to_value_or_into_returns",
        "the advantage in the policy loss has a gradient",
        "a3c/agent/losses.py",
        "-log_probabilities * tf.stop_gradient(advantages)",
        "-log_probabilities * advantages",
    ),
    Proof(
        "The entropy bonus pushes the policy towards uniform",
        "agent/losses_test.py::test_the_entropy_bonus_pushes_towards_uniform",
        "its sign is turned",
        "a3c/agent/losses.py",
        "- entropy_bonus * entropies",
        "+ entropy_bonus * entropies",
    ),
    Proof(
        "`sum` adds over steps and environments, `mean` averages",
        "agent/losses_test.py::test_sum_is_mean_times_steps_and_environments",
        "`sum` averages",
        "a3c/agent/losses.py",
        '"sum": tf.reduce_sum',
        '"sum": tf.reduce_mean',
    ),
    Proof(
        "Gradients are clipped by their joint norm",
        "agent/optimizer_test.py::test_clipping_equals_plain_numpy",
        "the first array's norm decides for all",
        "a3c/agent/kernels.py",
        "tf.linalg.global_norm([g for g in gradients if not isinstance(g, Product)])",
        "tf.linalg.global_norm([g for g in gradients if not isinstance(g, Product)][:1])",
    ),
    Proof(
        "RMSProp has its ε inside the root",
        "agent/optimizer_test.py::test_epsilon_is_inside_the_root",
        "ε is squared, as if it stood outside",
        "a3c/agent/optimizer.py",
        "tf.sqrt(mean_square + epsilon)",
        "tf.sqrt(mean_square + epsilon**2)",
    ),
    Proof(
        "A gradient that is not finite is never applied",
        "agent/optimizer_test.py::test_a_gradient_that_is_not_finite_is_never_applied",
        "the norm is not checked",
        "a3c/agent/optimizer.py",
        'tf.debugging.check_numerics(kernels.global_norm(gradients), "gradient not finite")',
        "kernels.global_norm(gradients)",
    ),
    Proof(
        "The learning rate follows the steps that all workers have done",
        "agent/worker_test.py::test_the_learning_rate_follows_the_steps_of_all_workers",
        "it follows the worker's own steps",
        "a3c/agent/worker.py",
        "self._learning_rate(self._shared.counters.read().steps)",
        "self._learning_rate(n_rollouts * self._n_steps_per_rollout)",
    ),
    Proof(
        "Workers share RMSProp's statistics",
        "agent/sharing_test.py::test_a_workers_step_depends_on_the_statistics_that_another_left",
        "each update starts from statistics of 0",
        "a3c/agent/shared.py",
        "self.mean_squares[name],",
        "tf.zeros_like(self.mean_squares[name]),",
    ),
    Proof(
        "No update is lost, whichever threads meet",
        "agent/shared_test.py::test_no_update_is_lost_under_eight_threads",
        "reading and writing are operations of their own, not one",
        "a3c/agent/shared.py",
        "tf.function(self._update, jit_compile=True)",
        "tf.function(self._update)",
    ),
    Proof(
        "A worker acts on a copy of its own until it copies again",
        "agent/learner_test.py::test_one_workers_update_moves_the_shared_weights_and_its_own_copy_only",
        "it acts on the shared weights",
        "a3c/agent/learner.py",
        "kernels.bound(learner.act, self.weights)",
        "kernels.bound(learner.act, shared.weights)",
    ),
    Proof(
        "Steps, updates, games and frames are counted exactly",
        "agent/shared_test.py::test_counts_are_exact_when_sixteen_threads_are_stopped",
        "updates are counted without the lock",
        "a3c/agent/shared.py",
        'had been counted."""\n        with self._lock:',
        'had been counted."""\n        if True:',
    ),
    Proof(
        "A checkpoint is of one moment",
        "agent/worker_test.py::test_a_snapshot_of_working_workers_is_of_one_moment",
        "updates go on while it is copied",
        "a3c/agent/shared.py",
        "with self.gate.shut():",
        "with self.gate:",
    ),
    Proof(
        "A checkpoint gives back what was saved",
        "store/checkpoint_test.py::test_everything_comes_back",
        "zeros are saved",
        "a3c/store/checkpoint.py",
        'np.asarray(array, order="C")',
        "np.zeros_like(array)",
    ),
    Proof(
        "No two workers, environments or purposes draw from one stream",
        "machine/seeding_test.py::test_no_two_of_64_workers_with_32_environments_draw_the_same",
        "worker and environment are added up",
        "a3c/machine/seeding.py",
        "(int(purpose), worker, env, game)",
        "(int(purpose), worker + env, game)",
    ),
    Proof(
        "Each worker draws its actions from its own",
        "run/training_test.py::test_each_worker_draws_actions_from_its_own_stream",
        "all draw from worker 0's",
        "a3c/run/training.py",
        "worker=worker, game=n_updates",
        "worker=0, game=n_updates",
    ),
    Proof(
        "With one worker, a run repeats bit for bit",
        "train_test.py::test_a_run_repeats_bit_for_bit_logged_in_detail_or_not",
        "initial weights are drawn without the seed",
        "a3c/run/training.py",
        "generator = seeding.generator(params.seed, seeding.Purpose.WEIGHTS)",
        "generator = np.random.default_rng()",
    ),
    Proof(
        "What the agent sees, gets and is told is what the emulator showed, to the pixel",
        "replay_by_hand_test.py::test_a_game_is_the_same_by_hand",
        "three frames a decision instead of four",
        "a3c/envs/wrappers.py",
        "n_frames: int = 4,",
        "n_frames: int = 3,",
    ),
    Proof(
        "So it is with the sticky actions of `ALE/*-v5`",
        "replay_by_hand_test.py::test_a_game_is_the_same_by_hand[v5-Pong]",
        "their seed is the next game's",
        "a3c/envs/make.py",
        "key = (run_seed, seeding.Purpose.EMULATOR, worker, env, game)",
        "key = (run_seed, seeding.Purpose.EMULATOR, worker, env, game + 1)",
    ),
    Proof(
        "A game that ends in the no-ops of its start has a row, and the next one begins",
        "replay_by_hand_test.py::test_games_that_end_in_the_no_ops_of_their_start",
        "that one's no-ops are as many again, not a number of its own",
        "a3c/envs/wrappers.py",
        "    for _ in range(MAX_RESETS_IN_A_ROW):\n",
        "    n_noops = itertools.repeat(next(n_noops))\n    for _ in range(MAX_RESETS_IN_A_ROW):\n",
    ),
    Proof(
        "A time limit cuts an episode off, and does not end it",
        "replay_by_hand_test.py::test_a_time_limit_truncates",
        "it is told as a game's end",
        "a3c/envs/wrappers.py",
        "return pixels(), reward_sum, terminated, truncated, info",
        "return pixels(), reward_sum, terminated or truncated, False, info",
    ),
    Proof(
        "What a worker gets from its environment processes is the same",
        "replay_by_hand_test.py::test_what_a_worker_gets[cut off]",
        "truncations are not told",
        "a3c/envs/pool.py",
        "rows.truncated.copy()",
        "np.zeros_like(rows.truncated)",
    ),
    Proof(
        "The last observation before a time limit is among it, and outlasts the reset",
        "replay_by_hand_test.py::test_what_a_worker_gets[cut off, with lives]",
        "it is kept after the reset only",
        "a3c/envs/serve.py",
        "            if truncated:\n                rows.final_observations[row] = seen\n"
        "            if terminated or truncated:\n                seen, _ = env.reset()\n",
        "            if terminated or truncated:\n                seen, _ = env.reset()\n"
        "            if truncated:\n                rows.final_observations[row] = seen\n",
    ),
    Proof(
        "A lost life ends the episode, and the game goes on",
        "envs/wrappers_test.py::test_a_lost_life_ends_the_episode_and_the_game_goes_on",
        "lives are not looked at",
        "a3c/envs/wrappers.py",
        "terminated or self._lost_life,",
        "terminated,",
    ),
    Proof(
        "Scores are whole games', unclipped",
        "envs/score_test.py::test_score_and_length_of_whole_games",
        "the score adds up clipped rewards",
        "a3c/envs/score.py",
        "self.score += float(reward)",
        "self.score += min(1.0, float(reward))",
    ),
    Proof(
        "Environment processes never load TensorFlow",
        "envs/process_test.py::test_no_tensorflow_in_a_process",
        "the environments' module imports it",
        "a3c/envs/make.py",
        "import ale_py\nimport gymnasium",
        "import ale_py\nimport tensorflow\nimport gymnasium",
    ),
    Proof(
        "The networks compute what plain loops compute",
        "agent/network_test.py::test_image_networks_compute_what_plain_numpy_computes",
        "pixels are divided by 256",
        "a3c/agent/kernels.py",
        "kernel / 255.0",
        "kernel / 256.0",
    ),
    Proof(
        "The presets have the published values",
        "settings/params_test.py::test_presets_have_the_published_values[paper]",
        "`paper` clips at 4 instead of 40",
        "a3c/settings/presets/paper.toml",
        "max_grad_norm = 40.0",
        "max_grad_norm = 4.0",
    ),
    Proof(
        "What --debug dumps is what trained",
        "agent/learner_test.py::test_debug_dumps_all_that_the_network_was_fed",
        "observations are dumped one step late",
        "a3c/agent/learner.py",
        "observations=rollout.observations[:-1],",
        "observations=rollout.observations[1:],",
    ),
    Proof(
        "The debug log alone gives an independent program the weights after each update",
        "agent/debug_dump_test.py::test_the_log_gives_the_weights_after_each_update[cartpole]",
        "it says that no episode ends",
        "a3c/agent/learner.py",
        "continues=rollout.continues,",
        "continues=tf.ones_like(rollout.continues),",
    ),
    Proof(
        "An evaluation does not change the training by a bit",
        "run/training_test.py::test_an_evaluation_does_not_change_the_training_by_a_bit",
        "the weights that it had before are copied back",
        "a3c/play/evaluator.py",
        "            self._agent.set_weights(snapshot.weights)\n",
        "            before = {name: x.numpy() for name, x in self._agent._weights.items()}\n"
        "            self._shared.restore(snapshot._replace(weights=before))\n"
        "            self._agent.set_weights(snapshot.weights)\n",
    ),
    Proof(
        "Games are scored as published ones are",
        "play/evaluation_test.py::test_games_are_played_as_published",
        "their rewards are clipped",
        "a3c/play/evaluation.py",
        "no_clip_rewards=True",
        "no_clip_rewards=False",
    ),
    Proof(
        "Figures in the logs do not change the training",
        "agent/learner_test.py::test_measuring_tells_what_learning_would_do_and_does_nothing",
        "what was measured is applied",
        "a3c/agent/learner.py",
        "gradients = {name: of_policy[name] + of_value[name] for name in weights}",
        "gradients = {name: of_policy[name] + of_value[name] for name in weights}\n"
        "        self._shared.apply(gradients, tf.constant(1e-3), weights)",
    ),
    Proof(
        "One worker's run that is stopped where games begin, and resumed, is the one never stopped",
        "store/resume_test.py::test_a_run_that_is_resumed_where_games_begin_is_the_one_never_stopped[vectors]",
        "its draws begin anew",
        "a3c/run/training.py",
        "        generator.bit_generator.state = start.position.workers[worker].generator\n",
        "        pass\n",
    ),
    Proof(
        "A damaged checkpoint gives way to the one before",
        "store/resume_test.py::test_a_damaged_checkpoint_gives_way_to_the_one_before[flipped]",
        "checksums are not compared",
        "a3c/store/checkpoint.py",
        'if content.pop("checksum", None) != _checksum(content, tensors):',
        'if not content.pop("checksum", None):',
    ),
    Proof(
        "No two runs share a folder",
        "store/resume_test.py::test_a_run_under_way_is_not_resumed",
        "nothing is locked",
        "a3c/store/run_folder.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "file.flush()",
    ),
    Proof(
        "Nor does one save where another was put in its place",
        "store/resume_test.py::test_a_run_leaves_a_folder_alone_that_another_has_taken",
        "it does not look",
        "a3c/store/run_folder.py",
        "        if not self.is_ours():\n            raise OSError(",
        "        if False:\n            raise OSError(",
    ),
    Proof(
        "Environment processes end with their run, whatever they are doing",
        "envs/process_test.py::test_processes_end_when_their_parent_is_killed[HangsInStep-v0-hang]",
        "the system is not told to end them",
        "a3c/envs/serve.py",
        "    _end_with_the_run()\n    cv2",
        "    cv2",
    ),
    Proof(
        "An update leaves out what broke",
        "agent/worker_test.py::test_an_update_leaves_out_what_broke[mean]",
        "its steps are learned from all the same",
        "a3c/agent/worker.py",
        "if not self._is_whole.all():",
        "if False:",
    ),
    Proof(
        "Environments that break more than ten times a minute end the run",
        "envs/pool_test.py::test_restarts_are_limited_by_the_minute",
        "they are not counted",
        "a3c/envs/pool.py",
        "if is_full and now - self._latest[0] < self._seconds:",
        "if False:",
    ),
    Proof(
        "Nobody learns after a failure",
        "run/failure_test.py::test_nobody_learns_after_a_failure[playing]",
        "the others are not told",
        "a3c/agent/worker.py",
        "self._stop.set()  # before anything slow: nobody is to learn after this",
        "pass",
    ),
    Proof(
        "Nor do those who waited for their turn while learning failed",
        "run/failure_test.py::test_nobody_learns_after_a_failure[learning]",
        "they are told when the turn is theirs already",
        "a3c/agent/worker.py",
        "self._stop.set()  # before others pass the gate",
        "pass",
    ),
    Proof(
        "A full disk loses no row, as far as 16 MiB a file hold them",
        "disk_test.py::test_what_does_not_fit_waits_and_comes_first",
        "what could not be written is dropped",
        "a3c/machine/appending.py",
        "            self.error = error.strerror or str(error)\n            return False",
        '            self.error, self._waiting = str(error), b""\n            return False',
    ),
    Proof(
        "Nothing is written through a link out of the folder",
        "store/resume_test.py::test_nothing_is_written_through_a_link_or_a_pipe[link-log.txt]",
        "links are not looked for",
        "a3c/store/resume.py",
        "if path.is_symlink() or (",
        "if (",
    ),
    Proof(
        "Learns softmax(r/β), the best policy of a bandit with entropy bonus β",
        "learning_test.py::test_a_bandit_with_an_entropy_bonus_is_played_by_softmax",
        "the bonus counts twice",
        "a3c/agent/losses.py",
        "- entropy_bonus * entropies",
        "- 2 * entropy_bonus * entropies",
    ),
    Proof(
        "Learns the values of a chain, with K = 1 and K = 4",
        "learning_test.py::test_a_chain_gets_the_values_of_its_closed_form",
        "returns run on through ends",
        "a3c/agent/losses.py",
        "discount * continues[t] * following",
        "discount * following",
    ),
    Proof(
        "Learns them with four environments as with one",
        "learning_test.py::test_a_chain_gets_the_values_of_its_closed_form[mean-4]",
        "steps and environments change places",
        "a3c/agent/learner.py",
        "values = tf.reshape(predictions.values, (n_steps, -1))",
        "values = tf.transpose(tf.reshape(predictions.values, (-1, n_steps)))",
    ),
    Proof(
        "Learns 1/(1 − γ) where a time limit cuts a task off",
        "learning_test.py::test_a_task_that_is_cut_off_is_worth_as_if_it_went_on",
        "the hidden value is left out",
        "a3c/agent/worker.py",
        "if only_truncated.any():",
        "if False:",
    ),
    Proof(
        "Learns what pays after a rollout's end",
        "learning_test.py::test_patience_is_learned_across_the_edge_of_rollouts",
        "returns begin with 0 instead of the bootstrap",
        "a3c/agent/losses.py",
        "following = bootstrap_values\n",
        "following = tf.zeros_like(bootstrap_values)\n",
    ),
    Proof(
        "Learns from what only older frames of the stack show",
        "learning_test.py::test_where_a_dot_has_vanished_is_seen_in_the_stack",
        "the stack holds the newest image four times",
        "a3c/envs/wrappers.py",
        "[*self._images[1:], image]",
        "[image] * self._n_images",
    ),
]


# The last line of a traceback, as pytest shows it.
_ASSERTED = re.compile(r"^\S+:\d+: (AssertionError|Failed)$", re.MULTILINE)


def copy_of_tree(folder: pathlib.Path) -> pathlib.Path:
    """What tests need of the repository."""
    return shutil.copytree(ROOT, folder / "tree", ignore=LEFT_BEHIND)


def run_tests(
    tests: Sequence[str], tree: pathlib.Path, *more: str
) -> "subprocess.CompletedProcess[str]":
    """Run tests in a copy of the tree, as pytest names them there; with `more` of its arguments."""
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", *more]
    # The slow cases of a test come with it, the weekly ones not.
    paths = [f"tests/{test}" for test in tests]
    return subprocess.run([*command, *paths], cwd=tree, capture_output=True, text=True)


def check_green(tests: Iterable[str], tree: pathlib.Path) -> None:
    """Raise unless all of them pass as long as nothing is changed."""
    test = run_tests(sorted(set(tests)), tree, "-x")
    assert test.returncode == 0, test.stdout[-4000:] + test.stderr[-2000:]


def is_red(proof: Proof, tree: pathlib.Path) -> bool:
    """Make the change in a copy of the tree, run the test there, take the change back.

    False if any case of the test still passes; AssertionError if one fails by anything but an
    assertion.
    """
    module = tree / proof.module
    text = module.read_text(encoding="utf-8")
    assert text.count(proof.old) == 1, (
        f"{proof.module} has {proof.old!r} {text.count(proof.old)} times"
    )
    module.write_text(text.replace(proof.old, proof.new), encoding="utf-8")
    try:
        test = run_tests([proof.test], tree)
    finally:
        module.write_text(text, encoding="utf-8")
    said = test.stdout[-2000:] + test.stderr[-2000:]
    assert test.returncode in (0, 1), said
    counts = count(test.stdout)
    # What merely crashes proves nothing: anything would have turned it red.
    assert len(_ASSERTED.findall(test.stdout)) >= counts.get("failed", 0), said
    assert "error" not in counts, said
    return "failed" in counts and "passed" not in counts


def count(said: str) -> dict[str, int]:
    """How many tests failed, passed or broke, by the last line that pytest says; none is left out."""
    last = said.strip().splitlines()[-1]
    return {word: int(n) for n, word in re.findall(r"(\d+) (failed|passed|error)", last)}


def table() -> str:
    """The README's."""
    head = "| guarantee | its test | the change that turns it red |\n|---|---|---|\n"
    return head + "".join(f"{proof.row()}\n" for proof in PROOFS)


def main() -> None:
    if sys.argv[1:] == ["table"]:
        print(table(), end="")
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = copy_of_tree(pathlib.Path(folder))
        check_green([proof.test for proof in PROOFS], tree)
        for proof in PROOFS:
            print(f"{'red' if is_red(proof, tree) else 'STILL GREEN'}: {proof.test}", flush=True)


if __name__ == "__main__":
    main()
