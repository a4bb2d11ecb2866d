"""Finds an OpenGL that MuJoCo can draw with, whether there is a display or not.

Gymnasium would take the first that can be imported, which is the one for displays. MuJoCo draws in
the environment's process: in a process that has loaded TensorFlow, Mesa's drivers crash, because they
find TensorFlow's LLVM instead of their own.
"""

import os
import subprocess
import sys

from a3c.play.screens import NoScreen

VARIABLE = "MUJOCO_GL"
# What is missing may raise any error or end the process, so each is tried in a process of its own.
TRY = """
import mujoco
from gymnasium.envs.mujoco.mujoco_rendering import OffScreenViewer
model = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='1'/></worldbody></mujoco>")
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
OffScreenViewer(model, data, 64, 64).render("rgb_array")
"""
HELP = (
    "MuJoCo needs EGL or OSMesa to draw without a display"
    " (Debian, Ubuntu: apt install libegl1 libopengl0 libgl1-mesa-dri)"
)
SECONDS = 60.0


def choose() -> None:
    """Set MUJOCO_GL to what works here, unless the user has set it; NoScreen if nothing works."""
    wanted = os.environ.get(VARIABLE)
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    names = [wanted] if wanted else ["egl", *(["glfw"] if has_display else []), "osmesa"]
    for name in names:
        if _works(name):
            os.environ[VARIABLE] = name
            return
    raise NoScreen(f"{VARIABLE}={wanted} does not work here: {HELP}" if wanted else HELP)


def _works(name: str) -> bool:
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", TRY],
            env=os.environ | {VARIABLE: name},
            capture_output=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return tried.returncode == 0
