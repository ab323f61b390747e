"""What a comparison of two dumps found: a result for each tensor or block, the first divergence, whose blocks they are."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from diag.tensors.dump import Unread
from diag.tensors.measure import Difference, Figures
from diag.tensors.pairing import Lone
from diag.tensors.verdicts import ARTEFACT, GOOD_VERDICTS, SUSPICIOUS, Verdict

RETYPED = ("values are equal when widened", "values are close when widened")
"""How the detail of a dtype-mismatch ends that is one of type alone."""


@dataclass(frozen=True, slots=True)
class Other:
    """A block that holds as much of it, in another donor."""

    dump: str
    request: str
    block: int


@dataclass(frozen=True, slots=True)
class Alias:
    """Whose content the bad run holds in the place of its own."""

    dump: str
    name: str
    block: int | None
    request: str | None
    by: str
    """block | rows | fingerprint | noise: how it was recognised, the surest first."""
    rows: int
    """Token rows that are equal; of `noise` and `fingerprint` those that are alike."""
    physical: int | None = None
    step: int | None = None
    others: tuple[Other, ...] = ()
    """Further donors that hold as much of it, ten at most: which of them wrote it is not known."""
    readers: tuple[str, ...] = ()
    """Further donors that read it where the bad run did, and did not write it."""
    only_read: bool = False
    """The one that is named read it there as well: the writer is not known."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a pair."""

    dtype: str
    shape: tuple[int, ...]
    figures: Figures | None
    physical: int | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One tensor, or one block of a KV tensor, in both runs."""

    name: str
    rank: int | None
    step: int | None
    layer: int | None
    role: str | None
    op: str
    direction: str | None
    request: int | None
    block: int | None
    ord: int
    good: Side
    bad: Side
    verdict: Verdict
    difference: Difference | None = None
    doubt: str | None = None
    detail: str | None = None
    rows_differ: int | None = None
    rows_of: int | None = None
    first_row: int | None = None
    control_rel_l2: float | None = None
    shift: int | None = None
    alias: Alias | None = None
    is_first: bool = False
    follows: bool = False
    parted: int | None = None
    """Of token ids and positions: the token of the request from which on the two runs worked on others."""

    @property
    def is_wrong(self) -> bool:
        """Neither the same nor close."""
        return self.verdict not in GOOD_VERDICTS

    @property
    def is_retyped(self) -> bool:
        """Another element type and nothing else: the values are equal or close when widened."""
        return self.verdict == "dtype-mismatch" and (self.detail or "").endswith(RETYPED)

    @property
    def is_artefact(self) -> bool:
        return self.doubt == ARTEFACT

    @property
    def is_suspicious(self) -> bool:
        return self.doubt == SUSPICIOUS

    @property
    def has_nan_in_both(self) -> bool:
        """NaN or Inf in the good run as well."""
        return all(side.figures is not None and side.figures.nan + side.figures.inf > 0 for side in (self.good, self.bad))

    @property
    def place(self) -> tuple[str, int | None, int | None, int | None]:
        """The tensor it belongs to: name, rank, step, layer."""
        return self.name, self.rank, self.step, self.layer


@dataclass(frozen=True)
class Twins:
    """Blocks of the bad run that hold the same content where the good run's do not."""

    name: str
    rank: int | None
    layer: int | None
    request: int | None
    blocks: tuple[int, ...]
    physical: tuple[int | None, ...]


@dataclass(frozen=True)
class Scope:
    """Where the wrong blocks are, and what that points at.

    allocator | kernel-or-transfer | rank | operation (the cache follows from it) | weights-or-input (everything differs) | unknown.
    """

    points_at: str
    blocks: tuple[int, ...]
    layers: tuple[int | None, ...]
    ranks: tuple[int | None, ...]
    says: str
    is_small: bool = False
    """Nothing is as far off as other content."""


@dataclass(frozen=True)
class First:
    """The first divergence in execution order."""

    result: Result
    kind: str
    """bad-kv | operation | input | nan | artefact | drift | other."""
    says: str


@dataclass(frozen=True)
class Who:
    """One dump that took part."""

    name: str
    root: str
    layout: str
    tensors: int


@dataclass(frozen=True)
class Comparison:
    """All of it. `verdict`: same | close | differ."""

    verdict: str
    good: Who
    bad: Who
    control: Who | None
    donors: Sequence[Who]
    results: Sequence[Result]
    unpaired: Sequence[Lone]
    unread: Sequence[tuple[str, Unread]]
    first: First | None
    scope: Scope | None
    twins: Sequence[Twins] = ()
    notes: Sequence[str] = ()
    hidden_blocks: int = 0
    """Blocks of pools that hold zeros in both runs: not listed."""
    block_tokens: int | None = None
    seconds: float = 0.0
    tolerances: dict[str, float] = field(default_factory=dict)
