"""py-spy dumps of all versions, as they come out of terminals, files and container logs."""

import json
from pathlib import Path

import pytest

from diag.collectors import stacks
from diag.errors import Garbled
from diag.model import Artefact
from diag.parsers import pyspy
from diag.parsers.pyspy_errors import Probe, classify
from diag.parsers.stack_dumps import Dump
from diag.parts import spelled_out
from tests.collectors.harness import parse

SAMPLES = Path(__file__).parents[2] / "samples" / "vllm-0.32-cpu"
KEY = "clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6"

# py-spy 0.4.1 on CPython 3.10, --nonblocking --locals: bare names, pthread ids
OLD = f'''\
Process 26011: /usr/local/bin/python retry.py
Python v3.10.13 (/usr/local/bin/python3.10)

Thread 0x7FFBAF1F6B80 (idle): "MainThread"
    wait (threading.py:320)
        Arguments:
            self: <Condition at 0x7ffbae9ba920>
            timeout: None
        Locals:
            waiter: <_thread.lock at 0x7ffbae9dfe40>
            gotit: False
    <module> (retry.py:10)
Thread 0x7FFBAE7C76C0 (active): "retry"
    fetch (retry.py:3)
        Arguments:
            cache_key: "{KEY}"
        Locals:
            pair: ("GET", "{KEY}")
    retry (retry.py:8)
    _bootstrap (threading.py:973)
'''

# py-spy 0.4.3 on CPython 3.11, --native
NATIVE = '''\
Process 15153: VLLM::Worker_TP0
Python v3.11.7 (/usr/local/bin/python3.11)

Thread 15153 (idle): "MainThread"
    0x7f17074a3f16 (libc.so.6)
    PyThread_acquire_lock_timed (libpython3.11.so.1.0)
    _ctypes_callproc (callproc.c:1262)
    c10d::ProcessGroup::wait(std::chrono::duration<long>) (libtorch_cpu.so)
    Condition.wait (threading.py:327)
    serve.<locals>.loop (states.py:8)
    <lambda> (<string>)
    <module> (states.py:9)
    0x7f170744524a (libc.so.6)
Thread 15155 (active+gil): "spin"
    spin (states.py:5)
    Thread._bootstrap (threading.py:1002)
'''

TREE = '''\
Process 26018: /usr/local/bin/python tree.py
Python v3.11.7 (/usr/local/bin/python3.11)

Thread 26018 (idle): "MainThread"
    Popen.poll (multiprocessing/popen_fork.py:27)
    <module> (tree.py:4)

--------------------------------------------------------------------------------
Process 26021: /usr/local/bin/python -B -c from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=8)
Python v3.11.7 (/usr/local/bin/python3.11)
Parent Process 26018: /usr/local/bin/python tree.py

Thread 26021 (idle): "MainThread"
    Queue.get (multiprocessing/queues.py:103)
    <module> (<string>:1)
'''

STOPPED = '''\
Process 30484: VLLM::Worker
Python v3.11.7 (/usr/local/bin/python3.11)

Error: Failed to get stack traces

Caused by:
    0: Failed to suspend process
    1: unexpected waitpid result PtraceEvent(Pid(30484), SIGSTOP, 128) to 30484

Stack backtrace:
   0: <E as anyhow::context::ext::StdError>::ext_context
   9: main
'''


def dumps(text: str, pid: int | None = None) -> list[Dump]:
    return pyspy.from_text(enumerate(text.splitlines(), 1), lambda line: f"dump.txt:{line}", pid)


def names(dump: Dump, thread: int = 0) -> list[str]:
    return [frame.name for frame in dump.threads[thread].frames]


def test_bare_names_pthread_ids_and_locals() -> None:
    (dump,) = dumps(OLD)
    main, retry = dump.threads
    assert dump.pid == 26011
    assert main.tid == 26011, "the main thread's id is the pid, whatever else is known of it"
    assert retry.tid == 0x7FFBAE7C76C0
    assert names(dump, 1) == ["fetch", "retry", "_bootstrap"]
    assert [(local.var, local.is_arg, local.text) for local in retry.frames[0].locals] == [
        ("cache_key", True, KEY), ("pair", False, None),
    ]
    assert retry.frames[0].locals[0].source == "dump.txt:16"
    assert [frame.line for frame in retry.frames] == [3, 8, 973], "a tuple in the locals is no frame"


