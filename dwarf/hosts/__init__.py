"""Whoever resolves graphs and runs tasks: the `Host` protocol, the `App` that a user fills, and tasks made of functions.

`host`       the protocol
`app`        App: a registry of tasks and graphs by URL
`functions`  a function as a task: its parameters are read from the state, its result is written to it
`run`        one run of a task, turned into an Effect
"""

from dwarf.hosts.app import App
from dwarf.hosts.functions import TaskFunction
from dwarf.hosts.host import Host

__all__ = ["App", "Host", "TaskFunction"]
