-- What counters and the gauges that matter did between the first and the last read of /metrics, one row per series
-- col target: host:port, or the file
-- col engine: engine or rank label; NULL = none
-- col name: sample name as the engine writes it
-- col labels: all labels as sorted JSON
-- col first: value at the first read that has one
-- col last: value at the last read that has one
-- col delta: last minus first; below 0 for a counter = the engine was restarted; NULL = only one read
-- col reads: number of reads that have a value
-- col window_s: seconds between those reads; NULL = times are not known, as for loose files
-- col source: line of the last read
SELECT
  bundle, host, capture, target, engine, name, labels,
  min_by(value, read) AS first,
  max_by(value, read) AS last,
  CASE WHEN count(DISTINCT read) > 1 THEN max_by(value, read) - min_by(value, read) END AS delta,
  count(DISTINCT read) AS reads,
  CASE WHEN count(DISTINCT read) > 1 THEN epoch(max(ts)) - epoch(min(ts)) END AS window_s,
  max_by(source, read) AS source
FROM metrics
WHERE value IS NOT NULL AND (
  right(name, 6) IN ('_total', '_count') OR right(name, 4) = '_sum'
  OR name IN ('process_start_time_seconds', 'tgi_batch_current_size', 'tgi_queue_size', 'nv_trt_llm_general_metrics', 'nv_trt_llm_request_metrics')
  OR (
    (name LIKE 'vllm_%' OR name LIKE 'ray_vllm_%' OR name LIKE 'sglang_%' OR name LIKE 'ray_sglang_%' OR name LIKE 'llamacpp_%')
    AND (
      name LIKE '%_num_requests_running' OR name LIKE '%_num_requests_waiting' OR name LIKE '%_num_requests_waiting_by_reason'
      OR name LIKE '%_num_requests_swapped' OR name LIKE '%_kv_cache_usage_perc' OR name LIKE '%_gpu_cache_usage_perc'
      OR name LIKE '%_engine_sleep_state' OR name LIKE '%_num_running_reqs' OR name LIKE '%_queue_reqs'
      OR name LIKE '%_token_usage' OR name LIKE '%_num_used_tokens' OR name LIKE '%_gen_throughput'
      OR name LIKE '%_http_requests_active' OR name LIKE '%_requests_processing' OR name LIKE '%_requests_deferred'
    )
  )
)
GROUP BY bundle, host, capture, target, engine, name, labels
