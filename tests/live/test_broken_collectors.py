"""Every collector broken in turn, for real: what it says, that the others go on, and which rules can no longer be judged.

The patient is a service with one worker lost to a ghost key. A collector without a row in WAYS fails the first test.
"""

import contextlib
import hashlib
import json
import random
import re
import zipfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from diag import analysis, evidence, rules
from diag.bundle import Door, Writer
from diag.collectors import Collector, discover
from diag.labs import start_server
from diag.redact import Redactor
from diag.report import json_
from tests.live import breakage, broken_ways
from tests.live.broken_ways import Snapshot, Way, World, ghost_lab

pytestmark = pytest.mark.live

KINDS = ("denied", "vanished", "timeout", "garbage")
# all rules are written down, so that a new one is thought about here
RULES = {
    "cpu-spin", "event-loop-blocked", "ghost-key-retry-loop", "process-ended", "process-stopped", "redis-dependency-stall", "service-silent",
}  # fmt: skip
# these rest on cached values alone: what they say of the lab's ghost is tested elsewhere
CACHE_RULES = {
    "corrupt-cache-values", "error-cached-as-answer", "foreign-object-in-cache", "ghost-keys-present", "half-entry", "null-marker-in-cache",
    "stale-version-keys",
}  # fmt: skip
# these rest on dumps, logs and experiments that have to be handed in: a snapshot leaves them open, whatever is broken
HANDED_IN_RULES = {
    "crash-loop", "false-positive-probe", "first-divergence", "kv-hit-corrupt", "layout-change", "manager-single-point", "nan-origin", "prefix-block-mismatch",
    "probe-too-tight", "restart-cascade", "stale-block-reuse",
}  # fmt: skip
# open just when one of these tables was not read, else not matched: most rest on what the engine's logs tell
EVENT_RULES: Mapping[str, frozenset[str]] = {
    "probe-misses-hang": frozenset({"log_events", "http_events"}),
    **dict.fromkeys(
        ("slow-detect", "slow-traffic-switch", "thundering-readmission", "expired-queue", "recovered-not-warm", "slow-weights", "slow-compile"), frozenset({"log_events"})
    ),
    "gil-held-in-native-call": frozenset({"stack_frames"}),
    **dict.fromkeys(("regex-backtracking", "dead-loop-live-process"), frozenset({"stack_frames"})),
    "lock-cycle": frozenset({"threads", "threads.syscall"}),
    **dict.fromkeys(("lost-worker-reply", "startup-stall"), frozenset({"stack_frames"})),
    **dict.fromkeys(("worker-dead-or-stopped", "driver-memory-failure", "device-wedge", "host-lost-wakeup"), frozenset()),  # it takes two tables that nobody could read
    "collective-desync": frozenset({"stack_frames", "log_events"}), "observer-is-the-incident": frozenset({"processes"}),
    **dict.fromkeys(("memory-not-reclaimed", "device-memory-taken", "fragmented-after-restart", "standby-contends"), frozenset({"log_events"})),
    **dict.fromkeys(
        ("engine-core-dead", "cuda-illegal-access", "futures-after-shutdown", "graceful-shutdown-noise", "shm-broadcast-notice",
         "startup-death-unnoticed", "request-larger-than-kv-pool", "admission-stall", "mm-cache-desync"), frozenset({"log_events"})
    ),
    "oom-killed": frozenset({"log_events", "host_events"}),
    "xid-hardware": frozenset({"host_events"}),
    "version-known-bad": frozenset({"versions"}),
}  # fmt: skip
# open just when all of these were not read
BOTH_RULES: Mapping[str, frozenset[str]] = dict.fromkeys(
    ("scheduler-stall", "wrong-process-dumped", "kv-connector-hang", "grammar-compile-stall"), frozenset({"stack_frames", "metrics"})
)
GHOST = "ghost-key-retry-loop"


