"""What vLLM and LMCache log about single lookups: how many tokens of a prompt came from a cache, never which blocks.

    … Reqid: cmpl-7, Total tokens 512, Inference Engine computed tokens: 48, LMCache hit tokens: 256, need to load: 208
    … Reqid: cmpl-7, Total tokens 512, LMCache hit tokens: 256, need to load: 256
    DEBUG … EmitCachedBlock event: block_size=16, num_cached_blocks=3, parent_block_hash=None, token_ids_len=48, group_idx=0

The blocks are in the engine's KV events.
"""

import re
from collections.abc import Iterator

from diag.model import Artefact, Row
from diag.parsers.log_clock import Clock
from diag.parsers.lookup_lines import marked, time_of

MARKS = ("Reqid: ", "EmitCachedBlock event: ")
LMCACHE = re.compile(
    r"Reqid: (?P<request>\S{1,200}), Total tokens (?P<prompt>\d{1,12}), (?:Inference Engine computed tokens: (?P<own>\d{1,12}), )?"
    r"LMCache hit tokens: (?P<hit>\d{1,12})"
)
EMIT = re.compile(r"EmitCachedBlock event: block_size=(?P<size>\d{1,9}), num_cached_blocks=(?P<blocks>\d{1,9})\b")


def rows(artefact: Artefact, clock: Clock) -> Iterator[Row]:
    """Rows of lookup_hits."""
    for line in marked(artefact, MARKS):
        about = {"ts": time_of(line.before, clock), "source": artefact.at(line.number)}
        if (match := LMCACHE.match(line.text)) is not None:
            told = {"request": match["request"], "prompt_tokens": int(match["prompt"]), **about}
            yield "lookup_hits", {**told, "cache": "lmcache", "hit_tokens": int(match["hit"])}
            if match["own"] is not None:
                yield "lookup_hits", {**told, "cache": "vllm", "hit_tokens": int(match["own"])}
        elif (match := EMIT.match(line.text)) is not None:
            size = int(match["size"])
            yield "lookup_hits", {**about, "cache": "vllm", "hit_tokens": size * int(match["blocks"]), "block_size": size}
