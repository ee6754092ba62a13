"""Where the vertices stand: heights that keep links straight inside the given order, and one column per layer.

Heights come from a few sweeps. In each layer every vertex wishes for the mean height of its neighbours; the wishes are met
as well as the order and the room between vertices allow, in one pass that pools vertices who want the same place.
"""

from __future__ import annotations

from itertools import pairwise
from math import inf

import msgspec

from dwarf.drawing.layers import Layers

_ROOM_NODES = 26.0
_ROOM_BENDS = 12.0
_BEND_HEIGHT = 4.0
_COLUMN_GAP_MIN = 46.0
_COLUMN_GAP_MAX = 130.0
_TURN_ROOM = 8.0
_PULL_RUN = 8.0
_PULL_MINOR = 2.0
_PULL_NODE = 1.0
_PULL_NONE = 0.05
_SWEEPS_MAX = 20
_SWEEPS_ENDING = 8  # the last ones, which straighten runs
_WORK_MAX = 1_000_000


class Columns(msgspec.Struct):
    """The span of each layer: `left` and `right` edges, in pixels."""

    left: list[float]
    right: list[float]

    def middle(self, rank: int) -> float:
        return (self.left[rank] + self.right[rank]) / 2


def heights(layers: Layers, rows: list[list[int]]) -> list[float]:
    """Return the height of the middle of each vertex."""
    y = [0.0] * layers.vertices
    steps = [_steps(layers, row) for row in rows]
    for row, step in zip(rows, steps, strict=True):
        at = 0.0
        for vertex, room in zip(row, step, strict=True):
            at += room
            y[vertex] = at
    left, right = _pulls(layers, layers.left), _pulls(layers, layers.right)
    runs = _runs(rows, left, right)
    pulls = _weights(layers, runs)
    sweeps = max(4, min(_SWEEPS_MAX, _WORK_MAX // max(1, layers.size)))
    for sweep in range(sweeps):
        from_left = sweep % 2 == 0
        ending = sweep >= sweeps - min(_SWEEPS_ENDING, sweeps // 2)
        sides = [left, right] if ending else [left] if from_left else [right]
        means = _means(runs, y) if ending else {}
        for place in range(len(rows)) if from_left else reversed(range(len(rows))):
            _settle_row(rows[place], steps[place], _wishes(rows[place], sides, means, y), pulls, y)
    _level(layers, rows, steps, y, runs)
    return y


def columns(layers: Layers, rows: list[list[int]], y: list[float]) -> Columns:
    """Return the columns: as wide as their widest vertex, further apart where links between them run steeply."""
    rise = [0.0] * len(rows)
    for vertex in range(layers.vertices):
        for other in layers.right[vertex]:
            rank = layers.rank[vertex]
            rise[rank] = max(rise[rank], abs(y[vertex] - y[other]))
    turns = [0] * (len(rows) + 1)
    for chain in layers.chains:
        if chain.back:
            turns[layers.rank[chain.vertices[0]]] += 1
            turns[layers.rank[chain.vertices[-1]] - 1] += 1
    found = Columns([], [])
    x = 0.0
    for rank, row in enumerate(rows):
        found.left.append(x)
        x += max((_size(layers, vertex)[0] for vertex in row), default=0.0)
        found.right.append(x)
        x += min(_COLUMN_GAP_MAX, max(_COLUMN_GAP_MIN + rise[rank] / 5, _COLUMN_GAP_MIN + _TURN_ROOM * turns[rank]))
    return found


def _pulls(layers: Layers, side: list[list[int]]) -> list[list[int]]:
    """Return whom each vertex wants to be level with on one side.

    A bend with a turn beside it stays near the node it turns to. A node passes over minor links if it has others.
    """
    pulls = []
    for vertex, near in enumerate(side):
        if not layers.is_bend(vertex):
            pulls.append([other for other in near if other not in layers.minor] or near)
        else:
            pulls.append(near or [layers.beside[vertex]] if layers.beside[vertex] >= 0 else near)
    return pulls


def _size(layers: Layers, vertex: int) -> tuple[float, float, float]:
    """Return width, and the room a vertex takes above and below its middle."""
    if not layers.is_bend(vertex):
        box = layers.boxes[vertex]
        wide = max([box.width, *(layers.links[place].width for place in layers.loops.get(vertex, ()))])
        return wide, box.height / 2 + layers.room_over(vertex), box.height / 2
    link = layers.label_of.get(vertex)
    half = (link.height if link else _BEND_HEIGHT) / 2
    return (link.width if link else 0.0), half, half


def _steps(layers: Layers, row: list[int]) -> list[float]:
    """Return, by place in the row, the least distance from the middle of the vertex above; 0 for the first."""
    steps = [0.0]
    for upper, lower in pairwise(row):
        bends = layers.is_bend(upper) or layers.is_bend(lower)
        steps.append(_size(layers, upper)[2] + _size(layers, lower)[1] + (_ROOM_BENDS if bends else _ROOM_NODES))
    return steps[: len(row)]


def _weights(layers: Layers, runs: list[list[int]]) -> list[float]:
    """Return how hard each vertex holds on to its wish: what should run straight yields last."""
    weights = [_PULL_NODE] * layers.vertices
    for run in runs:
        for vertex in run:
            weights[vertex] = _PULL_MINOR if vertex in layers.minor else _PULL_RUN
    return weights


def _means(runs: list[list[int]], y: list[float]) -> dict[int, float]:
    """Return, by vertex, the mean height of the run it is in."""
    means = {}
    for run in runs:
        mean = sum(y[vertex] for vertex in run) / len(run)
        means.update(dict.fromkeys(run, mean))
    return means


def _wishes(row: list[int], sides: list[list[list[int]]], means: dict[int, float], y: list[float]) -> list[float | None]:
    """Return the height each vertex wishes for: its run's, else between its neighbours; None for one without a wish."""
    wishes: list[float | None] = []
    for vertex in row:
        near = [side[vertex] for side in sides if side[vertex]]
        wish = means.get(vertex)
        wishes.append(sum(_median(others, y) for others in near) / len(near) if near and wish is None else wish)
    return wishes


def _settle_row(row: list[int], steps: list[float], wishes: list[float | None], pulls: list[float], y: list[float]) -> None:
    heights = [y[vertex] if wish is None else wish for vertex, wish in zip(row, wishes, strict=True)]
    weights = [_PULL_NONE if wish is None else pulls[vertex] for vertex, wish in zip(row, wishes, strict=True)]
    for vertex, height in zip(row, _settle(heights, weights, steps), strict=True):
        y[vertex] = height


def _median(vertices: list[int], y: list[float]) -> float:
    """Return the height of the middle one, so that the link to it can run level; of an even number, between the two."""
    if len(vertices) == 1:
        return y[vertices[0]]
    order = sorted(y[vertex] for vertex in vertices)
    half = len(order) // 2
    return order[half] if len(order) % 2 else (order[half - 1] + order[half]) / 2


def _level(layers: Layers, rows: list[list[int]], steps: list[list[float]], y: list[float], runs: list[list[int]]) -> None:
    """Put runs of vertices on one height where their rows leave room for it: sweeps end a little askew."""
    room = _Room(layers, rows, steps, y)
    for run in sorted(runs, key=len, reverse=True):
        at = 0
        while at < len(run):
            low, high = room.around(run[at])
            stop = at + 1
            while stop < len(run):
                lower, higher = room.around(run[stop])
                if max(low, lower) > min(high, higher):
                    break
                low, high, stop = max(low, lower), min(high, higher), stop + 1
            mean = sum(y[vertex] for vertex in run[at:stop]) / (stop - at)
            if low <= high:
                for vertex in run[at:stop]:
                    y[vertex] = min(max(mean, low), high)
            at = stop


class _Room:
    """The heights between the neighbours of a vertex in its row, as they are now."""

    def __init__(self, layers: Layers, rows: list[list[int]], steps: list[list[float]], y: list[float]) -> None:
        self._y = y
        self._limits: list[tuple[int, float, int, float]] = [(-1, 0.0, -1, 0.0)] * layers.vertices
        for row, step in zip(rows, steps, strict=True):
            for at, vertex in enumerate(row):
                upper = (row[at - 1], step[at]) if at else (-1, 0.0)
                lower = (row[at + 1], step[at + 1]) if at + 1 < len(row) else (-1, 0.0)
                self._limits[vertex] = (*upper, *lower)

    def around(self, vertex: int) -> tuple[float, float]:
        upper, below, lower, above = self._limits[vertex]
        return (self._y[upper] + below if upper >= 0 else -inf, self._y[lower] - above if lower >= 0 else inf)


def _runs(rows: list[list[int]], left: list[list[int]], right: list[list[int]]) -> list[list[int]]:
    """Return the longest runs, left to right, in which each vertex is the middle neighbour of the one before it and after it."""
    place = [0] * len(left)
    for row in rows:
        for at, vertex in enumerate(row):
            place[vertex] = at

    def middle(vertices: list[int]) -> int:
        return sorted(vertices, key=place.__getitem__)[len(vertices) // 2] if len(vertices) % 2 else -1

    after = [middle(others) for others in right]
    before = [middle(others) for others in left]
    runs = []
    for vertex in range(len(place)):
        if before[vertex] >= 0 and after[before[vertex]] == vertex:
            continue
        run = [vertex]
        while after[run[-1]] >= 0 and before[after[run[-1]]] == run[-1]:
            run.append(after[run[-1]])
        if len(run) > 1:
            runs.append(run)
    return runs


def _settle(wishes: list[float], weights: list[float], steps: list[float]) -> list[float]:
    """Return the heights nearest to `wishes` (least weighted squares) that keep at least `steps` between neighbours."""
    offsets = []
    offset = 0.0
    for step in steps:
        offset += step
        offsets.append(offset)
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        mean, heavy, members = wish - offset, weight, 1
        while pools and pools[-1][0] >= mean:
            above, load, many = pools.pop()
            mean = (mean * heavy + above * load) / (heavy + load)
            heavy += load
            members += many
        pools.append((mean, heavy, members))
    means = [mean for mean, _, members in pools for _ in range(members)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
