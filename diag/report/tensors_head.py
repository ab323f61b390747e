"""The first lines of a comparison: what came out, of how much, and by which bounds. What was not looked at is never called the same."""

from collections.abc import Iterator

from rich.text import Text

from diag.report.tensors import counts
from diag.tensors.renaming import EXAMPLE
from diag.tensors.result import Comparison
from diag.tensors.verdicts import CLOSE, DIFFERENT, NOISE_RATIO, ROW_DIFFERENT

COLOURS = {"same": "bold green", "close": "green", "differ": "bold red"}
NAMED = 3


def headline(found: Comparison) -> Text:
    """SAME, CLOSE or DIFFER; behind what was compared, where that is less than half."""
    total = counts(found)
    part = is_part(total)
    left = total["not_compared"]
    front = f"{total['tensors']} of {total['tensors'] + left} tensors compared: " if part else ""
    goes = " as far as that goes" if part else ""
    pairs = _pairs(total, found)
    unseen = f"; {left} could not be compared" if left and not part else ""
    both = f", {total['nan_in_both']} of them with NaN or Inf in both runs" if total["nan_in_both"] else ""
    if found.verdict == "differ":
        wrong = sum(item.is_wrong for item in found.results)
        return Text(f"{front}DIFFER{goes}: {wrong} of {pairs}", style=COLOURS["differ"])
    if found.verdict == "close":
        doubt = f", {total['suspicious']} of them suspicious" if total["suspicious"] else ""
        return Text(f"{front}CLOSE{goes}: {pairs}, {total.get('close', 0)} not bit for bit{doubt}{both}{unseen}", style="yellow" if doubt or part or both else COLOURS["close"])
    if part:
        return Text(f"{front}SAME{goes}: {pairs}{both}", style="yellow")
    if left:
        return Text(f"SAME: {pairs} that could be compared, {left} could not{both}", style="yellow")
    return Text(f"SAME: all {pairs}{both}", style="yellow" if both else COLOURS["same"])


def is_part(total: dict[str, int]) -> bool:
    """Was more left out than compared?"""
    return total["not_compared"] > total["tensors"]


def left_out(found: Comparison) -> Iterator[tuple[str, str]]:
    """What was not compared, and what to do about it."""
    sides = {side: [item for item in found.unpaired if item.side == side] for side in ("good", "bad")}
    for lone in filter(None, sides.values()):
        named = ", ".join(dict.fromkeys(item.tensor.name for item in lone[:NAMED]))
        yield "Left out", f"{len(lone)} without a partner, {named}{' …' if len(lone) > NAMED else ''}: {lone[0].why}"
    if found.unread:
        side, item = found.unread[0]
        yield "Left out", f"{len(found.unread)} not read, {side}: {item.source}: {item.reason}"
    compared = {item.place for item in found.results}
    whole = [[item for item in lone if (item.tensor.name, item.tensor.rank, item.tensor.step, item.tensor.layer) not in compared] for lone in sides.values()]
    if all(whole):
        yield "Next", f"if these are the same tensors under other names, say so with --map FILE: lines such as {EXAMPLE}"


def in_both(found: Comparison) -> Iterator[tuple[str, str]]:
    """NaN that is no difference, but no good sign either."""
    names = list(dict.fromkeys(item.name for item in found.results if item.has_nan_in_both))
    if names:
        several = len(names) > 1
        yield "NaN", (
            f"{len(names)} tensor{'s' if several else ''} {'hold' if several else 'holds'} NaN or Inf in both runs, {', '.join(names[:NAMED])}{' …' if len(names) > NAMED else ''}: "
            "equal, and yet the good run may be no good one"
        )


def bounds(found: Comparison) -> Iterator[tuple[str, str]]:
    """What decided, where there is anything to decide."""
    if found.verdict == "same" or not found.tolerances:
        return
    close = ", ".join(f"{value:g} ({dtype})" for dtype, value in sorted(found.tolerances.items()))
    if any(value < CLOSE[dtype] for dtype, value in found.tolerances.items()):
        yield "Judged by", f"relative L2: close up to {close}, as --tolerance says, different beyond"
        return
    control = f"; with the control run, up to {NOISE_RATIO:g} times its noise is close and more is different" if found.control is not None else "; between them close, but suspicious"
    rows = f"{DIFFERENT:g}, over the whole or in any one token row" if DIFFERENT == ROW_DIFFERENT else f"{DIFFERENT:g}, or {ROW_DIFFERENT:g} in any one token row"
    yield "Judged by", f"relative L2: close up to {close}; different from {rows}{control}"


def _pairs(total: dict[str, int], found: Comparison) -> str:
    """`165 tensors and blocks (of 33 tensors)`."""
    number, tensors = total["pairs"], total["tensors"]
    word = f"tensor{'' if tensors == 1 else 's'}"
    blocks = sum(item.block is not None for item in found.results)
    if not blocks:
        return f"{number} tensor{'' if number == 1 else 's'}"
    return f"{number} block{'' if number == 1 else 's'} of {tensors} {word}" if blocks == number else f"{number} tensors and blocks (of {tensors} {word})"
