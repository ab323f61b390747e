"""Tables of tensor dumps and their comparison."""

from diag.tables.declare import Table, table

_DUMP = "dump VARCHAR: name of the dump"
_NAME = "name VARCHAR: tensor, the same in every dump; of a cache that holds both, [k] or [v] at the end"
_RANK = "rank BIGINT: parallel rank; NULL = the dump has none"
_STEP = "step BIGINT: forward pass, round or training step; NULL = the dump has none"
_LAYER = "layer BIGINT: layer of the model, from 0; NULL = belongs to none"
_ROLE = "role VARCHAR: k | v | kv | token_ids | positions | block_table | slot_mapping | context_lens; NULL = another tensor"
_BLOCK = "block BIGINT: token block of the request, from 0 (of the pool where there is no block table); NULL = the whole tensor"

TABLES: tuple[Table, ...] = (
    table(
        "tensors",
        "Tensors of dumps: one row per tensor, or per token block of a KV cache",
        _DUMP, _NAME, _RANK, _STEP, _LAYER, _ROLE, _BLOCK,
        "dtype VARCHAR: element type, numpy's name or bfloat16, float8_e4m3fn, …",
        "shape VARCHAR: 16x8x128, of the block where there is one; NULL = a scalar",
        "min DOUBLE: smallest finite value; NULL = there is none", "max DOUBLE: largest finite value; NULL = there is none",
        "mean DOUBLE: of the finite values; NULL = there is none", "std DOUBLE: of the finite values; NULL = there is none",
        "norm DOUBLE: L2 norm of the finite values; NULL = there is none",
        "zeros BIGINT: elements that are zero; NULL = content was not measured", "nan BIGINT: NaN count; NULL = content was not measured",
        "inf BIGINT: Inf count; NULL = content was not measured",
        "digest VARCHAR: xxh3_128 of the content in hex; NULL = not computed",
        "ord BIGINT: place in execution order, within dump and rank",
    ),
    table(
        "tensor_pairs",
        "The same tensor, or token block of a KV cache, of a good and a bad run side by side",
        "good_dump VARCHAR: name of the dump of the good run", "bad_dump VARCHAR: name of the dump of the bad run",
        _NAME, _RANK, _STEP, _LAYER, _ROLE,
        "op VARCHAR: operation it belongs to; NULL = the dump does not tell",
        "direction VARCHAR: input | output of that operation; NULL = the dump does not tell",
        _BLOCK,
        "request VARCHAR: row of the batch; NULL = one request, or no block",
        "good_physical BIGINT: the block's id in the pool of the good run; NULL = no block table",
        "bad_physical BIGINT: the block's id in the pool of the bad run; NULL = no block table",
        "ord BIGINT: place in the execution order of the comparison, from 0",
        "dtype VARCHAR: element type in the bad run", "shape VARCHAR: 16x8x128 in the bad run; NULL = a scalar",
        "cosine DOUBLE: cosine similarity; NULL = one side is all zero or not comparable",
        "rel_l2 DOUBLE: |good-bad| / |good|, rounding is below 0.02 to 0.1 by type, other content above 0.3; NULL = good is all zero or not comparable",
        "max_abs DOUBLE: largest difference; NULL = not comparable", "max_rel DOUBLE: largest relative difference; NULL = not comparable",
        "mismatch_pct DOUBLE: share of elements whose values differ; NULL = not comparable",
        "bad_nan BIGINT: NaN and Inf in the bad run; NULL = content was not measured",
        "good_nan BIGINT: NaN and Inf in the good run; NULL = content was not measured",
        "verdict VARCHAR: same | close | different | permuted | zero | nan | shape-mismatch | dtype-mismatch | aliased",
        "doubt VARCHAR: suspicious (between rounding and other content, only a control run tells) | capture-artefact; NULL = none",
        "detail VARCHAR: what more is known, in words; NULL = nothing",
        "rows_differ BIGINT: token rows that hold other content; NULL = no token rows",
        "rows_of BIGINT: token rows that were compared; NULL = no token rows",
        "first_row BIGINT: the first of them, within block or tensor, from 0; NULL = none",
        "shift BIGINT: bad row t is good row t + shift; NULL = not shifted",
        "alias_dump VARCHAR: dump whose content the bad run holds here; NULL = not recognised",
        "alias_name VARCHAR: tensor of that dump; NULL = not recognised", "alias_block BIGINT: block of that tensor; NULL = not recognised",
        "alias_request VARCHAR: request that content belongs to; NULL = not recognised",
        "alias_by VARCHAR: block | rows | fingerprint (same tokens by layer 0 V) | noise (equal but for rounding); NULL = not recognised",
        "is_first BOOLEAN: the first divergence in execution order",
        "follows BOOLEAN: it differs, and an earlier divergence explains that",
        "control_rel_l2 DOUBLE: the same figure between two good runs; NULL = no control run, or not comparable",
    ),
)
