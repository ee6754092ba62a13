"""The layered layout: whatever the graph, nothing overlaps and every path runs from its source to its target."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dwarf.drawing import layout as layout_module
from dwarf.drawing.layers import Box, Link
from dwarf.drawing.layout import Layout, Route, lay_out
from dwarf.drawing.text import ELLIPSIS, balanced, clean, width, wrap

Rect = tuple[float, float, float, float]

sizes = st.floats(16, 220)
boxes_drawn = st.lists(st.builds(Box, sizes, sizes, st.sampled_from(["box", "diamond", "circle"])), min_size=1, max_size=14).map(
    lambda boxes: [Box(box.width, box.width if box.outline == "circle" else box.height, box.outline) for box in boxes]
)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Link]]:
    boxes = draw(boxes_drawn)
    ends = st.integers(0, len(boxes) - 1)
    plain = st.builds(Link, ends, ends, minor=st.booleans())
    labelled = st.builds(Link, ends, ends, st.floats(10, 200), st.floats(10, 50), st.booleans())
    return boxes, draw(st.lists(plain | labelled, max_size=24))


def rect(middle: tuple[float, float], wide: float, high: float) -> Rect:
    return middle[0] - wide / 2, middle[1] - high / 2, middle[0] + wide / 2, middle[1] + high / 2


def overlap(one: Rect, other: Rect) -> bool:
    return one[0] < other[2] - 0.01 and other[0] < one[2] - 0.01 and one[1] < other[3] - 0.01 and other[1] < one[3] - 0.01


def points(route: Route) -> list[tuple[float, float]]:
    """The path as a line of many points."""
    found = [route.start]
    for piece in route.pieces:
        ends = [found[-1], *zip(piece[::2], piece[1::2], strict=True)]
        for step in range(1, 17):
            t = step / 16
            level = ends
            while len(level) > 1:
                level = [(a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t) for a, b in pairwise(level)]
            found.append(level[0])
    return found


def inside(point: tuple[float, float], area: Rect) -> bool:
    return area[0] + 0.5 < point[0] < area[2] - 0.5 and area[1] + 0.5 < point[1] < area[3] - 0.5


def check(boxes: list[Box], links: list[Link], layout: Layout) -> None:
    """Assert what holds for every layout."""
    nodes = [rect(place, box.width, box.height) for place, box in zip(layout.places, boxes, strict=True)]
    labels = [rect(route.label, link.width, link.height) for route, link in zip(layout.routes, links, strict=True) if route.label]
    assert len(labels) == sum(link.labelled for link in links)
    areas = nodes + labels
    for at, area in enumerate(areas):
        assert area[0] >= 0
        assert area[1] >= 0
        assert area[2] <= layout.width
        assert area[3] <= layout.height
        assert not any(overlap(area, other) for other in areas[:at])
    for link, route in zip(links, layout.routes, strict=True):
        path = points(route)
        assert all(isfinite(x) and 0 <= x <= layout.width and isfinite(y) and 0 <= y <= layout.height for x, y in path)
        assert on_outline(path[0], nodes[link.source])
        assert on_outline(path[-1], nodes[link.target])
        assert not any(inside(point, area) for point in path for at, area in enumerate(nodes) if at not in (link.source, link.target))
        others = [area for area in labels if route.label is None or area != rect(route.label, link.width, link.height)]
        assert not any(inside(point, area) for point in path for area in others)


def on_outline(point: tuple[float, float], area: Rect) -> bool:
    """Whether a point is within the area of a node, its edge included: outlines other than boxes stay inside of it."""
    return area[0] - 0.1 <= point[0] <= area[2] + 0.1 and area[1] - 0.1 <= point[1] <= area[3] + 0.1


@given(graphs())
@settings(max_examples=70)
def test_nothing_overlaps_and_paths_join_their_nodes(graph: tuple[list[Box], list[Link]]) -> None:
    boxes, links = graph
    layout = lay_out(boxes, links)
    check(boxes, links, layout)
    again = lay_out(boxes, links)
    assert (again.places, again.routes) == (layout.places, layout.routes)


@given(graphs(), st.integers(1, 12))
@settings(max_examples=40)
def test_bus_lines_keep_clear_too(graph: tuple[list[Box], list[Link]], bends_max: int) -> None:
    boxes, links = graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_module, "_BENDS_MAX", bends_max)
        check(boxes, links, lay_out(boxes, links))


def box() -> Box:
    return Box(80, 40)


def test_nothing_to_lay_out() -> None:
    layout = lay_out([], [])
    assert (layout.places, layout.routes) == ([], [])
    assert layout.width > 0


def test_a_chain_is_level_and_runs_right() -> None:
    layout = lay_out([box() for _ in range(5)], [Link(at, at + 1) for at in range(4)])
    assert len({y for _, y in layout.places}) == 1
    xs = [x for x, _ in layout.places]
    assert xs == sorted(xs)
    assert all({y for _, y in points(route)} == {layout.places[0][1]} for route in layout.routes)


def test_minor_links_bend_so_that_the_main_path_runs_level() -> None:
    links = [Link(0, 1), Link(1, 2), Link(2, 5), Link(1, 3, 40, 15, minor=True), Link(2, 4, 40, 15, minor=True), Link(3, 5), Link(4, 5)]
    layout = lay_out([box() for _ in range(6)], links)
    assert len({round(layout.places[at][1], 3) for at in range(3)}) == 1


def test_a_back_link_turns_round_outside() -> None:
    layout = lay_out([box(), box(), box()], [Link(0, 1), Link(1, 2), Link(2, 0, 40, 15)])
    back = points(layout.routes[2])
    assert max(x for x, _ in back) > layout.places[2][0] + 40
    assert min(x for x, _ in back) < layout.places[0][0] - 40
    assert layout.routes[2].heading == (1.0, 0.0)


def test_loops_stand_over_their_node_one_over_the_other() -> None:
    links = [Link(0, 0, 30, 15), Link(0, 0), Link(0, 0, 60, 15)]
    layout = lay_out([box()], links)
    check([box()], links, layout)
    tops = [min(y for _, y in points(route)) for route in layout.routes]
    assert tops == sorted(tops, reverse=True)
    assert max(tops) < layout.places[0][1] - 20
    assert all(route.heading == (0.0, 1.0) for route in layout.routes)


def test_the_middle_of_three_branches_runs_level() -> None:
    layout = lay_out([box() for _ in range(5)], [Link(0, 1), Link(0, 2), Link(0, 3), Link(1, 4), Link(2, 4), Link(3, 4)])
    heights = sorted(layout.places[at][1] for at in (1, 2, 3))
    assert layout.places[0][1] == pytest.approx(heights[1])
    assert layout.places[4][1] == pytest.approx(heights[1])


def test_crossings_that_can_be_avoided_are() -> None:
    # Two fans whose targets are registered in opposite order.
    layout = lay_out([box() for _ in range(7)], [Link(0, 1), Link(0, 2), Link(1, 5), Link(1, 6), Link(2, 3), Link(2, 4)])
    upper, lower = (1, 2) if layout.places[1][1] < layout.places[2][1] else (2, 1)
    mine = {1: (5, 6), 2: (3, 4)}
    assert max(layout.places[at][1] for at in mine[upper]) < min(layout.places[at][1] for at in mine[lower])


def test_depth_is_no_matter_of_recursion() -> None:
    count = 3000
    layout = lay_out([box() for _ in range(count)], [*(Link(at, at + 1) for at in range(count - 1)), Link(count - 1, 0)])
    assert len({y for _, y in layout.places}) == 1


def test_long_links_share_bus_lines_when_there_are_too_many() -> None:
    count = 400
    links = [Link(at, at + 1) for at in range(count - 1)] + [Link(at, 0, 40, 15, minor=True) for at in range(2, count)]
    links += [Link(at, count - 1, 40, 15, minor=True) for at in range(count - 3)]
    layout = lay_out([box() for _ in range(count)], links)
    pieces = sum(len(route.pieces) for route in layout.routes)
    assert pieces < 60_000  # all bends drawn would be 320,000
    lanes = {route.pieces[-3][-1] for route in layout.routes[count - 1 + 300 : count - 1 + 390]}
    assert len(lanes) == 1


# ---- text ----


def test_width_knows_narrow_broad_and_joined_characters() -> None:
    assert width("iiii", 10) < width("aaaa", 10) < width("mmmm", 10) < width("日本語字", 10)
    assert width("e\u0301", 10) == width("e", 10)
    assert width("iiii", 10, fixed=True) == width("mmmm", 10, fixed=True)
    assert width("", 10) == 0


@given(st.text(max_size=80), st.floats(20, 300), st.integers(1, 4))
def test_wrapped_text_fits(text: str, width_max: float, lines_max: int) -> None:
    text = clean(text)
    lines = wrap(text, 12, width_max=width_max, lines_max=lines_max)
    assert 1 <= len(lines) <= lines_max
    assert all(width(line, 12) <= width_max + 12 * 1.15 for line in lines)
    if not lines[-1].endswith(ELLIPSIS):
        assert "".join(lines).replace(" ", "") == text[: int(width_max * lines_max)].replace(" ", "")


def test_wrapping_breaks_at_blanks_and_cuts_at_the_end() -> None:
    assert wrap("one two three", 10, width_max=45, lines_max=2) == ["one two", "three"]
    [first, last] = wrap("one two three four five", 10, width_max=45, lines_max=2)
    assert first == "one two"
    assert last.endswith(ELLIPSIS)
    assert wrap("", 10, width_max=45, lines_max=2) == [""]
    assert wrap("averyveryverylongword", 10, width_max=45, lines_max=9)[0] != ""


def test_joined_characters_stay_together() -> None:
    family = "👩\u200d👩\u200d👧"
    for limit in range(20, 90, 3):
        lines = wrap(family * 4, 10, width_max=limit, lines_max=9)
        assert not any(line.startswith("\u200d") for line in lines)


def test_balanced_lines_are_about_as_wide() -> None:
    lines = balanced('amount > 10000 && country != "NL"', 10, width_max=140, lines_max=3)
    assert len(lines) == 2
    assert min(width(line, 10) for line in lines) > 50


def test_clean_text_is_one_line_that_xml_can_hold() -> None:
    assert clean(" a\t\n b\x85c\u2028d ") == "a b c d"
    assert clean("a\x00b\x1bc\ufffed\ud800e\x9ff") == "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf"
