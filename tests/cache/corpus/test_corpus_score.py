"""The scorer is judged on scans whose faults are known."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCORE = Path(__file__).with_name("score.py")
GHOST, HALF, PARTNER, SOFT, LIVE, ORDINARY = (name.encode().hex() for name in ("bad", "kmetadata", "kkv_bytes", "old", "mask:1", "plain:1"))
TRUTH = [
    {"db": 0, "key_hex": GHOST, "label": "ghost", "reason": "all-zero", "family": "f"},
    {"db": 1, "key_hex": HALF, "label": "ghost", "reason": "dtype-mismatch", "family": "l", "partner_key_hex": PARTNER},
    {"db": 0, "key_hex": SOFT, "label": "soft", "reason": "no-ttl", "family": "f"},
    {"db": 0, "key_hex": LIVE, "label": "live", "reason": "mask", "family": "m"},
    {"label": "live", "reason": "ordinary", "count": 1, "families": {"p": 1}},
]


def said(key: str, reason: str, verdict: str = "ghost", db: int = 0) -> dict[str, Any]:
    return {"db": db, "key_hex": key, "reasons": [reason], "verdict": verdict, "purgeable": verdict == "ghost"}


FOUND = [said(GHOST, "all-zero"), said(PARTNER, "shape-mismatch", db=1)]


@pytest.mark.parametrize(("ghosts", "more", "code", "words"), [
    (FOUND, [], 0, "hard ghosts missed: 0"),
    ([*FOUND, said(SOFT, "no-ttl", "soft"), said(LIVE, "constant", "soft")], [], 0, "live or ordinary keys called soft: 1 {'mask': 1}"),
    (FOUND[:1], [], 1, "dtype-mismatch in l: db 1 kmetadata"),
    ([said(GHOST, "all-zero", "soft"), FOUND[1]], [], 1, "all-zero in f: db 0 bad"),
    ([said(GHOST, "all-zero", db=2), FOUND[1]], [], 1, "ordinary: db 2 bad"),
    ([*FOUND, said(LIVE, "constant")], [], 1, "mask: db 0 mask:1 ['constant'] purgeable=True"),
    ([*FOUND, said(ORDINARY, "corrupt")], [], 1, "ordinary: db 0 plain:1"),
    ([*FOUND, said(SOFT, "no-ttl")], [], 0, "soft keys called a hard ghost: 1"),
    ([*FOUND, said(SOFT, "no-ttl")], ["--strict"], 1, "no-ttl: db 0 old"),
])
def test_exit_code_and_words(tmp_path: Path, ghosts: list[dict[str, Any]], more: list[str], code: int, words: str) -> None:
    (tmp_path / "truth.jsonl").write_text("".join(json.dumps(line) + "\n" for line in TRUTH))
    command = [sys.executable, str(SCORE), str(tmp_path / "truth.jsonl"), "-", "--canary", str(tmp_path / "canary"), *more]
    done = subprocess.run(command, input=json.dumps({"ghosts": ghosts}), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    assert words in done.stdout


def test_a_run_foreign_object_fails(tmp_path: Path) -> None:
    (tmp_path / "truth.jsonl").write_text("".join(json.dumps(line) + "\n" for line in TRUTH))
    (tmp_path / "canary").mkdir()
    command = [sys.executable, str(SCORE), str(tmp_path / "truth.jsonl"), "-", "--canary", str(tmp_path / "canary")]
    done = subprocess.run(command, input=json.dumps({"ghosts": FOUND}), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "A FOREIGN OBJECT WAS RUN" in done.stdout, done.stdout
