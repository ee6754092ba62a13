"""Which texts are conditions, and what is said of those that are not."""

from __future__ import annotations

import copy
import pickle
import sys
from typing import Any

import pytest

from dwarf.errors import DwarfError, ExpressionError, GraphError
from dwarf.expression import Expression
from dwarf.limits import EXPRESSION_CHARS_MAX


def refuse(text: Any) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        Expression(text)
    return caught.value


def refuse_all(*texts: str) -> None:
    for text in texts:
        error = refuse(text)
        assert error.text == text
        assert error.rule == "expression-syntax"
        assert 0 <= error.offset <= len(text)


def holds(text: str, **state: Any) -> bool:
    return Expression(text).evaluate(state)


@pytest.mark.row("B-15")
def test_a_when_condition_is_judged_as_a_whole() -> None:
    assert holds("score > 5 && !guest", score=6)
    refuse_all("(((", " ", " \t\n\r ")


@pytest.mark.row("D-05")
def test_comparisons_do_not_chain() -> None:
    refuse_all("n==5==5", "1<2<3", "a =~ 'x' =~ 'y'", "a == b != c", "a < b && b < c < d")


@pytest.mark.row("D-06")
def test_misspelt_and_half_comparisons() -> None:
    refuse_all(
        "n=>5", "n=<5", "n=5", "n= =5", "n==", "==5", "n<", "n===5", "n==~5", "n! =5", "n ! ~ 'x'", "n = ~ 'x'", "n< =5", "n<>5", "n=!5"
    )


@pytest.mark.row("D-07")
def test_nothing_where_a_value_must_be() -> None:
    refuse_all("", " ", "\n\t", "()", "!", "!!", "! !", "!()", "(!)", "( )", "&&", "||", "a &&", "|| a", "a && || b", "a && ()", "(a &&)")


@pytest.mark.row("D-08")
def test_parentheses_that_do_not_match() -> None:
    refuse_all("(b", "b)", ")(", "(b))(", "b || (((", ")", "(", "((b)", "(b))", "a)(b", "))((", "a && )(", "(a || b", "!(a", "b ||)")


@pytest.mark.row("D-09")
def test_values_need_an_operator_between_them() -> None:
    refuse_all("b s", "(b)(b)", "(b) b", "1 2", "b & s", "b | s", "b and s", "b OR s")
    refuse_all(
        "b (s)", "'a' 'b'", "'a''b'", "b'a'", "true false", "b !s", "not b", "b &&& s", "b ||| s", "b & & s", "5'a'", "a == b c", "(a) == b"
    )


@pytest.mark.row("D-10")
def test_no_arithmetic_calls_indexing_or_comments() -> None:
    refuse_all("n+1==6", "n-1==4", "n%2==0", "-n", "n!n", "f()", "obj['a']", "n == 5 // c")
    refuse_all(
        "n*2",
        "n/2",
        "n^2",
        "n + 1",
        "5-3",
        "5 - 3",
        "+n",
        "--5",
        "- 5",
        "f(n)",
        "a[0]",
        "[1]",
        "{}",
        "a ? b : c",
        "a, b",
        "a; b",
        "#",
        "$a",
        "@a",
        "~a",
    )
    refuse_all("n == 5 # c", "/* c */ n", "n -- c", "n == --1", "n == - 1", "n == -x", "a->b", "a:b", "\\n")


@pytest.mark.row("D-11")
def test_blanks_around_tokens_do_not_count() -> None:
    assert holds(" \t\r\n n \n==\t 5\r\n && ( ! z )\t", n=5)
    assert Expression("a==5&&(b||!c)") == Expression("\ta  ==\n5 \r&&\t( b ||\n! c )\n")
    assert holds("a&&!b||c==-1", a=1)
    refuse_all("a & & b", "a . b", "a. b", "a .b", "1 .5", "1e 5", "1e- 5")


