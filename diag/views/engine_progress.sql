-- Did an engine get on between the reads of /metrics: requests it holds, and how many witnesses of progress moved. One long prefill moves only the KV usage of vLLM
-- col target: host:port, or the file
-- col engine: engine or rank; NULL = the engine does not say
-- col running: requests running, the most at any read; NULL = no such gauge
-- col waiting: requests waiting, the most at any read; NULL = no such gauge
-- col tokens_delta: tokens processed between first and last read as the engine counts them; NULL = one read, or not counted
-- col kv_usage_delta: last minus first share of the KV cache in use, 0 to 1; NULL = one read, or no such gauge
-- col witnesses: progress counters and gauges that could be compared (an estimate of flops that stays 0 is switched off)
-- col moved: how many of them moved: a counter that rose, a KV usage that reached a new maximum
-- col resets: counters that fell, so the engine was restarted between the reads
-- col reads: number of reads
-- col window_s: seconds between first and last read; NULL = times are not known, as for loose files
-- col source: a line of the last read
WITH known(name, part) AS (VALUES
  ('vllm:num_requests_running', 'running'), ('sglang:num_running_reqs', 'running'),
  ('tgi_batch_current_size', 'running'), ('llamacpp:requests_processing', 'running'),
  ('vllm:num_requests_waiting', 'waiting'), ('sglang:num_queue_reqs', 'waiting'),
  ('tgi_queue_size', 'waiting'), ('llamacpp:requests_deferred', 'waiting'),
  ('vllm:prompt_tokens_total', 'tokens'), ('vllm:generation_tokens_total', 'tokens'),
  ('sglang:prompt_tokens_total', 'tokens'), ('sglang:generation_tokens_total', 'tokens'),
  ('llamacpp:prompt_tokens_total', 'tokens'), ('llamacpp:tokens_predicted_total', 'tokens'),
  ('sglang:realtime_tokens_total', 'chunk_tokens'),
  ('vllm:iteration_tokens_total_count', 'step'), ('vllm:estimated_flops_per_gpu_total', 'step'),
  ('vllm:prefix_cache_queries_total', 'step'), ('sglang:cuda_graph_passes_total', 'step'),
  ('sglang:inter_token_latency_seconds_count', 'step'), ('sglang:time_to_first_token_seconds_count', 'step'),
  ('tgi_batch_inference_count', 'step'), ('llamacpp:n_decode_total', 'step'),
  ('vllm:kv_cache_usage_perc', 'kv'), ('vllm:gpu_cache_usage_perc', 'kv'), ('sglang:token_usage', 'kv'),
  ('sglang:num_used_tokens', 'kv_tokens')
),
named AS (
  SELECT *, CASE
    WHEN name LIKE 'ray_vllm_%' THEN 'vllm:' || substr(name, 10) WHEN name LIKE 'vllm_%' THEN 'vllm:' || substr(name, 6)
    WHEN name LIKE 'ray_sglang_%' THEN 'sglang:' || substr(name, 12) WHEN name LIKE 'sglang_%' THEN 'sglang:' || substr(name, 8)
    WHEN name LIKE 'llamacpp_%' THEN 'llamacpp:' || substr(name, 10) ELSE name
  END AS plain
  FROM metrics
  WHERE value IS NOT NULL AND (labels NOT LIKE '%"priority": "%' OR labels LIKE '%"priority": ""%')
),
samples AS (
  SELECT n.bundle, n.host, n.capture, n.target, n.name, n.labels, n.read, n.ts, n.value, n.source, k.part,
    coalesce(n.engine, CASE
      WHEN min(n.engine) OVER (PARTITION BY n.bundle, n.host, n.capture, n.target)
         = max(n.engine) OVER (PARTITION BY n.bundle, n.host, n.capture, n.target)
      THEN max(n.engine) OVER (PARTITION BY n.bundle, n.host, n.capture, n.target)
    END) AS engine
  FROM named n JOIN known k ON k.name = n.plain
),
series AS (
  SELECT bundle, host, capture, target, engine, name, labels, part,
    min_by(value, read) AS before, max_by(value, read) AS after, max(value) AS top, count(DISTINCT read) AS reads,
    epoch(max(ts)) - epoch(min(ts)) AS window_s, max_by(source, read) AS source
  FROM samples GROUP BY bundle, host, capture, target, engine, name, labels, part
  HAVING name NOT LIKE '%estimated_flops%' OR max(value) > 0
)
SELECT
  bundle, host, capture, target, engine,
  sum(top) FILTER (WHERE part = 'running') AS running,
  sum(top) FILTER (WHERE part = 'waiting') AS waiting,
  coalesce(
    sum(after - before) FILTER (WHERE part = 'chunk_tokens' AND reads > 1), sum(after - before) FILTER (WHERE part = 'tokens' AND reads > 1)
  ) AS tokens_delta,
  max(after - before) FILTER (WHERE part = 'kv' AND reads > 1) AS kv_usage_delta,
  count(*) FILTER (WHERE part NOT IN ('running', 'waiting') AND reads > 1) AS witnesses,
  count(*) FILTER (WHERE reads > 1 AND (
    (part IN ('tokens', 'chunk_tokens', 'step') AND after > before) OR (part IN ('kv', 'kv_tokens') AND top > before)
  )) AS moved,
  count(*) FILTER (WHERE part IN ('tokens', 'chunk_tokens', 'step') AND after < before) AS resets,
  max(reads) AS reads,
  CASE WHEN max(reads) > 1 THEN max(window_s) END AS window_s,
  coalesce(max(source) FILTER (WHERE part = 'running'), max(source)) AS source
FROM series
GROUP BY bundle, host, capture, target, engine
