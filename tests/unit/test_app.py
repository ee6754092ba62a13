"""The App: registering, looking up, mounting, and its part of the Host protocol."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from dwarf.changes import Changes
from dwarf.errors import DwarfError, GraphError, InvalidArgument, NotFound, TaskError
from dwarf.flow import Flow, Parked
from dwarf.graph import END, Graph
from dwarf.hosts import App, Host, TaskFunction
from dwarf.retry import Retry


def graph(name: str = "G") -> Graph:
    return Graph(name).add_transition("A", END)


def load(host: Host, url: str) -> Graph:
    return asyncio.run(host.load_graph(url))


def execute(host: Host, url: str, flow: Flow | None = None) -> Flow:
    flow = flow or Flow()
    asyncio.run(host.execute_task(url, flow))
    return flow


class Elsewhere:
    """A host that knows everything, and says where it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def load_graph(self, url: str) -> Graph:
        return graph(f"{self.name} {url}")

    async def execute_task(self, url: str, flow: Flow) -> None:
        flow["by"] = [self.name, url]


# ---- tasks ----


def test_registering_returns_the_function_as_it_is() -> None:
    app = App()

    def charge(flow: Flow) -> None:
        flow["done"] = True

    assert app.task("billing.charge")(charge) is charge
    assert app.tasks["billing.charge"].function is charge
    assert app.task_for("billing.charge") is app.tasks["billing.charge"]
    assert execute(app, "billing.charge")["done"] is True


def test_what_a_task_declares_is_kept_and_aliases_keep_old_urls_alive() -> None:
    app = App()
    policy = Retry(on=TimeoutError)

    @app.task(
        "crm.sync", retry=policy, time_budget=30, concurrency=64, aliases=("crm.old", "crm.older"), idempotent=True, durable_before=True
    )
    async def sync(flow: Flow) -> None:
        flow["done"] = True

    task = app.tasks["crm.sync"]
    assert (task.retry, task.time_budget_ms, task.concurrency, task.idempotent, task.durable_before) == (policy, 30_000, 64, True, True)
    assert app.task_for("crm.old") is app.task_for("crm.older") is task
    assert list(app.tasks) == ["crm.sync", "crm.old", "crm.older"]
    assert task.url == "crm.sync"
    assert execute(app, "crm.older")["done"] is True
    with pytest.raises(TypeError):
        app.tasks["x"] = task  # type: ignore[index]
    assert app.task_for("crm") is None


def test_a_url_is_registered_once() -> None:
    app = App()
    app.task("a", aliases=("b",))(lambda flow: None)
    for urls in (("a",), ("b",), ("c", "a"), ("c", "c"), ("c", "d", "d")):
        with pytest.raises(InvalidArgument, match="registered already") as caught:
            app.task(urls[0], aliases=urls[1:])(lambda flow: None)
        assert repr(urls[-1]) in str(caught.value)
    assert list(app.tasks) == ["a", "b"], "a refused registration leaves nothing behind"


@pytest.mark.parametrize("url", ["", 5, None, "x" * 513, test_a_url_is_registered_once])
def test_wrong_arguments_are_named(url: Any) -> None:
    app = App()
    for call in (lambda: app.task(url)(lambda flow: None), lambda: app.graph(url)(graph), lambda: app.add_graph(url, graph())):
        with pytest.raises((InvalidArgument, GraphError), match="URL"):
            call()
    with pytest.raises(InvalidArgument, match="'t'"):
        app.task("t", retry=ValueError)(lambda flow: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="generator"):
        app.task("t")(yields)
    assert not app.tasks
    assert not app.graphs


def yields() -> Iterator[None]:
    yield


@pytest.mark.row("L9")
def test_an_unknown_url_is_not_found_and_named() -> None:
    app = App()
    app.mount("https://", Elsewhere("web"))
    for ask in (lambda: load(app, "nowhere"), lambda: execute(app, "nowhere")):
        with pytest.raises(NotFound, match="'nowhere'") as caught:
            ask()
        assert caught.value.status == 404