@pytest.mark.parametrize(
    "char", ["\v", "\f", "\x00", "\x1f", "\x7f", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029", "\u200b", "\u3000", "\ufeff"]
)
def test_other_blanks_and_control_characters_are_errors(char: str) -> None:
    refuse_all(f"a{char}", f"{char}a", f"a {char}== b", f"a =={char}b", char)
    assert holds(f"s == '{char}'", s=char)


@pytest.mark.row("D-13")
@pytest.mark.parametrize("start", ["x && ", "true || ", "false && ", "x == 1 && (", "!(true || "])
def test_the_side_that_never_runs_is_judged_too(start: str) -> None:
    refuse_all(start + "a+b", start + "a b", start + "'", start + "")


@pytest.mark.row("D-15", "D-16")
def test_quotes_that_do_not_close() -> None:
    refuse_all("'abc", "abc'", "'", '"', "`", "'a'=='a", "'a\"", "\"a'", "`a'", "'it\\'s'", "q=='it\\'s'", "''' == s", "s == '")
    assert "has no closing '" in str(refuse("s == 'abc"))


def test_quoted_text_is_opaque_to_the_grammar() -> None:
    for quote in "'\"`":
        for content in ("", " ", ")(", "a && b", "||", "!", "\n\t\r", "== 5", "\\", "\\n", "é😀", "\0", "//", *({*"'\"`"} - {quote})):
            assert holds(f"s=={quote}{content}{quote}", s=content)


@pytest.mark.row("D-27", "D-28")
def test_what_a_name_is() -> None:
    for name in (
        "_x",
        "x1",
        "5a",
        "_",
        "__",
        "A",
        "a_b",
        "1_000",
        "0x10",
        "1e",
        "e5",
        "x" * 5000,
        "t",
        "inf",
        "NaN",
        "null",
        "and",
        "or",
        "not",
        "END",
    ):
        assert holds(name, **{name: 1}), name
        assert holds(f"{name} == 7", **{name: 7}), name
        assert not holds(name)
    refuse_all(
        "dash-name",
        "a.",
        ".a",
        "a..b",
        "é",
        "ünï",
        "aé",
        "éa",
        "a.é",
        "a.b.",
        "..",
        ".",
        "a...b",
        "²",
        "٣",
        "a²",
        "5..",
        "5..5",
        "x.5.",
        "名",
        "a b",
        "𝕒",
    )
    assert "cannot be part of a name" in str(refuse("aé"))


def test_a_word_that_is_a_number_is_one_and_else_a_name() -> None:
    for text in ("5", "05", "+5", "-5", "5.", ".5", "5.0", "1e5", "1E5", "1e+5", "1e-5", "1.e5", ".5e1", "-.5", "00", "0.0", "1e-999"):
        assert Expression(f"{text} == {text}").fields == frozenset(), text
        assert holds(f"{text} == {text}"), text
    for text, field in (
        ("2.5.a", "2"),
        ("1e5x", "1e5x"),
        ("5e", "5e"),
        ("1.5e", "1"),
        ("1e5.x", "1e5"),
        ("5._", "5"),
        ("5e0_", "5e0_"),
        ("1.2.3", "1"),
        ("x.5", "x"),
    ):
        assert Expression(text).fields == {field}, text
    refuse_all("-5a", "+5a", "-.5a", "1e+5a", "1e+", "1e-", "-", "+", "-.", "+.", "1e--5", "5.5.", "-5.5.5", "5e5.")


def test_numbers_that_are_too_large() -> None:
    for text in ("1e999", "-1e309", "9" * 400 + ".0", "1" * 400 + "e0"):
        assert "too large" in str(refuse(f"n < {text}"))
    assert holds("n < 1.7976931348623157e308", n=1)
    assert holds("n == 1e-400", n=0)


def test_integers_have_a_greatest_length() -> None:
    longest = "9" * 4300
    assert holds(f"n == {longest}", n=10**4300 - 1)
    assert holds(f"n == -{longest}", n=1 - 10**4300)
    assert holds(f"n == {'0' * 10_000}5", n=5)
    error = refuse(f"n == {longest}9")
    assert error.offset == 5
    assert "4301 digits" in str(error)
    assert "4300" in str(error)
    refuse("9" * EXPRESSION_CHARS_MAX)


def test_an_integer_that_this_process_may_not_convert() -> None:
    limit = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(640)
        assert "digits" in str(refuse("n == " + "9" * 641))
    finally:
        sys.set_int_max_str_digits(limit)


def test_what_the_grammar_lets_stand_where() -> None:
    legal = [
        "a",
        "(a)",
        "((a))",
        "!a",
        "!!a",
        "!(a)",
        "!(!a)",
        "(!a)",
        "a==b",
        "(a==b)",
        "!(a==b)",
        "((a==b))",
        "a&&b",
        "a||b",
        "a&&(b||c)",
        "5",
        "''",
        "!5",
        "!-5",
        "!''",
    ]
    legal += [
        "true",
        "!true",
        "a==true",
        "true==a",
        "1==2",
        "'a'=='b'",
        "a.b==c.d",
        "!a.b",
        "a=~b",
        "a!~b",
        "'x'=~'y'",
        "n=~5",
        "5=~n",
        "true!~false",
        "a && !b || !(c)",
    ]
    for text in legal:
        Expression(text)
    refuse_all(
        "!n==5",
        "!!n==5",
        "! n =~ 'x'",
        "(n)==5",
        "n==(5)",
        "(n)==(5)",
        "n==!b",
        "!(n)==5",
        "n==!!b",
        "(a==b)==c",
        "(a)=~'x'",
        "a==b==(c)",
        "a&&b==",
        "(a)!b",
        "!a!b",
    )
    assert "write !(a == b)" in str(refuse("!n==5"))
    assert "cannot be compared" in str(refuse("(n)==5"))


@pytest.mark.parametrize(
    ("text", "offset", "words"),
    [
        ("", 0, "it is empty"),
        ("  ", 2, "it is empty"),
        ("n == ", 5, "a value is missing at the end"),
        ("n == )", 5, "a value is missing before ')'"),
        ("a b", 2, "an operator is missing before b"),
        ("a and b", 2, "write &&"),
        ("a OR b", 2, "write ||"),
        ("not a", 4, "an operator is missing"),
        ("a & b", 2, "write &&"),
        ("a | b", 2, "write ||"),
        ("a = b", 2, "write =="),
        ("a ~ b", 2, "write =~"),
        ("n-1 == 4", 1, "no arithmetic"),
        ("n * 2", 2, "no arithmetic"),
        ("f(x)", 1, "no function calls"),
        ("a['b']", 1, "no indexing"),
        ("a..b", 1, "a dot stands only"),
        ("(a || (b", 6, "never closed"),
        ("a || b)", 6, "closes nothing"),
        ("1 < 2 < 3", 6, "do not chain"),
        ("a \\ b", 2, "backslash"),
        ("a\xa0", 1, "only space, tab, newline and carriage return"),
        ("a \x00", 2, "no meaning outside quotes"),
    ],
)
def test_errors_name_the_place_and_the_rule(text: str, offset: int, words: str) -> None:
    error = refuse(text)
    assert error.offset == offset
    assert error.text == text
    assert words in str(error)
    lines = str(error).split("\n")
    assert len(lines) == 3
    assert lines[0].startswith("condition: ")
    assert lines[2] == " " * (4 + offset) + "^"


def test_the_first_mistake_is_the_one_reported() -> None:
    assert refuse("a b && 'x").offset == 2
    assert refuse("a == é && b c").offset == 5


def test_errors_in_long_and_many_lined_texts_show_one_line_around_the_place() -> None:
    text = "first == 1 &&\n" * 100 + "second = 2" + "\n&& third" * 100
    error = refuse(text)
    lines = str(error).split("\n")
    assert len(lines) == 3
    assert len(lines[1]) < 100
    assert error.offset == text.index(" = ") + 1
    assert lines[1][lines[2].index("^")] == "="
    assert lines[1].strip().startswith("…")
    assert lines[1].strip().endswith("…")


def test_messages_can_be_written_anywhere() -> None:
    for text in ("'\ud800'", "a \x1b[31m", "'" + "\r\n" * 50, "a == \u202e"):
        message = str(refuse(text))
        assert message.isprintable() or message.replace("\n", "").isprintable()
        message.encode()


def test_half_a_surrogate_pair_is_refused_where_it_stands() -> None:
    error = refuse("s == 'a\ud83dz'")
    assert error.offset == 7
    assert "surrogate" in str(error)
    assert holds("s == '😀'", s="😀")


@pytest.mark.parametrize("value", [None, 5, b"a == 1", True, ["a"], {"a": 1}])
def test_only_text_can_be_a_condition(value: Any) -> None:
    error = refuse(value)
    assert error.rule == "expression-type"
    assert type(value).__name__ in str(error)


def test_the_longest_condition() -> None:
    assert holds("true" + " " * (EXPRESSION_CHARS_MAX - 4))
    error = refuse("true" + " " * (EXPRESSION_CHARS_MAX - 3))
    assert error.rule == "expression-length"
    assert str(EXPRESSION_CHARS_MAX) in str(error)
    assert str(EXPRESSION_CHARS_MAX + 1) in str(error)
    assert len(str(error)) < 300
    assert len(refuse("x" * 1_000_000).text) <= EXPRESSION_CHARS_MAX


def test_errors_are_graph_errors_with_a_status() -> None:
    error = refuse("(")
    assert isinstance(error, GraphError)
    assert isinstance(error, DwarfError)
    assert error.status == 400
    assert error.place == "("


def test_what_an_expression_tells_of_itself() -> None:
    expression = Expression(" a.b == 5 && 7 < c || 'd' == true || !e.f.g || a =~ p ")
    assert expression.text == " a.b == 5 && 7 < c || 'd' == true || !e.f.g || a =~ p "
    assert expression.fields == frozenset({"a", "c", "e", "p"})
    assert repr(Expression("a == 'x'")) == "Expression(\"a == 'x'\")"
    assert Expression("true || 1 == 2").fields == frozenset()
    with pytest.raises(AttributeError):
        expression.text = "b"  # type: ignore[misc]


def test_equality_is_of_structure() -> None:
    assert Expression("a==1") == Expression(" a == 01 ")
    assert Expression("((a))") == Expression("a")
    assert Expression("!!a") == Expression("a")
    assert Expression("!(!(!a))") == Expression("!a")
    assert Expression("'x' == s") == Expression('"x" == s') == Expression("`x` == s")
    assert Expression("TRUE") == Expression("true")
    assert hash(Expression("a && b")) == hash(Expression("(a)&&( b )"))
    different = [
        "a",
        "A",
        "'a'",
        "!a",
        "a && b",
        "b && a",
        "a || b",
        "a && b && c",
        "(a && b) && c",
        "a && (b && c)",
        "a == b",
        "b == a",
        "a != b",
        "!(a == b)",
    ]
    different += [
        "1",
        "true",
        "'1'",
        "'true'",
        "0",
        "false",
        "a == 1",
        "a == true",
        "a == '1'",
        "a == x1",
        "a.b",
        "a.b.c",
        "a < b",
        "a <= b",
        "a =~ b",
        "a =~ 'b'",
        "a == 'b'",
    ]
    assert len({Expression(text) for text in different}) == len(different)
    assert Expression("a") != "a"
    assert Expression("a") is not None


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("a&&b||c", "a && b || c"),
        ("(a&&b)||c", "a && b || c"),
        ("a&&(b||c)", "a && (b || c)"),
        ("(a && b) && c", "(a && b) && c"),
        ("a || (b || c)", "a || (b || c)"),
        ("!(a==b)", "!(a == b)"),
        ("!((a))", "!a"),
        ("!(a||b)&&!c", "!(a || b) && !c"),
        ("!(a && !(b || c))", "!(a && !(b || c))"),
        ("((a || b) && c) || d", "(a || b) && c || d"),
        ('"it\'s" == `x`', "\"it's\" == 'x'"),
        ("s == '\"' && s == \"'\" && t == `'\"`", "s == '\"' && s == \"'\" && t == `'\"`"),
        ("TRUE||False", "true || false"),
        ("n==05 && n==+5 && n==-5 && n == 5.", "n == 5 && n == 5 && n == -5 && n == 5.0"),
        ("n<1E3", "n < 1000.0"),
        ("n<1e22", "n < 1e+22"),
        ("!-5", "!-5"),
    ],
)
def test_the_canonical_spelling(text: str, canonical: str) -> None:
    expression = Expression(text)
    assert str(expression) == canonical
    assert Expression(canonical) == expression
    assert str(Expression(canonical)) == canonical


def test_copies_and_pickles_are_equal() -> None:
    expression = Expression("a == 5 && s =~ '^x'")
    assert expression.evaluate({"a": 5, "s": "xy"})
    for other in (copy.copy(expression), copy.deepcopy(expression), pickle.loads(pickle.dumps(expression))):
        assert other == expression
        assert other.text == expression.text
        assert other.evaluate({"a": 5, "s": "xy"})
