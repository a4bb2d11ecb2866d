"""What several tests use (the oracle, toys, pinned runs), and tools that test the tests."""
