"""What SGLang logs about lookups: tokens that a prefill batch took from the radix tree, for batches of one request.

    [2026-11-30 02:52:45 TP0] Prefill batch. #new-seq: 1, #new-token: 6, #cached-token: 42, token usage: 0.00, …

No SGLang log names pages: its tree compares the tokens themselves, and its KV events tell the pages.
"""

import re
from collections.abc import Iterator

from diag.model import Artefact, Row
from diag.parsers.log_clock import Clock
from diag.parsers.lookup_lines import marked, time_of

MARKS = ("Prefill batch",)
PREFILL = re.compile(r"Prefill batch.*?#new-seq: 1,.*?#new-token: (?P<new>\d{1,12}),.*?#cached-token: (?P<cached>\d{1,12})\b")


def rows(artefact: Artefact, clock: Clock) -> Iterator[Row]:
    """Rows of lookup_hits; a batch of several requests tells of none of them."""
    for line in marked(artefact, MARKS):
        match = PREFILL.match(line.text)
        if match is not None:
            yield "lookup_hits", {
                "ts": time_of(line.before, clock), "cache": "sglang", "hit_tokens": int(match["cached"]), "source": artefact.at(line.number),
            }
