"""How full the prefix cache is and whether a question was a hit, read from outside while the experiment runs."""

from collections.abc import Callable
from dataclasses import replace

from diag.repro.client import Endpoint, Spoken, Trouble
from diag.repro.counters import Counters
from diag.repro.sending import Stop

SETTLE_READS = 5
SETTLE_S = 0.1
"""Between reads while the counters lag behind an answer that is here already."""
FULL_USAGE = 0.98


class Gauge:
    """Counters of one endpoint over one experiment. `full_by`, `shared`, `evicted` and `new_tokens` only ever grow."""

    def __init__(self, endpoint: Endpoint, stop: Stop) -> None:
        self.first = Counters()
        self.now = Counters()
        self.full_by = ""
        self.shared = False
        self.evicted = 0
        """Re-asks that found fewer tokens of their prompt in the cache than there had been."""
        self._endpoint = endpoint
        self._stop = stop
        self._unit = 1
        """Tokens of one count (vLLM 0.8 counts blocks)."""
        self._own_new = 0
        self._best: dict[int, int] = {}
        self.tells = False
        """Whether cached tokens of a re-ask were ever known."""

    @property
    def capacity(self) -> int | None:
        """Tokens that the cache holds."""
        return self.now.capacity_tokens or self.first.capacity_tokens

    @property
    def new_tokens(self) -> float:
        """Computed anew since `begin`: what fills the cache."""
        if self.first.queries is None or self.first.hits is None or self.now.queries is None or self.now.hits is None:
            return self._own_new
        return max(0.0, (self.now.queries - self.first.queries) - (self.now.hits - self.first.hits)) * self._unit

    def begin(self) -> None:
        """The first read."""
        self.first, path = self._endpoint.counters()
        self.now = self.first
        self._endpoint = replace(self._endpoint, metrics_path=path) if path else self._endpoint

    def last(self) -> None:
        """One more read, where there is something to read."""
        if self.first.family is not None:
            self._read()

    def around(self, ask: Callable[[], Spoken | Trouble], *, knows: Callable[[], bool]) -> tuple[Spoken | Trouble, bool | None, int | None]:
        """(what was answered, was it a hit, how many tokens of it). None: nothing tells, or others ask at the same time.

        `knows`: the answers themselves tell their cached tokens, so that nothing has to be waited for.
        """
        if self.first.hits is None:
            found = ask()
            cached = found.cached_tokens if isinstance(found, Spoken) else None
            self.last()
            return found, None if cached is None else cached > 0, cached
        before = self._read()
        found = ask()
        if not isinstance(found, Spoken):
            return found, None, None
        after = self._settled(before, found, waits=not knows())
        tokens = found.cached_tokens if found.cached_tokens is not None else self._hit_tokens(before, after, found)
        return found, None if tokens is None else tokens > 0, tokens

    def own(self, prompt_tokens: int | None, cached_tokens: int | None, *, is_plain_reask: bool, number: int) -> None:
        """Learn from one answer of our own."""
        if prompt_tokens is not None:
            self._own_new += prompt_tokens - (cached_tokens or 0)
        if not is_plain_reask or cached_tokens is None:
            return
        self.tells = True
        best = self._best.get(number, 0)
        if best > cached_tokens:
            self.evicted += 1
            self.full_by = self.full_by or f"a prompt that had {best} tokens in the cache had {cached_tokens} later: it was evicted"
        self._best[number] = max(best, cached_tokens)

    def _read(self) -> Counters:
        found, _ = self._endpoint.counters()
        if found.family is None:  # this time it did not answer
            return self.now
        self.now = found
        self._look()
        return found

    def _look(self) -> None:
        """Is it full now?"""
        if self.full_by:
            return
        capacity = self.capacity
        if self.now.evictions is not None and self.first.evictions is not None and self.now.evictions > self.first.evictions:
            self.full_by = "the engine counts evictions"
        elif capacity is not None and self.new_tokens >= capacity:
            self.full_by = f"{self.new_tokens:.0f} new tokens, it holds {capacity}"
        elif self.now.usage is not None and self.now.usage >= FULL_USAGE:
            self.full_by = f"its usage was {self.now.usage:.0%}"

    def _settled(self, before: Counters, found: Spoken, *, waits: bool) -> Counters:
        after = self._read()
        for _ in range(SETTLE_READS if waits else 0):
            if after.queries is None or before.queries is None or after.queries > before.queries or self._stop.wait(SETTLE_S):
                break
            after = self._read()
        return after

    def _hit_tokens(self, before: Counters, after: Counters, found: Spoken) -> int | None:
        """By the counters, if nobody else moved them."""
        if None in (before.hits, after.hits, before.queries, after.queries) or found.prompt_tokens is None:
            return None
        asked, hits = after.queries - before.queries, after.hits - before.hits  # type: ignore[operator]
        block = self.now.block_size or 1
        if abs(asked - found.prompt_tokens) <= 1:
            return int(hits)
        if block > 1 and abs(asked * block - found.prompt_tokens) <= block:
            self._unit = block
            return int(hits) * block
        self.shared = self.shared or asked > found.prompt_tokens
        return None

