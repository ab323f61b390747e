"""Incident 1: a poisoned cache entry makes a multimodal server play dead."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from diag import labs, rules
from diag.demos import tool
from diag.demos.steps import DemoFailed, Settings, Step
from diag.demos.tool import ANSWER_S

RULE = "ghost-key-retry-loop"
NEEDS = ("aiohttp", "cachetools")
HINT = "pip install '.[demo]', in the clone of llmdiag, brings what a demo needs"
WORKERS = 2
FREE_S, ROUNDS = 15.0, 3
"""How long a purge may take to free the workers, and how often it is looked again when one of them was missed."""
BUNDLE = "demo-incident.zip"


def run(folder: Path, settings: Settings) -> Iterator[Step]:
    """The steps, as they happen."""
    lab_py = rules.samples() / "ghost-key-retry-loop" / "lab.py"
    bundle = (settings.keep or folder) / BUNDLE
    with labs.start_server(folder) as server:
        yield Step("Started a cache server", f"{server.binary.name}, pid {server.pid}, {server.tcp_url}")
        extra = ["--ghost", "marker"] if settings.fault else ["--no-ghost"]
        with labs.start_lab(lab_py, "--redis", server.tcp_url, "--workers", str(WORKERS), *extra, log=folder / "lab.log") as lab:
            yield Step("Started a multimodal service", f"pid {lab.pid}, {lab.url}, {WORKERS} workers, {len(server.key_names())} cached encodings")
            yield Step("A healthy image is answered", tool.expect(lambda: lab.post(b"a healthy image"), 200))
            hung = [lab.post_later(labs.damaged_image()) for _ in range(WORKERS)]
            if settings.fault:
                yield Step("Sent damaged images", f"{len(hung)} requests wait; none is answered")
                labs.wait_until(lambda: lab.get("/health").status != 200, ANSWER_S)
                yield Step("The service plays dead", f"/health says {lab.get('/health').status}; the process lives; the log is silent")
            else:
                yield Step("Sent damaged images", f"answered: {', '.join(str(item.result(ANSWER_S).status) for item in hung)}")
            found = tool.snapshot(lab.pid, bundle)
            yield Step("llmdiag snapshot", tool.report(bundle))
            if not settings.fault:
                if found["verdict"] != "clear":
                    raise DemoFailed(f"nothing was planted, yet the snapshot says {found['verdict']}")
                yield Step("CLEAR, as it should be: nothing was planted")
                return
            yield from _heal(found, bundle, settings, lab, hung)


def _heal(found: dict[str, Any], bundle: Path, settings: Settings, lab: labs.Lab, hung: Sequence["Future[labs.Answer]"]) -> Iterator[Step]:
    """Purge what the diagnosis names and ask the service again, as a person would: until nobody waits, at most ROUNDS times."""
    waiting = set(hung)
    for number in range(1, ROUNDS + 1):
        if number < ROUNDS and not _names_the_cause(found):
            bundle = bundle.with_name(f"demo-incident-{number + 1}.zip")
            yield Step("One more look", "the first could not read what the busy threads hold")
            found = tool.snapshot(lab.pid, bundle)
            continue
        proof = _proof(found)
        yield Step("Cause, from the JSON of the snapshot", f"{proof['rule']}, {proof['verdict']}: {proof['key']} ({proof['reasons']})")
        purge = ["scan-cache", proof["target"], "--keys-from", str(bundle), "--format", "json"]
        backup = bundle.with_name(f"purged-{number}.jsonl")
        done = tool.answer_of([*purge, *(["--purge", "--yes", "--backup", str(backup)] if settings.heal else [])], (0, 1))["purge"]
        yield Step("llmdiag scan-cache --purge", f"mode {done['mode']}, planned {done['planned']}, deleted {done['deleted']}, backup {done['backup']}")
        waiting = wait(waiting, FREE_S).not_done
        if not waiting or not done["deleted"] or number == ROUNDS:
            break
        bundle = bundle.with_name(f"demo-incident-{number + 1}.zip")
        yield Step("One more look", f"{len(waiting)} requests still wait: their keys were not seen in the first")
        found = tool.snapshot(lab.pid, bundle)
    if waiting:
        raise DemoFailed("the hung requests are still not answered after the purge", hint=f"the bundle is {bundle}")
    answers = [item.result().status for item in hung]
    if set(answers) != {200}:
        raise DemoFailed(f"the hung requests were answered with {answers}, not 200")
    yield Step("The hung requests are answered", ", ".join(map(str, answers)))
    yield Step("/health is back", tool.expect(lambda: lab.get("/health"), 200))


def _names_the_cause(found: dict[str, Any]) -> bool:
    return any(item["rule"] == "ghost-key-retry-loop" and item["verdict"] == "confirmed" for item in found["findings"][:1])


def _proof(found: dict[str, Any]) -> dict[str, Any]:
    """The key that proves the first finding."""
    first = found["findings"][0] if found["findings"] else {"rule": "nothing", "verdict": found["verdict"], "evidence": []}
    rows = [row for item in first["evidence"] if item["role"] == "proof" for row in item["rows"]]
    if first["rule"] != "ghost-key-retry-loop" or first["verdict"] != "confirmed" or not rows:
        raise DemoFailed(f"the snapshot says {first['rule']} ({first['verdict']}), not a confirmed ghost-key-retry-loop")
    return {"rule": first["rule"], "verdict": first["verdict"], **{name: rows[0][name] for name in ("key", "target", "reasons")}}
