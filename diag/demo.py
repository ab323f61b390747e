"""Reproduce an incident live on this machine, diagnose it, heal it. Everything it says it reads from outside.

Cause, key and healing come from `snapshot --format json` and from HTTP, never from the script's own knowledge: with
nothing planted the demo ends clear, and a purge that does not delete makes it fail.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag import labs, rules, tether
from diag.errors import BadInput, LlmdiagError

WORKERS = 2
ANSWER_S = 30.0
FREE_S, ROUNDS = 15.0, 3
"""How long a purge may take to free the workers, and how often it is looked again when one of them was missed."""
LAB_NEEDS = ("aiohttp", "cachetools")
BUNDLE = "demo-incident.zip"
KEPT = ("demo-incident*", "purged-*.jsonl")
"""What a demo leaves in the folder of --keep, the half bundle of an interrupted one included."""


class DemoFailed(LlmdiagError):
    """The demo did not show what it promises."""


@dataclass(frozen=True)
class Step:
    """One thing that happened: a title, and what was seen (already a finished text)."""

    title: str
    seen: str = ""


@dataclass(frozen=True)
class Settings:
    """`ghost` False plants nothing; `purge` False only plans the purge, which must make the demo fail."""

    ghost: bool = True
    purge: bool = True
    keep: Path | None = None


def find(name: str) -> str:
    """A rule id or a unique beginning of one -> the rule id. Raises BadInput."""
    found = [rule for rule in DEMOS if rule.startswith(name)]
    if name in DEMOS:
        return name
    if len(found) != 1:
        raise BadInput(f"{'no demo' if not found else 'several demos'} for {name!r}", hint=f"demos: {', '.join(DEMOS)}")
    return found[0]


def run(rule: str, settings: Settings) -> Iterator[Step]:
    """The steps of a demo, as they happen. Raises DemoFailed, BadInput before anything is started; leaves no process behind."""
    if settings.keep is not None and (old := [path for pattern in KEPT for path in settings.keep.glob(pattern)]):
        raise BadInput(f"{old[0]} is there already", hint="name another folder with --keep, or move it away")
    if missing := [name for name in LAB_NEEDS if importlib.util.find_spec(name) is None]:
        raise DemoFailed(f"the lab needs {' and '.join(missing)}", hint="pip install 'llmdiag[demo]' brings what a demo needs")
    with tempfile.TemporaryDirectory(prefix="llmdiag-demo-") as folder:
        try:
            yield from DEMOS[rule](Path(folder), settings)
        except DemoFailed as error:
            raise DemoFailed(error.message, hint=_kept(Path(folder), error.hint)) from error


def _kept(folder: Path, hint: str | None) -> str:
    """The hint, with the bundles of a demo that failed moved to where they stay."""
    bundles = sorted(folder.glob("*.zip"))
    if not bundles:
        return hint or ""
    place = Path(tempfile.mkdtemp(prefix="llmdiag-demo-failed-"))
    for bundle in bundles:
        shutil.copy2(bundle, place)
    return (hint or f"the bundle is {folder}").replace(str(folder), str(place))


def ghost_key(folder: Path, settings: Settings) -> Iterator[Step]:
    """Incident 1: a poisoned cache entry makes a multimodal server play dead."""
    lab_py = rules.samples() / "ghost-key-retry-loop" / "lab.py"
    bundle = (settings.keep or folder) / BUNDLE
    with labs.start_server(folder) as server:
        yield Step("Started a cache server", f"{server.binary.name}, pid {server.pid}, {server.tcp_url}")
        extra = ["--ghost", "marker"] if settings.ghost else ["--no-ghost"]
        with labs.start_lab(lab_py, "--redis", server.tcp_url, "--workers", str(WORKERS), *extra, log=folder / "lab.log") as lab:
            yield Step("Started a multimodal service", f"pid {lab.pid}, {lab.url}, {WORKERS} workers, {len(server.key_names())} cached encodings")
            yield Step("A healthy image is answered", _expect(lambda: lab.post(b"a healthy image"), 200))
            hung = [lab.post_later(labs.damaged_image()) for _ in range(WORKERS)]
            if settings.ghost:
                yield Step("Sent damaged images", f"{len(hung)} requests wait; none is answered")
                labs.wait_until(lambda: lab.get("/health").status != 200, ANSWER_S)
                yield Step("The service plays dead", f"/health says {lab.get('/health').status}; the process lives; the log is silent")
            else:
                yield Step("Sent damaged images", f"answered: {', '.join(str(item.result(ANSWER_S).status) for item in hung)}")
            found = _snapshot(lab.pid, bundle)
            yield Step("llmdiag snapshot", _report(bundle))
            if not settings.ghost:
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
            found = _snapshot(lab.pid, bundle)
            continue
        proof = _proof(found)
        yield Step("Cause, from the JSON of the snapshot", f"{proof['rule']}, {proof['verdict']}: {proof['key']} ({proof['reasons']})")
        purge = ["scan-cache", proof["target"], "--keys-from", str(bundle), "--format", "json"]
        backup = bundle.with_name(f"purged-{number}.jsonl")
        done = _json([*purge, *(["--purge", "--yes", "--backup", str(backup)] if settings.purge else [])], (0, 1))["purge"]
        yield Step("llmdiag scan-cache --purge", f"mode {done['mode']}, planned {done['planned']}, deleted {done['deleted']}, backup {done['backup']}")
        waiting = wait(waiting, FREE_S).not_done
        if not waiting or not done["deleted"] or number == ROUNDS:
            break
        bundle = bundle.with_name(f"demo-incident-{number + 1}.zip")
        yield Step("One more look", f"{len(waiting)} requests still wait: their keys were not seen in the first")
        found = _snapshot(lab.pid, bundle)
    if waiting:
        raise DemoFailed("the hung requests are still not answered after the purge", hint=f"the bundle is {bundle}")
    answers = [item.result().status for item in hung]
    if set(answers) != {200}:
        raise DemoFailed(f"the hung requests were answered with {answers}, not 200")
    yield Step("The hung requests are answered", ", ".join(map(str, answers)))
    yield Step("/health is back", _expect(lambda: lab.get("/health"), 200))


def _names_the_cause(found: dict[str, Any]) -> bool:
    return any(item["rule"] == "ghost-key-retry-loop" and item["verdict"] == "confirmed" for item in found["findings"][:1])


def _proof(found: dict[str, Any]) -> dict[str, Any]:
    """The key that proves the first finding."""
    first = found["findings"][0] if found["findings"] else {"rule": "nothing", "verdict": found["verdict"], "evidence": []}
    rows = [row for item in first["evidence"] if item["role"] == "proof" for row in item["rows"]]
    if first["rule"] != "ghost-key-retry-loop" or first["verdict"] != "confirmed" or not rows:
        raise DemoFailed(f"the snapshot says {first['rule']} ({first['verdict']}), not a confirmed ghost-key-retry-loop")
    return {"rule": first["rule"], "verdict": first["verdict"], **{name: rows[0][name] for name in ("key", "target", "reasons")}}


def _snapshot(pid: int, bundle: Path) -> dict[str, Any]:
    return _json(["snapshot", str(pid), "-o", str(bundle), "--format", "json"], (0, 1, 3))


def _report(bundle: Path) -> str:
    return _llmdiag(["analyze", str(bundle)], (0, 1, 3))


def _json(args: Sequence[str], allowed: Sequence[int]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_llmdiag(args, allowed))
    return found


def _llmdiag(args: Sequence[str], allowed: Sequence[int]) -> str:
    """The tool as a person would call it; the server is found by itself, not told by the environment."""
    env = {name: value for name, value in os.environ.items() if name not in ("LLMDIAG_REDIS_URL", "REDIS_URL")}
    done = subprocess.run(tether.command([sys.executable, "-P", "-m", "diag.cli", *args]), capture_output=True, text=True, timeout=120, env=env, check=False)
    if done.returncode not in allowed:
        raise DemoFailed(f"llmdiag {' '.join(args)} ended with {done.returncode}", hint=done.stderr.strip()[-500:])
    return done.stdout


def _expect(ask: Callable[[], labs.Answer], status: int) -> str:
    answer = labs.wait_until(lambda: _answer(ask, status), ANSWER_S)
    if answer is None:
        raise DemoFailed(f"no answer with status {status}")
    return f"{answer.status} {answer.body[:60].decode('utf-8', 'replace')}"


def _answer(ask: Callable[[], labs.Answer], status: int) -> labs.Answer | None:
    found = ask()
    return found if found.status == status else None


DEMOS: dict[str, Callable[[Path, Settings], Iterator[Step]]] = {"ghost-key-retry-loop": ghost_key}
