"""Where dotted names lead: into objects, lists, and keys with dots of their own."""

from __future__ import annotations

from typing import Any

import pytest

from dwarf.expression import Expression


def holds(text: str, **state: Any) -> bool:
    return Expression(text).evaluate(state)


def test_names_go_into_objects() -> None:
    state = {"a": {"b": {"c": "deep", "5": 7, "_": 1}, "x": 0}}
    for text in (
        "a.b.c == 'deep'",
        "a.b.5 == 7",
        "a.b._",
        "!a.x",
        "a.x == 0",
        "a.b",
        "a.b.c =~ '^d'",
        "a.b.c.d == m",
        "a.x.y == m",
        "!a.y",
        "a.b.C == m",
        "z.b.c == m",
    ):
        assert holds(text, **state), text


@pytest.mark.row("D-30")
def test_an_element_of_a_list_is_found_by_its_text() -> None:
    ids = [1234567, 2.5]
    assert holds("ids.2.5", ids=ids)
    assert holds("ids.1234567", ids=ids)
    for text in ("ids.2", "ids.5", "ids.123", "ids.1234568", "ids.2.50", "ids.02.5", "ids.01234567", "ids.1234567.0", "ids.0", "ids.1"):
        assert not holds(text, ids=ids), text


@pytest.mark.parametrize(
    ("element", "rest", "found"),
    [
        ("admin", "admin", True),
        ("admin", "Admin", False),
        ("admin", "adm", False),
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("5", "5", True),
        ("05", "05", True),
        ("true", "true", True),
        ("", "x", False),
        (5, "5", True),
        (5, "05", False),
        (5, "5.0", False),
        (0, "0", True),
        (0, "00", False),
        (-5, "5", False),
        (5.0, "5", True),
        (5.0, "5.0", True),
        (5.0, "5.00", False),
        (1e6, "1000000", True),
        (1e6, "1000000.0", True),
        (1e6, "1e6", False),
        (1e22, "10000000000000000000000", True),
        (1e22, "1e22", False),
        (-0.0, "0", True),
        (0.1, "0.1", True),
        (0.1, "0.10", False),
        (0.5, "0.5", True),
        (2.5, "2.5", True),
        (2.5, "2.5.0", False),
        (10**30, str(10**30), True),
        (10**30, str(10**30 + 1), False),
        (1e30, str(10**30), False),
        (9007199254740993, "9007199254740993", True),
        (9007199254740993, "9007199254740992", False),
        (True, "true", True),
        (True, "True", False),
        (True, "1", False),
        (True, "1.0", False),
        (False, "false", True),
        (False, "0", False),
        (1, "true", False),
        (None, "null", False),
        (None, "None", False),
        (["x"], "x", False),
        ({"x": 1}, "x", False),
        (1e400, "inf", False),
    ],
)
def test_the_text_of_an_element(element: Any, rest: str, found: bool) -> None:
    for elements in ([element], ["other", 77, None, element], [[], {}, element]):
        assert holds(f"v.{rest}", v=elements) is found
        assert holds(f"o.v.{rest} == true", o={"v": elements}) is found
        assert holds(f"o.v.{rest} == m", o={"v": elements}) is not found


def test_an_element_found_is_the_constant_true() -> None:
    state = {"roles": ["admin", 100, ""]}
    for text in (
        "roles.admin",
        "roles.100",
        "roles.admin == true",
        "roles.admin == roles.100",
        "!roles.user",
        "roles.user == m",
        "roles.admin != 1",
        "roles.user != false",
    ):
        assert holds(text, **state), text
    for text in (
        "roles.admin == 'admin'",
        "roles.100 == 100",
        "roles.user == false",
        "roles.admin =~ 'admin'",
        "roles.admin > 0",
        "roles.0",
        "roles.length",
    ):
        assert not holds(text, **state), text


def test_lists_within_lists_are_not_entered() -> None:
    assert not holds("v.0.x", v=[{"x": 1}])
    assert not holds("v.x", v=[["x"]])
    assert holds("v.0.x", v=["0.x"])
    assert not holds("v.x", v=[])


def test_names_lead_nowhere_from_scalars() -> None:
    for value in ("text", 5, 2.5, True, False, None):
        assert not holds("v.x", v=value)
        assert not holds("v.5", v=value)
        assert holds("v.x == v.y.z", v=value)


def test_a_key_that_holds_dots() -> None:
    assert holds("a.b.c == 1", a={"b.c": 1})
    assert holds("a.b.c.d == 1", a={"b": {"c.d": 1}})
    assert holds("a.b.c.d == 1", a={"b.c.d": 1})
    assert not holds("a.b.c.d", a={"b.c": {"d": 1}})
    assert not holds("a.b", **{"a.b": 1})


def test_steps_one_by_one_win_over_a_key_with_dots_and_inner_over_outer() -> None:
    assert holds("a.b.c == 1", a={"b.c": 2, "b": {"c": 1}})
    assert holds("a.b.c == 0", a={"b.c": 2, "b": {"c": 0}})
    assert holds("a.b.c == false", a={"b.c": 2, "b": {"c": False}})
    assert holds("a.b.c == 2", a={"b.c": 2, "b": {"x": 1}})
    assert holds("a.b.c == 2", a={"b.c": 2, "b": {"c": None}})
    assert holds("a.b.c == 2", a={"b.c": 2, "b": 5})
    assert holds("a.b.c == 2", a={"b.c": 2, "b": ["x"]})
    assert holds("a.b.c == true", a={"b.c": 2, "b": ["c"]})
    assert holds("a.b.c.d == 1", a={"b.c.d": 2, "b": {"c.d": 1, "c": {"x": 0}}})
    assert holds("a.b.c.d == 2", a={"b.c.d": 2, "b": {"c.d": None, "c": {"x": 0}}})


def test_a_name_as_long_as_a_condition_may_be() -> None:
    depth = 8000
    name = ".".join(["k"] * depth)
    innermost: Any = 1
    for _ in range(depth - 1):
        innermost = {"k": innermost}
    state = {"k": innermost}
    assert Expression(name).evaluate(state)
    assert not Expression(name + ".k").evaluate(state)
    assert not Expression(name).evaluate({"k": 1})
    while isinstance(innermost, dict):  # taken apart from outside, as deep structures are slow to free
        innermost = innermost.pop("k")


def test_long_digits_after_a_list() -> None:
    assert not Expression("v." + "9" * 10_000).evaluate({"v": [1, 2.5, "x"]})
    assert Expression("v." + "9" * 10_000).evaluate({"v": ["9" * 10_000]})
    assert not Expression("v." + "9" * 5_000 + "." + "9" * 5_000).evaluate({"v": [1, 2.5, 1e308]})
    assert not Expression("v." + "9" * 400 + ".0").evaluate({"v": [1e308]})
