"""Live backends -> verdicts, once or again and again. What may be sent to whom is decided here.

GET /metrics goes to every backend at every read, and nothing else while anything runs. Only an engine that said idle twice
is asked one short question. A proxy is asked which models it lists, and nothing else ever.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from diag.cache.interrupts import Stop
from diag.health import probing, proof
from diag.health.budget import ADMISSION_S, Budget
from diag.health.polling import Backend, Look, rounds
from diag.health.process_evidence import STACKS_S, Watch
from diag.health.reads import Read
from diag.health.recording import Recorder
from diag.health.states import ProbeResult
from diag.health.verdict import EXIT, BackendVerdict, judge, tail
from diag.repro.http_post import Wire

ASK_AGAIN_S = 60.0
"""How long an answer to a question speaks for an idle engine that is being watched."""
READS_AFTER = 2
"""Reads after a question that was not answered, or late: perhaps it met a burst of work."""
SLOW_ANSWER_S = 2.0
"""One token of an idle engine takes less; the first one after a start, that compiles, is work too."""
SUCCEEDED = "the service of --pid is gone, and what answers now is another one: it is judged by its reads alone; give a pid of the new one"
Source = Literal["live", "proxy", "recorded"]
Told = Callable[[str, float], None]


@dataclass(frozen=True)
class Settings:
    """All in seconds but `reads`. `model` None: the first that /v1/models lists.

    `patience_s`: how long reads go on beyond `reads` while a backend is busy and nothing is proved either way.
    """

    reads: int = 3
    interval_s: float = 10.0
    timeout_s: float = 5.0
    probe: bool = True
    probe_timeout_s: float = 300.0
    model: str | None = None
    patience_s: float = 0.0
    budget: Budget = field(default_factory=Budget)

    @property
    def longest_s(self) -> float:
        """A check takes no longer than that."""
        step_s = max(self.interval_s, self.timeout_s + 1.0) + 5.0
        question_s = 2 * self.probe_timeout_s + probing.MODELS_S + READS_AFTER * step_s if self.probe else 0.0
        return self.reads * step_s + question_s * (2 if self.patience_s else 1) + max(self.patience_s, ADMISSION_S)


@dataclass(frozen=True)
class Checked:
    """One backend and what is so. `asked` says in words what became of the question, "" where none was asked."""

    url: str
    source: Source
    verdict: BackendVerdict
    asked: str = ""
    notes: tuple[str, ...] = ()


@dataclass
class _Sequence:
    """The reads of one backend so far, and the last question to it."""

    backend: Backend
    reads: list[Read] = field(default_factory=list)
    asked: probing.Asked | None = None
    asked_after: int = 0
    """How many of the reads had been made when it was sent."""
    asked_at: float | None = None
    asking: threading.Thread | None = None
    models: probing.Models | None = None

    def add(self, look: Look, budget: Budget) -> None:
        kept = list(tail([*self.reads, look.read], budget))
        self.asked_after = max(0, self.asked_after - (len(self.reads) + 1 - len(kept)))
        self.reads = kept

    @property
    def probe(self) -> ProbeResult | None:
        said = self.asked
        return None if said is None else ProbeResult(said.sent, said.ok, said.seconds, said.status, self.asked_after)

    @property
    def waited(self) -> bool:
        """Its answer took so long that it may have stood behind something that no gauge showed."""
        return self.asked is not None and self.asked.ok is True and (self.asked.seconds or 0.0) >= SLOW_ANSWER_S

    @property
    def unanswered(self) -> bool:
        return self.asked is not None and self.asked.sent and not self.asked.ok


class Checker:
    """A check of several backends. `watch` speaks for the only one; `recorder` keeps what came."""

    def __init__(
        self, wire: Wire, backends: Sequence[Backend], settings: Settings, stop: Stop, *, watch: Watch | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self._wire = wire
        self._settings = settings
        self._stop = stop
        self._watch = watch
        self._recorder = recorder
        self._all = [_Sequence(backend) for backend in backends]
        self._read = [item for item in self._all if not item.backend.proxy]
        self._proxies = [item for item in self._all if item.backend.proxy]

    def once(self, told: Told = lambda what, share: None) -> list[Checked]:
        """`reads` reads, then a question to those that are idle. Raises KeyboardInterrupt when stopped before there was a read."""
        if self._read:
            self._some(self._settings.reads, told)
            if not self._read[0].reads:
                raise KeyboardInterrupt
            self._question_all(told)
            self._settle(told)
            if any(item.asked is None and self._verdict(item).may_probe for item in self._read):
                self._question_all(told)
        self._ask_proxies()
        return self._checked()

    def watching(self) -> Iterator[list[Checked]]:
        """A verdict after each read, until it is stopped. A question does not hold up the reads."""
        for _ in self._rounds():
            self._ask()
            self._ask_proxies()
            yield self._checked()

    def _settle(self, told: Told) -> None:
        """More reads while something is open that they may decide, within the patience, or the few seconds that a queue must be seen."""
        patience_s, began = self._settings.patience_s, time.monotonic()
        if patience_s <= 0 and self._is_queue():
            patience_s = ADMISSION_S
        if patience_s <= 0 or not self._is_open():
            return
        for _ in self._rounds():
            spent_s = time.monotonic() - began
            told(f"busy, and nothing is proved yet: {spent_s:.0f} of {patience_s:.0f} s", min(1.0, spent_s / patience_s))
            if not self._is_open() or spent_s + self._settings.interval_s > patience_s:
                return

    def _is_queue(self) -> bool:
        """Requests wait and none runs, and the reads so far lie too close together to prove anything."""
        return self._settings.budget.admission_s <= ADMISSION_S and any(
            engine.state == "busy-unproven" and engine.running == 0 and engine.flat_s is not None and (engine.budget_s or 0.0) > engine.flat_s
            for item in self._read for engine in self._verdict(item).engines if engine.budget_s == self._settings.budget.admission_s
        )

    def _is_open(self) -> bool:
        return any(self._verdict(item).state == "busy-unproven" for item in self._read)

    def _some(self, count: int, told: Told) -> None:
        for number, _ in zip(range(1, count + 1), self._rounds(), strict=False):
            told(f"read {number} of {count}", number / count)

    def _rounds(self) -> Iterator[None]:
        """Reads go into the sequences. The first is due at once when there was none, else after the interval."""
        settings = self._settings
        if any(item.reads for item in self._read) and self._stop.wait(settings.interval_s):
            return
        backends = [item.backend for item in self._read]
        for looks in rounds(self._wire, backends, interval_s=settings.interval_s, timeout_s=settings.timeout_s, stop=self._stop):
            for item, look in zip(self._read, looks, strict=True):
                if self._recorder is not None:
                    self._recorder.add(look)
                item.add(look, settings.budget)
            if self._watch is not None:
                self._watch.look(min(settings.interval_s, STACKS_S))
                if self._recorder is not None:
                    self._recorder.add_processes(self._watch.evidence().looks[-1])
            yield

    def _question_all(self, told: Told) -> None:
        """Ask those that are idle and wait for the answers; look again where one came late or not at all."""
        self._ask()
        told(f"a short question, at most {self._settings.probe_timeout_s:g} s", 1.0)
        self._join([item.asking for item in self._read])
        if any(item.unanswered or item.waited for item in self._read):
            self._some(READS_AFTER, told)

    def _ask(self) -> None:
        """One question to each backend that is idle and has not been asked lately."""
        now = time.monotonic()
        for item in self._read if self._settings.probe else ():
            is_asking = item.asking is not None and item.asking.is_alive()
            if is_asking or (item.asked_at is not None and now - item.asked_at < ASK_AGAIN_S):
                continue
            item.asked = None
            if self._verdict(item).may_probe:
                item.asked_after = len(item.reads)
                item.asking = threading.Thread(target=self._question, args=(item,), name="question", daemon=True)
                item.asking.start()

    def _question(self, item: _Sequence) -> None:
        said = probing.ask(self._wire, item.backend, self._settings.model, self._settings.probe_timeout_s)
        item.asked_at = time.monotonic()
        item.asked = said

    def _ask_proxies(self) -> None:
        def work(item: _Sequence) -> None:
            item.models = probing.models(self._wire, item.backend, self._settings.timeout_s)

        threads = [threading.Thread(target=work, args=(item,), name="models", daemon=True) for item in self._proxies]
        for thread in threads:
            thread.start()
        self._join(threads)

    def _join(self, threads: Sequence[threading.Thread | None]) -> None:
        """Ends when all of them have, or soon after it is stopped."""
        for thread in threads:
            while thread is not None and thread.is_alive():
                if self._stop.is_set():
                    self._wire.stop()
                thread.join(0.1)

    def _verdict(self, item: _Sequence) -> BackendVerdict:
        evidence = None if self._watch is None else self._watch.evidence()
        return judge(item.reads, evidence=evidence, budget=self._settings.budget, probe=item.probe)

    def _succeeded(self) -> bool:
        """The processes that are looked at are gone, and yet there are answers."""
        return self._watch is not None and proof.outlived(self._watch.evidence()) and any(item.reads and item.reads[-1].samples for item in self._read)

    def _checked(self) -> list[Checked]:
        notes = () if self._watch is None else (*self._watch.notes, *([SUCCEEDED] if self._succeeded() else []))
        return [
            Checked(item.backend.url, "proxy", of_proxy(item.models)) if item.backend.proxy
            else Checked(item.backend.url, "live", self._verdict(item), "" if item.asked is None else item.asked.says, notes)
            for item in self._all
        ]


def of_proxy(models: probing.Models | None) -> BackendVerdict:
    """A proxy that lists models answers; what its backends do is not to be learnt through it."""
    if models is None:
        return BackendVerdict("unreachable", "it was not asked", EXIT["unreachable"])
    if models.outcome in ("timeout", "refused", "reset"):
        return BackendVerdict("unreachable", f"a proxy that gives no answer: {models.problem}", EXIT["unreachable"])
    if not models.names:
        return BackendVerdict("unreadable", f"a proxy: {models.problem}", EXIT["unreadable"])
    count = f"{len(models.names)} model{'' if len(models.names) == 1 else 's'}"
    reason = f"a proxy that answers and lists {count}; check its backends one by one: through it each read may come from another one"
    return BackendVerdict("idle-unproven", reason, EXIT["idle-unproven"])