def test_native_and_nested_names() -> None:
    (dump,) = dumps(NATIVE)
    assert [frame.native for frame in dump.threads[0].frames] == [True, True, True, True, False, False, False, False, True]
    assert dump.threads[0].frames[2].line == 1262
    assert dump.threads[0].frames[6].line is None
    assert (dump.threads[0].active, dump.threads[0].owns_gil) == (False, None), "an idle thread may well hold the GIL"
    assert (dump.threads[1].active, dump.threads[1].owns_gil) == (True, True)
    rows = parse(stacks, {"pyspy.txt": NATIVE})["stack_frames"]
    assert [row["func"] for row in rows if row["tid"] == 15153][4:8] == ["wait", "loop", "<lambda>", "<module>"]
    assert rows[0]["func"] == "0x7f17074a3f16" and rows[3]["func"] == rows[3]["qualname"]
    assert {row["whole"] for row in rows} == {True}


def test_process_tree_in_one_text() -> None:
    first, second = dumps(TREE)
    assert (first.pid, second.pid) == (26018, 26021)
    assert names(second) == ["Queue.get", "<module>"]
    rows = parse(stacks, {"tree.txt": TREE})
    assert {(row["pid"], row["sample"]) for row in rows["stack_frames"]} == {(26018, 0), (26021, 0)}


@pytest.mark.parametrize(
    "prefix",
    [
        "sglang-1  | ", "[pod/vllm-0/server] ", "2026-11-30T06:00:01.123456789Z ", "2026-11-30T06:00:01.1Z stderr F ",
        "Nov 30 06:00:01 gpu-12 vllm[88]: ", "(EngineCore_0 pid=88) ", "\x1b[36m(EngineCore pid=88)\x1b[0;0m ",
        "sglang-1  | 2026-11-30T06:00:01Z ",
    ],
)
def test_prefixes_of_container_logs(prefix: str) -> None:
    prefixed = "".join(f"{prefix}{line}\n" for line in OLD.splitlines())
    (plain,), (found,) = dumps(OLD), dumps(prefixed)
    assert found == plain
    assert stacks.recognise("server.txt", prefixed.encode())


def test_blank_lines_inside_a_stack() -> None:
    (plain,), (found,) = dumps(NATIVE), dumps(NATIVE.replace("\n", "\n\n"))
    assert [names(found, thread) for thread in (0, 1)] == [names(plain, thread) for thread in (0, 1)]


def test_a_log_shipper_took_the_indentation_away() -> None:
    (plain,) = dumps(OLD)
    (found,) = dumps("\n".join(line.strip() for line in OLD.splitlines()))
    assert found == plain


def test_dump_of_a_watchdog_names_the_process_before_it() -> None:
    text = '''\
[2026-11-30 06:00:01 TP3] Pyspy dump for PID 4711:
Thread 4711 (idle): "MainThread"
    waitRecv (libgloo.so)
    <module> (<string>:1)
Thread 4790 (idle)
    select (selectors.py:415)
[2026-11-30 06:00:02 TP3] Watchdog timeout (self.watchdog_last_forward_ct=33), exit now (soon)
    not_a_frame_any_more (x.py:1)
'''
    (dump,) = dumps(text)
    assert dump.pid == 4711
    assert dump.threads[1].name is None
    assert names(dump, 1) == ["select"]


def test_a_dump_without_a_header_is_of_its_main_thread() -> None:
    (dump,) = dumps('Thread 2403 (active)\n    forward (model.py:3)\n    <module> (run.py:1)\nThread 2410 (idle)\n    wait (threading.py:1)\n')
    assert dump.pid == 2403
    assert [thread.tid for thread in dump.threads] == [2403, 2410]


def test_several_dumps_in_one_file_are_samples_in_order() -> None:
    rows = parse(stacks, {"both.txt": OLD + OLD.replace("retry.py:3", "retry.py:4")})
    leaves = [(row["sample"], row["line"]) for row in rows["stack_frames"] if row["func"] == "fetch"]
    assert leaves == [(0, 3), (1, 4)]


def test_failed_dump_says_why_and_what_to_do() -> None:
    (dump,) = dumps(STOPPED)
    assert dump.failure is not None
    assert (dump.pid, dump.failure.kind) == (30484, "stopped")
    rows = parse(stacks, {"pyspy-30484-1.txt": STOPPED, "pyspy-30484-1.json": STOPPED})
    (collected,) = rows["collected"]
    assert collected["table_name"] == "stack_frames" and collected["status"] == "partial"
    assert "pid 30484" in str(collected["reason"]) and "--nonblocking" in str(collected["reason"])
    assert "anyhow" not in str(collected["reason"])
    assert "stack_frames" not in rows
    assert [row["outcome"] for row in rows["stack_dumps"]] == ["stopped"], "text and JSON of one moment are one dump"


