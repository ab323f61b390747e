-- What each thread did between the first and the last read: spins, polls, waits, is stopped or stuck in the kernel
-- col bundle: bundle or folder the row comes from
-- col host: host the evidence was taken on
-- col capture: which capture of the target
-- col pid: process id as the host sees it
-- col started_at: start of the process
-- col tid: thread id as the host sees it
-- col name: kernel name of the thread
-- col class: spin | poll | parked | uninterruptible | stopped | zombie | active; NULL = seen only once, or the reads do not tell
-- col state: R S D T t Z X at the last read
-- col cpu_pct: share of the window on a CPU; NULL = no window
-- col runnable_pct: share of the window on a CPU or waiting for one, at most 100; NULL = the kernel does not count it
-- col vol_per_s: voluntary context switches a second; NULL = not counted
-- col invol_per_s: involuntary context switches a second; NULL = not counted
-- col wchan: kernel function it slept in at the last read
-- col syscall: system call it was in at the last read, or running
-- col window_s: seconds between the two reads; NULL = one read, or reads without time
-- col reads: how often its state was read
-- col source: raw evidence of the last read
WITH span AS (
    SELECT bundle, host, capture, min(read) AS first_read, max(read) AS last_read
    FROM threads
    GROUP BY bundle, host, capture
),
marked AS (
    SELECT
        t.*,
        t.read = s.first_read AND s.first_read < s.last_read AS at_start,
        t.read = s.last_read AS at_end,
        row_number() OVER (
            PARTITION BY t.bundle, t.host, t.capture, t.pid, t.started_at, t.tid ORDER BY t.read DESC
        ) AS from_last
    FROM threads AS t
    JOIN span AS s
        ON t.bundle IS NOT DISTINCT FROM s.bundle
        AND t.host IS NOT DISTINCT FROM s.host
        AND t.capture IS NOT DISTINCT FROM s.capture
),
looks AS (
    SELECT bundle, host, capture, pid, started_at, tid, state, 1 AS hits FROM threads
    UNION ALL
    SELECT bundle, host, capture, pid, started_at, tid, state, coalesce(hits, 1) AS hits FROM thread_states
),
states AS (
    SELECT
        bundle, host, capture, pid, started_at, tid,
        CAST(sum(hits) AS BIGINT) AS reads,
        CAST(sum(CASE WHEN state = 'D' THEN hits ELSE 0 END) AS BIGINT) AS stuck,
        CAST(sum(CASE WHEN state IN ('T', 't') THEN hits ELSE 0 END) AS BIGINT) AS stopped,
        CAST(sum(CASE WHEN state IN ('S', 'I') THEN hits ELSE 0 END) AS BIGINT) AS asleep
    FROM looks
    WHERE state IS NOT NULL
    GROUP BY bundle, host, capture, pid, started_at, tid
),
counters AS (
    SELECT
        bundle, host, capture, pid, started_at, tid,
        max(CASE WHEN from_last = 1 THEN name END) AS name,
        max(CASE WHEN from_last = 1 THEN state END) AS state,
        max(CASE WHEN from_last = 1 THEN wchan END) AS wchan,
        max(CASE WHEN from_last = 1 THEN syscall END) AS syscall,
        max(CASE WHEN from_last = 1 THEN source END) AS source,
        max(CASE WHEN at_start THEN 1 ELSE 0 END) = 1 AND max(CASE WHEN at_end THEN 1 ELSE 0 END) = 1 AS whole,
        max(CASE WHEN at_end THEN epoch(ts) END) - max(CASE WHEN at_start THEN epoch(ts) END) AS window_s,
        max(CASE WHEN at_end THEN user_s + sys_s END) - max(CASE WHEN at_start THEN user_s + sys_s END) AS cpu_s,
        max(CASE WHEN at_end THEN run_s END) - max(CASE WHEN at_start THEN run_s END) AS run_s,
        max(CASE WHEN at_end THEN runq_s END) - max(CASE WHEN at_start THEN runq_s END) AS runq_s,
        max(CASE WHEN at_end THEN vol_switches END) - max(CASE WHEN at_start THEN vol_switches END) AS vol,
        max(CASE WHEN at_end THEN invol_switches END) - max(CASE WHEN at_start THEN invol_switches END) AS invol,
        avg(cpu_pct) AS told_pct
    FROM marked
    GROUP BY bundle, host, capture, pid, started_at, tid
),
rates AS (
    SELECT
        c.bundle, c.host, c.capture, c.pid, c.started_at, c.tid, c.name, c.state, c.wchan, c.syscall, c.source, c.whole,
        CASE WHEN c.window_s > 0 THEN c.window_s END AS window_s,
        s.reads, s.stuck, s.stopped, s.asleep,
        -- a counter that went back belongs to another thread of that number
        CASE
            WHEN c.window_s > 0 AND c.run_s >= 0 THEN least(100.0, 100.0 * c.run_s / c.window_s)
            WHEN c.window_s > 0 AND c.cpu_s >= 0 THEN least(100.0, 100.0 * c.cpu_s / c.window_s)
            ELSE c.told_pct
        END AS cpu_pct,
        CASE
            WHEN c.window_s > 0 AND c.run_s >= 0 AND c.runq_s >= 0 THEN least(100.0, 100.0 * (c.run_s + c.runq_s) / c.window_s)
        END AS runnable_pct,
        CASE WHEN c.window_s > 0 AND c.vol >= 0 THEN c.vol / c.window_s END AS vol_per_s,
        CASE WHEN c.window_s > 0 AND c.invol >= 0 THEN c.invol / c.window_s END AS invol_per_s
    FROM counters AS c
    JOIN states AS s
        ON c.bundle IS NOT DISTINCT FROM s.bundle
        AND c.host IS NOT DISTINCT FROM s.host
        AND c.capture IS NOT DISTINCT FROM s.capture
        AND c.pid IS NOT DISTINCT FROM s.pid
        AND c.started_at IS NOT DISTINCT FROM s.started_at
        AND c.tid = s.tid
)
SELECT
    bundle, host, capture, pid, started_at, tid, name,
    CASE
        WHEN stuck >= 0.8 * reads THEN 'uninterruptible'
        WHEN stopped = reads THEN 'stopped'
        WHEN state = 'Z' THEN 'zombie'
        WHEN NOT whole THEN NULL
        WHEN coalesce(runnable_pct, cpu_pct) >= 60 THEN 'spin'
        WHEN vol_per_s + invol_per_s >= 50 THEN 'poll'
        WHEN vol_per_s + invol_per_s < 0.5 THEN 'parked'
        WHEN vol_per_s + invol_per_s >= 0.5 THEN 'active'
        WHEN cpu_pct < 0.5 AND asleep = reads THEN 'parked'
        WHEN cpu_pct IS NOT NULL THEN 'active'
    END AS class,
    state, cpu_pct, runnable_pct, vol_per_s, invol_per_s, wchan, syscall, window_s, reads, source
FROM rates
