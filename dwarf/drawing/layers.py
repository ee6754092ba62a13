"""Layers of a layered drawing: which layer each node is in, and the bends by which a link passes the layers between.

Vertices are numbered: first the nodes, then the bends. A link of one node to an earlier one of a cycle is a back link: it
turns round beside its source and beside its target, so it has a bend in their layers too. A link whose bends would cost
more than the budget keeps only its first bend; the rest of it runs on a bus line outside the layers.

    forward:  source  bend  bend  target          back:  bend <- bend <- bend
                                                          |               ^
                                                          v -> target … source
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

_LOOP_RISE = 20.0
_LOOP_STEP = 8.0


class Box(msgspec.Struct, frozen=True):
    """A node to place, in pixels. `outline` is box, diamond or circle."""

    width: float
    height: float
    outline: str = "box"


class Link(msgspec.Struct, frozen=True):
    """A link to route between two nodes, by number, with the size of its label, if any. A `minor` one yields: a cycle is cut
    there, and it bends so that others run straight. A link of a node to itself is drawn over the node and takes no part here.
    """

    source: int
    target: int
    width: float = 0.0
    height: float = 0.0
    minor: bool = False

    @property
    def labelled(self) -> bool:
        return self.width > 0

    @property
    def loops(self) -> bool:
        return self.source == self.target


def loop_peak(place: int) -> float:
    """Return how far over its node the loop number `place` of several peaks: one over the other, with the labels on top of all."""
    return _LOOP_RISE + _LOOP_STEP * place


class Chain(msgspec.Struct):
    """The vertices of one link from source to target; `label_at` is the bend that carries its label, or -1."""

    link: int
    vertices: list[int]
    back: bool = False
    bus: bool = False
    label_at: int = -1


class Layers(msgspec.Struct):
    """The layering. Lists are by vertex; `left` and `right` hold neighbours in the adjacent layers, `beside` the node that a
    back link's bend turns round to, or -1. `label_of` is by bend, `loops` (links of a node to itself) by node; `minor` are the
    bends of minor links."""

    boxes: Sequence[Box]
    links: Sequence[Link]
    rank: list[int]
    chains: list[Chain]
    left: list[list[int]]
    right: list[list[int]]
    beside: list[int]
    label_of: dict[int, Link]
    loops: dict[int, list[int]]
    minor: set[int]

    @property
    def vertices(self) -> int:
        return len(self.rank)

    @property
    def size(self) -> int:
        """The number of vertices and of connections between them: what one look at everything costs."""
        return len(self.rank) + sum(map(len, self.right))

    def room_over(self, node: int) -> float:
        """Return how much room the loops and their labels take over the outline of `node`."""
        loops = self.loops.get(node, ())
        return loop_peak(len(loops) - 1) + sum(self.links[place].height for place in loops) if loops else 0.0

    def is_bend(self, vertex: int) -> bool:
        return vertex >= len(self.boxes)


def layered(boxes: Sequence[Box], links: Sequence[Link], *, bends_max: int) -> Layers:
    """Return the layers of a graph of any shape, with at most about `bends_max` bends."""
    back = _back_links(len(boxes), links)
    rank = _ranks(len(boxes), links, back)
    layers = Layers(boxes, links, rank, [], [[] for _ in boxes], [[] for _ in boxes], [-1] * len(boxes), {}, {}, set())
    cost = {}
    for place, link in enumerate(links):
        if link.loops:
            layers.loops.setdefault(link.source, []).append(place)
        else:
            cost[place] = abs(rank[link.source] - rank[link.target]) + 1
    spare = bends_max
    bus = set()
    for place in sorted(cost, key=lambda place: (cost[place], place)):
        spare -= cost[place]
        if spare < 0 and cost[place] > 4:
            bus.add(place)
    for place in cost:
        layers.chains.append(_chain(layers, place, back=back[place], bus=place in bus))
    return layers


def _back_links(count: int, links: Sequence[Link]) -> list[bool]:
    """Return, by link, whether it closes a cycle in a walk from the nodes nothing leads to, minor links last."""
    outgoing: list[list[int]] = [[] for _ in range(count)]
    entered = [False] * count
    for place in sorted(range(len(links)), key=lambda place: links[place].minor):
        if not links[place].loops:
            outgoing[links[place].source].append(place)
            entered[links[place].target] = True
    back = [False] * len(links)
    open_, done = 1, 2
    mark = [0] * count
    for root in sorted(range(count), key=entered.__getitem__):
        if mark[root]:
            continue
        mark[root] = open_
        walk = [(root, iter(outgoing[root]))]
        while walk:
            node, rest = walk[-1]
            for place in rest:
                target = links[place].target
                if mark[target] == open_:
                    back[place] = True
                elif not mark[target]:
                    mark[target] = open_
                    walk.append((target, iter(outgoing[target])))
                    break
            else:
                mark[node] = done
                walk.pop()
    return back


def _ranks(count: int, links: Sequence[Link], back: list[bool]) -> list[int]:
    """Return the layer of each node: as far left as its links allow; one that nothing leads to is next to its targets.

    A labelled link spans two layers at least, so that its label has a bend to stand on.
    """
    outgoing: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    waiting = [0] * count
    for link, is_back in zip(links, back, strict=True):
        if not is_back and not link.loops:
            outgoing[link.source].append((link.target, 2 if link.labelled else 1))
            waiting[link.target] += 1
    roots = [node for node in range(count) if not waiting[node]]
    rank = [0] * count
    ready = list(roots)
    for node in ready:
        for target, span in outgoing[node]:
            rank[target] = max(rank[target], rank[node] + span)
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    for node in roots:
        rank[node] = min((rank[target] - span for target, span in outgoing[node]), default=0)
    first = min(rank, default=0)
    return [layer - first for layer in rank]


def _chain(layers: Layers, place: int, *, back: bool, bus: bool) -> Chain:
    link = layers.links[place]
    start, stop = layers.rank[link.source], layers.rank[link.target]
    passed = list(range(start, stop - 1, -1) if back else range(start + 1, stop))
    if bus:
        passed = passed[:1]
    bends = [_bend(layers, rank) for rank in passed]
    chain = Chain(place, [link.source, *bends, link.target], back, bus)
    if link.minor:
        layers.minor.update(bends)
    if link.labelled:
        chain.label_at = bends[len(bends) // 2 if back else 0]
        layers.label_of[chain.label_at] = link
    if back:
        layers.beside[bends[0]] = link.source
        if not bus:
            layers.beside[bends[-1]] = link.target
    run = bends if back else chain.vertices[:-1] if bus else chain.vertices
    for one, other in pairwise(run):
        first, second = (other, one) if back else (one, other)
        layers.right[first].append(second)
        layers.left[second].append(first)
    return chain


def _bend(layers: Layers, rank: int) -> int:
    layers.rank.append(rank)
    layers.left.append([])
    layers.right.append([])
    layers.beside.append(-1)
    return layers.vertices - 1
