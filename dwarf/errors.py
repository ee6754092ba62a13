"""Every error that Dwarf raises on purpose.

Each class has `.status`, the HTTP status the same failure has at the HTTP door, and a message that names the thing and
the rule it broke. Messages never hold a flow key's token. Nothing here imports anything else of the package.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DwarfError(Exception):
    """The root of the tree; caught to catch everything Dwarf raises on purpose."""

    status: int = 500


class InvalidArgument(DwarfError):
    """An argument breaks a rule; nothing was changed."""

    status = 400


class Unauthenticated(DwarfError):
    """The caller showed no valid credentials."""

    status = 401


class PermissionDenied(DwarfError):
    """The caller is known and may not do this."""

    status = 403


class NotFound(DwarfError):
    """The named thing does not exist, or the token of its key does not match."""

    status = 404


class Conflict(DwarfError):
    """The thing exists and its present status forbids the call."""

    status = 409


class ShardUnavailable(DwarfError):
    """The shard that owns the thing cannot be reached now."""

    status = 503


class WaitTimeout(DwarfError, TimeoutError):
    """A wait ended before its flow did; the flow runs on and `flow_key` names it."""

    status = 408

    def __init__(self, message: str, *, flow_key: str = "") -> None:
        super().__init__(message)
        self.flow_key = flow_key


class GraphError(DwarfError):
    """A graph breaks a structural rule.

    `graph` is its name, `rule` a short stable identifier of the rule ("fan-in-unreached", …), `place` the offending
    node, edge or field.
    """

    status = 400
    rule_default: ClassVar[str] = "graph"

    def __init__(self, message: str, *, graph: str = "", rule: str = "", place: str = "") -> None:
        super().__init__(message)
        self.graph = graph
        self.rule = rule or self.rule_default
        self.place = place


class ExpressionError(GraphError):
    """A condition cannot be parsed, or cannot be evaluated over the state at hand.

    `text` is the whole condition, `offset` the character (from 0) where the trouble starts.
    """

    rule_default = "expression-syntax"

    def __init__(self, message: str, *, text: str = "", offset: int = 0, rule: str = "") -> None:
        super().__init__(message, rule=rule, place=text)
        self.text = text
        self.offset = offset


class StateTypeError(DwarfError):
    """A field holds another type than the one it was read as. `field` names it."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class StateValueError(DwarfError, ValueError):
    """A value cannot be stored. `path` leads to the offending part, such as `order.lines[3].price`."""

    status = 400

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class ReducerError(DwarfError):
    """A contribution does not fit the reducer of its field. `field` and `reducer` name the two."""

    status = 400

    def __init__(self, message: str, *, field: str = "", reducer: str = "") -> None:
        super().__init__(message)
        self.field = field
        self.reducer = reducer


class SignalError(DwarfError):
    """A task used a control signal against its rules: two in one run, or a second park of another kind."""


class SubgraphError(DwarfError):
    """A child flow did not complete. Only its error text crosses to the caller, so `.status` is always 500."""


class TaskError(DwarfError):
    """Raised by a task to fail its step with a chosen status and properties; both reach `onErr`.

    Properties stand beside the members `error`, `statusCode` and `trace` of `onErr` and cannot take their names.
    """

    def __init__(self, message: str, *, status: int = 500, **properties: Any) -> None:
        super().__init__(message)
        self.status = status
        self.properties = properties


class TimeBudgetExceeded(DwarfError, TimeoutError):
    """A task was still running when its time budget had passed, and was cancelled. Its onError edge and its retry policy apply."""

    status = 408


class ExecutorDied(DwarfError):
    """A step whose executor process died under it too often is failed with this text; its onError edge applies."""