def test_executing_raises_what_the_task_raises() -> None:
    app = App()

    @app.task("fails", retry=Retry())
    async def fails(flow: Flow) -> None:
        raise TaskError("no", status=409)

    @app.task("waits")
    def waits(flow: Flow) -> None:
        flow.interrupt({"a": 1})

    @app.task("plain")
    def plain(amount: float) -> dict[str, float]:
        return {"total": amount * 2}

    with pytest.raises(TaskError, match="no"):
        execute(app, "fails")
    flow = Flow()
    with pytest.raises(Parked):
        execute(app, "waits", flow)
    assert flow.effect().park is not None
    assert execute(app, "plain", Flow({"amount": 2}))["total"] == 4.0


# ---- graphs ----


def test_graphs_by_function_and_by_hand() -> None:
    app = App()
    made = []

    @app.graph("checkout")
    def checkout() -> Graph:
        made.append(1)
        return graph("Checkout")

    other = graph("Other")
    app.add_graph("other", other)
    assert app.graphs == ("checkout", "other")
    assert made == [], "called when the graph is first needed"
    assert load(app, "checkout") is load(app, "checkout")
    assert load(app, "checkout").name == "Checkout"
    assert made == [1]
    assert load(app, "other") is other
    assert checkout().name == "Checkout", "the function stays a function"
    for call in (lambda: app.add_graph("checkout", other), lambda: app.graph("other")(checkout)):
        with pytest.raises(InvalidArgument, match="registered already"):
            call()
    app.task("checkout")(lambda flow: None)
    assert repr(app) == "<App: 1 tasks, 2 graphs, 0 mounts>"


@pytest.mark.row("B-58")
def test_a_function_that_returns_no_graph() -> None:
    app = App()
    app.graph("none")(lambda: None)
    app.graph("text")(lambda: "G")
    app.graph("raises")(lambda: 1 / 0)
    with pytest.raises(NotFound, match="'none'"):
        load(app, "none")
    with pytest.raises(InvalidArgument, match="'text': str") as caught:
        load(app, "text")
    assert caught.value.status == 400
    with pytest.raises(ZeroDivisionError):
        load(app, "raises")


def test_a_graph_that_failed_to_load_is_tried_again() -> None:
    app = App()
    answers: list[Any] = [None, graph()]
    app.graph("g")(lambda: answers.pop(0))
    with pytest.raises(NotFound):
        load(app, "g")
    assert load(app, "g").name == "G"


def test_what_is_no_graph_is_refused() -> None:
    app = App()

    async def later() -> Graph:
        return graph()

    for wrong, call in ((later, app.graph("g")), (graph(), app.graph("g")), (5, app.graph("g"))):
        with pytest.raises(InvalidArgument, match="'g'"):
            call(wrong)  # type: ignore[type-var]
    values: list[Any] = [graph, None, "G", {}]
    for value in values:
        with pytest.raises(InvalidArgument, match="'g'"):
            app.add_graph("g", value)


# ---- mounting ----


def test_the_longest_prefix_wins_and_gets_the_whole_url() -> None:
    app = App()
    web, special, rest = Elsewhere("web"), Elsewhere("special"), Elsewhere("rest")
    app.mount("https://", web)
    app.mount("https://special/", special)
    app.mount("", rest)
    app.task("https://special/mine")(lambda flow: flow.set("by", "me"))
    app.add_graph("https://special/mine", graph("Mine"))
    assert execute(app, "https://a/b")["by"] == ["web", "https://a/b"]
    assert execute(app, "https://special/x")["by"] == ["special", "https://special/x"]
    assert execute(app, "anything")["by"] == ["rest", "anything"]
    assert execute(app, "https://special/mine")["by"] == "me"
    assert load(app, "https://special/x").name == "special https://special/x"
    assert load(app, "https://special/mine").name == "Mine"
    assert load(app, "x").name == "rest x"
    assert app.task_for("https://a/b") is None
    assert app.host_for("https://special/x") is special
    assert app.graphs == ("https://special/mine",)


