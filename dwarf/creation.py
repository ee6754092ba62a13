"""Creating flows on the shards of a client: whose graph, which thread, which shard, and what is tried elsewhere.

In this order, so that a refusal leaves nothing behind: threads are found, graphs loaded, flows with an idempotency key
created one by one (once more, they are found again), all others in one go per shard.

A shard that is known to be out of reach takes no flow as long as there are others; when nothing was sent to one, its flows go
elsewhere. What may have been done is never tried again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Token
from typing import Any

from dwarf.errors import Conflict, NotFound, ShardUnavailable
from dwarf.hosts.host import Host, loading_baggage
from dwarf.keys import FlowKey
from dwarf.new_flow import Draft, FrozenGraph, NewFlow, complete, freeze
from dwarf.placement import by_weight, rendezvous
from dwarf.pool import Unreached
from dwarf.shard_client import ShardClient
from dwarf.shards import Shard
from dwarf.state import State
from dwarf.tokens import new_token
from dwarf.values import decode_fields

Insert = Callable[[int, list[NewFlow]], Coroutine[Any, Any, list[int]]]
Graphs = Mapping[int, FrozenGraph | None]  # by the place of the draft; None: what is registered on the shard
Threads = Mapping[FlowKey, tuple[int, int]]  # shard and number

_NO_BAGGAGE = State()


class Creation:
    """Creates flows for a client. `insert` stores flows on a shard, `ring` hears where steps may have become due."""

    def __init__(self, shards: Mapping[int, ShardClient], host: Host | None, *, insert: Insert, ring: Callable[[int], None]) -> None:
        self._shards = shards
        self._host = host
        self._insert, self._ring = insert, ring

    async def create(self, drafts: Sequence[Draft]) -> list[FlowKey]:
        """Create flows and return their keys, in order."""
        threads = await self._find_threads({each.options.thread_key for each in drafts if each.options.thread_key is not None})
        graphs = await self._load_graphs(drafts)
        keys: dict[int, FlowKey] = {}
        plain = []
        for place, each in enumerate(drafts):
            if each.options.idempotency_key:
                keys[place] = await self._create_keyed(each, graphs[place], threads)
            else:
                plain.append(place)
        if plain:
            keys |= await self._create_plain(drafts, plain, graphs, threads)
        return [keys[place] for place in range(len(drafts))]

    async def _find_threads(self, named: Iterable[FlowKey]) -> Threads:
        threads = {}
        for key in named:
            shard = self._shards.get(key.shard)
            if shard is None:
                raise NotFound(f"there is no flow {key.name}: shard {key.shard} is not configured")
            threads[key] = (key.shard, (await shard.find_root(key, "join its thread")).thread_id)
        return threads

    async def _load_graphs(self, drafts: Sequence[Draft]) -> Graphs:
        """Load the graph of every draft, once for those of the same URL and baggage. Raises what the host's loader raises."""
        if self._host is None:
            return dict.fromkeys(range(len(drafts)))
        loaded: dict[tuple[str, bytes | None], FrozenGraph] = {}
        for each in drafts:
            asked = (each.workflow, each.options.baggage)
            if asked not in loaded:
                loaded[asked] = await load_frozen(self._host, *asked)
        return {place: loaded[each.workflow, each.options.baggage] for place, each in enumerate(drafts)}

    # Without an idempotency key

    async def _create_plain(self, drafts: Sequence[Draft], places: list[int], graphs: Graphs, threads: Threads) -> dict[int, FlowKey]:
        keys: dict[int, FlowKey] = {}
        avoided: set[int] = set()
        while places:
            batches: dict[int, list[int]] = {}
            for place in places:
                thread = drafts[place].options.thread_key
                batches.setdefault(self._choose(avoided) if thread is None else threads[thread][0], []).append(place)
            flows = {shard: await self._complete(shard, drafts, at, graphs, threads) for shard, at in batches.items()}
            made = await _all([self._insert(shard, flows[shard]) for shard in batches])
            places = []
            for (shard, at), ids in zip(batches.items(), made, strict=True):
                if isinstance(ids, Unreached) and self._can_avoid({*avoided, shard}, [drafts[place] for place in at]):
                    avoided.add(shard)
                    places += at
                elif isinstance(ids, BaseException):
                    raise ids
                else:
                    keys |= {p: FlowKey(shard, i, flow.token) for p, i, flow in zip(at, ids, flows[shard], strict=True)}
                    self._ring(shard)
        return keys

    async def _complete(self, shard: int, drafts: Sequence[Draft], places: list[int], graphs: Graphs, threads: Threads) -> list[NewFlow]:
        """Return the flows to store on a shard, with the numbers that their graphs and threads have there."""
        known: dict[tuple[str, bytes | None], tuple[int, str]] = {}
        flows = []
        for place in places:
            each, graph = drafts[place], graphs[place]
            asked = (each.workflow, graph.hash if graph else None)
            if asked not in known:
                known[asked] = await self._graph_on(self._shards[shard], each.workflow, graph)
            thread = each.options.thread_key
            flows.append(complete(each, new_token(), known[asked], None if thread is None else threads[thread][1]))
        return flows

    async def _graph_on(self, shard: ShardClient, url: str, graph: FrozenGraph | None) -> tuple[int, str]:
        if graph is None:
            return await shard.registered(url)
        return await shard.graph_id(graph), graph.entry_task

    def _choose(self, avoided: set[int]) -> int:
        """Return the shard for a new flow, by weight among those that take new ones and can be reached as far as is known."""
        takers = [shard for shard in self._takers() if shard.index not in avoided]
        if not takers:
            raise ShardUnavailable("every shard is cordoned: there is none that takes new flows")
        reached = [shard for shard in takers if not self._shards[shard.index].pool.is_unreachable]
        return by_weight(reached or takers, random.random()).index

    def _takers(self) -> list[Shard]:
        return [client.shard for client in self._shards.values() if not client.shard.cordoned]

    def _can_avoid(self, avoided: set[int], drafts: Iterable[Draft]) -> bool:
        """Tell whether flows that reached no shard may go to another."""
        return any(shard.index not in avoided for shard in self._takers()) and all(each.options.thread_key is None for each in drafts)

    # With one

    async def _create_keyed(self, draft: Draft, graph: FrozenGraph | None, threads: Threads) -> FlowKey:
        """Find the flow that was created under the key, wherever that was, or create it on the first shard that takes new ones."""
        key, thread = draft.options.idempotency_key, draft.options.thread_key
        order = rendezvous([client.shard for client in self._shards.values()], draft.workflow, key)
        home = threads[thread][0] if thread is not None else next((shard.index for shard in order if not shard.cordoned), None)
        for shard in order:
            if shard.index != home:
                found = await self._shards[shard.index].find_keyed(draft.workflow, key, draft.input)
                if found.state != "missing":
                    return self._keyed(draft, shard.index, found.state, found.flow_id, found.token)
        if home is None:
            raise ShardUnavailable("every shard is cordoned: there is none that takes new flows")
        on = await self._graph_on(self._shards[home], draft.workflow, graph)
        flow = complete(draft, new_token(), on, None if thread is None else threads[thread][1])
        made = await self._shards[home].create_keyed(key, flow)
        if made.state == "created":
            self._ring(home)
        return self._keyed(draft, home, made.state, made.flow_id, made.token)

    def _keyed(self, draft: Draft, shard: int, state: str, flow_id: int | None, token: str | None) -> FlowKey:
        what = f"idempotency key {draft.options.idempotency_key!r} of workflow {draft.workflow!r}"
        if state == "conflict":
            raise Conflict(f"{what} was used with another state")
        if flow_id is None or token is None:
            raise Conflict(f"{what} is in progress in another call")
        return FlowKey(shard, flow_id, token)


async def load_frozen(host: Host, url: str, baggage: bytes | None) -> FrozenGraph:
    """Load a graph for a flow with this baggage, and return it as it is stored. Raises what the host raises, and as `freeze`."""
    token: Token[State] = loading_baggage.set(_NO_BAGGAGE if baggage is None else State.of(decode_fields(baggage)))
    try:
        graph = await host.load_graph(url)
    finally:
        loading_baggage.reset(token)
    return freeze(url, graph)


async def _all(calls: Sequence[Coroutine[Any, Any, list[int]]]) -> list[list[int] | BaseException]:
    """Make calls side by side and return what each returned or raised. A single one needs no task of its own."""
    if len(calls) > 1:
        return await asyncio.gather(*calls, return_exceptions=True)
    try:
        return [await calls[0]]
    except Exception as error:
        return [error]
