"""What conditions answer: truth, equality, order, precedence, and which fields they ask for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dwarf.expression import Expression

BIG = 9007199254740993  # the first integer that a double cannot hold


def holds(text: str, **state: Any) -> bool:
    return Expression(text).evaluate(state)


def check(state: dict[str, Any], answers: dict[str, bool]) -> None:
    assert {text: Expression(text).evaluate(state) for text in answers} == answers


class Recording(dict[str, Any]):
    """A state that notes which fields are asked for."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)
        self.asked: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.append(key)
        return super().get(key, default)


@pytest.mark.row("D-01")
def test_and_binds_tighter_than_or() -> None:
    check(
        {"b": True, "nb": False},
        {"nb || b && missing": False, "(nb || b) && missing": False, "b && nb || b": True, "b || b && nb": True, "(b || b) && nb": False},
    )


@pytest.mark.row("D-02")
def test_not_applies_to_one_value_or_part() -> None:
    check(
        {"b": True, "nb": False},
        {
            "!b || b": True,
            "!(nb)&&b": True,
            "!!b": True,
            "! ! b": True,
            "!b": False,
            "!nb && !nb": True,
            "!(b && nb)": True,
            "!!!b": False,
            "!(!(!nb))": True,
        },
    )


@pytest.mark.row("D-04")
def test_not_of_a_comparison() -> None:
    check({"s": "bar"}, {"!(s=='bar')": False, "!(s=~'x')": True, "!(s!='bar')": True, "!(m < 5)": True, "!(s!~'b')": True})


@pytest.mark.row("D-14", "D-15")
def test_three_quotes_and_no_escapes() -> None:
    check({"s": "bar"}, {"s=='bar'": True, 's=="bar"': True, "s==`bar`": True, "s==' bar'": False, "s=='bar '": False})
    check({"q": "it's"}, {'q=="it\'s"': True, "q==`it's`": True})
    check({"q": "a\\nb"}, {"q=='a\\nb'": True, "q=='a\nb'": False})
    check({"q": "\\"}, {"q=='\\'": True, 'q=="\\"': True})


@pytest.mark.row("D-18")
def test_operators_inside_quotes_are_text() -> None:
    check(
        {"ops": "a==b", "o": "x||y", "p": "x&&(y"}, {"ops=='a==b'": True, "o=='x||y'": True, "p=='x&&(y'": True, "o!='x||y' || !ops": False}
    )


@pytest.mark.row("D-19")
def test_the_forms_of_numbers() -> None:
    texts = ["n==5", "n==5.0", "n==05", "n==5e0", "4<n", "1e3==1000", ".5==0.5", "5.==5", "+5==5", "-0==0"]
    texts += [
        "n==+5",
        "n==50e-1",
        "n==.5e1",
        "n==0.5E+1",
        "n!=-5",
        "n>-5",
        "n>=+5.",
        "-5<n",
        "-5.5<-5",
        "-1e3==-1000",
        "0.0==-0.0",
        "n<5.0000001",
    ]
    check({"n": 5}, dict.fromkeys(texts, True))
    check({"n": 5.0}, dict.fromkeys(texts, True))
    check({"x": 0.1}, {"x==0.1": True, "x==.1": True, "x==1e-1": True, "x==0.10000000000000001": True, "x<0.1": False, "x<=0.1": True})


@pytest.mark.row("D-21", "D-22")
def test_constants_ignore_case() -> None:
    check({}, {"true": True, "TRUE": True, "tRuE": True, "True": True, "false": False, "FALSE": False, "fAlSe": False, "!false": True})
    check(
        {"b": True},
        {"b==true": True, "b==True": True, "b==TRUE": True, "b!=true": False, "b==false": False, "true==b": True, "TRUE==true": True},
    )
    check({"b": False}, {"b==true": False, "b==false": True, "b==False": True, "b!=FALSE": False})


@pytest.mark.row("D-24")
@pytest.mark.parametrize("word", ["inf", "Infinity", "NaN", "nan", "t", "T", "f", "F", "null", "nil", "None", "1_000", "0x10", "yes"])
def test_other_words_are_names(word: str) -> None:
    assert not holds(word)
    assert holds(f"{word} == missing")
    assert holds(f"{word} == 'here'", **{word: "here"})
    assert not holds(f"{word} == 1000 || {word} == 16 || {word} == true || {word} == false")


@pytest.mark.row("D-25")
def test_literals_win_over_fields_of_that_name() -> None:
    check(
        {"5": "five", "true": "no", "b": True, "TRUE": 0, "1e3": 7, "false": 1, "2": {"5": 9}},
        {
            "5==5": True,
            "b==true": True,
            "true": True,
            "TRUE": True,
            "1e3==1000": True,
            "false": False,
            "5=='five'": False,
            "2.5==2.5": True,
            "2.5==9": False,
        },
    )
    assert Expression("5==5 && true == b").fields == {"b"}
    assert holds("true.x && 5.x", **{"true": {"x": 1}, "5": {"x": 1}})


def test_names_are_case_sensitive() -> None:
    check({"Abc": 1}, {"Abc": True, "abc": False, "ABC == abc": True})


