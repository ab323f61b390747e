"""Diagnoses for the report tests: the ordinary ones, and those that try to break a screen, a ticket or a parser."""

import datetime
from dataclasses import replace

from diag.model import Action, Collected, Diagnosis, Part, RuleResult, Section, SignalResult, SignalState, Verdict

HELD, EMPTY, UNSEEN = SignalState.HELD, SignalState.EMPTY, SignalState.UNSEEN
KEY = "clip-vit-b-32:image:9e107d9d372bb6826bd81d3542a419d6"
PURGE = "llmdiag scan-cache redis://cache-0:6379 --keys-from gpu-12.zip --purge"
UNDO = "llmdiag restore-cache BACKUP redis://cache-0:6379"
REDIS_HINT = "LLMDIAG_REDIS_URL=redis://USER:PASSWORD@HOST:PORT llmdiag snapshot {pid}"
HINTS = {"cache_keys": REDIS_HINT, "probes": "llmdiag snapshot {pid} --port PORT", "processes": "llmdiag snapshot {pid}"}
COLLECTORS = {"processes": "processes", "threads": "threads", "redis": "cache_keys", "gpu": "gpu_devices"}
SUBJECT: dict[str, object] = {
    "tool_version": "0.1.0", "bundle": "gpu-12", "path": "gpu-12.zip", "hosts": "gpu-12", "pid": 4121,
    "tree": "api_server, engine_core, 2 worker", "taken_at": "2026-11-30T02:41:10.123456Z", "rules": 12, "redacted": 41,
    "redaction": True, "dropped": [], "unrecognised": [], "interrupted": False,
}  # fmt: skip
NOT_KNOWN = dict.fromkeys(SUBJECT) | {"tool_version": "0.1.0", "redaction": True, "dropped": [], "unrecognised": [], "interrupted": False}
RUNBOOK = {
    "confirm": "1. Read the key again with `llmdiag scan-cache`.\n   Expected: the same reasons. If not: **stop**.\n2. Watch it.",
    "stop_the_bleeding": "1. Delete the key.\n2. Restart this worker *only* if it stays hot.",
    "fix": "Bound the retries.",
    "prevent": "1. Version the key (`model:v2:<hash>`).",
}


def signal(role: str, state: SignalState, name: str = "", *says: str, **more: object) -> SignalResult:
    """A signal with one row per sentence."""
    rows = tuple({"key": text, "source": f"{name or role}/t.jsonl:{n}"} for n, text in enumerate(says, 1))
    return SignalResult(name or role, role, state, says=says, rows=rows, **more)  # type: ignore[arg-type]


def unseen(role: str, table: str, because: str = "", name: str = "") -> SignalResult:
    return SignalResult(name or role, role, UNSEEN, unseen_tables=(table,), because=because)


def rule(name: str, verdict: Verdict, *signals: SignalResult, **keys: object) -> RuleResult:
    return RuleResult(rule=name, title=f"The title of {name}", severity="high", verdict=verdict, signals=signals, **keys)  # type: ignore[arg-type]


def diagnosis(verdict: str, *results: RuleResult, **keys: object) -> Diagnosis:
    """Results sorted into findings, open ones and ruled out ones by their verdict."""
    found = {name: tuple(r for r in results if r.verdict in of) for name, of in (
        ("findings", (Verdict.CONFIRMED, Verdict.LIKELY)), ("inconclusive", (Verdict.INCONCLUSIVE,)), ("ruled_out", (Verdict.NOT_MATCHED,)),
    )}  # fmt: skip
    collected = tuple(Collected(collector, table, "ok") for collector, table in COLLECTORS.items())
    known = {"collected": collected, "side_effects": {"pause_ms": 8.2}, "subject": SUBJECT, "collect_hints": HINTS}
    return Diagnosis(verdict, **found, **(known | keys))  # type: ignore[arg-type]


