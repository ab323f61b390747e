"""The failing prompts, changed: what fills a prefix cache with new blocks, or on purpose with none. Pure.

A text is cut into units: words, single characters of scripts that write no spaces, punctuation, blanks. That works for any
language; the little list of synonyms only makes it look natural. The same seed gives the same variants.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from diag.repro.prompts import Message, Prompt
from diag.repro.words import CHINESE_FILLERS, FILLERS, SYNONYMS

# Thai, Lao, Myanmar, Khmer, kana, CJK: scripts without spaces, one character a unit; then words, blanks, anything else
UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
UNIT = re.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})[^\W_])+|\s+|.", re.DOTALL)
# what ends a sentence, with the blanks after it
SENTENCE = re.compile(r".*?(?:[.!?;](?=\s)|[。！？；…]|\n|\Z)\s*", re.DOTALL)
CJK = re.compile(r"[\u3400-\u9fff]")
SYNONYM = re.compile("|".join([rf"\b(?:{'|'.join(sorted(filter(str.isascii, SYNONYMS), key=len, reverse=True))})\b",
                               *sorted((word for word in SYNONYMS if not word.isascii()), key=len, reverse=True)]), re.IGNORECASE)

STRETCH = 50
QUESTION_WORDS = 6
"""So few at the end of a prompt change in the control arm that they hardly ever reach back into a block before the last."""

Edit = Callable[[str, random.Random], str]


def pressure(prompts: Sequence[Prompt], number: int, seed: int) -> Prompt:
    """Variant `number` of the pressure arm: one of the prompts with one to three changes.

    They are anywhere in it for the first 50 variants, then one is at its very beginning for 50, then anywhere for 100, at
    the beginning for 200, and so on. What changes late uses the first blocks of the prompt again and keeps them in the
    cache; only a long stretch that shares no block with it evicts them.
    """
    chance = random.Random(f"{seed}:pressure:{number}")
    prompt = prompts[number % len(prompts)]
    changed = prompt
    for _ in range(chance.randint(1, 3)):
        changed = _anywhere(changed, chance)
    if (number // STRETCH).bit_length() % 2:
        changed = _at_the_start(changed, chance)
    return changed if changed.body() != prompt.body() else _marked(prompt, chance)


def control(prompts: Sequence[Prompt], number: int, seed: int) -> Prompt:
    """Variant `number` of the control arm: nothing before the final question changes, and it gets no longer."""
    chance = random.Random(f"{seed}:control:{number}")
    prompt = prompts[number % len(prompts)]
    if prompt.tokens is not None:
        return replace(prompt, tokens=(*prompt.tokens[:-1], chance.choice(prompt.tokens)))
    if prompt.messages is None:
        return replace(prompt, text=_last_question(prompt.text or "", chance))
    places = _places(prompt)
    asked = [place for place in places if prompt.messages[place[0]].get("role") == "user"]
    return _with(prompt, (asked or places)[-1], lambda text: _last_question(text, chance))


def behind(prompt: Prompt, mark: str) -> Prompt:
    """The prompt behind a mark of its own: no block of it can be in a cache that compares from the start."""
    if prompt.tokens is not None:
        return replace(prompt, tokens=(*_digits(mark, prompt.tokens), *prompt.tokens))
    if prompt.messages is None:
        return replace(prompt, text=f"{mark}\n{prompt.text}")
    return _with(prompt, _places(prompt)[0], lambda text: f"{mark}\n{text}")


def _digits(mark: str, tokens: Sequence[int]) -> list[int]:
    """A mark as token ids, all of them ids that the model certainly has."""
    known = sorted(set(tokens))
    return [known[byte % len(known)] for byte in mark.encode()]


def _anywhere(prompt: Prompt, chance: random.Random) -> Prompt:
    if prompt.tokens is not None:
        return replace(prompt, tokens=tuple(_tokens(list(prompt.tokens), chance)))
    edit = chance.choice(EDITS)
    if prompt.messages is None:
        return replace(prompt, text=edit(prompt.text or "", chance))
    places = _places(prompt)
    sizes = [len(_text_at(prompt, place)) for place in places]
    place = chance.choices(places, sizes)[0] if sum(sizes) else places[0]
    return _with(prompt, place, lambda text: edit(text, chance))


def _at_the_start(prompt: Prompt, chance: random.Random) -> Prompt:
    """Words put before everything else, the first of them a number: chances are that no other variant begins like it."""
    if prompt.tokens is not None:
        return replace(prompt, tokens=(*(chance.choice(prompt.tokens) for _ in range(4)), *prompt.tokens))
    text = _text_at(prompt, _places(prompt)[0]) if prompt.messages is not None else prompt.text or ""
    stock = CHINESE_FILLERS if CJK.search(text) else FILLERS
    words = f"{chance.randrange(10**6)} {chance.choice(stock)} {chance.choice(stock)}"
    if prompt.messages is None:
        return replace(prompt, text=f"{words} {text}")
    return _with(prompt, _places(prompt)[0], lambda old: f"{words} {old}")


def _marked(prompt: Prompt, chance: random.Random) -> Prompt:
    """For a text that no edit changes (one character): a number behind it."""
    if prompt.tokens is not None:
        return replace(prompt, tokens=(*prompt.tokens, chance.choice(prompt.tokens)))
    mark = f" {chance.randrange(10**6)}"
    if prompt.messages is None:
        return replace(prompt, text=f"{prompt.text}{mark}")
    return _with(prompt, _places(prompt)[-1], lambda text: f"{text}{mark}")


def _synonym(text: str, chance: random.Random) -> str:
    found = list(SYNONYM.finditer(text))
    if not found:
        return _insert(text, chance)
    for place in sorted(chance.sample(found, min(len(found), chance.randint(1, 4))), key=lambda item: -item.start()):
        word = SYNONYMS.get(place[0].lower(), place[0])
        text = f"{text[:place.start()]}{word.capitalize() if place[0][:1].isupper() else word}{text[place.end():]}"
    return text


def _reorder(text: str, chance: random.Random) -> str:
    """Two sentences change places; where there is but one, two words do."""
    parts = [part for part in SENTENCE.findall(text) if part]
    if len(parts) > 1:
        left, right = chance.sample(range(len(parts)), 2)
        parts[left], parts[right] = parts[right], parts[left]
        return "".join(parts)
    units = UNIT.findall(text)
    words = _words(units)
    if len(words) > 1:
        left, right = chance.sample(words, 2)
        units[left], units[right] = units[right], units[left]
    return "".join(units)


def _insert(text: str, chance: random.Random) -> str:
    """One to six words, fillers or words of the text itself, at one place."""
    units = UNIT.findall(text)
    words = _words(units)
    chinese = CJK.search(text) is not None
    own = [units[place] for place in words]
    stock = [*(CHINESE_FILLERS if chinese else FILLERS), *own]
    gap = "" if chinese else " "
    added = gap.join(chance.choice(stock) for _ in range(chance.randint(1, 6)))
    place = chance.choice(words) if words else 0
    units.insert(place, f"{added}{gap}")
    return "".join(units)


def _delete(text: str, chance: random.Random) -> str:
    """One to five neighbouring words; of a short text never the last one."""
    units = UNIT.findall(text)
    words = _words(units)
    most = min(5, len(words) // 3)
    if most < 1:
        return _insert(text, chance)
    count = chance.randint(1, most)
    first = chance.randrange(len(words) - count)
    gone = set(range(words[first], words[first + count]))
    return "".join(unit for place, unit in enumerate(units) if place not in gone)


EDITS: tuple[Edit, ...] = (_synonym, _reorder, _insert, _delete)


def _tokens(tokens: list[int], chance: random.Random) -> list[int]:
    """The same for token ids; every new one is an id that the prompt has somewhere."""
    place = chance.randrange(len(tokens))
    match chance.choice(("other", "swap", "insert", "delete")):
        case "other":
            tokens[place] = chance.choice(tokens)
        case "swap":
            other = chance.randrange(len(tokens))
            tokens[place], tokens[other] = tokens[other], tokens[place]
        case "insert":
            tokens[place:place] = [chance.choice(tokens) for _ in range(chance.randint(1, 4))]
        case _ if len(tokens) > 4:
            del tokens[place]
    return tokens


def _last_question(text: str, chance: random.Random) -> str:
    """The last words of the last sentence in another order, one of them said twice, or cut: never longer than before."""
    parts = [part for part in SENTENCE.findall(text) if part.strip()] or [text]
    tail = parts[-1]
    head = text[: text.rindex(tail)]
    units = UNIT.findall(tail)
    words = _words(units)
    words = words[-QUESTION_WORDS if len(parts) > 1 else -max(1, min(QUESTION_WORDS, len(words) // 8)):]
    if len(words) < 2:
        last = words[-1] if words else len(units) - 1
        return f"{head}{''.join(units[:last])}{chance.choice(SHORT)[: max(1, len(units[last]))]}"
    shuffled = chance.sample(words, len(words))
    changed = list(units)
    for place, origin in zip(words, shuffled, strict=True):
        changed[place] = units[origin]
    if changed == units:
        changed[words[-1]] = units[words[0]]
    if len("".join(changed)) > len(tail):
        changed = units[: words[-1]] + units[words[-1] + 1 :]
    return head + "".join(changed)


SHORT = ("a", "be", "cat", "does", "every", "former", "general", "however")


def _words(units: Sequence[str]) -> list[int]:
    return [place for place, unit in enumerate(units) if unit[0].isalnum()]


Place = tuple[int, int | None]
"""(message, part of it, or None where its content is one text)"""


def _places(prompt: Prompt) -> list[Place]:
    """Where texts are."""
    found: list[Place] = []
    for number, message in enumerate(prompt.messages or ()):
        content = message.get("content")
        if isinstance(content, str):
            found.append((number, None))
        elif isinstance(content, list):
            found += [(number, at) for at, part in enumerate(content) if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return found


def _text_at(prompt: Prompt, place: Place) -> str:
    content = (prompt.messages or ())[place[0]]["content"]
    return str(content if place[1] is None else content[place[1]]["text"])  # type: ignore[index]


def _with(prompt: Prompt, place: Place, edit: Callable[[str], str]) -> Prompt:
    """The prompt with one of its texts edited; everything else is the same object."""
    number, part = place
    messages: list[Message] = list(prompt.messages or ())
    text = edit(_text_at(prompt, place))
    content: object = text
    if part is not None:
        parts = list(messages[number]["content"])  # type: ignore[call-overload]
        parts[part] = {**parts[part], "text": text}
        content = parts
    messages[number] = {**messages[number], "content": content}
    return replace(prompt, messages=tuple(messages))
