"""What follows from an experiment: reproduced, no failure, or not exercised - and why. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from diag.repro.record import Arm, Run, Trial

ARMS: tuple[Arm, ...] = ("baseline", "control", "pressure")
MIN_HITS = 5
"""Re-asks that used cached blocks after the cache had been full; with fewer no failure says too little."""
RESTART_FIRST = "restart the engine, then run it again: only then it shows what makes it bad"
BEFORE_PRESSURE: Mapping[Arm, str] = {
    "baseline": f"it failed before the first variant was sent: the cache was bad already before this run; {RESTART_FIRST}",
    "control": f"it failed in the control arm, which fills no new blocks: most likely the cache was bad already before this run; {RESTART_FIRST}",
}
EXITS = {"no-failure": 0, "reproduced": 1, "endpoint-dead": 2, "not-exercised": 3}


@dataclass(frozen=True)
class ArmReport:
    """One arm in figures."""

    arm: Arm
    requests: int
    variants: int
    reasks: int
    hits: int
    """Re-asks that used cached blocks."""
    hits_unknown: int
    failures: int
    """Reproduced: there when asked again, gone with the cache bypassed."""
    noise: int
    """Suspicious, and not reproduced."""
    no_answer: int
    first_failure: int | None
    """Ordinal of the first reproduced failure within the arm, from 1."""
    first_variants: int | None
    """Variants sent in this arm before it."""
    first_class: str | None
    stickiness: float | None
    """Share of the later re-asks of the same prompt that failed, too. None: there were none."""
    sticky_at_once: float | None
    """The same of the first failing question asked again at once, without variants between. None: it was not."""
    classes: Mapping[str, int]
    """Answers of re-asks and variants by class."""


@dataclass(frozen=True)
class Verdict:
    """The answer. `because` are sentences, the most important first."""

    verdict: Literal["reproduced", "no-failure", "not-exercised", "endpoint-dead"]
    exercised: bool
    """Re-asks used cached blocks, and did so after the cache had been full."""
    healed_by_bypass: bool | None
    """The failing prompts were right with the cache bypassed. None: nothing failed."""
    because: tuple[str, ...]
    arms: tuple[ArmReport, ...]

    @property
    def exit_code(self) -> int:
        return EXITS[self.verdict]


def judge(run: Run) -> Verdict:
    """Facts -> verdict."""
    arms = tuple(_arm(arm, [trial for trial in run.trials if trial.arm == arm]) for arm in ARMS)
    failed = [trial for trial in run.trials if trial.reproduced]
    missing = _missing(run, arms)
    if failed:
        return Verdict("reproduced", not missing, True, tuple(_reproduced(failed, arms)), arms)
    if run.ended == "endpoint-dead":
        return Verdict("endpoint-dead", not missing, None, (run.ended_because, *missing), arms)
    if missing:
        return Verdict("not-exercised", False, None, missing, arms)
    evicted = f", {run.cache.evicted} times blocks of a failing prompt were evicted" if run.cache.evicted else ""
    full = f"the cache was full ({run.cache.full_by}){evicted}, and {run.cache.hits_when_full} re-asks used cached blocks after that"
    return Verdict("no-failure", True, None, (full,), arms)


def _missing(run: Run, arms: Sequence[ArmReport]) -> tuple[str, ...]:
    """Why no failure means nothing here; empty where it means something."""
    found = []
    reasked = sum(arm.reasks for arm in arms)
    if not any(arm.hits for arm in arms):
        if sum(arm.hits_unknown for arm in arms) == reasked:
            told = "with other requests at the same time the counters do not tell" if run.cache.shared else "the endpoint does not tell"
            found.append(f"whether cached blocks were ever used is not known: {told} (vLLM: --enable-prompt-tokens-details, or its /metrics)")
        else:
            found.append("no re-ask used cached blocks: is the prefix cache on, and are the prompts longer than a block?")
    if not run.cache.full_by:
        capacity = run.cache.after.capacity_tokens
        size = f"{run.cache.new_tokens:.0f} new tokens of {capacity}" if capacity is not None else f"{run.cache.new_tokens:.0f} new tokens, its size is not known"
        found.append(f"nothing shows that the cache was ever full ({size}): allow more with --limit and --minutes")
    elif not run.cache.evicted and any(trial.kind == "reask" and trial.cached_tokens is not None for trial in run.trials):
        found.append(f"the cache was full ({run.cache.full_by}), but no block of the failing prompts was evicted: allow more with --limit and --minutes")
    elif run.cache.hits_when_full < MIN_HITS:
        found.append(f"only {run.cache.hits_when_full} re-asks used cached blocks after the cache had been full: allow more with --limit and --minutes")
    return tuple(found)


def _reproduced(failed: Sequence[Trial], arms: Sequence[ArmReport]) -> list[str]:
    first = failed[0]
    what = f"variant {first.variant} of prompt {first.prompt}" if first.variant is not None else f"prompt {first.prompt}"
    found = [f"{what} failed ({first.answer_class}) at request {first.ordinal} of the {first.arm} arm, failed again when asked again, and was right with the cache bypassed"]
    if first.arm in BEFORE_PRESSURE:
        found.append(BEFORE_PRESSURE[first.arm])
    if first.hit is False:
        found.append("no cached block was used for the first failing answer by the endpoint's own figures: they do not fit together")
    classes = Counter(trial.answer_class for trial in failed)
    if set(classes) <= {"different"}:
        found.append("all failing answers are plausible, only different; without log-probabilities a near tie of two tokens cannot be told from it")
    failing = next(arm for arm in arms if arm.arm == first.arm)
    if failing.sticky_at_once is not None:
        later = "" if failing.stickiness is None else f", and later, with other requests between, in {failing.stickiness:.0%}"
        found.append(
            f"it sticks: of its repetitions at once {failing.sticky_at_once:.0%} were wrong too{later}" if failing.sticky_at_once
            else "asked again at once several times it was right: it does not stick"
        )
    control = next(arm for arm in arms if arm.arm == "control")
    if not control.failures and control.requests and first.arm == "pressure":
        found.append(f"{control.requests} requests with the prefix untouched did not fail: neither model nor prompt, but what happens to blocks under pressure")
    return found


def _arm(arm: Arm, trials: Sequence[Trial]) -> ArmReport:
    asked = [trial for trial in trials if trial.kind == "reask"]
    first = next((trial for trial in trials if trial.reproduced), None)
    later = [] if first is None else [trial for trial in asked if trial.prompt == first.prompt and trial.ordinal > first.ordinal and trial.answer_class != "error"]
    return ArmReport(
        arm, len(trials), sum(trial.kind == "variant" for trial in trials), len(asked), sum(bool(trial.hit) for trial in asked),
        sum(trial.hit is None for trial in asked), sum(bool(trial.reproduced) for trial in trials), sum(trial.reproduced is False for trial in trials),
        sum(trial.answer_class == "error" for trial in trials), None if first is None else first.ordinal,
        None if first is None else sum(trial.kind == "variant" and trial.ordinal < first.ordinal for trial in trials),
        None if first is None else first.answer_class,
        _share(later), _share([trial for trial in trials if trial.kind == "repeat" and trial.answer_class != "error"]),
        dict(Counter(trial.answer_class for trial in trials if trial.kind in ("reask", "variant"))),
    )


def _share(trials: Sequence[Trial]) -> float | None:
    return sum(trial.suspicious for trial in trials) / len(trials) if trials else None


MARKS = {"same": ".", "different": "~", "empty": "E", "cut-short": "C", "echo": "P", "garbled": "G", "error": "!", "unjudged": "."}
LEGEND = ". same  ~ different, but noise  D different and wrong  E empty  C cut short  P echo of the prompt  G garbled  ! no answer"


def timeline(trials: Sequence[Trial], width: int) -> tuple[str, int]:
    """Re-asks in order, one character each, and how many of them one character stands for (its worst)."""
    asked = [trial for trial in trials if trial.kind == "reask"]
    step = max(1, -(-len(asked) // max(1, width)))
    return "".join(max((_mark(trial) for trial in asked[place : place + step]), key=_weight) for place in range(0, len(asked), step)), step


def _mark(trial: Trial) -> str:
    """A later re-ask of a prompt that failed is not put to the test again."""
    is_wrong = trial.answer_class == "different" and trial.suspicious and trial.reproduced is not False
    return "D" if is_wrong else MARKS[trial.answer_class]


def _weight(mark: str) -> int:
    return ".!~".find(mark) if mark in ".!~" else 3 + ("DCPGE".find(mark))
