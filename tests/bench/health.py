"""`llmdiag health` over 10,010 simulated lives: nothing healthy called stuck, nothing stuck missed. Prints the matrix.

The peer is the rule it replaces: requests run and vllm:iteration_tokens_total_count did not move over two comparisons.
"""

import multiprocessing
from collections.abc import Iterator

from tests.bench.bars import Bar
from tests.health import judged

LIVES, PARTS, SEED = 10_010, 26, 20_261_130


def bars() -> Iterator[Bar]:
    """Wrong verdicts by kind, each must be 0, and when hangs were found."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        parts = pool.map(_part, range(PARTS))
    whole = judged.Score()
    for part in parts:
        whole.matrix += part.matrix
        whole.faults += part.faults
        whole.found_after += part.found_after
        whole.lives += part.lives
        whole.verdicts += part.verdicts
    print(f"{whole.lives} lives, {whole.verdicts} verdicts; rows: what was true, columns: what was said\n{judged.table(whole)}", flush=True)
    for fault in whole.faults[:10]:
        print(f"  {fault}")
    old = _faults(judged.run(220, SEED, judged.naive).faults)
    for kind, count in _faults(whole.faults).items():
        yield Bar(f"health: {kind}", count, 0, "", f"iterations alone {old[kind]} in 220 lives")
    found = sorted(whole.found_after)
    yield Bar("health: hangs found, missing to 1000", max(0, 1000 - len(found)), 0, "", f"{len(found)} found, median after {found[len(found) // 2]:.2f} budgets")


def _part(number: int) -> judged.Score:
    return judged.run(LIVES // PARTS, SEED + number)


KINDS = ("healthy called stalled", "healthy called admission-stalled", "a hang called idle-proven", "a hang called progressing", "a busy engine would be asked", " found ")


def _faults(faults: list[str]) -> dict[str, int]:
    """How many of each kind; `found` are hangs that were found late or never."""
    names = {kind: kind if kind != " found " else "hangs found late or never" for kind in KINDS}
    return {name: sum(kind in fault for fault in faults) for kind, name in names.items()}
