"""Recoveries, as JSON (`llmdiag.recovery/1`: recovery.schema.json) and as tables and bars of text. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from diag.model import Part
from diag.plots import Bar, Bars
from diag.recovery.advice import advice, longest_after
from diag.recovery.incidents import NOBODY_ASKED
from diag.recovery.markers import OUTAGE, STAGES
from diag.report.inert import inert
from diag.report.json_ import plain
from diag.report.layout import wrapped

SCHEMA = "llmdiag.recovery/1"
LABELS = {
    "detect": "detect", "stop": "stop", "reclaim": "reclaim memory", "process": "process", "device": "device", "weights": "weights", "compile": "compile",
    "kv_pool": "KV pool", "graphs": "graphs", "api_up": "API up", "ready": "ready", "traffic_switched": "traffic switched", "warm": "warm",
}  # fmt: skip
REST = "UNATTRIBUTED"
WHENCE = {"fault": "from the first sign to ready", "command": "from the command to ready", "stop": "from its end to ready", "start": "from its start to ready"}
MARKDOWN_CELLS = 100
TOLD, TOLD_CELLS = 5, 76
NAME_CELLS, SECONDS_CELLS, COLUMN_CELLS = 17, 10, 11
BAR = "#"
SECOND = "memory and latency once the first peak of traffic is over"
RECOVERING = frozenset({*OUTAGE, "unattributed"})
Row = Mapping[str, Any]


def document(found: Sequence[Row], stages: Sequence[Row], diagnosis: Mapping[str, object]) -> dict[str, object]:
    """Rows of the tables `recoveries` and `recovery_stages`, and a diagnosis -> one JSON object. Unknown is null."""
    return {"schema": SCHEMA, "recoveries": [_recovery(row, _of(row, stages)) for row in found], "diagnosis": diagnosis}


def _of(row: Row, stages: Sequence[Row]) -> list[Row]:
    mine = [stage for stage in stages if all(stage[key] == row[key] for key in ("bundle", "host", "capture", "incident"))]
    return sorted(mine, key=lambda stage: STAGES.index(stage["stage"]))


def _recovery(row: Row, stages: Sequence[Row]) -> dict[str, object]:
    names = (
        "source", "incident", "host", "unit", "engine", "engine_version", "cause", "says", "how", "mttr_s", "mttr_from", "unattributed_s", "bottleneck", "bottleneck_s",
        "failed_pct", "queue_peak", "traffic_switched_s", "warm_s",
    )  # fmt: skip
    return {
        **{name: plain(row[name]) for name in names},
        "started_at": plain(row["begun_ts"]), "process_started_at": plain(row["started_ts"]), "ready_at": plain(row["ready_ts"]),
        "detection": {name: plain(row[name]) for name in ("fault_ts", "seen_by", "probe_ts", "probe_by", "probe_later_s", "command_ts", "command_by")},
        "stages": [{name: plain(stage[name]) for name in ("stage", "seconds", "source", "ts", "basis", "why")} for stage in stages],
        "requests_lost": plain(row["lost_requests"]), "first_request": _latency(row, "first"), "before": _latency(row, "before"), "second_check": _second(row),
        "advice": _advised(row, stages, row["cause"]), "why": json.loads(row["why"] or "{}"),
    }  # fmt: skip


def _latency(row: Row, which: str) -> dict[str, object] | None:
    if row[f"{which}_n"] is None:
        return None
    return {"p50_s": plain(row[f"{which}_p50_s"]), "p99_s": plain(row[f"{which}_p99_s"]), "n": plain(row[f"{which}_n"])}


def _second(row: Row) -> dict[str, object] | None:
    if row["second_ts"] is None:
        return None
    return {
        "ts": plain(row["second_ts"]), "memory_used_pct_before": plain(row["memory_before_pct"]), "memory_used_pct_after_peak": plain(row["memory_after_peak_pct"]),
        "p99_before_s": plain(row["before_p99_s"]), "p99_after_s": plain(row["second_p99_s"]), "fragmented_bytes": plain(row["fragmented_bytes"]),
        "ok": plain(row["second_ok"]), "says": row["second_says"],
    }  # fmt: skip


def render(found: Sequence[Row], stages: Sequence[Row], width: int) -> Iterator[Text]:
    """What a terminal of `width` cells shows: several side by side first, then each with its bars."""
    width = max(40, width)
    if len(found) > 1:
        yield from _side_by_side(found, stages, width)
    for number, row in enumerate(found, 1):
        yield from _one(number, len(found), row, _of(row, stages), width, down=_is_down(found, number - 1))
    if found:
        yield from _advice(found, stages, width)


def markdown(found: Sequence[Row], stages: Sequence[Row]) -> str:
    """The same for a ticket. Lines of evidence stand in a fence, where they are no link, mention or markup."""
    lines = [line.plain.rstrip() for line in render(found, stages, MARKDOWN_CELLS)] or ["no start and no end of an engine is in the evidence"]
    ticks = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return "\n".join(["# Recoveries", "", f"{ticks}text", *lines, ticks, ""])


def told(found: Sequence[Row], stages: Sequence[Row]) -> Iterator[Part]:
    """For a report about something else: the last recoveries in a sentence or two, and their bars of at most 76 cells."""
    for place, row in list(enumerate(found))[-TOLD:]:
        mine = _of(row, stages)
        when = "" if row["begun_ts"] is None else f"{row['begun_ts']:%Y-%m-%d %H:%M:%S}Z "
        yield Part(f"{when}{row['says']}", f"recovery {place + 1}")
        for text in (_times(row, mine, down=_is_down(found, place)), _since_ready(row, mine)):
            yield from [Part(f"{text[0].upper()}{text[1:]}.")] if text else []
        bars = tuple(_bar(row, *stage) for stage in _shown(row, mine))
        yield from [Part(drawn=tuple(line.plain.rstrip() for line in chart(row, mine, TOLD_CELLS)), plot=Bars(bars))] if bars else []


def _shown(row: Row, stages: Sequence[Row]) -> list[tuple[str, str, float]]:
    """Label, stage and seconds of the stages that are known, and what no stage covers where the outage ends."""
    shown = [(LABELS[stage["stage"]], str(stage["stage"]), float(stage["seconds"])) for stage in stages if stage["seconds"] is not None]
    if row["unattributed_s"] is not None:
        place = next((place for place, item in enumerate(shown) if item[1] not in OUTAGE), len(shown))
        shown.insert(place, (REST, "unattributed", row["unattributed_s"]))
    return shown


def _bar(row: Row, label: str, stage: str, seconds: float) -> Bar:
    after = "" if stage in RECOVERING else "after ready: "
    longest = stage == row["bottleneck"]
    return Bar(f"{after}{label}", seconds, f"{_seconds(seconds)}{', the longest' if longest else ''}", "bad" if longest else "none" if after else "calm")


def chart(row: Row, stages: Sequence[Row], width: int) -> Iterator[Text]:
    """Bars of the stages that are known, the longest as long as there is room; no sign but `#`."""
    shown = _shown(row, stages)
    longest = max((seconds for _, _, seconds in shown), default=0.0)
    room = max(width - NAME_CELLS - SECONDS_CELLS - 4, 8)
    for place, (label, stage, seconds) in enumerate(shown):
        if stage not in RECOVERING and (place == 0 or shown[place - 1][1] in RECOVERING):
            yield Text("  after ready:", style="dim")
        cells = 0 if longest <= 0 else round(room * seconds / longest)
        worst = stage == row["bottleneck"]
        line = Text(f"  {label:<{NAME_CELLS}}{_seconds(seconds):>{SECONDS_CELLS}}  ")
        line.append(BAR * (cells or int(seconds > 0)), style="bold red" if worst else "cyan")
        yield line


def _one(number: int, of: int, row: Row, stages: Sequence[Row], width: int, *, down: bool) -> Iterator[Text]:
    engine = " ".join(str(row[name]) for name in ("engine", "engine_version") if row[name] is not None)
    head = f"Recovery {number} of {of}" if of > 1 else "Recovery"
    place = ", ".join(part for part in (row["unit"], engine, row["source"]) if part)
    yield Text()
    yield from _words(f"{head}: {row['says']} ({place})", width, "", style="bold")
    yield from _words(_times(row, stages, down=down), width)
    if since := _since_ready(row, stages):
        yield from _words(since, width)
    if row["fault_ts"] is not None or row["probe_ts"] is not None:
        yield from _words(_noticed(row), width)
    yield from chart(row, stages, width)
    unknown: dict[str, list[str]] = {}
    for stage in stages:
        if stage["seconds"] is None:
            unknown.setdefault(stage["why"] or "not known", []).append(LABELS[stage["stage"]])
    for why, names in unknown.items():
        yield from _words(f"{', '.join(names)}: unknown, {why}", width, style="dim")
    for line in _after(row):
        yield from _words(line, width)


def _is_down(found: Sequence[Row], place: int) -> bool:
    """Did no start of that service become ready any more, as far as the evidence goes?"""
    row = found[place]
    later = [other for other in found[place + 1 :] if all(other[key] == row[key] for key in ("bundle", "host", "capture"))]
    return row["ready_ts"] is None and not any(row["unit"] is None or other["unit"] in (None, row["unit"]) for other in later)


def _times(row: Row, stages: Sequence[Row], *, down: bool) -> str:
    if row["mttr_s"] is None:
        why = json.loads(row["why"] or "{}").get("mttr_s", "it never was ready")
        since = "" if row["begun_ts"] is None else f", since {row['begun_ts']:%Y-%m-%d %H:%M:%S}Z"
        return f"IT IS DOWN NOW, where the evidence ends{since}: {why}" if down else f"time to recover: unknown, {why}"
    known = [(LABELS[stage["stage"]], stage["seconds"]) for stage in stages if stage["stage"] in OUTAGE and stage["seconds"] is not None]
    known += [] if row["unattributed_s"] is None else [(REST, row["unattributed_s"])]
    worst = max(known, key=lambda item: item[1], default=("", 0.0))
    longest = f"; longest stage: {worst[0]}, {_seconds(worst[1])}" if worst[1] > 0 else ""
    if row["cause"] == "start":
        return f"from its start to ready {_seconds(row['mttr_s'])}, what was before is not in the evidence{longest}"
    return f"time to recover {_seconds(row['mttr_s'])}, {WHENCE[row['mttr_from']]}{longest}"


def _since_ready(row: Row, stages: Sequence[Row]) -> str:
    """When users were served and the cache was warm: no part of the time to recover."""
    switched_s, warm_s = row["traffic_switched_s"], row["warm_s"]
    parts = []
    if switched_s is not None:
        asked = f" ({NOBODY_ASKED})" if _is_unasked(stages) else ""
        parts.append(f"users were served {_seconds(switched_s)} later{asked}")
    if warm_s is not None:
        parts.append(f"the prefix cache was warm {_seconds(warm_s)} later")
    return f"after ready: {'; '.join(parts)}" if parts else ""


def _is_unasked(stages: Sequence[Row]) -> bool:
    return any(stage["stage"] == "traffic_switched" and stage["why"] == NOBODY_ASKED for stage in stages)


def _advised(row: Row, stages: Sequence[Row], cause: str) -> list[str]:
    after = longest_after(row["traffic_switched_s"], row["warm_s"], unasked=_is_unasked(stages)) if row["mttr_s"] is not None else None
    return advice(row["bottleneck"], row["bottleneck_s"], row["mttr_s"], row["queue_peak"], cause, after)


def _noticed(row: Row) -> str:
    parts = []
    if row["fault_ts"] is not None:
        parts.append(f"seen first by: {row['seen_by'] or 'unknown'}, {row['fault_ts']:%Y-%m-%d %H:%M:%S}Z")
    if row["probe_later_s"] is not None:
        parts.append(f"a probe ({row['probe_by'] or 'unknown'}) failed {_seconds(row['probe_later_s'])} later")
    elif row["fault_ts"] is not None:
        parts.append("no failed probe is in the evidence")
    if row["command_ts"] is not None:
        parts.append(f"restart by {row['command_by'] or 'nobody who is named'}")
    return "; ".join(parts)


def _after(row: Row) -> Iterator[str]:
    why = json.loads(row["why"] or "{}")
    first = _pair(row, "first", why.get("first_request"))
    yield f"first requests after ready: {first}; before: {_pair(row, 'before', why.get('before'))}"
    lost = _known(row["lost_requests"], "{:.0f}", why.get("requests_lost"))
    failed = _known(row["failed_pct"], "{:.0f} %", why.get("failed_pct"))
    yield f"requests lost: {lost}; share of requests that failed until ready: {failed}; most that waited: {_known(row['queue_peak'], '{:.0f}', why.get('queue_peak'))}"
    if row["second_ts"] is None:
        yield f"second look ({SECOND}): unknown, {why.get('second_check', 'no traffic')}"
        return
    verdict = {True: "well", False: "NOT WELL", None: "open"}[row["second_ok"]]
    memory = f"KV cache {_known(row['memory_before_pct'], '{:.0f} %')} before, {_known(row['memory_after_peak_pct'], '{:.0f} %')} after the peak"
    p99 = f"p99 {_known(row['before_p99_s'], '{:.2f} s')} before, {_known(row['second_p99_s'], '{:.2f} s')} after"
    pieces = "" if row["fragmented_bytes"] is None else f"; {row['fragmented_bytes'] / (1 << 30):.2f} GiB in fragments"
    yield f"second look ({SECOND}) at {row['second_ts']:%H:%M:%S}Z: {verdict}, {row['second_says']}; {memory}; {p99}{pieces}"


def _pair(row: Row, which: str, why: str | None) -> str:
    if row[f"{which}_n"] is None:
        return f"unknown ({why})" if why else "unknown"
    return f"p50 {row[f'{which}_p50_s']:.2f} s, p99 {row[f'{which}_p99_s']:.2f} s of {row[f'{which}_n']}"


def _known(value: float | None, form: str, why: str | None = None) -> str:
    if value is None:
        return f"unknown ({why})" if why else "unknown"
    return form.format(value)


def _side_by_side(found: Sequence[Row], stages: Sequence[Row], width: int) -> Iterator[Text]:
    """One column a recovery, as many as fit; the others below."""
    fit = max(1, (width - NAME_CELLS - 2) // COLUMN_CELLS)
    for low in range(0, len(found), fit):
        part = list(enumerate(found, 1))[low : low + fit]
        known = [{stage["stage"]: stage["seconds"] for stage in _of(row, stages)} for _, row in part]
        if low:
            yield Text()
        yield _cells("", [f"#{number}" for number, _ in part], bold=True)
        for stage in STAGES[: len(OUTAGE)]:
            yield _cells(LABELS[stage], [_cell(seconds.get(stage)) for seconds in known], marks=[row["bottleneck"] == stage for _, row in part])
        yield _cells(REST, [_cell(row["unattributed_s"]) for _, row in part], marks=[row["bottleneck"] == "unattributed" for _, row in part])
        yield _cells("time to recover", [_cell(row["mttr_s"]) for _, row in part], bold=True)
        for stage in STAGES[len(OUTAGE) :]:
            yield _cells(LABELS[stage], [_cell(seconds.get(stage)) for seconds in known], marks=[row["bottleneck"] == stage for _, row in part])
        yield _cells("first p99", [_cell(row["first_p99_s"]) for _, row in part])
        yield _cells("requests lost", ["-" if row["lost_requests"] is None else f"{row['lost_requests']:.0f}" for _, row in part])
    yield from _words("* what took longest of that recovery; - not known", width, style="dim")


def _cells(name: str, cells: Sequence[str], *, bold: bool = False, marks: Sequence[bool] = ()) -> Text:
    line = Text(f"  {name:<{NAME_CELLS}}", style="bold" if bold else "")
    for place, cell in enumerate(cells):
        worst = place < len(marks) and marks[place]
        line.append(f"{cell + ('*' if worst else ' '):>{COLUMN_CELLS}}", style="bold red" if worst else "")
    line.rstrip()
    return line


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None else _seconds(seconds)


def _advice(found: Sequence[Row], stages: Sequence[Row], width: int) -> Iterator[Text]:
    """What would shorten the slowest, whole recoveries before starts of which no end is seen."""
    known = [row for row in found if row["mttr_s"] is not None and row["cause"] != "start"] or [row for row in found if row["mttr_s"] is not None] or found
    slowest = max(known, key=lambda row: row["mttr_s"] or 0.0)
    cause = "external-stop" if any(row["cause"] == "external-stop" for row in found) else slowest["cause"]
    yield Text()
    yield Text("What would shorten it" + (f" (#{list(found).index(slowest) + 1}, the slowest)" if len(found) > 1 else ""), style="bold")
    for line in _advised(slowest, _of(slowest, stages), cause):
        yield from _words(line, width, "  - ")


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s" if seconds < 1000 else f"{seconds:,.0f} s"


def _words(text: str, width: int, indent: str = "  ", style: str = "") -> Iterator[Text]:
    """Evidence in it is inert."""
    for place, line in enumerate(wrapped(inert(text, 2000), width - len(indent))):
        yield Text((indent if place == 0 else " " * len(indent)) + line, style=style)
