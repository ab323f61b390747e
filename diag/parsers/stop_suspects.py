"""Who could have asked for a stop that a journal tells of: commands that name the unit, checks that ran then, cron jobs just before."""

import bisect
import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from diag.parsers.event_rows import Event

BEFORE_S = 120.0
NEAR_S = 10.0
HELPER_S = 900.0
"""A unit that runs longer is a service of its own, not a check that came and went."""


@dataclass
class Asked:
    """Somebody who could have asked for a stop."""

    ts: datetime.datetime | None
    initiator: str
    unit: str | None
    """Unit the command names; None = a job that says nothing of units."""


@dataclass
class Run:
    """A unit that was started; `end` None = still running."""

    unit: str
    begin: datetime.datetime
    end: datetime.datetime | None = None
    activating: bool = False


def begin_of(run: Run) -> datetime.datetime:
    return run.begin


def when(asked: Asked) -> datetime.datetime:
    return asked.ts or datetime.datetime.min


def suspect(stop: Event, ts: datetime.datetime, runs: Sequence[Run], asked: Sequence[Asked]) -> str | None:
    """Who asked for a stop; None = nobody, or more than one could have. `runs` and `asked` in order of time."""
    soon = ts + datetime.timedelta(seconds=1)
    first = bisect.bisect_left(asked, ts - datetime.timedelta(seconds=BEFORE_S), key=when)
    before = asked[first : bisect.bisect_right(asked, soon, key=when)]
    named = [item for item in before if item.unit == stop.unit]
    if named:
        return named[-1].initiator
    first = bisect.bisect_left(runs, ts - datetime.timedelta(seconds=HELPER_S), key=begin_of)
    helpers = {run.unit for run in runs[first : bisect.bisect_right(runs, ts, key=begin_of)] if run.unit != stop.unit and _covers(run, ts)}
    if len(helpers) == 1:
        return next(iter(helpers))
    near = {item.initiator for item in before if item.unit is None and (ts - when(item)).total_seconds() <= NEAR_S}
    return next(iter(near)) if len(near) == 1 and not helpers else None


def _covers(run: Run, moment: datetime.datetime) -> bool:
    """Was this a check that had begun and ended again around that moment?"""
    if run.end is None:
        return run.activating
    return run.end >= moment and (run.end - run.begin).total_seconds() <= HELPER_S
