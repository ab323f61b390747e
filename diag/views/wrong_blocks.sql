-- Token blocks of a KV cache that hold other content in the bad run than in the good one, over all their layers
-- col good_dump: dump of the good run
-- col bad_dump: dump of the bad run
-- col rank: parallel rank; NULL = the dump has none
-- col step: forward pass; NULL = the dump has none
-- col request: row of the batch; NULL = one request
-- col block: token block of the request, from 0
-- col layers: layers of which this block was compared; NULL = the dump names none
-- col wrong_layers: layers in which it holds other content; NULL = the dump names none
-- col in_last: it is wrong in the last layer that was compared
-- col later: blocks behind it in the last layer
-- col later_same: those of them that are the same (or close) there. In the last layer they cannot be, had the tokens before them been others
-- col ranks: ranks that hold this block
-- col wrong_ranks: ranks in which it is wrong
-- col donor: dump whose content it holds; NULL = not recognised
-- col donor_block: block of that dump; NULL = not recognised
-- col donor_request: request that content belongs to; NULL = not recognised
-- col donor_by: how it was recognised; NULL = not recognised
-- col verdict: its verdict, the first in execution order
-- col bad_physical: its id in the pool of the bad run; NULL = no block table
WITH kv AS (
  SELECT *,
    verdict IN ('different', 'permuted', 'zero', 'nan', 'aliased') AND coalesce(doubt, '') NOT IN ('suspicious', 'capture-artefact') AS wrong,
    verdict IN ('same', 'close') AS fine,
    max(layer) OVER (PARTITION BY bundle, host, capture, good_dump, bad_dump, rank, step, request) AS deepest
  FROM tensor_pairs WHERE role IN ('k', 'v', 'kv') AND block IS NOT NULL),
blocks AS (
  SELECT bundle, host, capture, good_dump, bad_dump, rank, step, request, block,
    count(DISTINCT layer) AS layers,
    count(DISTINCT CASE WHEN wrong THEN layer END) AS wrong_layers,
    bool_or(wrong AND layer IS NOT DISTINCT FROM deepest) AS in_last,
    bool_and(fine OR layer IS DISTINCT FROM deepest) AS fine_in_last,
    bool_or(wrong) AS wrong,
    min_by(alias_dump, CASE WHEN wrong AND alias_dump IS NOT NULL THEN ord END) AS donor,
    min_by(alias_block, CASE WHEN wrong AND alias_dump IS NOT NULL THEN ord END) AS donor_block,
    min_by(alias_request, CASE WHEN wrong AND alias_dump IS NOT NULL THEN ord END) AS donor_request,
    min_by(alias_by, CASE WHEN wrong AND alias_dump IS NOT NULL THEN ord END) AS donor_by,
    min_by(verdict, CASE WHEN wrong THEN ord END) AS verdict,
    min_by(bad_physical, CASE WHEN wrong THEN ord END) AS bad_physical,
    coalesce(min_by(source, CASE WHEN wrong THEN ord END), min(source)) AS source
  FROM kv GROUP BY bundle, host, capture, good_dump, bad_dump, rank, step, request, block),
placed AS (
  SELECT *,
    count(*) OVER behind AS later,
    count(CASE WHEN fine_in_last THEN 1 END) OVER behind AS later_same,
    count(*) OVER everywhere AS ranks,
    count(CASE WHEN wrong THEN 1 END) OVER everywhere AS wrong_ranks
  FROM blocks
  WINDOW behind AS (PARTITION BY bundle, host, capture, good_dump, bad_dump, rank, step, request ORDER BY block ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING),
    everywhere AS (PARTITION BY bundle, host, capture, good_dump, bad_dump, step, request, block))
SELECT bundle, host, capture, good_dump, bad_dump, rank, step, request, block, layers, wrong_layers, in_last, later, later_same, ranks, wrong_ranks,
  donor, donor_block, donor_request, donor_by, verdict, bad_physical, source
FROM placed WHERE wrong
