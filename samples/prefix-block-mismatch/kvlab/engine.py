"""One request after the other through scheduler, block manager and model; what happened to each is told."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from kvlab.blocks import NO_HASH, Allocator, Lookup, PoolFull, chain, combine
from kvlab.model import MAX_TOKENS, Model, Trace
from kvlab.words import EOS, NEWLINE, PERIOD, VOCABULARY, Words

LookupMethod = Literal["binary", "linear"]
Order = Literal["before", "after"]
ENDS = (EOS, PERIOD, NEWLINE)
TOP = 5
EPOCH_S = 1_760_000_000.0
"""When the engine's clock starts: seconds since 1970."""

log = logging.getLogger("lab")


@dataclass(frozen=True)
class Settings:
    """How an engine is built."""

    lookup: LookupMethod = "binary"
    dtype: str = "float32"
    seed: int = 0
    blocks: int = 64
    block_size: int = 16
    order: Order = "before"
    """Look up before or after the blocks of the prompt are allocated: a hole is then no entry, or one not computed."""
    request_s: float = 2.0
    """How far the engine's clock goes with each request: a busy hour in seconds."""


@dataclass(frozen=True)
class Step:
    """One generated token: its text with the space before it, and the likeliest tokens there with their log-probabilities."""

    text: str
    logprob: float
    top: dict[str, float]


@dataclass(frozen=True)
class Result:
    """What came of one request."""

    number: int
    text: str
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    lookup: Lookup
    table: tuple[int, ...]
    """Its blocks, in the order of the tokens."""
    written_by: tuple[tuple[int, ...], ...]
    """The truth: for each row of each of its blocks the request that wrote it last, 0 for none."""
    steps: tuple["Step", ...]


@dataclass
class Counters:
    """What /metrics tells."""

    queries: int = 0
    hits: int = 0
    prompt: int = 0
    generated: int = 0
    iterations: int = 0
    stopped: int = 0
    cut: int = 0
    preemptions: int = 0


@dataclass(frozen=True)
class Capture:
    """State of one request, for a dump. The pools are the live ones: what is kept must be copied."""

    number: int
    at: Literal["prefill", "end"]
    token_ids: list[int]
    start: int
    """Tokens before this one were taken from the cache."""
    table: list[int]
    block_size: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    trace: Trace
    logits: torch.Tensor


