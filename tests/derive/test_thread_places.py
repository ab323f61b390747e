"""Where in its work a thread is, by the stacks of real engines and of those that public reports describe."""

import pytest

from diag import evidence, places
from diag.derive import thread_places
from tests.conftest import SAMPLES
from tests.derive.frames import Row, derived, stack

CORE = "run_engine_core@core.py > run_busy_loop@core.py"
WORKER = "worker_main@multiproc_executor.py > worker_busy_loop@multiproc_executor.py"
SCHEDULER = "run_scheduler_process@scheduler.py > event_loop_overlap@scheduler.py"


def process(pid: int, role: str, cmd: str) -> Row:
    return {"pid": pid, "role": role, "said_by": "title", "cmd": cmd}


def placed(*texts: str, **more: object) -> dict[str, object]:
    """One main thread with a sample for each text."""
    frames = [row for number, text in enumerate(texts) for row in stack(text, number, tid=10, thread="MainThread", **more)]  # type: ignore[arg-type]
    (found,) = derived(thread_places, stack_frames=frames)["thread_places"]
    return found


@pytest.mark.parametrize(("text", "place", "rest"), [
    (f"{CORE} > _process_input_queue@core.py > get@queue.py > wait@threading.py", "engine-idle", True),
    (f"{CORE} > step@core.py > execute_model@abstract.py > get_response@multiproc_executor.py > dequeue@shm_broadcast.py > poll@zmq/poll.py",
     "waits-for-workers", False),
    (f"{CORE} > step_with_batch_queue@core.py > result@executor.py > _wait_for_response@e.py > get_response@e.py > dequeue@shm_broadcast.py",
     "waits-for-workers", False),
    (f"{CORE} > step@core.py > schedule@vllm/v1/core/sched/scheduler.py > get_num_common_prefix_blocks@kv_cache_manager.py", "scheduling", False),
    (f"{WORKER} > dequeue@shm_broadcast.py > acquire_read@shm_broadcast.py > sched_yield@os", "worker-idle", True),
    (f"{WORKER} > execute_model@gpu_worker.py > all_reduce@torch/distributed/distributed_c10d.py", "collective", False),
    (f"{WORKER} > execute_model@gpu_worker.py > get_output@gpu_model_runner.py > synchronize@torch/cuda/streams.py", "device-wait", False),
    (f"{WORKER} > execute_model@gpu_worker.py > forward@model.py", "computing", False),
    (f"{SCHEDULER} > process_batch_result@s.py > resolve_last_batch_result@s.py > synchronize@torch/cuda/streams.py", "device-wait", False),
    (f"{SCHEDULER} > recv_requests@scheduler.py > recv_pyobj@zmq/socket.py", "scheduler-polls", True),
    (f"{SCHEDULER} > get_next_batch_to_run@scheduler.py > match_prefix@radix_cache.py", "scheduling", False),
    ("spawn_main@multiprocessing/spawn.py > _bootstrap@multiprocessing/process.py > _shutdown@threading.py", "interpreter-ends", False),
    ("main@api.py > _run_once@asyncio/base_events.py > select@selectors.py", "event-loop-idle", True),
    ("main@api.py > _run_once@asyncio/base_events.py > parse@tool_parser.py > search@re/__init__.py", "regex", False),
    ("main@api.py > parse@tool_parser.py > search@/usr/lib/python3.10/re.py", "regex", False),
    ("main@api.py > search@re/__init__.py > callback@app.py", None, None),  # what it calls is no regular expression any more
    ("main@api.py > get@redis/client.py > read_response@redis/connection.py > recv@socket.py", "redis-wait", False),
    ("main@app.py > compile@torch/_dynamo/eval_frame.py > work@app.py", None, None),
    (f"{CORE} > preprocess_add_request@core.py > grammar_init@vllm/v1/structured_output/__init__.py > compile_grammar@backend_xgrammar.py > "
     "compile_json_schema@xgrammar/compiler.py", "grammar", False),
    ("_worker@concurrent/futures/thread.py > _init_value_dispatch@sglang/srt/constrained/base_grammar_backend.py > dispatch_regex@sglang/srt/constrained/llguidance_backend.py",
     "grammar", False),
    ("_worker@concurrent/futures/thread.py > from_regex@outlines_core/fsm/guide.py > create_states_mapping@outlines/fsm/guide.py", "grammar", False),
    (f"{WORKER} > start_load_kv@vllm/distributed/kv_transfer/kv_connector/v1/lmcache_connector.py > retrieve@lmcache/v1/cache_engine.py", "kv-load", False),
    (f"{CORE} > schedule@vllm/v1/core/sched/scheduler.py > get_num_new_matched_tokens@vllm/distributed/kv_transfer/kv_connector/v1/lmcache_connector.py > recv@zmq/sugar/socket.py",
     "kv-load", False),
    (f"{WORKER} > wait_for_save@vllm/distributed/kv_transfer/kv_connector/v1/p2p/p2p_nccl_connector.py > wait@threading.py", "kv-save", False),
    (f"{WORKER} > get_finished@vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py", "kv-polls", False),
    ("run@tqdm/_monitor.py > wait@threading.py > wait@threading.py", "event-wait", True),
])
def test_a_place_is_told_by_the_functions_on_the_way_to_it(text: str, place: str | None, rest: bool | None) -> None:
    found = placed(text)
    assert (found["place"], found["rest"]) == (place, rest)
    assert place is None or found["says"] == places.says(place) != place