def test_a_mounted_app_s_tasks_are_found() -> None:
    app, team, inner = App(), App(), App()
    inner.task("team.inner.a", time_budget=5)(lambda flow: flow.set("by", "inner"))
    team.task("team.b")(lambda flow: flow.set("by", "team"))
    team.mount("team.inner.", inner)
    app.mount("team.", team)
    assert app.task_for("team.inner.a") is inner.tasks["team.inner.a"]
    assert app.task_for("team.b") is team.tasks["team.b"]
    assert app.task_for("team.c") is None
    assert execute(app, "team.inner.a")["by"] == "inner"
    with pytest.raises(NotFound, match=r"'team\.c'"):
        execute(app, "team.c")


def test_what_cannot_be_mounted() -> None:
    app = App()
    for wrong in (app, None, object(), "https://x", Elsewhere):
        with pytest.raises(InvalidArgument, match="'p'"):
            app.mount("p", wrong)  # type: ignore[arg-type]
    app.mount("p", Elsewhere("one"))
    with pytest.raises(InvalidArgument, match="'p' already"):
        app.mount("p", Elsewhere("two"))
    with pytest.raises(DwarfError, match="prefix"):
        app.mount(5, Elsewhere("x"))  # type: ignore[arg-type]


def test_a_host_that_returns_no_graph() -> None:
    class Empty(Elsewhere):
        async def load_graph(self, url: str) -> Any:
            return None

    app = App()
    app.mount("", Empty("empty"))
    with pytest.raises(NotFound, match="'g'"):
        load(app, "g")


def test_an_app_is_a_host() -> None:
    assert isinstance(App(), Host)
    assert isinstance(Elsewhere("x"), Host)
    assert not isinstance(object(), Host)


# ---- lifespan ----


def opened(app: App, *, fail: bool = False) -> Any:
    async def scenario() -> Any:
        async with app.open_resources() as resources:
            if fail:
                raise ValueError("inside")
            return resources

    return asyncio.run(scenario())


def test_without_a_lifespan_there_are_no_resources() -> None:
    assert opened(App()) is None


def test_a_lifespan_is_an_async_generator_function() -> None:
    app = App()
    events = []

    @app.lifespan
    async def resources() -> AsyncIterator[dict[str, int]]:
        events.append("open")
        try:
            yield {"pool": 1}
        finally:
            events.append("close")

    assert opened(app) == {"pool": 1}
    assert opened(app) == {"pool": 1}
    with pytest.raises(ValueError, match="inside"):
        opened(app, fail=True)
    assert events == ["open", "close"] * 3
    with pytest.raises(InvalidArgument, match="already"):
        app.lifespan(resources)


def test_a_lifespan_is_a_function_that_returns_an_async_context_manager() -> None:
    app = App()

    @app.lifespan
    @contextlib.asynccontextmanager
    async def resources(its_app: App) -> AsyncIterator[Any]:
        yield its_app

    assert opened(app) is app

    class Pool:
        async def __aenter__(self) -> str:
            return "pool"

        async def __aexit__(self, *error: object) -> None: ...

    app = App()
    app.lifespan(Pool)
    assert opened(app) == "pool"


def test_what_is_no_lifespan_is_refused() -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[None]:
        yield

    async def of_two(one: Any, two: Any) -> AsyncIterator[None]:
        yield

    app = App()
    for wrong in (coroutine, generator, of_two, 5, None):
        with pytest.raises(InvalidArgument, match="lifespan"):
            app.lifespan(wrong)  # type: ignore[type-var]
    app.lifespan(lambda: 5)
    with pytest.raises(InvalidArgument, match="int"):
        opened(app)


# ---- what it costs to import ----


def test_tasks_need_no_loop_to_be_declared() -> None:
    """An App's module is imported by every executor, by the supervisor's child that checks it, by every command."""
    code = "import sys, dwarf.hosts; print([m for m in ('asyncio', 'psycopg', 'threading', 'socket', 'concurrent.futures') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_task_functions_of_an_app_can_be_run_by_themselves() -> None:
    app = App()
    app.task("a")(lambda flow: {"x": 1})
    task = app.task_for("a")
    assert isinstance(task, TaskFunction)
    flow = Flow()
    assert task.call(flow) is None
    assert flow.effect().changes == Changes(flow.effect().changes.fields)
    assert flow["x"] == 1
