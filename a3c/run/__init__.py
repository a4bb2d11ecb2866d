"""A run from start to end: builds its parts, and watches over its workers."""
