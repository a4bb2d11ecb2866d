"""The tests, a room for each room of a3c; a package, so that `tests.tools` means this folder."""
