"""Messages of engines that got no device memory, and who held it: by text of each version, and by lists of any completeness."""

import datetime
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from diag.recovery import holders, shortage
from diag.recovery.holders import Failed, Process
from diag.recovery.shortage import GIB, Shortage
from tests.conftest import SAMPLES
from tests.live.run import llmdiag

MIB = 1 << 20
VLLM = "ValueError: Free memory on device ({}) on startup is less than desired GPU memory utilization (0.9, 71.19 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
MESSAGES = [
    (VLLM.format("3.2/79.1 GiB"), Shortage("free-below-share", None, round(79.1 * GIB), round(3.2 * GIB), round(71.19 * GIB), 0.9)),
    (VLLM.replace("device (", "device cuda:3 (").format("3.2/79.1 GiB"), Shortage("free-below-share", 3, round(79.1 * GIB), round(3.2 * GIB), round(71.19 * GIB), 0.9)),
    (VLLM.replace("device (", "device xpu:0 (").format("0.22/30.3 GiB"), Shortage("free-below-share", 0, round(30.3 * GIB), round(0.22 * GIB), round(71.19 * GIB), 0.9)),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", Shortage("no-room-for-cache")),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", Shortage("pool-too-small")),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.7", Shortage("pool-too-small", share=0.7)),
    ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", Shortage("uneven")),
    (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 42.00 MiB. GPU 0 has a total capacity of 47.27 GiB of which 9.38 MiB is free. Process 3053273 has 29.04 GiB memory in "
        "use. Process 3120922 has 14.74 GiB memory in use. Including non-PyTorch memory, this process has 3.14 GiB memory in use. Of the allocated memory 2.92 GiB is allocated by PyTorch, and "
        "34.62 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        Shortage(
            "allocation", 0, round(47.27 * GIB), round(9.38 * MIB), 42 * MIB, None, round(3.14 * GIB), round(34.62 * MIB),
            ((3053273, round(29.04 * GIB)), (3120922, round(14.74 * GIB))),
        ),
    ),
    (
        # TGI 2: the process itself stands among the others, and the device has no number
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacity of 44.34 GiB of which 160.81 MiB is free. Process 47694 has 44.17 GiB memory in use. "
        "Of the allocated memory 43.36 GiB is allocated by PyTorch, and 396.27 MiB is reserved by PyTorch but unallocated.",
        Shortage("allocation", None, round(44.34 * GIB), round(160.81 * MIB), 224 * MIB, None, round(44.17 * GIB), round(396.27 * MIB)),
    ),
    (
        # 2.1 with its typing error, and nobody named
        "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is "
        "reserved by PyTorch but unallocated.",
        Shortage("allocation", 0, 6 * GIB, 0, round(1.7 * GIB), None, round(2.93 * GIB) + round(2.3 * GIB), round(2.3 * GIB)),
    ),
    (
        # before 2.1
        "CUDA out of memory. Tried to allocate 10.84 GiB (GPU 0; 23.65 GiB total capacity; 1.06 GiB already allocated; 10.26 GiB free; 12.53 GiB reserved in total by PyTorch)",
        Shortage("allocation", 0, round(23.65 * GIB), round(10.26 * GIB), round(10.84 * GIB), None, round(12.53 * GIB), round(12.53 * GIB) - round(1.06 * GIB)),
    ),
    ("HIP out of memory. Tried to allocate 20.00 MiB.", Shortage("allocation", wanted_bytes=20 * MIB)),
    ("Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB", None),
    ("RuntimeError: CUDA error: out of memory", None),
    ("Available KV cache memory: -0.30 GiB", None),
    ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("message", "wanted"), MESSAGES, ids=lambda value: str(value)[:40])
def test_messages_by_version(message: str, wanted: Shortage | None) -> None:
    assert shortage.parse(message) == wanted


