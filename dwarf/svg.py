"""Graphs as stand-alone SVG pictures, left to right.

The document needs nothing from outside and brings nothing along: no scripts, styles, fonts, links or ids, only shapes with
presentation attributes, so it looks the same in a README, in a page with a strict content policy and beside other pictures.
It reads a graph and never checks or changes one. The same graph gives the same bytes.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import msgspec

from dwarf.drawing import diagram as shape
from dwarf.drawing.diagram import Arrow, Diagram, Node, diagram_of
from dwarf.drawing.layers import Box, Link
from dwarf.drawing.layout import Point, Route, lay_out
from dwarf.drawing.text import balanced, clean, width, wrap

if TYPE_CHECKING:
    from dwarf.graph import Graph

_FONT = "ui-sans-serif, system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_FONT_FIXED = "ui-monospace, 'SF Mono', Menlo, Consolas, 'Liberation Mono', monospace"
_PAPER = "#fbfcfe"
_INK = "#1b2738"
_NAME_SIZE = 13.0
_URL_SIZE = 10.5
_MARK_SIZE = 11.0
_LABEL_SIZE = 11.5
_TITLE_SIZE = 16.0
_BOLD = 1.08  # how much wider bold text is
_NAME_WIDTH_MAX = 190.0
_LABEL_WIDTH_MAX = 190.0
_TITLE_ROOM = 34.0
_LINE = 1.28  # from one line of text to the next, in font sizes
_ARROW = 7.0
_BEFORE_TEXT = 0.35  # from the middle of a line of text down to its baseline, in font sizes


class _Look(msgspec.Struct, frozen=True):
    """How a node of some shape is drawn."""

    fill: str
    stroke: str
    ink: str
    dash: str = ""


class _Stroke(msgspec.Struct, frozen=True):
    """How an arrow of some kind is drawn."""

    stroke: str
    ink: str
    dash: str = ""


_LOOKS = {
    shape.TASK: _Look("#ffffff", "#5b7bb5", _INK),
    shape.UNKNOWN: _Look("#fdf1f0", "#c0392b", "#7d1f16", "5 3"),
    shape.SWITCH: _Look("#fff7e0", "#c98a1b", "#6b470a"),
    shape.WHEN: _Look("#fff7e0", "#c98a1b", "#6b470a"),
    shape.REDUCE: _Look("#e8f6ee", "#2f8f5b", "#175233"),
    shape.START: _Look(_INK, _INK, _INK),
    shape.FINISH: _Look(_PAPER, _INK, _INK),
}
_STROKES = {
    "plain": _Stroke("#6b7a90", "#45526a"),
    "condition": _Stroke("#6b7a90", "#6b470a"),
    "for-each": _Stroke("#1f7a8c", "#145563"),
    "goto": _Stroke("#7a4fbf", "#57339a", "2 4"),
    "on-error": _Stroke("#c0392b", "#96271b", "6 4"),
}


class _Label(msgspec.Struct, frozen=True):
    """Lines of text with the room they take."""

    lines: list[str]
    width: float
    height: float


def render(graph: Graph) -> str:
    """Return `graph`, valid or not, as an SVG document."""
    diagram = diagram_of(graph)
    nodes = sorted(diagram.nodes, key=lambda node: node.shape != shape.START)  # the start leads: cycles are cut from there
    number = {node.id: place for place, node in enumerate(nodes)}
    names = [_name(node) for node in nodes]
    labels = [_label(arrow) for arrow in diagram.arrows]
    links = [
        Link(number[arrow.source], number[arrow.target], label.width, label.height, minor=_kind(arrow) in ("goto", "on-error"))
        for arrow, label in zip(diagram.arrows, labels, strict=True)
    ]
    layout = lay_out([_box(node, name) for node, name in zip(nodes, names, strict=True)], links)
    title = wrap(clean(graph.name), _TITLE_SIZE * _BOLD, width_max=max(320.0, layout.width - 48), lines_max=1)[0]
    down = _TITLE_ROOM if title else 0.0
    size = (max(layout.width, width(title, _TITLE_SIZE * _BOLD) + 48), layout.height + down)
    return "\n".join(
        (
            *_head(diagram, title, size),
            f'<g transform="translate(0 {_n(down)})">',
            *(_arrow(*drawn) for drawn in zip(diagram.arrows, layout.routes, strict=True)),
            *(_node(*drawn) for drawn in zip(nodes, names, layout.places, strict=True)),
            *(_arrow_label(*drawn) for drawn in zip(diagram.arrows, layout.routes, labels, strict=True) if drawn[1].label),
            "</g>",
            "</svg>",
            "",
        )
    )


def _head(diagram: Diagram, title: str, size: tuple[float, float]) -> list[str]:
    wide, high = _n(size[0]), _n(size[1])
    tasks = sum(node.shape == shape.TASK for node in diagram.nodes)
    edges = sum(arrow.transition is not None for arrow in diagram.arrows)
    box = f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {box} font-family="{_FONT}" text-anchor="middle">',
        f"<title>{_x(diagram.name) or 'Workflow'}</title>",
        f"<desc>Workflow graph: {tasks} tasks, {edges} transitions</desc>",
        f'<rect class="paper" width="{wide}" height="{high}" rx="10" fill="{_PAPER}" stroke="#d9e0ea"/>',
    ]
    if title:
        attributes = f'text-anchor="start" font-size="{_n(_TITLE_SIZE)}" font-weight="600" fill="{_INK}"'
        lines.append(f'<text class="heading" x="24" y="34" {attributes}>{_x(title)}</text>')
    return lines


# Sizes


def _name(node: Node) -> _Label:
    """Return what stands inside a node."""
    if node.shape in (shape.START, shape.FINISH):
        return _Label([], 0.0, 0.0)
    if node.shape in (shape.SWITCH, shape.WHEN, shape.REDUCE):
        return _Label([node.label], width(node.label, _MARK_SIZE), _MARK_SIZE * _LINE)
    lines = balanced(clean(node.label), _NAME_SIZE, width_max=_NAME_WIDTH_MAX, lines_max=2)
    return _Label(lines, max(width(line, _NAME_SIZE) for line in lines), len(lines) * _NAME_SIZE * _LINE)


def _url(node: Node) -> str:
    return wrap(clean(node.detail), _URL_SIZE, width_max=_NAME_WIDTH_MAX, lines_max=1, fixed=True)[0]


def _box(node: Node, name: _Label) -> Box:
    if node.shape in (shape.START, shape.FINISH):
        return Box(16.0, 16.0, "circle")
    if node.shape == shape.REDUCE:
        return Box(name.width + 16, name.width + 16, "circle")
    if node.shape in (shape.SWITCH, shape.WHEN):
        return Box(name.width + 42, 50.0, "diamond")
    url = _url(node)
    wide = max(name.width, width(url, _URL_SIZE, fixed=True)) + 28
    return Box(max(64.0, wide), name.height + (_URL_SIZE * _LINE if url else 0.0) + 20)


def _words(arrow: Arrow) -> str:
    edge = arrow.transition
    return clean(arrow.label.replace("for each", f"for each {edge.for_each}", 1) if edge is not None and edge.for_each else arrow.label)


def _label(arrow: Arrow) -> _Label:
    text = _words(arrow)
    if not text:
        return _Label([], 0.0, 0.0)
    lines = balanced(text, _LABEL_SIZE, width_max=_LABEL_WIDTH_MAX, lines_max=3)
    return _Label(lines, max(width(line, _LABEL_SIZE) for line in lines) + 10, len(lines) * _LABEL_SIZE * _LINE + 4)


def _tooltip(arrow: Arrow) -> str:
    """Return a title element with the whole of what the picture may have to cut."""
    edge = arrow.transition
    if edge is None:
        return ""
    words = _words(arrow)
    return f"<title>{_x(edge.source)} → {_x(edge.target)}{': ' + _x(words) if words else ''}</title>"


def _kind(arrow: Arrow) -> str:
    edge = arrow.transition
    if edge is None:
        return "plain"
    if edge.on_error:
        return "on-error"
    if edge.goto:
        return "goto"
    return "for-each" if edge.for_each else "condition" if edge.when or edge.switch else "plain"


# Shapes


def _node(node: Node, name: _Label, place: Point) -> str:
    x, y = place
    look = _LOOKS[node.shape]
    box = _box(node, name)
    dash = f' stroke-dasharray="{look.dash}"' if look.dash else ""
    outline = f'fill="{look.fill}" stroke="{look.stroke}" stroke-width="1.4"{dash}/>'
    parts = [f'<g class="node {node.shape}">']
    if node.shape in (shape.TASK, shape.UNKNOWN):
        parts.append(f"<title>{_x(node.label)}{' → ' + _x(node.detail) if node.detail else ''}</title>")
    if box.outline == "circle":
        parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(box.width / 2)}" {outline}')
        if node.shape == shape.FINISH:
            parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="4.5" fill="{look.ink}"/>')
    elif box.outline == "diamond":
        dx, dy = box.width / 2, box.height / 2
        corners = " ".join(f"{_n(a)},{_n(b)}" for a, b in ((x - dx, y), (x, y - dy), (x + dx, y), (x, y + dy)))
        parts.append(f'<polygon points="{corners}" stroke-linejoin="round" {outline}')
    else:
        corner = f'x="{_n(x - box.width / 2)}" y="{_n(y - box.height / 2)}"'
        parts.append(f'<rect {corner} width="{_n(box.width)}" height="{_n(box.height)}" rx="8" {outline}')
    parts.extend(_node_text(node, name, place, look.ink))
    return "".join((*parts, "</g>"))


def _node_text(node: Node, name: _Label, place: Point, ink: str) -> list[str]:
    x, y = place
    if node.shape not in (shape.TASK, shape.UNKNOWN):
        return _text(name.lines, (x, y), f'font-size="{_n(_MARK_SIZE)}" fill="{ink}"', _MARK_SIZE)
    url = _url(node)
    shift = _URL_SIZE * _LINE / 2 if url else 0.0
    parts = _text(name.lines, (x, y - shift), f'font-size="{_n(_NAME_SIZE)}" font-weight="500" fill="{ink}"', _NAME_SIZE)
    if url:
        attributes = f'font-size="{_n(_URL_SIZE)}" font-family="{_FONT_FIXED}" fill="#66758c"'
        parts += _text([url], (x, y + name.height / 2 + 1), attributes, _URL_SIZE)
    return parts


def _arrow(arrow: Arrow, route: Route) -> str:
    kind = _kind(arrow)
    stroke = _STROKES[kind]
    dash = f' stroke-dasharray="{stroke.dash}"' if stroke.dash else ""
    cap = ' stroke-linecap="round"' if kind == "goto" else ""
    *between, (*handles, x, y) = route.pieces
    across, down = route.heading
    tip = (*handles, x - across * (_ARROW - 1), y - down * (_ARROW - 1))
    path = f"M{_points(route.start)}" + "".join(("L" if len(piece) == 2 else "C") + _points(piece) for piece in (*between, tip))
    base = (x - across * _ARROW, y - down * _ARROW)
    wing = _ARROW * 0.55
    head = _points((x, y, base[0] - down * wing, base[1] - across * wing, base[0] + down * wing, base[1] + across * wing))
    return (
        f'<g class="edge {kind}">{_tooltip(arrow)}<path d="{path}" fill="none" stroke="{stroke.stroke}" stroke-width="1.5"{dash}{cap}/>'
        f'<polygon points="{head}" fill="{stroke.stroke}"/></g>'
    )


def _arrow_label(arrow: Arrow, route: Route, label: _Label) -> str:
    assert route.label is not None
    x, y = route.label
    corner = f'x="{_n(x - label.width / 2)}" y="{_n(y - label.height / 2)}"'
    paper = f'<rect {corner} width="{_n(label.width)}" height="{_n(label.height)}" rx="4" fill="{_PAPER}"/>'
    kind = _kind(arrow)
    text = _text(label.lines, route.label, f'font-size="{_n(_LABEL_SIZE)}" fill="{_STROKES[kind].ink}"', _LABEL_SIZE)
    return f'<g class="label {kind}">{_tooltip(arrow)}{paper}{"".join(text)}</g>'


def _text(lines: list[str], middle: Point, attributes: str, size: float) -> list[str]:
    """Return `lines` centred on `middle`."""
    x, y = middle
    top = y - (len(lines) - 1) * size * _LINE / 2 + size * _BEFORE_TEXT
    return [f'<text x="{_n(x)}" y="{_n(top + place * size * _LINE)}" {attributes}>{_x(line)}</text>' for place, line in enumerate(lines)]


def _points(numbers: tuple[float, ...]) -> str:
    return " ".join(_n(number) for number in numbers)


def _n(number: float) -> str:
    """Return a coordinate: a tenth of a pixel is more than anyone sees."""
    return f"{round(number, 1) + 0.0:.1f}".removesuffix(".0")  # + 0.0: no minus zero


def _x(text: str) -> str:
    return escape(clean(text))
