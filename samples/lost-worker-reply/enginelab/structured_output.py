"""Output after a grammar: a regular expression is compiled before its request may run."""


class StructuredOutputManager:
    """Compiles in the thread that asks."""

    def grammar_init(self, repeats: int) -> int:
        """`(a|b)*a(a|b){repeats}`: a harmless text, whose automaton has 2^(repeats + 1) states. Returns their number."""
        return self.compile_regex(repeats)

    def compile_regex(self, repeats: int) -> int:
        """From the automaton that guesses to the one that does not, word by word. Its states, sets of places in the text, are
        counted and not kept: a lab shall take time, not memory."""
        states, left = 0, [(frozenset({0}), 0)]
        while left:
            places, length = left.pop()
            if length > repeats:
                states += 1
                continue
            left += [(frozenset(after for place in places for after in _after(place, letter)), length + 1) for letter in "ab"]
        return states


def _after(place: int, letter: str) -> tuple[int, ...]:
    """Place 0 stays where it is, and guesses that this a is the one before the end."""
    if place:
        return (place + 1,)
    return (0, 1) if letter == "a" else (0,)
