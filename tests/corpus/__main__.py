"""`make corpus`: every rule over every sample of the index; exits 1 when the answer is right in too few, or anybody is accused.

The held-out cases (samples/held-out, by an author who had not seen the rules) are scored beside them and decide nothing.
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


def judge(name: str, path: Path, expect: list[str], abstain: bool, origin: str) -> Judged:
    """Analyse one sample as a user would."""
    diagnosis = analysis.best(analysis.analyse([path], rules.load(rules.shipped())))
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
    held_out = [_held_out(path) for path in sorted((SAMPLES / "held-out").glob("*/label.toml"))]
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        groups[one.origin].append(one)
    console.print(_matrix(judged))
    table = Table("samples of", "samples", "incidents", "first line is the answer", "nothing said", "said what is not so")
    for origin, members in [*sorted(groups.items()), ("all", judged), ("held out", held_out)]:
        _row(table, origin, score(members))
    console.print(table)
    total = score(judged)
    for one in (*total.wrong, *score(held_out).wrong):
        console.print(f"wrong: {one.name}: expected {', '.join(one.expect) or 'nothing'}, said {', '.join(' '.join(item) for item in one.found) or 'nothing'}", markup=False)
    return int(total.top1_pct < BAR_PCT or bool(total.accused))


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
