-- Where hot threads (spin or poll) are over all samples, per function: innermost, or anywhere on the stack. Stands in for perf top
-- col pid: process id as the host sees it
-- col started_at: start of the process
-- col tid: thread id as the host sees it
-- col thread: Python name of the thread, else its kernel name
-- col class: spin | poll
-- col func: function
-- col file: its file; NULL = the dump names none
-- col self_pct: share of the thread's samples in which it is innermost
-- col total_pct: share of the thread's samples in which it is anywhere on the stack
-- col samples: whole stacks of this thread; torn ones are left out
-- col source: its innermost place in the last sample that has it
WITH hot AS (
    SELECT bundle, host, capture, pid, started_at, tid, name, class
    FROM thread_activity
    WHERE class IN ('spin', 'poll')
),
frames AS (
    SELECT
        h.bundle, h.host, h.capture, h.pid, h.started_at, h.tid, h.name, h.class,
        f.thread, f.sample, f.depth, f.func, f.file, f.source
    FROM hot AS h
    JOIN stack_frames AS f
        ON h.bundle IS NOT DISTINCT FROM f.bundle
        AND h.host IS NOT DISTINCT FROM f.host
        AND h.capture IS NOT DISTINCT FROM f.capture
        AND h.pid = f.pid
        AND h.tid = f.tid
    WHERE f.whole IS NOT FALSE
),
taken AS (
    SELECT bundle, host, capture, pid, started_at, tid, count(DISTINCT sample) AS samples, max(thread) AS thread
    FROM frames
    GROUP BY bundle, host, capture, pid, started_at, tid
)
SELECT
    f.bundle, f.host, f.capture, f.pid, f.started_at, f.tid,
    coalesce(t.thread, f.name) AS thread, f.class, f.func, f.file,
    100.0 * count(DISTINCT f.sample) FILTER (WHERE f.depth = 0) / t.samples AS self_pct,
    -- recursion puts a function on one stack several times
    100.0 * count(DISTINCT f.sample) / t.samples AS total_pct,
    t.samples,
    max_by(f.source, 100000 * f.sample - f.depth) AS source
FROM frames AS f
JOIN taken AS t
    ON f.bundle IS NOT DISTINCT FROM t.bundle
    AND f.host IS NOT DISTINCT FROM t.host
    AND f.capture IS NOT DISTINCT FROM t.capture
    AND f.pid = t.pid
    AND f.started_at IS NOT DISTINCT FROM t.started_at
    AND f.tid = t.tid
GROUP BY f.bundle, f.host, f.capture, f.pid, f.started_at, f.tid, t.thread, f.name, f.class, f.func, f.file, t.samples
