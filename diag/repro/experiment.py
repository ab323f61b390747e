"""The arms of the experiment against one endpoint: baseline, control, pressure; every suspicion is put to the test at once.

A prompt that is asked often stays in the cache, one that rests long is evicted whole; holes come about between the two.
So after a full hit a prompt rests twice as long, after a miss less: it hovers where its blocks are being evicted.
"""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from diag.repro import baseline, variants
from diag.repro.baseline import Asker, Good
from diag.repro.classing import DIFFERENT, ECHO, EMPTY, ERROR, GARBLED, GROSS, UNJUDGED, classify, is_garbled
from diag.repro.client import Endpoint, Spoken, Trouble
from diag.repro.gauge import Gauge
from diag.repro.near_ties import is_near_tie
from diag.repro.prompts import Prompt
from diag.repro.record import Arm, Cache, GoodAnswers, Run, Settings, Trial, TrialKind
from diag.repro.sending import EndpointDead, Sender, Stop, Stopped

EXCERPT = 200
HITS_A_FILL, EVICTED_A_FILL = 10, 2
"""For each time that the cache is to be filled: re-asks that used cached blocks when it was full, and re-asks whose blocks
had been evicted, at least in part. Only together they say that a lookup met chains in every state."""
REASKS_AFTER_FAILURE = 10
REPEATS = 4
"""How often the first failure is asked again at once."""
LONGEST_REST = 4096
MAX_BATCH = 32
ODD = 4
SUSPICIOUS_VARIANT = frozenset({EMPTY, GARBLED, ECHO})
Told = Callable[[str, float], None]
Judge = Callable[[Spoken], tuple[str, bool]]
"""Answer -> (class, suspicious?)"""


class _Over(Exception):
    """A limit was reached: `ended` of the run, and why."""


@dataclass
class _State:
    """How long one prompt rests before it is asked again, in variants."""

    rest: float
    due: int = 0
    best: int | None = None
    """Most cached tokens that were seen for it."""
    steps: int = 0


