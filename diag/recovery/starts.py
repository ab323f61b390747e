"""Lines of engine logs -> starts: which lines belong to one start of one engine."""

from collections.abc import Iterable, Sequence

from diag.recovery.markers import ENGINE_FIRST, FIRST
from diag.recovery.records import Line, Start
from diag.restarts.records import between_s

OF_A_START = frozenset({"startup", "engine_init", "weights_loading", "weights_loaded", "kv_size", "compile", "graph_capture", "engine_ready", "api_up", "ready"})
OF_AN_END = frozenset({"shutdown_signal", "fatal", "engine_dead", "worker_died"})
OPENS = OF_A_START - {"startup", "api_up", "ready"}
FURTHER = OF_A_START - {"startup"}
SAME_HEAD_S = 10.0


def starts(lines: Iterable[Line]) -> list[Start]:
    """All starts in order of time, those of different logs apart. A start that the log does not show from its beginning counts too."""
    by_file: dict[str, list[Line]] = {}
    for line in lines:
        if line.event in OF_A_START or line.event in OF_AN_END:
            by_file.setdefault(line.file, []).append(line)
    found = [start for items in by_file.values() for start in _of_file(sorted(items, key=lambda line: line.number))]
    return sorted(found, key=lambda start: start.first.ts)


def _of_file(lines: Sequence[Line]) -> list[Start]:
    found: list[Start] = []
    going: Start | None = None
    ended = False
    for line in lines:
        if line.event in OF_AN_END:
            ended = True
        elif going is None or _is_new(going, line, ended):
            if going is not None or _opens(line):
                going, ended = Start([line]), False
                found.append(going)
                _note(going, line)
        elif going.ready is None:
            going.lines.append(line)
            _note(going, line)
    return found


def _opens(line: Line) -> bool:
    """Can the first start of a log begin with this line?"""
    return line.event in OPENS or FIRST.search(line.message) is not None


def _is_new(going: Start, line: Line, ended: bool) -> bool:
    """The first words of a process once more; those of an engine, where the start before is over."""
    if FIRST.search(line.message) is not None:
        further = ended or any(item.event in FURTHER for item in going.lines)
        return further or between_s(going.first.ts, line.ts) > SAME_HEAD_S
    return (ended or going.ready is not None) and ENGINE_FIRST.search(line.message) is not None


def _note(going: Start, line: Line) -> None:
    if line.event == "api_up" or (line.event == "ready" and "fired up" not in line.message):
        going.api = going.api or line
    if line.event == "ready" and going.ready is None:
        going.ready = line
