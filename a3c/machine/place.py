"""Where this code lies: in a clone of the repository, or in an installed package."""

import os
import pathlib

CODE = pathlib.Path(__file__).resolve().parents[2]
IS_CLONE = (CODE / "train.py").is_file()  # a package has commands instead


def python_path() -> str:
    """A PYTHONPATH with which another process finds this code, too."""
    return os.pathsep.join(filter(None, [str(CODE), os.environ.get("PYTHONPATH")]))
