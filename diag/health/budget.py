"""How long a busy engine may show no progress before that is a hang.

    budget = max(floor_s, min(ceiling_s, scale * margin * k_s * (n + 0.75 n^2)))     n = prompt tokens in flight / 100,000

The formula of a cold prefill was measured on one box (27B model, SGLang): 16.9k tokens 9.6 s, 67k 50.7 s, 134k 135 s, 202k 256 s,
which is k_s = 50.4 s. `margin` (2) is for slower boxes, `scale` for another model (0.3 for an 8B, 3 for a 70B on the same card).

- n is given (`prompt_tokens`: the longest prompt that clients send), else the tokens that the KV cache holds, else unknown; with n
  unknown the floor counts. Where the engine's own counters show that every running request has had its first token, what the
  cache holds is no prefill, and the floor counts too. A given n always counts: a long prompt may be inside the very step that
  has not reported yet.
- `floor_s` 300 s: steps that move no metric at all (compile pauses of 30 to 70 s, autotuning, expert rearrangement, one long
  unchunked prefill) are shorter; vLLM itself gives up on a step after 300 s, SGLang's watchdog too.
- `ceiling_s` bounds what is guessed from the KV cache; a given `prompt_tokens` is not bounded by it.
- `frozen_s`: stacks that do not change while no CPU time is used prove a hang earlier.
- `admission_s` 10 s: how long requests must wait while none runs before that is an admission stall; two comparisons at the default
  interval take longer, reads that follow each other fast do not. It is the floor, or the patience, where those are given.
- `probe_s`: how long an idle engine may leave one short question unanswered; None = as long as the whole budget. A shorter one
  asks for less time, and proves nothing sooner than the floor.
"""

from dataclasses import dataclass

HUNDRED_K = 100_000
K_S = 50.4
QUADRATIC = 0.75
ADMISSION_S = 10.0


@dataclass(frozen=True)
class Budget:
    """The settings; `seconds` is the formula above. All in seconds but the factors and `prompt_tokens`."""

    floor_s: float = 300.0
    ceiling_s: float = 1800.0
    scale: float = 1.0
    margin: float = 2.0
    prompt_tokens: int | None = None
    frozen_s: float = 60.0
    probe_s: float | None = None
    admission_s: float = ADMISSION_S

    def prefill_s(self, tokens: float) -> float:
        """Seconds that a cold prefill of so many tokens may take, with margin."""
        n = tokens / HUNDRED_K
        return self.scale * self.margin * K_S * (n + QUADRATIC * n * n)

    def seconds(self, held_tokens: float | None = None, *, past_prefill: bool = False) -> float:
        """The budget. `held_tokens`: in the KV cache; None = not known. `past_prefill`: nothing that runs is still in prefill."""
        if self.prompt_tokens is not None:
            return max(self.floor_s, self.prefill_s(self.prompt_tokens))
        if held_tokens is None or past_prefill:
            return self.floor_s
        return max(self.floor_s, min(self.ceiling_s, self.prefill_s(held_tokens)))

    def silence_s(self) -> float:
        """How long a question must go unanswered before that proves a hang."""
        return max(self.seconds(), self.probe_s or 0.0)

    def says(self, held_tokens: float | None = None, *, past_prefill: bool = False) -> str:
        """The budget with where it comes from, for the reason of a verdict."""
        value = self.seconds(held_tokens, past_prefill=past_prefill)
        tokens = self.prompt_tokens if self.prompt_tokens is not None else held_tokens
        if past_prefill and self.prompt_tokens is None:
            why = "every running request is past its prefill: the floor"
        elif tokens is None:
            why = "prompt tokens in flight are not known: the floor"
        else:
            given = "given" if self.prompt_tokens is not None else "held in the KV cache"
            n = tokens / HUNDRED_K
            factors = self.scale * self.margin * K_S
            guess = self.prefill_s(tokens)
            cut = "the floor" if value > guess else "the ceiling" if value < guess else "as computed"
            why = f"{tokens:,.0f} tokens {given}: {factors:.1f} s x (n + {QUADRATIC} n^2), n = {n:.3f}, is {guess:.0f} s: {cut}"
        return f"{value:.0f} s ({why})" if value >= 10 else f"{value:.2g} s ({why})"
