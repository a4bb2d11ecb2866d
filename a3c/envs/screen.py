"""The emulator's screen as colour numbers, which gives the same luminance as RGB in less time.

The Atari draws with 128 colours, and its emulator stores the number of each pixel's colour. It
takes 30 µs to convert a frame to RGB, a third of the time of the emulation itself, and 1 µs to copy
the numbers. So frames are handed on as numbers, (210, 160). Where the agent sees them, two frames
give the luminance of the maximum of their RGB. Few pixels change between two frames, so we look up
the first frame in a table of 256 luminances, and only the pixels that differ in a table of pairs.
The result equals RGB's to the bit.
"""

from typing import Any

import cv2
import gymnasium
import numpy as np

# The emulator's colours, sixteen hues of eight shades; their numbers are 0, 2, 4, ...
_COLOURS = """
000000 4a4a4a 6f6f6f 8e8e8e aaaaaa c0c0c0 d6d6d6 ececec
484800 69690f 86861d a2a22a bbbb35 d2d240 e8e84a fcfc54
7c2c00 904811 a26221 b47a30 c3903d d2a44a dfb755 ecc860
901c00 a33915 b55328 c66c3a d5824a e39759 f0aa67 fcbc74
940000 a71a1a b83232 c84848 d65c5c e46f6f f08080 fc9090
840064 97197a a8308f b846a2 c659b3 d46cc3 e07cd2 ec8ce0
500084 68199a 7d30ad 9246c0 a459d0 b56ce0 c57cee d48cfc
140090 331aa3 4e32b5 6848c6 7f5cd5 956fe3 a980f0 bc90fc
000094 181aa7 2d32b8 4248c8 545cd6 656fe4 7580f0 8490fc
001c88 183b9d 2d57b0 4272c2 548ad2 65a0e1 75b5ef 84c8fc
003064 185080 2d6d98 4288b0 54a0c5 65b7d9 75cceb 84e0fc
004030 18624e 2d8169 429e82 54b899 65d1ae 75e7c2 84fcd4
004400 1a661a 328432 48a048 5cba5c 6fd26f 80e880 90fc90
143c00 355f18 527e2d 6e9c42 87b754 9ed065 b4e775 c8fc84
303800 505916 6d762b 88923e a0ab4f b7c25f ccd86e e0ec7c
482c00 694d14 866a26 a28638 bb9f47 d2b656 e8cc63 fce070
"""
# The RGB of each number, (256, 3).
RGB = np.frombuffer(bytes.fromhex(_COLOURS), np.uint8).reshape(128, 3).repeat(2, axis=0)
# [n, m] is the luminance of the maximum of colours n and m, taken in RGB.
_PAIR_LUMINANCE = cv2.cvtColor(np.maximum(RGB[:, None], RGB[None]), cv2.COLOR_RGB2GRAY)
_LUMINANCE = np.ascontiguousarray(_PAIR_LUMINANCE.diagonal())


class Rgb(gymnasium.ObservationWrapper):
    """Observations are the emulator's screen in RGB, whatever the environment below returns."""

    def __init__(self, env: gymnasium.Env, ale: Any) -> None:
        super().__init__(env)
        self._ale = ale

    def observation(self, observation: Any) -> np.ndarray:
        return self._ale.getScreenRGB()


class ColourNumbers(Rgb):
    """Observations are the emulator's screen in colour numbers, (height, width)."""

    def reset(self, **given: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset, and check on the first screen that the emulator draws with the colours above."""
        numbers, info = super().reset(**given)
        if not np.array_equal(RGB[numbers], self._ale.getScreenRGB()):
            raise RuntimeError("the emulator draws with other colours than a3c/envs/screen.py has")
        return numbers, info

    def observation(self, observation: Any) -> np.ndarray:
        return self._ale.getScreen()


def has_ntsc_colours(ale: Any) -> bool:
    """Return whether a game has the colours above (NTSC's); 10 of the 104 games have PAL's."""
    height, _ = ale.getScreenDims()
    return height != 250  # the height of PAL's screens


def luminance_of_maximum(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the luminance of the maximum of two screens in colour numbers, (height, width)."""
    luminance = cv2.LUT(first, _LUMINANCE)
    changed = np.flatnonzero(first != second)
    pairs = first.ravel()[changed], second.ravel()[changed]
    luminance.ravel()[changed] = _PAIR_LUMINANCE[pairs]
    return luminance