def test_damaged_messages_are_read_without_harm() -> None:
    rng = random.Random(5)
    for message, _ in MESSAGES * 60:
        text = list(message)
        for _ in range(rng.randint(1, 6)):
            if text:
                text[rng.randrange(len(text))] = rng.choice("0.9 GiB(),:;\u0664\ud800e")
        found = shortage.parse("".join(text[: rng.randint(0, len(text))]))
        assert found is None or found.form in ("free-below-share", "no-room-for-cache", "pool-too-small", "uneven", "allocation")


NEW = datetime.datetime(2026, 6, 10, 10, 0, 6)
BEFORE = NEW - datetime.timedelta(hours=1)
HELD = Shortage("free-below-share", 0, 80 * GIB, 8 * GIB, 72 * GIB, 0.9)
FAILED = Failed(5102, NEW, NEW + datetime.timedelta(seconds=11), HELD)
INIT = Process(1, "ps.txt:2", 0, cmd="/sbin/init splash")
CORE = Process(4102, "ps.txt:3", 1, BEFORE, role="engine_core", cmd="VLLM::EngineCore")
API = Process(4100, "ps.txt:4", 1, BEFORE, role="api_server", cmd="/opt/venv/bin/python3 /opt/venv/bin/vllm serve /models/one")
ON = Process(4102, "smi:5", None, None, role="engine_core", cmd="VLLM::EngineCore", gpu=0, used_bytes=71 * GIB, listed=False)


def kinds(listed: list[Process], devices: list[Process], failed: Failed = FAILED, left: frozenset[int] = frozenset()) -> dict[int, str]:
    return {holder.process.pid: holder.kind for holder in holders.holders(failed, holders.merged(listed, devices), left)}


def test_an_engine_core_below_pid_1_is_an_orphan() -> None:
    assert kinds([INIT, CORE], [ON]) == {4102: "orphan"}
    assert kinds([CORE], [ON]) == {4102: "orphan"}
    assert kinds([replace(INIT, cmd="/process_api --init"), CORE], [ON]) == {4102: "orphan"}, "an init of some machine"
    assert kinds([CORE], []) == {4102: "orphan"}, "ps alone shows it as well"


@pytest.mark.parametrize("cmd", ["/lib/systemd/systemd --user", "-bash", "/usr/bin/tini -- run.sh", "sshd: dana"])
def test_so_is_one_whose_parent_only_starts_services(cmd: str) -> None:
    """A subreaper, a shell of a session."""
    parent = Process(900, "ps.txt:9", 1, BEFORE, cmd=cmd.replace("sshd:", "sshd"))
    assert kinds([parent, replace(CORE, ppid=900)], [ON]) == {4102: "orphan"}


def test_what_an_owner_has_is_none() -> None:
    assert kinds([INIT, API, replace(CORE, ppid=4100)], [ON]) == {4102: "engine"}
    in_container = Process(1, "ps.txt:2", 0, BEFORE, role="api_server", cmd="vllm serve /models/one")
    assert kinds([in_container, CORE], [ON]) == {4102: "engine"}, "pid 1 of a container is the API server"
    for cmd in ("python3 /srv/serve.py", "/opt/venv/bin/python3.12 -m dynamo.vllm", None):
        assert kinds([Process(1, "ps.txt:2", 0, BEFORE, cmd=cmd), CORE], [ON]) == {4102: "engine"}, f"pid 1 may be its owner: {cmd}"
    script = Process(700, "ps.txt:9", 1, BEFORE, cmd="python3 batch_of_tonight.py")
    assert kinds([script, replace(CORE, ppid=700)], [ON]) == {4102: "engine"}, "an engine inside somebody's own program"


def test_workers_of_an_orphan_are_orphans_and_their_core_is_named() -> None:
    """With several cards the core holds nothing itself."""
    worker = Process(4110, "ps.txt:5", 4102, BEFORE, role="worker", cmd="VLLM::Worker_TP0")
    other = Process(4400, "ps.txt:6", 1, BEFORE, role="engine_core", cmd="VLLM::EngineCore")
    assert kinds([INIT, CORE, worker, other], [replace(ON, pid=4110, cmd="VLLM::Worker_TP0")]) == {4110: "orphan", 4102: "orphan"}


