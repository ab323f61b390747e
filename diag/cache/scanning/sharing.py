"""Pages of a pass that another process takes, and what it says of them."""

from typing import TYPE_CHECKING

from diag.cache.scanning.passing import Helper

if TYPE_CHECKING:
    from diag.cache.scanning.walk import Walk


def share(walk: "Walk", page: list[bytes]) -> None:
    """To another process that has time for it, else it is ours."""
    for second in walk.seconds:
        if second.free and walk.scan.profiles:
            try:
                second.take(page, walk.scan.profiles, walk.db)
            except second.lost:
                hear(walk, second, wait=False)
            return
    walk.look_at(page)


def hear(walk: "Walk", second: Helper, *, wait: bool) -> None:
    """What another process has found; if it is gone, its pages are ours."""
    try:
        for answer in second.answers(wait=wait):
            for name, versions, keys, size in answer.sound:
                walk.scan.sound(walk.db, name, versions, keys, size)
            for row in answer.rows:
                walk.scan.emit(row)
            for place, facts in answer.seen:
                walk.scan.add(place, facts)
            if answer.back:
                walk.look_at(answer.back)
            walk.tick(answer.keys - len(answer.back))
    except second.lost:
        walk.seconds.remove(second)
        second.close()
        for page in second.waiting:
            walk.look_at(page)
