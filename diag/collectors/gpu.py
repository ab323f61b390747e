"""Accelerators: how busy, how full, how hot, and which processes hold their memory, as the vendor's own tool says.

nvidia-smi, rocm-smi, npu-smi and xpu-smi are started before the window and gathered after it; one that hangs is killed:
that is what a wedged driver does to them. Their output is kept as it is, `reads.jsonl` says when it was asked for:

    {"artefact":"gpu","read":0,"ts":1796007298.3,"file":"nvidia-smi-processes.csv","alive":[4711],
     "owners":[{"pid":4711,"ppid":1,"started":1796003698.2,"argv":["VLLM::EngineCore"],"above":[[1,"/sbin/init"]]}]}

    index, name, uuid, utilization.gpu [%], memory.used [MiB], …
    0, NVIDIA H100 80GB HBM3, GPU-1b9e…, 98, 71234, …

Saved output of these tools is read too, also the plain table of nvidia-smi. No device node and no tool: no GPU here.
"""

import contextlib
import datetime
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from diag import procfs
from diag.bundle import Door
from diag.errors import Absent, CollectorError, Denied, Garbled, TimedOut
from diag.instruments import beside
from diag.live import Collecting, Patient
from diag.model import Artefact, Row
from diag.parsers import gpu_nvidia, gpu_others
from diag.parsers.bounds import Count, Epoch
from diag.parsers.gpu_rows import Device, Report
from diag.tables import Table

NAME = "gpu"
FEEDS = ("gpu_devices", "gpu_processes")
NEEDS: tuple[str, ...] = ()
TABLES: tuple[Table, ...] = ()
BUDGET_S = 8.0
BUDGET_BYTES = 4 << 20
HINT = "llmdiag snapshot {pid}"

READS = "reads.jsonl"
DEV = Path("/dev")
NODES = {"nvidia-smi": "nvidia[0-9]*", "rocm-smi": "kfd", "npu-smi": "davinci[0-9]*"}
"""Tool -> the device nodes of its vendor. Those of Intel are shared with every graphics card and prove nothing."""

MOST_ANCESTORS = 20
HOST_PIDS = "pid:[4026531836]"
"""The pid namespace every Linux starts with."""

QUERIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    # artefact, command
    ("nvidia-smi-gpus.csv", ("nvidia-smi", f"--query-gpu={','.join(gpu_nvidia.GPU_FIELDS)}", "--format=csv,nounits")),
    ("nvidia-smi-processes.csv", ("nvidia-smi", f"--query-compute-apps={','.join(gpu_nvidia.APP_FIELDS)}", "--format=csv,nounits")),
    ("rocm-smi.json", (
        "rocm-smi", "--showuse", "--showmeminfo", "vram", "--showpower", "--showtemp", "--showproductname", "--showuniqueid", "--showpids", "--json",
    )),
    ("npu-smi.txt", ("npu-smi", "info")),
    ("xpu-smi-devices.json", ("xpu-smi", "discovery", "-j")),
    ("xpu-smi-metrics.csv", ("xpu-smi", "dump", "-d", "-1", "-m", "0,1,3,18", "-n", "1")),
    ("xpu-smi-processes.txt", ("xpu-smi", "ps")),
)


class Owner(msgspec.Struct):
    """Who a process that holds device memory is, and whose child: an orphan of an earlier life is in no tree of the service."""

    pid: Count
    ppid: Count
    started: Epoch
    argv: list[str]
    above: list[tuple[Count, str]]
    """(pid, command) of its parent, whose parent, and so on."""


class Read(msgspec.Struct):
    """One line of reads.jsonl: when a tool was asked, and which of the processes it names are alive (None = cannot be told)."""

    artefact: str
    read: Count
    ts: Epoch
    file: str
    alive: list[Count] | None
    owners: list[Owner] | None = None


@dataclass(frozen=True)
class _Part:
    """One output, parsed, with what reads.jsonl knows of it."""

    artefact: Artefact
    report: Report
    read: Read | None


def collect(patient: Patient, door: Door) -> Collecting:
    """Start every tool that is on PATH, gather after the window."""
    tools = _start(door)
    try:
        while True:
            tick = yield
            for tool in tools.values():
                beside.drain(tool)
            if tick.last:
                break
        reads = [read for file, tool in tools.items() if (read := _take(file, tool, door)) is not None]
        if reads:
            door.jsonl(READS, [msgspec.to_builtins(read) for read in reads])
    finally:
        for tool in tools.values():
            beside.stop(tool)


def recognise(name: str, head: bytes) -> bool:
    """The list of reads of this collector, or saved output of one of the tools."""
    text = head.decode("utf-8", "replace")
    return text.startswith('{"artefact":"gpu"') or gpu_nvidia.recognise(text) or gpu_others.recognise(text)


def parse(artefacts: Sequence[Artefact]) -> Iterator[Row]:
    """Raises Garbled for a damaged reads.jsonl (names the line)."""
    reads = {key: read for artefact in artefacts if artefact.name == READS for key, read in _reads(artefact)}
    parts = [
        _Part(artefact, _report(artefact.text()), reads.get((artefact.path.rpartition("/")[0], artefact.name)))
        for artefact in artefacts if artefact.name != READS
    ]
    by_uuid: dict[str | None, int | None] = {device.uuid: device.gpu for part in parts for device in part.report.devices if device.uuid is not None}
    named = {device.gpu: device for part in parts if part.report.tool == "xpu-smi" for device in part.report.devices if device.name}
    measured = {device.gpu for part in parts if part.report.tool == "xpu-smi" for device in part.report.devices if not device.name}
    for part in parts:
        for device in part.report.devices:
            if part.report.tool == "xpu-smi":
                if device.name and device.gpu in measured:
                    continue
                device = _with_name(device, named)
            yield "gpu_devices", _device_row(part, device)
        yield from _holder_rows(part, by_uuid)