@pytest.mark.row("D-31")
def test_types_are_not_converted() -> None:
    check(
        {"n": 5, "str5": "5"},
        {
            "n==str5": False,
            "n=='5'": False,
            "n!='5'": True,
            "n<'9'": False,
            "n>='5'": False,
            "str5==5": False,
            "str5!=5": True,
            "str5<9": False,
        },
    )
    check(
        {"n": 5, "str5": "5"},
        {
            "str5>=5": False,
            "n<=str5": False,
            "n>=str5": False,
            "str5>=n": False,
            "'5'==5": False,
            "'5'!=5": True,
            "'5'<=5": False,
            "5>='5'": False,
        },
    )


@pytest.mark.row("D-32")
def test_booleans_are_not_numbers() -> None:
    check(
        {"b": True, "one": 1, "nb": False, "zero": 0},
        dict.fromkeys(["b==1", "b=='true'", "1==true", "0==false", "b==one", "one==b", "one==true", "nb==zero", "b==1.0"], False),
    )
    check(
        {"b": True, "one": 1, "zero": 0.0},
        dict.fromkeys(["b!=1", "1!=b", "b!=one", "one!=true", "zero!=false", "false!=zero", "1!=true"], True),
    )
    check({"b": True, "nb": False}, dict.fromkeys(["b>=1", "b<=1", "b<2", "nb<1", "1<=b", "b>nb", "true>0"], False))


@pytest.mark.row("D-33", "D-34", "C-05")
def test_absent_and_null_are_one_value() -> None:
    for literal in ("1", "0", "false", "''", "true", "'null'", "0.0"):
        check(
            {"nul": None},
            {
                f"m=={literal}": False,
                f"{literal}==m": False,
                f"m!={literal}": True,
                f"nul=={literal}": False,
                f"nul!={literal}": True,
                f"{literal}!=nul": True,
            },
        )
        check({}, {f"m{op}{literal}": False for op in ("<", "<=", ">", ">=", "=~", "!~")})
    check(
        {"nul": None, "x": 0, "y": "", "z": []},
        {"m==nul": True, "m==m": True, "nul==missing2": True, "m!=nul": False, "m!=m": False, "m==x": False, "m!=y": True, "z==m": False},
    )
    check(
        {"o": {"k": None}, "nul": None}, {"o.k==m": True, "o.j==m": True, "o.k==nul": True, "m.a.b==nul": True, "o.k": False, "o==m": False}
    )


@pytest.mark.row("D-37")
def test_lists_and_objects_equal_nothing() -> None:
    for value in ([], [1], [[1]], {}, {"a": 1}):
        state = {"v": value, "w": value, "s": "x", "n": 1}
        check(
            state,
            dict.fromkeys(
                ["v==v", "v==w", "v<=v", "v>=v", "v<v", "v==s", "n==v", "v==m", "v==1", "v==''", "v==true", "v=~''", "v!~''"], False
            ),
        )
        check(state, dict.fromkeys(["v!=v", "v!=w", "v!=s", "n!=v", "v!=m", "v!=1", "v!=''", "false!=v"], True))


@pytest.mark.row("D-38")
def test_text_is_ordered_by_code_point() -> None:
    check(
        {"s": "bar"},
        {
            "s<'b'": False,
            "s>'a'": True,
            "s=='BAR'": False,
            "'B'<'a'": True,
            "'10'<'9'": True,
            "s<='bar'": True,
            "s>='bar'": True,
            "s<'bar'": False,
        },
    )
    check(
        {"s": "\uffff", "t": "\U00010000", "e": "é"},
        {"s<t": True, "t>'\uffff'": True, "e>'z'": True, "e=='e\u0301'": False, "''<'a'": True, "'a'<'aa'": True, "'\0'>''": True},
    )


@pytest.mark.row("D-39")
@pytest.mark.parametrize(
    ("value", "truth"),
    [
        ("x", True),
        ("", False),
        (5, True),
        (0, False),
        (True, True),
        (False, False),
        (None, False),
        (" ", True),
        ("0", True),
        ("false", True),
        (-1, True),
        (0.0, False),
        (-0.0, False),
        (0.1, True),
    ],
)
def test_a_value_alone(value: Any, truth: bool) -> None:
    check(
        {"v": value, "o": {"v": value}},
        {"v": truth, "!v": not truth, "o.v": truth, "(v)": truth, "v && true": truth, "v || false": truth, "!!v": truth},
    )
    assert holds("v") is False


@pytest.mark.parametrize(("value", "truth"), [([0], True), ([None], True), ({"a": None}, True), ([], False), ({}, False)])
def test_a_list_or_object_alone_is_true_unless_it_is_empty(value: Any, truth: bool) -> None:
    check({"v": value}, {"v": truth, "!v": not truth})


@pytest.mark.row("D-41")
def test_literals_and_parts_alone() -> None:
    check(
        {"n": 5, "z": 0},
        {
            "(n)": True,
            "!(z)": True,
            "!n": False,
            "!''": True,
            "'x'": True,
            "''": False,
            "1": True,
            "0": False,
            "0.0": False,
            "-0": False,
            "'0'": True,
            "!'x'": False,
        },
    )


