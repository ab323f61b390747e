"""Output of nvidia-smi: CSV of its queries (with header) and the table it prints by default.

    index, name, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB], …
    0, NVIDIA H100 80GB HBM3, GPU-1b9e…, 98, 71234, 81559, …

    |   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    0 |
    | N/A   35C    P0             72W /  700W |   71234MiB /  81559MiB |     98%      Default |
"""

import datetime
import itertools
import re
from collections.abc import Iterator, Sequence

from diag.parsers.gpu_rows import MIB, Device, Holder, Report, number, whole

GPU_FIELDS = (
    "index", "name", "uuid", "utilization.gpu", "memory.used", "memory.total", "power.draw", "temperature.gpu",
    "ecc.errors.uncorrected.volatile.total",
)
APP_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")
HEADER = re.compile(r"^(?:timestamp|index|name|uuid|gpu_uuid|gpu_name|pci\.bus_id|pid|utilization\.gpu|memory\.)[\w. \[\]%]*,")
KNOWN = re.compile(r"\b(?:utilization\.gpu|memory\.used|memory\.total|temperature\.gpu|power\.draw|gpu_uuid|used_gpu_memory)\b")
SPOKEN = {"gpu_name": "name", "gpu_uuid": "uuid", "used_gpu_memory": "used_memory"}

TABLE = re.compile(r"\| NVIDIA-SMI \S+")
FIRST = re.compile(r"^\s*(?P<gpu>\d{1,6})\s+(?P<name>\S.*?)(?:\s+(?:On|Off|N/A))?\s*$")
SECOND = re.compile(r"^\s*\S+\s+(?P<temp>\d+|N/A)C?\s+(?:\S+\s+)?(?P<power>\d+|N/A)W?\s*/\s*\S+")
MEMORY = re.compile(r"(?P<used>\d{1,9})MiB\s*/\s*(?P<total>\d{1,9})MiB")
HOLDER = re.compile(r"^\|\s+(?P<gpu>\d{1,6})\s+(?:\S+\s+\S+\s+)?(?P<pid>\d{1,10})\s+(?P<type>[A-Z+]+)\s+(?P<name>\S.*?)\s+(?:(?P<used>\d{1,9})MiB|N/A)\s+\|$")


def recognise(head: str) -> bool:
    first = next((line for line in head.splitlines() if line.strip()), "")
    return TABLE.search(head) is not None or (HEADER.match(first) is not None and KNOWN.search(first) is not None)


def report(text: str) -> Report:
    """All devices and processes an output tells of."""
    if TABLE.search(text):
        lines = text.splitlines()
        return Report("nvidia-smi", tuple(_table_devices(lines)), tuple(_table_holders(lines)), "| Processes:" in text)
    devices, holders = [], []
    for number_, cells in _records(text):
        if "pid" in cells:
            pid = whole(cells["pid"])
            if pid is not None:
                used = whole(cells.get("used_memory"), MIB)
                holders.append(Holder(number_, pid, cells.get("process_name"), whole(cells.get("index")), cells.get("uuid"), used))
        else:
            devices.append(_device(number_, cells))
    return Report("nvidia-smi", tuple(_numbered(devices)), tuple(holders), re.search(r"^(?:\S+, )*pid, ", text, re.M) is not None)


def _records(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    """CSV with a header -> (line, field -> value). A process name may hold commas: the rest of its line is one field."""
    names: list[str] = []
    for line_number, line in enumerate(text.splitlines(), 1):
        if HEADER.match(line) and KNOWN.search(line):
            spoken = [re.sub(r" \[.*", "", cell.strip()) for cell in line.split(",")]
            names = [SPOKEN.get(name, name) for name in spoken]
            continue
        cells = [cell.strip() for cell in line.split(",")]
        if not names or len(cells) < len(names):
            continue
        if len(cells) > len(names) and "process_name" in names:
            at, extra = names.index("process_name"), len(cells) - len(names)
            cells[at:at + extra + 1] = [", ".join(cells[at:at + extra + 1])]
        yield line_number, dict(zip(names, cells, strict=False))


def _device(line: int, cells: dict[str, str]) -> Device:
    return Device(
        line, whole(cells.get("index")), cells.get("name"), cells.get("uuid"), number(cells.get("utilization.gpu")),
        whole(cells.get("memory.used"), MIB), whole(cells.get("memory.total"), MIB), number(cells.get("power.draw")),
        number(cells.get("temperature.gpu")), whole(cells.get("ecc.errors.uncorrected.volatile.total")),
        ts=_time(cells.get("timestamp", "")),
    )


def _numbered(devices: Sequence[Device]) -> Iterator[Device]:
    """`-l 5` prints the same devices again and again: each time is a read."""
    times: dict[object, int] = {}
    for device in devices:
        key = device.uuid or device.gpu
        yield device._replace(read=times.get(key, 0))
        times[key] = times.get(key, 0) + 1


def _time(text: str) -> datetime.datetime | None:
    try:
        return datetime.datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f")
    except ValueError:
        return None


def _table_devices(lines: Sequence[str]) -> Iterator[Device]:
    """Two lines a device, three cells each."""
    for number_, (line, after) in enumerate(itertools.pairwise(lines), 1):
        cells, more = line.strip().strip("|").split("|"), after.strip().strip("|").split("|")
        if len(cells) != 3 or len(more) != 3 or not re.search(r"[0-9A-F]{4,8}:[0-9A-F]{2}:", cells[1]):
            continue
        first, second, memory = FIRST.match(cells[0]), SECOND.match(more[0]), MEMORY.search(more[1])
        if first is None:
            continue
        yield Device(
            number_, int(first["gpu"]), first["name"], None, number(more[2]),
            whole(memory["used"], MIB) if memory else None, whole(memory["total"], MIB) if memory else None,
            number(second["power"]) if second else None, number(second["temp"]) if second else None, whole(cells[2]),
        )


def _table_holders(lines: Sequence[str]) -> Iterator[Holder]:
    for number_, line in enumerate(lines, 1):
        if match := HOLDER.match(line.strip()):
            used = None if match["used"] is None else int(match["used"]) * MIB
            yield Holder(number_, int(match["pid"]), match["name"], int(match["gpu"]), None, used)
