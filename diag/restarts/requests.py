"""Access logs by time: errors that clients met, answers that others got, and who asks the same again and again."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diag.restarts import watchdogs
from diag.restarts.progress_before import Answered
from diag.restarts.records import Time
from diag.restarts.replay import Error
from diag.restarts.watchdogs import Prober

if TYPE_CHECKING:
    import pandas as pd

LIGHT = re.compile(r"^/(?:health\w*|healthz|livez|readyz|metrics|ping|v1/models|version|load|get_model_info|get_server_info)?/?$")
"""Paths that an engine answers while it does no work."""
PROXIES = frozenset({"haproxy", "nginx"})
MAX_ERRORS = 50_000


@dataclass(frozen=True)
class Requests:
    """Requests of one capture with a time, in its order. Columns as in http_events."""

    frame: "pd.DataFrame"

    @property
    def seen(self) -> bool:
        """Was there an access log?"""
        return len(self.frame) > 0

    def within(self, begin: Time, end: Time) -> "pd.DataFrame":
        """Requests from one moment to another, both included."""
        low, high = self.frame["ts"].searchsorted(begin, "left"), self.frame["ts"].searchsorted(end, "right")
        return self.frame.iloc[int(low):int(high)]

    def errors(self, begin: Time, end: Time, status: int | None) -> list[Error]:
        """Answers with that status, or all from 500 on; of the proxy where there is one, which also sees refusals."""
        found = self.within(begin, end)
        found = found[found["status"] == status] if status is not None else found[found["status"] >= 500]
        proxied = found["origin"].isin(PROXIES)
        found = (found[proxied] if proxied.any() else found).head(MAX_ERRORS)
        return [Error(ts.to_pydatetime(), ts.to_pydatetime(), source) for ts, source in zip(found["ts"], found["source"], strict=True)]

    def answered(self, begin: Time, end: Time) -> list[Answered]:
        """Work that was answered with success; of a proxy with several servers nothing, for another one may have answered."""
        found = self.within(begin, end)
        proxied = found["origin"].isin(PROXIES)
        if found.loc[proxied, "backend"].nunique() > 1:
            found = found[~proxied]
        good = found[(found["status"] >= 200) & (found["status"] < 300) & (found["method"] == "POST")]
        good = good[~good["path"].fillna("").str.match(LIGHT)].tail(1000)
        return [Answered(ts.to_pydatetime(), str(path), source) for ts, path, source in zip(good["ts"], good["path"], good["source"], strict=True)]

    def first_success(self, after: Time) -> Time | None:
        """First answer with success after a moment, which is when the service was there again at the latest."""
        low = int(self.frame["ts"].searchsorted(after, "right"))
        found = self.frame.iloc[low:]
        good = found[(found["status"] >= 200) & (found["status"] < 300)]
        return None if good.empty else good["ts"].iloc[0].to_pydatetime()

    def lost(self, begin: Time, end: Time) -> int | None:
        """Requests that failed in a stretch, the least that is known; None = nothing tells: a server that dies writes no line of what it cut off."""
        found = len(self.errors(begin, end, None))
        return found if found or self.frame["origin"].isin(PROXIES).any() else None

    def probers(self) -> list[Prober]:
        """Clients that send one request at regular intervals; scrapers of metrics are none."""
        frame = self.frame[self.frame["path"].notna() & ~self.frame["path"].fillna("").str.startswith("/metrics")]
        if frame.empty:
            return []
        host = frame["client"].fillna("").str.replace(r":\d+$", "", regex=True)
        found = []
        for (agent, method, path, client), group in frame.groupby([frame["user_agent"].fillna(""), frame["method"].fillna(""), frame["path"], host]):
            if len(group) < watchdogs.LEAST_PROBES:
                continue
            moments: Sequence[Time] = [ts.to_pydatetime() for ts in group["ts"].head(5000)]
            period = watchdogs.period_of(moments)
            if period is not None:
                who = " ".join(word for word in (str(agent) or "a client", f"at {client}" if client else "") if word)
                found.append(Prober(who, f"{method} {path}", round(period, 1), len(group), str(group["source"].iloc[0])))
        return found