RULED_OUT = rule("cpu-spin", Verdict.NOT_MATCHED, signal("required", EMPTY, near="the service answers: /health gave 200 in 0.01 s"))
FAR_OFF = rule("process-stopped", Verdict.NOT_MATCHED, signal("required", EMPTY, "all_stopped"))
CONFIRMED = RuleResult(
    "ghost-key-retry-loop", "A worker thread retries for ever on a ghost cache key", "critical", Verdict.CONFIRMED,
    (
        signal("required", HELD, "looping", "thread worker-2 (tid 4188) stays in get <- encode in 5 of 5 samples, spin, 99 % runnable"),
        signal("required", HELD, "same_key", f"its frame answer (srv.py:190) holds the same key = {KEY}"),
        signal("proof", HELD, "ghost_key", f"{KEY} in redis://cache-0:6379 is a ghost: placeholder", "a second key is a ghost: null"),
        signal("proof", EMPTY, "suspect_key"),
        signal("against", EMPTY, "left_the_loop"),
        signal("support", HELD, "log_silent", "server.log has been silent for 212 s"),
        signal("support", EMPTY, "backlog"),
        signal("support", EMPTY, "frozen_counters"),
        unseen("support", "gpu_devices", "nvidia-smi did not answer in 5 s", "gpu_idle"),
    ),
    explains=("cpu-spin",), actions=(Action("Delete the ghost keys", PURGE, UNDO), Action("Look again", "llmdiag snapshot 4121", "")),
    runbook=RUNBOOK, about="A cached value that is useless\nmakes every computation on it fail.", subject=KEY,
)  # fmt: skip
LIKELY = replace(
    CONFIRMED, verdict=Verdict.LIKELY, explains=(),
    signals=(
        *(s for s in CONFIRMED.signals if s.id in ("looping", "same_key")),
        unseen("proof", "cache_keys", "no Redis password", "ghost_key"),
        unseen("against", "cache_keys", "no Redis password", "key_is_healthy"),
    ),
)  # fmt: skip
HALF_OPEN = rule("process-stopped", Verdict.INCONCLUSIVE, signal("required", HELD, "stopped", "pid 7 is in state T"), unseen("required", "probes"))

SYMPTOM = rule("event-loop-blocked", Verdict.LIKELY, signal("required", HELD, "away", "MainThread was never back in its selector"))
CONFIRMED_CASE = diagnosis(
    "matched", CONFIRMED, RULED_OUT, FAR_OFF, folded={"ghost-key-retry-loop": ["event-loop-blocked"]}, explained=(SYMPTOM,)
)
CASES = {
    "confirmed": CONFIRMED_CASE,
    "likely": diagnosis(
        "matched", LIKELY, rule("clock-skew", Verdict.LIKELY, signal("required", HELD, "skew", "the clocks differ by 9 s"), subject="gpu-13"), FAR_OFF,
        side_effects={"pause_ms": 0, "sigcont_sent": 1},
        collected=(Collected("redis", "cache_keys", "failed", "no Redis password"), Collected("threads", "threads", "ok")),
        subject=SUBJECT | {"interrupted": True, "dropped": ["redis/keys-0.jsonl"]},
    ),
    "inconclusive": diagnosis("inconclusive", HALF_OPEN, rule("cpu-spin", Verdict.INCONCLUSIVE, unseen("required", "processes", "not handed in")), RULED_OUT),
    "clear": diagnosis("clear", RULED_OUT, FAR_OFF),
    "loose": diagnosis(
        "clear", *(rule(f"rule-{n}", Verdict.INCONCLUSIVE, unseen("required", table)) for n, table in enumerate(["cache_keys", "probes", "sockets"] * 3)),
        collected=tuple(Collected(name, table, "skipped", "not handed in") for name, table in COLLECTORS.items()),
        subject=NOT_KNOWN | {"unrecognised": ["notes.txt"]},
    ),
}  # fmt: skip

LONG_COMMAND = f"llmdiag scan-cache rediss://cache-0.example:6379 --keys-from '/srv/{'long path/' * 30}b.zip' --purge"
HOSTILE = "\x1b[31mred\x1b[0m \u202egnp.exe\u202c \x00 <script>alert(1)</script> {{ 7 * 7 }} {% raw %} [red]x[/red] {key} ``` `a` | b | @root #12 https://evil.example ![i](http://e/i.png) [l](x) <!-- \n\n# title\n```\n1. rm -rf /\n:boom: \ud800 &lt; $x$"
WIDE = "漢字かな" * 40


def of_many(count: int, text: str) -> RuleResult:
    """A finding with many signals of every kind."""
    kinds = [("proof", HELD), ("required", HELD), ("support", HELD), ("against", UNSEEN), ("support", EMPTY)]
    signals = [
        unseen(role, f"table_{n}", text, f"s{n}") if state is UNSEEN else signal(role, state, f"s{n}", *([text] if state is HELD else []))
        for n in range(count)
        for role, state in [kinds[n % len(kinds)]]
    ]
    return replace(CONFIRMED, verdict=Verdict.LIKELY, signals=tuple(signals))


