"""What each thread did in each stack sample and between the reads of its counters: busy ones first, those that are alike in one row."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import structs

from diag.model import Part, Section
from diag.plots import Cell, Grid, Line, Tone
from diag.report.sections import Rows

Row = Mapping[str, object]
Who = tuple[object, ...]

ORDER = 4
PICTURES = True
READS = {
    "activity": """
SELECT a.bundle, a.host, a.pid, a.tid, a.name, a.class, a.cpu_pct, a.runnable_pct, r.role
FROM thread_activity a LEFT JOIN (SELECT bundle, host, pid, max(role) AS role FROM process_roles GROUP BY ALL) r
  ON r.bundle IS NOT DISTINCT FROM a.bundle AND r.host IS NOT DISTINCT FROM a.host AND r.pid = a.pid""",
    "samples": """
SELECT bundle, host, pid, tid, sample, min(thread) AS thread, bool_or(active) AS active, bool_or(owns_gil) AS owns_gil, min_by(func, depth) AS leaf
FROM stack_frames WHERE sample IS NOT NULL GROUP BY bundle, host, pid, tid, sample""",
    "reads": """
SELECT bundle, host, pid, tid, read, coalesce(cpu_pct, 100.0 * (run_s - lag(run_s) OVER life) / nullif(epoch(ts) - lag(epoch(ts)) OVER life, 0)) AS cpu_pct
FROM (SELECT * REPLACE (coalesce(run_s, user_s + sys_s) AS run_s) FROM threads) WINDOW life AS (PARTITION BY bundle, host, capture, pid, started_at, tid ORDER BY read)""",
    "places": "SELECT bundle, host, pid, tid, says, rank FROM thread_places",
}
MAX_LINES, MAX_SAMPLES = 60, 40
SIGNS: Mapping[str, tuple[str, Tone]] = {
    "gil": ("G", "heat-4"), "active": ("●", "heat-3"), "idle": ("·", "heat-1"), "spin": ("spin", "heat-4"), "poll": ("poll", "heat-3"), "active class": ("active", "heat-2"),
    "parked": ("parked", "heat-1"), "uninterruptible": ("in kernel", "bad"), "stopped": ("stopped", "bad"), "zombie": ("zombie", "bad"),
}  # fmt: skip
MEANS = {
    "gil": "holds the GIL", "active": "on a CPU, by the dumping tool", "idle": "waits", "spin": "wants a CPU nearly all the time", "poll": "wakes up many times a second",
    "active class": "runs now and then", "parked": "waits and is left alone", "uninterruptible": "stuck in the kernel", "stopped": "stopped by a signal or tracer", "zombie": "dead, not reaped",
}  # fmt: skip
WINDOW = ("class", "CPU %", "wants CPU %")
HOTTEST = ("zombie", "stopped", "uninterruptible", "spin", "poll", "active", "parked")


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """One grid: threads down, samples and the window across."""
    samples = sorted({_int(row["sample"]) for row in rows["samples"]})[:MAX_SAMPLES]
    activity, places = ({_who(row): row for row in rows[name]} for name in ("activity", "places"))
    seen: dict[Who, dict[int, Row]] = {}
    for row in rows["samples"]:
        seen.setdefault(_who(row), {})[_int(row["sample"])] = row
    every = sorted({*activity, *seen}, key=lambda who: (_heat(activity.get(who), seen.get(who, {})), _order(who)))
    if not every:
        return
    several = len({who[1] for who in every}) > 1
    used: set[str] = set()
    shares = _shares(rows["reads"])
    reads = sorted({read for _, read in shares})
    lines = []
    for who in every:
        line = _line(who, activity.get(who), [seen.get(who, {}).get(sample) for sample in samples], places.get(who), used, several=several)
        lines.append(structs.replace(line, cells=(*(_pct(shares.get((who, read)), f"on a CPU before read {read}") for read in reads), *line.cells)))
    folded = _folded(lines)
    columns = (*(f"r{read}" for read in reads), *(f"s{sample}" for sample in samples), *(WINDOW if activity else ()))
    told = [Cell(sign, "none", about) for sign, about, there in (("r1 …", "CPU % before a read", reads), ("s0 …", "stack samples", samples)) if there]
    legend = (*told, *(Cell(*SIGNS[name], MEANS[name]) for name in SIGNS if name in used))
    rest = [Line(f"and {len(folded) - MAX_LINES} calmer rows", ())] if len(folded) > MAX_LINES else []
    yield Section(f"What {len(every)} thread{'' if len(every) == 1 else 's'} did", (Part(plot=Grid("thread", columns, (*folded[:MAX_LINES], *rest), legend, "where it is")),))


def _shares(rows: Rows) -> dict[tuple[Who, int], float]:
    """CPU of each thread before each read, where there were more than two: of two the window tells the same."""
    known = [row for row in rows if row["cpu_pct"] is not None and row["read"] is not None]
    reads = sorted({_int(row["read"]) for row in known})[:MAX_SAMPLES]
    return {(_who(row), _int(row["read"])): _float(row["cpu_pct"]) for row in known if _int(row["read"]) in reads} if len(reads) > 1 else {}


def _who(row: Row) -> Who:
    return (row["bundle"], row["host"], row["pid"], row["tid"])


def _order(who: Who) -> tuple[object, ...]:
    """By host, process and thread; what is not known last."""
    return tuple((part is None, part if isinstance(part, int) else str(part)) for part in who[1:])


def _heat(activity: Row | None, seen: Mapping[int, Row]) -> tuple[object, ...]:
    """The hottest first; of processes that have only stacks, who held the GIL or a CPU most often."""
    kind = None if activity is None else activity["class"]
    runnable = -_float(activity["runnable_pct"]) if activity is not None else 0.0
    held = -sum(2 * bool(row["owns_gil"]) + bool(row["active"]) for row in seen.values())
    return (HOTTEST.index(str(kind)) if kind in HOTTEST else len(HOTTEST), held, runnable)


def _line(who: Who, activity: Row | None, seen: Sequence[Row | None], place: Row | None, used: set[str], *, several: bool) -> Line:
    thread = next((row["thread"] for row in seen if row is not None and row["thread"] is not None), None)
    name = thread if thread is not None else activity["name"] if activity is not None else None
    role = activity["role"] if activity is not None and activity["role"] not in (None, "other") else None
    rank = None if place is None else place["rank"]
    host = f"{who[1]} " if several else ""
    label = f"{host}{'' if role is None else f'{role} '}{'' if rank is None else f'{rank} '}pid {who[2]}: {'thread' if name is None else name} {who[3]}"
    cells: list[Cell | None] = [None if row is None else _cell("gil" if row["owns_gil"] else "active" if row["active"] else "idle", used, str(row["leaf"])) for row in seen]
    cells += _window(activity, used) if activity is not None else []
    leaf = next((str(row["leaf"]) for row in reversed(seen) if row is not None), "")
    says = str(place["says"]) if place is not None and place["says"] is not None else leaf
    return Line(label, tuple(cells), says)


def _window(activity: Row, used: set[str]) -> list[Cell | None]:
    kind = activity["class"]
    name = "active class" if kind == "active" else str(kind)
    shown = _cell(name, used) if name in SIGNS else None
    return [shown, _pct(activity["cpu_pct"], "on a CPU"), _pct(activity["runnable_pct"], "on a CPU or waiting for one")]


def _cell(name: str, used: set[str], leaf: str = "") -> Cell:
    used.add(name)
    return _made(name, leaf)


@lru_cache(1024)
def _made(name: str, leaf: str) -> Cell:
    sign, tone = SIGNS[name]
    return Cell(sign, tone, f"{MEANS[name]}{f', in {leaf}' if leaf else ''}")


def _pct(value: object, about: str) -> Cell | None:
    if value is None:
        return None
    share = _float(value)
    tone: Tone = "heat-4" if share >= 60 else "heat-3" if share >= 20 else "heat-2" if share >= 2 else "heat-1"
    return Cell(f"{share:.0f}", tone, f"{share:.1f} % of the window {about}")


def _folded(lines: Sequence[Line]) -> list[Line]:
    """Threads that did the same at the same place, in one row."""
    groups: dict[tuple[object, ...], list[Line]] = {}
    for line in lines:
        head = line.name.partition(": ")[0]
        signs = tuple(None if cell is None else (cell.sign, cell.tone) for cell in line.cells)
        groups.setdefault((head, signs, line.note), []).append(line)
    return [
        same[0] if len(same) == 1 else Line(f"{key[0]}: {len(same)} threads ({_names(same)})", same[0].cells, same[0].note)
        for key, same in groups.items()
    ]


def _names(lines: Sequence[Line]) -> str:
    names = list(dict.fromkeys(line.name.partition(": ")[2].rpartition(" ")[0] for line in lines))
    return ", ".join(names[:2]) + (", …" if len(names) > 2 else "")


def _int(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]


def _float(value: object) -> float:
    return 0.0 if value is None else float(value)  # type: ignore[arg-type]