@dataclass
class Experiment:
    """One run. `told(what, share)` hears how far it is. Not to be used twice."""

    endpoint: Endpoint
    model: str
    models: Sequence[dict[str, Any]]
    prompts: Sequence[Prompt]
    settings: Settings
    stop: Stop
    told: Told = lambda what, share: None
    trials: list[Trial] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.settings
        body = {"model": self.model, "temperature": 0, "seed": s.seed, "max_tokens": s.max_tokens}
        self._sender = Sender(self.endpoint, body, s.rate, self.stop)
        self._asker = Asker(self._sender)
        self._gauge = Gauge(self.endpoint, self.stop)
        self._good: list[Good] = []
        self._ordinals: dict[str, int] = {}
        self._started = time.monotonic()
        self._began = time.time()
        self._hits_when_full = 0
        self._left = REASKS_AFTER_FAILURE
        self._first_failed: int | None = None
        self._control_new: list[int] = []
        self._chance = random.Random(f"{s.seed}:rest")
        self._arm: Arm = "baseline"

    def run(self) -> Run:
        """All arms, until enough was seen, a limit, a failure that was measured, a wish to stop, or the death of the endpoint.

        Raises LlmdiagError when the endpoint cannot be used at all.
        """
        try:
            self._baseline()
            self._in_arm("control", self.settings.control)
            self._in_arm("pressure", None)
            ended, because = "limit", "nothing was left to ask"
        except _Over as over:
            ended, because = over.args
        except Stopped:
            ended, because = "interrupted", "stopped by Ctrl-C or SIGTERM"
        except EndpointDead as dead:
            ended, because = "endpoint-dead", str(dead)
        return self._record(ended, because)

    def _record(self, ended: Any, because: str) -> Run:
        self._gauge.last()
        control = self._control_new
        good = tuple(
            GoodAnswers(number, item.stable, item.answers[0].text[:EXCERPT], item.expect_met) for number, item in enumerate(self._good)
        )
        cache = Cache(
            self._gauge.first, self._gauge.now, self._gauge.new_tokens, self._gauge.full_by, self._gauge.shared,
            sum(control) / len(control) if control else None, self._gauge.evicted, self._hits_when_full,
        )
        return Run(
            self.endpoint.place.shown, self.model, self._began, time.monotonic() - self._started, ended, because, self.settings,
            self._asker.bypass, good, cache, tuple(self.trials), dict(self._sender.statuses), tuple(self.warnings),
        )

    def _baseline(self) -> None:
        self.told("baseline", 0.0)
        self._gauge.begin()
        self._asker.bypass = baseline.choose(self._asker, self.prompts[0], self._first, self.models, self._gauge.first.family)
        for number, prompt in enumerate(self.prompts):
            self.told(f"baseline, prompt {number + 1} of {len(self.prompts)}", 0.0)
            good, warning = baseline.good_answers(self._asker, prompt, partial(self._note_baseline, number))
            self._good.append(good)
            self.warnings += [warning] if warning else []
            self._reask(number)

    def _first(self, ask: Callable[[], Spoken | Trouble]) -> tuple[Spoken | Trouble, bool | None]:
        found, hit = self._measured(ask)
        self._note("baseline", 0, found, hit, "baseline", False, name=UNJUDGED)
        return found, hit

    def _note_baseline(self, number: int, found: Spoken | Trouble, bypassed: bool) -> None:
        self._note("baseline", number, found, None, "baseline", False, name=UNJUDGED, bypass=bypassed)

    def _in_arm(self, arm: Arm, most: int | None) -> None:
        """Variants with re-asks between them; `most` variants, or until enough was seen."""
        self._arm = arm
        states = [_State(float(self.settings.every)) for _ in self.prompts]
        for number, state in enumerate(states):
            state.due = self.settings.every + number
        sent = 0
        while most is None or sent < most:
            batch = min(state.due for state in states) - sent
            batch = max(1, min(batch, MAX_BATCH, batch if most is None else most - sent))
            self._variants(arm, sent, batch)
            sent += batch
            for number, state in enumerate(states):
                if state.due <= sent:
                    self._due(number, state, sent)

    def _due(self, number: int, state: _State, sent: int) -> None:
        """Ask a prompt as it is, and decide how long it rests now."""
        trial = self._reask(number)
        tokens = trial.cached_tokens
        if self._first_failed is not None or self._arm == "control":
            state.rest = self.settings.every
        elif tokens is None:
            state.steps += 1
            state.rest = self.settings.every * 2.0 ** (state.steps % 6)
        elif tokens > 0 and tokens >= (state.best or 0):
            state.rest = min(LONGEST_REST, state.rest * 2)
        else:
            state.rest = max(1.0, state.rest * 0.6)
        state.best = tokens if state.best is None or (tokens or 0) > state.best else state.best
        state.due = sent + max(1, round(state.rest * self._chance.uniform(0.75, 1.25)))

    def _variants(self, arm: Arm, first: int, count: int) -> None:
        """As many at a time as was allowed; what they answered is judged when all of these are there, so that it is asked again alone."""
        make = variants.control if arm == "control" else variants.pressure
        step = self.settings.concurrency
        for start in range(first, first + count, step):
            self._check_limits()
            numbers = range(start, min(start + step, first + count))
            made = [make(self.prompts, number, self.settings.seed) for number in numbers]
            for number, prompt, found in zip(numbers, made, self._side_by_side(made), strict=True):
                self._variant(arm, number, prompt, found)

    def _side_by_side(self, made: Sequence[Prompt]) -> list[Spoken | Trouble]:
        if len(made) == 1:
            return [self._asker.plain(made[0])]
        with ThreadPoolExecutor(len(made), thread_name_prefix="ask") as pool:
            return list(pool.map(self._asker.plain, made))

    def _variant(self, arm: Arm, number: int, prompt: Prompt, found: Spoken | Trouble) -> None:
        origin = number % len(self.prompts)
        name, suspicious = ERROR, False
        if isinstance(found, Spoken):
            name = self._class_of_variant(prompt, origin, found)
            suspicious = name in SUSPICIOUS_VARIANT
            if arm == "control" and found.prompt_tokens is not None and found.cached_tokens is not None:
                self._control_new.append(found.prompt_tokens - found.cached_tokens)
        trial = self._note(arm, origin, found, None, "variant", suspicious, name=name, variant=number)
        if suspicious:
            self._put_to_the_test(trial, prompt, lambda answer: (got := self._class_of_variant(prompt, origin, answer), got in SUSPICIOUS_VARIANT))

    def _class_of_variant(self, prompt: Prompt, origin: int, found: Spoken) -> str:
        """There is no good answer to it, only to the prompt it was made from: gross failures show all the same."""
        good = self._good[origin]
        name = classify(found.answer, good.answers, prompt.plain())
        if name == GARBLED and good.odd and not is_garbled(found.answer.text, good.odd, prompt.plain()):
            return UNJUDGED
        return name if name in SUSPICIOUS_VARIANT else UNJUDGED

    def _reask(self, number: int) -> Trial:
        """A failing prompt as it stands in the file, judged; a suspicion is put to the test."""
        self._check_limits()
        prompt, good = self.prompts[number], self._good[number]
        found, hit = self._measured(lambda: self._asker.plain(prompt))
        name, suspicious = good.judge(found.answer, prompt.plain()) if isinstance(found, Spoken) else (ERROR, False)
        trial = self._note(self._arm, number, found, hit, "reask", suspicious, name=name)
        if self._gauge.full_by and hit and self._arm == "pressure":
            self._hits_when_full += 1
        self._left -= self._first_failed == number
        known = any(other.reproduced and other.prompt == number and other.kind == "reask" for other in self.trials)
        if suspicious and isinstance(found, Spoken) and not known:
            trial = self._put_to_the_test(trial, prompt, lambda answer: self._good[number].judge(answer.answer, prompt.plain()), found)
        return trial

    def _put_to_the_test(self, trial: Trial, prompt: Prompt, judge: Judge, first: Spoken | None = None) -> Trial:
        """Asked once more as it was, then past the cache: a failure of the cache is there again, and then gone."""
        again = self._again(trial, prompt, judge, "confirm", bypass=False)
        note = ""
        if again is None or not again[1]:
            note = "asked again it was right" if again is not None else "no answer when asked again"
        else:
            past = self._again(trial, prompt, judge, "confirm", bypass=True)
            if past is None:
                note = "no answer with the cache bypassed"
            elif past[1]:
                note = "just the same with the cache bypassed"
                self._learn(trial, past[2])
            elif first is not None and self._is_noise(trial.prompt, (first, again[2])):
                note = "it leaves the good answer where two tokens were equally likely"
        judged = replace(trial, reproduced=not note, note=note)
        self.trials[self.trials.index(trial)] = judged
        if judged.reproduced and self._first_failed is None:
            self._first_failed = trial.prompt
            for _ in range(REPEATS):
                self._again(trial, prompt, judge, "repeat", bypass=False)
        return judged

    def _again(
        self, trial: Trial, prompt: Prompt, judge: Judge, kind: TrialKind, *, bypass: bool
    ) -> tuple[str, bool, Spoken] | None:
        """(class, suspicious?, answer) of the same question asked again; None: no answer."""
        found, hit = self._measured(lambda: self._asker.bypassed(prompt) if bypass else self._asker.plain(prompt))
        name, suspicious = judge(found) if isinstance(found, Spoken) else (ERROR, False)
        self._note(trial.arm, trial.prompt, found, hit, kind, suspicious, name=name, variant=trial.variant, bypass=bypass)
        return (name, suspicious, found) if isinstance(found, Spoken) else None

    def _learn(self, trial: Trial, past: Spoken) -> None:
        """An answer past the cache is right by definition; if it is a new one, this prompt has no one right answer."""
        good = self._good[trial.prompt]
        if trial.kind == "variant":
            self._good[trial.prompt] = replace(good, odd=(*good.odd, past.answer.text)[-ODD:])
        else:
            if good.stable and good.also(past.answer) is not good:
                self.warnings.append(f"line {self.prompts[trial.prompt].line}: later the answer past the cache was another one: only gross failures are judged from then on")
            self._good[trial.prompt] = replace(good.also(past.answer), stable=good.stable and good.also(past.answer) is good)

    def _is_noise(self, number: int, found: Sequence[Spoken]) -> bool:
        """Not for empty answers and echoes: no toss of a coin explains those."""
        good = self._good[number]
        names = {good.judge(item.answer, self.prompts[number].plain())[0] for item in found}
        return names <= {DIFFERENT, GARBLED, "cut-short"} and all(any(is_near_tie(steps, item.answer.text) for steps in good.steps) for item in found)

    def _measured(self, ask: Callable[[], Spoken | Trouble]) -> tuple[Spoken | Trouble, bool | None]:
        """Ask alone, with a read of the counters before and after it."""
        found, hit, tokens = self._gauge.around(ask, knows=lambda: self._asker.tells_cached)
        if isinstance(found, Spoken) and found.cached_tokens is None and tokens is not None:
            found = replace(found, cached_tokens=tokens)
        return found, hit

    def _note(
        self, arm: Arm, number: int, found: Spoken | Trouble, hit: bool | None, kind: TrialKind, suspicious: bool, *,
        name: str, variant: int | None = None, bypass: bool = False,
    ) -> Trial:
        """One more trial."""
        self._ordinals[arm] = ordinal = self._ordinals.get(arm, 0) + 1
        is_answer = isinstance(found, Spoken)
        cached = found.cached_tokens if isinstance(found, Spoken) else None
        prompt_tokens = found.prompt_tokens if isinstance(found, Spoken) else None
        if isinstance(found, Spoken):
            self._gauge.own(prompt_tokens, cached, is_plain_reask=kind == "reask", number=number)
        excerpt = found.answer.text[:EXCERPT] if isinstance(found, Spoken) and (suspicious or name in GROSS or name == DIFFERENT) else ""
        trial = Trial(
            arm, ordinal, kind, number, name if is_answer else ERROR, suspicious, None, hit if cached is None else cached > 0, cached, prompt_tokens, bypass,
            round(found.seconds, 4), time.time() - found.seconds, variant, excerpt, "" if isinstance(found, Spoken) else f"{found.label}: {found.says}",
            found.request, found.sent,
        )
        self.trials.append(trial)
        return trial

    def _check_limits(self) -> None:
        """Raises Stopped or _Over."""
        s, asked = self.settings, len(self.trials)
        seconds = time.monotonic() - self._started
        if self.stop.is_set():
            raise Stopped
        if self._left <= 0:
            raise _Over("reproduced", f"a failure was reproduced and its prompt asked {REASKS_AFTER_FAILURE} more times")
        if self._first_failed is None and self._seen() >= 1:
            raise _Over("full", f"enough was seen: {self._hits_when_full} re-asks used cached blocks after the cache had been full")
        if asked >= s.limit:
            raise _Over("limit", f"{s.limit} requests")
        if seconds >= s.minutes * 60:
            raise _Over("minutes", f"{s.minutes:g} minutes")
        self._say(asked, seconds)

    def _seen(self) -> float:
        """How much of what is to be seen in a full cache was seen, 0 to 1."""
        gauge = self._gauge
        fills = self.settings.fills
        filled = fills if gauge.capacity is None else gauge.new_tokens / gauge.capacity
        evicted = fills if not gauge.tells and gauge.full_by else gauge.evicted / EVICTED_A_FILL
        return min(filled, evicted, self._hits_when_full / HITS_A_FILL) / fills

    def _say(self, asked: int, seconds: float) -> None:
        s, gauge = self.settings, self._gauge
        share = min(1.0, max(asked / s.limit, seconds / (s.minutes * 60), self._seen()))
        failures = sum(bool(trial.reproduced) for trial in self.trials)
        left = f", {_span(seconds / share - seconds)} left" if share > 0.02 else ""
        fill = f", cache filled {gauge.new_tokens / gauge.capacity:.1f} times" if gauge.capacity else ""
        self.told(f"{self._arm} arm{left}, {asked} requests, {failures} failed{fill}", share)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
