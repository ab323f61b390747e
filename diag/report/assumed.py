"""What had to be assumed of logs that were handed in, which of them cannot belong together, and what is broken though no rule says why: rows -> lines of a report.

A wrong zone moves a log by whole hours: nothing meets anything then, and all is clear. So it is said on the first screen.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence

from diag.evidence import Evidence

Row = Mapping[str, object]
Time = datetime.datetime
ZONE = re.compile(r"\bzone UTC\b|UTC was assumed")
YEAR = re.compile(r"\byears? (\d{4}(?: to \d{4})?) \(the last one")
SILENT = re.compile(r"[^;]*: event \d+ \([^;]*")
NEAR_S, SLACK_S, LEAST_MEETINGS = 20.0, 60.0, 2
HOURS = range(-14, 15)
MOST_MOMENTS, MOST_COMPARED = 2_000, 200
FILES = """
SELECT file, assumed, first_ts, last_ts, 'log' AS format FROM log_files
UNION ALL SELECT file, assumed, first_ts, last_ts, format FROM event_files"""
MOMENTS = """
SELECT ts, file FROM log_events WHERE ts IS NOT NULL AND event IN ('startup', 'shutdown_signal', 'ready', 'engine_dead', 'fatal')
UNION ALL SELECT ts, regexp_replace(source, ':[0-9]+$', '') FROM host_events WHERE ts IS NOT NULL AND kind IN ('start', 'stop', 'exit', 'killing', 'restart', 'oom_kill')"""
MAPS = "SELECT reason FROM collected WHERE collector = 'events' AND reason IS NOT NULL"
DEATHS = """
SELECT DISTINCT begun_ts, coalesce(unit, '') AS unit, says, source FROM recoveries
WHERE cause NOT IN ('start', 'external-stop') AND how IS DISTINCT FROM 'external' ORDER BY begun_ts"""
# An answer that merely differs may be as good as the other one; what no model says at temperature 0 is broken, reproducible or not:
# a prompt mostly, with and without the cache, or a tenth of all answers. A few of hundreds are noise.
BROKEN = """
WITH told AS (
  SELECT bundle, url, prompt, bypass, answer_class, suspicious AND answer_class IN ('empty', 'cut-short', 'echo', 'garbled') AS gross, bool_or(coalesce(reproduced, FALSE)) OVER (PARTITION BY bundle, url) AS proved
  FROM prefix_trials WHERE answer_class <> 'error'),
prompts AS (
  SELECT bundle, url, prompt, count(*) FILTER (WHERE gross) AS wrong, count(*) AS asked, string_agg(DISTINCT answer_class, ', ') FILTER (WHERE gross) AS classes,
    bool_or(gross AND bypass) AND bool_or(gross AND NOT bypass) AND avg(gross::INT) FILTER (WHERE bypass) >= 0.5 AND avg(gross::INT) FILTER (WHERE NOT bypass) >= 0.5 AS either_way
  FROM told WHERE NOT proved AND prompt IS NOT NULL GROUP BY bundle, url, prompt)
SELECT bundle, url, bool_or(either_way) AS either_way, string_agg('prompt ' || prompt || ': ' || replace(classes, '-', ' ') || ', ' || wrong || ' of ' || asked || ' answers', '; ' ORDER BY wrong DESC, prompt)
    FILTER (WHERE wrong > 0) AS which, sum(wrong) AS wrong, sum(asked) AS asked
FROM prompts GROUP BY bundle, url HAVING bool_or(either_way) OR (sum(wrong) >= 3 AND sum(wrong) >= sum(asked) / 10) ORDER BY bundle, url"""

# A path that is asked twice in vain, and threads that did not move: each happens to healthy services, both together do not.
# Threads that wait where such waits belong (a queue, a pool, a socket) are at rest for all that is known.
STUCK = """
WITH unanswered AS (
  SELECT bundle, capture, host, url FROM probes GROUP BY bundle, capture, host, url
  HAVING count(DISTINCT read) >= 2 AND bool_and(outcome = 'timeout')),
waits AS (
  SELECT bundle, capture, pid, tid FROM threads GROUP BY bundle, capture, pid, tid
  HAVING count(DISTINCT read) >= 2 AND bool_and(regexp_matches(coalesce(syscall, ''), '^(202|98) 0x'))),
still AS (
  SELECT p.bundle, p.capture, p.pid, coalesce(p.thread, 'thread ' || p.tid) || ' in ' || array_to_string(string_split(p.chain, ' <- ')[1:3], ' <- ') AS place FROM thread_places p JOIN waits w USING (bundle, capture, pid, tid)
  WHERE p.same AND p.place IS NULL AND p.active_samples = 0 AND p.samples >= 2
    AND NOT regexp_matches(p.leaf, '^(_?(wait|get|put|select|poll|recv\\w*|send\\w*|read\\w*|write\\w*|accept|sleep|acquire|join|lock|run|connect|communicate|__enter__|_worker|_shutdown|_bootstrap|main))$|^<module>$'))
