"""Random inputs that make no sense: each must be accepted, or refused in one clear line.

Every class of inputs has an `attempt`: it makes input number n of a seed, gives it to the code that
reads such inputs, and returns whether the code accepted it. Any exception other than a refusal, and
a refusal of more than one line, is a finding. An input can be made again from its number.
"""

import contextlib
import copy
import io
import json
import math
import pathlib
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

import preprocessing_play
import show_debug_data
from a3c.agent import debug_dump
from a3c.play import command
from a3c.settings import command_line, config, params
from a3c.store import checkpoint, games, provenance, reading, resume, run_folder
from a3c.sweep import plot_command as plot_runs
from tests.tools import checkpoint_files, flags_page

Attempt = Callable[[random.Random, pathlib.Path], bool]


class Finding(Exception):
    """Something that must not happen."""


def check_line(text: str) -> None:
    """Raise unless a refusal is one short line that can be printed."""
    if not (1 <= len(text) <= 1000 and text.isprintable()):
        raise Finding(f"not one clear line: {text[:200]!r} ({len(text)} characters)")


@contextlib.contextmanager
def refused_by(*kinds: type[Exception]) -> Iterator[None]:
    """Check the line of each refusal and raise it as `Refused`."""
    try:
        yield
    except kinds as error:
        check_line(str(error))
        raise Refused from error


class Refused(Exception):
    """The input was refused in one clear line."""


# What inputs are made of

TEXTS = (
    *("", " ", "x", "0", "-1", "1e9", "1e999", "nan", "inf", "-inf", "1_000", "0x10", "١٢", "½"),
    *("../..", "..", ".", "/", "/etc/passwd", "//", "a/../../b", "\\", "~", "C:", "x" * 10_000),
    *(
        "\n",
        "\0",
        "\r\n",
        "\x1b[2J",
        "\u202e",
        "\udc80",
        "é" * 300,
        "{}",
        "%s",
        "$(id)",
        "`id`",
        "|",
    ),
    *("CartPole-v1", "PongNoFrameskip-v4", "ALE/Pong-v5", "no_such_module:X-v0", ":", "a:b:c"),
)
NUMBERS = (0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320)
ODD = (None, True, False, math.nan, math.inf, -math.inf, [], {}, [[]], {"": {}}, *NUMBERS, *TEXTS)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Flip, overwrite, insert, remove, repeat or cut bytes a few times."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        start = rng.randrange(len(result) + 1)
        end = min(len(result), start + rng.choice((1, 1, 2, 4, 8, 64)))
        match rng.randrange(7):
            case 0 if result:
                result[rng.randrange(len(result))] ^= 1 << rng.randrange(8)
            case 1:
                result[start:end] = rng.randbytes(end - start)
            case 2:
                result[start:start] = rng.randbytes(rng.choice((1, 2, 8, 100)))
            case 3:
                del result[start:end]
            case 4:
                result[start:start] = result[start:end] * rng.choice((1, 2, 50))
            case 5:
                text = rng.choice(TEXTS).encode("utf-8", "surrogatepass")
                result[start:end] = text[: rng.choice((4, 100, 10_000))]
            case 6 if rng.randrange(4) == 0:
                del result[start:]
    return bytes(result)


