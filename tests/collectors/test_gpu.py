"""Accelerator tools: recorded output played by an executable on PATH, tools that fail or hang, saved output."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from diag import procfs
from diag.collectors import gpu
from diag.parsers.gpu_rows import MIB
from diag.redact import Redactor
from tests.collectors import harness

GPUS = """\
index, name, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], power.draw [W], temperature.gpu, ecc.errors.uncorrected.volatile.total
0, NVIDIA H100 80GB HBM3, GPU-aaaa, 98, 71234, 81559, 412.53, 61, 0
1, NVIDIA H100 80GB HBM3, GPU-bbbb, 0, 4, 81559, [N/A], 35, [N/A]
"""
APPS = """\
gpu_uuid, pid, process_name, used_gpu_memory [MiB]
GPU-bbbb, {pid}, /opt/venv/bin/python, 71220
GPU-aaaa, 999999999, VLLM::Worker, odd name, [N/A]
"""
TABLE = """\
Mon Nov 30 02:52:45 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
| N/A   35C    P0             72W /  700W |   71234MiB /  81559MiB |     98%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GB10                    On  |   0000000F:01:00.0 Off |                  N/A |
| N/A   41C    P0             N/A /  N/A  | Not Supported          |      3%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0   N/A  N/A      4711      C   VLLM::EngineCore                            71220MiB |
|    1   N/A  N/A      4712    C+G   /usr/bin/python 3                                N/A |
+-----------------------------------------------------------------------------------------+
"""
OLD_TABLE = """\
+-----------------------------------------------------------------------------+
| NVIDIA-SMI 470.57.02    Driver Version: 470.57.02    CUDA Version: 11.4     |
|-------------------------------+----------------------+----------------------+
| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |
| Fan  Temp  Perf  Pwr:Usage/Cap|         Memory-Usage | GPU-Util  Compute M. |
|===============================+======================+======================|
|   0  Tesla T4            Off  | 00000000:00:1E.0 Off |                    2 |
| N/A   27C    P8     8W /  70W |      0MiB / 15109MiB |      0%      Default |
+-------------------------------+----------------------+----------------------+
| Processes:                                                                  |
|  GPU   GI   CI        PID   Type   Process name                  GPU Memory |
|=============================================================================|
|  No running processes found                                                 |
+-----------------------------------------------------------------------------+
"""
ROCM = """\
WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card0": {"Unique ID": "0xbeef", "GPU use (%)": "98", "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "57982058496",
 "Average Graphics Package Power (W)": "212.0", "Temperature (Sensor edge) (C)": "52.0", "Temperature (Sensor junction) (C)": "61.0", "Card Series": "AMD Instinct MI250X"},
 "card1": {"GPU use (%)": "N/A", "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "0"},
 "system": {"PID4711": "python3, 1, 57982058496, 0, 0"}}
"""
NPU = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                   Version: 25.2.0                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     Ascend910           | OK            | 178.5       36                0    / 0             |
| 0     0                   | 0000:9D:00.0  | 12          0    / 0          3416 / 65536         |
+------------------------------------------------------------------------------------------------+
| 0     Ascend910           | OK            | -           37                0    / 0             |
| 1     1                   | 0000:9F:00.0  | 0           0    / 0          3195 / 65536         |
+===========================+===============+====================================================+
| 1     910B4-1             | Alarm         | 91.3        33                0    / 0             |
| 0                         | 0000:xx:00.0  | 0           0    / 0          3197 / 32768         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       1                 | 692318        | python3                  | 12417                   |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
"""
XPU_DEVICES = """\
{
    "device_list": [
        {"device_id": 0, "device_name": "Intel(R) Data Center GPU Max 1550", "device_type": "GPU", "uuid": "0000-8086"}
    ]
}
"""
XPU_METRICS = """\
Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Core Temperature (Celsius Degree), GPU Memory Used (MiB)
06:14:46.000,    0, 98.00, 214.61, 61.00, 44032.00
"""
XPU_PS = """\
PID       Command             DeviceID       SHR            MEM
12961     python3 serve       0              0              1966
"""


@pytest.fixture
def patient() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield child.pid
    child.kill()
    child.communicate()


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH without any real accelerator tool, and a /dev of our own."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr(gpu, "DEV", tmp_path / "dev")
    monkeypatch.setenv("PATH", str(folder))
    return folder


