"""How an endpoint is kept from using cached blocks, and what it answers then: the measure for everything after."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diag.errors import BadInput, CannotConnect
from diag.repro.classing import GROSS, Answer, classify
from diag.repro.client import Spoken, Trouble
from diag.repro.near_ties import Step
from diag.repro.prompts import Prompt, meets
from diag.repro.record import Bypass
from diag.repro.sending import Sender
from diag.repro.variants import behind

BY_SALT = "a cache_salt of its own"
BY_PREFIX = "a prefix of its own"


@dataclass(frozen=True)
class Good:
    """Right answers to one prompt. `stable`: with the cache bypassed it says the same every time."""

    answers: tuple[Answer, ...]
    stable: bool
    steps: tuple[tuple[Step, ...], ...] = ()
    expect: str | None = None
    expect_met: bool | None = None
    odd: tuple[str, ...] = ()
    """What variants of it answered past the cache: looks garbled, and is this model's way."""

    def judge(self, answer: Answer, prompt: str) -> tuple[str, bool]:
        """(class, suspicious?) of an answer to this prompt."""
        name = classify(answer, self.answers, prompt)
        if self.expect is not None and self.expect_met:
            return name, not meets(self.expect, answer.text)
        return name, name in GROSS or (name == "different" and self.stable)

    def also(self, answer: Answer) -> "Good":
        return self if answer in self.answers else replace(self, answers=(*self.answers, answer))


@dataclass
class Asker:
    """Questions with and without the cache. Salts and prefixes are never used twice, in this run or another."""

    sender: Sender
    bypass: Bypass | None = None
    logprobs: bool = True
    tells_cached: bool = False
    """It has reported cached tokens: from then on no report means none. (vLLM leaves the field out where it is 0.)"""
    _chance: random.Random = field(default_factory=random.SystemRandom)

    def plain(self, prompt: Prompt, *, salt: str | None = None, logprobs: bool = False) -> Spoken | Trouble:
        found = self.sender.ask(prompt, salt=salt, logprobs=logprobs)
        if not isinstance(found, Spoken):
            return found
        self.tells_cached = self.tells_cached or found.cached_tokens is not None
        return replace(found, cached_tokens=0) if self.tells_cached and found.cached_tokens is None else found

    def bypassed(self, prompt: Prompt, *, mark: str | None = None, logprobs: bool = False) -> Spoken | Trouble:
        """With the cache kept out."""
        mark = mark or self.mark()
        if self.bypass is not None and self.bypass.by == "cache_salt":
            return self.plain(prompt, salt=mark, logprobs=logprobs)
        return self.plain(behind(prompt, f"[{mark}]"), logprobs=logprobs)

    def mark(self) -> str:
        return f"{self._chance.getrandbits(128):032x}"


def spoken(found: Spoken | Trouble, prompt: Prompt) -> Spoken:
    """The answer to a prompt as it stands in the file. Raises BadInput where the endpoint does not want it, CannotConnect."""
    if isinstance(found, Spoken):
        return found
    if found.status is None:
        raise CannotConnect(f"no answer to the prompt of line {prompt.line}: {found.label}, {found.says}", hint="check the address and --timeout, and that the service is up")
    raise BadInput(f"the prompt of line {prompt.line} gets no answer: {found.label}, {found.says}", hint="it must work at least with an empty cache: check it and --model")


Hit = Callable[[Callable[[], Spoken | Trouble]], tuple[Spoken | Trouble, bool | None]]
"""Asks, and tells whether cached blocks were used for it."""


def choose(asker: Asker, prompt: Prompt, hit: Hit, models: Sequence[Mapping[str, Any]], family: str | None) -> Bypass:
    """cache_salt where the endpoint takes and heeds it, else a prefix. Asks the first prompt up to four times."""
    for _ in range(2):
        found, is_hit = hit(lambda: asker.plain(prompt))
        spoken(found, prompt)
    salted, is_salted_hit = hit(lambda: asker.plain(prompt, salt=asker.mark()))
    if not isinstance(salted, Spoken):
        return Bypass("prefix", False, f"{BY_PREFIX}: the endpoint refuses cache_salt ({salted.label})")
    if is_salted_hit:
        return Bypass("prefix", False, f"{BY_PREFIX}: the endpoint takes no notice of cache_salt, cached blocks were used in spite of it")
    if is_hit and is_salted_hit is False:
        return Bypass("cache_salt", True, f"{BY_SALT}: the same prompt was a hit without and none with it")
    if family == "vllm" or any(model.get("owned_by") == "vllm" for model in models):
        return Bypass("cache_salt", False, f"{BY_SALT}, which vLLM heeds from 0.9 on; its effect could not be seen in the figures of the endpoint")
    return Bypass("prefix", False, f"{BY_PREFIX}: whether the endpoint heeds cache_salt could not be seen")


def good_answers(asker: Asker, prompt: Prompt, told: Callable[[Spoken | Trouble, bool], None]) -> tuple[Good, str]:
    """What is right for one prompt, and a warning ("" is none): twice past the cache, and once over blocks that are its own.

    The last is a hit on blocks that nobody else can have touched: what it answers is what this engine makes of a hit.
    `told(found, bypassed)` hears of every answer.
    """
    mark = asker.mark()
    first = asker.bypassed(prompt, mark=mark, logprobs=asker.logprobs)
    if isinstance(first, Trouble) and asker.logprobs and first.status is not None and 400 <= first.status < 500:
        asker.logprobs = False
        first = asker.bypassed(prompt, mark=mark)
    told(first, True)
    one = spoken(first, prompt)
    second = asker.bypassed(prompt, logprobs=asker.logprobs)
    told(second, True)
    two = spoken(second, prompt)
    answers = [one.answer, two.answer]
    stable = classify(two.answer, [one.answer], "") == "same"
    warning = "" if stable else f"line {prompt.line}: with the cache bypassed it answers differently each time: only gross failures are judged"
    if asker.bypass is not None and asker.bypass.by == "cache_salt":
        again = asker.bypassed(prompt, mark=mark)
        told(again, False)
        if isinstance(again, Spoken) and classify(again.answer, answers, prompt.plain()) == "different":
            answers.append(again.answer)
            warning = warning or f"line {prompt.line}: a hit on its own fresh blocks answers differently from a miss: both count as good"
    expect_met = None if prompt.expect is None else all(meets(prompt.expect, answer.text) for answer in answers[:2])
    if expect_met is False:
        warning = f"line {prompt.line}: what is expected is not met even with the cache bypassed, so that is not the cache; it is left out"
    return Good(tuple(dict.fromkeys(answers)), stable, tuple(filter(None, (one.steps, two.steps))), prompt.expect, expect_met), warning
