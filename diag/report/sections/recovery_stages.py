"""Where the time of recoveries went: the bars of `llmdiag recovery`, of the last ones. A lone start that went well is a picture only."""

from collections.abc import Iterator, Mapping

from diag.model import Part, Section
from diag.report import recovery
from diag.report.sections import Rows

ORDER = 30
READS = {
    "recoveries": "SELECT * FROM recoveries ORDER BY begun_ts, incident",
    "stages": "SELECT * FROM recovery_stages",
}


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """Each recovery: when and why, how long, and its stages as bars."""
    if rows["recoveries"]:
        told = tuple(recovery.told(rows["recoveries"], rows["stages"]))
        yield Section("Where the time of recoveries went", tuple(Part(plot=part.plot) for part in told if part.plot is not None) if _is_plain(rows["recoveries"]) else told)


def _is_plain(found: Rows) -> bool:
    """One start that became ready, with nothing seen before it: no recovery."""
    return len(found) == 1 and found[0]["cause"] == "start" and found[0]["ready_ts"] is not None