@pytest.mark.row("D-43")
def test_integers_are_exact() -> None:
    check(
        {"big": BIG},
        {
            f"big=={BIG}": True,
            f"big=={BIG - 1}": False,
            f"big>{BIG - 1}": True,
            f"big<{BIG + 1}": True,
            f"big!={BIG - 1}": True,
            f"big<={BIG - 1}": False,
        },
    )
    check(
        {"a": 10**30, "b": 10**30 + 1, "f": 1e30},
        {"a==b": False, "a<b": True, "b>a": True, "f==a": False, "f>a": True, f"a=={10**30}": True, "f==1e30": True, "a!=1e30": True},
    )
    check({"f": 9007199254740992.0}, {f"f=={BIG}": False, f"f<{BIG}": True, f"{BIG}>f": True, f"f=={BIG - 1}": True})
    check({"n": 10**400}, {"n > 1e308": True, "n == 1e308": False, f"n == {10**400}": True})


def test_only_numbers_with_numbers_and_text_with_text_are_ordered() -> None:
    values = {"t": True, "f": False, "nul": None, "n": 1, "x": 1.5, "s": "a", "lst": [1], "obj": {"a": 1}}
    ordered = [{"n", "x"}, {"n"}, {"x"}, {"s"}]
    for left, right in itertools.product([*values, "m"], repeat=2):
        answers = [holds(f"{left} {op} {right}", **values) for op in ("<", ">")]
        assert any(answers) == ({left, right} in ordered and left != right), (left, right)
        equal = holds(f"{left} == {right}", **values)
        assert {left, right} in ordered or all(holds(f"{left} {op} {right}", **values) == equal for op in ("<=", ">=")), (left, right)
    check(values, dict.fromkeys(["f<t", "false<true", "t>false", "f<=t", "lst<=lst", "obj>=obj", "n<=s"], False))
    check(values, dict.fromkeys(["t<=true", "t>=t", "true<=true", "nul<=nul", "m>=nul", "false>=f"], True))


def test_equality_and_its_opposite_never_agree() -> None:
    texts = ["1", "1.0", "'1'", "''", "true", "false", "0", "a", "b", "c", "d", "m"]
    state = {"a": 1, "b": [1], "c": None, "d": "1"}
    for left, right in itertools.product(texts, repeat=2):
        assert holds(f"{left} == {right}", **state) != holds(f"{left} != {right}", **state)
        assert holds(f"{left} == {right}", **state) == holds(f"{right} == {left}", **state)


def test_order_is_the_same_from_both_sides() -> None:
    state = {"a": 5, "b": 7.5, "s": "k", "t": True}
    for left, right in itertools.product(["a", "b", "s", "t", "5", "6", "'k'", "'z'", "true", "m"], repeat=2):
        for op, flipped in (("<", ">"), ("<=", ">=")):
            assert holds(f"{left} {op} {right}", **state) == holds(f"{right} {flipped} {left}", **state), (left, op, right)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("a && b", ["a", "b"]),
        ("n && b", ["n"]),
        ("a || b", ["a"]),
        ("n || b || a", ["n", "b"]),
        ("!(n && b) || a", ["n"]),
        ("(n && a || b) && !a", ["n", "b", "a"]),
        ("true || a", []),
        ("false && a", []),
        ("1 == 2 || a", ["a"]),
        ("a == b", ["a", "b"]),
        ("a.x == a.y", ["a"]),
        ("a > 0 && a < 9 && a != 5", ["a"]),
        ("a == a", ["a"]),
        ("n =~ b", ["n"]),
        ("5 =~ a", []),
        ("a =~ 5", []),
        ("m.x.y", ["m"]),
        ("n.x.y || n", ["n"]),
    ],
)
def test_fields_are_asked_for_when_reached_and_once(text: str, asked: list[str]) -> None:
    state = Recording(a=1, b="x", n=0)
    Expression(text).evaluate(state)
    assert state.asked == asked
    assert set(asked) <= Expression(text).fields


def test_the_answer_is_a_bool_and_the_state_is_left_alone() -> None:
    state = {"s": "x", "n": 5, "lst": ["a"], "o": {"k": {"j": 1}}}
    before = repr(state)
    for text in ("s", "n", "s && n", "lst.a", "o.k.j", "o", "lst", "m", "s == 'x'", "!s", "s =~ 'x'", "o.k.x.y", "5", "''"):
        assert type(Expression(text).evaluate(state)) is bool
    assert repr(state) == before


def test_one_expression_serves_many_states() -> None:
    expression = Expression("a.b == 1 || tags.x && s =~ p")
    for _ in range(3):
        assert expression.evaluate({"a": {"b": 1}})
        assert not expression.evaluate({"a": {"b": 2}})
        assert expression.evaluate({"tags": ["x"], "s": "abc", "p": "b"})
        assert not expression.evaluate({"tags": ["x"], "s": "abc", "p": "^b"})
        assert not expression.evaluate({})
