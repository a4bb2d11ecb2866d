"""The program sweep.py, or a3c-sweep where the package is installed.

    python3 sweep.py sweep.toml
    python3 sweep.py --seeds 3 --envs A-v1 B-v1 -- --preset wide

docs/sweeps.md says what the file may hold. Each trial is a run of train.py in the sweep's folder.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The sweep's own flags, and those of train.py, which follow `--`."""
    from a3c.settings.command_line import Parser, called

    program = " ".join(called("sweep.py"))
    parser = Parser(
        usage=f"{program} [FILE] [flags] [-- flags of train.py], or {program} --resume DIR [flags]",
        description="Train many runs, on this machine or on a Ray cluster.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    # fmt: off
    add("file", nargs="?", metavar="FILE", help="the sweep, a TOML file; flags override it")
    add("--envs", nargs="+", metavar="ID", help="the environments")
    add("--seeds", nargs="+", type=int, metavar="N", help="how many seeds; several numbers: which ones")
    add("--cores", type=int, metavar="N", help="cores of each trial (default: 1)")
    add("--max_failures", type=int, metavar="N", help="how often to try a trial again that fails (default: 2)")
    add("--out", type=pathlib.Path, metavar="DIR", help="the sweep's folder (default: runs/, with file and time)")
    add("--resume", type=pathlib.Path, metavar="DIR", help="go on with the trials that are not finished")
    add("--address", metavar="A", help="run on a Ray cluster: auto, or HOST:PORT (default: on this machine)")
    add("--ship_code", action="store_true", help="send this code to the machines of the cluster (default:"
        " they have it at the same path)")
    # fmt: on
    at = argv.index("--") if "--" in argv else len(argv)
    return parser.parse_args(argv[:at]), list(argv[at + 1 :])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a sweep; returns the exit status."""
    from a3c.machine import appending, stopping

    signals = stopping.StopSignals()
    appending.open_what_is_closed()

    from a3c.envs.make import UnsupportedEnv
    from a3c.settings.command_line import called
    from a3c.settings.params import BadInput
    from a3c.sweep.start import start

    argv = sys.argv[1:] if argv is None else argv
    try:
        return start(*parse(argv), argv, signals)
    except (BadInput, UnsupportedEnv) as error:
        print(f"{called('sweep.py')[-1]}: error: {error}", file=sys.stderr)
        return 2
