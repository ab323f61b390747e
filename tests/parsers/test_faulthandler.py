"""faulthandler's dumps, of our own making and inside logs."""

import faulthandler as python_faulthandler
import threading
from pathlib import Path

from diag.collectors import stacks
from diag.parsers import faulthandler
from tests.collectors.harness import parse

DUMP = '''\
Timeout (0:00:01)!
Thread 0x00007fb818edb6c0 (most recent call first):
  File "/usr/local/lib/python3.11/threading.py", line 327 in wait
  File "/srv/fh.py", line 2 in <lambda>
  File "/usr/local/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007fb819a2cb80 (most recent call first):
  File "/srv/fh.py", line 4 in deep
  File "/srv/fh.py", line 5 in <module>
'''


def test_threads_are_told_apart_and_nothing_is_invented() -> None:
    rows = parse(stacks, {"hang.txt": DUMP})["stack_frames"]
    assert [(row["depth"], row["func"], row["line"]) for row in rows if row["tid"] == 0x7FB818EDB6C0] == [
        (0, "wait", 327), (1, "<lambda>", 2), (2, "_bootstrap", 1002),
    ]
    assert {(row["pid"], row["thread"], row["active"], row["owns_gil"], row["tool"]) for row in rows} == {
        (None, None, None, None, "faulthandler"),
    }
    assert {row["whole"] for row in rows} == {True}
    assert rows[0]["source"] == "hang.txt:3"


def test_every_timeout_is_a_sample_and_the_file_name_tells_the_process() -> None:
    rows = parse(stacks, {"faulthandler-4711.log": DUMP + DUMP})["stack_frames"]
    assert {(row["pid"], row["sample"]) for row in rows} == {(4711, 0), (4711, 1)}


def test_container_prefix_crash_header_and_names_of_python_3_14() -> None:
    text = '''\
Fatal Python error: Aborted

Current thread 0x00007fb818edb6c0 [MainThread] (most recent call first):
  File "/srv/fh.py", line ??? in run
  File "/srv/fh.py", line 5 in <module>

Extension modules: numpy._core._multiarray_umath (total: 1)
'''
    rows = parse(stacks, {"crash.txt": "".join(f"vllm-1  | {line}\n" for line in text.splitlines())})["stack_frames"]
    assert [(row["thread"], row["func"], row["line"]) for row in rows] == [("MainThread", "run", None), ("MainThread", "<module>", 5)]


def test_a_stack_that_faulthandler_cut_after_100_frames_is_not_whole() -> None:
    text = "Thread 0x00007fb818edb6c0 (most recent call first):\n" + '  File "/srv/a.py", line 3 in f\n' * 100 + "  ...\n"
    rows = parse(stacks, {"deep.txt": text})["stack_frames"]
    assert len(rows) == 100
    assert {row["whole"] for row in rows} == {False}


def test_what_this_python_prints(tmp_path: Path) -> None:
    place = tmp_path / "dump.txt"
    with place.open("w") as stream:
        python_faulthandler.dump_traceback(stream, all_threads=True)
    (dump,) = faulthandler.from_text(enumerate(place.read_text().splitlines(), 1), str)
    mine = next(thread for thread in dump.threads if thread.tid == threading.get_ident())
    assert mine.frames[0].name == "test_what_this_python_prints"
    assert mine.frames[0].file == __file__
    assert stacks.recognise("dump.txt", place.read_bytes())
