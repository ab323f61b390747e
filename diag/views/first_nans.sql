-- The first tensor with NaN or Inf of each bad run and rank, in execution order, those left out that the good run has as well (masks)
-- col good_dump: dump of the good run
-- col bad_dump: dump of the bad run
-- col name: tensor, the same in every dump
-- col rank: parallel rank; NULL = the dump has none
-- col step: forward pass; NULL = the dump has none
-- col layer: layer of the model; NULL = belongs to none
-- col op: operation it belongs to; NULL = the dump does not tell
-- col direction: input | output of that operation; NULL = the dump does not tell
-- col block: token block of a KV cache; NULL = the whole tensor
-- col bad_nan: NaN and Inf in the bad run
WITH bad AS (
  SELECT *, row_number() OVER (PARTITION BY bundle, host, capture, good_dump, bad_dump, rank ORDER BY ord, coalesce(block, 0)) AS place
  FROM tensor_pairs WHERE bad_nan > 0 AND coalesce(good_nan, 0) = 0)
SELECT bundle, host, capture, good_dump, bad_dump, name, rank, step, layer, op, direction, block, bad_nan, source FROM bad WHERE place = 1