def test_what_is_not_told_is_open() -> None:
    assert kinds([], [ON]) == {4102: "unseen"}
    assert kinds([replace(CORE, ppid=900)], [ON]) == {4102: "unseen"}, "its parent is in no list"
    assert kinds([], [replace(ON, role="other", cmd="/usr/bin/python3")]) == {4102: "unseen"}
    assert kinds([], [replace(ON, role="other", cmd="/usr/local/bin/ollama")]) == {4102: "other"}
    assert kinds([Process(6200, "ps.txt:3", 1, BEFORE, cmd="ollama runner")], [replace(ON, pid=6200, role="other", cmd="ollama")]) == {6200: "other"}


def test_the_engine_itself_and_what_came_later_are_not_accused() -> None:
    own = [Process(5100, "ps.txt:7", 1, NEW, role="api_server", cmd="vllm serve x"), Process(5102, "ps.txt:8", 5100, NEW, role="engine_core", cmd="VLLM::EngineCore")]
    assert kinds([INIT, *own], [replace(ON, pid=5102)]) == {}
    retry = replace(CORE, pid=5202, started_at=NEW + datetime.timedelta(seconds=40))
    assert kinds([INIT, retry], [replace(ON, pid=5202)]) == {}
    young = [replace(own[1], age_s=20.0, started_at=None, ppid=1), replace(CORE, age_s=12.0, started_at=None)]
    assert kinds([INIT, *young], [ON]) == {}, "by ages of one list"


def test_figures_that_leave_no_room_for_others_acquit_everybody() -> None:
    alone = replace(FAILED, shortage=replace(HELD, free_bytes=79 * GIB))
    assert kinds([INIT, CORE], [ON], alone) == {}
    small = replace(FAILED, shortage=replace(HELD, free_bytes=60 * GIB))
    assert kinds([INIT, CORE], [ON], small) == {}, "71 GiB cannot be among the 20 that are held"


def test_when_a_message_names_who_is_there_nobody_else_was() -> None:
    named = replace(FAILED, shortage=Shortage("allocation", 0, 80 * GIB, GIB, 2 * GIB, None, 50 * GIB, MIB, ((7102, 28 * GIB),)), starting=False)
    standby = [replace(API, pid=7100), replace(CORE, pid=7102, ppid=7100)]
    assert kinds([INIT, *standby, CORE], [ON], named) == {7102: "engine"}


def test_on_another_card_it_is_not_in_the_way() -> None:
    own = replace(ON, pid=5102)
    assert kinds([INIT, CORE], [replace(ON, gpu=1), own]) == {}
    assert kinds([INIT, CORE], [replace(ON, gpu=1)]) == {4102: "orphan"}, "the only card there is, whatever the engine calls it"


def test_what_a_supervisor_found_left_over_is_an_orphan() -> None:
    assert kinds([INIT, API], [replace(ON, pid=4100, role="api_server", cmd="vllm serve x")], left=frozenset({4100})) == {4100: "orphan"}
    assert kinds([INIT, API], [replace(ON, pid=4100, role="api_server", cmd="vllm serve x")]) == {4100: "engine"}


