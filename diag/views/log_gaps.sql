-- How long each log has been silent when it was read. Only live evidence can tell: a loose file says when it was copied
-- col file: log file or unit
-- col pid: process that writes to it, the service's root where several do
-- col started_at: start of that process
-- col lines: lines read
-- col last_ts: time of the last dated line; NULL = no line has a time
-- col written_at: last change of the file, answers to llmdiag's own probes left out; NULL = a journal, or not collected live
-- col collected_at: when it was read
-- col silent_s: seconds from the last sign of writing to the read
-- col source: its last line
SELECT
  bundle, host, capture, file,
  max(pid) AS pid,
  max(started_at) AS started_at,
  CAST(sum(lines) AS BIGINT) AS lines,
  max(last_ts) AS last_ts,
  max(written_at) AS written_at,
  max(collected_at) AS collected_at,
  min(silent_s) AS silent_s,
  max(source) AS source
FROM log_files
GROUP BY bundle, host, capture, file
