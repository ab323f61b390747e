"""Where the time of recoveries went: the bars of `llmdiag recovery`, of the last ones."""

from collections.abc import Iterator, Mapping

from diag.model import Section
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
        yield Section("Where the time of recoveries went", tuple(recovery.told(rows["recoveries"], rows["stages"])))
