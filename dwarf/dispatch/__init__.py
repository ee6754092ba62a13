"""Dispatching one shard: claiming what is due, handing it to executors, recording what comes back."""
