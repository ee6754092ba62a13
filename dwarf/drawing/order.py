"""The order of the vertices inside each layer: sweeps over the layers that put every vertex at the mean of its neighbours,
keeping the order with the fewest crossings."""

from __future__ import annotations

from dwarf.drawing.layers import Layers

_SWEEPS_MAX = 24
_WORK_MAX = 600_000  # vertices and connections looked at by all sweeps together, so that the largest graph takes seconds
_FRUITLESS_MAX = 4


def ordered(layers: Layers) -> list[list[int]]:
    """Return the vertices of each layer from top to bottom."""
    best = _first_order(layers)
    fewest = _crossings(layers, best)
    rows = [list(row) for row in best]
    fruitless = 0
    for sweep in range(max(2, min(_SWEEPS_MAX, _WORK_MAX // max(1, layers.size)))):
        if fewest == 0 or fruitless == _FRUITLESS_MAX:
            break
        _sweep(layers, rows, from_left=sweep % 2 == 0)
        crossings = _crossings(layers, rows)
        fruitless = 0 if crossings < fewest else fruitless + 1
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _first_order(layers: Layers) -> list[list[int]]:
    """Return the order of a depth-first walk from the left, in which a back link's bend comes right above its node."""
    rows: list[list[int]] = [[] for _ in range(max(layers.rank, default=-1) + 1)]
    above: list[list[int]] = [[] for _ in range(layers.vertices)]
    for bend, node in enumerate(layers.beside):
        if node >= 0:
            above[node].append(bend)
    seen = [False] * layers.vertices
    for root in sorted(range(layers.vertices), key=layers.rank.__getitem__):
        walk = [root]
        while walk:
            vertex = walk.pop()
            if seen[vertex]:
                continue
            if above[vertex]:
                walk.append(vertex)
                walk.extend(above[vertex])
                above[vertex] = []
                continue
            seen[vertex] = True
            rows[layers.rank[vertex]].append(vertex)
            walk.extend(reversed(layers.right[vertex]))
    return rows


def _sweep(layers: Layers, rows: list[list[int]], *, from_left: bool) -> None:
    neighbours = layers.left if from_left else layers.right
    place = [0.0] * layers.vertices
    for row in rows:
        for at, vertex in enumerate(row):
            place[vertex] = float(at)
    for row in rows if from_left else reversed(rows):
        wish = {}
        for at, vertex in enumerate(row):
            near = neighbours[vertex]
            wish[vertex] = sum(place[other] for other in near) / len(near) if near else float(at)
        for vertex in row:
            node = layers.beside[vertex]
            if node >= 0 and not neighbours[vertex]:
                # A back link passes below its node in the lower half, else above: it stays out of the middle.
                wish[vertex] = wish[node] + (0.1 if place[node] > len(row) / 2 else -0.1)
        row.sort(key=wish.__getitem__)
        for at, vertex in enumerate(row):
            place[vertex] = float(at)


def _crossings(layers: Layers, rows: list[list[int]]) -> int:
    """Count the pairs of connections between adjacent layers that cross, and what back links pass where they turn round."""
    place = [0] * layers.vertices
    for row in rows:
        for at, vertex in enumerate(row):
            place[vertex] = at
    total = 0
    for at, row in enumerate(rows[:-1]):
        size = len(rows[at + 1])
        ends = [target for vertex in row for target in sorted(place[other] for other in layers.right[vertex])]
        total += _inversions(ends, size)
    return total + sum(abs(place[bend] - place[node]) - 1 for bend, node in enumerate(layers.beside) if node >= 0)


def _inversions(ends: list[int], size: int) -> int:
    """Count the pairs in `ends`, numbers below `size`, where the greater comes first (a binary indexed tree of counts)."""
    tree = [0] * (size + 1)
    total = 0
    for seen, end in enumerate(ends):
        not_greater = 0
        at = end + 1
        while at:
            not_greater += tree[at]
            at &= at - 1
        total += seen - not_greater
        at = end + 1
        while at <= size:
            tree[at] += 1
            at += at & -at
    return total
