"""`make corpus`: every rule over every sample of the index; exits 1 when the answer is right in too few, or anybody is accused.

The held-out cases (samples/held-out, by an author who had not seen the rules) are scored beside them and decide nothing. What counts
of them is their first run (first_run.toml), which is printed above the present one: since then they have been looked at.
"""

import sys
import tomllib
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from diag import analysis, rules, ruletest
from tests.corpus.index import INDEX, SAMPLES
from tests.corpus.score import Judged, Score, confusion, score

BAR_PCT = 95.0
FIRST = tomllib.loads((SAMPLES / "held-out" / "first_run.toml").read_text("utf-8"))


def judge(name: str, path: Path, expect: list[str], abstain: bool, origin: str) -> Judged:
    """Analyse one sample as a user would."""
    diagnosis = analysis.best(analysis.analyse([path], rules.load(rules.shipped()), pictures=False))
    found = tuple((result.rule, result.verdict.value) for result in diagnosis.findings)
    return Judged(name, tuple(expect), abstain, origin, found, frozenset(name for names in diagnosis.folded.values() for name in names))


def main() -> int:
    console = Console(width=140)
    entries = tomllib.loads(INDEX.read_text("utf-8"))["sample"]
    judged: list[Judged] = []
    for number, entry in enumerate(entries, 1):
        print(f"\r{number} of {len(entries)}", end="", file=sys.stderr, flush=True)
        path = ruletest.sample_path(entry["name"], rules.shipped())
        judged.append(judge(entry["name"], path, entry["expect"], entry["abstain"], entry["origin"]))
    print(file=sys.stderr)
    labels = sorted((SAMPLES / "held-out").glob("*/label.toml"))
    first, held_out = first_run(labels), [_held_out(path) for path in labels]
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        groups[one.origin].append(one)
    console.print(_matrix(judged))
    table = Table("samples of", "samples", "incidents", "first line is the answer", "nothing said", "said what is not so")
    for origin, members in [*sorted(groups.items()), ("all", judged), (f"held out, first run ({FIRST['date']}, {FIRST['commit']})", first), ("held out, now", held_out)]:
        _row(table, origin, score(members))
    console.print(table)
    total = score(judged)
    for one in (*total.wrong, *score(held_out).wrong):
        console.print(f"wrong: {one.name}: expected {', '.join(one.expect) or 'nothing'}, said {', '.join(' '.join(item) for item in one.found) or 'nothing'}", markup=False)
    return int(total.top1_pct < BAR_PCT or bool(total.accused))


def first_run(labels: list[Path]) -> list[Judged]:
    """What was said of the held-out cases before anybody had looked at them."""
    found = {name: tuple((rule, verdict) for rule, verdict in said) for name, said in FIRST["found"].items()}
    abouts = [(label.parent.name, tomllib.loads(label.read_text("utf-8"))) for label in labels]
    return [Judged(name, tuple(about["rules"]), about["abstain"], "held out", found[name], frozenset()) for name, about in abouts]


def _held_out(label: Path) -> Judged:
    about = tomllib.loads(label.read_text("utf-8"))
    return judge(label.parent.name, label.parent, about["rules"], about["abstain"], "held out")


def _row(table: Table, origin: str, found: Score) -> None:
    table.add_row(
        origin, str(found.samples), str(found.incidents), f"{found.right} ({found.top1_pct:.1f} %)", str(found.silent), ", ".join(found.accused) or "0"
    )


def _matrix(judged: list[Judged]) -> Table:
    """Only what is off the diagonal is worth a line of its own; what is right is counted per rule."""
    table = Table("expected", "said", "samples", title="confusion matrix")
    for (wanted, said), count in sorted(confusion(judged).items()):
        table.add_row(wanted, said, str(count), style="" if wanted == said else "bold red")
    return table


if __name__ == "__main__":
    sys.exit(main())
