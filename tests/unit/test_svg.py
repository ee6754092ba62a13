"""Graphs as SVG pictures, parsed and measured."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dwarf.drawing.text import clean
from dwarf.graph import END, Graph

SVG = "{http://www.w3.org/2000/svg}"
Rect = tuple[float, float, float, float]


def drawn(graph: Graph) -> ET.Element:
    return ET.fromstring(graph.to_svg())


def groups(root: ET.Element, kind: str) -> list[ET.Element]:
    return [group for group in root.iter(f"{SVG}g") if group.get("class", "").split(" ")[0] == kind]


def area(group: ET.Element) -> Rect:
    """The bounds of the outline of a node, or of a label."""
    for shape in group:
        if shape.tag == f"{SVG}rect":
            x, y, wide, high = (float(shape.get(name, "")) for name in ("x", "y", "width", "height"))
            return x, y, x + wide, y + high
        if shape.tag == f"{SVG}circle":
            x, y, r = (float(shape.get(name, "")) for name in ("cx", "cy", "r"))
            return x - r, y - r, x + r, y + r
        if shape.tag == f"{SVG}polygon":
            corners = [tuple(map(float, corner.split(","))) for corner in shape.get("points", "").split()]
            return min(x for x, _ in corners), min(y for _, y in corners), max(x for x, _ in corners), max(y for _, y in corners)
    raise AssertionError(ET.tostring(group))


def overlap(one: Rect, other: Rect) -> bool:
    # Coordinates are written to a tenth.
    return one[0] < other[2] - 0.2 and other[0] < one[2] - 0.2 and one[1] < other[3] - 0.2 and other[1] < one[3] - 0.2


def part(group: ET.Element, tag: str) -> ET.Element:
    """The one child with this tag."""
    [found] = group.findall(f"{SVG}{tag}")
    return found


def texts(element: ET.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def titles(element: ET.Element) -> list[str]:
    return [title.text or "" for title in element.iter(f"{SVG}title")]


NAMES = (
    "A",
    "B",
    "C",
    "D",
    "E",
    "F",
    "Ghost",
    END,
    "",
    "a long name of a task, with blanks & <marks>",
    "長い名前のタスクです長い名前のタスクです",
)


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    """Graphs that an import can hold, mostly invalid."""
    names = st.sampled_from(NAMES)
    tasks = draw(st.lists(names.filter(lambda name: name not in ("Ghost", END)), unique=True, max_size=8))
    edges = st.fixed_dictionaries(
        {"from": names, "to": names},
        optional={
            "when": st.sampled_from(["x > 1", "true", "status == 'a < b' && amount >= 10000 && country != \"NL\""]),
            "switch": st.just(True), "forEach": st.just("items"), "withGoto": st.just(True), "onError": st.just(True),
        },
    )  # fmt: skip
    document = {
        "name": draw(st.sampled_from(["", "Graph", "A <name> & more"])),
        "entryPoint": draw(names),
        "tasks": [{"name": name, "url": draw(st.sampled_from([name, "some.url/of/it"])), "fanIn": draw(st.booleans())} for name in tasks],
        "transitions": draw(st.lists(edges, max_size=16)),
    }
    return Graph.from_json(json.dumps(document))


@given(any_graphs())
@settings(max_examples=60)
def test_any_graph_is_a_picture_in_which_nothing_overlaps(graph: Graph) -> None:
    text = graph.to_svg()
    assert text == graph.to_svg()
    root = ET.fromstring(text)
    assert not re.search(r"\bnan\b|\binf\b|e[+-]\d", " ".join(re.findall(r'(?:d|points|x|y|cx|cy|r|width|height)="([^"]*)"', text)))
    _, _, wide, high = map(float, root.get("viewBox", "").split())
    [down] = map(float, re.findall(r"translate\(0 ([\d.]+)\)", text))
    nodes, labels = groups(root, "node"), groups(root, "label")
    assert len(nodes) >= len(graph.tasks) + 1
    assert len(groups(root, "edge")) >= len(graph.transitions)
    areas = [area(group) for group in nodes + labels]
    for at, one in enumerate(areas):
        assert 0 <= one[0] <= one[2] <= wide
        assert 0 <= one[1] + down <= one[3] + down <= high
        assert not any(overlap(one, other) for other in areas[:at])


@given(any_graphs())
@settings(max_examples=20)
def test_a_picture_brings_nothing_active_or_foreign(graph: Graph) -> None:
    root = drawn(graph)
    assert {element.tag.removeprefix(SVG) for element in root.iter()} <= {
        "svg",
        "title",
        "desc",
        "g",
        "rect",
        "circle",
        "polygon",
        "path",
        "text",
    }
    for element in root.iter():
        assert not any(name in ("href", "style", "id") or name.startswith("on") for name, _ in element.items())
        assert not any("url(" in value or "://" in value for name, value in element.items())


def test_the_document_says_what_it_is() -> None:
    root = drawn(Graph("Checkout & more").add_transition_chain("A", "B", END))
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    assert root[0].tag == f"{SVG}title"
    assert root[0].text == "Checkout & more"
    assert root[1].text == "Workflow graph: 2 tasks, 2 transitions"
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    paper = root[2]
    assert paper.tag == f"{SVG}rect"
    assert paper.get("fill", "").startswith("#")
    assert (paper.get("width"), paper.get("height")) == (root.get("width"), root.get("height"))


def test_a_graph_without_a_name_has_no_heading() -> None:
    root = drawn(Graph().add_transition("A", END))
    assert root[0].text == "Workflow"
    assert not [text for text in root.iter(f"{SVG}text") if text.get("class") == "heading"]


def test_an_empty_graph_is_a_start() -> None:
    root = drawn(Graph())
    assert [group.get("class") for group in groups(root, "node")] == ["node start"]
    assert groups(root, "edge") == []


def test_every_kind_of_node() -> None:
    graph = Graph("G").set_url("A", "some.url").add_transition_switch("A", "B", "x").add_transition_when("B", "J", "y").set_fan_in("J")
    graph.add_transition("J", END)
    nodes = {group.get("class"): group for group in groups(drawn(graph), "node")}
    assert set(nodes) == {"node start", "node task", "node switch", "node when", "node reduce", "node end"}
    outlines = {kind: next(shape.tag for shape in group if shape.tag != f"{SVG}title").removeprefix(SVG) for kind, group in nodes.items()}
    assert outlines == {
        "node start": "circle", "node task": "rect", "node switch": "polygon", "node when": "polygon", "node reduce": "circle",
        "node end": "circle",
    }  # fmt: skip
    assert texts(nodes["node switch"]) == ["switch"]


def test_a_task_shows_its_url_where_it_differs() -> None:
    graph = Graph("G").set_url("A", "billing.charge").add_transition_chain("A", "B", END)
    tasks = [group for group in groups(drawn(graph), "node") if group.get("class") == "node task"]
    assert [texts(group) for group in tasks] == [["A", "billing.charge"], ["B"]]
    assert [titles(group) for group in tasks] == [["A → billing.charge"], ["B"]]


def test_every_kind_of_edge() -> None:
    graph = Graph("G").add_transition("A", "B").add_transition_for_each("B", "C", "lines").add_transition_goto("C", "A")
    graph.add_transition_on_error("C", "D").add_transition_when("D", END, "x > 1")
    root = drawn(graph)
    edges = {group.get("class"): group for group in groups(root, "edge")}
    assert set(edges) == {"edge plain", "edge for-each", "edge goto", "edge on-error", "edge condition"}
    dashes = {kind: part(group, "path").get("stroke-dasharray") for kind, group in edges.items()}
    assert dashes["edge on-error"]
    assert dashes["edge goto"]
    assert dashes["edge on-error"] != dashes["edge goto"]
    assert dashes["edge plain"] is None
    colours = {kind: part(group, "path").get("stroke") for kind, group in edges.items()}
    assert colours["edge on-error"] == "#c0392b"
    assert {group.get("class"): texts(group) for group in groups(root, "label")} == {
        "label for-each": ["for each lines"], "label goto": ["goto"], "label on-error": ["onError"], "label condition": ["x > 1"],
    }  # fmt: skip
    assert titles(edges["edge goto"]) == ["C → A: goto"]
    assert titles(edges["edge plain"]) == []  # the start's own arrow
    assert [titles(group) for group in groups(root, "edge") if titles(group)] == [
        ["A → B"], ["B → C: for each lines"], ["C → A: goto"], ["C → D: onError"], ["D → END: x > 1"],
    ]  # fmt: skip


def test_every_arrow_has_a_head_at_its_end() -> None:
    for group in groups(drawn(Graph("G").add_transition_chain("A", "B", END).add_transition_goto("A", "A")), "edge"):
        assert [shape.tag.removeprefix(SVG) for shape in group][-2:] == ["path", "polygon"]
        end = [float(number) for number in re.findall(r"-?[\d.]+", part(group, "path").get("d", ""))[-2:]]
        tip = [float(number) for number in part(group, "polygon").get("points", "").split()[:2]]
        assert abs(tip[0] - end[0]) + abs(tip[1] - end[1]) == pytest.approx(6, abs=0.2)


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"onload="x', "a & b &lt;", "]]>", "\x01\x1b\x7f", "\ufffe\uffff", "<!--"])
def test_markup_in_names_is_text(text: str) -> None:
    graph = Graph(text).set_url(text, text).add_transition(text, END)
    root = drawn(graph)
    assert {element.tag for element in root.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "title", "desc", "g", "rect", "circle", "polygon", "path", "text")
    }
    assert root[0].text == clean(text)
    assert clean(text) in texts(root)


def test_right_to_left_and_emoji_are_unchanged() -> None:
    graph = Graph("שלום").add_transition("مرحبا بالعالم", "👩\u200d👩\u200d👧 🇳🇱")
    assert {"שלום", "مرحبا بالعالم", "👩\u200d👩\u200d👧 🇳🇱"} <= set(texts(drawn(graph)))


def test_long_text_is_cut_and_whole_in_the_tooltip() -> None:
    name = "word " * 60 + "end"
    condition = " && ".join(f"field{n} > {n}" for n in range(60))
    graph = Graph("x" * 500).add_transition_when(name, END, condition)
    root = drawn(graph)
    [task] = [group for group in groups(root, "node") if group.get("class") == "node task"]
    assert len(texts(task)) == 2
    assert texts(task)[-1].endswith("…")
    assert titles(task) == [name]
    [words] = groups(root, "label")
    assert len(texts(words)) == 3
    assert condition in titles(words)[0]
    assert float(root.get("width", "")) < 1500


def test_a_large_graph_takes_room_in_proportion() -> None:
    graph = Graph("Large").add_transition_chain(*(f"t{n}" for n in range(1500)), END)
    for n in range(1500):
        graph.add_transition_on_error(f"t{n}", "Handler")
    text = graph.to_svg()
    assert len(text) < 3000 * 1200
    assert len(groups(ET.fromstring(text), "node")) == 1503
