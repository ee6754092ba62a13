"""What dispatcher and executor tell each other over their channel. Pure: structs that msgspec packs as arrays, and no more.

    dispatcher -> executor                     executor -> dispatcher
    Assign     steps to run, graphs they need  Hello      what it can hold
    Committed  what became of its records      Reports    finished steps: their records
    Withdraw   rows that were taken away       Freed      withdrawn steps whose task has ended
    Drain      start nothing new               Unstarted  steps handed back without having been started

A *ticket* names one hold of an executor on a row. A successor that starts at once goes on under its predecessor's ticket.
User state travels as the bytes it is stored as; only the executor decodes it.
"""

from __future__ import annotations

import msgspec

from dwarf.batch import STATUS_OF
from dwarf.changes import Changes
from dwarf.errors import DwarfError
from dwarf.inputs import START, Base, Position, build_on, decode_document, fold_documents, initial
from dwarf.record import ClaimedStep, Member, Record, Todo
from dwarf.status import StepStatus


class Message(msgspec.Struct, array_like=True, gc=False):
    """A message, or a part of one."""


class GraphForm(Message):
    """A graph as it is stored. `graph_id` is 0 for one that the shard has not given a number yet."""

    graph_id: int
    hash: bytes
    name: str
    entry_task: str
    definition: bytes


class Cohort(Message):
    """What a joining row stands on: its fan-out source, and the branches as their last steps left them."""

    source: str
    first: int
    members: list[tuple[int, int, int, bytes | None, str | None]]  # ordinal, seq, status, contribution, error


class Park(Message):
    """What earlier runs of the step left, and what answered it."""

    kept: bytes | None
    answer: bytes | None
    child_status: int | None
    child_error: str | None
    result: bytes | None


class Assignment(Message):
    """One claimed row with everything it takes to act on it. Times are microseconds since 2000 by the database's clock.

    `chain` names the documents under the input, in order; `documents` says where in the message their texts are, that of
    (0, 0) being the flow's initial state. `later` are the changes of steps after the last document where `delta` does not
    hold them.
    """

    ticket: int
    flow_id: int
    branch: int
    seq: int
    lease: int
    task: str
    todo: int
    attempt: int
    graph_id: int
    chain: list[Position]
    documents: list[int]
    delta: bytes | None
    later: list[bytes]
    in_cohort: bool
    expanded: int
    last_ordinal: int | None
    cohort: Cohort | None
    park: Park | None
    reason: str
    token: str
    workflow: str
    priority: int
    fairness_key: str
    budget_ms: int
    flow_created_at: int
    step_created_at: int
    claimed_at: int
    baggage: bytes | None
    nesting: int = 0  # how many callers are above the flow

    def step(self, base: Base, reducers: dict[str, str]) -> ClaimedStep:
        """Build the step's input out of what travelled, on the documents that the chain names, and return what deciding takes."""
        later = [Changes.decode(changes) for changes in self.later]
        given = build_on(base, self.delta, later, branch=self.branch, chain=tuple(self.chain), reducers=reducers)
        source = self.cohort.source if self.cohort else ""
        return ClaimedStep(
            self.branch, self.seq, self.task, given, self.lease, Todo(self.todo),
            in_cohort=self.in_cohort, source=source, expanded=self.expanded,
        )  # fmt: skip

    def members(self) -> list[Member]:
        """Return the branches of the cohort in order."""
        cohort = self.cohort
        if cohort is None:
            return []
        return [
            Member(ordinal, STATUS_OF[status], Changes.decode(contribution), error or "", (cohort.first + ordinal) << 20 | seq)
            for ordinal, seq, status, contribution, error in cohort.members
        ]

    def child_ended(self) -> StepStatus | None:
        """Return how the child ended that the step waited for, or None."""
        return STATUS_OF[self.park.child_status] if self.park and self.park.child_status else None

    @property
    def size(self) -> int:
        """How many bytes travel for this step alone: all but the documents."""
        parked = (self.park.kept, self.park.answer, self.park.result) if self.park else ()
        members = self.cohort.members if self.cohort else ()
        texts = (*self.later, *parked, self.delta, self.baggage, *(member[3] for member in members))
        return sum(len(text) for text in texts if text)


class Assign(Message, tag=1):
    """Steps to act on. A graph travels before the first step of it, a document once for all the steps that stand on it."""

    steps: list[Assignment]
    documents: list[bytes]
    graphs: list[GraphForm] = []

    def base(self, step: Assignment, reducers: dict[str, str]) -> Base:
        """Fold the documents that a step stands on."""
        texts = ((at, self.documents[place]) for at, place in zip(step.chain, step.documents, strict=True))
        return fold_documents([initial(text) if at == START else decode_document(text) for at, text in texts], reducers)


class Committed(Message, tag=2):
    """What became of reported records. `started`: recorded, go on with the successor now. `over`: recorded, or no longer ours."""

    started: list[int]
    over: list[int]


class Withdraw(Message, tag=3):
    """Stop these: their rows were taken away, and whatever comes of them is not stored."""

    tickets: list[int]


class Drain(Message, tag=4):
    """Start nothing that has not been started, and hand it back."""


class Hello(Message, tag=5):
    """An executor is there: how many steps it holds at one time."""

    slots: int


class Report(Message):
    """A finished step. `graph` is that of the child it starts."""

    ticket: int
    record: Record
    graph: GraphForm | None = None


class Reports(Message, tag=6):
    """Finished steps, in the order in which they finished."""

    items: list[Report]


class Freed(Message, tag=7):
    """Withdrawn steps whose tasks have ended: their slots are free."""

    tickets: list[int]


class Unstarted(Message, tag=8):
    """Steps that were not started: they go back as they were."""

    tickets: list[int]


ToExecutor = Assign | Committed | Withdraw | Drain
ToDispatcher = Hello | Reports | Freed | Unstarted


class ProtocolViolation(DwarfError):
    """A peer sent what it must not send."""


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode  # a message to the bytes it travels as
_to_executor = msgspec.msgpack.Decoder(ToExecutor)
_to_dispatcher = msgspec.msgpack.Decoder(ToDispatcher)


def decode_for_executor(data: bytes) -> ToExecutor:
    """Read a message from the dispatcher. Raises `ProtocolViolation`."""
    try:
        return _to_executor.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"a message for an executor cannot be read: {error}") from None


def decode_for_dispatcher(data: bytes) -> ToDispatcher:
    """Read a message from an executor. Raises `ProtocolViolation`."""
    try:
        return _to_dispatcher.decode(data)
    except msgspec.MsgspecError as error:
        raise ProtocolViolation(f"a message for the dispatcher cannot be read: {error}") from None