def mutate_json(rng: random.Random, value: Any) -> Any:
    """Return a copy with some values, names or members changed, at any depth."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        node = value
        while isinstance(node, dict | list) and node:
            key = rng.choice(list(node) if isinstance(node, dict) else range(len(node)))
            inner = node[key]
            if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
                node = inner
                continue
            match rng.randrange(5):
                case 0 | 1:
                    node[key] = copy.deepcopy(rng.choice(ODD))
                case 2:
                    del node[key]
                case 3 if isinstance(node, dict):
                    node[str(rng.choice(ODD))[:300]] = inner
                case _:
                    # Long lists of numbers only: long lists of lists need too much memory.
                    most = 2 if isinstance(inner, dict | list | str) else 1000
                    node[key] = [inner] * rng.choice((1, 2, most))
            break
        else:
            value = copy.deepcopy(rng.choice(ODD))
    return value


# Command lines

FLAGS = [*(f"--{name}" for name in params.KNOBS if name != "env_id"), "--help", "--", "-x", "--no"]
FLAGS += ["--resume", "--n_steps", "--config", "--print_config"] * 3
PLOT_FLAGS, DEBUG_FLAGS, CHECKPOINT_FLAGS, PLAY_FLAGS = (
    sorted(flags_page.flags_in(pathlib.Path(module.__file__)))
    for module in (plot_runs, show_debug_data, command, preprocessing_play)
)


def try_command(rng: random.Random, folder: pathlib.Path) -> bool:
    """Give one of the programs a command line; nothing is trained or played."""
    program = rng.randrange(25)
    if program == 0:
        return _try_main(plot_runs.main, _words(rng, PLOT_FLAGS))
    if program == 1:
        return _try_main(show_debug_data.main, _words(rng, DEBUG_FLAGS))
    if program == 2:
        return _parse(command._parse, _words(rng, CHECKPOINT_FLAGS)) is not HELPED
    if program == 3:
        return _parse(preprocessing_play._parse, _words(rng, PLAY_FLAGS)) is not HELPED
    parsed = _parse(command_line.parse, _words(rng, FLAGS))
    if parsed is HELPED:
        return True
    if isinstance(parsed, command_line.PrintConfig):
        return True
    if isinstance(parsed, command_line.Resume):
        with refused_by(params.BadInput):
            args = params.from_json({name: ARGS[name] for name in ("params", "sources")})
            command_line.resumed(args, parsed.given)
        return True
    with refused_by(params.BadInput):
        parsed = params.resolve(parsed, rng.choice(("image", "vector")), rng.randrange(2) == 0)
        if params.from_json(json.loads(json.dumps(params.to_json(parsed)))) != parsed:
            raise Finding("it does not come back from its JSON")
        place = pathlib.Path(run_folder.name_of(parsed, "0123abc")[0])
    if parsed.params.log_dir is None and (
        place.parent != pathlib.Path("runs") or place.name in ("", ".", "..")
    ):
        raise Finding(f"the run folder would be {place}")
    return True


HELPED = object()


def _parse(parse: Callable[[list[str]], Any], argv: list[str]) -> Any:
    """Return the parsed arguments, or HELPED if the program printed its help."""
    with refused_by(params.BadInput), contextlib.redirect_stdout(io.StringIO()):
        try:
            return parse(argv)
        except SystemExit as end:
            if end.code != 0 or not {"--help", "-h"} & set(argv):
                raise Finding(f"exits with {end.code}") from end
            return HELPED


def _words(rng: random.Random, flags: list[str]) -> list[str]:
    words = []
    for _ in range(rng.choice((0, 1, 2, 3, 5, 10))):
        flag = rng.choice(flags)
        knob = params.KNOBS.get(flag[2:])
        values = (
            [
                *map(str, knob.choices or ()),
                *map(str, knob.within or ()),
                params.shown(knob.default),
            ]
            if knob
            else []
        )
        value = rng.choice([*values * 20, *TEXTS, *map(str, NUMBERS)])
        if rng.randrange(10) == 0:
            value = mutate_bytes(rng, value.encode("utf-8", "replace"))[:200].decode(
                "utf-8", "replace"
            )
        several = [flag, *[value] * rng.choice((2, 3, 17))]
        words += rng.choice(
            ([flag, value], [flag, *value.split()], several, [f"{flag}={value}"], [flag], [value])
        )
    if rng.randrange(5):
        words.append(rng.choice(("CartPole-v1", "PongNoFrameskip-v4", *TEXTS)))
    return words


def _try_main(main: Callable[[list[str]], int], argv: list[str]) -> bool:
    """Run a whole program and check its status and its lines on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(argv)
        except SystemExit as end:
            status = end.code
    if status not in (0, 2):
        raise Finding(f"status {status} of {argv}")
    for line in err.getvalue().splitlines():
        check_line(line)
    return status == 0