def spoiled(text: str) -> Diagnosis:
    """The same text in every place that evidence reaches."""
    quoted = "'" + text.replace("'", "'\"'\"'") + "'"
    first = replace(
        CONFIRMED, subject=text, actions=(Action("Delete", f"llmdiag scan-cache {quoted} --purge", f"llmdiag restore-cache {quoted}"),),
        signals=(signal("proof", HELD, "ghost_key", text, text), unseen("against", "cache_keys", text), signal("required", EMPTY, "x", near=text)),
        runbook={"confirm": f"1. Look at {text}.\n2. And `{text}` again.", "fix": f"**{text}**"},
    )  # fmt: skip
    other = replace(HALF_OPEN, signals=(signal("required", HELD, "stopped", text), unseen("required", "probes", text)))
    out = rule("cpu-spin", Verdict.NOT_MATCHED, signal("required", EMPTY, near=text))
    subject = SUBJECT | {"hosts": text, "bundle": text, "tree": text, "dropped": [text], "unrecognised": [text], "taken_at": text}
    collected = (Collected("redis", "cache_keys", "failed", text), Collected("threads", "threads", "ok"))
    parts = (Part(text), Part(text, "good"), Part(text, "bad"), Part(drawn=(text, text)), Part(run=f"grep -nwF {quoted} ENGINE_LOG"))
    symptom = rule("event-loop-blocked", Verdict.LIKELY, signal("proof", HELD, "away", text))
    return diagnosis(
        "matched", first, other, out, subject=subject, collected=collected, side_effects={"pause_ms": 1, "note": text}, sections=(Section(text, parts),),
        folded={first.rule: [symptom.rule]}, explained=(symptom,),
    )


MONSTERS = {
    "40 sentences of 600 characters": diagnosis("matched", of_many(40, "word " * 120), RULED_OUT),
    "40 proofs": diagnosis("matched", replace(CONFIRMED, signals=tuple(signal("proof", HELD, f"p{n}", "x" * 600) for n in range(40))), RULED_OUT),
    "wide characters": spoiled(WIDE),
    "wide subject": diagnosis("matched", replace(CONFIRMED, subject=WIDE), RULED_OUT),
    "12 findings": diagnosis("matched", *(replace(CONFIRMED, rule=f"rule-{n}", subject="s" * 90) for n in range(12)), RULED_OUT),
    "30 actions": diagnosis("matched", replace(CONFIRMED, actions=(Action("Do it " * 30, LONG_COMMAND, LONG_COMMAND),) * 30), RULED_OUT),
    "40 open rules": diagnosis("clear", *(rule(f"{n}-{'rule-' * 9}", Verdict.INCONCLUSIVE, unseen("required", f"t{n}", "why " * 50)) for n in range(40))),
    "40 half open rules": diagnosis("inconclusive", *(replace(HALF_OPEN, rule=f"rule-{n}") for n in range(40))),
    "40 ruled out": diagnosis("clear", *(replace(RULED_OUT, rule=f"rule-{n}") for n in range(40))),
    "40 bad collectors": diagnosis("matched", CONFIRMED, collected=tuple(Collected(f"c{n}", "t", "failed", "no " * 99) for n in range(40))),
    "long names": spoiled("n" * 900),
    "hostile": spoiled(HOSTILE),
    "nothing at all": diagnosis("inconclusive", subject={}, side_effects={}, collected=(), collect_hints={}),
    "unknown": diagnosis("matched", replace(CONFIRMED, subject=""), subject=NOT_KNOWN, side_effects={"pause_ms": None}),
}  # fmt: skip

ODD_VALUES: dict[str, object] = {
    "nan": float("nan"), "inf": float("inf"), "ts": datetime.datetime(2026, 11, 30, 2, 41, 10), "none": None, "zero": 0, "no": False,
    "aware": datetime.datetime(2026, 11, 30, 3, 41, 10, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    "list": [1.5, float("-inf"), None], "struct": {"a": float("nan")}, "bytes": b"\xff\x00", "big": 10**30, "source": "a:1",
}  # fmt: skip
