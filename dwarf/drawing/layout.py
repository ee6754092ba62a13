"""A layered layout from left to right: nodes in columns, links as paths that pass between them.

The same input gives the same output, to the last digit. Time and room grow about linearly with nodes and links.

Paths bend only in the gaps between columns. Inside a column a link runs level at the height of a bend of its own, or from
the side of its own node, so it crosses no node and no label of another link; bus lines run above everything. Rejected:
`grandalf` (recursive, cubic on long graphs, GPL or EPL) and `fast-sugiyama` (84 s for 10,000 nodes, no node sizes).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dwarf.drawing.layers import Box, Chain, Layers, Link, layered, loop_peak
from dwarf.drawing.order import ordered
from dwarf.drawing.placement import Columns, columns, heights

_BENDS_MAX = 20_000  # at least; a large graph may have four bends per node
_PORT_STEP = 9.0
_DOT = 20.0  # what is no higher is touched in one point
_LANE_STEP = 14.0
_TURN_MIN = 26.0
_TURN_STEP = 11.0
_MARGIN = 44.0  # at the sides: wide enough for a link that turns round at the first or the last column
_MARGIN_LEVEL = 30.0  # above and below
_LEVEL = 0.01
_GOES_ON = 0  # what a link does beside its node, where -1 turns round above and 1 below

Point = tuple[float, float]
Segment = tuple[float, float, float]  # from x, to x, y: a level run


class Route(msgspec.Struct):
    """The path of a link: a start, then pieces that are lines (x, y) or cubic curves (x1, y1, x2, y2, x, y).

    `heading` is the way it enters its target: (1, 0) from the left, (0, 1) from above. `label` is the middle of its label.
    """

    start: Point
    pieces: list[tuple[float, ...]]
    heading: Point = (1.0, 0.0)
    label: Point | None = None


class Layout(msgspec.Struct):
    """The middles of the nodes and the routes of the links, in the order they came, within (0, 0) and (width, height)."""

    places: list[Point]
    routes: list[Route]
    width: float
    height: float


def lay_out(boxes: Sequence[Box], links: Sequence[Link]) -> Layout:
    """Place `boxes` and route `links` between them, by number."""
    if not boxes:
        return Layout([], [], 2 * _MARGIN, 2 * _MARGIN)
    layers = layered(boxes, links, bends_max=max(_BENDS_MAX, 4 * len(boxes)))
    rows = ordered(layers)
    y = heights(layers, rows)
    plan = _Plan(layers, y, columns(layers, rows, y))
    routes = [Route((0.0, 0.0), []) for _ in links]
    for chain in layers.chains:
        routes[chain.link] = plan.route(chain)
    for node, loops in layers.loops.items():
        for place, route in zip(loops, plan.loops(node, loops), strict=True):
            routes[place] = route
    return _moved(layers, plan.places, routes)


class _Plan:
    """What the routes need to know: places, columns, ports and bus lanes."""

    def __init__(self, layers: Layers, y: list[float], spans: Columns) -> None:
        self._layers = layers
        self._y = y
        self._columns = spans
        self.places = [(spans.middle(layers.rank[node]), y[node]) for node in range(len(layers.boxes))]
        self._lanes: dict[tuple[int, bool], float] = {}
        top = min([*y, *(y[node] - box.height / 2 - layers.room_over(node) for node, box in enumerate(layers.boxes))])
        for chain in layers.chains:
            if chain.bus:
                self._lanes.setdefault((chain.vertices[-1], chain.back), top - _LANE_STEP * (len(self._lanes) + 2))
        self._ports = self._share_sides()
        self._reach = self._share_gaps()

    def _share_sides(self) -> dict[tuple[int, bool], Point]:
        """Return where each link touches its nodes, by link and whether it leaves; links fan out in the order of heights.

        A link that turns round keeps outside of those that go on, the one that turns at once outermost. The link that goes on
        straightest keeps the middle, so that it is drawn level.
        """
        sides: dict[tuple[int, bool], list[tuple[int, float, int]]] = {}
        for chain in self._layers.chains:
            source, target = chain.vertices[0], chain.vertices[-1]
            lane = self._lanes[target, chain.back] if chain.bus else self._y[chain.vertices[-2]]
            for node, leaves, height in ((source, True, self._y[chain.vertices[1]]), (target, False, lane)):
                turn = (-1 if height < self._y[node] else 1) if chain.back else _GOES_ON
                sides.setdefault((node, leaves), []).append((turn, height if turn == _GOES_ON else -height, chain.link))
        ports: dict[tuple[int, bool], Point] = {}
        for (node, leaves), touching in sides.items():
            touching.sort()
            box, (x, y) = self._layers.boxes[node], self.places[node]
            level = [place for place, (turn, height, _) in enumerate(touching) if turn == _GOES_ON and abs(height - y) < _PORT_STEP]
            middle = min(level, key=lambda place: abs(touching[place][1] - y)) if level else (len(touching) - 1) / 2
            reach = box.height * (0.36 if box.outline == "box" else 0.22) if box.height > _DOT else 0.0
            step = min(_PORT_STEP, reach / max(1.0, middle, len(touching) - 1 - middle))
            for place, (_, _, link) in enumerate(touching):
                rise = (place - middle) * step
                side = _half_width(box, rise)
                ports[link, leaves] = (x + side if leaves else x - side, y + rise)
        return ports

    def _share_gaps(self) -> dict[tuple[int, bool], float]:
        """Return how far the handles of each turn reach into its gap, by link and whether it leaves: the tallest furthest.

        The curve itself goes three quarters of that way.
        """
        gaps: dict[tuple[int, bool], list[tuple[float, int]]] = {}
        for chain in self._layers.chains:
            if chain.back:
                source, *bends, target = chain.vertices
                lane = self._lanes[target, True] if chain.bus else self._y[bends[-1]]
                start, stop = self._layers.rank[source], self._layers.rank[target] - 1
                gaps.setdefault((start, True), []).append((abs(self._y[bends[0]] - self._y[source]), chain.link))
                gaps.setdefault((stop, False), []).append((abs(lane - self._y[target]), chain.link))
        reach: dict[tuple[int, bool], float] = {}
        for (rank, leaves), turns in gaps.items():
            inner = 0 <= rank < len(self._columns.left) - 1
            gap = self._columns.left[rank + 1] - self._columns.right[rank] if inner else _MARGIN
            for place, (rise, link) in enumerate(sorted(turns)):
                reach[link, leaves] = min(gap, max(_TURN_MIN + rise / 12, _TURN_MIN + _TURN_STEP * place))
        return reach

    def route(self, chain: Chain) -> Route:
        """Return the path of a chain: level runs joined by curves in the gaps."""
        leave, enter = self._ports[chain.link, True], self._ports[chain.link, False]
        first, last = (self._layers.rank[vertex] for vertex in (chain.vertices[0], chain.vertices[-1]))
        left, right = self._columns.left, self._columns.right
        runs: list[Segment] = [(leave[0], right[first], leave[1])]
        for bend in chain.vertices[1:-1]:
            rank = self._layers.rank[bend]
            ends = (right[rank], left[rank]) if chain.back else (left[rank], right[rank])
            runs.append((*ends, self._y[bend]))
        if chain.bus:
            lane = self._lanes[chain.vertices[-1], chain.back]
            runs.append((right[first - 1], left[last], lane) if chain.back else (left[first + 2], right[last - 1], lane))
        runs.append((left[last], enter[0], enter[1]))
        label = None
        if chain.label_at >= 0:
            label = (self._columns.middle(self._layers.rank[chain.label_at]), self._y[chain.label_at])
        return Route(leave, self._pieces(runs, chain), label=label)

    def _pieces(self, runs: list[Segment], chain: Chain) -> list[tuple[float, ...]]:
        pieces: list[tuple[float, ...]] = []
        for place, (start, stop, y) in enumerate(runs):
            if abs(start - stop) > _LEVEL:
                pieces.append((stop, y))
            if place + 1 == len(runs):
                break
            x, _, y_next = runs[place + 1]
            if chain.back and place in (0, len(runs) - 2):
                reach = self._reach[chain.link, True] if place == 0 else -self._reach[chain.link, False]
                pieces.append((stop + reach, y, x + reach, y_next, x, y_next))
            elif abs(y - y_next) > _LEVEL:
                bow = (x - stop) / 2
                pieces.append((stop + bow, y, x - bow, y_next, x, y_next))
            else:
                pieces.append((x, y_next))
        return pieces

    def loops(self, node: int, loops: list[int]) -> list[Route]:
        """Return the paths of a node's links to itself: from its top, to the left, back down; the labels are over all of them."""
        x, y = self.places[node]
        box = self._layers.boxes[node]
        label_bottom = y - box.height / 2 - loop_peak(len(loops) - 1) - 1
        routes = []
        for place, link in enumerate(self._layers.links[number] for number in loops):
            half = min(box.width / 2, 11.0 + 5.0 * place) * (1.0 if box.outline == "box" else 0.6)
            top = y - _half_height(box, half)
            # A cubic whose handles are level peaks at three quarters of their height.
            crest = top + (y - box.height / 2 - loop_peak(place) - top) / 0.75
            route = Route((x + half, top), [(x + half + 8.0, crest, x - half - 8.0, crest, x - half, top)], (0.0, 1.0))
            if link.labelled:
                route.label = (x, label_bottom - link.height / 2)
                label_bottom -= link.height
            routes.append(route)
        return routes


