"""The history of a flow as a Mermaid flowchart: one box per step, classed by status, in the order in which steps led to one another.

    _start, _end      the circles; no end circle while the flow is open
    s0 … sN           steps, in order of the history; nested histories continue the count
    g0 … gN           a block around the steps that one step led to, where there are several
    c3                a block around the history of the child that step s3 called

It reads steps and nothing else: whether the flow is closed is the caller's word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from dwarf.drawing.diagram import END_ID, START_ID
from dwarf.mermaid import LINK_STYLE, label

_INDENT_MAX = 8  # levels; the deepest nesting is a thousand, and a line for each of its blanks is a megabyte
CLASSES = {
    "pending": "fill:#f1f3f7,stroke:#8593a8,color:#3d4a5f",
    "running": "fill:#e6f2ff,stroke:#2f6fbd,color:#123a6b",
    "interrupted": "fill:#fff3d6,stroke:#c98a1b,color:#6b470a",
    "parked": "fill:#f0ebfa,stroke:#7a4fbf,color:#43257a",
    "completed": "fill:#e8f6ee,stroke:#2f8f5b,color:#175233",
    "failed": "fill:#fdeceb,stroke:#c0392b,color:#7d1f16",
    "cancelled": "fill:#f4efe9,stroke:#8a6d4b,color:#4d3a22",
    "terminated": "fill:#ece8e8,stroke:#5c4a4a,color:#332626",
    "term": "fill:#f6f1e5,stroke:#8a6d3b,color:#3d2f14",
}
# Blocks are styled one by one: Mermaid does not apply a class to a block that arrows touch.
STYLE_CHILD = "fill:#f8fafd,stroke:#9aa8bd,color:#3d4a5f"
STYLE_BRANCHES = "fill:none,stroke:#c3cddb,stroke-dasharray:4 3"
_STATUS_UNKNOWN = "pending"


class StepLike(Protocol):
    """What a step must tell to be drawn."""

    @property
    def step_key(self) -> str: ...
    @property
    def task_name(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def status(self) -> object: ...
    @property
    def predecessor_key(self) -> str | None: ...
    @property
    def successor_key(self) -> str | None: ...
    @property
    def sub_workflow_name(self) -> str | None: ...
    @property
    def sub_workflow_url(self) -> str | None: ...
    @property
    def sub_history(self) -> Sequence[StepLike] | None: ...


def render(steps: Sequence[StepLike], *, closed: bool) -> str:
    """Return the history `steps` of a flow as a Mermaid flowchart; `closed` tells that nothing more will happen.

    Without steps there are the start and the end circle and nothing else.
    """
    shows_end = closed or not steps
    lines = ["graph TD", *(f"    classDef {name} {style}" for name, style in CLASSES.items()), f"    {LINK_STYLE}", ""]
    lines.append(f'    {START_ID}((" ")):::term')
    if shows_end:
        lines.append(f'    {END_ID}((" ")):::term')
    body, arrows = _Body(steps).drawn(shows_end)
    return "\n".join((*lines, *body, *(f"    {source} --> {target}" for source, target in arrows), ""))


class _Level:
    """One history: the flow's own, or a child's. `ids` are the steps' ids, `exits` what their arrows onwards start from."""

    def __init__(self, steps: Sequence[StepLike], first: int) -> None:
        self.steps = steps
        self.ids = [f"s{first + place}" for place in range(len(steps))]
        self.exits = [f"c{first + place}" if step.sub_history else self.ids[place] for place, step in enumerate(steps)]
        self.leads_to: dict[tuple[int, int], None] = {}
        places = {step.step_key: place for place, step in enumerate(steps)}
        for place, step in enumerate(steps):
            before, after = places.get(step.predecessor_key or "", place), places.get(step.successor_key or "", place)
            self.leads_to[before, place] = None
            self.leads_to[place, after] = None
        self.leads_to = {pair: None for pair in self.leads_to if pair[0] != pair[1]}

    def groups(self) -> list[list[int]]:
        """Return the steps in order, branches of one source together at the place of the first of them.

        A step that several lead to is a fan-in, not a branch.
        """
        leaders: dict[int, list[int]] = {}
        for before, after in self.leads_to:
            leaders.setdefault(after, []).append(before)
        branches: dict[int, list[int]] = {}
        for place in range(len(self.steps)):
            if len(leaders.get(place, ())) == 1:
                branches.setdefault(leaders[place][0], []).append(place)
        grouped: list[list[int]] = []
        for place in range(len(self.steps)):
            mates = branches[leaders[place][0]] if len(leaders.get(place, ())) == 1 else [place]
            if mates[0] == place:
                grouped.append(mates)
        return grouped

    def arrows(self) -> list[tuple[str, str]]:
        return [(self.exits[before], self.ids[after]) for before, after in self.leads_to]

    def ends(self) -> tuple[list[int], list[int]]:
        """Return the steps that nothing leads to, and those that lead nowhere."""
        led = {after for _, after in self.leads_to}
        leading = {before for before, _ in self.leads_to}
        places = range(len(self.steps))
        return [place for place in places if place not in led], [place for place in places if place not in leading]


class _Body:
    """The lines of a history with all its nested ones, drawn without recursion."""

    def __init__(self, steps: Sequence[StepLike]) -> None:
        self._count = 0
        self._groups = 0
        self._lines: list[str] = []
        self._top = self._level(steps)
        self._arrows: list[tuple[str, str]] = []

    def drawn(self, shows_end: bool) -> tuple[list[str], list[tuple[str, str]]]:
        """Return the lines of steps and blocks, and all arrows."""
        heads, tails = self._top.ends()
        self._arrows += [(START_ID, self._top.ids[place]) for place in heads]
        walk = [self._draw(self._top)]
        while walk:
            below = next(walk[-1], None)
            if below is None:
                walk.pop()
            else:
                walk.append(self._draw(below, depth=len(walk)))
        if shows_end:
            self._arrows += [(self._top.exits[place], END_ID) for place in tails]
        return self._lines, self._arrows

    def _level(self, steps: Sequence[StepLike]) -> _Level:
        level = _Level(steps, self._count)
        self._count += len(steps)
        return level

    def _draw(self, level: _Level, depth: int = 0) -> Iterator[_Level]:
        """Write the lines of one level, handing out each nested level at the place where its lines belong."""
        outer = "    " * min(2 * depth + 1, _INDENT_MAX)
        self._arrows += level.arrows()
        for mates in level.groups():
            indent = outer
            group = f"g{self._groups}"
            if len(mates) > 1:
                self._groups += 1
                self._lines.append(f'{outer}subgraph {group} [" "]')
                indent = outer + "    "
            for place in mates:
                step = level.steps[place]
                self._lines.append(f'{indent}{level.ids[place]}["{label(_words(step))}"]:::{_class(step)}')
                if step.sub_history:
                    block = level.exits[place]
                    name = label(step.sub_workflow_name or step.sub_workflow_url or "")
                    self._lines += (f'{indent}subgraph {block} ["{name}"]', f"{indent}    direction TB")
                    self._arrows.append((level.ids[place], block))
                    yield self._level(step.sub_history)
                    self._lines += (f"{indent}end", f"{indent}style {block} {STYLE_CHILD}")
            if len(mates) > 1:
                self._lines += (f"{outer}end", f"{outer}style {group} {STYLE_BRANCHES}")


def _words(step: StepLike) -> str:
    return f"{step.task_name} · attempt {step.attempt}" if step.attempt else step.task_name


def _class(step: StepLike) -> str:
    status = str(step.status)
    return status if status in CLASSES and status != "term" else _STATUS_UNKNOWN