def test_systemd_tells_of_a_left_over_process(tmp_path: Path) -> None:
    """Without any list: the journal alone names the pid, and the script has no start time to compare."""
    folder = tmp_path / "evidence"
    folder.mkdir()
    sample = SAMPLES / "device-memory" / "holder-not-listed"
    (folder / "vllm.log").write_bytes((sample / "vllm.log").read_bytes())
    told = (sample / "journal.log").read_text()
    line = "2026-06-10T10:00:05.000000+00:00 gpu-1 systemd[1]: vllm.service: Found left-over process 4102 (VLLM::EngineCor) in control group while starting unit. Ignoring.\n"
    (folder / "journal.log").write_text(told.replace("2026-06-10T10:00:05.000000+00:00 gpu-1 systemd[1]: Started", f"{line}2026-06-10T10:00:05.000000+00:00 gpu-1 systemd[1]: Started"))
    said = llmdiag("analyze", str(folder), "-f", "json")
    (finding,) = [item for item in said.json["findings"] if item["rule"] == "memory-not-reclaimed"]
    assert finding["verdict"] == "confirmed"
    said = llmdiag("recovery", str(folder), "--orphans-script", str(tmp_path / "x.sh"))
    assert "no start time" in said.err, said
    assert "\n4102 - - -\n" in (tmp_path / "x.sh").read_text()


def test_weights_that_do_not_fit_are_no_pool_and_nobodys_memory(tmp_path: Path) -> None:
    """Out of memory while loading, with nobody else on the card: the model is too large, and nothing was kept back."""
    log = (SAMPLES / "device-memory" / "share-too-large" / "vllm.log").read_text().splitlines()
    start = [line for line in log if "pid=510" in line]
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 79.11 GiB of which 0.61 GiB is free. Including non-PyTorch memory, this process has "
        "78.40 GiB memory in use. Of the allocated memory 77.80 GiB is allocated by PyTorch, and 9.00 MiB is reserved by PyTorch but unallocated."
    )
    (tmp_path / "vllm.log").write_text("".join(f"{re.sub('ValueError: Free memory.*', oom, line)}\n" for line in start))
    assert oom in (tmp_path / "vllm.log").read_text()
    said = llmdiag("query", str(tmp_path), "SELECT phase, cause FROM memory_failures", "-f", "json", "--date", "2026", "--tz", "UTC")
    assert said.json["rows"] == [{"phase": "startup", "cause": "model"}]
    said = llmdiag("analyze", str(tmp_path), "-f", "json", "--date", "2026", "--tz", "UTC")
    assert "memory-not-reclaimed" in [item["rule"] for item in said.json["ruled_out"]], said.json["findings"]


@pytest.mark.parametrize(("tried", "spare", "in_pieces"), [("2.00", "9.35", True), ("9.36", "9.35", False), ("0.25", "0.99", False), ("0.25", "1.00", True)])
def test_as_much_as_was_asked_for_lay_in_pieces(tmp_path: Path, tried: str, spare: str, in_pieces: bool) -> None:
    log = (SAMPLES / "device-memory" / "fragmented" / "vllm.log").read_text()
    asked, pieces = "Tried to allocate 2.00 GiB", "9.35 GiB is reserved by PyTorch but unallocated"
    assert asked in log and pieces in log
    (tmp_path / "vllm.log").write_text(log.replace(asked, f"Tried to allocate {tried} GiB").replace(pieces, pieces.replace("9.35", spare)))
    said = llmdiag("query", str(tmp_path), "SELECT DISTINCT in_pieces FROM memory_failures", "-f", "json", "--date", "2026", "--tz", "UTC")
    assert said.json["rows"] == [{"in_pieces": in_pieces}]


def test_start_times_of_a_list_by_ps_in_the_zone_that_is_given() -> None:
    sample = str(SAMPLES / "device-memory" / "orphan-holds")
    sql = "SELECT started_at, (SELECT min(reason) FROM collected WHERE collector = 'processes' AND table_name = 'processes') AS assumed FROM processes WHERE pid = 4102"
    (row,) = llmdiag("query", sample, sql, "-f", "json").json["rows"]
    assert row == {"started_at": "2026-06-10T09:00:05", "assumed": "ps.txt: start times: zone UTC"}
    (row,) = llmdiag("query", sample, sql, "-f", "json", "--tz", "+02:00").json["rows"]
    assert row == {"started_at": "2026-06-10T07:00:05", "assumed": None}
