"""What every accelerator tool tells in the end: devices, and processes that hold their memory."""

import datetime
from typing import NamedTuple

MIB = 1 << 20


class Device(NamedTuple):
    """One device at one read. `line` is where the tool says so."""

    line: int
    gpu: int | None
    name: str | None = None
    uuid: str | None = None
    util_pct: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    ecc_errors: int | None = None
    read: int = 0
    ts: datetime.datetime | None = None
    """As the tool prints it, zone unknown; None = it prints none."""


class Holder(NamedTuple):
    """A process that holds device memory. `gpu` or `uuid` names the device, where the tool says which."""

    line: int
    pid: int
    name: str | None = None
    gpu: int | None = None
    uuid: str | None = None
    used_bytes: int | None = None


class Report(NamedTuple):
    """All that one output tells."""

    tool: str
    devices: tuple[Device, ...] = ()
    holders: tuple[Holder, ...] = ()
    lists_holders: bool = False
    """It is the kind of output that lists processes, also when there are none."""


def number(text: object) -> float | None:
    """`98`, `98 %`, `71.50 W` -> number; `[N/A]`, `[Not Supported]`, `-` -> None."""
    words = str(text).replace("%", " ").split()
    try:
        value = float(words[0])
    except (ValueError, IndexError):
        return None
    return value if abs(value) < 1e18 else None


def whole(text: object, unit: int = 1) -> int | None:
    """Number times unit, as a whole number."""
    value = number(text)
    return None if value is None else round(value * unit)
