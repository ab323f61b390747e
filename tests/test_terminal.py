"""What a terminal shows: whole words, readable columns, and evidence as it is - no emoji, no colours of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from diag import terminal
from diag.report.charset import PLAIN
from tests.conftest import SAMPLES
from tests.live.run import llmdiag
from tests.terminals import seen

ROOT = SAMPLES.parent
CASE = str(SAMPLES / "vllm-0.32-cpu" / "worker-stopped")
KEY = "worker:heartbeat:host-1"
ESCAPES = "SELECT chr(27) || '[31mred' || chr(10) || 'b' AS r"


def test_a_key_with_colons_is_no_emoji(tmp_path: Path) -> None:
    assert KEY in llmdiag("query", CASE, f"SELECT '{KEY}' AS key").out
    rule = (SAMPLES.parent / "rules" / "process-stopped.toml").read_text(encoding="utf-8")
    (tmp_path / "process-stopped.toml").write_text(re.sub(r'(?m)^title.*', f'title = "{KEY} [red]x"', rule, count=1), encoding="utf-8")
    assert f"{KEY} [red]x" in llmdiag("rules", "list", str(tmp_path)).out


def test_a_pipe_is_written_to_and_a_link_is_followed(tmp_path: Path) -> None:
    """Replacing what is there by a new file would cost a root user /dev/null."""
    pipe, link, mine = tmp_path / "pipe", tmp_path / "link.md", tmp_path / "link.md.part"
    os.mkfifo(pipe)
    link.symlink_to("real.md")
    mine.write_text("mine")
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        try:
            assert llmdiag("report", CASE, "-f", "md", "-o", str(pipe)).code == 1
            text, _ = reader.communicate(timeout=60)
        finally:
            reader.kill()
    assert pipe.is_fifo()
    assert llmdiag("report", CASE, "-f", "md", "-o", str(link)).code == 1
    assert (link.is_symlink(), link.read_text(encoding="utf-8"), mine.read_text()) == (True, text, "mine")
    assert text.startswith("# ")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["link.md", "link.md.part", "pipe", "real.md"]


@pytest.mark.parametrize("command", [("report", CASE), ("recovery", str(SAMPLES / "vllm-0.32-cpu" / "sigterm-in-flight.log")), ("query", CASE, "SELECT 1 AS one", "-f", "parquet")])
def test_a_place_that_cannot_be_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    for place in ("x" * 300, "no/such/folder.md", "/dev/full"):
        said = llmdiag(*command, "-o", place, cwd=tmp_path)
        assert (said.code, said.err.count("cannot write")) == (2, 1), said
    assert list(tmp_path.iterdir()) == []


def test_rows_that_have_no_room_become_blocks() -> None:
    lines = seen("query", CASE, "SELECT * FROM thread_activity WHERE class = 'parked' LIMIT 2").splitlines()
    assert len([line for line in lines if re.fullmatch(r"class: +parked", line)]) == 2, lines
    assert len([line for line in lines if re.fullmatch(r"window_s: +5\.\d+", line)]) == 2, lines
    assert lines.count("") == 1, lines  # between the two rows
    assert max(map(len, lines)) <= 80


def test_rows_that_have_room_stay_a_table() -> None:
    shown = seen("query", CASE, "SELECT class, count(*) AS threads FROM thread_activity GROUP BY class ORDER BY class")
    assert re.match(r"class +threads\nparked +\d+\n", shown), shown


def test_long_texts_of_a_table_break_between_words() -> None:
    lines = seen("rules", "list").splitlines()
    listed = " ".join(" ".join(lines).split())
    assert "The event loop never returns to its selector, and the port does not answer" in listed
    assert max(map(len, lines)) <= 80


def test_csv_is_inert_on_a_terminal_and_exact_in_a_pipe() -> None:
    shown = seen("query", "-f", "csv", CASE, ESCAPES)
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
    assert llmdiag("query", "-f", "csv", CASE, ESCAPES).out == 'r\n"\x1b[31mred\nb"\n'


def test_notes_break_between_words_on_a_terminal_only() -> None:
    names = [f"no-such-evidence-{number}" for number in range(9)]
    note = f"error: no such file or folder: {', '.join(names)}"
    lines = seen("analyze", *names).splitlines()
    assert note in " ".join(lines)
    assert max(map(len, lines)) <= 80, lines
    assert note in llmdiag("analyze", *names).err.splitlines()


def test_a_command_in_a_note_stays_on_one_line() -> None:
    for text in (f"undo: llmdiag restore-cache {'b' * 60} redis://h", "  sudo llmdiag snapshot 4121 --log FILE --port PORT --window 9"):
        assert terminal._broken(text, 40) == [text]
    assert terminal._broken("  one two three four five six seven eight", 20) == ["  one two three four", "  five six seven", "  eight"]


def test_separators_are_signs_that_the_encoding_has() -> None:
    out = llmdiag("analyze", CASE, COLUMNS="80", PYTHONIOENCODING="ascii").out
    assert " | " in out.splitlines()[1]
    assert "\\x" not in out
    assert "\\u" not in out
    assert "5 … 6 · é".encode("ascii", PLAIN) == b"5 ~ 6 | \\xe9"
    assert "5 … 6 · é".encode("latin-1", PLAIN) == "5 ~ 6 · é".encode("latin-1")


@pytest.mark.parametrize("limit_kb", [600_000, 700_000])
def test_too_little_memory_accuses_nobody(limit_kb: int) -> None:
    """1 is `matched`: whatever fails for want of memory, be it the report of the failure, must not end so."""
    said = subprocess.run(
        ["bash", "-c", f'ulimit -v {limit_kb}; exec "$0" "$@"', sys.executable, "-m", "diag.cli", "analyze", CASE], capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert said.returncode != 1 or said.stdout.startswith("CONFIRMED "), said
    assert said.returncode in (1, 2, 127, 134, -6), said
