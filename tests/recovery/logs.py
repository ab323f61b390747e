"""Logs of engines, as upstream words them by version, read by the parser that reads them in an incident."""

import datetime
import io
from collections.abc import Sequence

from diag.parsers import engine_log
from diag.recovery.records import Line, Stage, Start
from diag.recovery.starts import starts
from diag.recovery.timing import timed

DAY = datetime.datetime(2026, 6, 19)


def at(clock: str) -> datetime.datetime:
    """`23:05:01` of the day of all logs here."""
    return datetime.datetime.combine(DAY, datetime.time.fromisoformat(clock))


def lines(text: str, file: str = "server.log") -> list[Line]:
    """A log -> known events, in order."""
    origin = engine_log.Origin(file, lambda number: f"{file}:{number}")
    found = []
    for table, row in engine_log.rows(engine_log.read(io.BytesIO(text.encode())), origin, year=2026, tz="UTC"):
        if table == "log_events" and row["event"] is not None and row["ts"] is not None:
            found.append(Line(row["ts"], row["event"], row["message"], row["source"], file, row["line"], row["pid"], row["role"]))  # type: ignore[arg-type]
    return found


def vllm(*said: str, style: str = "[core.py:162]") -> str:
    """`23:05:01 message` -> lines of vLLM. A message may begin with its own `(EngineCore pid=7)`."""
    out = []
    for item in said:
        clock, _, message = item.partition(" ")
        who, _, rest = message.rpartition(") ") if message.startswith("(") and " pid=" in message.split(")")[0] else ("", "", message)
        if who:
            who, rest = message.split(") ", 1)
            who += ") "
        out.append(f"{who}INFO 06-19 {clock} {style} {rest}")
    return "\n".join(out) + "\n"


def sglang(*said: str) -> str:
    """`23:05:01 TP0 message` -> lines of SGLang; `-` is no rank."""
    out = []
    for item in said:
        clock, rank, message = item.split(" ", 2)
        out.append(f"[2026-06-19 {clock}{'' if rank == '-' else f' {rank}'}] {message}")
    return "\n".join(out) + "\n"


def only(text: str) -> Start:
    """The one start of a log."""
    found = starts(lines(text))
    assert len(found) == 1, [start.first for start in found]
    return found[0]


def seconds(text: str) -> dict[str, float | None]:
    """Stages of the one start of a log."""
    return {stage.stage: stage.seconds for stage in stages(text)}


def stages(text: str) -> Sequence[Stage]:
    return timed(only(text))