def test_failure_of_one_try_is_no_gap_when_another_succeeded() -> None:
    good = STOPPED.partition("Error:")[0] + 'Thread 30484 (idle): "MainThread"\n    <module> (x.py:1)\n'
    rows = parse(stacks, {"pyspy-30484-1.txt": STOPPED, "pyspy-30484-2.txt": good})
    assert "collected" not in rows
    assert [(row["sample"], row["outcome"]) for row in rows["stack_dumps"]] == [(0, "stopped"), (1, "ok")]
    assert {row["sample"] for row in rows["stack_frames"]} == {1}


@pytest.mark.parametrize(
    ("words", "probe", "kind"),
    [
        ("Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'", None, "denied"),
        ("Error: Failed to get process executable name. Check that the process is running.\nCaused by:\n    0: Permission denied (os error 13)",
         Probe(exists=True, state="S"), "denied"),
        ("It looks like you are running in a docker container. Please make sure you started your container with the SYS_PTRACE capability", None, "denied"),
        ("Error: Failed to get process executable name. Check that the process is running.\nCaused by:\n    0: No such file or directory (os error 2)",
         Probe(exists=False), "ended"),
        ("Error: Failed to get process executable name. Check that the process is running.", Probe(exists=True, state="Z", parent_pid=9), "zombie"),
        ("Error: No such process (os error 3)", None, "ended"),
        ("Error: Failed to find python version from target process", Probe(exists=True, state="S"), "not python"),
        ("Error: Failed to get stack traces\nCaused by:\n    0: Failed to suspend process\n    1: EPERM: Operation not permitted",
         Probe(exists=True, state="S", tracer_pid=77), "traced"),
        ("Error: Failed to get stack traces\n\nCaused by:\n    2: Failed to copy PyCodeObject\n    3: Bad address (os error 14)", None, "torn"),
        ("Error: Unsupported version of Python: 3.13.0", None, "too new"),
        ("Can't get native stack traces with the --nonblocking option.", None, "usage"),
        ("Error: UNW_EBADREG", None, "native"),
        ("Error: something nobody has seen\n\nCaused by:\n    1: deep down", None, "unknown"),
    ],
)
def test_every_failure_has_a_kind_and_a_remedy(words: str, probe: Probe | None, kind: str) -> None:
    failure = classify(f"{words}\n\nStack backtrace:\n   0: std::rt::lang_start\n", probe)
    assert failure.kind == kind
    assert failure.remedy or kind == "ended"
    assert "lang_start" not in str(failure)
    if kind == "unknown":
        assert "deep down" in failure.reason
    if kind == "traced":
        assert "pid 77" in failure.reason
    if kind == "zombie":
        assert "pid 9" in failure.remedy


def test_json_wins_for_frames_and_the_text_gives_the_locals() -> None:
    thread = {
        "pid": 7, "thread_id": 1, "thread_name": "w", "os_thread_id": 9, "active": False, "owns_gil": True,
        "frames": [
            {"name": "crc", "filename": "/srv/z.py", "module": None, "short_filename": "z.py", "line": 9, "locals": None},
            {"name": "retry", "filename": "/srv/retry.py", "module": None, "short_filename": "retry.py", "line": 8, "locals": None},
            {"name": "Thread._bootstrap", "filename": "/usr/lib/threading.py", "short_filename": "threading.py", "line": 973},
        ],
    }
    text = (
        'Process 7: python retry.py\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 9 (idle): "w"\n'
        "    decode (other.py:2)\n        Arguments:\n            raw: \"a:1\"\n"
        f'    fetch (retry.py:3)\n    retry (retry.py:8)\n        Arguments:\n            key: "{KEY}"\n    Thread._bootstrap (threading.py:973)\n'
    )
    rows = parse(stacks, {"pyspy-7-2.json": json.dumps([thread]), "pyspy-7-2.txt": text, "pyspy-7-10.json": json.dumps([thread])})
    assert [(row["sample"], row["depth"], row["func"], row["owns_gil"]) for row in rows["stack_frames"]] == [
        (0, 0, "crc", True), (0, 1, "retry", True), (0, 2, "_bootstrap", True),
        (1, 0, "crc", True), (1, 1, "retry", True), (1, 2, "_bootstrap", True),
    ]
    assert rows["stack_frames"][0]["source"] == "pyspy-7-2.json#threads/0/frames/0"
    held = {(row["depth"], row["func"], row["var"], row["repr"], row["source"]) for row in rows["stack_locals"]}
    assert (1, "retry", "key", KEY, "pyspy-7-2.txt:11") in held, "the frame is the second one in the JSON, the third in the text"
    assert (0, "decode", "raw", "a:1", "pyspy-7-2.txt:7") in held