@dataclass(frozen=True)
class Gap:
    """What one collector must say of one way: its tables (or columns) that are not collected, and why with a remedy.

    `perhaps`: not collected either if the moment was bad.
    """

    way: Way
    tables: frozenset[str]
    says: str
    perhaps: frozenset[str]


def gap(of: Way, tables: str, says: str, perhaps: str = "") -> Gap:
    return Gap(of, frozenset(tables.split()), says, frozenset(perhaps.split()))


# --- what each collector must say ---

AT_ONCE = "reads of /proc are answered at once or not at all"
NOTHING = "nothing of its own is read from a live service"
LOGS, REDIS = "log_events http_events log_files", "redis_servers redis_clients cache_keys"
STACKS, GPU = "stack_frames stack_locals stack_dumps", "gpu_devices gpu_processes"
WAYS: Mapping[str, Mapping[str, tuple[Gap, ...] | str]] = {
    "processes": {
        "denied": (gap(broken_ways.no_right_to_trace, "processes.exe", "CAP_SYS_PTRACE, or as root"),),
        "vanished": (gap(broken_ways.patient_killed, "", ""),),
        "timeout": AT_ONCE,
        "garbage": (gap(broken_ways.strange_names, "", ""),),
    },
    "threads": {
        "denied": (gap(broken_ways.no_right_to_trace, "threads.syscall threads.wchan", "CAP_SYS_PTRACE, or as root"),),
        "vanished": (gap(broken_ways.patient_killed, "", ""),),
        "timeout": AT_ONCE,
        "garbage": (gap(broken_ways.strange_names, "", ""),),
    },
    "stacks": {
        "denied": (
            gap(broken_ways.no_right_to_trace, STACKS, "--cap-add SYS_PTRACE"),
            gap(broken_ways.py_spy_without_rights, STACKS, "--cap-add SYS_PTRACE"),
        ),
        "vanished": (gap(broken_ways.patient_killed, "stack_frames", "ended", perhaps="stack_locals"),),
        "timeout": (gap(broken_ways.py_spy_hangs, STACKS, "did not finish within .* take the snapshot again"),),
        "garbage": (gap(broken_ways.py_spy_talks_nonsense, STACKS, "not a dump of py-spy"),),
    },
    "sockets": {
        "denied": (gap(broken_ways.no_right_to_trace, "sockets", "run llmdiag as root or as the owner"),),
        "vanished": (gap(broken_ways.patient_killed, "sockets", "ended before .*ps -ef"),),
        "timeout": AT_ONCE,
        "garbage": (gap(broken_ways.strange_names, "", ""),),
    },
    "metrics": {
        "denied": (gap(broken_ways.metrics_forbidden, "metrics", r"wants credentials \(403\).*--bearer-file"),),
        "vanished": (
            gap(broken_ways.patient_killed, "metrics", r"no answer \(refused "),
            gap(broken_ways.port_closed, "metrics", r"no answer \(refused .*--port"),
        ),
        "timeout": (gap(broken_ways.port_silent, "metrics", r"no answer \(timeout after 2.* s\).*--port"),),
        "garbage": (gap(broken_ways.port_talks_html, "metrics", "no /metrics text.*--port"),),
    },
    "logs": {
        "denied": (
            gap(broken_ways.no_right_to_trace, LOGS, "run llmdiag as its user or root, or give --log FILE"),
            gap(broken_ways.log_of_somebody_else, LOGS, "as its owner or root, or give --log FILE"),
        ),
        "vanished": (gap(broken_ways.log_removed, LOGS, "No such file.*--log FILE"),),
        "timeout": (gap(broken_ways.log_that_blocks, LOGS, "is not a file; check --log"),),
        "garbage": (gap(broken_ways.strange_names, "", ""),),
    },
    "events": dict.fromkeys(KINDS, NOTHING),
    "lookups": dict.fromkeys(KINDS, NOTHING),
    "repro": dict.fromkeys(KINDS, NOTHING),
    "tensors": dict.fromkeys(KINDS, NOTHING),
    "redis": {
        "denied": (gap(broken_ways.redis_wants_a_password, REDIS, "wants .*password; set LLMDIAG_REDIS_URL"),),
        "vanished": (gap(broken_ways.redis_killed, REDIS, "cannot be reached.*is it running"),),
        "timeout": (gap(broken_ways.redis_stopped, REDIS, "did not answer in time; .*redis-cli ping"),),
        "garbage": (
            gap(broken_ways.redis_talks_nonsense, REDIS, "cannot be asked.*is it a Redis or Valkey server"),
            gap(broken_ways.redis_says_ok_to_all, REDIS, "answers, but not as Redis does; .*check the address"),
        ),
    },
    "host": {
        "denied": (gap(broken_ways.no_right_to_trace, "versions", "run llmdiag as its user or as root"),),
        "vanished": (gap(broken_ways.patient_killed, "", ""),),
        "timeout": (gap(broken_ways.tools_hang, "host_events", "dmesg did not answer in 4 s; .*dmesg -T > dmesg.txt"),),
        "garbage": (gap(broken_ways.tools_talk_nonsense, "", ""),),
    },
    "gpu": {
        "denied": (gap(broken_ways.nvidia_smi_not_executable, GPU, "cannot be run: Permission denied; check its permissions"),),
        "vanished": (gap(broken_ways.nvidia_smi_killed, GPU, "failed though /dev/nvidia0 is there.*look for Xid or NVRM"),),
        "timeout": (gap(broken_ways.tools_hang, GPU, "nvidia-smi did not answer in 8 s: .*look for Xid"),),
        "garbage": (gap(broken_ways.tools_talk_nonsense, GPU, "no report of it; .*look for Xid or NVRM"),),
    },
}
GAPS = [(name, kind, item) for name, kinds in WAYS.items() for kind, found in kinds.items() if not isinstance(found, str) for item in found]
ALL_WAYS = sorted(dict.fromkeys([broken_ways.nothing, broken_ways.nothing_hot, *(item.way for _, _, item in GAPS)]), key=lambda way: way.needs_hot_lab)
"""Those that need the hot lab come last, so that it does not disturb the others."""


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Snapshots that do not get in each other's way are taken two at a time, as soon as there is a patient."""
    folder = tmp_path_factory.mktemp("broken")
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(start_server(folder))
        lab = stack.enter_context(ghost_lab(server, folder / "lab.log", "--backoff-ms", "10"))
        world = World(folder, server, lab, stack, stack.enter_context(ThreadPoolExecutor(2)))
        rights = breakage.may_give_up_rights()
        for item in request.session.items:
            asked = getattr(item, "callspec", None)
            for value in asked.params.values() if asked is not None else ():
                way = value.way if isinstance(value, Gap) else value
                if isinstance(way, Way) and way.name not in world.taken and not way.needs_hot_lab and (rights or not way.needs_root):
                    world.taken[way.name] = world.pool.submit(take, world, way)
        yield world


