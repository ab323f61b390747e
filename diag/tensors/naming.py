"""What a tensor's name or path tells: layer, role, rank, step, operation - and the part that is the same in two runs.

Names come from many tools, so these are patterns, not a grammar. Nothing here reads a file; all functions are total.

    model.layers.3.self_attn.k_cache            layer 3, role k
    5_Prefill_layer/0_Attention/input.0         layer 5, operation 5_Prefill_layer/0_Attention, input
    TP1_PP0_Rank1_pid77/Pass00002               rank 1, step 2, nothing left as a name
"""

import re
from functools import lru_cache
from typing import NamedTuple

from diag.tensors.dump import Direction, Role

_START, _END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"

_LAYER = re.compile(
    rf"{_START}(?:(?:decoder|encoder|model)?_?layers?[._/=-]?(?:id[._=-]?)?|h\.|blocks\.|decoder\.|past_key_values\.|(?:key|value)_cache\.)([0-9]{{1,6}}){_END}",
    re.IGNORECASE,
)
_ATB_LAYER = re.compile(r"(?:^|/)([0-9]{1,6})_[A-Za-z_]*layer(?=/|$)", re.IGNORECASE)
_RANK = re.compile(rf"{_START}(?:tp[0-9]+_pp[0-9]+_)?(?:global_|world_)?rank[_=-]?([0-9]{{1,6}}){_END}", re.IGNORECASE)
_STEP = re.compile(rf"{_START}(?:step|pass|forward_pass_id|round|iteration|iter)[_=-]?([0-9]{{1,9}}){_END}", re.IGNORECASE)

# What differs between two runs of the same model. A piece goes together with one separator, so the rest stays readable.
_PASSING = re.compile(
    rf"""{_START}(?:
        tp[0-9]+_pp[0-9]+_rank[0-9]+(?:_pid[0-9]+)? | (?:global_|world_)?rank[_=-]?[0-9]+ | pid[_=-]?[0-9]+ | proc[_=-]?[0-9]+
      | (?:step|pass|forward_pass_id|round|iteration|iter)[_=-]?[0-9]+
      | 20[0-9]{{2}}-?[01][0-9]-?[0-3][0-9](?:[T_ -]?[0-2][0-9][:-]?[0-5][0-9](?:[:-]?[0-5][0-9](?:\.[0-9]+)?)?)?Z?
      | 1[0-9]{{9}}(?:[0-9]{{3}}|\.[0-9]+)?
    ){_END}[._/-]*""",
    re.IGNORECASE | re.VERBOSE,
)

_ROLES: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("block_table", re.compile(r"^(?:block_?tables?(?:_tensor)?|page_tables?|req_to_token)$")),
    ("slot_mapping", re.compile(r"^(?:slot_?mappings?|slots|out_cache_loc)$")),
    ("token_ids", re.compile(r"^(?:input_?ids|token_?ids|input_tokens|prompt_token_ids)$")),
    ("positions", re.compile(r"^(?:positions?(?:_ids)?|input_positions)$")),
    ("context_lens", re.compile(r"^(?:(?:context|seq|kv|kv_seq|sequence)_?len(?:s|gths?)?)$")),
    ("kv", re.compile(r"^(?:kv|kv_?caches?|paged_kv(?:_cache)?|past_key_values?)$")),
    ("k", re.compile(r"^(?:(?:paged_)?k_?cache|key_?caches?|cache_?k(?:ey)?|k_?buffer|k_pool)$")),
    ("v", re.compile(r"^(?:(?:paged_)?v_?cache|value_?caches?|cache_?v(?:alue)?|v_?buffer|v_pool)$")),
)
_BARE_KEY: dict[str, Role] = {"k": "k", "key": "k", "keys": "k", "v": "v", "value": "v", "values": "v"}
_HOLDS_CACHE = re.compile(r"cache|^past_key_values?$|^(?:layers?|h|blocks|decoder)(?:_[0-9]+)?$")  # whose "key" and "value" are the cache's
_LAYER_PIECE = re.compile(r"^(?:layers?[_.]?)?[0-9]+$", re.IGNORECASE)
_PIECES = re.compile(r"[./]")

_IO = re.compile(r"(?:^|[./_-])((?:in|out)(?:put|tensor)s?)(?=[0-9]*(?:[./]|$))", re.IGNORECASE)  # input_layernorm is neither

Key = tuple[tuple[str, int], ...]


class Operation(NamedTuple):
    """The operation a tensor belongs to, "" where the name does not tell."""

    op: str
    direction: Direction | None


def _last(pattern: re.Pattern[str], text: str) -> int | None:
    found = None
    for match in pattern.finditer(text):
        found = int(match[1])
    return found


def layer_of(name: str) -> int | None:
    """The number of the layer that is named last ("encoder.layers.1.layers.3" is 3); an ATB layer counts by its operation id."""
    found = _last(_ATB_LAYER, name)
    return _last(_LAYER, name) if found is None else found


def rank_of(path: str) -> int | None:
    """Rank 0 is a rank; None: the path names none."""
    return _last(_RANK, path)


def step_of(path: str) -> int | None:
    """Forward pass, round or training step, as counted by the tool that dumped."""
    return _last(_STEP, path)


@lru_cache(maxsize=4096)
def role_of(name: str) -> Role | None:
    """What the tensor is to a paged KV cache, by the last telling piece of its name; projections (k_proj) are no cache."""
    pieces = [piece.lower() for piece in _PIECES.split(name) if piece]
    while pieces and _LAYER_PIECE.match(pieces[-1]):
        pieces.pop()
    if not pieces:
        return None
    last = pieces[-1]
    for role, pattern in _ROLES:
        if pattern.match(last):
            return role
    above = next((piece for piece in reversed(pieces[:-1]) if not piece.isdecimal()), "")
    return _BARE_KEY.get(last) if _HOLDS_CACHE.search(above) else _suffix_role(last)


def _suffix_role(last: str) -> Role | None:
    """`layer3_k_cache`, `attn_metadata_slot_mapping`: the role ends the piece."""
    for cut in (match.end() for match in re.finditer("_", last[:256])):
        tail = last[cut:]
        for role, pattern in _ROLES:
            if pattern.match(tail):
                return role
    return None


def operation_of(name: str) -> Operation:
    """`attn.inputs.0` -> ("attn", input); what has neither input nor output in its name -> ("", None)."""
    found = None
    for found in _IO.finditer(name):  # noqa: B007 - the last one counts: modules may be called "output"
        pass
    if found is None:
        return Operation("", None)
    return Operation(name[: found.start()], "input" if found[1][0] in "iI" else "output")


def bare(name: str) -> str:
    """The name without rank, pid, step and time: what two runs have in common. "" when nothing else was in it."""
    return _PASSING.sub("", name).strip("._/-")


def natural_text(text: str) -> str:
    """Texts that sort as `natural` does, in a third of the memory: for 100,000 names at once."""
    return "".join(f"{words}\0{number:019d}" if number >= 0 else f"{words}\0" for words, number in natural(text))


def natural(text: str) -> Key:
    """Sorts as people count: `layers.9` before `layers.10`."""
    parts = re.split(r"([0-9]{1,18})", text)
    return tuple((parts[at], int(parts[at + 1]) if at + 1 < len(parts) else -1) for at in range(0, len(parts), 2))
