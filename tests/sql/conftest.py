"""The tests of statements share the servers of `tests.servers`, and nothing else."""
