"""Why what is neither rounding nor other content is in doubt, and what would settle it."""

from collections.abc import Sequence

from diag.tensors.result import Comparison, Result

EXACT = frozenset({"block", "rows"})
WHAT = "more than rounding, less than other content"


def doubt(found: Comparison, suspicious: Sequence[Result]) -> str:
    """The words behind the names of these."""
    if is_settled(found):
        return f"{WHAT}, as what is computed from a wrong block would be"
    if found.control is None:
        return f"{WHAT}: dump the good request once more and add --control DIR"
    known = [item.control_rel_l2 for item in suspicious if item.control_rel_l2 is not None]
    if known and not any(known):
        return f"{WHAT}: the control run repeats the good run exactly and cannot tell this engine's noise: take it in another batch, or beside other requests"
    return f"{WHAT}: the control run does not tell how noisy {'these are' if len(suspicious) > 1 else 'this is'}"


def is_settled(found: Comparison) -> bool:
    """Is the first divergence another request's block, bit for bit? Then no figure is needed to tell rounding from it."""
    alias = None if found.first is None else found.first.result.alias
    return alias is not None and alias.by in EXACT and alias.dump != found.good.name
