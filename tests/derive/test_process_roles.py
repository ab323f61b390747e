"""What a process is there for: its title, else the innermost telling frame of its stacks, else nothing."""

import datetime
from collections.abc import Sequence

import pytest

from diag import evidence
from diag.derive import process_roles
from tests.conftest import SAMPLES, MakeCase
from tests.derive.frames import Row, derived, stack

START = datetime.datetime(2026, 11, 30, 2, 54, 39)
LATER = START + datetime.timedelta(hours=1)
SPAWNED = "<module>@<string> > spawn_main@multiprocessing/spawn.py > _main@multiprocessing/spawn.py"
CORE = "run_engine_core@vllm/v1/engine/core.py > run_busy_loop@vllm/v1/engine/core.py > step@vllm/v1/engine/core.py"
WORKER = "worker_main@vllm/v1/executor/multiproc_executor.py > worker_busy_loop@vllm/v1/executor/multiproc_executor.py > execute_model@vllm/v1/worker/gpu_worker.py"
UVICORN = "main@serve.py > run@uvicorn/server.py > run@asyncio/runners.py > _run_once@asyncio/base_events.py > select@selectors.py"
LOOP = "main@serve.py > run@asyncio/runners.py > run_forever@asyncio/base_events.py > _run_once@asyncio/base_events.py > select@selectors.py"
HANDLER = "main@serve.py > serve_forever@socketserver.py > handle@http/server.py > do_GET@serve.py"
WAITING = "main@serve.py > serve_forever@socketserver.py > select@selectors.py"
LISTENING = {"pid": 10, "fd": 3, "proto": "tcp", "lport": 8000, "state": "LISTEN", "read": 0}


def process(role: str | None = "other", **more: object) -> Row:
    return {"pid": 10, "ppid": 1, "role": role, "cmd": "python3 serve.py", "state": "S", "read": 0, "source": "processes-0.jsonl:2", **more}


def roles(**rows: Sequence[Row]) -> list[dict[str, object]]:
    return derived(process_roles, **{"processes": [process()], **rows})["process_roles"]


def by_stack(*texts: str, sockets: Sequence[Row] = (), **more: object) -> tuple[object, object]:
    """Role and who said it, of a process whose threads (the first is the main one) run these stacks."""
    frames = [row for n, text in enumerate(texts) for row in stack(text, tid=10 + n, thread=None, **more)]  # type: ignore[arg-type]
    (found,) = roles(stack_frames=frames, sockets=sockets)
    return found["role"], found["said_by"]


@pytest.mark.parametrize(("texts", "role"), [
    ([f"{SPAWNED} > {CORE}"], "engine_core"),
    ([f"{SPAWNED} > {CORE} > execute_model@vllm/v1/executor/uniproc_executor.py > execute_model@vllm/v1/worker/gpu_worker.py"], "engine_core"),
    ([f"{SPAWNED} > {WORKER}"], "worker"),
    (["_run_worker_process@/opt/venv/lib/python3.11/site-packages/vllm/executor/multiproc_worker_utils.py > step"], "worker"),
    ([f"{SPAWNED} > run_scheduler_process@sglang/srt/managers/scheduler.py > event_loop_overlap@sglang/srt/managers/scheduler.py"], "scheduler"),
    ([f"{SPAWNED} > event_loop@sglang/srt/managers/detokenizer_manager.py > recv_pyobj@zmq/sugar/socket.py"], "detokenizer"),
    ([UVICORN], "api_server"),
    (["main > run_app@aiohttp/web.py > run_forever@asyncio/base_events.py > select@selectors.py"], "api_server"),
    (["main > _run_once@asyncio/base_events.py > _handle_request@aiohttp/web_protocol.py > encode"], "api_server"),
    (["main > serve@hypercorn/asyncio/run.py"], "api_server"),
    (["main > run@gunicorn/workers/sync.py"], "api_server"),
    ([HANDLER], "api_server"),
    (["idle", "_bootstrap@threading.py > _serve@grpc/_server.py"], "api_server"),
    (["idle", "_bootstrap@threading.py > run@/srv/venv/lib/python3.11/site-packages/uvicorn/main.py"], "api_server"),
    # a process forked without exec keeps the frames of its parent below its own
    ([f"{UVICORN.replace(' > select@selectors.py', '')} > {CORE}"], "engine_core"),
    ([f"main > {CORE} > _init_executor@vllm/v1/executor/multiproc_executor.py > {WORKER}"], "worker"),
    # an engine inside its server
    ([UVICORN, f"_bootstrap@threading.py > {CORE}"], "engine_core"),
])
def test_a_title_that_says_nothing_leaves_it_to_the_stacks(texts: list[str], role: str) -> None:
    assert by_stack(*texts) == (role, "stack")


@pytest.mark.parametrize("text", [
    "main > run@train.py",
    "main > get@uvicorn_tools.py > step@myhttp/server_config.py",
    "main > request@aiohttp/client.py > _request@aiohttp/connector.py",
    "main > monitor@vllm/v1/engine/core_client.py",
    "main > monitor_workers@vllm/v1/executor/multiproc_executor.py",
    "main > unary@grpc/_channel.py",
    LOOP,
    WAITING,
])
def test_stacks_that_tell_no_role(text: str) -> None:
    assert by_stack(text) == ("other", "nothing")


