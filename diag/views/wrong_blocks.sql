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
-- col later_same: those of them that are the same (or close, though suspicious) there
-- col later_right: those of them that are the same there, or close beyond doubt. In the last layer they cannot be, had the tokens before them been others
-- col ranks: ranks that hold this block
-- col wrong_ranks: ranks in which it is wrong
-- col donor: dump whose content it holds; NULL = not recognised
-- col donor_block: block of that dump; NULL = not recognised
-- col donor_request: request that content belongs to; NULL = not recognised
-- col donor_by: how it was recognised; NULL = not recognised
-- col owned: it holds rows of one block of another request, bit for bit, in every layer, in keys and in values, while the request's tokens are right elsewhere
-- col telling: no kernel and no other prompt explains it: blocks behind it are the same, or it is owned
-- col why: what makes it telling; NULL = nothing
-- col accuses: it is wrong in the last layer, in half of all layers and on every rank, and telling: it holds what it should not
-- col verdict: its verdict, the first in execution order
-- col bad_physical: its id in the pool of the bad run; NULL = no block table
WITH kv AS (
  SELECT *,
    verdict IN ('different', 'permuted', 'zero', 'nan', 'aliased') AND coalesce(doubt, '') NOT IN ('suspicious', 'capture-artefact') AS wrong,
    verdict IN ('same', 'close') AS fine,
    verdict IN ('same', 'close') AND coalesce(doubt, '') <> 'suspicious' AS "right",
    verdict = 'aliased' AND alias_dump <> good_dump AND alias_block IS NOT NULL AND alias_by IN ('block', 'rows') AND doubt IS NULL AS exact,
    alias_dump || '/' || coalesce(alias_request, '') || '/' || alias_block AS owner,
    max(layer) OVER (PARTITION BY bundle, host, capture, good_dump, bad_dump, rank, step, request) AS deepest,
    min(layer) OVER (PARTITION BY bundle, host, capture, good_dump, bad_dump, rank, step, request) AS lowest
  FROM tensor_pairs WHERE role IN ('k', 'v', 'kv') AND block IS NOT NULL),
other_input AS (
  SELECT DISTINCT bundle, host, capture, good_dump, bad_dump FROM tensor_pairs
  WHERE role = 'token_ids' AND verdict NOT IN ('same', 'close', 'shape-mismatch', 'dtype-mismatch')),
blocks AS (
  SELECT bundle, host, capture, good_dump, bad_dump, rank, step, request, block,
    count(DISTINCT layer) AS layers,
    count(DISTINCT CASE WHEN wrong THEN layer END) AS wrong_layers,
    bool_or(wrong AND layer IS NOT DISTINCT FROM deepest) AS in_last,
    bool_and(fine OR layer IS DISTINCT FROM deepest) AS fine_in_last,
    bool_and("right" OR layer IS DISTINCT FROM deepest) AS right_in_last,
    bool_and("right" OR layer IS DISTINCT FROM lowest) AS right_tokens,
    bool_or(wrong) AS wrong,
    min_by(alias_dump, CASE WHEN wrong AND alias_dump IS NOT NULL THEN ord END) AS donor,
    min_by(alias_block, CASE WHEN wrong AND alias_dump IS NOT NULL THEN ord END) AS donor_block,
    min_by(alias_request, CASE WHEN wrong AND alias_dump IS NOT NULL THEN ord END) AS donor_request,
    min_by(alias_by, CASE WHEN wrong AND alias_dump IS NOT NULL THEN ord END) AS donor_by,
    count(*) > 1 AND bool_and(coalesce(exact, FALSE)) AND count(DISTINCT owner) = 1 AS one_owner,
    min_by(verdict, CASE WHEN wrong THEN ord END) AS verdict,
    min_by(bad_physical, CASE WHEN wrong THEN ord END) AS bad_physical,
    coalesce(min_by(source, CASE WHEN wrong THEN ord END), min(source)) AS source
  FROM kv GROUP BY bundle, host, capture, good_dump, bad_dump, rank, step, request, block),
placed AS (
  SELECT *,
    count(*) OVER behind AS later,
    count(CASE WHEN fine_in_last THEN 1 END) OVER behind AS later_same,
    count(CASE WHEN right_in_last THEN 1 END) OVER behind AS later_right,
    count(*) OVER everywhere AS ranks,
    count(CASE WHEN wrong THEN 1 END) OVER everywhere AS wrong_ranks,
    one_owner AND bool_or(right_tokens) OVER (PARTITION BY bundle, host, capture, good_dump, bad_dump, rank, step, request)
      AND (bundle, host, capture, good_dump, bad_dump) NOT IN (SELECT (bundle, host, capture, good_dump, bad_dump) FROM other_input) AS owned
  FROM blocks
  WINDOW behind AS (PARTITION BY bundle, host, capture, good_dump, bad_dump, rank, step, request ORDER BY block ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING),
    everywhere AS (PARTITION BY bundle, host, capture, good_dump, bad_dump, step, request, block))
SELECT bundle, host, capture, good_dump, bad_dump, rank, step, request, block, layers, wrong_layers, in_last, later, later_same, later_right, ranks, wrong_ranks,
  donor, donor_block, donor_request, donor_by, owned, later_right > 0 OR owned AS telling,
  CASE WHEN later_right > 0 THEN later_right || ' of ' || later || ' blocks behind it are the same in the last one'
    WHEN owned THEN 'it is block ' || donor_block || ' of ' || coalesce(nullif(donor_request, donor) || ' in ', '') || donor || ', in each of them' END AS why,
  in_last AND (later_right > 0 OR owned) AND wrong_ranks = ranks AND 2 * wrong_layers >= layers AS accuses, verdict, bad_physical, source
FROM placed WHERE wrong