def _start(door: Door) -> dict[str, beside.Tool]:
    tools: dict[str, beside.Tool] = {}
    for file, argv in QUERIES:
        nodes = _nodes(argv[0])
        try:
            tools[file] = beside.start(argv, BUDGET_S)
        except (Absent, Denied) as error:
            if nodes:
                _note(door, f"{nodes} is there, but {error.message}; {error.hint}")
    return tools


def _take(file: str, tool: beside.Tool, door: Door) -> Read | None:
    """Gather one tool and keep what it said; a note where it failed though the device is there."""
    name = tool.argv[0]
    try:
        output = beside.gather(tool)
    except TimedOut as error:
        _note(door, f"{error.message}: the driver may be wedged; look for Xid, NVRM or hung tasks in dmesg")
        return None
    nodes = _nodes(name)
    report = _report(output.out)
    if output.code != 0 or not report.tool:
        why = output.complaint if output.code != 0 else "it printed something that is no report of it"
        if nodes:
            _note(door, f"{name} failed though {nodes} is there: {why}; run it by hand, and look for Xid or NVRM in dmesg")
        return None
    door.text(file, output.out)
    pids = [holder.pid for holder in report.holders]
    if not _sees_all_pids():
        return Read("gpu", 0, output.started, file, None)
    alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    return Read("gpu", 0, output.started, file, alive, [owner for pid in alive if (owner := _owner(pid, door)) is not None])


def _owner(pid: int, door: Door) -> Owner | None:
    """None = it has ended meanwhile."""
    try:
        facts = procfs.stat(pid)
        words = list(door.redact.argv(procfs.argv(pid)))
    except CollectorError:
        return None
    above: list[tuple[int, str]] = []
    parent = facts.ppid
    with contextlib.suppress(CollectorError):
        while parent > 0 and len(above) < MOST_ANCESTORS:
            higher = procfs.stat(parent)
            above.append((parent, " ".join(door.redact.argv(procfs.argv(parent))) or f"[{higher.comm}]"))
            parent = higher.ppid
    return Owner(pid, facts.ppid, procfs.started_s(facts.start_ticks), words or [f"[{facts.comm}]"], above)


def _note(door: Door, reason: str) -> None:
    for table in FEEDS:
        door.note(table, "failed", reason)


def _sees_all_pids() -> bool:
    """The tools name processes as the host numbers them: from inside a container they all look dead."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid") == HOST_PIDS  # noqa: PTH115 - it points to no path
    return False


def _nodes(tool: str) -> str | None:
    """A device node that says this tool's hardware is here."""
    found = sorted(DEV.glob(NODES[tool])) if tool in NODES else []
    return str(found[0]) if found else None


def _report(text: str) -> Report:
    return gpu_nvidia.report(text) if gpu_nvidia.recognise(text) else gpu_others.report(text)


def _reads(artefact: Artefact) -> Iterator[tuple[tuple[str, str], Read]]:
    for number, line in artefact.lines():
        try:
            read = msgspec.json.decode(line, type=Read)
        except (msgspec.MsgspecError, UnicodeEncodeError) as error:
            raise Garbled(f"{artefact.at(number)} is not a read: {error}", hint="collect again, or give the outputs without it") from error
        yield (artefact.path.rpartition("/")[0], read.file), read


def _with_name(device: Device, named: Mapping[int | None, Device]) -> Device:
    """xpu-smi measures in one output and names in another."""
    known = named.get(device.gpu)
    if known is None or device.name is not None:
        return device
    return device._replace(name=known.name, uuid=known.uuid, memory_total_bytes=device.memory_total_bytes or known.memory_total_bytes)


def _device_row(part: _Part, device: Device) -> dict[str, object]:
    facts = {name: value for name, value in device._asdict().items() if name not in ("line", "read", "ts")}
    return {
        **facts, "read": part.read.read if part.read is not None else device.read, "ts": _ts(part) or device.ts,
        "tool": part.report.tool, "source": part.artefact.at(device.line),
    }


def _holder_rows(part: _Part, by_uuid: Mapping[str | None, int | None]) -> Iterator[Row]:
    if part.report.lists_holders:
        yield "collected", {"table_name": "gpu_processes", "status": "ok"}
    owners = {} if part.read is None else {owner.pid: owner for owner in part.read.owners or ()}
    for holder in part.report.holders:
        owner = owners.get(holder.pid)
        gpu = holder.gpu if holder.gpu is not None else by_uuid.get(holder.uuid) if holder.uuid is not None else None
        yield "gpu_processes", {
            "read": 0 if part.read is None else part.read.read, "ts": _ts(part), "gpu": gpu, "pid": holder.pid, "name": holder.name,
            "used_bytes": holder.used_bytes, "alive": None if part.read is None or part.read.alive is None else holder.pid in part.read.alive,
            "started_at": None if owner is None else procfs.utc(owner.started), "ppid": None if owner is None else owner.ppid,
            "cmd": None if owner is None else " ".join(owner.argv), "ancestors": None if owner is None else json.dumps(owner.above, ensure_ascii=False),
            "source": part.artefact.at(holder.line),
        }


def _ts(part: _Part) -> datetime.datetime | None:
    if part.read is None:
        return None
    return datetime.datetime.fromtimestamp(part.read.ts, datetime.UTC).replace(tzinfo=None)
