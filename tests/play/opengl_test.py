"""Which OpenGL MuJoCo draws with: the first that works, or the user's own."""

import os
import sys
from unittest import mock

import pytest
from gymnasium.envs.mujoco import mujoco_rendering

from a3c.play import opengl
from a3c.play.screens import NoScreen


@pytest.fixture
def works(monkeypatch, tmp_path):
    """Has a script stand in for what draws, with the OpenGLs that work and those that crash.

    Returns a function that says what was tried, in order.
    """
    tried = tmp_path / "tried"
    for name in (opengl.VARIABLE, "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.setenv(name, "")

    def works(*names: str) -> None:
        script = tmp_path / "python"
        cases = "".join(f"  {name}) exit 0;;\n" for name in names)
        script.write_text(
            f"#!/bin/sh\necho $MUJOCO_GL >> {tried}\n"
            f"case $MUJOCO_GL in\n{cases}  osmesa) kill -SEGV $$;;\n  *) exit 1;;\nesac\n"
        )
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))

    works.tried = lambda: tried.read_text().split()
    return works


@pytest.mark.parametrize(
    ("working", "display", "tried"),
    [
        (("egl", "osmesa"), "", ["egl"]),
        (("osmesa", "glfw"), "", ["egl", "osmesa"]),
        (("osmesa", "glfw"), ":0", ["egl", "glfw"]),
        (("osmesa",), ":0", ["egl", "glfw", "osmesa"]),
    ],
)
def test_the_first_that_works_is_chosen(works, monkeypatch, working, display, tried):
    """Analytic: egl, then what needs a display, if there is one, then osmesa."""
    monkeypatch.setenv("DISPLAY", display)
    works(*working)
    opengl.choose()
    assert works.tried() == tried
    assert os.environ["MUJOCO_GL"] == tried[-1]


def test_the_users_own_choice_stays(works, monkeypatch):
    """Analytic: nothing else is tried, even if it does not work."""
    works("egl", "glfw")
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    opengl.choose()
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(NoScreen, match="^MUJOCO_GL=osmesa does not work here: .*libegl1"):
        opengl.choose()
    assert works.tried() == ["glfw", "osmesa"]
    assert os.environ["MUJOCO_GL"] == "osmesa"


def test_where_nothing_works_the_packages_are_named(works):
    """Analytic: also where one crashes."""
    works()
    with pytest.raises(NoScreen, match="^MuJoCo needs EGL or OSMesa .*libegl1"):
        opengl.choose()
    assert works.tried() == ["egl", "osmesa"]


def test_what_is_tried_is_what_gymnasium_draws_with(monkeypatch):
    """Parity: with Gymnasium's own class, as it is called there; only OpenGL is left out."""
    viewer = mock.create_autospec(mujoco_rendering.OffScreenViewer)
    monkeypatch.setattr(mujoco_rendering, "OffScreenViewer", viewer)
    exec(opengl.TRY, {})
    viewer.return_value.render.assert_called_once()
    assert viewer.call_args.args[1].geom_xpos.shape == (1, 3)
