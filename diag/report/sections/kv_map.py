"""Where a KV cache differs between a good and a bad run: the map of compare-dumps, layers down and blocks across."""

from collections.abc import Iterator, Mapping

from diag.model import Part, Section
from diag.report import heatmap
from diag.report.sections import WIDTH, Rows

ORDER = 20
_RANK = " ".join(f"WHEN '{verdict}' THEN {place}" for place, verdict in enumerate(heatmap.WORST))
READS = {
    "cells": f"""
SELECT good_dump, bad_dump, layer, block,
  min(CASE WHEN doubt = 'suspicious' THEN {heatmap.WORST.index("suspicious")} ELSE CASE verdict {_RANK} END END) AS worst,
  max(rel_l2) AS rel_l2, min(cosine) AS cosine
FROM tensor_pairs WHERE layer IS NOT NULL AND block IS NOT NULL
GROUP BY bundle, host, capture, good_dump, bad_dump, layer, block ORDER BY good_dump, bad_dump, layer, block""",
}
MAX_PAIRS = 4
READING = (
    "Read it so: one sign for each block of the prompt and layer, the worst of its keys and values; cos is the lowest cosine of the row, "
    "rel its largest relative L2 difference."
)


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """One map for each pair of dumps that differ somewhere."""
    pairs: dict[tuple[object, object], dict[tuple[int, int], heatmap.Cell]] = {}
    for row in rows["cells"]:
        if row["worst"] is not None:
            cells = pairs.setdefault((row["good_dump"], row["bad_dump"]), {})
            cells[(_int(row["layer"]), _int(row["block"]))] = heatmap.Cell(heatmap.WORST[_int(row["worst"])], _float(row["rel_l2"]), _float(row["cosine"]))
    for (good, bad), cells in list(pairs.items())[:MAX_PAIRS]:
        if all(cell.verdict == "same" for cell in cells.values()):
            drawn = Part("Every block is the same, bit for bit, in every layer.")
        else:
            drawn = Part(drawn=tuple(line.plain.rstrip() for line in heatmap.draw(cells, WIDTH)), plot=heatmap.plot(cells))
        yield Section(f"KV cache of the bad run ({bad}) beside the good one ({good})", (drawn, *((Part(READING),) if drawn.drawn else ())))


def _int(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]


def _float(value: object) -> float | None:
    return None if value is None else float(value)  # type: ignore[arg-type]
