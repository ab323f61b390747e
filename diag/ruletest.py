"""Check rules against the samples they name: `llmdiag rules test`, and the gate of the build."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from diag import analysis, jail, rules
from diag.errors import RuleError
from diag.model import Diagnosis


@dataclass(frozen=True)
class Result:
    """One rule on one sample."""

    rule: str
    sample: str
    expect: str
    got: str
    ok: bool
    note: str


def run(folder: Path | None, told: Callable[[str, float], None] = lambda what, share: None) -> list[Result]:
    """Every test of every rule of a folder (the shipped ones by default). Raises RuleError for a broken rule."""
    place = folder or rules.shipped()
    results = []
    known = rules.load(place)
    for number, rule in enumerate(known):
        told(rule.id, number / len(known))
        results += [_try(rule, test, place) for test in rule.tests]
        wanted = {test.expect for test in rule.tests}
        if not wanted & {"confirmed", "likely"}:
            results.append(Result(rule.id, "-", "a matching sample", "none", False, "a rule needs a sample that it matches"))
        if "not matched" not in wanted:
            results.append(Result(rule.id, "-", "a look-alike", "none", False, "a rule needs a look-alike that it does not match"))
    return results


def sample_path(name: str, place: Path) -> Path:
    """A sample named by a rule: beside the rules, else among the shipped samples."""
    for base in (place / "samples", place, place.parent / "samples", rules.samples()):
        for found in (base / name, base / f"{name}.zip"):
            if found.exists():
                return found
    raise RuleError(f"no sample {name!r} beside {place} or among the shipped ones", hint="a sample is a bundle or a folder of loose files")


def _try(rule: rules.Rule, test: rules.RuleTest, place: Path) -> Result:
    path = sample_path(test.sample, place)
    diagnoses = analysis.analyse([path], [rule], pictures=False) if analysis.is_own(place, rules.shipped()) else jail.analyse([path], place, pictures=False)
    got = verdict_of(analysis.best(diagnoses), rule.id)
    return Result(rule.id, test.sample, test.expect, got, got == test.expect, "")


def verdict_of(diagnosis: Diagnosis, rule: str) -> str:
    """What one rule said, also when it was folded under its cause."""
    results = (*diagnosis.findings, *diagnosis.explained, *diagnosis.inconclusive, *diagnosis.ruled_out)
    return next(result.verdict.value for result in results if result.rule == rule)
