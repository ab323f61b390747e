"""One answer beside the good answers to the same question: what is wrong with it? Pure, no language assumed.

Every measure is relative: a model that always repeats itself, or whose good answer is empty, is not garbled for that.
"""

import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

SAME, DIFFERENT, EMPTY, CUT_SHORT, ECHO, GARBLED, UNJUDGED, ERROR = (
    "same", "different", "empty", "cut-short", "echo", "garbled", "unjudged", "error",
)
GROSS = frozenset({EMPTY, CUT_SHORT, ECHO, GARBLED})
"""Wrong whatever the question was; `different` needs more proof."""

CUT_SHARE = 0.34
"""An answer that ends by itself with less than this share of the good one."""
MIN_CUT_CHARS = 12
"""A good answer shorter than this is too short to be cut."""
MIN_ECHO_CHARS = 16
ECHO_SHARE = 0.9
GRAM = 6
"""Characters of the pieces by which an answer is looked for in its prompt."""
BAD_SHARE = 0.05
REPEAT_SHARE = 0.6
MIN_REPEAT_CHARS = 40
STRANGE_SHARE = 0.3
MIN_STRANGE_LETTERS = 8


@dataclass(frozen=True)
class Answer:
    """What the model said. `finish`: stop, length, … as the endpoint tells it."""

    text: str
    finish: str | None = None


def classify(answer: Answer, good: Sequence[Answer], prompt: str) -> str:
    """One of SAME, DIFFERENT, EMPTY, CUT_SHORT, ECHO, GARBLED; without a good answer UNJUDGED instead of SAME and DIFFERENT.

    `good`: every answer that counts as right here. `prompt`: all the text that was sent ("" for token ids).
    """
    text = _folded(answer.text)
    references = [_folded(item.text) for item in good]
    if text in references:
        return SAME
    if not text:
        return EMPTY
    if any(_goes_on(answer, text, reference) for reference in references):
        return CUT_SHORT
    if is_garbled(answer.text, [item.text for item in good], prompt):
        return GARBLED
    if _is_echo(text, references, _folded(prompt)):
        return ECHO
    if any(_is_far_shorter(answer, text, reference) for reference in references):
        return CUT_SHORT
    return DIFFERENT if good else UNJUDGED


def _folded(text: str) -> str:
    """The same words, however they are spaced or composed."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def _goes_on(answer: Answer, text: str, reference: str) -> bool:
    """It ends by itself where the good answer goes on."""
    return answer.finish != "length" and len(reference) >= MIN_CUT_CHARS and reference.startswith(text)


def _is_far_shorter(answer: Answer, text: str, reference: str) -> bool:
    """It ends by itself long before the good answer does."""
    return answer.finish != "length" and len(reference) >= MIN_CUT_CHARS and len(text) < CUT_SHARE * len(reference)


def _is_echo(text: str, references: Sequence[str], prompt: str) -> bool:
    """It says again what the prompt says, and the good answers do not."""
    if len(text) < MIN_ECHO_CHARS or not prompt:
        return False
    told = _grams(prompt)
    return _share(text, told) >= ECHO_SHARE and all(_share(reference, told) < ECHO_SHARE / 2 for reference in references)


def _grams(text: str) -> set[str]:
    return {text[place : place + GRAM] for place in range(len(text) - GRAM + 1)}


def _share(text: str, told: set[str]) -> float:
    own = [text[place : place + GRAM] for place in range(max(0, len(text) - GRAM + 1))]
    return sum(piece in told for piece in own) / len(own) if own else 0.0


def is_garbled(text: str, good: Sequence[str], prompt: str) -> bool:
    """Broken characters, endless repetition, or letters of scripts that nobody used before: more than in any good answer."""
    measures = ((_broken, BAD_SHARE), (_repeated, REPEAT_SHARE), (lambda piece: _strange(piece, f"{prompt} {' '.join(good)}"), STRANGE_SHARE))
    for measure, limit in measures:
        found = measure(text)
        if found >= limit and all(measure(item) < found / 2 for item in good):
            return True
    return False


def _broken(text: str) -> float:
    """Share of replacement characters, controls, private and unassigned code points."""
    bad = sum(char == "\ufffd" or (unicodedata.category(char) in ("Cc", "Co", "Cn", "Cs") and char not in "\n\r\t") for char in text)
    return bad / len(text) if text else 0.0


def _repeated(text: str) -> float:
    """How much of a longer text is repetition, by what is left of it when compressed: 0 none, 1 all."""
    raw = text.encode("utf-8", "replace")
    if len(text) < MIN_REPEAT_CHARS:
        return 0.0
    left = (len(zlib.compress(raw, 9)) - 11) / len(raw)  # 11: what zlib adds to anything
    return max(0.0, 1 - left / 0.5)  # ordinary prose of this size keeps more than half


def _strange(text: str, known: str) -> float:
    """Share of letters of scripts that neither the prompt nor a good answer has."""
    letters = Counter(filter(None, map(_script, text)))
    if sum(letters.values()) < MIN_STRANGE_LETTERS or not known.strip():
        return 0.0
    familiar = set(filter(None, map(_script, known))) | {"LATIN"}
    return sum(count for script, count in letters.items() if script not in familiar) / sum(letters.values())


def _script(char: str) -> str | None:
    """LATIN, CYRILLIC, CJK, … by the name of the letter; None for what is no letter."""
    return unicodedata.name(char, "?").split(" ")[0].split("-")[0] if char.isalpha() else None
