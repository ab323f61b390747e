"""Where the second lab is, what it answers, and pressure as a client makes it (for tests only: llmdiag itself does not know)."""

import json
import random
from collections.abc import Sequence

from tests.conftest import SAMPLES

PREFIX = SAMPLES / "prefix-block-mismatch"
PREFIX_LAB = PREFIX / "lab.py"
PROMPTS: tuple[str, ...] = tuple(json.loads(line)["prompt"] for line in (PREFIX / "prompts.jsonl").read_text(encoding="utf-8").splitlines())
GOOD = (
    "opens at dawn when the tide is low and the night crew has left for home",
    "was closed because every sensor on Line three had been wired backwards by mistake",
)
OTHER_WORDS = ("amber", "river", "stone", "cloud", "copper", "lantern", "meadow", "signal", "harbor", "winter", "orchard", "magnet", "violet", "saddle")


def variant(chance: random.Random, prompts: Sequence[str] = PROMPTS) -> str:
    """One of the prompts with some words replaced, added, left out or changed over."""
    words = chance.choice(prompts).split(" ")
    for _ in range(chance.randrange(2, 10)):
        at = chance.randrange(len(words) - 3)
        match chance.randrange(4):
            case 0:
                words[at] = chance.choice(OTHER_WORDS)
            case 1:
                words.insert(at, chance.choice(OTHER_WORDS))
            case 2:
                del words[at]
            case _:
                words[at], words[at + 1] = words[at + 1], words[at]
    return " ".join(words)
