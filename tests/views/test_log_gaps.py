"""log_gaps: one row a log, silence only where it was measured."""

import json
from pathlib import Path

from diag import evidence

LINE = "(APIServer pid=1) INFO 11-30 02:52:45 [x.py:1] m\n"


def test_one_row_per_log_with_its_silence(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    index = {"artefact": "logs", "logs": [{"n": 0, "kind": "file", "file": "/var/log/s.log", "collected_at": 1000.0, "mtime": 900.0}]}
    (folder / "index.json").write_text(json.dumps(index, separators=(",", ":")))
    (folder / "0-s.log").write_text(LINE * 3)
    (tmp_path / "loose.log").write_text(LINE * 4)
    found = evidence.open_paths([tmp_path])
    rows, more = found.rows("SELECT file, silent_s, lines, source FROM log_gaps ORDER BY file", "test", 10)
    assert not more
    assert [tuple(row.values()) for row in rows] == [("/var/log/s.log", 100.0, 3, "logs/0-s.log:3"), ("loose.log", None, 4, "loose.log:4")]
    assert all(column.about for name, column in found.columns["log_gaps"].items() if name not in ("bundle", "host", "capture"))