def test_json_of_old_pythons_has_no_thread_ids() -> None:
    threads = [
        {"pid": 7, "thread_id": 140656942110400, "thread_name": "holder", "os_thread_id": None, "active": True, "owns_gil": False,
         "frames": [{"name": "_bootstrap", "filename": "threading.py", "line": 1, "locals": None, "module": None, "short_filename": None}]},
        {"pid": 7, "thread_id": 140656942110999, "thread_name": "MainThread", "os_thread_id": None, "active": True, "owns_gil": False,
         "frames": [{"name": "ffi_call", "filename": "/usr/lib/libffi.so.8", "module": "/usr/lib/libffi.so.8", "line": 0}]},
    ]
    rows = parse(stacks, {"dump.json": json.dumps(threads)})["stack_frames"]
    assert [row["tid"] for row in rows] == [140656942110400, 7]
    assert [(row["native"], row["line"]) for row in rows] == [(False, 1), (True, None)]


@pytest.mark.parametrize("broken", ['[{"thread_id": 1, "frames": [], "owns_gil"', '[{"thread_id": "x", "frames": [], "owns_gil": 1}]'])
def test_broken_json_is_named_and_does_not_hide_the_rest(broken: str) -> None:
    with pytest.raises(Garbled, match="pyspy-1-1"):
        pyspy.decode(broken.encode(), "pyspy-1-1.json")
    rows = parse(stacks, {"pyspy-1-1.json": broken, "pyspy-2-1.txt": TREE})
    assert [row["status"] for row in rows["collected"]] == ["partial"] * 3
    assert "pyspy-1-1.json" in str(rows["collected"][0]["reason"])
    assert len(rows["stack_frames"]) == 4


def test_a_string_is_cut_at_exactly_the_lengths_that_py_spy_cuts_at() -> None:
    cut, whole = f'"{"k:" + "x" * 121}..."', '"k:xxx..."'
    text = f'Thread 5 (idle): "MainThread"\n    f (a.py:1)\n        Locals:\n            a: {cut}\n            b: {whole}\n    <module> (a.py:2)\n'
    rows = parse(stacks, {"x.txt": text})["stack_locals"]
    assert [(row["var"], row["cut"], str(row["repr"])[-4:]) for row in rows] == [("a", True, "xxxx"), ("b", False, "x...")]


def test_torn_stacks_are_marked_by_what_the_other_samples_show() -> None:
    def sample(entry: str) -> str:
        return f'Process 7: x\nPython v3.12.1 (/x)\n\nThread 7 (idle): "MainThread"\n    f (a.py:1)\n    {entry}\nThread 8 (idle)\n    on_event (cb.py:3)\n\n'

    whole, torn = sample("<module> (a.py:9)"), sample("g (a.py:5)")
    rows = parse(stacks, {"x.txt": whole + torn + whole})["stack_frames"]
    assert [(row["sample"], row["whole"]) for row in rows if row["tid"] == 7 and row["depth"] == 0] == [(0, True), (1, False), (2, True)]
    assert {row["whole"] for row in rows if row["tid"] == 8} == {True}, "an entry of its own, seen again and again"
    alone = parse(stacks, {"x.txt": torn})["stack_frames"]
    assert {row["whole"] for row in alone} == {None}


def test_other_files_are_left_to_others() -> None:
    log = 'INFO 11-30 06:00:00 [core.py:12] Process 12: started\nTraceback (most recent call last):\n  File "/srv/a.py", line 3, in f\n    x()\nError: boom\n'
    for head in (log, '{"pid": 1}', "[1, 2]", "PID USER\n1 root\n", "", "Thread pool started (idle)\n", "# HELP vllm:x y\nvllm:x 1\n"):
        assert not stacks.recognise("some.log", head.encode()), head
    for name in ("metrics1.txt", "ps.txt", "server.log", "t1", "threads1.txt"):
        assert not stacks.recognise(name, (SAMPLES / "busy" / name).read_bytes()[: 64 << 10]), name


