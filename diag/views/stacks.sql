-- One row per thread and sample: all frames of its stack in one text, by which stacks are compared
-- col bundle: bundle or folder the row comes from
-- col host: host the evidence was taken on
-- col capture: which capture of the target
-- col sample: number of the sample, from 0; NULL = not numbered
-- col ts: when the sample was taken; NULL = the dump has no time
-- col pid: process id as the host sees it; NULL = the dump names none
-- col started_at: start of the process; NULL = not known
-- col tid: thread id as the host sees it; NULL = the dump names none
-- col thread: Python name of the thread; NULL = the dump names none
-- col active: on a CPU, by the dumping tool; NULL = the tool does not say
-- col owns_gil: holds the GIL; NULL = the tool does not say
-- col whole: the outermost frame is a known thread entry; FALSE = a torn read
-- col frames: how many frames it has
-- col leaf: innermost function; NULL = the dump does not say
-- col leaf_file: its file; NULL = the dump names none
-- col in_event_loop: a frame that runs the loop of asyncio or uvloop is on it; NULL = the dump names no file
-- col stack: function, file, line and `n` for native, between them chr(31), of each frame, leaf first, between them chr(30)
-- col sources: raw evidence of each frame, between them chr(30)
-- col source: raw evidence of the innermost frame
SELECT
    bundle, host, capture, sample, min(ts) AS ts, pid, any_value(started_at) AS started_at, tid, any_value(thread) AS thread,
    any_value(active) AS active, any_value(owns_gil) AS owns_gil, whole, count(*) AS frames,
    min(func) FILTER (WHERE depth = 0) AS leaf, min(file) FILTER (WHERE depth = 0) AS leaf_file,
    bool_or(file LIKE '%uvloop%' OR file LIKE '%asyncio%' AND func IN ('_run_once', 'run_forever', 'run_until_complete')) AS in_event_loop,
    string_agg(
        concat_ws(
            chr(31), replace(replace(coalesce(func, '?'), chr(30), ' '), chr(31), ' '), replace(replace(coalesce(file, '?'), chr(30), ' '), chr(31), ' '),
            coalesce(CAST(line AS VARCHAR), ''), CASE WHEN native THEN 'n' ELSE '' END
        ),
        chr(30) ORDER BY depth
    ) AS stack,
    string_agg(replace(coalesce(source, ''), chr(30), ' '), chr(30) ORDER BY depth) AS sources,
    arg_min(source, depth) AS source
FROM stack_frames
GROUP BY bundle, host, capture, sample, pid, tid, whole
ORDER BY min(rowid)
