"""Turns `Code` into jump code: a row of tests, each with the place to go on when it holds and when it does not.

`!`, `&&` and `||` cost nothing at run time: they only choose where tests jump to. Jumps go to smaller places only, so a run
ends after at most one visit to each test, and needs no recursion.

    a && !b     place 1: a -> 0, FALSE
                place 0: b -> FALSE, TRUE         a run starts at the last place
"""

from __future__ import annotations

from collections.abc import Callable

from dwarf.expression.nodes import PATTERNS, And, Code, Compare, Constant, Leaf, Name, Not, Number, Operand, Or, Text, Truth
from dwarf.expression.paths import Get, Read, reader
from dwarf.expression.patterns import PatternError, Search, compile_pattern, field_pattern
from dwarf.expression.problems import pattern_problem
from dwarf.expression.values import NUMBERS, ORDERINGS, are_equal, in_order, is_true

TRUE = -1
FALSE = -2
_NEXT = -3  # the test that follows in the text; known once that one has its place

Test = Callable[[Get], bool]
Step = tuple[Test, int, int]
Steps = list[Step]

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compile_code(code: Code, text: str, pattern_offsets: tuple[int, ...]) -> tuple[Steps, int]:
    """Return the steps, and the place where a run starts (TRUE or FALSE when there is nothing to test)."""
    steps: Steps = []
    start = TRUE
    targets = [(TRUE, FALSE)]  # where to go from the parts still to come, which come from right to left
    offsets = list(pattern_offsets)
    for node in reversed(code):
        yes, no = targets.pop()
        yes, no = (start if yes == _NEXT else yes), (start if no == _NEXT else no)
        if isinstance(node, Not):
            targets.append((no, yes))
        elif isinstance(node, And):
            targets.extend([(_NEXT, no)] * (node.count - 1))
            targets.append((yes, no))
        elif isinstance(node, Or):
            targets.extend([(yes, _NEXT)] * (node.count - 1))
            targets.append((yes, no))
        else:
            if isinstance(node, Compare) and node.operator == "!=":
                yes, no = no, yes
            test = _pattern_test(node, text, offsets.pop()) if _is_pattern(node) else _leaf_test(node)
            if isinstance(test, bool):
                start = yes if test else no
            else:
                steps.append((test, yes, no))
                start = len(steps) - 1
    return steps, start


def _is_pattern(leaf: Leaf) -> bool:
    return isinstance(leaf, Compare) and leaf.operator in PATTERNS


def _leaf_test(leaf: Leaf) -> Test | bool:
    """Return the test of a leaf, or its answer when that depends on no field; for `!=`, that of `==`."""
    if isinstance(leaf, Truth):
        return _truth(leaf.operand)
    left, right = leaf.left, leaf.right
    if leaf.operator in ("==", "!="):
        return _equality(left, right)
    if isinstance(right, Name) and not isinstance(left, Name):
        return _ordering(right, _FLIPPED[leaf.operator], left)
    return _ordering(left, leaf.operator, right)


def _truth(operand: Operand) -> Test | bool:
    if not isinstance(operand, Name):
        return is_true(operand.value)
    read = reader(operand.text)
    return lambda get: is_true(read(get))


def _equality(left: Operand, right: Operand) -> Test | bool:
    if not isinstance(left, Name):
        left, right = right, left
    if not isinstance(left, Name):
        return not isinstance(right, Name) and are_equal(left.value, right.value)
    read = reader(left.text)
    match right:
        case Name():
            read_other = reader(right.text)
            return lambda get: are_equal(read(get), read_other(get))
        case Text(text):
            return lambda get: bool(read(get) == text)
        case Constant(constant):
            return lambda get: read(get) is constant
        case Number():
            return _number_equality(read, right.value)


def _number_equality(read: Read, number: float) -> Test:
    def test(get: Get) -> bool:
        value = read(get)
        return type(value) in NUMBERS and bool(value == number)

    return test


def _ordering(left: Operand, operator: str, right: Operand) -> Test | bool:
    """Return the test of an order; `right` is a name only if `left` is one."""
    if not isinstance(left, Name):
        return not isinstance(right, Name) and in_order(left.value, operator, right.value)
    read = reader(left.text)
    if isinstance(right, Name):
        read_other = reader(right.text)
        return lambda get: in_order(read(get), operator, read_other(get))
    if isinstance(right, Constant):
        constant = right.value
        return operator in ("<=", ">=") and (lambda get: read(get) is constant)
    holds, literal = ORDERINGS[operator], right.value
    kinds = NUMBERS if isinstance(right, Number) else frozenset((str,))

    def test(get: Get) -> bool:
        value = read(get)
        return type(value) in kinds and holds(value, literal)

    return test


def _pattern_test(leaf: Leaf, text: str, offset: int) -> Test | bool:
    """Return the test of `=~` and `!~`, which are both false unless both sides are text."""
    assert isinstance(leaf, Compare)
    left, right, wanted = leaf.left, leaf.right, leaf.operator == "=~"
    if isinstance(left, Number | Constant) or isinstance(right, Number | Constant):
        return False
    read = _text_reader(left)
    find = _literal_search(right.value, text, offset) if isinstance(right, Text) else _field_search(right, text, offset)

    def test(get: Get) -> bool:
        value = read(get)
        if type(value) is not str:
            return False
        search = find(get)
        return search is not None and search(value) is wanted

    return test


def _text_reader(operand: Text | Name) -> Read:
    if isinstance(operand, Name):
        return reader(operand.text)
    value = operand.value
    return lambda get: value


def _literal_search(pattern: str, text: str, offset: int) -> Callable[[Get], Search | None]:
    """Compile on first use: an invalid pattern does no harm until it is reached."""
    search: Search | None = None

    def find(get: Get) -> Search | None:
        nonlocal search
        if search is None:
            try:
                search = compile_pattern(pattern)
            except PatternError as error:
                raise pattern_problem(pattern, str(error), text=text, offset=offset) from None
        return search

    return find


def _field_search(name: Name, text: str, offset: int) -> Callable[[Get], Search | None]:
    read = reader(name.text)

    def find(get: Get) -> Search | None:
        pattern = read(get)
        if type(pattern) is not str:
            return None
        try:
            return field_pattern(pattern)
        except PatternError as error:
            raise pattern_problem(pattern, str(error), field=name.text, text=text, offset=offset) from None

    return find