@pytest.mark.parametrize(("texts", "listening", "said"), [
    ([LOOP], [LISTENING], ("api_server", "stack")),
    ([WAITING], [LISTENING], ("api_server", "stack")),
    (["main > run@uvloop/__init__.py"], [LISTENING], ("api_server", "stack")),
    ([LOOP], [{**LISTENING, "pid": 11}], ("other", "nothing")),
    ([LOOP], [{**LISTENING, "capture": "2"}], ("other", "nothing")),
    ([LOOP], [{**LISTENING, "state": "ESTABLISHED"}], ("other", "nothing")),
    ([LOOP], [{**LISTENING, "proto": "unix", "lport": None}], ("other", "nothing")),
    (["main > run@train.py"], [LISTENING], ("other", "nothing")),
    # the thread of a metrics exporter makes no API server
    (["main > run@train.py", f"_bootstrap@threading.py > {WAITING}"], [LISTENING], ("other", "nothing")),
    ([f"{SPAWNED} > {WORKER}", f"_bootstrap@threading.py > {HANDLER}"], [LISTENING], ("worker", "stack")),
])
def test_a_loop_that_waits_serves_only_with_a_port(texts: list[str], listening: list[Row], said: tuple[str, str]) -> None:
    assert by_stack(*texts, sockets=listening) == said


@pytest.mark.parametrize("more", [{}, {"stack_frames": stack(f"{SPAWNED} > {CORE}")}, {"sockets": [LISTENING]}])
def test_a_title_needs_neither_stacks_nor_sockets_and_wins(more: dict[str, Sequence[Row]]) -> None:
    (found,) = roles(processes=[process("worker")], **more)
    assert (found["role"], found["said_by"], found["source"]) == ("worker", "title", "processes-0.jsonl:2")


def test_one_row_a_process_with_its_last_state() -> None:
    found = roles(processes=[
        process("other", cmd="python3 -c spawn"),
        process("worker", read=1, cmd="VLLM::Worker", state="T", source="processes-1.jsonl:2"),
        process("other", read=2, cmd=None, state="X", source="processes-2.jsonl:2"),
    ])
    assert [(row["role"], row["said_by"], row["cmd"], row["state"], row["source"]) for row in found] == [
        ("worker", "title", "VLLM::Worker", "X", "processes-2.jsonl:2"),
    ]


def test_a_pid_that_is_used_again_is_another_process() -> None:
    found = roles(
        processes=[process(started_at=START, state="X"), process(started_at=LATER, read=1)],
        stack_frames=stack(f"{SPAWNED} > {CORE}", started_at=LATER),
    )
    assert [(row["started_at"], row["role"], row["state"]) for row in found] == [(START, "other", "X"), (LATER, "engine_core", "S")]


def test_stacks_that_do_not_know_the_start_of_their_process_are_of_that_pid() -> None:
    (found,) = roles(processes=[process(started_at=START)], stack_frames=stack(UVICORN, started_at=None))
    assert found["role"] == "api_server"


def test_captures_and_hosts_are_kept_apart() -> None:
    processes = [process(), process(capture="2"), process(host="g")]
    found = roles(processes=processes, stack_frames=[*stack(UVICORN), *stack(f"{SPAWNED} > {CORE}", capture="2")])
    assert [(row["host"], row["capture"], row["role"]) for row in found] == [
        ("h", "1", "api_server"), ("h", "2", "engine_core"), ("g", "1", "other"),
    ]


def test_the_source_is_the_frame_that_says_so() -> None:
    (found,) = roles(stack_frames=stack("main > serve@uvicorn/server.py > run@asyncio/runners.py > select@selectors.py"))
    assert found["source"] == "stacks/0.json#2"


def test_torn_stacks_say_nothing() -> None:
    assert by_stack(UVICORN, whole=False) == ("other", "nothing")
    assert by_stack(UVICORN, whole=None) == ("api_server", "stack")


def test_unknown_cells_do_not_lose_a_process() -> None:
    (found,) = roles(processes=[process(None, cmd=None, state=None, ppid=None, bundle=None, host=None)])
    assert (found["pid"], found["role"], found["said_by"], found["cmd"], found["state"]) == (10, "other", "nothing", None, None)


def test_without_processes_there_are_no_roles() -> None:
    assert roles(processes=[], stack_frames=stack(UVICORN)) == []


def test_roles_are_looked_at_when_stacks_are_not(make_case: MakeCase) -> None:
    case = make_case({"processes": [process("worker")]}, collected=["processes"])
    sql = "SELECT role FROM process_roles WHERE role = 'router'"
    assert case.unseen(case.reads(sql, "test")) == ()
    without = make_case({"stack_frames": stack(UVICORN)}, collected=["stack_frames"])
    assert without.unseen(without.reads(sql, "test")) == ("processes",)


def test_a_real_vllm_and_labs_without_a_title() -> None:
    sql = "SELECT role, said_by FROM process_roles ORDER BY pid"
    engine, _ = evidence.open_paths([SAMPLES / "vllm-0.32-cpu" / "busy"]).rows(sql, "test", 9)
    assert [tuple(row.values()) for row in engine] == [
        ("api_server", "title"), ("other", "nothing"), ("engine_core", "title"), ("worker", "title"),
    ]
    for lab in ("ghost-key-retry-loop", "cpu-spin", "event-loop-blocked"):
        (row,), _ = evidence.open_paths([SAMPLES / lab / "incident.zip"]).rows(sql, "test", 9)
        assert tuple(row.values()) == ("api_server", "stack"), lab


def test_stacks_of_a_real_vllm_tell_what_its_titles_say() -> None:
    found = evidence.open_paths([SAMPLES / "vllm-0.32-cpu" / "busy"])
    frames = {name: found.frame(name) for name in ("processes", "stacks", "sockets")}
    frames["processes"] = frames["processes"].assign(role="other")
    given = process_roles.derive(frames)["process_roles"].sort_values("pid")
    assert list(zip(given["role"], given["said_by"], strict=True))[1:] == [("other", "nothing"), ("engine_core", "stack"), ("worker", "stack")]
