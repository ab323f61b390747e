"""What a thread's stack has in common over all samples, whatever its innermost frames do."""

import datetime
from collections.abc import Sequence
from pathlib import Path

import pytest

from diag import evidence
from diag.derive import stack_stability
from tests.derive.frames import Row, derived, stack

START = datetime.datetime(2026, 11, 30, 2, 54, 39)
DUMP = """Thread 0x00007f3c2b7fe700 (most recent call first):
  File "/app/w.py", line 3 in work
  File "/usr/lib/python3.11/threading.py", line 995 in _bootstrap

Current thread 0x00007f3c2c1a2740 (most recent call first):
  File "/app/w.py", line 10 in <module>
"""


def samples(*texts: str, **more: object) -> list[Row]:
    """One thread's stacks, one after the other."""
    return [row for number, text in enumerate(texts) for row in stack(text, number, **more)]  # type: ignore[arg-type]


def one(rows: Sequence[Row]) -> dict[str, object]:
    (found,) = derived(stack_stability, stack_frames=rows)["stack_stability"]
    return found


@pytest.mark.parametrize(("texts", "ancestor", "chain", "common", "leaves", "stacks"), [
    (("main > retry > send", "main > retry > recv", "main > retry > send"), "retry", "retry <- main", 2, "recv, send", 2),
    (("main > spin", "main > spin"), "spin", "spin <- main", 2, "spin", 1),
    (("main > retry", "main > retry > recv"), "retry", "retry <- main", 2, "recv, retry", 2),
    (("main > a > a > b", "main > a > a > a"), "a", "a <- a <- main", 3, "a, b", 2),
    (("main > serve > x", "main > other > x"), "main", "main", 1, "x", 2),
    (("main > get@a.py", "main > get@b.py"), "main", "main", 1, "get", 2),
    (("a > b > c > d > e > x", "a > b > c > d > e > y"), "e", "e <- d <- c <- b", 5, "x, y", 2),
    (("run@a.py > x", "run@b.py > x"), None, None, 0, "x", 2),
    (("main > work",), "work", "work <- main", 2, "work", 1),
])
def test_the_ancestor_is_the_deepest_function_it_never_leaves(
    texts: tuple[str, ...], ancestor: str | None, chain: str | None, common: int, leaves: str, stacks: int
) -> None:
    found = one(samples(*texts))
    assert (found["ancestor"], found["chain"], found["common"]) == (ancestor, chain, common)
    assert (found["leaves"], found["stacks"]) == (leaves, stacks)
    assert (found["samples"], found["of"]) == (len(texts), len(texts))


def test_torn_stacks_are_left_out() -> None:
    found = one([*samples("main > retry > a", "main > retry > b"), *stack("elsewhere > c", 2, whole=False)])
    assert (found["ancestor"], found["samples"], found["of"], found["leaves"]) == ("retry", 2, 3, "a, b")


def test_where_no_tool_says_what_is_torn_the_usual_entry_tells() -> None:
    texts = ("main > retry > a", "retry > a", "main > retry > b", "main > retry > a")
    found = one(samples(*texts, whole=None))
    assert (found["ancestor"], found["common"], found["samples"], found["of"]) == ("retry", 2, 3, 4)


def test_a_thread_whose_stacks_are_all_torn_says_nothing() -> None:
    found = derived(stack_stability, stack_frames=[*samples("x > y", "y", whole=False), *samples("main", "main", tid=12)])
    assert [row["tid"] for row in found["stack_stability"]] == [12]


def test_native_frames_do_not_hide_what_is_common() -> None:
    def sample(number: int, native: str) -> list[Row]:
        python = [{**row, "depth": int(str(row["depth"])) + 1} for row in stack("main > step", number)]
        return [*stack(native, number, native=True, file="libtorch.so"), *python]

    found = one([*sample(0, "gemm"), *sample(1, "softmax")])
    assert (found["ancestor"], found["leaves"], found["stacks"]) == ("step", "step", 1)


def test_a_sample_without_the_thread_counts_for_its_process_only() -> None:
    rows = [*samples("main > a", "main > b"), *samples("main", "main", "main", tid=12), *samples("main", pid=20)]
    found = derived(stack_stability, stack_frames=rows)["stack_stability"]
    assert [(row["pid"], row["tid"], row["samples"], row["of"]) for row in found] == [(10, 11, 2, 3), (10, 12, 3, 3), (20, 11, 1, 1)]


def test_captures_are_kept_apart() -> None:
    rows = [*samples("main > a", "main > a"), *samples("main > b", capture="2")]
    found = derived(stack_stability, stack_frames=rows)["stack_stability"]
    assert [(row["capture"], row["ancestor"], row["samples"], row["of"]) for row in found] == [("1", "a", 2, 2), ("2", "b", 1, 1)]


def test_who_when_and_where() -> None:
    later = START + datetime.timedelta(seconds=5)
    rows = [
        *stack("main > a", 0, ts=START, started_at=START, owns_gil=True),
        *stack("main > a", 1, ts=later, started_at=START, owns_gil=False),
        *stack("main > a", 2, ts=later, started_at=START, owns_gil=None),
    ]
    found = one(rows)
    assert (found["bundle"], found["host"], found["capture"], found["pid"], found["tid"]) == ("b", "h", "1", 10, 11)
    assert (found["thread"], found["started_at"], found["gil_samples"]) == ("worker-0", START, 1)
    assert (found["first_ts"], found["last_ts"], found["source"]) == (START, later, "stacks/2.json#0")


def test_frames_without_a_name_are_still_frames() -> None:
    found = one([{**row, "func": None, "file": None} if row["depth"] == 1 else row for row in samples("main > ? > a", "main > ? > b")])
    assert (found["ancestor"], found["ancestor_file"], found["common"]) == ("?", "?", 2)


def test_no_stacks_no_rows() -> None:
    assert derived(stack_stability) == {"stack_stability": []}


def test_a_dump_that_names_no_process_is_read(tmp_path: Path) -> None:
    (tmp_path / "dump.txt").write_text(DUMP)
    rows, _ = evidence.open_paths([tmp_path]).rows("SELECT pid, ancestor, samples, of FROM stack_stability ORDER BY ancestor", "test", 9)
    assert [tuple(row.values()) for row in rows] == [(None, "<module>", 1, 1), (None, "work", 1, 1)]
