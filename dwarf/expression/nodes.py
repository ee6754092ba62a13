"""What a condition is made of, in postfix order.

A parsed condition is a flat tuple: leaves, each followed at some distance by the `And`, `Or` or `Not` that takes it. So
`a && !(b || c)` is `Truth(a) Truth(b) Truth(c) Or(2) Not And(2)`. Being flat, it can be compared, hashed and freed without
recursion, however deep its parentheses were. Nothing here knows text or evaluation.
"""

from __future__ import annotations

import msgspec


class Text(msgspec.Struct, frozen=True):
    """Quoted text, without its quotes."""

    value: str


class Number(msgspec.Struct, frozen=True):
    """An integer or a finite float; `Number(5) == Number(5.0)`, as in conditions."""

    value: int | float


class Constant(msgspec.Struct, frozen=True):
    """`true` or `false`."""

    value: bool


class Name(msgspec.Struct, frozen=True):
    """A dotted name as it is written; its first part is a field of the state."""

    text: str

    @property
    def field(self) -> str:
        return self.text.partition(".")[0]


class Truth(msgspec.Struct, frozen=True):
    """A value used alone."""

    operand: Operand


class Compare(msgspec.Struct, frozen=True):
    """A comparison; `operator` is one of `COMPARISONS`."""

    left: Operand
    operator: str
    right: Operand


class And(msgspec.Struct, frozen=True):
    """Takes the `count` (two or more) conditions before it."""

    count: int


class Or(msgspec.Struct, frozen=True):
    """Takes the `count` (two or more) conditions before it."""

    count: int


class Not(msgspec.Struct, frozen=True):
    """Takes the condition before it, which never ends in another `Not`."""


Literal = Text | Number | Constant
Operand = Literal | Name
Leaf = Truth | Compare
Node = Leaf | And | Or | Not
Code = tuple[Node, ...]

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "=~", "!~")
PATTERNS = ("=~", "!~")


def operands(node: Node) -> tuple[Operand, ...]:
    """Return the operands of a leaf from left to right; other nodes have none."""
    if isinstance(node, Truth):
        return (node.operand,)
    if isinstance(node, Compare):
        return (node.left, node.right)
    return ()
