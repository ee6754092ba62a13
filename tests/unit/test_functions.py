"""Functions as tasks: what their parameters receive, what becomes of results and errors, what is refused when registered."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import functools
import math
import sys
import types
from collections import ChainMap, namedtuple
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypedDict
from unittest.mock import Mock

import msgspec
import pytest
from msgspec import UNSET, Raw

from dwarf.changes import NOTHING, Changes
from dwarf.effect import Effect, Failure, Interrupt, RetryAfter
from dwarf.errors import DwarfError, GraphError, InvalidArgument, NotFound, StateTypeError, TaskError
from dwarf.flow import Flow, Identity, Parked, Past
from dwarf.hosts.functions import TaskFunction
from dwarf.hosts.run import run_async, run_sync, settle
from dwarf.retry import Retry
from dwarf.state import State

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]

NOW = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


OptionalInt = Optional[int]  # noqa: UP045


class Customer(msgspec.Struct):
    name: str
    level: int = 1


class Quote(msgspec.Struct, rename="camel", omit_defaults=True):
    unit_price: float = 1.0
    note: str | None = None
    left_out: int | msgspec.UnsetType = UNSET


@dataclasses.dataclass
class Receipt:
    total: float
    wait: datetime.timedelta = datetime.timedelta(seconds=1)


class Totals(TypedDict, total=False):
    total: float
    count: int


def run(function: Callable[..., Any], state: dict[str, Any] | None = None, **options: Any) -> Effect:
    task = TaskFunction("u/task", function, **options)
    flow = Flow(state, identity=Identity(task_name="T", step_created_at=NOW), clock=lambda: NOW)
    return asyncio.run(run_async(task, flow)) if task.is_async else run_sync(task, flow)


def written(effect: Effect) -> dict[str, Any]:
    assert effect.failure is None, effect.failure
    return {field: msgspec.json.decode(raw) for field, raw in effect.changes.fields.items()}


def failed(effect: Effect) -> Failure:
    assert effect.failure is not None
    return effect.failure


def refused(function: Any, match: str) -> str:
    with pytest.raises(InvalidArgument, match=match) as caught:
        TaskFunction("u/task", function)
    assert "u/task" in str(caught.value)
    return str(caught.value)


# ---- who receives the carrier ----


def bare(flow):  # type: ignore[no-untyped-def]
    flow["is_flow"] = isinstance(flow, Flow)


def bare_by_another_name(ctx):  # type: ignore[no-untyped-def]
    ctx["is_flow"] = isinstance(ctx, Flow)


def annotated(anything: Flow) -> None:
    anything["is_flow"] = True


def annotated_optional(flow: Flow | None = None) -> None:
    assert flow is not None
    flow["is_flow"] = True


def annotated_with_more(flow: Annotated[Flow, "the carrier"]) -> None:
    flow["is_flow"] = True


def by_keyword(*, flow: Flow) -> None:
    flow["is_flow"] = True


async def asynchronous(flow: Flow) -> None:
    await asyncio.sleep(0)
    flow["is_flow"] = True


@pytest.mark.parametrize(
    "function",
    [bare, bare_by_another_name, annotated, annotated_optional, annotated_with_more, by_keyword, asynchronous, lambda f: bare(f)],
)
def test_who_receives_the_carrier(function: Callable[..., Any]) -> None:
    assert written(run(function)) == {"is_flow": True}


@pytest.mark.parametrize("annotation", ["Flow", "dwarf.Flow", "a.b.Flow", "'Flow'", "Flow | None", "dwarf.Flow|None"])
def test_the_carrier_may_be_imported_for_type_checkers_only(annotation: str) -> None:
    function = types.FunctionType(bare.__code__, {})
    function.__annotations__ = {"flow": annotation}
    assert TaskFunction("u", function)._parameters[0].is_flow
    function.__annotations__ = {"flow": annotation.replace("Flow", "Overflow")}
    refused(function, "Overflow")


def test_a_task_may_take_nothing() -> None:
    assert written(run(lambda: {"x": 1})) == {"x": 1}
    assert run(lambda: None) == Effect()


def test_of_two_parameters_without_annotation_the_second_is_refused_by_name() -> None:
    assert "'amount'" in refused(lambda flow, amount: None, "annotat")
    assert "'second'" in refused(lambda first, second, third: None, "annotat")

    def beside_an_annotated_one(amount, flow: Flow):  # type: ignore[no-untyped-def]
        pass

    assert "'amount'" in refused(beside_an_annotated_one, "annotat")

    def one_of_each(flow, amount: float):  # type: ignore[no-untyped-def]
        flow["seen"] = amount

    assert written(run(one_of_each, {"amount": 2})) == {"seen": 2.0}


# ---- parameters that are state fields ----


def everything(
    amount: float,
    customer: Customer,
    /,
    tags: list[str],
    *,
    count: int = 3,
    note: str | None,
    extra: Any = None,
    wait: datetime.timedelta,
    flow: Flow,
) -> dict[str, Any]:
    assert isinstance(flow, Flow)
    assert type(amount) is float
    return {"seen": [amount, customer, tags, count, note, extra, wait.total_seconds()]}


def test_parameters_are_fields_decoded_to_their_annotations() -> None:
    state = {"amount": 2, "customer": {"name": "ada"}, "tags": ["a"], "wait": datetime.timedelta(seconds=1.5), "other": object}
    del state["other"]
    assert written(run(everything, state)) == {"seen": [2.0, {"name": "ada", "level": 1}, ["a"], 3, None, None, 1.5]}
    more = {**state, "count": 5.0, "note": "n", "extra": [1]}
    assert written(run(everything, more)) == {"seen": [2.0, {"name": "ada", "level": 1}, ["a"], 5, "n", [1], 1.5]}
    nulls = {**state, "count": None, "note": None}
    assert written(run(everything, nulls)) == {"seen": [2.0, {"name": "ada", "level": 1}, ["a"], 3, None, None, 1.5]}


async def quote(amount: float, customer: Customer) -> Quote:
    await asyncio.sleep(0)
    return Quote(amount * customer.level)


def test_an_async_function_is_the_same() -> None:
    assert written(run(quote, {"amount": 2, "customer": {"name": "ada", "level": 3}})) == {"unitPrice": 6.0, "note": None}


@pytest.mark.row("C-31", "E-02")
@pytest.mark.parametrize(
    ("state", "field"),
    [({"customer": {"name": "a"}}, "amount"), ({"amount": None, "customer": {"name": "a"}}, "amount"), ({"amount": "2", "customer": {"name": "a"}}, "amount"),
     ({"amount": 2}, "customer"), ({"amount": 2, "customer": {}}, "customer"), ({"amount": True, "customer": {"name": "a"}}, "amount")],
)  # fmt: skip
def test_a_missing_or_mistyped_field_is_a_task_error_naming_task_parameter_and_field(state: dict[str, Any], field: str) -> None:
    failure = failed(run(quote, state))
    assert not failure.by_engine
    for part in ("'u/task'", f"parameter {field!r}"):
        assert part in failure.text
    flow = Flow(state)
    with pytest.raises(StateTypeError) as caught:
        asyncio.run(TaskFunction("u/task", quote).call(flow))  # type: ignore[arg-type]
    assert caught.value.field == field


def test_a_parameter_sees_the_writes_of_earlier_runs() -> None:
    def task(count: int = 0) -> dict[str, int]:
        return {"count": count + 1}

    flow = Flow({"count": 1}, past=Past(changes=Changes({"count": Raw(b"5")})))
    assert written(run_sync(TaskFunction("u", task), flow)) == {"count": 6}
    flow = Flow({"count": 1}, past=Past(changes=Changes({"count": Raw(b"null")})))
    assert written(run_sync(TaskFunction("u", task), flow)) == {"count": 1}


@pytest.mark.parametrize("kind", [OptionalInt, "Optional[int]", "int | None", Annotated[int | None, "x"], None, type(None)])
def test_where_none_is_allowed_an_absent_field_is_none(kind: Any) -> None:
    def task(x):  # type: ignore[no-untyped-def]
        return {"seen": x is None}

    task.__annotations__["x"] = kind
    assert written(run(task)) == {"seen": True}


def test_annotations_of_local_classes() -> None:
    class Order(msgspec.Struct):
        total: float

    def declared_here(order: Order, orders: list[Order]) -> dict[str, Any]:
        return {"total": order.total + sum(each.total for each in orders)}

    def with_closure(order: Order) -> dict[str, Any]:
        return {"total": Order(order.total + 1).total}

    def deeper() -> Callable[..., Any]:
        class Line(msgspec.Struct):
            order: Any

        def inner(line: Line, order: Order) -> dict[str, Any]:
            return {"total": line.order + order.total}

        return _registered(inner)

    state = {"order": {"total": 1}, "orders": [{"total": 2}], "line": {"order": 5}}
    assert written(run(declared_here, state)) == {"total": 3.0}
    assert written(run(with_closure, state)) == {"total": 2.0}
    flow = Flow(state)
    deeper()(flow)
    assert flow["total"] == 6.0


def _registered(function: Callable[..., Any]) -> Callable[[Flow], Any]:
    return TaskFunction("u", function).call


def test_a_local_class_hides_a_global_one() -> None:
    class Customer(msgspec.Struct):
        mine: int

    def task(customer: Customer) -> dict[str, int]:
        return {"mine": customer.mine}

    assert written(run(task, {"customer": {"mine": 5}})) == {"mine": 5}


class Callables:
    def method(self, amount: float, flow: Flow) -> dict[str, Any]:
        return {"seen": amount, "me": type(self).__name__}

    async def slow(self, amount: float) -> dict[str, Any]:
        return {"seen": amount, "me": type(self).__name__}

    @classmethod
    def of_class(cls, amount: float) -> dict[str, Any]:
        return {"seen": amount, "me": cls.__name__}

    @staticmethod
    def static(amount: float) -> dict[str, Any]:
        return {"seen": amount, "me": "Callables"}

    def __call__(self, amount: float) -> dict[str, Any]:
        return {"seen": amount, "me": type(self).__name__}


class AsyncCallable:
    async def __call__(self, amount: float) -> dict[str, Any]:
        return {"seen": amount, "me": "Callables"}


def with_limit(limit: int, amount: float, *, me: str = "Callables") -> dict[str, Any]:
    assert limit == 7
    return {"seen": amount, "me": me}


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "function",
    [
        Callables().method, Callables().slow, Callables.of_class, Callables.static, Callables(), AsyncCallable(),
        functools.partial(with_limit, 7), functools.partial(with_limit, limit=7), functools.partial(functools.partial(with_limit, limit=7), me="Callables"),
        functools.partial(Callables().slow), functools.partial(AsyncCallable()), functools.lru_cache(Callables.static), functools.partial(logged(with_limit), limit=7), logged(Callables.static), logged(Callables().method),
    ],
)  # fmt: skip
def test_whatever_can_be_called_can_be_a_task(function: Callable[..., Any]) -> None:
    state = {"amount": 2, "limit": 99, "me": None}
    assert written(run(function, state)) == {"seen": 2.0, "me": "Callables"}


def test_what_a_partial_binds_is_not_read_from_the_state() -> None:
    assert written(run(functools.partial(with_limit, limit=7, me="mine"), {"amount": 1, "limit": 8, "me": "other"})) == {
        "seen": 1.0,
        "me": "mine",
    }


# ---- what is refused when it is registered ----


def generator(flow: Flow):  # type: ignore[no-untyped-def]
    yield {"x": 1}


async def async_generator(flow: Flow):  # type: ignore[no-untyped-def]
    yield {"x": 1}


class Opaque:
    pass


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (generator, "generator"),
        (async_generator, "generator"),
        (functools.partial(generator), "generator"),
        (lambda flow, **kwargs: None, "'kwargs'"),
        (Opaque, "class Opaque"),
        (5, "int cannot be called"),
        (None, "NoneType"),
        ("name", "str"),
    ],
)
def test_what_is_no_task_is_refused(function: Any, match: str) -> None:
    refused(function, match)


def test_annotations_that_lead_nowhere_are_refused_naming_the_parameter() -> None:
    def unknown(amount: float, thing: Unknown) -> None: ...
    def opaque(thing: Opaque) -> None: ...
    def unions(thing: Customer | Quote) -> None: ...
    def a_function(thing: len) -> None: ...  # type: ignore[valid-type]
    def syntax(thing: Any) -> None: ...

    syntax.__annotations__["thing"] = "list["

    for function, word in ((unknown, "Unknown"), (opaque, "Opaque"), (unions, "Customer"), (a_function, "len"), (syntax, "list")):
        text = refused(function, "'thing'")
        assert word in text


@pytest.mark.parametrize(
    "options",
    [{"retry": 3}, {"retry": ValueError}, {"time_budget": -1}, {"time_budget": 0.0001}, {"time_budget": math.nan}, {"time_budget": "2m"}, {"concurrency": -1},
     {"concurrency": 1.5}, {"concurrency": True}, {"aliases": "old"}, {"aliases": 5}, {"idempotent": 1}, {"durable_before": "yes"}],
)  # fmt: skip
def test_wrong_options_are_refused_naming_task_and_option(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))) as caught:
        TaskFunction("u/task", bare, **options)
    assert "u/task" in str(caught.value)


@pytest.mark.parametrize("url", ["", 5, None, "x" * 513, "\ud800", bare])
def test_wrong_urls_are_refused(url: Any) -> None:
    with pytest.raises((InvalidArgument, GraphError), match="URL"):
        TaskFunction(url, bare)
    with pytest.raises((InvalidArgument, GraphError), match="alias"):
        TaskFunction("u", bare, aliases=[url])


def test_what_is_declared_can_be_read() -> None:
    policy = Retry(on=TimeoutError)
    task = TaskFunction(
        "u/task", bare, retry=policy, time_budget=1.5, concurrency=64, aliases=["old", "older"], idempotent=True, durable_before=True
    )
    assert (task.url, task.function, task.is_async, task.retry) == ("u/task", bare, False, policy)
    assert (task.time_budget_ms, task.concurrency, task.aliases, task.idempotent, task.durable_before) == (
        1500,
        64,
        ("old", "older"),
        True,
        True,
    )
    plain = TaskFunction("u", asynchronous)
    assert (plain.is_async, plain.retry, plain.time_budget_ms, plain.concurrency, plain.aliases) == (True, None, 0, 0, ())
    assert (plain.idempotent, plain.durable_before) == (False, False)
    assert TaskFunction("u", bare, time_budget=datetime.timedelta(minutes=2)).time_budget_ms == 120_000
    assert repr(task) == "<TaskFunction 'u/task'>"


# ---- results ----


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, {}),
        ({}, {}),
        ({"a": 1, "gone": None, "unset": UNSET}, {"a": 1, "gone": None}),
        (Totals(total=1.5), {"total": 1.5}),
        (Quote(2.0, "n"), {"unitPrice": 2.0, "note": "n"}),
        (Quote(), {"unitPrice": 1.0, "note": None}),
        (Quote(left_out=5), {"unitPrice": 1.0, "note": None, "leftOut": 5}),
        (Receipt(2.5), {"total": 2.5, "wait": 1_000_000_000}),
        (ChainMap({"a": 1}), {"a": 1}),
        (State({"a": 1, "b": None}), {"a": 1, "b": None}),
    ],
)
def test_the_result_s_fields_are_the_changes(result: Any, expected: dict[str, Any]) -> None:
    assert written(run(lambda: result, {"gone": 1})) == expected

    async def task() -> Any:
        return result

    assert written(run(task, {"gone": 1})) == expected


def test_a_result_comes_on_top_of_what_the_carrier_was_told() -> None:
    def task(flow: Flow) -> dict[str, Any]:
        flow["a"] = 1
        flow.overwrite("b", [1])
        flow.goto("B")
        return {"a": 2, "c": 3}

    effect = run(task)
    assert written(effect) == {"a": 2, "b": [1], "c": 3}
    assert effect.changes.overwrites == {"b"}
    assert effect.goto == "B"


Pair = namedtuple("Pair", "a b")  # noqa: PYI024


class Listed(msgspec.Struct, array_like=True):
    a: int = 1


@pytest.mark.parametrize(
    "result", [5, "text", [1], (1, 2), True, b"x", {1}, Pair(1, 2), Listed(), object(), Quote, Raw(b"{}"), 0, False, ""]
)
def test_any_other_result_is_a_task_error_naming_task_and_type(result: Any) -> None:
    def task(flow: Flow, x: int = 0) -> Any:
        return result

    failure = failed(run(task))
    assert "'u/task'" in failure.text
    assert type(result).__name__ in failure.text
    assert not failure.by_engine
    with pytest.raises(TaskError):
        TaskFunction("u/task", lambda: result).call(Flow())


@pytest.mark.row("B3", "G-22", "E2", "G-29")
def test_a_function_of_the_carrier_alone_may_end_with_any_expression() -> None:
    assert written(run(lambda flow: (flow.set("x", 1), flow.sleep(1)))) == {"x": 1}
    assert run(lambda flow: flow.retry(1)).retry is not None
    assert written(run(lambda flow: {"y": 1})) == {"y": 1}
    resumed = Flow(past=Past(resume=b'{"approved":true}'))
    assert written(run_sync(TaskFunction("u", lambda flow: flow.interrupt({"q": 1})), resumed)) == {}
    child = Flow(past=Past(result=b'{"total":3}'))
    assert written(run_sync(TaskFunction("u", lambda flow: flow.subgraph("child")), child)) == {}
    again = Flow(past=Past(result=b'{"total":3}'))
    assert written(run_sync(TaskFunction("u", lambda flow: dict(flow.subgraph("child"))), again)) == {"total": 3}

    async def coroutine() -> None: ...

    assert "coroutine" in failed(run(lambda flow: coroutine())).text


def test_parameters_that_keep_their_defaults_and_functions_that_take_anything() -> None:
    assert written(run(lambda flow, n=3, *, m=4: flow.set("x", n + m))) == {"x": 7}
    assert written(run(lambda *args: args[0].set("x", 1))) == {"x": 1}
    called = Mock(return_value=None)
    assert run(called).failure is None
    assert isinstance(called.call_args.args[0], Flow)


def test_a_result_that_cannot_be_stored_is_a_task_error_naming_task_and_path_and_nothing_of_it_is_written() -> None:
    flow = Flow()
    failure = failed(run_sync(TaskFunction("u/task", lambda: {"a": 1, "b": {"c": [math.nan]}}), flow))
    assert "'u/task'" in failure.text
    assert "b.c[0]" in failure.text
    assert failure.status == 400
    assert "a" not in flow
    assert "keys must be text" in failed(run(lambda: {"a": {1: 2}})).text
    assert "must be text" in failed(run(lambda: {5: 1})).text


def test_a_coroutine_that_nobody_awaits_is_an_error_and_no_warning() -> None:
    @logged
    async def task(flow: Flow) -> None: ...

    for function in (task, lambda: asynchronous(Flow())):
        failure = failed(run(function))
        assert "async def" in failure.text
        assert "'u/task'" in failure.text
    assert "generator" in failed(run(lambda: (n for n in [1]))).text


# ---- errors, parks and retries ----


@pytest.mark.row("C-31", "L23")
@pytest.mark.parametrize("status", [429, 503, 404, 500])
def test_an_error_fails_the_run_whatever_its_status(status: int) -> None:
    def task(flow: Flow) -> None:
        flow["x"] = 1
        raise TaskError("busy", status=status)

    effect = run(task)
    assert effect == Effect(failure=Failure("busy", status)), "no retry, and no writes are kept"


@pytest.mark.row("L7", "C-31")
def test_an_exit_that_a_task_asks_for_is_its_error() -> None:
    for error in (SystemExit(3), GeneratorExit()):
        assert failed(settle(Flow(), error)).text
    assert failed(run(lambda flow: sys.exit("no more"))).text == "no more"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_is_no_error_of_the_task_goes_on_up(error: BaseException) -> None:
    def task(flow: Flow) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        run(task, retry=Retry())
    assert caught.value is error
    with pytest.raises(type(error)):
        settle(Flow(), error)
    group = BaseExceptionGroup("both", [error, Parked()])
    with pytest.raises(BaseExceptionGroup):
        settle(Flow(), group)


def test_a_task_cannot_fake_a_park() -> None:
    def task(flow: Flow) -> None:
        raise Parked

    failure = failed(run(task))
    assert failure.by_engine
    assert "Parked" in failure.text


@pytest.mark.row("G-21", "G-37")
def test_parks_from_async_tasks_and_from_groups() -> None:
    async def plain(flow: Flow) -> None:
        flow.interrupt({"a": 1})

    async def in_a_group(flow: Flow) -> None:
        async def child() -> None:
            flow.interrupt({"a": 1})

        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(asyncio.sleep(60))

    async def gathered(flow: Flow) -> None:
        async def child() -> None:
            flow.interrupt({"a": 1})

        await asyncio.gather(child(), asyncio.sleep(0))

    async def beside_an_error(flow: Flow) -> None:
        with contextlib.suppress(Parked):
            flow.interrupt({"a": 1})
        raise BaseExceptionGroup("both", [Parked(), ValueError("no")])

    for function in (plain, in_a_group, gathered):
        effect = run(function)
        assert effect.park == Interrupt(b'{"a":1}')
        assert effect.failure is None
    assert "both" in failed(run(beside_an_error)).text


def test_a_group_without_parks_stays_what_it_was() -> None:
    class Several(ExceptionGroup[ValueError]):
        status = 422

    def task(flow: Flow) -> None:
        raise Several("two", [ValueError("a")])

    assert failed(run(task)).status == 422
    assert run(task, retry=Retry(on=Several)).retry == RetryAfter(1.0)


def test_an_unset_default_stands_for_an_absent_field() -> None:
    def task(x: int | msgspec.UnsetType = UNSET) -> dict[str, Any]:
        return {"x": x, "was": x is UNSET}

    assert written(run(task)) == {"was": True}
    assert written(run(task, {"x": 5})) == {"x": 5, "was": False}


POLICY = Retry(on=(TimeoutError, ConnectionError), initial_delay=2, multiplier=3, max_delay=100, give_up_after=3600)


@pytest.mark.parametrize(("attempt", "delay"), [(0, 2.0), (1, 6.0), (2, 18.0), (9, 100.0)])
def test_a_policy_turns_an_error_it_covers_into_another_attempt(attempt: int, delay: float) -> None:
    def task(flow: Flow) -> None:
        flow["tries"] = 1
        flow.sleep(1)
        flow.goto("B")
        raise TimeoutError("slow")

    task_function = TaskFunction("u", task, retry=POLICY)
    flow = Flow(identity=Identity(attempt=attempt, step_created_at=NOW), clock=lambda: NOW)
    effect = run_sync(task_function, flow)
    assert effect == Effect(Changes({"tries": Raw(b"1")}), retry=RetryAfter(delay), sleep=1.0), "the goto of a failed attempt is dropped"


def test_a_policy_leaves_other_errors_and_refused_retries_alone() -> None:
    def task(flow: Flow) -> None:
        flow["tries"] = 1
        raise errors.pop()

    errors: list[BaseException] = [ValueError("wrong")]
    assert run(task, retry=POLICY) == Effect(failure=Failure("wrong"))
    errors = [TimeoutError("slow")]
    old = Flow(identity=Identity(step_created_at=NOW - datetime.timedelta(hours=2)), clock=lambda: NOW)
    assert run_sync(TaskFunction("u", task, retry=POLICY), old) == Effect(failure=Failure("slow"))
    errors = [ConnectionResetError("reset")]
    assert run(task, retry=POLICY).retry == RetryAfter(2.0)
    errors = [NotFound("gone")]
    assert failed(run(task, retry=POLICY)).status == 404
    assert run(lambda: {"x": 1}, retry=POLICY).retry is None
    errors = [StateTypeError("x")]
    assert run(task, retry=Retry(on=DwarfError)).retry == RetryAfter(1.0)


def test_a_policy_drops_the_park_of_a_failed_attempt_but_not_a_violation() -> None:
    def parks(flow: Flow) -> None:
        with contextlib.suppress(Parked):
            flow.interrupt()
        raise TimeoutError

    effect = run(parks, retry=POLICY)
    assert effect.park is None
    assert effect.retry == RetryAfter(2.0)

    def violates(flow: Flow) -> None:
        flow.subgraph("child")

    effect = run_sync(TaskFunction("u", violates, retry=Retry()), Flow(past=Past(resume=b"{}")))
    assert failed(effect).by_engine
    assert effect.retry is None

    def parked(flow: Flow) -> None:
        flow.interrupt()

    assert run(parked, retry=Retry()).park == Interrupt(b"{}")


def test_the_policy_of_an_async_task_and_a_mistyped_parameter() -> None:
    async def task(amount: float) -> None:
        raise TimeoutError

    assert run(task, {"amount": 1}, retry=POLICY).retry == RetryAfter(2.0)
    assert failed(run(task, {"amount": "x"}, retry=POLICY)).text
    assert run(task, {}, retry=Retry(on=StateTypeError)).retry == RetryAfter(1.0)


def test_a_sync_task_on_a_loop_runs_there() -> None:
    assert asyncio.run(run_async(TaskFunction("u", lambda: {"x": 1}), Flow())).changes == Changes({"x": Raw(b"1")})
    assert asyncio.run(run_async(TaskFunction("u", lambda: None), Flow())).changes == NOTHING


def test_an_async_task_that_is_cancelled_is_cancelled() -> None:
    async def scenario() -> None:
        flow = Flow()

        async def task(flow: Flow) -> None:
            await asyncio.Event().wait()

        running: asyncio.Task[Effect] = asyncio.create_task(_as_coroutine(run_async(TaskFunction("u", task, retry=Retry()), flow)))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())


async def _as_coroutine(running: Coroutine[Any, Any, Effect]) -> Effect:
    return await running
