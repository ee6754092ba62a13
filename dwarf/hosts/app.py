"""`App`: the registry that a user fills with tasks and graphs, by URL. It implements `Host`.

    app = App()

    @app.task("billing.charge", retry=Retry(on=TimeoutError))
    async def charge(flow): ...

    @app.graph("checkout")
    def checkout() -> Graph: ...

An App runs nothing by itself but what `execute_task` is asked to; who runs many tasks looks them up with `task_for` and
uses `dwarf.hosts.run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from types import MappingProxyType
from typing import Any, TypeVar

from dwarf.durations import Duration
from dwarf.errors import InvalidArgument, NotFound
from dwarf.flow import Flow
from dwarf.graph import Graph
from dwarf.hosts.functions import TaskFunction, check_url
from dwarf.hosts.host import Host
from dwarf.names import check_text
from dwarf.retry import Retry

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """Tasks and graphs by URL, other hosts by URL prefix, and what is opened once per executor."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskFunction] = {}
        self._graphs: dict[str, Graph | Callable[[], Graph]] = {}
        self._mounts: dict[str, Host] = {}
        self._lifespan: Callable[[], AbstractAsyncContextManager[Any]] | None = None

    # Registration

    def task(
        self,
        url: str,
        *,
        retry: Retry | None = None,
        time_budget: Duration = 0,
        concurrency: int = 0,
        aliases: Iterable[str] = (),
        idempotent: bool = False,
        durable_before: bool = False,
    ) -> Callable[[F], F]:
        """Register the decorated function as the task at `url`, and return it as it is.

        `time_budget` (seconds or `timedelta`) cuts the flow's own, `concurrency` caps the runs at one time per replica,
        `aliases` are old URLs of the task. `idempotent` and `durable_before` are for chains: the task may run again for
        a crash elsewhere in the chain; what went before is recorded before the task starts.
        """
        _check_called(url, "task")

        def register(function: F) -> F:
            task = TaskFunction(
                url,
                function,
                retry=retry,
                time_budget=time_budget,
                concurrency=concurrency,
                aliases=aliases,
                idempotent=idempotent,
                durable_before=durable_before,
            )
            urls = (task.url, *task.aliases)
            for name in urls:
                if name in self._tasks or urls.count(name) > 1:
                    raise InvalidArgument(f"task {name!r} is registered already")
            self._tasks.update(dict.fromkeys(urls, task))
            return function

        return register

    def graph(self, url: str) -> Callable[[F], F]:
        """Register the decorated function, which returns a Graph, under `url`; it is called once, when the graph is first needed."""
        _check_called(url, "graph")

        def register(function: F) -> F:
            _check_graph_function(url, function)
            self._add_graph(url, function)
            return function

        return register

    def add_graph(self, url: str, graph: Graph) -> None:
        if not isinstance(graph, Graph):
            raise InvalidArgument(f"graph {url!r} is of type {type(graph).__name__}; it must be a Graph")
        self._add_graph(url, graph)

    def _add_graph(self, url: str, graph: Graph | Callable[[], Graph]) -> None:
        if check_url(url, "a graph URL") in self._graphs:
            raise InvalidArgument(f"graph {url!r} is registered already")
        self._graphs[url] = graph

    def mount(self, prefix: str, host: Host) -> None:
        """Leave tasks and graphs whose URLs start with `prefix` to another host, which gets the whole URL.

        What is registered here under its very URL is served here; of several prefixes the longest counts.
        """
        check_text("a mount prefix", prefix)
        if host is self or isinstance(host, type) or not isinstance(host, Host):
            raise InvalidArgument(f"the host mounted at {prefix!r} is {host!r}; it must be another host, with load_graph and execute_task")
        if prefix in self._mounts:
            raise InvalidArgument(f"a host is mounted at {prefix!r} already")
        self._mounts[prefix] = host

    def lifespan(self, function: F) -> F:
        """Register what an executor opens before it takes work and closes at its end; the value is `flow.resources`.

        An async generator function that yields once, or a function returning an async context manager; it takes nothing
        or the App.
        """
        if self._lifespan is not None:
            raise InvalidArgument("the App has a lifespan already; open everything in one")
        self._lifespan = _lifespan_of(self, function)
        return function

    # What is registered

    @property
    def tasks(self) -> Mapping[str, TaskFunction]:
        """Every task by its URL, and once more by each alias."""
        return MappingProxyType(self._tasks)

    @property
    def graphs(self) -> tuple[str, ...]:
        """The URLs of all graphs, in the order of registration."""
        return tuple(self._graphs)

    def task_for(self, url: str) -> TaskFunction | None:
        """Return the function behind a task URL, also one of a mounted App's; None when another host has to be asked."""
        task = self._tasks.get(url)
        if task is not None:
            return task
        host = self.host_for(url)
        return host.task_for(url) if isinstance(host, App) else None

    def host_for(self, url: str) -> Host | None:
        """Return the host mounted at the longest prefix of a URL."""
        fitting = [prefix for prefix in self._mounts if url.startswith(prefix)]
        return self._mounts[max(fitting, key=len)] if fitting else None

    # Host

    async def load_graph(self, url: str) -> Graph:
        """Return the graph of a URL. Raises `NotFound`, or what the function that makes the graph raises."""
        known = self._graphs.get(url)
        if isinstance(known, Graph):
            return known
        host = self.host_for(url)
        if known is None and host is None:
            raise NotFound(f"no graph is registered for {url!r}")
        graph = known() if known is not None else await host.load_graph(url) if host is not None else None
        if graph is None:
            raise NotFound(f"graph {url!r}: None was returned instead of a Graph")
        if not isinstance(graph, Graph):
            raise InvalidArgument(f"graph {url!r}: {type(graph).__name__} was returned instead of a Graph")
        if known is not None:
            self._graphs[url] = graph
        return graph

    async def execute_task(self, url: str, flow: Flow) -> None:
        """Run a task over `flow`; a function that is not async runs here and now. Its policy of retries is for who settles the run."""
        task = self._tasks.get(url)
        if task is not None:
            pending = task.call(flow)
            if pending is not None:
                await pending
            return
        host = self.host_for(url)
        if host is None:
            raise NotFound(f"no task is registered for {url!r}")
        await host.execute_task(url, flow)

    def open_resources(self) -> AbstractAsyncContextManager[Any]:
        """Return the async context manager whose value is `flow.resources`: the lifespan, or None when there is none."""
        return self._lifespan() if self._lifespan is not None else nullcontext()

    def __repr__(self) -> str:
        return f"<App: {len(self._tasks)} tasks, {len(self._graphs)} graphs, {len(self._mounts)} mounts>"


def _check_called(url: object, decorator: str) -> None:
    if callable(url):
        raise InvalidArgument(f'@app.{decorator} stands without its URL: write @app.{decorator}("url")')


def _check_graph_function(url: object, function: object) -> None:
    import inspect

    if not callable(function):
        raise InvalidArgument(f"graph {url!r}: {type(function).__name__} cannot be called; a Graph itself goes to add_graph")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(f"graph {url!r}: the function must not be async; it returns a Graph")


def _lifespan_of(app: App, function: Any) -> Callable[[], AbstractAsyncContextManager[Any]]:
    import inspect

    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise InvalidArgument(
            f"a lifespan must be an async generator function or return an async context manager, which {function!r} does not"
        )
    parameters = len(inspect.signature(function).parameters)
    if parameters > 1:
        raise InvalidArgument(f"a lifespan takes nothing or the App; {function!r} takes {parameters} parameters")
    make = asynccontextmanager(function) if inspect.isasyncgenfunction(function) else function

    def opened() -> AbstractAsyncContextManager[Any]:
        made = make(app) if parameters else make()
        if not isinstance(made, AbstractAsyncContextManager):
            raise InvalidArgument(f"the lifespan returned {type(made).__name__}, which is no async context manager")
        return made

    return opened
