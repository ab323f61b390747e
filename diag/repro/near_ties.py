"""A different answer that is only a coin toss: where it leaves the good one, both tokens were equally likely. Pure.

Cached and newly computed blocks are not the same to the last bit (other batch, other chunks), so an honest engine, too, may
choose the other of two tokens whose log-probabilities lie within that noise. Content of a foreign block moves them further.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NEAR = 0.1
"""Difference of log-probabilities that arithmetic alone explains (bfloat16 logits of 16 to 32 are 0.125 apart)."""


@dataclass(frozen=True)
class Step:
    """One token of a good answer: its text, and log-probabilities of the likeliest tokens there, itself included."""

    text: str
    logprob: float
    others: Mapping[str, float]


def steps(choice: Mapping[str, object]) -> tuple[Step, ...]:
    """Log-probabilities of one choice of an answer, of /v1/completions or /v1/chat/completions; none where it has none."""
    found = choice.get("logprobs")
    if not isinstance(found, dict):
        return ()
    content = found.get("content")
    if isinstance(content, list):
        return tuple(step for item in content if (step := _chat_step(item)) is not None)
    tokens, values, tops = found.get("tokens"), found.get("token_logprobs"), found.get("top_logprobs")
    if not (isinstance(tokens, list) and isinstance(values, list) and isinstance(tops, list)):
        return ()
    return tuple(
        Step(token, float(value), {name: float(number) for name, number in top.items() if isinstance(number, int | float)})
        for token, value, top in zip(tokens, values, tops, strict=False)
        if isinstance(token, str) and isinstance(value, int | float) and isinstance(top, dict)
    )


def _chat_step(item: object) -> Step | None:
    if not isinstance(item, dict) or not isinstance(item.get("token"), str) or not isinstance(item.get("logprob"), int | float):
        return None
    tops = item.get("top_logprobs")
    others = {
        top["token"]: float(top["logprob"]) for top in (tops if isinstance(tops, list) else ())
        if isinstance(top, dict) and isinstance(top.get("token"), str) and isinstance(top.get("logprob"), int | float)
    }
    return Step(item["token"], float(item["logprob"]), others)


def is_near_tie(good: Sequence[Step], other: str) -> bool:
    """Does the other answer leave the good one at a token that was as likely as the one it has instead?

    False where that is not known: no log-probabilities, or the other token is not among the likeliest.
    """
    place = 0
    for step in good:
        if not other.startswith(step.text, place):
            rest = other[place:]
            return any(text and text != step.text and rest.startswith(text) and step.logprob - value <= NEAR for text, value in step.others.items())
        place += len(step.text)
    return False
