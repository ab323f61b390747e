-- What is remarkable about each recovery: noticed late, a jump of the queue after it was ready, slow first requests
-- col incident: number of the recovery, as in recoveries
-- col late: nobody acted for longer than it takes to see such a fault; NULL = it took that long, and who acted when is not told
-- col jump: after it was ready 10 requests and more waited, more than ran, more than twice as many as before
-- col slow_first: the first requests took more than twice as long as before, and 1 s more (99th percentile; 5 requests and more on either side)
-- col waiting: most that waited in the minute after it was ready; NULL = no statistics tell
-- col running: how many ran then; NULL = no statistics tell
-- col waiting_before: most that waited in the ten minutes before; NULL = no statistics tell
-- col waiting_at: when most waited; NULL = no statistics tell
-- col source: statistics of that moment, else where the recovery is told
WITH seen AS (
  SELECT bundle, host, capture, incident,
    max(value) FILTER (WHERE fact = 'waiting_after') AS waiting, max(value) FILTER (WHERE fact = 'running_after') AS running,
    max(value) FILTER (WHERE fact = 'waiting_before') AS waiting_before, max(ts) FILTER (WHERE fact = 'waiting_after') AS waiting_at,
    min(source) FILTER (WHERE fact = 'waiting_after') AS source, bool_or(fact = 'back_off') AS backs_off
  FROM recovery_facts GROUP BY bundle, host, capture, incident),
judged AS (
  SELECT r.*, r.cause NOT IN ('start', 'external-stop') AS faulty, s.waiting, s.running, s.waiting_before, s.waiting_at, s.source AS stats_source, coalesce(s.backs_off, FALSE) AS backs_off,
    CASE r.cause WHEN 'stuck' THEN 120 ELSE 10 END AS allowed_s
  FROM recoveries r LEFT JOIN seen s ON s.bundle = r.bundle AND s.host IS NOT DISTINCT FROM r.host AND s.capture = r.capture AND s.incident = r.incident)
SELECT bundle, host, capture, incident,
  CASE WHEN NOT faulty OR fault_ts IS NULL OR backs_off THEN FALSE
    WHEN detect_s IS NULL THEN CASE WHEN epoch(started_ts) - epoch(fault_ts) > allowed_s THEN NULL ELSE FALSE END
    ELSE (detect_s > allowed_s AND (mttr_s IS NULL OR detect_s >= 0.1 * mttr_s)) OR (cause <> 'stuck' AND detect_s > 3 AND coalesce(detect_s > 0.5 * mttr_s, FALSE)) END AS late,
  coalesce(cause <> 'start' AND waiting >= 10 AND waiting > coalesce(running, 0) AND waiting > 2 * coalesce(waiting_before, 0), FALSE) AS jump,
  coalesce(first_n >= 5 AND before_n >= 5 AND first_p99_s > 2 * before_p99_s AND first_p99_s - before_p99_s > 1, FALSE) AS slow_first,
  waiting, running, waiting_before, waiting_at, coalesce(stats_source, source) AS source
FROM judged