def _half_width(box: Box, rise: float) -> float:
    """Return how far the outline of `box` is from its middle, sideways, at `rise` above or below it."""
    if box.outline == "circle":
        return float(max(0.0, (box.width / 2) ** 2 - rise**2) ** 0.5)
    if box.outline == "diamond":
        return box.width / 2 * (1 - abs(rise) / (box.height / 2))
    return box.width / 2


def _half_height(box: Box, aside: float) -> float:
    return _half_width(Box(box.height, box.width, box.outline), aside)


def _moved(layers: Layers, places: list[Point], routes: list[Route]) -> Layout:
    """Return everything moved so that it starts at the margin, with the size of the whole."""
    xs: list[float] = []
    ys: list[float] = []
    for box, (x, y) in zip(layers.boxes, places, strict=True):
        xs += (x - box.width / 2, x + box.width / 2)
        ys += (y - box.height / 2, y + box.height / 2)
    for link, route in zip(layers.links, routes, strict=True):
        ys.extend(y for piece in route.pieces for y in piece[1::2])
        if route.label:
            xs += (route.label[0] - link.width / 2, route.label[0] + link.width / 2)
            ys += (route.label[1] - link.height / 2, route.label[1] + link.height / 2)
    dx, dy = _MARGIN - min(xs), _MARGIN_LEVEL - min(ys)
    shift = (dx, dy) * 3
    for route in routes:
        route.start = (route.start[0] + dx, route.start[1] + dy)
        route.pieces = [tuple(at + by for at, by in zip(piece, shift, strict=False)) for piece in route.pieces]
        if route.label:
            route.label = (route.label[0] + dx, route.label[1] + dy)
    moved = [(x + dx, y + dy) for x, y in places]
    return Layout(moved, routes, max(xs) + dx + _MARGIN, max(ys) + dy + _MARGIN_LEVEL)
