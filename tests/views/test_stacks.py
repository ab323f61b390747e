"""stacks: one row per thread and sample, and what `diag/looks.py` makes of it, whatever the names in it are."""

from pathlib import Path

import pytest

from diag import evidence
from diag.looks import Frame, Look, looks
from tests.derive.frames import Row, frames, stack


def seen(rows: list[Row]) -> list[Look]:
    return looks(frames(stack_frames=rows)["stacks"])


def test_one_look_a_thread_and_sample_in_the_order_of_the_evidence() -> None:
    found = seen([*stack("main > work > get", 1, tid=12), *stack("main > wait", 0, tid=11), *stack("main > work > get", 0, tid=12)])
    assert [(look.tid, look.sample, [frame.func for frame in look.stack]) for look in found] == [
        (12, 1, ["get", "work", "main"]), (11, 0, ["wait", "main"]), (12, 0, ["get", "work", "main"]),
    ]
    assert found[0].stack is found[2].stack
    assert [found[0].source(depth) for depth in range(3)] == [f"stacks/1.json#{depth}" for depth in range(3)]


def test_lines_and_shared_objects_make_another_stack() -> None:
    rows = [*stack("main", 0, line=3), *stack("main", 1, line=4), *stack("main", 2, native=True), *stack("main", 3)]
    assert [look.stack for look in seen(rows)] == [
        (Frame("main", "app.py", 3, False),), (Frame("main", "app.py", 4, False),), (Frame("main", "app.py", None, True),), (Frame("main", "app.py", None, False),),
    ]


@pytest.mark.parametrize("odd", ["\x1e", "\x1f", "a\x1fb\x1f1\x1fn\x1ec", "\n", "", "\0", "\u202e"])
def test_names_may_hold_anything(odd: str) -> None:
    rows = [{**row, "func": odd, "file": odd, "source": f"{odd}#{row['depth']}"} for row in stack("main > get")]
    (look,) = seen(rows)
    kept = odd.replace("\x1e", " ").replace("\x1f", " ")
    assert look.stack == (Frame(kept, kept, None, False),) * 2
    assert look.source(1) == f"{odd.replace(chr(0x1e), ' ')}#1"


def test_what_a_dump_does_not_say_is_none() -> None:
    (row,) = stack("main", tid=None, pid=None, thread=None, whole=None, native=None, func=None, file=None, sample=None, source=None)
    (look,) = seen([row])
    assert (look.tid, look.pid, look.thread, look.whole, look.sample, look.active, look.ts) == (None,) * 7
    assert look.stack == (Frame("?", "?", None, False),)


def test_torn_and_whole_reads_of_threads_without_a_number_stay_apart() -> None:
    found = seen([*stack("main > a", tid=None), *stack("b", tid=None, whole=False)])
    assert [(look.whole, len(look.stack)) for look in found] == [(True, 2), (False, 1)]


def test_no_stacks() -> None:
    assert seen([]) == [] and looks(None) == []


def test_where_nothing_tells_whether_stacks_are_whole_a_rule_on_them_could_not_look(tmp_path: Path) -> None:
    (tmp_path / "pyspy-77-0.txt").write_text('Process 77: srv\nPython v3.11.7 (/usr/bin/python3)\n\nThread 77 (idle): "worker"\n    wait (threading.py:327)\n    loop (srv.py:9)\n')
    found = evidence.open_paths([tmp_path])
    assert found.rows("SELECT whole FROM stacks", "test", 9)[0] == [{"whole": None}]
    assert found.unseen(found.reads("SELECT tid FROM stacks WHERE whole IS NOT FALSE", "test")) == ("stacks.whole",)