def play(folder: Path, tool: str, script: str) -> None:
    path = folder / tool
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def record(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return f"/bin/cat {path}"


def test_no_gpu_on_this_host_is_read_and_empty(tmp_path: Path, bin_folder: Path, patient: int) -> None:
    got = harness.run(gpu, patient, tmp_path)
    assert (got.error, list(got.notes), dict(got.rows), list(got.artefacts)) == (None, [], {}, [])


def test_nvidia_smi(tmp_path: Path, bin_folder: Path, patient: int) -> None:
    show = record(tmp_path, "gpus", GPUS), record(tmp_path, "apps", APPS.format(pid=patient))
    play(bin_folder, "nvidia-smi", f'case "$1" in --query-gpu=index,name,uuid,*) {show[0]};; --query-compute-apps=*) {show[1]};; *) exit 2;; esac')
    (tmp_path / "dev" / "nvidia0").touch()
    before = time.time()
    got = harness.run(gpu, patient, tmp_path)
    assert (got.error, list(got.notes)) == (None, [])
    first, second = got.rows["gpu_devices"]
    assert {name: first[name] for name in first if name not in ("ts", "source")} == {
        "gpu": 0, "name": "NVIDIA H100 80GB HBM3", "uuid": "GPU-aaaa", "util_pct": 98.0, "memory_used_bytes": 71234 * MIB,
        "memory_total_bytes": 81559 * MIB, "power_w": 412.53, "temperature_c": 61.0, "ecc_errors": 0, "read": 0, "tool": "nvidia-smi",
    }
    assert (second["power_w"], second["ecc_errors"], second["util_pct"]) == (None, None, 0.0)
    assert second["source"] == "gpu/nvidia-smi-gpus.csv:3"
    assert abs(first["ts"].timestamp() - before) < 86400 * 2  # type: ignore[attr-defined]
    holders = [(row["gpu"], row["pid"], row["name"], row["used_bytes"], row["alive"]) for row in got.rows["gpu_processes"]]
    seen = gpu._sees_all_pids()
    assert holders == [
        (1, patient, "/opt/venv/bin/python", 71220 * MIB, True if seen else None),
        (0, 999999999, "VLLM::Worker, odd name", None, False if seen else None),
    ]


def test_whose_child_a_holder_is_and_since_when(tmp_path: Path, bin_folder: Path, patient: int) -> None:
    """An orphan is in no tree of the service: this is where a snapshot tells of it."""
    apps = record(tmp_path, "apps", APPS.format(pid=patient))
    play(bin_folder, "nvidia-smi", f'case "$1" in --query-compute-apps=*) {apps};; *) exit 2;; esac')
    got = harness.run(gpu, patient, tmp_path)
    mine, gone = got.rows["gpu_processes"]
    assert (gone["ppid"], gone["started_at"], gone["cmd"], gone["ancestors"]) == (None, None, None, None)
    if not gpu._sees_all_pids():
        pytest.skip("inside a pid namespace the numbers of the host mean nothing")
    assert (mine["ppid"], mine["started_at"]) == (os.getpid(), procfs.started_at(patient))
    assert str(mine["cmd"]).startswith(sys.executable)
    above = json.loads(str(mine["ancestors"]))
    assert above[0][0] == os.getpid()
    assert above[0][1] == " ".join(Redactor().argv(procfs.argv(os.getpid())))
    assert above[-1][0] == 1


def test_a_tool_that_hangs_is_killed_and_says_so(tmp_path: Path, bin_folder: Path, patient: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BUDGET_S", 0.4)
    play(bin_folder, "nvidia-smi", f"echo $$ > {tmp_path}/pid; exec /bin/sleep 600")
    got = harness.run(gpu, patient, tmp_path)
    assert got.error is None
    assert {(note.table_name, note.status) for note in got.notes} == {("gpu_devices", "failed"), ("gpu_processes", "failed")}
    assert got.notes[0].reason.startswith("nvidia-smi did not answer in 0.4 s: the driver may be wedged")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_the_children_of_a_hanging_tool_go_with_it(tmp_path: Path, bin_folder: Path, patient: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BUDGET_S", 0.4)
    play(bin_folder, "npu-smi", f"/bin/sleep 600 & echo $! > {tmp_path}/pid; wait")
    harness.run(gpu, patient, tmp_path)
    child = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_wedged_vendor_does_not_hide_the_other(tmp_path: Path, bin_folder: Path, patient: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "BUDGET_S", 0.4)
    play(bin_folder, "nvidia-smi", "exec /bin/sleep 600")
    play(bin_folder, "npu-smi", record(tmp_path, "npu", NPU))
    got = harness.run(gpu, patient, tmp_path)
    assert [row["gpu"] for row in got.rows["gpu_devices"]] == [0, 1, 1]
    assert {note.table_name for note in got.notes} == {"gpu_devices", "gpu_processes"}


def test_device_without_tool(tmp_path: Path, bin_folder: Path, patient: int) -> None:
    (tmp_path / "dev" / "kfd").touch()
    (tmp_path / "dev" / "nvidiactl").touch()
    got = harness.run(gpu, patient, tmp_path)
    assert {note.status for note in got.notes} == {"failed"}
    assert {note.reason for note in got.notes} == {
        f"{tmp_path}/dev/kfd is there, but rocm-smi is not on PATH; install rocm-smi, or run it elsewhere and give its saved output to analyze",
    }


@pytest.mark.parametrize(("node", "noted"), [(None, False), ("nvidia0", True)])
def test_a_tool_that_fails_matters_only_where_the_device_is(tmp_path: Path, bin_folder: Path, patient: int, node: str | None, noted: bool) -> None:
    play(bin_folder, "nvidia-smi", "echo \"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\"; exit 9")
    if node is not None:
        (tmp_path / "dev" / node).touch()
    got = harness.run(gpu, patient, tmp_path)
    assert bool(got.notes) is noted
    assert not noted or "couldn't communicate with the NVIDIA driver" in got.notes[0].reason


def test_a_flood_is_cut_not_swallowed(tmp_path: Path, bin_folder: Path, patient: int) -> None:
    play(bin_folder, "npu-smi", f"{record(tmp_path, 'npu', NPU)}; exec /usr/bin/yes")
    got = harness.run(gpu, patient, tmp_path)
    assert got.error is None
    assert len(got.bytes()) < 8 << 20


@pytest.mark.parametrize(("script", "file", "text"), [("rocm-smi", "rocm-smi.json", ROCM), ("npu-smi", "npu-smi.txt", NPU)])
def test_live_and_saved_output_give_the_same_rows(tmp_path: Path, bin_folder: Path, patient: int, script: str, file: str, text: str) -> None:
    play(bin_folder, script, record(tmp_path, "recorded", text))
    live = harness.run(gpu, patient, tmp_path)
    loose = harness.parse(gpu, {f"gpu/{file}": text})
    drop = ("ts", "alive")
    for table in gpu.FEEDS:
        assert [{k: v for k, v in row.items() if k not in drop} for row in live.rows[table]] == [
            {k: v for k, v in row.items() if k not in drop} for row in loose[table]
        ]
        assert all(row["ts"] is not None for row in live.rows[table])
        assert all(row["ts"] is None for row in loose[table])


def test_xpu_smi_is_asked_three_times(tmp_path: Path, bin_folder: Path, patient: int) -> None:
    parts = record(tmp_path, "a", XPU_DEVICES), record(tmp_path, "b", XPU_METRICS), record(tmp_path, "c", XPU_PS)
    play(bin_folder, "xpu-smi", f'case "$1" in discovery) {parts[0]};; dump) {parts[1]};; ps) {parts[2]};; esac')
    got = harness.run(gpu, patient, tmp_path)
    (device,) = got.rows["gpu_devices"]
    assert (device["gpu"], device["name"], device["uuid"], device["util_pct"], device["memory_used_bytes"], device["power_w"], device["temperature_c"]) == (
        0, "Intel(R) Data Center GPU Max 1550", "0000-8086", 98.0, 44032 * MIB, 214.61, 61.0,
    )
    assert [(row["pid"], row["name"], row["gpu"], row["used_bytes"]) for row in got.rows["gpu_processes"]] == [(12961, "python3 serve", 0, 1966 << 10)]


def test_an_interrupted_collection_leaves_no_tool(tmp_path: Path, bin_folder: Path, patient: int) -> None:
    from diag.bundle import Door, Writer
    from diag.live import Options, Patient

    play(bin_folder, "nvidia-smi", f"echo $$ > {tmp_path}/pid.part; /bin/mv {tmp_path}/pid.part {tmp_path}/pid; exec /bin/sleep 600")
    writer = Writer(tmp_path / "bundle", Redactor(), {}, {})
    going = gpu.collect(Patient(patient, patient, [patient], Options(), lambda table: ()), Door(writer, "gpu", 1 << 20))
    next(going)
    deadline = time.monotonic() + 10
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    going.close()
    writer.close(tmp_path / "bundle.zip")
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")  # noqa: PTH110


def test_saved_table_of_nvidia_smi() -> None:
    rows = harness.parse(gpu, {"smi.txt": TABLE})
    assert [(r["gpu"], r["name"], r["util_pct"], r["memory_used_bytes"], r["memory_total_bytes"], r["power_w"], r["temperature_c"], r["ecc_errors"], r["source"]) for r in rows["gpu_devices"]] == [
        (0, "NVIDIA H100 80GB HBM3", 98.0, 71234 * MIB, 81559 * MIB, 72.0, 35.0, 0, "smi.txt:9"),
        (1, "NVIDIA GB10", 3.0, None, None, None, 41.0, None, "smi.txt:13"),
    ]
    assert [(r["gpu"], r["pid"], r["name"], r["used_bytes"], r["alive"]) for r in rows["gpu_processes"]] == [
        (0, 4711, "VLLM::EngineCore", 71220 * MIB, None), (1, 4712, "/usr/bin/python 3", None, None),
    ]


def test_saved_table_of_an_old_nvidia_smi_without_processes() -> None:
    rows = harness.parse(gpu, {"smi.txt": OLD_TABLE})
    assert [(r["name"], r["power_w"], r["memory_used_bytes"], r["ecc_errors"], r["util_pct"]) for r in rows["gpu_devices"]] == [("Tesla T4", 8.0, 0, 2, 0.0)]
    assert rows["collected"] == [{"table_name": "gpu_processes", "status": "ok"}]


def test_saved_csv_with_units_and_repeats() -> None:
    text = (
        "timestamp, index, name, utilization.gpu [%], memory.used [MiB]\n"
        "2026/11/30 02:52:45.123, 0, NVIDIA L4, 7 %, 22 MiB\n"
        "2026/11/30 02:52:50.123, 0, NVIDIA L4, 9 %, 23 MiB\n"
    )
    rows = harness.parse(gpu, {"gpus.csv": text})
    assert [(r["read"], r["util_pct"], r["memory_used_bytes"], str(r["ts"])) for r in rows["gpu_devices"]] == [
        (0, 7.0, 22 * MIB, "2026-11-30 02:52:45.123000"), (1, 9.0, 23 * MIB, "2026-11-30 02:52:50.123000"),
    ]


def test_saved_rocm_npu_and_xpu() -> None:
    rocm = harness.parse(gpu, {"rocm.json": ROCM})
    assert [(r["gpu"], r["name"], r["uuid"], r["util_pct"], r["memory_used_bytes"], r["power_w"], r["temperature_c"]) for r in rocm["gpu_devices"]] == [
        (0, "AMD Instinct MI250X", "0xbeef", 98.0, 57982058496, 212.0, 61.0), (1, None, None, None, 0, None, None),
    ]
    assert [(r["pid"], r["name"], r["used_bytes"], r["gpu"]) for r in rocm["gpu_processes"]] == [(4711, "python3", 57982058496, None)]
    npu = harness.parse(gpu, {"npu.txt": NPU})
    assert [(r["gpu"], r["name"], r["util_pct"], r["memory_used_bytes"], r["memory_total_bytes"], r["power_w"], r["temperature_c"]) for r in npu["gpu_devices"]] == [
        (0, "Ascend910", 12.0, 3416 * MIB, 65536 * MIB, 178.5, 36.0), (1, "Ascend910", 0.0, 3195 * MIB, 65536 * MIB, None, 37.0),
        (1, "910B4-1", 0.0, 3197 * MIB, 32768 * MIB, 91.3, 33.0),
    ]
    assert [(r["gpu"], r["pid"], r["used_bytes"]) for r in npu["gpu_processes"]] == [(1, 692318, 12417 * MIB)]
    assert [(r["gpu"], r["name"]) for r in harness.parse(gpu, {"xpu.json": XPU_DEVICES})["gpu_devices"]] == [(0, "Intel(R) Data Center GPU Max 1550")]


@pytest.mark.parametrize("text", ["index,name\n1,2\n", "{}", '{"cards": 1}', "timestamp,value\n1,2\n", "PID USER\n1 root\n", "# HELP x\nx 1\n", "name, age\na, 3\n"])
def test_other_files_are_left_alone(text: str) -> None:
    assert not gpu.recognise("x.txt", text.encode())


@pytest.mark.parametrize("text", [GPUS[:120], TABLE[:1500], ROCM[:200], NPU[:700], XPU_METRICS[:130], XPU_DEVICES[:60], GPUS.replace("98", "nan").replace("71234", "1e999")])
def test_cut_or_odd_output_never_breaks(text: str) -> None:
    from diag.model import Artefact

    list(gpu.parse([Artefact.of_bytes("x", "gpu", text.encode())]))
