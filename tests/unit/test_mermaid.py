"""Graphs as Mermaid flowcharts, read back line by line."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dwarf.errors import InvalidArgument
from dwarf.graph import END, Graph
from dwarf.mermaid import label, render

NODE = re.compile(r'    (\w+)(\["|\{"|\(\(")([^"]+)("\]|"\}|"\)\)):::(\w+)')
ARROW = re.compile(r'    (\w+) -->(?:\|"([^"]+)"\|)? (\w+)')
REFERENCES = {"#quot;": '"', "#lt;": "<", "#gt;": ">", "#amp;": "&"}
SPECIAL = "#\"'<>`[]{}()|"


def parts(text: str) -> tuple[list[str], list[tuple[str, str, str, str]], list[tuple[str, str, str]]]:
    """The header lines, the nodes (id, opening, label, class) and the arrows (source, label, target) of a flowchart."""
    head, _, body = text.partition("\n\n")
    nodes: list[tuple[str, str, str, str]] = []
    arrows: list[tuple[str, str, str]] = []
    for line in body.splitlines():
        if node := NODE.fullmatch(line):
            nodes.append((node[1], node[2].rstrip('"'), node[3], node[5]))
        else:
            arrow = ARROW.fullmatch(line)
            assert arrow, f"neither a node nor an arrow: {line!r}"
            arrows.append((arrow[1], arrow[2] or "", arrow[3]))
    return head.splitlines(), nodes, arrows


def shown(escaped: str) -> str:
    """What a reader sees of a label: Mermaid's references resolved once."""
    return re.sub(r"#(?:(\d+)|quot|lt|gt|amp);", lambda found: chr(int(found[1])) if found[1] else REFERENCES[found[0]], escaped)


def arrows_of(graph: Graph) -> list[tuple[str, str, str]]:
    return parts(graph.to_mermaid())[2]


def imported(**document: object) -> Graph:
    return Graph.from_json(json.dumps(document))


# ---- header ----


@pytest.mark.row("A-33")
def test_a_small_graph_line_by_line() -> None:
    graph = Graph("Checkout").add_transition_chain("Reserve", "Charge", END)
    assert graph.to_mermaid() == (
        "---\n"
        "title: Checkout\n"
        "---\n"
        "graph LR\n"
        "    classDef task fill:#eef4ff,stroke:#3b5b92,color:#14213d\n"
        "    classDef term fill:#f6f1e5,stroke:#8a6d3b,color:#3d2f14\n"
        "    linkStyle default stroke:#5b6b82\n"
        "\n"
        '    t0["Reserve"]:::task\n'
        '    t1["Charge"]:::task\n'
        "    t0 --> t1\n"
        '    _start((" ")):::term\n'
        '    _end((" ")):::term\n'
        "    _start --> t0\n"
        "    t1 --> _end\n"
    )


@pytest.mark.row("A-34")
def test_title_turned_off_leaves_no_front_matter() -> None:
    text = Graph("Checkout").add_transition("A", END).to_mermaid(title=False)
    assert text.startswith("graph LR\n")
    assert "---\n" not in text
    assert "Checkout" not in text


@pytest.mark.row("A-34")
def test_top_down() -> None:
    head, nodes, arrows = parts(Graph("G").add_transition("A", END).to_mermaid(direction="TD"))
    assert head[3] == "graph TD"
    assert (nodes, arrows) == parts(Graph("G").add_transition("A", END).to_mermaid())[1:]


@pytest.mark.parametrize("direction", ["lr", "RL", "", "LR\nclick t0 href", None])
def test_any_other_direction_is_refused(direction: str) -> None:
    with pytest.raises(InvalidArgument, match="LR or TD") as caught:
        Graph("G").to_mermaid(direction=direction)
    assert repr(direction) in str(caught.value)


PLAIN = ("Checkout", "two words", "A.b/c-d_e", "x", "Order-2 v1.0", "nullable", "yes sir")
QUOTED = (
    "yes", "Null", "on", "n", "TRUE", "1.5", "2026-01-01", "0x1F", "~", "=", "", " blanks ", "two  blanks", "null ",
    "a: b", "a:", "- dash", "---", "# not a comment", "a #b", "{x}", "[x]", "&a", "*a", "!a", "%a", "@a", "`a`", "|", ">",
    'say "hi"', "it's", "back\\slash", "two\nlines", "\n---\ngraph LR", "tab\there",
    "a\x85b\u2028c\u2029d\ufeff\x7f\x01\ufffe", "שלום", "名前", "👩\u200d👩\u200d👧",
)  # fmt: skip