# JSON


HEADER: dict[str, Any] = {
    name: {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    for name, dtype, shape, start, end in (
        ("weights/w_kernel", "F32", [3, 2], 0, 24),
        ("weights/w_bias", "F32", [2], 24, 32),
        ("mean_squares/w_kernel", "F32", [3, 2], 32, 56),
        ("mean_squares/w_bias", "F32", [2], 56, 64),
        ("moments/returns_n", "I64", [], 64, 72),
        ("moments/returns_mean", "F64", [], 72, 80),
        ("moments/returns_squares", "F64", [], 80, 88),
    )
}
ARRAYS = np.arange(16, dtype="<f4").tobytes() + np.int64(7).tobytes() + np.ones(2, "<f8").tobytes()
WORKER = {"generator": np.random.default_rng(0).bit_generator.state, "next_games": [3]}
INFO: dict[str, Any] = {
    "format_version": checkpoint.FORMAT_VERSION,
    "subject": checkpoint_files.SUBJECT._asdict(),
    "params": checkpoint_files.PARAMS,
    "counts": checkpoint_files.COUNTS._asdict(),
    "position": checkpoint_files.POSITION._asdict()
    | {"workers": [WORKER], "n_bytes": {"monitor.csv": 96, "progress.csv": 33, "log.txt": 5}},
}
ARGS: dict[str, Any] = {
    **params.to_json(
        params.resolve(command_line.parse(["--scale_rewards", "CartPole-v1"]), "vector")
    ),
    "environment": {"kind": "vector", "sticky_actions": 0.0, "action_meanings": []},
}


TABLES = {
    "monitor.csv": b'#{"t_start": 1.0, "env_id": "CartPole-v1"}\nr,l,t,step,worker,env\n'
    b"9.0,9,0.5,40,0,0\n8.0,8,0.9,70,0,0\n",
    "progress.csv": b"misc/steps,misc/env_restarts\n60,0\n70,0\n80,1\n",
    "evaluations.csv": b"steps,episode_reward_mean\n50,1.5\n75,2.5\n",
    "log.txt": b"some lines\n",
    "lock": b"",
}


def write(path: pathlib.Path, content: bytes) -> None:
    """Replace a file; truncating the old one would wait for the disk."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def try_json(rng: random.Random, folder: pathlib.Path) -> bool:
    """Read an args.json or a checkpoint's JSON."""
    if rng.randrange(2):
        return _try_checkpoint(folder, _file(_json(rng, INFO, seal=rng.randrange(4) > 0)))
    for path in [*folder.glob("checkpoints/*"), *(folder / name for name in TABLES)]:
        path.unlink(missing_ok=True)
    write(folder / "args.json", _json(rng, ARGS))
    record = None
    with (
        refused_by(params.BadInput, checkpoint.UnusableCheckpoint),
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        with contextlib.suppress(params.BadInput):
            record = reading.read_record(folder)
        plot_runs.check_group("x", [reading.read_run(folder)] * 2)
        with contextlib.suppress(Refused), refused_by(params.BadInput):
            config.read(str(folder), check_line)
        run_folder.read_args(folder)
        _resume(rng, folder)
    for line in err.getvalue().splitlines():
        check_line(line)
    if record is None:
        raise Finding("one reader accepts what the other refuses")
    return True


def _resume(rng: random.Random, folder: pathlib.Path) -> None:
    """Resume the run of a fuzzed args.json, sometimes from a fuzzed checkpoint."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    info = INFO | {"params": ARGS["params"]}
    text = _json(rng, info, seal=True) if rng.randrange(2) else json.dumps(sealed(info)).encode()
    write(checkpoints / "ckpt-70.safetensors", _file(text))
    for name, table in TABLES.items():
        write(folder / name, mutate_bytes(rng, table) if rng.randrange(2) else table)
    given = rng.choice([{}, {"n_steps": 20_000_000}, {"n_steps": 7}, {"initial_lr": 1e-4}])
    run = resume.open_run(command_line.Resume(str(folder), given))
    with contextlib.closing(run.folder), mock.patch.object(provenance, "git", return_value=None):
        start = resume.cut_back(run, resume.Start(), ["--resume", "run"])
    run_folder.read_args(folder)
    for name, n_bytes in start.position.n_bytes.items():
        if name in TABLES and (folder / name).stat().st_size > n_bytes:
            raise Finding(f"{name} is longer than its checkpoint says")
    _check_games(start.last_games)


def _check_games(games: Any) -> None:
    if len(games) > resume.GAMES_IN_MEAN or not np.isfinite(np.array(games, float)).all():
        raise Finding("games that have no mean")


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content with its checksum."""
    return checkpoint_files.sealed(HEADER, content, ARRAYS)


def _json(rng: random.Random, value: Any, seal: bool = False) -> bytes:
    value = mutate_json(rng, value) if rng.randrange(4) else value
    if seal and isinstance(value, dict):
        with contextlib.suppress(TypeError, ValueError):  # names that cannot be sorted
            value = sealed(value)
    text = json.dumps(value).encode()
    match rng.randrange(8):
        case 0:
            return mutate_bytes(rng, text)
        case 1 if rng.randrange(50) == 0:
            return rng.choice((b"[", b'{"a":', b"[[],")) * rng.choice((10, 100_000))
    return text


def _file(text: bytes, header: Any = HEADER, arrays: bytes = ARRAYS) -> bytes:
    """Return a checkpoint with this JSON, which may be invalid."""
    metadata = {"__metadata__": {checkpoint.KEY: text.decode("utf-8", "replace")}}
    head = json.dumps(metadata | header if isinstance(header, dict) else header).encode()
    return len(head).to_bytes(8, "little") + head + arrays


def _try_checkpoint(folder: pathlib.Path, data: bytes) -> bool:
    write(folder / "ckpt-70.safetensors", data)
    with refused_by(checkpoint.UnusableCheckpoint):
        found = checkpoint.read(checkpoint.find(folder))
        found.check_fits(checkpoint_files.SUBJECT)
    for part in (found.snapshot.weights, found.snapshot.mean_squares):
        for name, array in part.items():
            if array.dtype != np.float32 or not np.isfinite(array).all():
                raise Finding(f"{name} is not as it should be: {array.shape} {array.dtype}")
    for name, moments in found.snapshot.moments.items():
        if not np.isfinite([moments.n, *moments.mean.flat, *moments.squares.flat]).all():
            raise Finding(f"the moments of {name} are not as they should be")
    return True


def try_checkpoint_bytes(rng: random.Random, folder: pathlib.Path) -> bool:
    """Change a file or a part of it; in most cases the checksum fits the changed file."""
    header, arrays = HEADER, ARRAYS
    match rng.randrange(4):
        case 0:
            whole = _file(json.dumps(sealed(INFO)).encode())
            return _try_checkpoint(folder, mutate_bytes(rng, whole))
        case 1:
            header = mutate_json(rng, HEADER)
        case 2:
            sides = [rng.randrange(4) for _ in range(rng.randrange(4))]
            n_bytes = 4 * math.prod(sides)
            at = {"dtype": "F32", "shape": sides, "data_offsets": [0, n_bytes]}
            header, arrays = {f"weights/{rng.choice(TEXTS)}": at}, ARRAYS[:n_bytes]
        case 3:
            arrays = mutate_bytes(rng, ARRAYS)
    content = sealed(INFO)
    with contextlib.suppress(AttributeError, KeyError, LookupError, TypeError, ValueError):
        content = checkpoint_files.sealed(header, INFO, arrays)
    if rng.randrange(20) == 0:
        content["checksum"] = "0" * 64
    return _try_checkpoint(folder, _file(json.dumps(content).encode(), header, arrays))


# Logs and tables


def _dump_line(rng: random.Random, update: int, purpose: str, name: str) -> bytes:
    dtype, low, high = {"observations": ("uint8", 0, 255), "actions": ("int32", -2, 5)}.get(
        name, ("float32", -3, 3)
    )
    shape = (rng.randrange(1, 4), 1, *((3, 2) if name == "observations" else ()))
    numbers = [
        rng.randint(low, high) if dtype != "float32" else rng.gauss(0, 1)
        for _ in range(math.prod(shape))
    ]
    text = " ".join(f"{number:.7g}" for number in numbers)
    sides = ",".join(map(str, shape))
    return (
        f"A3C-DUMP update={update} purpose={purpose} name={name} dtype={dtype} shape={sides} [{text}]\n"
    ).encode()


def try_debug_log(rng: random.Random, folder: pathlib.Path) -> bool:
    """Read a damaged debug log of a few updates; the whole program reads one in 20."""
    names = ("observations", "actions", "rewards", "continues", "returns", "values", "advantages")
    lines = []
    for update in range(rng.randrange(1, 3)):
        lines.append(_dump_line(rng, update, "act", "observations"))
        lines += [_dump_line(rng, update, "train", name) for name in rng.sample(names, 4)]
        lines.append(rng.choice((b"a warning\n", b"", b"\n")))
    log = mutate_bytes(rng, b"".join(lines))
    damaged = 0
    for found in debug_dump.read(io.BytesIO(log)):
        if isinstance(found, debug_dump.Damaged):
            check_line(found.problem)
            damaged += 1
    if rng.randrange(20) == 0:
        write(folder / "log", log)
        _try_main(
            show_debug_data.main, [str(folder / "log"), "--updates", "999", "--out", str(folder)]
        )
    return damaged == 0


def try_csv(rng: random.Random, folder: pathlib.Path) -> bool:
    """Read a monitor.csv, ours or another program's, and a progress.csv; plot one in 10,000."""
    more, columns = rng.choice((("", ""), (",{},0,1", ",step,worker,env")))
    rows = "".join(
        f"{rng.gauss(0, 20):.1f},{rng.randrange(1, 900)},{i * 7.5}{more.format(i * 50)}\n"
        for i in range(rng.randrange(6))
    )
    head = f'#{{"t_start": 1700000000.0, "env_id": "CartPole-v1"}}\nr,l,t{columns}\n'
    monitor = mutate_bytes(rng, (head + rows).encode())
    names = ["misc/steps", "misc/steps_per_second", "rl/policy_entropy"]
    figures = "".join(f"{100 * i},{i}.5,nan\n" for i in range(4))
    progress = mutate_bytes(rng, f"{','.join(names)}\n{figures}".encode())
    read = games.parse_monitor(monitor.decode(errors="replace"))
    for word in read.words:
        check_line(config.one_line(word, 1000))
    merged = games.merge([read, *([] if more else [games.parse_monitor(head + rows)])])
    if not all(np.isfinite(array).all() for array in merged) or (np.diff(merged.seconds) < 0).any():
        raise Finding("games that cannot be plotted")
    table_read = reading.parse_progress(progress.decode(errors="replace"))
    if rng.randrange(20) == 0:
        write(folder / "monitor.csv", monitor)
        write(folder / "progress.csv", progress)
        write(folder / "args.json", json.dumps(ARGS).encode())
        with refused_by(params.BadInput), contextlib.redirect_stderr(io.StringIO()) as err:
            plot_runs.load(folder, None)
        for line in err.getvalue().splitlines():
            check_line(line)
        _check_games([game[:2] for game in resume._last_games(folder / "monitor.csv")])
        if rng.randrange(500) == 0:
            _try_main(
                plot_runs.main, [str(folder), "--out", str(folder / "x.png"), "--curves", "1"]
            )
    return not read.words and set(names) <= table_read.columns.keys()


# Each class, and how many of a million inputs it has.
CLASSES: dict[str, tuple[Attempt, int]] = {
    "command lines": (try_command, 245_000),
    "args.json and checkpoint JSON": (try_json, 245_000),
    "debug logs": (try_debug_log, 245_000),
    "monitor and progress CSVs": (try_csv, 245_000),
    "checkpoint bytes": (try_checkpoint_bytes, 20_000),
}
