"""A page of keys that all belong to one known family: what a pass does with it in a fifth of the usual time.

No key has an object of its own, sound values are counted, and only what is odd goes the way of all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import redis

from diag.cache.scanning.passing import Asked, Kin
from diag.cache.scanning.replies import plain, refuses_together, seconds
from diag.cache.values.facts import Facts
from diag.cache.values.quick import Form, lively

if TYPE_CHECKING:
    from diag.cache.scanning.walk import Walk

PTTL = b"*2\r\n$4\r\nPTTL\r\n$%d\r\n%b\r\n"
STRLEN = b"*2\r\n$6\r\nSTRLEN\r\n$%d\r\n%b\r\n"


@dataclass(slots=True)
class Page:
    """Values on their way."""

    keys: list[bytes]
    kin: Kin
    with_ttl: bool
    one_by_one: bool
    ttls: list[int | redis.ResponseError] | None = None
    odd: list[tuple[int, bytes, int]] = field(default_factory=list)
    """(which key, value, its length)"""
    gone: list[Asked] = field(default_factory=list)
    staged: list[tuple[int, Form]] = field(default_factory=list)


def family_of(walk: "Walk", page: Sequence[bytes]) -> Kin | None:
    """The family that all of these keys belong to, if that is the one the last key belonged to."""
    kin = walk.last
    if kin is None or kin.page is None or walk.wants is not None or walk.per_family is not None:
        return None
    text = b"\n".join(page) + b"\n"
    return kin if kin.page.fullmatch(text) is not None and text.count(b"\n") == len(page) else None


def ask(walk: "Walk", page: list[bytes], kin: Kin) -> bool:
    """Queue what it takes; False: that is not enough for this family, or for what is wanted."""
    if walk.scan.each is not None or walk.pace.careful:
        return False
    if not walk.values:
        if kin.mixed:
            return False
        walk.outgoing += [PTTL % (size := len(key), key) + STRLEN % (size, key) for key in page]
        walk.queue.append(partial(_lengths, walk, page, kin))
        return True
    if kin.careful or kin.quick is None or not kin.quick.usable:
        return False
    with_ttl = walk.needs_ttl(kin)
    step = max(1, walk.pace.batch_bytes // max(1, kin.longest))
    for start in range(0, len(page), step):
        part = Page(page[start : start + step], kin, with_ttl, walk.one_by_one)
        if with_ttl:
            walk.outgoing += [PTTL % (len(key), key) for key in part.keys]
        walk.ask_for(part.keys)
        walk.queue.append(partial(_values, walk, part))
    return True


def _values(walk: "Walk", page: Page) -> None:
    if page.with_ttl:
        page.ttls = walk.wire.numbers(len(page.keys))
    try:
        _look(walk, page)
    except redis.ResponseError as error:
        if not refuses_together(error):
            raise
        walk.one_by_one = True
        walk.ask_values([Asked(key, page.kin) for key in page.keys], "unknown")
        return
    _settle(walk, page)
    late: list[tuple[Asked, Facts]] = []
    for number, value, size in page.odd:
        item = Asked(page.keys[number], page.kin)
        facts = walk.facts(page.kin, memoryview(value), size)
        if page.ttls is None:
            late.append((item, facts))
        elif (ttl_ms := plain(page.ttls[number])) is not None and ttl_ms != -2:
            item.ttl_s = seconds(ttl_ms)
            walk.scan.add(walk.place(item), facts)
    if late:
        walk.ask_late(late)
    if page.gone:
        walk.ask_about(page.gone)


def _look(walk: "Walk", page: Page) -> None:
    """Counts what seems sound, as float16 arrays do until `_settle`; the rest is odd or gone."""
    kin, quick = page.kin, page.kin.quick
    forever = page.ttls if page.ttls is not None and kin.expires else None
    halves = walk.halves
    found = (walk.wire.value() for _ in page.keys) if page.one_by_one else walk.wire.values(len(page.keys))
    for number, (value, size) in enumerate(found):
        if not isinstance(value, memoryview):
            plain(value)
            if value is None or "WRONGTYPE" in str(value):
                page.gone.append(Asked(page.keys[number], kin))
            continue
        form = None if quick is None or (forever is not None and forever[number] == -1) else quick.form(value)
        if form is None or (walk.markers and walk.marked(value)) or not _seems_sound(form, value):
            page.odd.append((number, bytes(value), size))
            continue
        if form.halves:
            if not halves.room(form.skeleton.count):
                _settle(walk, page)
            halves.put(form.skeleton.bits(value))
            page.staged.append((number, form))
        kin.keys += 1
        kin.bytes += size


def _seems_sound(form: Form, value: memoryview) -> bool:
    return form.skeleton.varies(value) if form.halves else lively(form, form.skeleton.elements(value))


def _settle(walk: "Walk", page: Page) -> None:
    """What was counted as sound and is not becomes odd, put together again; nothing is staged then."""
    for at, number, form in _dull(walk, page):
        skeleton = form.skeleton
        page.odd.append((number, skeleton.head + walk.halves.array(at) + skeleton.tail, skeleton.length))
        page.kin.keys -= 1
        page.kin.bytes -= skeleton.length
    page.staged.clear()
    walk.halves.clear()


def _dull(walk: "Walk", page: Page) -> Iterator[tuple[int, int, Form]]:
    for at, ((number, form), total) in enumerate(zip(page.staged, walk.halves.sums(), strict=True)):
        if not form.least < total < form.most:
            yield at, number, form


def _lengths(walk: "Walk", page: list[bytes], kin: Kin) -> None:
    answers = walk.wire.numbers(2 * len(page))
    whole = [answer for answer in answers if isinstance(answer, int)]
    if len(whole) == len(answers) and -2 not in whole:
        kin.keys += len(page)
        kin.bytes += sum(whole[1::2])
    else:
        walk.known([Asked(key, kin) for key in page], [False] * len(page), answers)
