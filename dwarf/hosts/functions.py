"""Functions as tasks: parameters are read from the state, the result's fields are written to it.

    def charge(flow): ...                        the carrier: the one parameter without annotation, or one annotated Flow
    def quote(amount: float, customer: Customer) -> Quote: ...       state fields, decoded to their annotations

A function that takes the carrier alone may end with any expression (`lambda flow: flow.retry(1)`): of what it returns only
the fields of an object count, and the very answer that `interrupt` or `subgraph` gave does not.

A `TaskFunction` is made once, when a task is registered; everything that can be wrong with a function is found then, and
nothing about it is looked up again when it runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from dwarf.checks import check_flag, check_whole
from dwarf.durations import Duration
from dwarf.errors import InvalidArgument, StateTypeError, TaskError
from dwarf.flow import Flow
from dwarf.hosts.signatures import Parameter, is_async, read_parameters
from dwarf.names import check_text
from dwarf.options import check_time_budget
from dwarf.retry import Retry
from dwarf.state import decode_as
from dwarf.values import NULL, encode_fields, has_fields

CONCURRENCY_MAX = (1 << 31) - 1


class TaskFunction:
    """A function under a task URL, with what its author declared about it.

    `time_budget_ms` is 0 where the flow's own budget counts alone, `concurrency` 0 where there is no cap.
    """

    __slots__ = (
        "_call_with_flow", "_parameters", "_takes_flow_alone", "aliases", "concurrency", "durable_before", "function", "idempotent",
        "is_async", "retry", "time_budget_ms", "url",
    )  # fmt: skip

    def __init__(
        self,
        url: str,
        function: Callable[..., Any],
        *,
        retry: Retry | None = None,
        time_budget: Duration = 0,
        concurrency: int = 0,
        aliases: Iterable[str] = (),
        idempotent: bool = False,
        durable_before: bool = False,
    ) -> None:
        """Raises `InvalidArgument` naming the task and what is wrong with the function or with an argument."""
        self.url = check_url(url, "a task URL")
        what = f"task {url!r}"
        self.function = function
        self.is_async = is_async(function, what)
        self._parameters = read_parameters(function, what)
        self.retry = _check_retry(retry, what)
        self.time_budget_ms = _check_budget(time_budget, what)
        self.concurrency = check_whole(concurrency, f"{what}: concurrency", least=0, most=CONCURRENCY_MAX)
        self.aliases = _check_aliases(aliases, what)
        self.idempotent = check_flag(idempotent, f"{what}: idempotent")
        self.durable_before = check_flag(durable_before, f"{what}: durable_before")
        self._takes_flow_alone = len(self._parameters) == 1 and self._parameters[0].is_flow and not self._parameters[0].by_keyword
        self._call_with_flow = function if self._takes_flow_alone else self._call_with_fields

    def call(self, flow: Flow) -> Awaitable[None] | None:
        """Run the function over `flow` and write its result there; an async one is awaited for that."""
        if self.is_async:
            return self._call_async(flow)
        result = self._call_with_flow(flow)
        if result is not None:
            self._write(flow, result)
        return None

    async def _call_async(self, flow: Flow) -> None:
        result = await self._call_with_flow(flow)
        if result is not None:
            self._write(flow, result)

    def _call_with_fields(self, flow: Flow) -> Any:
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter in self._parameters:
            value = flow if parameter.is_flow else self._read(flow, parameter)
            if parameter.by_keyword:
                keywords[parameter.name] = value
            else:
                positional.append(value)
        return self.function(*positional, **keywords)

    def _read(self, flow: Flow, parameter: Parameter) -> Any:
        name = parameter.name
        raw = flow.raw(name)
        if raw is None or raw == NULL:
            if parameter.is_required:
                raise StateTypeError(
                    f"task {self.url!r}: parameter {name!r} needs the field {name!r}, which the state does not have", field=name
                )
            return parameter.default
        try:
            return decode_as(name, raw, parameter.type)
        except StateTypeError as error:
            raise StateTypeError(f"task {self.url!r}: parameter {name!r}: {error}", field=name) from None

    def _write(self, flow: Flow, result: Any) -> None:
        if self._takes_flow_alone and (flow.is_answer(result) or not (has_fields(result) or hasattr(result, "__await__"))):
            return
        if not has_fields(result):
            raise TaskError(f"task {self.url!r} returned {_described(result)}")
        flow.write_all(encode_fields(result, f"the result of task {self.url!r}"))

    def __repr__(self) -> str:
        return f"<TaskFunction {self.url!r}>"


def check_url(url: object, what: str) -> str:
    """Accept a URL: any text that can be stored and is not empty."""
    text = check_text(what, url)
    if not text:
        raise InvalidArgument(f"{what} is empty")
    return text


def _described(result: Any) -> str:
    if hasattr(result, "__await__"):
        if hasattr(result, "close"):
            result.close()  # nobody will await it
        return "a coroutine; declare the function with async def, so that it is awaited"
    return f"{type(result).__name__}; a task returns None, or its changes as a mapping, a Struct or a dataclass"


def _check_retry(retry: object, what: str) -> Retry | None:
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidArgument(f"{what}: retry is of type {type(retry).__name__}; it must be a Retry, or None")
    return retry


def _check_budget(time_budget: object, what: str) -> int:
    try:
        return check_time_budget(time_budget, default_ms=0)
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from None


def _check_aliases(aliases: object, what: str) -> tuple[str, ...]:
    if isinstance(aliases, str) or not isinstance(aliases, Iterable):
        raise InvalidArgument(f"{what}: aliases is of type {type(aliases).__name__}; it must be a tuple of URLs")
    return tuple(check_url(alias, f"{what}: an alias") for alias in aliases)
