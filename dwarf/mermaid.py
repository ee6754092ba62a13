"""Graphs as Mermaid flowcharts, and how any text becomes safe inside a Mermaid label.

Lines are front matter, header, classes, a blank line, nodes, arrows, and last the start and end circles with their arrows.
It reads a graph and never checks or changes one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dwarf.drawing.diagram import END_ID, FINISH, REDUCE, START, START_ID, SWITCH, TASK, UNKNOWN, WHEN, Arrow, Node, diagram_of
from dwarf.errors import InvalidArgument

if TYPE_CHECKING:
    from dwarf.graph import Graph

DIRECTIONS = ("LR", "TD")
CLASSES = (
    "classDef task fill:#eef4ff,stroke:#3b5b92,color:#14213d",
    "classDef term fill:#f6f1e5,stroke:#8a6d3b,color:#3d2f14",
)
CLASS_UNKNOWN = "classDef unknown fill:#fdeceb,stroke:#b3261e,color:#5c1410,stroke-dasharray:5 3"
LINK_STYLE = "linkStyle default stroke:#5b6b82"

_OUTLINES = {
    TASK: ('["', '"]'), UNKNOWN: ('["', '"]'), SWITCH: ('{"', '"}'), WHEN: ('{"', '"}'),
    REDUCE: ('(("', '"))'), START: ('(("', '"))'), FINISH: ('(("', '"))'),
}  # fmt: skip
_NAMED = {'"': "#quot;", "<": "#lt;", ">": "#gt;"}
_SPECIAL = re.compile(r"""["'<>`\[\]{}()|\\]""")
# What Mermaid or the browser acts on beyond the brackets and quotes: references, formulas between `$$`, styles, icons.
_ENTITY_START = re.compile(r"&(?=[#A-Za-z])")
_COLON_ACTS = re.compile(r"style|classDef|:fa-")
_LINE_BREAKS = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_PLAIN_TITLE = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_YAML_WORDS = frozenset(("true", "false", "null", "yes", "no", "on", "off", "y", "n"))
_YAML_ESCAPED = re.compile('["\\\\\x00-\x1f\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]')


def render(graph: Graph | None, *, title: bool = True, direction: str = "LR") -> str:
    """Return `graph` as a Mermaid flowchart, with its name as front matter if `title`; no graph gives an empty text.

    A graph that breaks structural rules is drawn as it is. Raises `InvalidArgument` for a direction other than LR, TD and its synonym TB.
    """
    direction = {"TB": "TD"}.get(direction, direction)
    if direction not in DIRECTIONS:
        raise InvalidArgument(f"the direction of a diagram is {' or '.join(DIRECTIONS)}, not {direction!r}")
    if graph is None:
        return ""
    diagram = diagram_of(graph)
    lines = front_matter(diagram.name) if title else []
    lines.append(f"graph {direction}")
    lines.extend(f"    {line}" for line in CLASSES)
    if any(node.shape == UNKNOWN for node in diagram.nodes):
        lines.append(f"    {CLASS_UNKNOWN}")
    lines.extend((f"    {LINK_STYLE}", ""))
    lines.extend(f"    {line}" for line in _body(diagram.nodes, diagram.arrows))
    return "\n".join(lines) + "\n"


def _body(nodes: list[Node], arrows: list[Arrow]) -> list[str]:
    """Return node and arrow lines; the circles that are shared by the whole graph, and what touches them, come last."""
    inner = [_node_line(node) for node in nodes if node.id not in (START_ID, END_ID)]
    lines: dict[str, list[str]] = {"": [], START_ID: [], END_ID: []}
    for arrow in arrows:
        ends = (arrow.source, arrow.target)
        lines[START_ID if START_ID in ends else END_ID if END_ID in ends else ""].append(_arrow_line(arrow))
    circles = {node.id: _node_line(node) for node in nodes if node.id in (START_ID, END_ID)}
    # An entry that is END itself needs the end circle's own line first, else Mermaid would draw a box named `_end`.
    return [*inner, *lines[""], *circles.values(), *lines[START_ID], *lines[END_ID]]


def _node_line(node: Node) -> str:
    left, right = _OUTLINES[node.shape]
    return f"{node.id}{left}{label(node.label)}{right}:::{node.shape if node.shape in (TASK, UNKNOWN) else 'term'}"


def _arrow_line(arrow: Arrow) -> str:
    if not arrow.label.strip():
        return f"{arrow.source} --> {arrow.target}"
    return f'{arrow.source} -->|"{label(arrow.label)}"| {arrow.target}'


def label(text: str) -> str:
    """Return `text` so that it can stand between the quotes of a Mermaid label and be shown as it is, on one line.

    `#` goes first: it starts Mermaid's own references, so one in the text must not survive the pass that writes ours.
    """
    text = _CONTROL.sub("\ufffd", _LINE_BREAKS.sub(" ", text))
    text = text.replace("#", "#35;")
    text = _ENTITY_START.sub("#amp;", text).replace("$$", "#36;#36;")
    text = _SPECIAL.sub(lambda found: _NAMED.get(found[0]) or f"#{ord(found[0])};", text)
    if _COLON_ACTS.search(text):
        # Mermaid draws `fa:fa-…` as an icon and drops the last semicolon of what looks like a style: `style…:…#…;`.
        text = text.replace(":", "#58;")
    return text if text.strip() else " "


def front_matter(name: str) -> list[str]:
    """Return the lines of a YAML front matter with `name` as the title."""
    plain = _PLAIN_TITLE.fullmatch(name) and name.lower() not in _YAML_WORDS
    return ["---", f"title: {name if plain else quoted(name)}", "---"]


def quoted(text: str) -> str:
    """Return `text` as a double-quoted YAML scalar on one line; half a surrogate pair, which YAML cannot hold, is replaced."""

    def escape(found: re.Match[str]) -> str:
        char = found[0]
        if char in '"\\':
            return "\\" + char
        return "\ufffd" if "\ud800" <= char <= "\udfff" else f"\\u{ord(char):04x}"

    return f'"{_YAML_ESCAPED.sub(escape, text)}"'
