"""Seen, and no rule for it: what a report without a finding must not keep to itself. The errors that logs repeat most, and threads that wait for one lock all the time."""

from collections.abc import Iterator, Mapping

from diag.model import Part, Section
from diag.report.sections import Rows

TITLE = "Seen, and no rule for it"
ORDER = 1
MAX_ERRORS, MAX_LOCKS, MAX_THREADS = 3, 2, 3
READS = {
    # lines that differ in numbers and ids only are of one kind
    "errors": f"""
SELECT max(level) AS level, count(*) AS n, min_by(message, line) AS message, min_by(source, line) AS source FROM log_events
WHERE level IN ('ERROR', 'CRITICAL', 'FATAL') AND message <> ''
GROUP BY bundle, host, capture, file, regexp_replace(left(message, 200), '\\w*\\d\\w*', '#', 'g') ORDER BY n DESC, min(ts) NULLS LAST, source LIMIT {MAX_ERRORS}""",
    # idle pools share one lock too: native ones have no Python stack, those of Python are at rest, in `_worker`, or in a thread's own `run` at its queue
    "locks": f"""
WITH reads AS (SELECT bundle, host, capture, pid, started_at, count(DISTINCT read) AS of FROM threads GROUP BY ALL HAVING count(DISTINCT read) >= 2),
waits AS (
  SELECT bundle, host, capture, pid, started_at, tid, min(regexp_extract(syscall, '^(?:202|98) (0x[0-9a-f]+)', 1)) AS address, count(DISTINCT read) AS n, min(source) AS source
  FROM threads GROUP BY ALL HAVING address <> '' AND address = max(regexp_extract(syscall, '^(?:202|98) (0x[0-9a-f]+)', 1)))
SELECT w.pid, w.address, r.of AS reads, count(*) AS threads, min(w.source) AS source,
  list(coalesce(p.thread, 'thread ' || w.tid) || ' in ' || p.chain ORDER BY w.tid)[1:{MAX_THREADS}] AS where_
FROM waits w
JOIN reads r ON r.bundle = w.bundle AND r.capture = w.capture AND r.pid = w.pid AND r.started_at IS NOT DISTINCT FROM w.started_at AND r.of = w.n
JOIN thread_places p ON p.bundle = w.bundle AND p.capture = w.capture AND p.pid = w.pid AND p.tid = w.tid
WHERE p.same IS NOT FALSE AND p.rest IS NOT TRUE AND p.leaf IS DISTINCT FROM '_worker' AND coalesce(p.chain, '') NOT LIKE 'run <- _bootstrap%'
GROUP BY w.bundle, w.host, w.capture, w.pid, w.started_at, w.address, r.of HAVING count(*) >= 2 ORDER BY threads DESC, w.pid, w.address LIMIT {MAX_LOCKS}""",
}


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """One, of at most five lines, for reports without a finding."""
    yield Section(TITLE, (*_errors(rows["errors"]), *_locks(rows["locks"])), unexplained=True)


def _errors(found: Rows) -> Iterator[Part]:
    for row in found:
        yield Part(f"{row['message']} ({row['source']})", f"{row['level']}, {'once' if row['n'] == 1 else f'''{row['n']} times'''}")


def _locks(found: Rows) -> Iterator[Part]:
    for row in found:
        where = row["where_"]
        named = "; ".join(map(str, where)) if isinstance(where, list) else ""
        yield Part(f"{row['threads']} threads of pid {row['pid']} wait for it in all {row['reads']} reads (futex {row['address']}): {named} ({row['source']})", "one lock")