@pytest.mark.row("A-33")
@pytest.mark.parametrize("name", PLAIN)
def test_the_title_is_the_name(name: str) -> None:
    assert Graph(name).to_mermaid().startswith(f"---\ntitle: {name}\n---\ngraph LR\n")


@pytest.mark.row("A-33")
@pytest.mark.parametrize("name", QUOTED)
def test_a_name_that_yaml_would_misread_is_quoted(name: str) -> None:
    lines = Graph(name).to_mermaid().split("\n")
    assert (lines[0], lines[2], lines[3]) == ("---", "---", "graph LR")
    # Of the escapes that YAML knows we use those that JSON has too.
    assert json.loads(lines[1].removeprefix("title: ")) == name


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40))
def test_any_title_is_one_line_of_printable_text(name: str) -> None:
    front, _, rest = Graph(name).to_mermaid().removeprefix("---\n").partition("\n---\n")
    title = front.removeprefix("title: ")
    assert (json.loads(title) if title.startswith('"') else title) == name
    assert len(front.splitlines()) == 1
    assert not re.search("[\x00-\x1f\x7f-\x9f\ufeff]", front)
    assert rest.startswith("graph LR\n")


# ---- nodes and arrows ----


@pytest.mark.row("A-35")
def test_tasks_are_numbered_in_their_order_and_plain_edges_bare() -> None:
    graph = Graph("G").set_url("A", "u/a").set_url("B", "u/b").add_transition("B", "A").add_transition("A", "B")
    _, nodes, arrows = parts(graph.to_mermaid())
    assert nodes[:2] == [("t0", "[", "A", "task"), ("t1", "[", "B", "task")]
    assert arrows[:2] == [("t1", "", "t0"), ("t0", "", "t1")]
    assert "u/a" not in graph.to_mermaid()


@pytest.mark.row("A-35", "A-15")
def test_every_copy_of_an_edge_is_drawn() -> None:
    graph = Graph("G").add_transition("A", "B").add_transition("A", "B").add_transition_goto("A", "B")
    assert arrows_of(graph)[:3] == [("t0", "", "t1"), ("t0", "", "t1"), ("t0", "goto", "t1")]


@pytest.mark.row("A-36")
def test_a_switch_goes_through_one_diamond() -> None:
    graph = Graph("G").add_transition_switch("R", "High", "amount >= 10000").add_transition_switch("R", "Mid", "amount >= 100")
    graph.add_transition_switch("R", "Low", "true").add_transition_on_error("R", "Low")
    _, nodes, arrows = parts(graph.to_mermaid())
    assert [node for node in nodes if node[1] == "{"] == [("t0_switch", "{", "switch", "term")]
    assert arrows[:5] == [
        ("t0", "", "t0_switch"),
        ("t0_switch", "amount #gt;= 10000", "t1"),
        ("t0_switch", "amount #gt;= 100", "t2"),
        ("t0_switch", "default", "t3"),
        ("t0", "onError", "t3"),
    ]


@pytest.mark.row("A-36")
@pytest.mark.parametrize("always", ["true ", "TRUE", "(true)", "!false"])
def test_only_exactly_true_is_the_default(always: str) -> None:
    graph = imported(tasks=[{"name": "A"}, {"name": "B"}], transitions=[{"from": "A", "to": "B", "when": always, "switch": True}])
    assert shown(arrows_of(graph)[1][1]) == always


@pytest.mark.row("A-36", "A-41")
def test_a_switch_arm_may_lead_to_the_end_or_back() -> None:
    graph = Graph("G").add_transition_switch("A", "A", "again").add_transition_switch("A", END, "true")
    assert arrows_of(graph) == [
        ("t0", "", "t0_switch"), ("t0_switch", "again", "t0"), ("_start", "", "t0"), ("t0_switch", "default", "_end"),
    ]  # fmt: skip


@pytest.mark.row("A-37")
def test_when_edges_go_through_a_diamond_even_a_single_one() -> None:
    graph = Graph("G").add_transition_when("A", "B", "x > 1")
    _, nodes, arrows = parts(graph.to_mermaid())
    assert ("t0_when", "{", "when", "term") in nodes
    assert arrows[:2] == [("t0", "", "t0_when"), ("t0_when", "x #gt; 1", "t1")]


@pytest.mark.row("A-37")
def test_several_when_edges_share_the_diamond_and_plain_edges_pass_by() -> None:
    graph = Graph("G").add_transition_when("A", "B", "x").add_transition("A", "C").add_transition_when("A", "D", "true")
    assert arrows_of(graph)[:4] == [("t0", "", "t0_when"), ("t0_when", "x", "t1"), ("t0", "", "t2"), ("t0_when", "true", "t3")]