SELECT u.bundle, min(u.url) AS url, count(DISTINCT s.place) AS threads, list(DISTINCT s.place ORDER BY s.place)[1:2] AS places
FROM unanswered u JOIN still s USING (bundle, capture) GROUP BY u.bundle, u.capture HAVING count(DISTINCT s.place) >= 2 ORDER BY u.bundle"""


def subject(loaded: Evidence) -> dict[str, object]:
    """`assumed`, `deaths` and `broken` (lines each) of an evidence, for the head of its report; left out where there are none."""
    files, moments, maps, deaths, broken, stuck = (loaded.rows(sql, "assumptions", MOST_MOMENTS)[0] for sql in (FILES, MOMENTS, MAPS, DEATHS, BROKEN, STUCK))
    found = {"assumed": list(dict.fromkeys([*_assumed(files), *_silent(maps), *_apart(files, moments)])), "deaths": [_death(row) for row in deaths], "broken": [*map(_wrong, broken), *map(_stuck, stuck)]}
    return {name: lines for name, lines in found.items() if lines}


def _assumed(files: Sequence[Row]) -> Iterator[str]:
    zoneless = sorted({str(row["file"]) for row in files if ZONE.search(str(row["assumed"] or ""))})
    if zoneless:
        yield f"no zone in {_counted(zoneless)}: UTC taken (--tz)"
    years = sorted({match[1] for row in files if (match := YEAR.search(str(row["assumed"] or "")))})
    if years:
        yield f"no year in {_counted(sorted({str(row['file']) for row in files if YEAR.search(str(row['assumed'] or ''))}))}: {', '.join(years)} taken (--date)"
    for row in files:
        for note in str(row["assumed"] or "").split("; "):
            if note and row["format"] != "log" and not ZONE.search(note) and not YEAR.search(note):
                yield f"{_name(row['file'])}: {note}"


def _counted(names: Sequence[str]) -> str:
    return f"{len(names)} logs" if len(names) > 1 else _name(names[0])


def _name(file: object) -> str:
    return str(file).rpartition("/")[2]


def _silent(maps: Sequence[Row]) -> Iterator[str]:
    """Entries of an events map that met nothing: it looks like a service where nothing happens."""
    for row in maps:
        yield from (match.group().strip() for match in SILENT.finditer(str(row["reason"])))


def _apart(files: Sequence[Row], moments: Sequence[Row]) -> Iterator[str]:
    """Zoneless logs that lie whole hours from the others, and logs that have no time in common."""
    dated = [row for row in files if isinstance(row["first_ts"], Time) and isinstance(row["last_ts"], Time)]
    bare = [row for row in dated if ZONE.search(str(row["assumed"] or ""))]
    sure = [row for row in dated if row not in bare]
    for row in bare:
        hours = _hours_of_span(row, sure) or _hours_of_moments(str(row["file"]), moments)
        if hours:
            zone = f"{'+' if hours > 0 else '-'}{abs(hours):02d}:00"
            yield f"WRONG ZONE? {_name(row['file'])} lies {_many(abs(hours))} {'after' if hours > 0 else 'before'} the other logs: --tz {zone}, or tz = \"{zone}\" in its events map"
            return
    if len(dated) > 1 and not any(_overlap_s(row, other, 0) >= -SLACK_S for place, row in enumerate(dated) for other in dated[place + 1 :]):
        first, last = min(dated, key=lambda row: str(row["last_ts"])), max(dated, key=lambda row: str(row["first_ts"]))
        yield f"the logs have no time in common: {_name(first['file'])} ends {first['last_ts']:%Y-%m-%d %H:%M}Z, {_name(last['file'])} begins {last['first_ts']:%Y-%m-%d %H:%M}Z"


def _many(hours: int) -> str:
    return f"{hours} hour{'' if hours == 1 else 's'}"


def _hours_of_span(row: Row, sure: Sequence[Row]) -> int:
    """By how many hours a log that meets none of those with a zone must be moved back to meet them best; 0 = it meets one, or would not."""
    if not sure or any(_overlap_s(row, other, 0) >= -SLACK_S for other in sure):
        return 0
    best_s, _, hours = max((max(_overlap_s(row, other, hours) for other in sure), -abs(hours), hours) for hours in HOURS)
    return hours if best_s > 0 else 0


def _hours_of_moments(file: str, moments: Sequence[Row]) -> int:
    """The same by starts and ends of the service, of which two at least must meet; 0 = they meet as they are, or it is not clear."""
    own = [row["ts"] for row in moments if row["file"] == file][:MOST_COMPARED]
    others = [row["ts"] for row in moments if row["file"] != file][:MOST_COMPARED]
    met = {hours: sum(any(abs(_seconds(mine, other) - hours * 3600) <= NEAR_S for other in others) for mine in own) for hours in HOURS}
    best = max(met, key=lambda hours: (met[hours], -abs(hours)))
    return best if met[0] == 0 and met[best] >= LEAST_MEETINGS else 0


def _seconds(one: object, other: object) -> float:
    return (one - other).total_seconds() if isinstance(one, Time) and isinstance(other, Time) else float("inf")


def _overlap_s(row: Row, other: Row, hours: int) -> float:
    """How long two logs overlap when the first is moved back by so many hours; negative = the gap between them."""
    late = hours * 3600
    return min(_seconds(row["last_ts"], other["first_ts"]) - late, _seconds(other["last_ts"], row["first_ts"]) + late, _seconds(other["last_ts"], other["first_ts"]) + SLACK_S)


def _death(row: Row) -> str:
    at = f"{row['begun_ts']:%Y-%m-%d %H:%M:%S}Z " if isinstance(row["begun_ts"], Time) else ""
    return f"{at}{row['unit'] + ': ' if row['unit'] else ''}{row['says']}"  # type: ignore[operator]


def _wrong(row: Row) -> str:
    """Answers of an experiment that are wrong, and not for its prefix cache."""
    if row["either_way"]:
        return f"wrong with and without the cache: not the cache's fault, but broken ({row['which']})"
    return f"not reproducible, but broken: {row['wrong']} of {row['asked']} answers are not as they should be ({row['which']})"


def _stuck(row: Row) -> str:
    """A service that leaves requests unanswered while threads of it stand still, for a reason that no rule knows."""
    places = row["places"]
    named = "; ".join(map(str, places)) if isinstance(places, list) else ""
    return f"{row['url']} is not answered, and {row['threads']} threads wait for locks all the time ({named}); py-spy dump --locals shows who holds what"
