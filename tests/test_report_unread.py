"""What nobody recognised and what died is said in the first lines of a report, and is never clear."""

from pathlib import Path

import pytest

from diag.analysis import analyse
from diag.report import text, words
from diag.rules import load, shipped
from tests.report_cases import CONFIRMED, RULED_OUT, SUBJECT, diagnosis

DEATH = "2026-11-30 02:41:10Z vllm: the engine died"
FILES = [f"notes-{number}.txt" for number in range(6)]


@pytest.mark.parametrize(("count", "handed_in", "said"), [
    (1, 6, "1 of 6 files was not recognised as evidence: notes-0.txt"),
    (4, 6, "4 of 6 files were not recognised as evidence: notes-0.txt, notes-1.txt, notes-2.txt, notes-3.txt"),
    (6, 6, "6 of 6 files were not recognised as evidence: notes-0.txt, notes-1.txt, notes-2.txt, notes-3.txt and 2 more"),
    (1, 1, "1 of 1 file was not recognised as evidence: notes-0.txt"),
])
def test_files_that_nobody_recognised_are_counted_and_named(count: int, handed_in: int, said: str) -> None:
    found = diagnosis("clear", RULED_OUT, subject=SUBJECT | {"unrecognised": FILES[:count], "handed_in": handed_in})
    assert words.notes(found) == [said]


def test_clear_says_in_its_first_line_what_it_did_not_read() -> None:
    found = diagnosis("clear", RULED_OUT, subject=SUBJECT | {"unrecognised": FILES[:2], "handed_in": 5})
    assert words.headline(found)[0] == "CLEAR: no known incident found, but 2 of 5 files were not recognised"
    assert "notes-1.txt" in "\n".join(text.render(found).plain.splitlines()[:6])


def test_mostly_unknown_files_are_the_reason_of_an_inconclusive_report() -> None:
    found = diagnosis("inconclusive", RULED_OUT, subject=SUBJECT | {"unrecognised": FILES[:4], "handed_in": 6})
    assert words.headline(found)[0] == "INCONCLUSIVE: nothing matches, but 4 of 6 files were not recognised"


def test_a_death_that_no_rule_explains_is_the_first_line_and_what_would_tell_is_near() -> None:
    found = diagnosis("inconclusive", RULED_OUT, subject=SUBJECT | {"deaths": [DEATH]})
    first, *rest = text.render(found).plain.splitlines()
    assert first == f"INCONCLUSIVE: {DEATH}, and no rule knows why"
    assert "dmesg -T" in " ".join(" ".join(rest[:8]).split())


def test_a_finding_goes_before_both() -> None:
    found = diagnosis("matched", CONFIRMED, subject=SUBJECT | {"deaths": [DEATH], "unrecognised": FILES, "handed_in": 6})
    assert words.headline(found)[0] == "CONFIRMED ghost-key-retry-loop"
    assert words.deaths(found) == ""


def test_what_the_list_of_what_was_read_does_not_say_is_not_to_be_collected(tmp_path: Path) -> None:
    (found,) = analyse([tmp_path], load(shipped()))
    asked = {table for gap in words.missing(found) for table in gap.tables}
    assert "tensor_pairs" in asked
    assert [table for table in asked if table.partition(".")[0] == "collected"] == []