def test_a_node_with_both_kinds_of_conditions_has_both_diamonds() -> None:
    graph = Graph("G").add_transition_when("A", "B", "x").add_transition_switch("A", "B", "y")
    _, nodes, arrows = parts(graph.to_mermaid())
    assert [node[0] for node in nodes[:3]] == ["t0", "t0_switch", "t0_when"]
    assert arrows[:4] == [("t0", "", "t0_switch"), ("t0", "", "t0_when"), ("t0_when", "x", "t1"), ("t0_switch", "y", "t1")]


@pytest.mark.row("A-38")
def test_every_edge_into_a_fan_in_ends_at_its_circle() -> None:
    graph = Graph("G").add_transition_fan_out("A", "B", "C").add_transition("B", "J").add_transition("C", "J").set_fan_in("J")
    graph.add_transition_goto("A", "J").add_transition_on_error("B", "J").add_transition_when("C", "J", "x")
    graph.add_transition_goto("J", "J")
    _, nodes, arrows = parts(graph.to_mermaid())
    assert nodes[4:6] == [("t3", "[", "J", "task"), ("t3_reduce", "((", "reduce", "term")]
    assert [arrow for arrow in arrows if arrow[2] == "t3"] == [("t3_reduce", "", "t3")]
    assert [(source, words) for source, words, target in arrows if target == "t3_reduce"] == [
        ("t1", ""), ("t2", ""), ("t0", "goto"), ("t1", "onError"), ("t2_when", "x"), ("t3", "goto"),
    ]  # fmt: skip


@pytest.mark.row("A-39")
def test_marks_are_labels() -> None:
    graph = Graph("G").add_transition_for_each("A", "B", "xs", "x").add_transition_goto("A", "C").add_transition_on_error("A", "D")
    assert arrows_of(graph)[:3] == [("t0", "for each", "t1"), ("t0", "goto", "t2"), ("t0", "onError", "t3")]


def test_edges_with_two_marks_tell_both() -> None:
    edges: list[dict[str, Any]] = [
        {"forEach": "xs", "when": "n > 1"}, {"withGoto": True, "when": "x"}, {"onError": True, "when": "x"},
        {"withGoto": True, "onError": True}, {"forEach": "xs", "switch": True, "when": "x"},
        {"withGoto": True, "switch": True, "when": "x"},
    ]  # fmt: skip
    graph = imported(name="G", tasks=[{"name": "A"}, {"name": "B"}], transitions=[{"from": "A", "to": "B", **edge} for edge in edges])
    assert [arrow for arrow in arrows_of(graph) if arrow[1]] == [
        ("t0", "for each; when n #gt; 1", "t1"), ("t0", "goto; when x", "t1"), ("t0", "onError; when x", "t1"),
        ("t0", "goto; onError", "t1"), ("t0_switch", "for each; switch x", "t1"), ("t0", "goto; switch x", "t1"),
    ]  # fmt: skip


@pytest.mark.row("A-41")
def test_edges_to_the_end_come_last_and_keep_their_labels() -> None:
    graph = Graph("G").add_transition("A", END).add_transition_goto("B", END).add_transition_when("B", END, "x").add_transition("B", "A")
    _, nodes, arrows = parts(graph.to_mermaid())
    assert [node for node in nodes if node[1] == "(("] == [("_start", "((", " ", "term"), ("_end", "((", " ", "term")]
    assert arrows == [
        ("t1", "", "t1_when"), ("t1", "", "t0"),
        ("_start", "", "t0"),
        ("t0", "", "_end"), ("t1", "goto", "_end"), ("t1_when", "x", "_end"),
    ]  # fmt: skip
    assert graph.to_mermaid().count("_end((") == 1


@pytest.mark.row("A-41")
def test_the_start_points_at_the_entry_or_its_circle() -> None:
    graph = Graph("G").add_transition_chain("A", "B", END).set_entry_point("B")
    assert ("_start", "", "t1") in arrows_of(graph)
    graph.set_fan_in("B")
    assert [arrow for arrow in arrows_of(graph) if arrow[0] == "_start"] == [("_start", "", "t1_reduce")]


# ---- labels ----


@pytest.mark.row("A-43")
@pytest.mark.parametrize("char", SPECIAL)
def test_special_characters_become_references(char: str) -> None:
    graph = Graph("G").add_transition_when(f"a{char}b", END, f'x == "{char}"' if char != '"' else "x == 'a\"'")
    _, nodes, arrows = parts(graph.to_mermaid(title=False))
    for text in (nodes[0][2], arrows[-1][1]):
        assert char not in re.sub(r"#(\d+|[a-z]+);", "", text)
        assert char in shown(text)


