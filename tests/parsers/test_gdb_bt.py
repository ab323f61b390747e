"""gdb's backtraces, native and Python, as its batch mode prints them."""

from diag.collectors import stacks
from tests.collectors.harness import parse

NOISE = '''\
[New LWP 15403]
[Thread debugging using libthread_db enabled]
Using host libthread_db library "/lib/x86_64-linux-gnu/libthread_db.so.1".
__futex_abstimed_wait_common64 (private=<optimized out>, cancel=true) at ./nptl/futex-internal.c:57
57\t./nptl/futex-internal.c: No such file or directory.

'''
NATIVE = '''\
Thread 2 (Thread 0x7fabb5adc6c0 (LWP 15403) "python"):
#0  0x00007f17077af1e3 in PyObject_Malloc (size=32) at Objects/obmalloc.c:706
#1  _PyLong_Add (a=<optimized out>, b=<optimized out>) at Objects/longobject.c:3283
#2  0x00007f4444444444 in gloo::UnboundBuffer::waitRecv(int*, std::chrono::duration<long>) () from /opt/libgloo.so
#3  <signal handler called>
#4  0x00007f17075278ec in clone3 () at ../sysdeps/unix/sysv/linux/x86_64/clone3.S:81

Thread 1 (Thread 0x7fabb6841b80 (LWP 15391) "python"):
#0  0x00007f17074a3f7b in __futex_wait (word=0x1) at ./nptl/futex-internal.c:87
#1  0x000055cfeb1b2300 in _start ()
'''
PYTHON = '''\
Thread 2 (Thread 0x7fabb5adc6c0 (LWP 15403) "python"):
Traceback (most recent call first):
  <built-in method acquire of _thread.lock object at remote 0x7fabb5b92280>
  File "/srv/retry.py", line 3, in fetch
    zlib.crc32(b"x"*3000000); return None
  File "/usr/lib/python3.11/threading.py", line 1002, in _bootstrap
    self._bootstrap_inner()

Thread 1 (Thread 0x7fabb6841b80 (LWP 15391) "python"):
Traceback (most recent call first):
  File "/srv/retry.py", line 10, in <module>
    threading.Event().wait()
'''
FULL = '''\
Thread 2 (Thread 0x7fabb5adc6c0 (LWP 15403) "python"):
#3 Frame 0x7fabb67ba258, for file /srv/retry.py, line 3, in fetch (cache_key='clip:image:1')
    zlib.crc32(b"x"*3000000); return None
#7 Frame 0x7fabb67ba020, for file /usr/lib/python3.11/threading.py, line 1002, in _bootstrap (self=<Thread at remote 0x7>)
    self._bootstrap_inner()
'''
END = "[Inferior 1 (process 15391) detached]\n"


def frames(text: str) -> list[tuple[object, ...]]:
    rows = parse(stacks, {"gdb.txt": text})["stack_frames"]
    assert {row["pid"] for row in rows} == {15391}
    assert {row["tool"] for row in rows} == {"gdb"}
    return [(row["sample"], row["tid"], row["depth"], row["func"], row["file"], row["line"], row["native"]) for row in rows]


def test_native_backtrace_of_all_threads() -> None:
    assert frames(NOISE + NATIVE) == [
        (0, 15403, 0, "PyObject_Malloc", "Objects/obmalloc.c", 706, True),
        (0, 15403, 1, "_PyLong_Add", "Objects/longobject.c", 3283, True),
        (0, 15403, 2, "gloo::UnboundBuffer::waitRecv(int*, std::chrono::duration<long>)", "/opt/libgloo.so", None, True),
        (0, 15403, 3, "<signal handler called>", "", None, True),
        (0, 15403, 4, "clone3", "../sysdeps/unix/sysv/linux/x86_64/clone3.S", 81, True),
        (0, 15391, 0, "__futex_wait", "./nptl/futex-internal.c", 87, True),
        (0, 15391, 1, "_start", "", None, True),
    ]


def test_python_backtrace_wins_over_the_native_one_of_the_same_stop() -> None:
    expected = [
        (0, 15403, 0, "fetch", "/srv/retry.py", 3, False),
        (0, 15403, 1, "_bootstrap", "/usr/lib/python3.11/threading.py", 1002, False),
        (0, 15391, 0, "<module>", "/srv/retry.py", 10, False),
    ]
    assert frames(NOISE + PYTHON + END) == expected
    assert frames(NOISE + NATIVE + "\n" + PYTHON + END) == expected


def test_the_same_threads_again_are_the_next_sample() -> None:
    assert {(row[0], row[1]) for row in frames(PYTHON + END + PYTHON + END)} == {(0, 15403), (0, 15391), (1, 15403), (1, 15391)}


def test_full_form_and_a_single_thread_without_header() -> None:
    assert [row[1:4] for row in frames(FULL + END)] == [(15403, 0, "fetch"), (15403, 1, "_bootstrap")]
    alone = NOISE + PYTHON[PYTHON.rindex("Traceback") :] + END
    assert frames(alone) == [(0, 15391, 0, "<module>", "/srv/retry.py", 10, False)]
