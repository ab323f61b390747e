"""Text to token ids and back: one id a word, by its hash, so that any text works."""

import hashlib
import re
from collections.abc import Iterable

EOS, BOS, PERIOD, NEWLINE = range(4)
MARKS = {EOS: "</s>", BOS: "<s>", PERIOD: ".", NEWLINE: "\n"}
CANNED = ("I", "cannot", "tell", "from", "this", "text.")
"""What the model answers where nothing in the context fits; these ids stand for nothing else."""
FIRST_CANNED = 4
FIRST_WORD, VOCABULARY = 16, 32768
_STRIPPED = ",;:!?\"'()[]{}"
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]


class Words:
    """Remembers how a word was last spelt, to spell it when it is generated."""

    def __init__(self) -> None:
        self._spelling: dict[int, str] = {FIRST_CANNED + index: word for index, word in enumerate(CANNED)}

    def encode(self, text: str) -> list[int]:
        """Ids of a text, the start mark in front. Punctuation and line ends at the very end of it are no tokens."""
        ids = [BOS]
        for word in re.findall(r"\n|[^\s.]+|\.", text.rstrip(" \t\r\n.,;:!?\"'")):
            if word in "\n.":
                ids.append(NEWLINE if word == "\n" else PERIOD)
            elif bare := word.strip(_STRIPPED):
                ids.append(_id_of(bare))
                self._spelling[ids[-1]] = bare
        return ids

    def spell(self, token: int) -> str:
        """One word; one that nobody wrote gets a made-up spelling."""
        return self._spelling.get(token) or MARKS.get(token) or _made_up(token)


def flatten(messages: Iterable[dict[str, object]]) -> str:
    """The text of chat messages, a line each; parts that are no text are left out."""
    return "\n".join(_content(message.get("content")) for message in messages)


def _content(content: object) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _id_of(word: str) -> int:
    digest = hashlib.blake2b(word.casefold().encode(), digest_size=8).digest()
    return FIRST_WORD + int.from_bytes(digest, "big") % (VOCABULARY - FIRST_WORD)


def _made_up(token: int) -> str:
    first, rest = divmod(token, len(_SYLLABLES))
    return _SYLLABLES[rest] + _SYLLABLES[first % len(_SYLLABLES)] + _SYLLABLES[first // len(_SYLLABLES) % len(_SYLLABLES)]
