"""Bars as an SVG picture, written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

LABEL_WIDTH, BAR_WIDTH, ROW_HEIGHT, MARGIN = 180, 420, 24, 16


def bars(title: str, values: Mapping[str, int]) -> str:
    """Return a picture with one bar for each value, in their order, from the top."""
    width = LABEL_WIDTH + BAR_WIDTH + 90
    height = MARGIN + ROW_HEIGHT * (len(values) + 1) + MARGIN
    largest = max(values.values(), default=0) or 1
    font = 'font-family="sans-serif" font-size="13"'
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" {font}>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 12}" font-weight="bold">{escape(title)}</text>',
    ]
    for place, (label, value) in enumerate(values.items(), start=1):
        top = MARGIN + ROW_HEIGHT * place
        length = round(BAR_WIDTH * value / largest)
        rows += [
            f'<text x="{LABEL_WIDTH - 8}" y="{top + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LABEL_WIDTH}" y="{top + 3}" width="{length}" height="{ROW_HEIGHT - 8}" rx="2" fill="#3b6ea5"/>',
            f'<text x="{LABEL_WIDTH + length + 6}" y="{top + 15}" fill="#444">{value:,}</text>',
        ]
    return "\n".join([*rows, "</svg>", ""])
