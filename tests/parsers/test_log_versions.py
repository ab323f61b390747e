"""Versions that logs print at their start: what is read, what is none, and that a log does not count as all there is to know."""

from pathlib import Path

import pytest

from diag import evidence
from diag.parsers import log_versions


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("vLLM API server version 0.18.1", [("vllm", "0.18.1")]),
        ("  █▄█▀ █     █     █     █  version 0.19.1rc1.dev301+g60995c05b", [("vllm", "0.19.1rc1.dev301+g60995c05b")]),
        ("Initializing a V1 LLM engine (v0.32.0) with config: model='/models/x', torch version 9.9", [("vllm", "0.32.0")]),
        ("FlashInfer version: 0.6.8.post1, NCCL version 2.27.3+cuda12.9", [("flashinfer", "0.6.8.post1"), ("nccl", "2.27.3+cuda12.9")]),
        ("LMCache version=0.3.9", [("lmcache", "0.3.9")]),
        ("sglang version 0.5.8", [("sglang", "0.5.8")]),
        ("protocol version 3", []),
        ("downloaded torch version", []),
    ],
)
def test_what_a_line_names(message: str, found: list[tuple[str, str]]) -> None:
    assert list(log_versions.of_message(message)) == found


def test_versions_of_a_loose_log_are_evidence_and_not_all_of_it(tmp_path: Path) -> None:
    lines = [
        "(APIServer pid=7) INFO 11-30 02:52:40 [utils.py:299]   █▄█▀ █     █     █     █  version 0.27.1",
        "(Worker pid=9) INFO 11-30 02:52:45 [cuda.py:12] FlashInfer version: 0.6.8.post1",
        "(EngineCore pid=8) INFO 11-30 02:52:46 [core.py:93] Initializing a V1 LLM engine (v0.27.1) with config: model='/models/x'",
        "(APIServer pid=7) INFO 11-30 02:53:00 [api_server.py:1] Starting vLLM server on http://0.0.0.0:8000",
    ]
    (tmp_path / "server.log").write_text("\n".join(lines) + "\n")
    loaded = evidence.open_paths([tmp_path])
    rows = loaded.frame("versions").sort_values(["component", "pid"])
    assert rows[["component", "version", "pid"]].values.tolist() == [["flashinfer", "0.6.8.post1", 9], ["vllm", "0.27.1", 7], ["vllm", "0.27.1", 8]]
    assert rows["source"].tolist() == ["server.log:2", "server.log:1", "server.log:3"]
    assert not any(item.table_name == "versions" and item.status == "ok" for item in loaded.collected)
