"""Output of rocm-smi (JSON), npu-smi (table) and xpu-smi (JSON, CSV, process table).

    {"card0": {"GPU use (%)": "98", "VRAM Total Memory (B)": "68702699520", …}, "system": {"PID4711": "python3, 1, 57982058496, 0, 0"}}

    | 0     Ascend910           | OK            | 178.5       36                0    / 0             |
    | 0     0                   | 0000:9D:00.0  | 12          0    / 0          3416 / 65536         |

    Timestamp, DeviceId, GPU Utilization (%), GPU Power (W), GPU Core Temperature (Celsius Degree), GPU Memory Used (MiB)
    06:14:46.000,    0, 98.00, 214.61, 61.00, 44032.00
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence

from diag.parsers.gpu_rows import MIB, Device, Holder, Report, number, whole

CARD = re.compile(r"^card(\d{1,6})$")
ROCM_PID = re.compile(r"^PID(\d{1,10})$")
ROCM = {
    # column -> what its key looks like, best first
    "util_pct": (r"^GPU use \(%\)$",),
    "used": (r"^VRAM Total Used Memory \(B\)$",),
    "total": (r"^VRAM Total Memory \(B\)$",),
    "power_w": (r"^(?:Average|Current Socket) Graphics Package Power \(W\)$", r"Power \(W\)$"),
    "temperature_c": (r"^Temperature \(Sensor junction\)", r"^Temperature \(Sensor edge\)", r"^Temperature"),
    "name": (r"^Card [Ss]eries$", r"^Device Name$", r"^Card [Mm]odel$"),
    "uuid": (r"^Unique ID$",),
}
NPU_TABLE = re.compile(r"^\| npu-smi \S+", re.M)
NPU_ID = re.compile(r"^\s*(\d{1,6})(?:\s+(\S.*?))?\s*$")
NPU_MEMORY = re.compile(r"(\d{1,9})\s*/\s*(\d{1,9})")
XPU_CSV = "Timestamp, DeviceId,"
XPU_PS = re.compile(r"^PID\s+Command\s+DeviceID\s+SHR\S*\s+MEM", re.M)
XPU_HOLDER = re.compile(r"^(?P<pid>\d{1,10})\s+(?P<name>\S.*?)\s+(?P<gpu>\d{1,6})\s+\d+\s+(?P<mem>\d{1,12})\s*$")
KIB = 1 << 10


def recognise(head: str) -> bool:
    return tool_of(head) is not None


def tool_of(text: str) -> str | None:
    """Which tool printed this, by its shape."""
    if NPU_TABLE.search(text):
        return "npu-smi"
    if text.lstrip().startswith(XPU_CSV) or XPU_PS.search(text) or re.match(r'\s*\{\s*"device_list"\s*:', text):
        return "xpu-smi"
    if re.search(r'^\s*\{\s*(?:"card\d+"\s*:\s*\{|"system"\s*:\s*\{\s*"(?:PID\d|Driver))', text, re.M):
        return "rocm-smi"
    return None


def report(text: str) -> Report:
    """All devices and processes an output tells of."""
    match tool_of(text):
        case "npu-smi":
            return _npu(text)
        case "xpu-smi":
            return _xpu(text)
        case "rocm-smi":
            return _rocm(text)
    return Report("")


def _rocm(text: str) -> Report:
    data = _json(text)
    devices, holders = [], []
    for key, facts in data.items():
        if not isinstance(facts, dict):
            continue
        if card := CARD.match(key):
            found = {name: _first(facts, patterns) for name, patterns in ROCM.items()}
            devices.append(Device(
                _line_of(text, f'"{key}"'), int(card[1]), _text(found["name"]), _text(found["uuid"]), number(found["util_pct"]),
                whole(found["used"]), whole(found["total"]), number(found["power_w"]), number(found["temperature_c"]),
            ))
        for name, value in facts.items():
            if key == "system" and (pid := ROCM_PID.match(name)):
                cells = [cell.strip() for cell in str(value).split(",")]
                used = whole(cells[2]) if len(cells) > 2 else None
                holders.append(Holder(_line_of(text, f'"{name}"'), int(pid[1]), cells[0] or None, None, None, used))
    return Report("rocm-smi", tuple(devices), tuple(holders), bool(holders))


def _first(facts: Mapping[str, object], patterns: Sequence[str]) -> object:
    return next((value for pattern in patterns for key, value in facts.items() if re.search(pattern, key)), None)


def _npu(text: str) -> Report:
    """Two lines a chip: card, health, power, temperature; chip (and physical id), bus, load, memory."""
    lines = text.splitlines()
    devices: list[Device] = []
    index: dict[tuple[int, int], int] = {}
    for line_number, (line, after) in enumerate(itertools.pairwise(lines), 1):
        cells, more = _cells(line), _cells(after)
        if len(cells) != 3 or len(more) != 3 or not re.search(r"[0-9a-fA-Fx]{4}:\S+", more[1]):
            continue
        card, chip = NPU_ID.match(cells[0]), NPU_ID.match(more[0])
        if card is None or chip is None:
            continue
        gpu = whole(chip[2]) if chip[2] is not None else int(card[1])
        facts, load = cells[2].split(), more[2].split()
        memory = NPU_MEMORY.findall(more[2])
        if gpu is not None:
            index[int(card[1]), int(chip[1])] = gpu
        devices.append(Device(
            line_number, gpu, card[2], None, number(load[0]) if load else None, int(memory[-1][0]) * MIB if memory else None,
            int(memory[-1][1]) * MIB if memory else None, number(facts[0]) if facts else None, number(facts[1]) if len(facts) > 1 else None,
        ))
    holders = []
    for line_number, line in enumerate(lines, 1):
        cells = _cells(line)
        ids = cells[0].split() if cells else []
        if len(cells) >= 4 and len(ids) == 2 and all(part.isdecimal() and len(part) <= 10 for part in (*ids, cells[1])):
            place = (int(ids[0]), int(ids[1]))
            holders.append(Holder(line_number, int(cells[1]), cells[2] or None, index.get(place, place[0]), None, whole(cells[3], MIB)))
    return Report("npu-smi", tuple(devices), tuple(holders), "Process id" in text)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.lstrip().startswith("|") else []


def _xpu(text: str) -> Report:
    if text.lstrip().startswith(XPU_CSV):
        return Report("xpu-smi", tuple(_xpu_csv(text)))
    if XPU_PS.search(text):
        matches = [(number_, XPU_HOLDER.match(line.strip())) for number_, line in enumerate(text.splitlines(), 1)]
        holders = [
            Holder(number_, int(match["pid"]), match["name"], int(match["gpu"]), None, int(match["mem"]) * KIB)
            for number_, match in matches if match is not None
        ]
        return Report("xpu-smi", (), tuple(holders), True)
    listed = _json(text).get("device_list")
    devices = [
        Device(
            _line_of(text, f'"device_id": {item.get("device_id")}'), whole(item.get("device_id")), _text(item.get("device_name")),
            _text(item.get("uuid")), memory_total_bytes=whole(item.get("memory_physical_size_byte")),
        )
        for item in (listed if isinstance(listed, list) else ()) if isinstance(item, dict)
    ]
    return Report("xpu-smi", tuple(devices))


def _xpu_csv(text: str) -> Iterator[Device]:
    names: list[str] = []
    times: dict[int | None, int] = {}
    for line_number, line in enumerate(text.splitlines(), 1):
        cells = [cell.strip() for cell in line.split(",")]
        if line.lstrip().startswith(XPU_CSV):
            names = [re.sub(r" \(.*", "", cell) for cell in cells]
            continue
        if len(cells) != len(names):
            continue
        facts = dict(zip(names, cells, strict=True))
        gpu = whole(facts.get("DeviceId"))
        yield Device(
            line_number, gpu, None, None, number(facts.get("GPU Utilization")), whole(facts.get("GPU Memory Used"), MIB), None,
            number(facts.get("GPU Power")), number(facts.get("GPU Core Temperature")), read=times.get(gpu, 0),
        )
        times[gpu] = times.get(gpu, 0) + 1


def _json(text: str) -> Mapping[str, object]:
    """The first JSON object in a text; warnings may stand before it. Nothing readable = empty."""
    start = text.find("{")
    try:
        data, _ = json.JSONDecoder().raw_decode(text[max(start, 0):])
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value not in ("", "N/A") else None


def _line_of(text: str, part: str) -> int:
    return text[:max(text.find(part), 0)].count("\n") + 1
