"""Evidence of restarts in a few words: seconds of one day -> rows of the tables that derivations read."""

import datetime
from collections.abc import Sequence

from diag.derive import restarts
from tests.derive.frames import Row, derived

DAY = datetime.datetime(2026, 6, 10, 9)


def at(second: float) -> datetime.datetime:
    return DAY + datetime.timedelta(seconds=second)


def event(second: float, kind: str, initiator: str | None = None, *, unit: str | None = "vllm.service", origin: str = "journald", **more: object) -> Row:
    return {"ts": at(second), "kind": kind, "initiator": initiator, "unit": unit, "origin": origin, "detail": f"{kind} by {initiator}",
            "source": f"{origin}.log:{second:.0f}", **more}  # fmt: skip


def line(second: float, kind: str, message: str = "", **more: object) -> Row:
    texts = {
        "startup": "non-default args: {}", "ready": "Application startup complete.", "shutdown_signal": "[shutdown] API server: shutdown triggered",
        "fatal": "EngineCore encountered a fatal error.", "futures_after_shutdown": "RuntimeError: cannot schedule new futures after shutdown",
        "engine_dead": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    }  # fmt: skip
    return {"ts": at(second), "event": kind, "message": message or texts[kind], "file": "vllm.log", "line": int(second * 10), "source": f"vllm.log:{second:.0f}",
            **more}  # fmt: skip


def stats(second: float, tokens_per_s: float, *, running: int = 4, kv_pct: float = 30.0) -> Row:
    text = (
        f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {tokens_per_s} tokens/s, Running: {running} reqs, "
        f"Waiting: 0 reqs, GPU KV cache usage: {kv_pct}%, Prefix cache hit rate: 0.0%"
    )
    return line(second, "engine_stats", text)


def request(second: float, status: int, path: str = "/v1/chat/completions", **more: object) -> Row:
    return {"ts": at(second), "status": status, "path": path, "method": "POST" if "completions" in path else "GET", "dated": True,
            "source": f"access.log:{second:.0f}", **more}  # fmt: skip


def rule(initiator: str, period_s: float | None, timeout_s: float | None, strikes: int | None, what: str) -> Row:
    return {"initiator": initiator, "period_s": period_s, "timeout_s": timeout_s, "strikes": strikes, "what": what, "source": "map.toml#event 1"}


def asked(second: float, who: str | None = None, *, unit: str = "vllm.service") -> list[Row]:
    """A stop and a start by systemctl as a journal and the engine tell of it; the engine's lines come apart, see `lines_of`."""
    return [event(second, "killing", who, unit=unit), event(second + 4, "stop", who, unit=unit), event(second + 5, "start", who, unit=unit)]


def lines_of(second: float, ready_s: float | None = 200) -> list[Row]:
    """What the engine writes when it is ended and started again."""
    first = [line(second + 1, "shutdown_signal"), line(second + 8, "startup")]
    return first if ready_s is None else [*first, line(second + ready_s, "ready")]


def life() -> list[Row]:
    """The start of the life before."""
    return [line(-3600, "startup"), line(-3400, "ready")]


def told(**rows: Sequence[Row]) -> dict[str, list[dict[str, object]]]:
    """What diag/derive/restarts.py says of these rows."""
    return derived(restarts, **rows)


def only(found: dict[str, list[dict[str, object]]], table: str = "restarts") -> dict[str, object]:
    (row,) = found[table]
    return row
