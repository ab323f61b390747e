"""What the kernel's log says of NVIDIA cards: Xids by their catalogue, consequences folded under what came first.

    08:00:00 Xid (PCI:0000:41:00): 145 …            fabric, first
    08:00:01 Xid (PCI:0000:41:00): 45 …             consequence of it
    08:00:09 GPU 0000:51:00.0: GPU has fallen off the bus.      hardware, though no Xid was written
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from diag.signatures import xids
from diag.tables import Table, table

if TYPE_CHECKING:
    import pandas as pd

NEEDS = ("host_events",)
GIVES: tuple[Table, ...] = (
    table(
        "device_faults",
        "Faults of NVIDIA cards in the kernel's log, one row per card and code, and which of them came first",
        "ts TIMESTAMP: first line; NULL = the log has no dates", "last_ts TIMESTAMP: last line", "device VARCHAR: PCI address; NULL = not named",
        "code BIGINT: Xid; NULL = the line has none", "name VARCHAR: the vendor's name of it; NULL = not in the catalogue", "says VARCHAR: what it means, in words",
        "class VARCHAR: hardware | fabric | driver | application | consequence | notice | unknown (not in the catalogue)", "do VARCHAR: what the vendor's catalogue says to do at once",
        "n BIGINT: lines", "pid BIGINT: process that the line names; NULL = none", "message VARCHAR: the first line",
        "after VARCHAR: what it is a consequence of, code and device; NULL = nothing that is seen", "first BOOLEAN: it is no consequence and the earliest of its device",
        "place BIGINT: its number in the order of the log, which tells those of one second apart",
        "catalogue VARCHAR: source of the meaning and the day on which it was read",
    ),
)  # fmt: skip
KEYS = ["bundle", "host", "capture"]
ADDRESS = re.compile(r"(?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?")
FALLEN = re.compile(r"fallen off the bus|GPU (?:is )?lost", re.I)
PREVIOUS = re.compile(r"(?i)previous (?:xid|error)[^\d]{0,20}(?P<code>\d{1,4})")
NEAR_S = 600.0
BROKEN = frozenset({"hardware", "fabric", "driver", "unknown"})
Row = Mapping[str, Any]


def derive(frames: "Mapping[str, pd.DataFrame]") -> "Mapping[str, pd.DataFrame]":
    """host_events -> device_faults."""
    import pandas as pd

    events = frames["host_events"]
    wanted = events[events["kind"].eq("xid") | (events["kind"].eq("nvrm") & events["detail"].fillna("").str.contains(FALLEN))]
    found: list[dict[str, object]] = []
    for key, group in wanted.groupby(KEYS, dropna=False, sort=False):
        origin = dict(zip(KEYS, (None if part != part else part for part in key), strict=True))
        plain = group.astype(object).where(group.notna(), None).to_dict("records")
        found += [{**origin, **row} for row in _folded(_faults([{str(name): value for name, value in row.items()} for row in plain]))]
    return {"device_faults": pd.DataFrame(found)} if found else {}


def _faults(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One per device and code, in the order of the log."""
    source = f"{xids.catalogue().source} ({xids.catalogue().read})"
    found: dict[tuple[str | None, int | None], dict[str, Any]] = {}
    for row in rows:
        detail = str(row["detail"] or "")
        address = ADDRESS.search(detail)
        device = None if address is None else address["pci"].lower()[-10:]
        code = None if row["code"] is None or row["kind"] != "xid" else int(row["code"])
        if code is None and (device, 79) in found:
            continue  # the same loss, in words
        if code == 79 and (device, None) in found:
            found[device, 79] = found.pop((device, None)) | {"code": 79, "pid": None if row["pid"] is None else int(row["pid"])}
        known = xids.known(79 if code is None else code)
        item = found.setdefault((device, code), {
            "ts": row["ts"], "device": device, "code": code, "name": None if known is None else known.name, "class": "unknown" if known is None else known.kind,
            "says": "a code that is not in the catalogue" if known is None else known.says, "do": "what the vendor says" if known is None else known.do, "n": 0,
            "pid": None if row["pid"] is None else int(row["pid"]), "message": detail, "catalogue": source, "source": row["source"],
        })  # fmt: skip
        item["n"] += 1
        item["last_ts"] = row["ts"]
    order = {row["source"]: number for number, row in enumerate(rows)}
    return [{**item, "place": place} for place, item in enumerate(sorted(found.values(), key=lambda item: order[item["source"]]))]


def _folded(faults: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """`after` of the consequences, and who was first on each device."""
    begun: set[str | None] = set()
    for number, item in enumerate(faults):
        said = PREVIOUS.search(item["message"])
        before = [other for other in faults[:number] if other["class"] != "consequence" and (other["device"] == item["device"] or other["class"] == "fabric") and _near(other, item)]
        if item["class"] == "consequence" and said is not None:
            item["after"] = f"Xid {said['code']}"
        elif item["class"] == "consequence" and before:
            item["after"] = f"{_name(before[0])} of {before[0]['device'] or 'an unknown device'}"
        elif item["class"] == "application" and any(other["class"] in BROKEN for other in before):
            item["after"] = f"{_name(next(other for other in before if other['class'] in BROKEN))} of {item['device'] or 'an unknown device'}"
        item.setdefault("after", None)
        item["first"] = item["class"] not in ("consequence", "notice") and item["after"] is None and item["device"] not in begun
        if item["first"]:
            begun.add(item["device"])
    return faults


def _name(item: Row) -> str:
    return "loss of the card" if item["code"] is None else f"Xid {item['code']}"


def _near(one: Row, two: Row) -> bool:
    return one["ts"] is None or two["ts"] is None or abs((two["ts"] - one["ts"]).total_seconds()) <= NEAR_S