@pytest.mark.parametrize(("leaf", "place"), [
    ("cuEventSynchronize", "device-wait"),
    ("cudaStreamSynchronize", "device-wait"),
    ("gloo::transport::tcp::UnboundBuffer::waitRecv(int*, std::chrono::duration<long, std::ratio<1l, 1000l> >)", "collective"),
    ("c10d::(anonymous namespace)::RecvWork::wait(long)", None),
])
def test_native_frames_are_compared_by_class_and_function(leaf: str, place: str | None) -> None:
    frames = [
        {**row, "func": leaf, "file": "libx.so", "native": True} if row["depth"] == 0 else row
        for row in stack("main > leaf", 0, tid=10, thread="MainThread")
    ]
    (found,) = derived(thread_places, stack_frames=frames)["thread_places"]
    assert found["place"] == place


def test_what_moves_between_samples_is_mixed_and_what_stays_is_the_same() -> None:
    idle, busy = f"{WORKER} > dequeue@shm_broadcast.py", f"{WORKER} > execute_model@gpu_worker.py"
    moving, still = placed(idle, busy), placed(idle, idle)
    assert (moving["place"], moving["same"], moving["samples"]) == ("mixed", False, 2)
    assert (still["place"], still["same"], still["samples"]) == ("worker-idle", True, 2)
    assert placed(idle)["same"] is None, "one look proves no rest"


def test_the_gil_is_held_by_a_thread_that_sleeps_only_where_the_dump_can_tell() -> None:
    asleep = placed("main > native_call", owns_gil=True, active=False)
    assert (asleep["asleep_with_gil"], asleep["gil_samples"], asleep["active_samples"]) == (1, 1, 0)
    assert placed("main > native_call", owns_gil=False, active=False)["asleep_with_gil"] == 0
    assert placed("main > native_call", active=False)["asleep_with_gil"] is None


@pytest.mark.parametrize(("title", "rank"), [
    ("VLLM::Worker_TP3", "TP3"), ("VLLM::Worker_DP0_TP1_EP1", "DP0 TP1 EP1"), ("sglang::scheduler_DP1_TP0", "DP1 TP0"),
    ("VLLM::EngineCore_DP2", "DP2"), ("VLLM::EngineCore", None), ("python train.py --rank 3", "rank3"), (None, None),
    ("sglang::scheduler_PP1_TP7", "PP1 TP7"),
])
def test_the_rank_stands_in_the_title(title: str | None, rank: str | None) -> None:
    assert thread_places.rank_in(title) == rank


def ranks(*texts: str) -> list[dict[str, object]]:
    """Workers of one group, one stack each -> odd_ranks."""
    frames = [row for number, text in enumerate(texts) for row in stack(text, pid=20 + number, tid=20 + number, thread="MainThread")]
    roles = [process(20 + number, "worker", f"VLLM::Worker_TP{number}") for number in range(len(texts))]
    return derived(thread_places, stack_frames=frames, process_roles=roles)["odd_ranks"]


