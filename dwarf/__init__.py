"""Dwarf: durable workflows in Python on PostgreSQL.

Everything listed in `__all__` is importable from here. A name is loaded when it is first used, so that `import dwarf`
costs next to nothing and never pulls in a database driver, an event loop or a server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dwarf.client import Client as Client
    from dwarf.engine import Engine as Engine
    from dwarf.errors import Conflict as Conflict
    from dwarf.errors import DwarfError as DwarfError
    from dwarf.errors import ExecutorDied as ExecutorDied
    from dwarf.errors import ExpressionError as ExpressionError
    from dwarf.errors import GraphError as GraphError
    from dwarf.errors import InvalidArgument as InvalidArgument
    from dwarf.errors import NotFound as NotFound
    from dwarf.errors import PermissionDenied as PermissionDenied
    from dwarf.errors import ReducerError as ReducerError
    from dwarf.errors import ShardUnavailable as ShardUnavailable
    from dwarf.errors import SignalError as SignalError
    from dwarf.errors import StateTypeError as StateTypeError
    from dwarf.errors import StateValueError as StateValueError
    from dwarf.errors import SubgraphError as SubgraphError
    from dwarf.errors import TaskError as TaskError
    from dwarf.errors import TimeBudgetExceeded as TimeBudgetExceeded
    from dwarf.errors import Unauthenticated as Unauthenticated
    from dwarf.errors import WaitTimeout as WaitTimeout
    from dwarf.flow import Flow as Flow
    from dwarf.flow import Parked as Parked
    from dwarf.fork_preview import ForkPreview as ForkPreview
    from dwarf.graph import END as END
    from dwarf.graph import Graph as Graph
    from dwarf.graph import Task as Task
    from dwarf.graph import Transition as Transition
    from dwarf.hosts.app import App as App
    from dwarf.hosts.host import Host as Host
    from dwarf.keys import FlowKey as FlowKey
    from dwarf.keys import StepKey as StepKey
    from dwarf.options import FlowOptions as FlowOptions
    from dwarf.outcome import Outcome as Outcome
    from dwarf.query import FlowSummary as FlowSummary
    from dwarf.query import Page as Page
    from dwarf.query import Query as Query
    from dwarf.recovery import RecoveredFlow as RecoveredFlow
    from dwarf.recovery import Recovery as Recovery
    from dwarf.reducers import Reducer as Reducer
    from dwarf.retry import Retry as Retry
    from dwarf.shards import Shard as Shard
    from dwarf.shards import ShardInfo as ShardInfo
    from dwarf.state import State as State
    from dwarf.status import Status as Status
    from dwarf.status import StepStatus as StepStatus
    from dwarf.steps import Step as Step
    from dwarf.sync_client import SyncClient as SyncClient
    from dwarf.values import b64 as b64

__version__ = "0.1.0"

_HOMES = {
    "client": ("Client",),
    "engine": ("Engine",),
    "errors": (
        "Conflict", "DwarfError", "ExecutorDied", "ExpressionError", "GraphError", "InvalidArgument", "NotFound",
        "PermissionDenied", "ReducerError", "ShardUnavailable", "SignalError", "StateTypeError", "StateValueError",
        "SubgraphError", "TaskError", "TimeBudgetExceeded", "Unauthenticated", "WaitTimeout",
    ),
    "flow": ("Flow", "Parked"),
    "fork_preview": ("ForkPreview",),
    "graph": ("END", "Graph", "Task", "Transition"),
    "hosts.app": ("App",),
    "hosts.host": ("Host",),
    "keys": ("FlowKey", "StepKey"),
    "options": ("FlowOptions",),
    "outcome": ("Outcome",),
    "query": ("FlowSummary", "Page", "Query"),
    "recovery": ("RecoveredFlow", "Recovery"),
    "reducers": ("Reducer",),
    "retry": ("Retry",),
    "shards": ("Shard", "ShardInfo"),
    "state": ("State",),
    "status": ("Status", "StepStatus"),
    "steps": ("Step",),
    "sync_client": ("SyncClient",),
    "values": ("b64",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'dwarf' has no attribute {name!r}")
    value = getattr(import_module(f"dwarf.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
