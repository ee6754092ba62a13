"""Writes `Code` back as text that parses to equal code: one space around operators, parentheses only where they count."""

from __future__ import annotations

from dwarf.expression.nodes import And, Code, Compare, Constant, Name, Not, Number, Operand, Or, Text, Truth

# How tightly a piece holds together; an operator puts pieces that hold no tighter than itself into parentheses.
_OR, _AND, _TERM, _PRIMARY = range(4)


class _Piece:
    """A leaf's text, with what stands before it (innermost first) and how many parentheses close after it."""

    __slots__ = ("after", "before", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.before: list[str] = []
        self.after = 0


def render(code: Code) -> str:
    # Postfix order keeps the leaves in the order of the text, so each operator only adds marks at the ends of its parts.
    pieces: list[_Piece] = []
    spans: list[tuple[int, int, int]] = []  # first piece, last piece, tightness
    for node in code:
        if isinstance(node, Truth):
            pieces.append(_Piece(_operand(node.operand)))
            spans.append((len(pieces) - 1, len(pieces) - 1, _PRIMARY))
        elif isinstance(node, Compare):
            pieces.append(_Piece(f"{_operand(node.left)} {node.operator} {_operand(node.right)}"))
            spans.append((len(pieces) - 1, len(pieces) - 1, _TERM))
        elif isinstance(node, Not):
            first, last = _wrap(pieces, spans.pop(), tighter_than=_TERM)
            pieces[first].before.append("!")
            spans.append((first, last, _TERM))
        else:
            spans.append(_join(pieces, spans, node))
    return "".join("".join(reversed(piece.before)) + piece.text + ")" * piece.after for piece in pieces)


def _join(pieces: list[_Piece], spans: list[tuple[int, int, int]], node: And | Or) -> tuple[int, int, int]:
    separator, tightness = (" && ", _AND) if isinstance(node, And) else (" || ", _OR)
    parts = [_wrap(pieces, span, tighter_than=tightness) for span in spans[-node.count :]]
    del spans[-node.count :]
    for first, _ in parts[1:]:
        pieces[first].before.append(separator)
    return parts[0][0], parts[-1][1], tightness


def _wrap(pieces: list[_Piece], span: tuple[int, int, int], *, tighter_than: int) -> tuple[int, int]:
    first, last, tightness = span
    if tightness <= tighter_than:
        pieces[first].before.append("(")
        pieces[last].after += 1
    return first, last


def _operand(operand: Operand) -> str:
    match operand:
        case Name():
            return operand.text
        case Constant():
            return "true" if operand.value else "false"
        case Number():
            return repr(operand.value)
        case Text():
            quote = next(quote for quote in "'\"`" if quote not in operand.value)
            return f"{quote}{operand.value}{quote}"