def test_the_odd_rank_is_the_one_that_is_not_in_the_crowd() -> None:
    peers, alone = f"{WORKER} > execute_model@w.py > all_reduce@distributed_c10d.py", f"{WORKER} > execute_model@w.py > forward@m.py"
    (odd,) = ranks(peers, peers, alone, peers)
    assert (odd["pid"], odd["rank"], odd["place"], odd["crowd_place"], odd["crowd"], odd["of"]) == (22, "TP2", "computing", "collective", 3, 4)
    assert ranks(peers, peers, peers) == []
    assert ranks(peers, alone) == [], "of two nobody is the crowd"


def test_ranks_of_several_hosts_are_compared_where_each_is_there_once() -> None:
    """The pids of two hosts may be the same. Replicas have the same ranks: who waits in one of them is no measure for the other."""
    peers, alone = f"{WORKER} > execute_model@w.py > all_reduce@distributed_c10d.py", f"{WORKER} > execute_model@w.py > forward@m.py"

    def odd(*titles: str) -> list[tuple[object, ...]]:
        frames, roles = [], []
        for number, (title, text) in enumerate(zip(titles, (peers, alone, peers), strict=True)):
            origin = {"bundle": f"b{number // 2}", "host": f"h{number // 2}", "capture": f"{number // 2}"}
            frames += stack(text, pid=20 + number % 2, tid=20 + number % 2, thread="MainThread", **origin)
            roles.append({**process(20 + number % 2, "worker", title), **origin})
        found = derived(thread_places, stack_frames=frames, process_roles=roles)["odd_ranks"]
        return [(row["host"], row["rank"], row["crowd"], row["of"], row["hosts"]) for row in found]

    assert odd("VLLM::Worker_TP0", "VLLM::Worker_TP1", "VLLM::Worker_TP2") == [("h0", "TP1", 2, 3, 2)]
    assert odd("VLLM::Worker_TP0", "VLLM::Worker_TP1", "VLLM::Worker_TP0") == []
    assert odd("VLLM::Worker_TP0", "VLLM::Worker_TP1", "VLLM::Worker") == []


@pytest.mark.parametrize(("sample", "core", "worker"), [
    ("idle", "engine-idle", "worker-idle"), ("busy", "waits-for-workers", "computing"),
])
def test_a_real_engine_is_where_it_is(sample: str, core: str, worker: str) -> None:
    sql = "SELECT role, place FROM thread_places WHERE main AND role IN ('engine_core', 'worker')"
    rows, _ = evidence.open_paths([SAMPLES / "vllm-0.32-cpu" / sample]).rows(sql, "test", 9)
    assert {row["role"]: row["place"] for row in rows} == {"engine_core": core, "worker": worker}


@pytest.mark.parametrize(("states", "place"), [("TT", "stopped"), ("tt", "stopped"), ("ST", "waits-for-workers"), ("SS", "waits-for-workers")])
def test_the_stack_of_a_stopped_process_is_no_wait(states: str, place: str) -> None:
    """One that runs at one look at least waits there by itself."""
    waits = f"{CORE} > step@core.py > execute_model@abstract.py > get_response@multiproc_executor.py > dequeue@shm_broadcast.py > poll@zmq/poll.py"
    frames = [row for number in range(2) for row in stack(waits, number, tid=10, thread="MainThread")]
    looks = [{"pid": frames[0]["pid"], "state": state, "read": read} for read, state in enumerate(states)]
    (found,) = derived(thread_places, stack_frames=frames, processes=looks)["thread_places"]
    assert (found["place"], found["waits_for"]) == (place, None if place == "stopped" else "worker"), found


def test_stopped_ranks_are_no_crowd_that_the_others_left() -> None:
    reduce = f"{WORKER} > execute_model@gpu_worker.py > all_reduce@torch/distributed/distributed_c10d.py"
    frames = [row for pid in (1, 2, 3) for number in range(2) for row in stack(reduce, number, pid=pid, tid=pid, thread="MainThread")]
    roles = [process(pid, "worker", f"VLLM::Worker_TP{pid}") for pid in (1, 2, 3)]
    looks = [{"pid": pid, "state": "S" if pid == 1 else "T", "read": 0} for pid in (1, 2, 3)]
    found = derived(thread_places, stack_frames=frames, process_roles=roles, processes=looks)
    assert {row["pid"]: row["place"] for row in found["thread_places"]} == {1: "collective", 2: "stopped", 3: "stopped"}
    assert found.get("odd_ranks", []) == []
