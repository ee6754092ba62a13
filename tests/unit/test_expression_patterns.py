"""`=~` and `!~`: searching by RE2, patterns from fields, and patterns that are no patterns."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from dwarf.errors import ExpressionError
from dwarf.expression import Expression, patterns


def holds(text: str, **state: Any) -> bool:
    return Expression(text).evaluate(state)


def fail(text: str, **state: Any) -> ExpressionError:
    expression = Expression(text)
    with pytest.raises(ExpressionError) as caught:
        expression.evaluate(state)
    assert caught.value.rule == "expression-pattern"
    assert caught.value.text == text
    return caught.value


@pytest.mark.row("D-45")
def test_a_pattern_is_searched_for_anywhere() -> None:
    answers = {
        "s=~'a'": True,
        "s=~'^b'": True,
        "s=~'(?i)B'": True,
        "s=~'B'": False,
        "s!~'x'": True,
        "s!~'a'": False,
        "s=~''": True,
        "s=~'^a'": False,
        "s=~'^bar$'": True,
    }
    answers |= {
        "s=~'b.r'": True,
        "s=~'....'": False,
        "s!~'....'": True,
        "s=~'(bar|not)'": True,
        "s =~ `r$`": True,
        's=~"a"': True,
        "'bar'=~'a'": True,
        "'bar'!~'a'": False,
    }
    assert {text: holds(text, s="bar") for text in answers} == answers


@pytest.mark.row("D-46")
def test_both_sides_must_be_text() -> None:
    for value in (5, 0, 2.5, True, None, ["5"], {"5": 1}):
        state = {"v": value, "s": "5"}
        for text in (
            "v=~'5'",
            "v!~'x'",
            "v=~''",
            "s=~v",
            "s!~v",
            "m=~'x'",
            "m!~'x'",
            "s=~m",
            "s!~m",
            "v=~v",
            "s=~5",
            "s!~5",
            "5=~s",
            "true!~'x'",
            "s=~true",
            "v=~'['",
            "v!~'['",
        ):
            assert not holds(text, **state), (text, value)


@pytest.mark.row("D-48")
def test_the_pattern_may_come_from_a_field() -> None:
    assert holds("s=~p", s="bar", p="^b")
    assert not holds("s!~p", s="bar", p="^b")
    assert holds("s=~o.p", s="bar", o={"p": "r$"})
    assert holds("'bar'=~p", p="^b")
    assert holds("s=~s", s="bar")
    expression = Expression("s =~ p")
    for index in range(3 * patterns.FIELD_PATTERNS_KEPT):
        assert expression.evaluate({"s": f"n{index}", "p": f"^n{index}$"})
        assert not expression.evaluate({"s": "n", "p": f"^n{index}$"})
    assert patterns.field_pattern.cache_info().currsize <= patterns.FIELD_PATTERNS_KEPT


@pytest.mark.row("D-50")
def test_bars_and_parentheses_in_quotes_belong_to_the_pattern() -> None:
    assert holds("s=~'a|z'", s="b)ar")
    assert holds("s=~'b\\)a'", s="b)ar")
    assert holds("s=~'(b|c).(a|d)'", s="b)ar")
    assert holds("s=~'x||y'", s="anything")


@pytest.mark.row("D-51")
def test_a_pattern_that_is_not_reached_does_no_harm() -> None:
    assert not holds("nb && s=~'['", nb=False, b=True, s="x")
    assert holds("b || s=~'['", nb=False, b=True, s="x")
    assert not holds("nb && 'x'=~'['", nb=False)
    assert holds("true || 'x'=~'['")
    assert not holds("m =~ '['")


@pytest.mark.row("C-36")
def test_an_invalid_pattern_raises_when_it_is_reached() -> None:
    error = fail("b && s =~ '['", b=True, s="x")
    assert "'['" in str(error)
    assert "missing ]" in str(error)
    assert error.offset == 10
    assert str(error).split("\n")[2] == " " * 14 + "^"
    for text in ("s!~'['", "'x' =~ '['", "!(s =~ '*a')", "s =~ '(?=a)'", "s =~ '(a)\\1'", "s =~ 'a{1001}'", "s =~ '(?P<n'"):
        fail(text, s="x")
    expression = Expression("s =~ '['")
    for _ in range(2):
        with pytest.raises(ExpressionError):
            expression.evaluate({"s": "x"})
    assert not expression.evaluate({"s": 5})


def test_an_invalid_pattern_from_a_field_raises_and_names_the_field() -> None:
    error = fail("s =~ o.p", s="x", o={"p": "("})
    assert "'o.p'" in str(error)
    assert "'('" in str(error)
    assert error.offset == 5
    fail("s !~ p", s="x", p="[")
    assert not holds("s =~ p", s=5, p="[")


@pytest.mark.row("B-17")
def test_literal_patterns_can_be_judged_before_any_run() -> None:
    expression = Expression("a =~ '^x' || b !~ \"y[\" && 'c' =~ d || e =~ 5 || !(f =~ '(')")
    assert expression.patterns == (("^x", 5), ("y[", 18), ("(", 55))
    message = expression.bad_pattern()
    assert message is not None
    assert "'y['" in message
    assert "missing ]" in message
    assert message.split("\n")[2] == " " * 22 + "^"
    assert Expression("a =~ '^x' && b =~ p && c == '['").bad_pattern() is None
    assert Expression("a == 1").patterns == ()
    assert Expression("a == 1").bad_pattern() is None


def test_patterns_and_text_are_of_code_points() -> None:
    for pattern in ("^é.b$", "😀", "^.😀.$", "\\x{1F600}", "[😀-😂]", "^\\pL", "(?i)É"):
        text = "é😀b"
        assert holds("s =~ p", s=text, p=pattern), pattern
        assert holds(f"s =~ '{pattern}'", s=text), pattern
    assert not holds("s =~ '^..$'", s="é😀b")
    assert holds("s =~ '^...$'", s="é😀b")
    assert holds("s =~ 'a\0b'", s="xa\0b")
    assert holds("s =~ 'a.b'", s="a\0b")
    assert not holds("s =~ 'a.b'", s="a\nb")
    assert holds("s =~ '(?s)a.b'", s="a\nb")
    assert not holds("s =~ '^b'", s="a\nb")
    assert holds("s =~ '(?m)^b'", s="a\nb")


def test_half_surrogates_do_not_escape_as_other_errors() -> None:
    assert not holds("s =~ 'x'", s="\ud800")
    assert holds("s =~ 'x'", s="\ud800x")
    assert not holds("s =~ p", s="x", p="\ud800")


def test_time_is_linear_in_the_text() -> None:
    assert not holds("s =~ '^(a+)+$'", s="a" * 100_000 + "b")
    assert not holds("s =~ '(.*)(.*)(.*)(.*)x'", s="a" * 100_000)
    fail("s =~ p", s="x", p="(" * 100_000)
    assert holds("s =~ p", s="x", p="(" * 5_000 + "x" + ")" * 5_000)


def test_messages_stay_short_and_on_their_lines() -> None:
    for pattern in ("[" * 16_000, "(?P<\n\x1b>", "[\n" * 100):
        error = fail("s =~ p", s="x", p=pattern)
        assert len(str(error)) < 400
        assert str(error).count("\n") == 2
        assert str(error).replace("\n", "").isprintable()


def test_a_literal_pattern_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = patterns.compile_pattern

    def counting(pattern: str) -> patterns.Search:
        compiled.append(pattern)
        return real(pattern)

    monkeypatch.setattr("dwarf.expression.compile.compile_pattern", counting)
    expression = Expression("a =~ 'x' || b =~ 'y'")
    assert compiled == []
    for _ in range(3):
        assert expression.evaluate({"a": "x", "b": "y"})
    assert compiled == ["x"]
    assert not expression.evaluate({"a": "1", "b": "2"})
    assert compiled == ["x", "y"]


def test_re2_is_loaded_by_the_first_pattern_and_keeps_quiet() -> None:
    script = """
import sys
from dwarf.expression import Expression
assert Expression("a == 1 || b =~ 'x'").evaluate({"a": 1})
assert "re2" not in sys.modules, "too early"
assert Expression("b =~ 'x'").bad_pattern() is None
assert "re2" in sys.modules
assert Expression("b =~ '['").bad_pattern()
try:
    Expression("b =~ p").evaluate({"b": "x", "p": "\\\\pN{1000}" * 100})
except ValueError:
    pass
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "ExpressionError\n"
    assert done.stderr == ""