@dataclass
class Engine:
    """The lab without its HTTP side. One thread at a time."""

    settings: Settings = field(default_factory=Settings)
    on_lookup: Callable[[int, Lookup, LookupMethod], None] = lambda number, lookup, method: None
    capture: Callable[[Capture], None] | None = None
    """Called within the next requests as long as it is set: right after the first logits, and when the answer is complete."""

    def __post_init__(self) -> None:
        options = self.settings
        self.words, self.counters = Words(), Counters()
        self.model = Model(options.blocks, options.block_size, options.dtype, options.seed)
        self.allocator = Allocator(options.blocks, options.block_size)
        self.method: LookupMethod = options.lookup
        self._number = 0
        self._writers = [[0] * options.block_size for _ in range(options.blocks + 1)]
        self._lock = threading.Lock()

    @property
    def usage(self) -> float:
        """Share of the pool that running requests hold, as vLLM tells it."""
        return self.allocator.in_use / self.allocator.total

    def generate(self, prompt: str | list[int], max_tokens: int = 32, salt: str = "") -> Result:
        """Greedy answer to a text or to token ids. Raises PoolFull where it does not fit."""
        ids = self.words.encode(prompt) if isinstance(prompt, str) else [item % VOCABULARY for item in prompt]
        with self._lock:
            return self._generate(ids, max_tokens, salt_of(salt))

    def _generate(self, ids: list[int], max_tokens: int, salt: int) -> Result:
        size, prompt = self.settings.block_size, len(ids)
        if prompt + max_tokens > min(MAX_TOKENS, self.allocator.total * size):
            raise PoolFull(f"{prompt} and {max_tokens} tokens are more than the pool holds")
        self._number += 1
        hashes = chain(ids, size, salt)
        table, lookup = self._schedule(hashes, prompt)
        hit = lookup.binary if self.method == "binary" else lookup.linear
        steps: list[Step] = []
        try:
            reason = self._decode(ids, hit * size, table, hashes, max_tokens, salt, steps)
        finally:
            self.allocator.release(table, hashes, EPOCH_S + self._number * self.settings.request_s)
        self._count(prompt, len(steps), hit * size, reason)
        text = "".join(step.text for step in steps)
        written_by = tuple(tuple(self._writers[block]) for block in table)
        return Result(self._number, text, reason, prompt, len(steps), hit * size, lookup, tuple(table), written_by, tuple(steps))

    def _schedule(self, hashes: list[int], prompt: int) -> tuple[list[int], Lookup]:
        """The blocks of a prompt and what is taken as computed; the last token never is, it gives the first answer."""
        asked = hashes[: (prompt - 1) // self.settings.block_size]
        if self.settings.order == "before":
            lookup = self.allocator.look_up(asked)
            table = self.allocator.allocate(hashes, prompt)
        else:
            table = self.allocator.allocate(hashes, prompt)
            lookup = self.allocator.look_up(asked)
        self.allocator.mark_computed()
        self.on_lookup(self._number, lookup, self.method)
        return table, lookup

    def _decode(
        self, ids: list[int], start: int, table: list[int], hashes: list[int], max_tokens: int, salt: int, steps: list[Step]
    ) -> Literal["stop", "length"]:
        """Generate in place: `ids`, `table`, `hashes` and `steps` grow -> why it ended."""
        trace = None if self.capture is None else Trace()
        logits = first = self._forward(ids, start, table, trace)
        self._tell("prefill", ids, start, table, trace, first)
        reason: Literal["stop", "length"] = "length"
        while len(steps) < max_tokens:
            self.counters.iterations += 1
            token = int(logits.argmax())
            if token in ENDS:
                reason = "stop"
                break
            steps.append(self._step(token, logits, first=not steps))
            if len(steps) < max_tokens:
                self._append(ids, token, table, hashes, salt)
                logits = self._forward(ids, len(ids) - 1, table, None)
        self._tell("end", ids, start, table, trace, first)
        return reason

    def _forward(self, ids: list[int], start: int, table: list[int], trace: Trace | None) -> torch.Tensor:
        for position in range(start, len(ids)):
            block, row = divmod(position, self.settings.block_size)
            self._writers[table[block]][row] = self._number
        return self.model.forward(ids, start, table, trace)

    def _step(self, token: int, logits: torch.Tensor, *, first: bool) -> Step:
        space = "" if first else " "
        likely = logits.log_softmax(-1).topk(TOP)
        top = {space + self.words.spell(int(item)): float(value) for value, item in zip(*likely, strict=True)}
        return Step(space + self.words.spell(token), float(likely.values[0]), top)

    def _append(self, ids: list[int], token: int, table: list[int], hashes: list[int], salt: int) -> None:
        size = self.settings.block_size
        if len(ids) % size == 0:
            table.append(self.allocator.fresh())
        ids.append(token)
        if len(ids) % size == 0:
            hashes[:] = chain(ids, size, salt)
            table[-1] = self.allocator.promote(table[-1], hashes[-1])
            self.allocator.mark_computed()

    def _tell(self, at: Literal["prefill", "end"], ids: list[int], start: int, table: list[int], trace: Trace | None, logits: torch.Tensor) -> None:
        if self.capture is None or trace is None:
            return
        model = self.model
        self.capture(Capture(self._number, at, list(ids), start, list(table), self.settings.block_size, model.keys, model.values, trace, logits))

    def _count(self, prompt: int, generated: int, cached: int, reason: str) -> None:
        counters = self.counters
        counters.queries += prompt
        counters.hits += cached
        counters.prompt += prompt
        counters.generated += generated
        counters.stopped += reason == "stop"
        counters.cut += reason == "length"


def salt_of(text: str) -> int:
    """A cache salt as the number that goes into the first hash."""
    value = NO_HASH
    for byte in text.encode():
        value = combine(value, byte)
    return value
