"""The channel between dispatcher and executor: order, closing, and an engine whose messages all travel as bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dwarf import END, Flow, Graph, Reducer, Status, embedded
from dwarf.channel import ChannelClosed, MemoryEnd, memory_pair
from dwarf.testing import EngineUnderTest
from dwarf.wire import decode_for_dispatcher, decode_for_executor, encode
from tests.engine.rows_support import make_app, on_loop, until

Pair = tuple[MemoryEnd[Any, Any], MemoryEnd[Any, Any]]


@on_loop
async def test_messages_arrive_in_order_and_all_at_once() -> None:
    one, other = memory_pair()  # type: Pair
    for number in range(3):
        one.send(number)
    assert await other.receive() == [0, 1, 2]
    waiting = asyncio.create_task(other.receive())
    await asyncio.sleep(0)
    one.send(3)
    assert await waiting == [3]


@on_loop
async def test_what_was_sent_before_the_close_is_received_and_then_it_is_over() -> None:
    one, other = memory_pair()  # type: Pair
    one.send("last words")
    one.close()
    one.send("too late")
    assert await other.receive() == ["last words"]
    for end in (one, other):
        with pytest.raises(ChannelClosed):
            await end.receive()


@on_loop
async def test_closing_wakes_who_waits_and_a_cancelled_receiver_loses_nothing() -> None:
    one, other = memory_pair()  # type: Pair
    waiting = asyncio.create_task(other.receive())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    one.send(1)
    assert await other.receive() == [1]
    waiting = asyncio.create_task(other.receive())
    await asyncio.sleep(0)
    other.close()
    with pytest.raises(ChannelClosed):
        await waiting


class Packed:
    """An end whose messages are turned into bytes and back, as on a ring."""

    def __init__(self, end: MemoryEnd[Any, Any], decode: Any) -> None:
        self._end, self._decode = end, decode

    def send(self, message: Any) -> None:
        self._end.send(encode(message))

    async def receive(self) -> list[Any]:
        return [self._decode(data) for data in await self._end.receive()]

    def close(self) -> None:
        self._end.close()


def test_an_engine_works_over_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def packed_pair() -> tuple[Packed, Packed]:
        near, far = memory_pair()  # type: Pair
        return Packed(near, decode_for_dispatcher), Packed(far, decode_for_executor)

    monkeypatch.setattr(embedded, "memory_pair", packed_pair)

    def write(flow: Flow) -> None:
        item = flow.get_int("item")
        if item == 2 and flow.attempt == 0:
            flow["log"] = [item]
            flow.retry(0)
        elif item == 3:
            flow["log"] = [flow.subgraph("child", {"n": item})["n"]]
        elif item == 4:
            flow["log"] = [flow.interrupt({"item": item})["n"]]
        else:
            flow["log"] = [item]

    fan = Graph("it").add_transition_for_each("S", "W", "items", "item").add_transition_chain("W", "V", "J", END)
    fan.set_fan_in("J").set_reducer("log", Reducer.APPEND)
    app = make_app(
        {"it": fan, "child": "C->END"},
        {"S": _nothing, "J": _nothing, "V": _nothing, "W": write, "C": _times_100},
    )

    @on_loop
    async def play() -> None:
        async with EngineUnderTest(app, "packed") as engine:
            key = await engine.create("it", {"items": [1, 2, 3, 4, 5]})
            await until(lambda: stopped(engine, key), "it asks")
            await engine.resume(key, {"n": 44})
            outcome = await engine.wait(key, 60)
            assert outcome.status is Status.COMPLETED
            assert outcome.state["log"] == [1, 2, 300, 44, 5]

    play()


def _nothing(flow: Flow) -> None: ...


def _times_100(flow: Flow) -> None:
    flow["n"] = flow.get_int("n") * 100


async def stopped(engine: EngineUnderTest, key: str) -> bool:
    return (await engine.snapshot(key)).stopped
