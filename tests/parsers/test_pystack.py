"""pystack prints the outermost frame first."""

from diag.collectors import stacks
from tests.collectors.harness import parse

DUMP = '''\
Traceback for thread 15156 (python) [Has the GIL] (most recent call last):
    (C) File "./nptl/pthread_create.c", line 442, in start_thread (/usr/lib/x86_64-linux-gnu/libc.so.6)
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
        self._bootstrap_inner()
      Arguments:
        self: <Thread at 0x7f1707003590>
    (Python) File "/srv/retry.py", line 5, in fetch
        return cache.get(key)
      Arguments:
        cache_key: "clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6"
      Locals:
        raw: b"clip:bytes:abc"
        long: "clip-vit-b-32:image:aaaa"...
        count: 3

Traceback for thread 15155 (python) [Waiting for the GIL] (most recent call last):
    (Python) File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
        self._bootstrap_inner()

Traceback for thread 15153 (python) [] (most recent call last):
    (C) File "???", line 0, in _start (/usr/bin/python3.11)
    (Python) File "/srv/retry.py", line 8, in <module>
        threading.Event().wait()
'''


def test_order_is_turned_round_and_the_main_thread_tells_the_pid() -> None:
    rows = parse(stacks, {"dump.txt": DUMP})
    frames = [row for row in rows["stack_frames"] if row["tid"] == 15156]
    assert [(row["depth"], row["func"], row["native"], row["line"]) for row in frames] == [
        (0, "fetch", False, 5), (1, "_bootstrap", False, 1002), (2, "start_thread", True, 442),
    ]
    assert {row["pid"] for row in rows["stack_frames"]} == {15153}
    assert {row["tid"]: row["owns_gil"] for row in rows["stack_frames"]} == {15156: True, 15155: False, 15153: None}
    start = next(row for row in rows["stack_frames"] if row["func"] == "_start")
    assert (start["file"], start["line"]) == ("/usr/bin/python3.11", None)
    assert {row["whole"] for row in rows["stack_frames"]} == {True}


def test_locals_also_bytes_and_cut_ones() -> None:
    rows = parse(stacks, {"dump.txt": DUMP})["stack_locals"]
    assert [(row["var"], row["depth"], row["repr"], row["is_arg"], row["cut"], row["is_text"]) for row in rows if row["func"] == "fetch"] == [
        ("cache_key", 0, "clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6", True, False, True),
        ("raw", 0, "clip:bytes:abc", False, False, True),
        ("long", 0, "clip-vit-b-32:image:aaaa", False, True, True),
        ("count", 0, "3", False, False, False),
    ]


def test_failure() -> None:
    rows = parse(stacks, {"pystack-4711.txt": "💀 Operation not permitted 💀\n"})
    (gap,) = rows["collected"]
    assert gap["status"] == "partial" and "pid 4711" in str(gap["reason"]) and "root" in str(gap["reason"])
