"""A run from start to end: what it is built of, and the watch over its workers."""