@pytest.mark.row("A-43")
@pytest.mark.parametrize("text", ["#quot;", "#35;", "#lt;b#gt;", "&lt;", "&#60;", "&amp;lt;", "##", "a#b;c", "#9829;"])
def test_what_looks_like_a_reference_is_shown_as_it_is(text: str) -> None:
    assert shown(label(text)) == text
    assert "&" not in label(text)


@pytest.mark.row("A-43")
@given(st.text(alphabet=st.sampled_from(SPECIAL + "&;ab35 \\$:quotltyse"), max_size=30))
def test_a_label_shows_its_text(text: str) -> None:
    escaped = label(text)
    assert shown(escaped) == (text if text.strip() else " ")
    assert not set("\"'<>`[]{}()|\\") & set(escaped)
    assert re.sub(r"#(\d+|quot|lt|gt|amp);", "", escaped).count("#") == 0


@given(st.text(max_size=30))
def test_a_label_is_one_line_without_controls(text: str) -> None:
    escaped = label(text)
    assert len(escaped.splitlines()) == 1
    assert escaped.encode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", escaped)


def test_newlines_become_blanks_and_cannot_start_a_line_of_their_own() -> None:
    graph = Graph("G").add_transition("one\ntwo", "three\r\nfour\u2028%% five\x85six")
    _, nodes, _ = parts(graph.to_mermaid(title=False))
    assert [node[2] for node in nodes[:2]] == ["one two", "three four %% five six"]


@pytest.mark.parametrize(
    "text", ["שלום עולם", "مرحبا", "👩‍👩‍👧 🇳🇱", "日本語", "naïve_name-1.2/3", "a && b", "1. item", "%% x", "end", "*a*"]
)
def test_other_text_is_unchanged(text: str) -> None:
    assert label(text) == text


def test_empty_labels_hold_a_blank() -> None:
    assert label("") == label("\n") == label("  ") == " "


def test_formulas_styles_and_icons_are_disarmed() -> None:
    assert label("$$x$$ $5") == "#36;#36;x#36;#36; $5"
    assert label("style a:b#(c)") == "style a#58;b#35;#40;c#41;"
    assert label("fa:fa-car") == "fa#58;fa-car"
    assert label("a:b") == "a:b"


# ---- invalid graphs ----


@pytest.mark.row("A-44")
def test_no_graph_is_an_empty_text() -> None:
    assert render(None) == ""
    assert render(None, title=False, direction="TD") == ""


@pytest.mark.row("A-44")
def test_an_empty_graph_is_a_start_circle() -> None:
    assert parts(Graph().to_mermaid())[1:] == ([("_start", "((", " ", "term")], [])


@pytest.mark.row("A-44")
def test_names_that_are_no_tasks_are_boxes_of_their_own_class() -> None:
    graph = imported(
        name="G", entryPoint="Nowhere", tasks=[{"name": "A"}],
        transitions=[
            {"from": "A", "to": "Ghost"}, {"from": "Ghost", "to": "A", "when": "x"}, {"from": "END", "to": "A"}, {"from": "", "to": "END"},
        ],
    )  # fmt: skip
    head, nodes, arrows = parts(graph.to_mermaid())
    assert sum("classDef" in line for line in head) == 3
    assert [node for node in nodes if node[0].startswith("x")] == [
        ("x0", "[", "Ghost", "unknown"), ("x0_when", "{", "when", "term"), ("x1", "[", " ", "unknown"), ("x2", "[", "Nowhere", "unknown"),
    ]  # fmt: skip
    assert arrows == [
        ("x0", "", "x0_when"), ("t0", "", "x0"), ("x0_when", "x", "t0"), ("_start", "", "x2"), ("_end", "", "t0"), ("x1", "", "_end"),
    ]  # fmt: skip


@pytest.mark.row("A-44")
def test_a_graph_that_fails_validation_renders() -> None:
    graph = Graph().add_transition("END", "END").set_entry_point("END").set_fan_in("END").set_fan_in("Nobody")
    assert arrows_of(graph) == [("_start", "", "_end"), ("_end", "", "_end")]


def test_rendering_leaves_the_graph_alone_and_repeats_itself() -> None:
    graph = Graph("G").add_transition_for_each("A", "B", "xs").add_transition("B", "J").set_fan_in("J").add_transition("J", END)
    before = graph.to_json()
    assert graph.to_mermaid() == graph.to_mermaid()
    assert graph.to_json() == before
