"""What the experiment with a prefix cache found, as JSON (`llmdiag.repro/1`: repro.schema.json), and as lines of text. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from diag.report.answers import beside, grep
from diag.report.inert import inert
from diag.repro.prompts import Prompt
from diag.repro.record import Run, Trial
from diag.repro.verdict import ARMS, LEGEND, ArmReport, Verdict, timeline

SCHEMA = "llmdiag.repro/1"
COLUMNS = ("arm", "requests", "variants", "re-asks", "hits", "failures", "noise", "first", "sticky")
FIRST_LINES = {
    "reproduced": "REPRODUCED", "no-failure": "NO FAILURE", "not-exercised": "NOT EXERCISED, so no failure means nothing",
    "endpoint-dead": "THE ENDPOINT DIED",
}
LISTED = 10
NOTES = (
    "hits: re-asks of the failing prompts that used cached blocks",
    "failures: wrong, wrong again when repeated, and right with the cache bypassed",
    "noise: odd answers of which that is not true; they count for nothing, each with its reason below",
    "sticky: how many repetitions of the first failure were wrong too: at once / later, with variants between",
)
"""What the columns mean; the last only where something failed."""


def render(run: Run, verdict: Verdict, prompts: Sequence[Prompt], *, answers: bool = True) -> dict[str, object]:
    """One JSON object. Without `answers` no text of an answer is in it; text of prompts never is."""
    return {
        "schema": SCHEMA,
        "verdict": verdict.verdict,
        "because": list(verdict.because),
        "exercised": verdict.exercised,
        "healed_by_bypass": verdict.healed_by_bypass,
        "url": run.url,
        "model": run.model,
        "started_at": run.started_at,
        "seconds": round(run.seconds, 3),
        "ended": run.ended,
        "ended_because": run.ended_because,
        "settings": asdict(run.settings),
        "bypass": None if run.bypass is None else asdict(run.bypass),
        "cache": {
            "family": run.cache.before.family, "capacity_tokens": run.cache.after.capacity_tokens, "new_tokens": run.cache.new_tokens,
            "full_by": run.cache.full_by or None, "evicted": run.cache.evicted, "hits_when_full": run.cache.hits_when_full, "shared": run.cache.shared,
            "control_new_tokens": run.cache.control_new_tokens,
            "before": _counters(run.cache.before), "after": _counters(run.cache.after),
        },
        "prompts": [
            {"index": item.prompt, "line": prompts[item.prompt].line, "id": prompts[item.prompt].name, "kind": prompts[item.prompt].kind,
             "stable": item.stable, "expect_met": item.expect_met, "good": item.excerpt if answers else None}
            for item in run.good
        ],
        "arms": [{**asdict(arm), "timeline": timeline([trial for trial in run.trials if trial.arm == arm.arm], 10**9)[0]} for arm in verdict.arms],
        "trials": [_trial(trial, answers) for trial in run.trials],
        "statuses": dict(run.statuses),
        "warnings": list(run.warnings),
    }  # fmt: skip


def _counters(found: object) -> dict[str, object]:
    return {name: getattr(found, name) for name in ("hits", "queries", "evictions", "usage")}


def _trial(trial: Trial, answers: bool) -> dict[str, object]:
    return {**asdict(trial), "excerpt": (trial.excerpt or None) if answers else None, "note": trial.note or None}


def first_line(verdict: Verdict) -> str:
    """The verdict and its first reason."""
    return f"{FIRST_LINES[verdict.verdict]}: {verdict.because[0]}"


def arm_row(arm: ArmReport) -> Mapping[str, object]:
    """For COLUMNS."""
    hits = "unknown" if arm.reasks and arm.hits_unknown == arm.reasks else arm.hits
    return {
        "arm": arm.arm, "requests": arm.requests, "variants": arm.variants, "re-asks": arm.reasks, "hits": hits,
        "failures": arm.failures, "noise": arm.noise, "first": "-" if arm.first_failure is None else f"{arm.first_failure} {arm.first_class}",
        "sticky": f"{_percent(arm.sticky_at_once)} / {_percent(arm.stickiness)}" if arm.first_failure is not None else "-",
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def notes(verdict: Verdict) -> Sequence[str]:
    """What the columns of the table mean, as far as something stands in them."""
    failed, noisy = (sum(getattr(arm, name) for arm in verdict.arms) for name in ("failures", "noise"))
    return [note for note, is_needed in zip(NOTES, (True, failed or noisy, noisy, failed), strict=True) if is_needed]


def timelines(run: Run, width: int) -> Iterator[str]:
    """A row of characters per arm, with what they mean."""
    shown = False
    for arm in ARMS:
        row, step = timeline([trial for trial in run.trials if trial.arm == arm], width - 10)
        if row:
            shown = True
            yield f"{arm:<9} {row}" + (f"\n          (each sign is the worst of {step} re-asks)" if step > 1 else "")
    if shown:
        yield f"one sign for each re-ask of a failing prompt, in order: {LEGEND}"


def details(run: Run, verdict: Verdict, *, answers: bool = True) -> Iterator[str]:
    """What a reader wants to know after the table."""
    yield from verdict.because[1:]
    yield f"ended: {run.ended_because}; {len(run.trials)} requests in {run.seconds:.0f} s to {run.url}, model {run.model}"
    if run.bypass is not None:
        yield f"cache bypassed by {run.bypass.says}"
    yield _cache(run)
    if run.cache.control_new_tokens is not None:
        yield _control(run.cache.control_new_tokens, run.cache.before.block_size)
    statuses = {name: count for name, count in run.statuses.items() if name != "200"}
    if statuses:
        yield "not answered: " + ", ".join(f"{count} x {name}" for name, count in sorted(statuses.items()))
    yield from run.warnings
    yield from _listed("failure", [trial for trial in run.trials if trial.reproduced], run, answers)
    yield from _listed("noise", [trial for trial in run.trials if trial.reproduced is False], run, answers)


def _cache(run: Run) -> str:
    before, cache = run.cache.before, run.cache
    if before.family is None:
        return f"cache: no counters that are known in /metrics; {cache.new_tokens:.0f} new tokens by the answers"
    size = "unknown size" if cache.after.capacity_tokens is None else f"{cache.after.capacity_tokens} tokens"
    full = f"it was full ({cache.full_by})" if cache.full_by else "it was not seen full"
    return f"cache ({before.family}): {size}, {cache.new_tokens:.0f} new tokens in all; {full}" + ("; others use the endpoint, too" if cache.shared else "")


def _control(new_tokens: float, block_size: int | None) -> str:
    """The control arm must not fill blocks, only begin the last one anew."""
    said = f"control arm: {new_tokens:.0f} new tokens a request"
    if block_size is None:
        return said
    return f"{said}, " + (f"less than a block of {block_size}" if new_tokens < block_size else f"more than a block of {block_size}: it filled new blocks, too, if only a few")


def _listed(word: str, trials: Sequence[Trial], run: Run, answers: bool) -> Iterator[str]:
    good = {item.prompt: item.excerpt for item in run.good}
    for number, trial in enumerate(trials[:LISTED]):
        what = f"prompt {trial.prompt}" if trial.variant is None else f"variant {trial.variant}, made from prompt {trial.prompt}"
        note = f": {trial.note}" if trial.note else ""
        yield f"{word}: {trial.arm} arm, request {trial.ordinal}, {what}, {trial.answer_class}{note}"
        if answers and word == "failure":
            right, wrong = beside(good.get(trial.prompt, "") if trial.variant is None else None, trial.excerpt)
            yield from [] if right is None else [f"  good: {inert(right)}"]
            yield f"  bad:  {inert(wrong)}"
        if word == "failure" and number == 0 and trial.request is not None:
            yield f"  in the engine's log: {grep(trial.request, trial.sent)}"
    if len(trials) > LISTED:
        yield f"{word}: and {len(trials) - LISTED} more"


def changed(before: Prompt, after: Prompt) -> str:
    """Where a variant first differs from its prompt, with a little of what is around it."""
    old, new = (item.plain() if item.tokens is None else " ".join(map(str, item.tokens)) for item in (before, after))
    place = next((at for at, (left, right) in enumerate(zip(old, new, strict=False)) if left != right), min(len(old), len(new)))
    start = max(0, place - 30)
    return f"{'…' if start else ''}{inert(new[start : place + 120])}{'…' if len(new) > place + 120 else ''}"
