"""Writes look-alikes of recorded samples that differ from them in one fact; nothing has to run for it.

    python samples/edited.py [SAMPLE…]     # after the samples that they are made of were recorded anew
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import edited_ghosts
import edited_processes
from edits import Files, change_lines, change_stacks, dumps, keep_dumps, named, read, write


def answered(files: Files) -> None:
    """The ports answer."""
    change_lines(files, "/metrics/probes-", lambda line: {**line, "outcome": "answer", "status": 404, "seconds": 0.01} if "url" in line else line)


def one_read(files: Files) -> None:
    """The ports were asked once."""
    del files[named(files, "/metrics/probes-")[-1]]


def changed(sample: str, *changes: Callable[[Files], None]) -> Callable[[], Files]:
    def make() -> Files:
        files = read(sample)
        for change in changes:
            change(files)
        return files

    return make


def torn(files: Files) -> None:
    """One stack was read while it changed: all but its innermost functions are missing."""

    def change(sample: int, thread: dict[str, Any]) -> None:
        if sample == 2:
            thread.update(torn=True, frames=thread["frames"][:3])

    change_stacks(files, change)


def metrics_elsewhere(files: Files) -> None:
    """A port of its own answers for /metrics, and the tokens there go up."""
    for number, name in enumerate(named(files, "/metrics/probes-")):
        last = json.loads(files[name].splitlines()[-1])
        place = {"target": "127.0.0.1:9100", "url": "http://127.0.0.1:9100/metrics", "outcome": "answer", "status": 200, "seconds": 0.01}
        files[name] += json.dumps({**last, **place}, separators=(",", ":")) + "\n"
        files[f"artefacts/metrics/9100-metrics-{number}.txt"] = (
            f"# llmdiag read={number} ts={last['ts']:.3f} status=200 seconds=0.0100\n# llmdiag url=http://127.0.0.1:9100/metrics\n"
            f'vllm:num_requests_running{{engine="0"}} 1\nvllm:generation_tokens_total{{engine="0"}} {1000 + 90 * number}\n'
        )


def backlog_shrinks(files: Files) -> None:
    """Somebody else accepts from the same socket."""
    first, second = named(files, "/sockets/sockets-")
    for name, waiting in ((first, 12), (second, 9)):
        change_lines(files, name, lambda line, waiting=waiting: {**line, "recv_q": waiting} if line.get("state") == "LISTEN" else line)


def of_thread(name: str, change: Callable[[int, dict[str, Any]], None]) -> Callable[[Files], None]:
    """Change one thread in all dumps."""

    def apply(files: Files) -> None:
        names = dumps(files) or [name for name in sorted(files) if name.endswith(".json")]
        change_stacks(files, lambda sample, thread: change(sample, thread) if thread["thread_name"].startswith(name) else None, names)

    return apply


def moves(sample: int, thread: dict[str, Any]) -> None:
    """At another line each time."""
    thread["frames"][0]["line"] += sample


def computes(sample: int, thread: dict[str, Any]) -> None:
    """On a processor, in C that has let go of the lock."""
    thread["active"] = True


def reads_shared_memory(sample: int, thread: dict[str, Any]) -> None:
    """Where vLLM's workers wait for their next order."""
    queue, executor = "vllm/distributed/device_communicators/shm_broadcast.py", "vllm/v1/executor/multiproc_executor.py"
    waits = (("acquire_read", queue, 584), ("dequeue", queue, 660), ("worker_busy_loop", executor, 812))
    thread["frames"][:2] = [{**thread["frames"][0], "name": name, "filename": file, "short_filename": file, "line": line} for name, file, line in waits]


def native_thread(files: Files) -> None:
    """The request's thread is one of C++ that polls a socket."""
    for name in dumps(files):
        dump = json.loads(files[name])
        gone = [thread["os_thread_id"] for thread in dump["threads"] if thread["thread_name"].startswith("Thread-2")]
        dump["threads"] = [thread for thread in dump["threads"] if thread["os_thread_id"] not in gone]
        files[name] = json.dumps(dump, separators=(",", ":"))
        polls = {"wchan": "do_sys_poll", "syscall": "7 0x7fe7c0de89c0 0x1 0x5 0x0 0x0 0x0 0x7fe7c0de8890 0x7fe7c2c4bf16"}
        change_lines(files, "/threads/tasks-", lambda line, gone=gone, polls=polls: {**line, **polls} if line.get("tid") in gone else line)


def somebody_holds_it(files: Files) -> None:
    """A thread that works holds the lock, as text dumps do tell."""
    for name, text in files.items():
        files[name] = text.replace('Thread 51901 (idle)', 'Thread 51901 (active+gil)')


