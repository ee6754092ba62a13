"""How graphs become pictures: the shape both renderers share, the layered layout, the width of text.

`dwarf.mermaid`, `dwarf.svg` and `dwarf.history_mermaid` are the entry points; nothing here knows an output format.
"""
