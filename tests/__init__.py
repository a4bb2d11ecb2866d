"""The tests; a package, so that `tests.tools.toys` is this one and no other."""