# --- dead-loop-live-process ---


def connected(files: Files) -> None:
    """It has a connection to another service, too."""
    for name in named(files, "/sockets/sockets-"):
        listening = next(json.loads(line) for line in files[name].splitlines() if '"LISTEN"' in line)
        row = {**listening, "state": "ESTABLISHED", "fd": 40, "inode": 1, "lport": 51234, "raddr": "10.0.0.5", "rport": 5432, "recv_q": 0, "send_q": 0}
        row.pop("own_q", None)
        files[name] += json.dumps(row, separators=(",", ":")) + "\n"


FAILED = """\
[2026-11-20 09:14:59 TP2] Scheduler hit an exception: Traceback (most recent call last):
  File "/opt/venv/lib/python3.10/site-packages/sglang/srt/managers/scheduler.py", line 3302, in run_scheduler_process
    scheduler.event_loop_overlap()
KeyError: 'mm_inputs'

"""
ROUTER = """\
[2026-11-20 09:14:51] INFO:     Started server process [640]
[2026-11-20 09:14:52] ERROR:    Exception in ASGI application
Traceback (most recent call last):
  File "/opt/venv/lib/python3.10/site-packages/router/app.py", line 88, in forward
    raise ConnectionResetError(104, "Connection reset by peer")
ConnectionResetError: [Errno 104] Connection reset by peer
"""


def failed_first(files: Files) -> None:
    """The scheduler failed before the server was shut down."""
    first, rest = files["server.log"].split("\n", 1)
    files["server.log"] = f"{first}\n{FAILED}{rest}"


def router_failed(files: Files) -> None:
    """Another program's log, whose first lines tell of an error of its own; the scheduler had served for longer."""
    files["router.log"] = ROUTER
    first, rest = files["server.log"].split("\n", 1)
    files["server.log"] = f"{first}\n" * 4 + rest


EDITS: Mapping[str, Callable[[], Files]] = {
    **{f"ghost-key-retry-loop/{make.__name__.replace('_', '-')}": make for make in edited_ghosts.EDITS},
    **{sample: changed(of, change) for sample, (of, change) in edited_processes.EDITS.items()},
    "cpu-spin/answers": changed("cpu-spin/incident", answered),
    "cpu-spin/asked-once": changed("cpu-spin/incident", one_read),
    "cpu-spin/metrics-elsewhere": changed("cpu-spin/incident", metrics_elsewhere),
    "cpu-spin/two-dumps": changed("cpu-spin/incident", lambda files: keep_dumps(files, 0, 4)),
    "gil-held-in-native-call/holder-moves": changed("gil-held-in-native-call/incident", of_thread("reaper", moves)),
    "gil-held-in-native-call/native-thread": changed("gil-held-in-native-call/incident", native_thread),
    "gil-held-in-native-call/json-dumps-lookup-moves": changed("gil-held-in-native-call/json-dumps", of_thread("lookup_0", moves)),
    "gil-held-in-native-call/json-dumps-lookup-computes": changed("gil-held-in-native-call/json-dumps", of_thread("lookup_0", computes)),
    "gil-held-in-native-call/json-dumps-lookup-waits": changed("gil-held-in-native-call/json-dumps", of_thread("lookup_0", reads_shared_memory)),
    "gil-held-in-native-call/text-dumps-gil-held": changed("gil-held-in-native-call/text-dumps", somebody_holds_it),
    "dead-loop-live-process/connected": changed("dead-loop-live-process/incident", connected),
    "dead-loop-live-process/failed-first": changed("dead-loop-live-process/shutting-down", failed_first),
    "dead-loop-live-process/router-failed": changed("dead-loop-live-process/shutting-down", router_failed),
    "event-loop-blocked/answers": changed("event-loop-blocked/incident", answered),
    "event-loop-blocked/asked-once": changed("event-loop-blocked/incident", one_read),
    "event-loop-blocked/two-dumps": changed("event-loop-blocked/incident", lambda files: keep_dumps(files, 0, 4)),
    "event-loop-blocked/torn-stack": changed("event-loop-blocked/incident", torn),
    "event-loop-blocked/backlog-shrinks": changed("event-loop-blocked/incident", backlog_shrinks),
}  # fmt: skip


def record(sample: str) -> None:
    """The sample anew, from the record that it is made of."""
    write(sample, EDITS[sample]())
    print(sample)


def main() -> None:
    for sample in sys.argv[1:] or EDITS:
        record(sample)


if __name__ == "__main__":
    main()
