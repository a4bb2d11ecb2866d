"""The tests; a package, so that `tests.toys` is this one and no other."""