@pytest.mark.parametrize("case", ["idle", "busy", "worker-stopped"])
def test_real_engine_samples(case: str) -> None:
    files = {path.name: path.read_bytes() for path in sorted((SAMPLES / case).glob("pyspy-*"))}
    rows = parse(stacks, files)
    frames = rows["stack_frames"]
    seen = {(row["pid"], row["sample"]) for row in frames}
    pids = {29677, 30339} | ({30484} if case != "worker-stopped" else set())
    assert seen == {(pid, sample) for pid in pids for sample in range(3)}
    keys = [(row["pid"], row["sample"], row["tid"], row["depth"]) for row in frames]
    assert len(keys) == len(set(keys)), "text and JSON of one moment are not counted twice"
    assert all(str(row["source"]).split("#")[0].endswith(".json") for row in frames)
    assert {row["whole"] for row in frames} == {True}
    main = [row["func"] for row in frames if (row["pid"], row["tid"], row["sample"]) == (30339, 30339, 0)]
    assert main[-1] == "<module>" and "run_busy_loop" in main
    assert {row["pid"] for row in rows["stack_locals"]} == pids
    assert all(str(row["source"]).rpartition(":")[0].endswith(".txt") for row in rows["stack_locals"])
    titles = {row["repr"] for row in rows["stack_locals"] if row["var"] == "process_title"}
    assert titles == {"EngineCore"}
    depths = {(row["pid"], row["sample"], row["tid"], row["depth"]): row["func"] for row in frames}
    misplaced = [row for row in rows["stack_locals"] if depths.get((row["pid"], row["sample"], row["tid"], row["depth"])) != row["func"]]
    assert len(misplaced) <= len(rows["stack_locals"]) // 5
    if case == "worker-stopped":
        (gap,) = rows["collected"]
        assert "30484" in str(gap["reason"]) and "stopped" in str(gap["reason"])


def test_artefacts_are_read_back_whatever_is_missing() -> None:
    frame = {"name": "<module>", "filename": "/srv/a.py", "line": 3}
    sample = {"artefact": "stacks", "read": 2, "ts": 1796007298.5, "tool": "py-spy", "pid": 5, "started": 1796007200.0,
              "threads": [{"thread_id": 1, "os_thread_id": 5, "frames": [frame]}, {"thread_id": 2, "os_thread_id": 6, "torn": True, "frames": [frame]}]}
    artefact = Artefact.of_bytes("stacks/5-02.json", "stacks", json.dumps(sample, separators=(",", ":")).encode())
    broken = Artefact.of_bytes("stacks/5-03.json", "stacks", b'{"artefact":"stacks","read":3')
    rows = list(stacks.parse([artefact, broken]))
    frames = [one for table, row in rows if table == "stack_frames" for one in spelled_out(row)]
    assert [(row["sample"], row["tid"], row["whole"]) for row in frames] == [(2, 5, True), (2, 6, False)]
    assert str(frames[0]["started_at"]) == "2026-11-30 02:53:20"
    assert [row["outcome"] for table, row in rows if table == "stack_dumps"] == ["ok"], "an interrupted snapshot has no index"
    assert {row["table_name"] for table, row in rows if table == "collected" and row["status"] == "partial"} == set(stacks.FEEDS)


def test_the_head_of_a_dump_names_its_process_and_secrets_in_it_are_masked() -> None:
    text = (
        'Process 21505: VLLM::EngineCore\nPython v3.11.7 (/usr/bin/python3.11)\n\nThread 21505 (idle): "MainThread"\n    <module> (tree.py:13)\n\n'
        + "-" * 80
        + '\nProcess 21510: python3 worker.py --api-key sk-abcdef0123456789\nPython v3.11.7 (/usr/bin/python3.11)\n'
        'Parent Process 21505: VLLM::EngineCore\n\nThread 21510 (idle): "MainThread"\n    <module> (w.py:1)\n'
    )
    rows = parse(stacks, {"dump.txt": text})["processes"]
    assert [(row["pid"], row["ppid"], row["role"]) for row in rows] == [(21505, None, "engine_core"), (21510, 21505, "other")]
    assert "sk-abcdef0123456789" not in str(rows[1]["cmd"]) and str(rows[1]["cmd"]).startswith("python3 worker.py --api-key ")
