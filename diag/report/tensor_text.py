"""What a comparison of dumps found, for a person: the few lines that matter first, a line per block, the map."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from diag.report import heatmap, tensors_head
from diag.report.grid import grid
from diag.report.inert import inert
from diag.report.layout import limited, wrapped
from diag.report.tensor_doubt import doubt
from diag.report.tensors import counts
from diag.tensors.result import Alias, Comparison, Result
from diag.tensors.telling import either, read_by

LABEL = 11
WIDTH = 100
BLOCK_ROWS = 24
TENSOR_ROWS = 12
NAMED = 3
WHAT = 400
"""Characters of a cell: the hint stands at its end."""
NARROW = 72
"""Cells below which figures are left to --format json."""
FIGURES = frozenset({"rel L2", "cosine", "max abs"})
OWNED = 6
"""Wrong blocks whose owner is named."""
COLUMNS = ("block", "verdict", "tensors", "rel L2", "cosine", "max abs", "what")
TENSOR_COLUMNS = ("tensor", "rank", "verdict", "rel L2", "cosine", "max abs", "what")


def render(found: Comparison, width: int, *, has_lookups: bool = False) -> Iterator[RenderableType]:
    """All of it, none wider than `width` cells. `has_lookups`: the log of the prefix cache was given as well."""
    width = max(40, min(width, WIDTH))
    yield tensors_head.headline(found)
    for label, text in (*_facts(found), *_next(found, has_lookups=has_lookups), ("Compared", _compared(found)), *tensors_head.bounds(found)):
        yield from _labelled(label, text, width)
    blocks = [item for item in found.results if item.block is not None]
    wrong: list[Result] = []
    count = 0
    for item in found.results:
        if item.block is None and (item.is_wrong or item.is_suspicious):
            count += 1
            if len(wrong) < (TENSOR_ROWS if width >= NARROW else NAMED):
                wrong.append(item)
    if blocks:
        yield Text()
        yield from _table(COLUMNS, _block_rows(blocks), width)
    if wrong:
        yield Text()
        yield from _table(TENSOR_COLUMNS, [_tensor_row(item) for item in wrong], width)
        if count > len(wrong):
            yield Text(f"and {count - len(wrong)} more tensors; --format json shows all", style="dim")
    drawn = heatmap.render(found.results, width)
    if drawn and found.verdict != "same":
        yield Text()
        yield from drawn
    notes = list(_notes(found))
    if notes:
        yield Text()
    for note in notes:
        yield from _labelled("Note", note, width)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[RenderableType]:
    """Without the figures where there is no room for them, and without a column that says nothing."""
    shown = [at for at, name in enumerate(columns) if not (width < NARROW and name in FIGURES) and any(row[at] not in ("-", "") for row in rows)]
    yield from grid([columns[at] for at in shown], [[row[at] for at in shown] for row in rows], width)


def _facts(found: Comparison) -> Iterator[tuple[str, str]]:
    """What matters, most important first."""
    left = list(tensors_head.left_out(found))
    is_part = tensors_head.is_part(counts(found))
    if is_part:
        yield from left
    if found.first is not None:
        yield "First", found.first.says
        yield from _whose_first(found, found.first.result)
    if found.scope is not None:
        yield "Points at", f"{found.scope.points_at}: {found.scope.says}"
    if found.first is not None:
        yield from _about_first(found, found.first.result)
    for twin in found.twins[:NAMED]:
        physical = f" (pool blocks {', '.join(map(str, twin.physical))})" if None not in twin.physical else ""
        yield "Twins", f"blocks {', '.join(map(str, twin.blocks))} of {twin.name} hold the same content{physical}, in the good run they do not"
    artefacts = [item for item in found.results if item.is_artefact]
    if artefacts:
        yield "Artefacts", f"{_names(artefacts)}: far off, and all that was computed afterwards matches: saved by reference, not what the run computed with"
    suspicious = [item for item in found.results if item.is_suspicious]
    if suspicious:
        yield "Doubt", f"{_names(suspicious)}: {doubt(found, suspicious)}"
    yield from tensors_head.in_both(found)
    if not is_part:
        yield from left


def _next(found: Comparison, *, has_lookups: bool) -> Iterator[tuple[str, str]]:
    """What to give as well, so that the next run of this command says more."""
    if found.first is None:
        return
    if found.first.kind == "bad-kv" and found.first.result.verdict == "different" and found.first.result.alias is None and not found.donors:
        yield "Next", "dump the requests that ran before the bad one, and add --donors DIR: whose block it is"
    if found.scope is not None and found.scope.points_at == "allocator" and not has_lookups:
        yield "Next", "add --lookups LOG (the engine's lines about prefix cache lookups): why it was reused"
    if found.scope is not None and found.scope.points_at == "weights-or-input" and not found.scope.is_small:
        yield "Next", "make sure that both runs loaded the same weights, adapter and quantisation, and dump the token ids of both"
    elif found.first.kind in ("operation", "drift", "other") and found.control is None and not found.first.result.is_retyped:
        yield "Next", "dump the good request once more, and add --control DIR: how much is this engine's own noise"


def _notes(found: Comparison) -> Iterator[str]:
    yield from found.notes
    if found.hidden_blocks:
        yield f"{found.hidden_blocks} pool blocks hold zeros in both runs and are not listed"


def _compared(found: Comparison) -> str:
    donors = f", donors {', '.join(item.name for item in found.donors)}" if found.donors else ""
    control = f", control {found.control.name}" if found.control is not None else ""
    return f"{found.good.name} ({found.good.layout}) with {found.bad.name} ({found.bad.layout}){control}{donors}"


def _whose_first(found: Comparison, first: Result) -> Iterator[tuple[str, str]]:
    """Owners of the wrong blocks, where the first divergence is one."""
    if first.block is None:
        return
    by_key: dict[tuple[int | None, int | None], list[Result]] = defaultdict(list)
    for item in found.results:
        if item.block is not None and (item.is_wrong or item.is_suspicious):
            by_key[(item.request, item.block)].append(item)
    owned = [key for key, items in by_key.items() if any(item.alias is not None for item in items)]
    compared: Counter[tuple[int | None, int | None]] = Counter((item.request, item.block) for item in found.results if item.block is not None)
    for key in owned[:OWNED]:
        yield "Whose", _owner(by_key[key], compared[key])
    if len(owned) > OWNED:
        yield "Whose", f"{len(owned) - OWNED} more blocks are another's: see the table"
    if (first.request, first.block) in owned or first.verdict != "different" or (found.scope is not None and found.scope.points_at == "weights-or-input"):
        return
    if found.donors:
        yield "Whose", f"not known: neither the good run nor {len(found.donors)} donors hold it"
    else:
        yield "Whose", "not known: no donors were given"


def _about_first(found: Comparison, first: Result) -> Iterator[tuple[str, str]]:
    if first.detail:
        yield "What", f"{first.verdict}: {first.detail}"
    follows = sum(item.follows for item in found.results)
    if first.block is None:
        if follows:
            yield "Follows", f"{follows} more differ after it"
        return
    same: dict[int, bool] = {}
    for item in found.results:
        if item.block is not None and item.request == first.request:
            same[item.block] = same.get(item.block, True) and item.verdict == "same"
    later = [block for block in sorted(same) if same[block] and block > first.block]
    if later:
        yield "Identical", f"block{'s' if len(later) > 1 else ''} {_ranges(later)} behind it, in every layer"
    if follows:
        yield "Follows", f"{follows} more differ as a consequence"


def _owner(block: Sequence[Result], compared: int) -> str:
    """Whose one block is, over all cache tensors; `compared`: in how many it was compared."""
    known = [item for item in block if item.alias is not None]
    whose, count = Counter(_whose(item) for item in known).most_common(1)[0]
    name = f"block {known[0].block}" + ("" if known[0].request is None else f" of request {known[0].request}")
    said = [item.alias for item in known if item.alias is not None and _whose(item) == whose]
    rows = [alias.rows for alias in said if alias.by in ("rows", "fingerprint")]
    part = f" ({max(rows)} of {known[0].rows_of} rows)" if rows and max(rows) < (known[0].rows_of or 0) else ""
    if sum(alias.by != "fingerprint" for alias in said) > len(said) / 2:
        return f"{name} is {whose}{part}, in {count} of {compared} cache tensors{_read_by(said)}"
    return f"{name} has the tokens of {whose}{part}, by V of layer 0, but was computed elsewhere: that very request is not among the donors"


def _whose(item: Result) -> str:
    alias = item.alias
    if alias is None:
        return "not known"
    if item.shift is not None:
        return f"the good run's own, shifted by {item.shift:+d} tokens"
    if alias.block is None:
        return f"pool block {alias.physical} of {alias.dump}"
    more = f" (or {either(alias.others)})" if alias.others else ""
    return f"block {alias.block} of {'the good run' if item.verdict == 'permuted' else alias.request}{more}"


def _read_by(said: Sequence[Alias]) -> str:
    return next(filter(None, (read_by(alias) for alias in said)), "")


def _names(items: Sequence[Result]) -> str:
    names = list(dict.fromkeys(item.name if item.block is None else f"block {item.block} of {item.name}" for item in items))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _labelled(label: str, text: str, width: int) -> Iterator[Text]:
    lines = limited(wrapped(inert(text, 1_000), width - LABEL), 6, width - LABEL)
    for number, line in enumerate(lines):
        yield Text(f"{label if number == 0 else '':<{LABEL}}", style="bold").append(Text(line, style="not bold"))


def _block_rows(blocks: Sequence[Result]) -> list[Sequence[str]]:
    """A line per block over all tensors; runs of blocks that are bit for bit the same in one."""
    by_block: dict[tuple[int, int], list[Result]] = defaultdict(list)
    for item in blocks:
        by_block[(item.request or 0, item.block or 0)].append(item)
    rows: list[Sequence[str]] = []
    equal: list[tuple[int, int]] = []
    several = len({request for request, _ in by_block}) > 1
    for key in sorted(by_block):
        items = by_block[key]
        if all(item.verdict == "same" for item in items):
            if equal and key[0] != equal[-1][0]:
                rows.append(_equal_row(equal, by_block, several=several))
                equal = []
            equal.append(key)
            continue
        if equal:
            rows.append(_equal_row(equal, by_block, several=several))
            equal = []
        rows.append(_block_row(key, items, several=several))
    if equal:
        rows.append(_equal_row(equal, by_block, several=several))
    if len(rows) > BLOCK_ROWS:
        rows = [*rows[:BLOCK_ROWS], ("…", f"{len(rows) - BLOCK_ROWS} more", "", "", "", "", "--format json shows all")]
    return rows


def _equal_row(keys: Sequence[tuple[int, int]], by_block: dict[tuple[int, int], list[Result]], *, several: bool) -> Sequence[str]:
    count = sum(len(by_block[key]) for key in keys)
    name = _ranges([block for _, block in keys])
    return (f"{keys[0][0]}: {name}" if several else name, "same", f"{count} of {count}", "0", "1", "0", "")


def _block_row(key: tuple[int, int], items: Sequence[Result], *, several: bool) -> Sequence[str]:
    worst = min(items, key=_badness)
    alike = sum(item.verdict == worst.verdict for item in items)
    told = [item.difference for item in items if item.difference is not None]
    what = _following(worst) if worst.follows else worst.detail or ""
    if worst.alias is not None:
        what, alike = Counter(_whose(item) for item in items if item.alias is not None).most_common(1)[0]
    return (
        f"{key[0]}: {key[1]}" if several else str(key[1]), worst.verdict, f"{alike} of {len(items)}",
        _largest(one.rel_l2 for one in told), _smallest(one.cosine for one in told), _largest(one.max_abs for one in told), inert(what, WHAT),
    )  # fmt: skip


def _following(item: Result) -> str:
    """And why it is different, where the figure of the whole does not tell."""
    some = item.verdict == "different" and item.rows_differ and item.rows_of and item.rows_differ < item.rows_of
    return f"follows; {item.rows_differ} of {item.rows_of} token rows" if some else "follows"


def _badness(item: Result) -> tuple[int, float]:
    """The worst comes first; of several that are as bad the one that is furthest off, whose figure the row shows."""
    rel = 0.0 if item.difference is None or item.difference.rel_l2 is None else item.difference.rel_l2
    return heatmap.WORST.index("suspicious" if item.is_suspicious else item.verdict), -rel


def _tensor_row(item: Result) -> Sequence[str]:
    told = item.difference
    rank = "-" if item.rank is None else str(item.rank)
    figures = ("-", "-", "-") if told is None else (_largest([told.rel_l2]), _smallest([told.cosine]), _largest([told.max_abs]))
    marks = "first" if item.is_first else item.doubt or ""
    what = _following(item) if item.follows else "; ".join(filter(None, (marks, item.detail)))
    return (inert(item.name, 60), rank, item.verdict, *figures, inert(what, WHAT))


def _largest(values: "Iterator[float | None] | Sequence[float | None]") -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.3g}" if known else "-"


def _smallest(values: "Iterator[float | None] | Sequence[float | None]") -> str:
    known = [value for value in values if value is not None]
    return f"{min(known):.4g}" if known else "-"


def _ranges(numbers: Sequence[int], limit: int = 6) -> str:
    """0-3, 5, 7-9."""
    pieces: list[list[int]] = []
    for number in numbers:
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in pieces[:limit]]
    return ", ".join(texts) + (" …" if len(pieces) > limit else "")
