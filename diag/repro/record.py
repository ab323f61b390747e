"""What an experiment did and saw, as frozen values: the facts that a verdict rests on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from diag.repro.counters import Counters

Arm = Literal["baseline", "control", "pressure"]
TrialKind = Literal["baseline", "variant", "reask", "confirm", "repeat"]


@dataclass(frozen=True)
class Trial:
    """One question and what came of it."""

    arm: Arm
    ordinal: int
    """Number of the request within its arm, from 1."""
    kind: TrialKind
    """variant; reask: a failing prompt as it is; baseline: what is good; confirm: a suspicious answer asked again, plain or bypassed; repeat: the first failure, again at once, without variants between."""
    prompt: int
    """Index of the prompt in the file, from 0; of a variant the one it was made from."""
    answer_class: str
    suspicious: bool
    """Not as it should be, before it was asked again."""
    reproduced: bool | None
    """Asked again it failed again, and with the cache bypassed it did not. None: not put to that test."""
    hit: bool | None
    """Cached blocks were used for it. None: the endpoint does not tell."""
    cached_tokens: int | None
    prompt_tokens: int | None
    bypass: bool
    """No cached block could be used: a salt or a prefix of its own."""
    seconds: float
    ts: float
    """Unix time when it was sent."""
    variant: int | None = None
    """Number of the variant: with the seed it makes the same prompt again."""
    excerpt: str = ""
    """Beginning of the answer, where it is worth showing."""
    note: str = ""
    """Why it is noise, or why there was no answer."""
    request: str | None = None
    """Its id as the endpoint tells it, else as it was sent: what the engine's log calls it."""
    sent: str | None = None
    """The id that was sent with it: llmdiag-RUN-N, N the number of the HTTP request in this run."""


@dataclass(frozen=True)
class Bypass:
    """How blocks of the cache are kept out of an answer."""

    by: Literal["cache_salt", "prefix"]
    proven: bool
    """The endpoint's own figures showed a hit without and none with it."""
    says: str


@dataclass(frozen=True)
class GoodAnswers:
    """What counts as right for one prompt, with the cache bypassed."""

    prompt: int
    stable: bool
    """Asked twice it said the same twice. If not, only gross failures are judged."""
    excerpt: str
    expect_met: bool | None = None
    """None: nothing was expected."""


@dataclass(frozen=True)
class Cache:
    """What is known of the cache over the whole experiment."""

    before: Counters
    after: Counters
    new_tokens: float
    """Computed anew since the beginning: by the engine's counters, else prompt tokens minus cached tokens of our own requests."""
    full_by: str = ""
    """What shows that the cache was full, "" where nothing does."""
    shared: bool = False
    """The counters moved more than our own requests explain: somebody else uses the endpoint."""
    control_new_tokens: float | None = None
    """New tokens of one request of the control arm, the mean."""
    evicted: int = 0
    """Re-asks that found fewer tokens of their prompt in the cache than there had been."""
    hits_when_full: int = 0
    """Re-asks of the pressure arm that used cached blocks after the cache had been full."""


@dataclass(frozen=True)
class Settings:
    """What was asked for."""

    seed: int = 0
    max_tokens: int = 64
    every: int = 10
    limit: int = 2000
    minutes: float = 30.0
    rate: float = 2.0
    concurrency: int = 1
    control: int = 50
    timeout_s: float = 120.0
    fills: float = 10.0


@dataclass(frozen=True)
class Run:
    """The whole experiment."""

    url: str
    model: str
    started_at: float
    seconds: float
    ended: Literal["full", "reproduced", "limit", "minutes", "interrupted", "endpoint-dead"]
    ended_because: str
    settings: Settings
    bypass: Bypass | None
    good: tuple[GoodAnswers, ...]
    cache: Cache
    trials: tuple[Trial, ...]
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Answers by HTTP status, and `timeout`, `refused`, `reset`, `garbled`, `tls`."""
    warnings: tuple[str, ...] = ()