def taken(world: World, way: Way) -> Snapshot:
    """The snapshot taken with things broken that way; each is taken once."""
    if way.needs_root and not breakage.may_give_up_rights():
        pytest.skip("only root can give up rights")
    if way.name not in world.taken:
        if way.needs_hot_lab:  # its way of breaking moves what all of them share: the hot lab must have it by then
            wait(world.taken.values())
            broken_ways.hot_lab(world)
        world.taken[way.name] = world.pool.submit(take, world, way)
    return world.taken[way.name].result()


def take(world: World, way: Way) -> Snapshot:
    bundle = world.path(f"{way.name}.zip")
    with way.broken(world) as around:
        said = breakage.snapshot(bundle, around, "--window", "2" if way.needs_hot_lab else "1")  # what spins is harder to read
    assert bundle.exists(), said.err
    with zipfile.ZipFile(bundle) as archive:
        return Snapshot(said, json.loads(archive.read("manifest.json")))


def open_tables(found: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Collector -> table that could not be collected -> why. What no snapshot collects is no gap of it."""
    gaps: dict[str, dict[str, str]] = {}
    for item in found["collected"]:
        if item["status"] not in ("ok", "skipped"):
            gaps.setdefault(item["collector"], {})[item["table_name"]] = item["reason"]
    return gaps


def test_every_collector_is_broken_in_every_way() -> None:
    assert set(WAYS) == {module.NAME for module in discover()}
    assert all(tuple(kinds) == KINDS for kinds in WAYS.values())


def of_patient(judged: Mapping[str, str], gaps: Mapping[str, Mapping[str, str]], *, redis_read: bool) -> dict[str, str]:
    """Without the rules on cached values, which are open just when the cache was not read, and those on what is handed in, which always are."""
    about_cache = {rule: verdict for rule, verdict in judged.items() if rule in CACHE_RULES}
    assert set(judged) <= RULES | CACHE_RULES | HANDED_IN_RULES | EVENT_RULES.keys() | BOTH_RULES.keys()
    gone = {table for tables in gaps.values() for table in tables}
    assert {rule: judged.get(rule) for rule in EVENT_RULES} == {rule: "inconclusive" if needs & gone else "not matched" for rule, needs in EVENT_RULES.items()}
    assert {rule: judged.get(rule) for rule in BOTH_RULES} == {rule: "inconclusive" if needs <= gone else "not matched" for rule, needs in BOTH_RULES.items()}
    assert {judged.get(rule) for rule in HANDED_IN_RULES} == {"inconclusive"}
    assert {verdict == "inconclusive" for verdict in about_cache.values()} <= {not redis_read}, about_cache
    return {rule: verdict for rule, verdict in judged.items() if rule in RULES}


@pytest.mark.parametrize("way", ALL_WAYS, ids=lambda way: way.name)
def test_which_rules_can_still_be_judged(world: World, way: Way) -> None:
    """Only what was broken is missing; the other collectors read everything."""
    said = taken(world, way).said
    found = said.json
    judged = {item["rule"]: item["verdict"] for item in found["findings"]}
    judged |= {item["rule"]: "inconclusive" for item in found["inconclusive"]}
    judged |= {item["rule"]: "not matched" for item in found["ruled_out"]}
    others = {rule: "inconclusive" for rule in way.still_open} | {rule: "likely" for rule in way.likely}
    assert of_patient(judged, open_tables(found), redis_read=not {"redis"} & set(open_tables(found))) == {rule: "not matched" for rule in RULES} | others | {GHOST: way.ghost}
    missing = {item["signal"] for rule in (*found["findings"], *found["inconclusive"]) if rule["rule"] == GHOST for item in rule["missing"]}
    assert missing == (way.missing if way.ghost != "not matched" else set())
    assert said.code == {"matched": 1, "inconclusive": 3, "clear": 0}[found["verdict"]]
    assert set(open_tables(found)) == {name for name, _, item in GAPS if item.way == way and item.tables} | way.also


@pytest.mark.parametrize(("name", "kind", "item"), GAPS, ids=[f"{name}-{kind}-{item.way.name}" for name, kind, item in GAPS])
def test_a_broken_collector_says_why_and_what_to_do(world: World, name: str, kind: str, item: Gap) -> None:
    snapshot = taken(world, item.way)
    gaps = open_tables(snapshot.said.json).get(name, {})
    assert set(gaps) - item.perhaps == item.tables
    assert all(re.search(item.says, why or "") for why in gaps.values()), gaps
    run = snapshot.manifest["collectors"][name]
    assert run["status"] in (("partial", "failed") if item.tables else ("ok",))
    told = " ".join([run["reason"] or "", *(note["reason"] for note in run["notes"])])
    assert re.search(item.says, told), run


def test_a_patient_that_died_is_seen_dead(world: World) -> None:
    """Dying is no gap in the evidence of who is there: it is evidence."""
    taken(world, broken_ways.patient_killed)
    loaded = evidence.open_paths([world.path("patient_killed.zip")])
    states = loaded.frame("processes").sort_values("read")["state"].tolist()
    assert states[0] != "X"
    assert states[1:] == ["X"]
    assert loaded.frame("log_files")["lines"].tolist() > [0], "the log outlives its writer"


# --- what was collected is garbage when it is analysed ---

GARBAGE_OPENS: Mapping[str, tuple[str, frozenset[str]]] = {
    # collector: verdict of the ghost rule, rules that are open
    "processes": ("confirmed", frozenset({"process-ended", "process-stopped"})),
    "threads": ("inconclusive", frozenset({"process-stopped"})),
    "stacks": ("inconclusive", frozenset()),
    "sockets": ("confirmed", frozenset({"service-silent"})),
    "metrics": ("confirmed", frozenset({"cpu-spin", "service-silent"})),
    "logs": ("confirmed", frozenset()),
    "events": ("confirmed", frozenset()),
    "lookups": ("confirmed", frozenset()),
    "repro": ("confirmed", frozenset()),
    "tensors": ("confirmed", frozenset()),
    "redis": ("likely", frozenset()),
    "host": ("confirmed", frozenset()),
    "gpu": ("confirmed", frozenset()),
}


@pytest.mark.parametrize("module", discover(), ids=lambda module: module.NAME)
def test_garbage_in_a_bundle_is_a_gap(world: World, module: Collector) -> None:
    """Whatever stands in the artefacts of a collector: its tables are not collected, the others are, no traceback."""
    taken(world, broken_ways.nothing_hot)
    folder = world.path(f"garbage-{module.NAME}")
    hurt = spoil(world.path("nothing_hot.zip"), folder, module.NAME)
    (diagnosis,) = analysis.analyse([folder], rules.load(rules.shipped()))
    found = json_.render(diagnosis)
    assert open_tables(found) == ({} if not hurt else {module.NAME: dict.fromkeys(module.FEEDS, ANY)})
    judged = {result.rule: result.verdict.value for result in (*diagnosis.findings, *diagnosis.inconclusive, *diagnosis.ruled_out)}
    ghost, still_open = GARBAGE_OPENS[module.NAME]
    wanted = {rule: "not matched" for rule in RULES} | {rule: "inconclusive" for rule in still_open} | {GHOST: ghost}
    assert of_patient(judged, open_tables(found), redis_read=module.NAME != "redis") == wanted


def spoil(bundle: Path, folder: Path, collector: str) -> int:
    """Unpack a bundle with random bytes in all artefacts of one collector (digests are right). Returns how many there were."""
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    mine = [entry for entry in manifest["artefacts"] if entry["collector"] == collector]
    for entry in mine:
        garbage = random.Random(entry["path"]).randbytes(4000)
        (folder / entry["path"]).write_bytes(garbage)
        entry |= {"bytes": len(garbage), "sha256": hashlib.sha256(garbage).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return len(mine)


def test_what_a_killed_llmdiag_left_damaged_is_a_gap(tmp_path: Path) -> None:
    """The journal says that the collector had read everything, but what it read is not what is there."""
    writer = Writer(tmp_path / "b", Redactor(), {"hostname": "h"}, {"pid": 1})
    writer.log("begin", collector="sockets", feeds=["sockets"])
    Door(writer, "sockets", 1 << 20).jsonl("sockets-0.jsonl", [{"artefact": "sockets", "read": 0, "ts": 1.0}])
    writer.log("end", collector="sockets", status="ok", seconds=0.1, reason=None, feeds=["sockets"], notes=[])
    writer.abandon()
    whole = evidence.open_paths([tmp_path / "b"])
    assert [(item.status, item.reason) for item in whole.collected if item.table_name == "sockets"] == [("ok", None)]
    (tmp_path / "b" / "artefacts" / "sockets" / "sockets-0.jsonl").write_bytes(b"")
    damaged = evidence.open_paths([tmp_path / "b"])
    ((status, reason),) = [(item.status, item.reason) for item in damaged.collected if item.table_name == "sockets"]
    assert status == "partial"
    assert "sockets-0.jsonl is damaged" in str(reason)
