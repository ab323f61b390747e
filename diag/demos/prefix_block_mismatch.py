"""Incident 2: the prefix cache of a model server reuses the wrong block, and certain answers turn wrong and stay so."""

import json
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diag import labs, rules
from diag.demos import tool
from diag.demos.steps import DemoFailed, Settings, Step

RULE = "prefix-block-mismatch"
NEEDS = ("torch", "aiohttp")
HINT = "pip install '.[demo,torch]', in the clone of llmdiag, brings what this demo needs"
COMPARISON = "demo-incident.json"
KEPT_DONORS = 8
"""Dumps of earlier requests that --keep keeps, those that the comparison names first; half a megabyte each, as the others."""
FORMAT = "pt"
KEEP = 400
"""Requests of the experiment whose tensors stay on disk, half a megabyte each."""
ROUNDS = 3
"""How often the experiment is made until a prompt of the incident fails in it."""
EXPERIMENT = ("--rate", "1000", "--control", "20", "--every", "5", "--fills", "10", "--limit", "300", "--minutes", "2", "--format", "json")
SHOWN_CHARS = 70

Json = dict[str, Any]


@dataclass(frozen=True)
class Trouble:
    """A prompt that failed in an experiment, and the numbers that its good and its first bad requests have at the server."""

    seed: int
    prompt: int
    good: tuple[int, ...]
    """The last one, and one more that hit as many blocks, if there is one."""
    bad: int
    experiment: Json
    """The document of that experiment."""


def run(folder: Path, settings: Settings) -> Iterator[Step]:
    """The steps, as they happen."""
    prompts_file = _lab() / "prompts.jsonl"
    prompts = [json.loads(line) for line in prompts_file.read_text(encoding="utf-8").splitlines()]
    dumps, lookups = folder / "dumps", folder / "lookups.log"
    options = ("--dtype", "bfloat16", "--dump-dir", str(dumps), "--lookup-log", str(lookups))
    with labs.start_lab(_lab() / "lab.py", "--lookup", "binary" if settings.fault else "linear", *options, log=folder / "lab.log") as lab:
        yield Step("Started a model server with a prefix cache", f"pid {lab.pid}, {lab.url}, {_capacity(lab)} blocks")
        good = [_ask(lab, prompt) for prompt in prompts]
        yield Step("The prompts of the incident are answered well", "\n".join(_said(answer) for answer in good))
        if not settings.fault:
            yield from _stays_clear(lab, prompts_file)
            return
        for name, kind in (("run", "blocks"), ("request", "cache")):
            _post(lab, "/lab/dump", {"name": name, "kv": kind, "count": None, "keep": KEEP, "formats": [FORMAT]})
        trouble = yield from _break(lab, prompts_file)
        _post(lab, "/lab/dump", {"on": False})
        yield _by_hand(lab, prompts[trouble.prompt], good[trouble.prompt])
    keep = settings.keep or folder
    _keep(lookups, keep / "demo-incident-lookups.log")
    (keep / "demo-incident-experiment.json").write_text(json.dumps(trouble.experiment), encoding="utf-8")
    runs = [dumps / FORMAT / f"run-{number}" for number in (trouble.bad, *trouble.good)]
    donors = [path for path in sorted(dumps.glob(f"{FORMAT}/request-*")) if int(path.name.rpartition("-")[2]) < trouble.bad]
    yield from _explain(runs, donors, lookups, keep / COMPARISON)
    if settings.keep is not None:
        yield _keep_dumps(runs, donors, keep)
    yield from _heal(folder, keep, prompts_file, prompts, good, trouble.seed, healing="linear" if settings.heal else "binary")


def _lab() -> Path:
    return rules.samples() / RULE


def _stays_clear(lab: labs.Lab, prompts_file: Path) -> Iterator[Step]:
    found = _experiment(lab, prompts_file, 0)
    yield Step("llmdiag repro-prefix", _told(found))
    if found["verdict"] != "no-failure":
        raise DemoFailed(f"nothing was planted, yet the experiment says {found['verdict']}")
    yield Step("CLEAR, as it should be: the lookup of this server walks")


def _break(lab: labs.Lab, prompts_file: Path) -> Generator[Step, None, Trouble]:
    """Put the cache under pressure until a prompt of the incident is answered wrongly."""
    for seed in range(ROUNDS):
        before = _request_number(_ask(lab, {"prompt": f"round {seed}"}))
        found = _experiment(lab, prompts_file, seed)
        yield Step("llmdiag repro-prefix: the cache under pressure", _told(found))
        if found["verdict"] == "reproduced" and (trouble := _first_failure(found, before, seed)) is not None:
            return trouble
    raise DemoFailed(f"no prompt of the incident failed in {ROUNDS} experiments")


def _first_failure(found: Json, before: int, seed: int) -> Trouble | None:
    """The first wrong answer to a prompt as it stands, and the right ones before that hit as many blocks, if there are any."""
    asked = [(before + number, trial) for number, trial in enumerate(found["trials"], 1) if trial["kind"] == "reask"]
    nothing: tuple[int, Json] = (0, {})
    bad, wrong = next(((number, trial) for number, trial in asked if trial["reproduced"]), nothing)
    right = [(number, trial) for number, trial in asked if number < bad and trial["prompt"] == wrong["prompt"] and trial["answer_class"] == "same"]
    alike = [number for number, trial in right if trial["cached_tokens"] == wrong["cached_tokens"]]
    good = alike[-2:][::-1] or [number for number, _ in right[-1:]]
    return Trouble(seed, wrong["prompt"], tuple(good), bad, found) if good else None


def _by_hand(lab: labs.Lab, prompt: Json, good: Json) -> Step:
    """The prompt as a user asks it now, and past the cache."""
    now, past = _ask(lab, prompt), _ask(lab, {**prompt, "cache_salt": "a salt that nobody used"})
    if _text(past) != _text(good):
        raise DemoFailed(f"past the cache the prompt is answered with {_said(past)}")
    return Step("The prompt that failed, asked by hand", f"{_said(now)}\nwith a cache_salt of its own: {_said(past)}")


def _explain(runs: Sequence[Path], donors: Sequence[Path], lookups: Path, comparison: Path) -> Iterator[Step]:
    """What compare-dumps says of the bad run beside the good ones, with the requests before it as donors. Raises DemoFailed when it cannot tell."""
    bad, good, *control = runs
    named = [word for option, paths in (("--control", control), ("--donors", donors)) for path in paths for word in (option, str(path))]
    args = ["compare-dumps", str(good), str(bad), *named, "--lookups", str(lookups), "-o", str(comparison), "--format", "json"]
    found = tool.answer_of(args, (0, 1))
    first = found["first_divergence"]
    if found["verdict"] != "differ" or first is None:
        raise DemoFailed(f"compare-dumps says {found['verdict']}, though the answers differ")
    yield Step(f"llmdiag compare-dumps {good.name} {bad.name}, {len(donors)} donors", f"first divergence: {first['name']}, layer {first['layer']}, block {first['block']}")
    yield Step("Whose block it is", _whose(found, first))
    yield Step("What the lookups say", "\n".join(_lookups(found)))
    diagnosis = found["diagnosis"]
    finding = next(iter(diagnosis["findings"]), None)
    if finding is None or (finding["rule"], finding["verdict"]) != (RULE, "confirmed"):
        said = diagnosis["verdict"] if finding is None else f"{finding['rule']} ({finding['verdict']})"
        raise DemoFailed(f"the diagnosis is {said}, not a confirmed {RULE}", hint=f"the comparison is {comparison}")
    says = [says for line in finding["evidence"] if line["role"] in ("required", "proof") for says in line["says"]]
    yield Step(f"Diagnosis: {finding['rule']}, {finding['verdict']}", "\n".join(says))


def _whose(found: Json, first: Json) -> str:
    """The donor of the first wrong block, and the later blocks that are as they should be."""
    same_tensor = [pair for pair in found["pairs"] if (pair["name"], pair["rank"], pair["block"] is None) == (first["name"], first["rank"], False)]
    wrong = next(pair for pair in same_tensor if pair["block"] == first["block"])
    alias = wrong["alias_of"]
    if alias is None:
        raise DemoFailed(f"block {first['block']} is {wrong['verdict']}, but nobody's content was recognised in it")
    same = [str(pair["block"]) for pair in same_tensor if pair["block"] > first["block"] and pair["verdict"] in ("same", "close")]
    return f"block {first['block']} ({wrong['verdict']}) is block {alias['block']} of {alias['dump']}\nidentical later blocks: {', '.join(same) or 'none'}"


def _lookups(found: Json) -> Iterator[str]:
    """Lookups in which the two methods disagree, as the comparison tells them."""
    hits: dict[str, dict[str, int]] = {}
    for row in found["lookups"]:
        if row.get("hit") and row.get("method") in ("binary", "linear"):
            methods = hits.setdefault(str(row.get("request") or row.get("lookup")), {})
            methods[row["method"]] = methods.get(row["method"], 0) + 1
    for lookup, count in hits.items():
        if count.get("binary", 0) != count.get("linear", 0):
            yield f"{lookup}: binary search {count.get('binary', 0)} blocks, walk {count.get('linear', 0)}"


def _keep(path: Path, target: Path) -> None:
    """Copy a file or a folder, unless that is where it is."""
    if path.is_dir():
        shutil.copytree(path, target)
    elif path != target:
        shutil.copyfile(path, target)


def _keep_dumps(runs: Sequence[Path], donors: Sequence[Path], keep: Path) -> Step:
    """The dumps that were compared, and some donors: enough to compare them again."""
    comparison = json.loads((keep / COMPARISON).read_text(encoding="utf-8"))
    named = {pair["alias_of"]["dump"] for pair in comparison["pairs"] if pair["alias_of"] is not None}
    some = sorted(donors, key=lambda path: (path.name not in named, -donors.index(path)))[:KEPT_DONORS]
    place = keep / "demo-incident-dumps"
    for name, path in zip(("bad", "good", *(f"control-{number}" for number in range(len(runs)))), runs, strict=False):
        _keep(path, place / name)
    for path in some:
        _keep(path, place / "donors" / path.name)
    return Step("Kept", f"{keep}: log of the lookups, experiments, the comparison, the dumps compared and {len(some)} of {len(donors)} donors")


def _heal(folder: Path, keep: Path, prompts_file: Path, prompts: Sequence[Json], good: Sequence[Json], seed: int, healing: str) -> Iterator[Step]:
    """The same pressure on a server whose lookup walks. Raises DemoFailed when it fails still."""
    lookups = keep / "demo-incident-healed-lookups.log"
    with labs.start_lab(_lab() / "lab.py", "--lookup", healing, "--dtype", "bfloat16", "--lookup-log", str(lookups), log=folder / "healed.log") as lab:
        yield Step(f"Restarted with the {healing} lookup", f"pid {lab.pid}, {lab.url}")
        found = _experiment(lab, prompts_file, seed)
        (keep / "demo-incident-healed-experiment.json").write_text(json.dumps(found), encoding="utf-8")
        yield Step("llmdiag repro-prefix: the same pressure", _told(found))
        if found["verdict"] != "no-failure":
            raise DemoFailed(f"after the healing the experiment says {found['verdict']}")
        now = [_ask(lab, prompt) for prompt in prompts]
        if [_text(answer) for answer in now] != [_text(answer) for answer in good]:
            raise DemoFailed("after the healing the answers are not those of the beginning")
        yield Step("Healed: the answers are those of the beginning", "\n".join(_said(answer) for answer in now))


def _experiment(lab: labs.Lab, prompts_file: Path, seed: int) -> Json:
    return tool.answer_of(["repro-prefix", lab.url, str(prompts_file), "--seed", str(seed), *EXPERIMENT], (0, 1, 3))


def _told(found: Json) -> str:
    """The experiment in a few lines."""
    arms = [
        f"{arm['arm']}: {arm['requests']} requests, {arm['failures']} failures"
        + (f", the first ({arm['first_class']}) at request {arm['first_failure']}" if arm["first_failure"] is not None else "")
        + (f", {arm['stickiness']:.0%} of what was asked after it" if arm["stickiness"] is not None else "")
        for arm in found["arms"]
    ]
    return "\n".join([f"verdict: {found['verdict']}, in {found['seconds']:.0f} s", *arms])


def _ask(lab: labs.Lab, body: Mapping[str, object]) -> Json:
    return _post(lab, "/v1/completions", {**body, "temperature": 0})


def _post(lab: labs.Lab, path: str, body: Mapping[str, object]) -> Json:
    answer = lab.post(json.dumps(body).encode(), path, tool.ANSWER_S)
    if answer.status != 200:
        raise DemoFailed(f"{path} answers with {answer.status}: {answer.body[:200].decode('utf-8', 'replace')}")
    found: Json = json.loads(answer.body)
    return found


def _capacity(lab: labs.Lab) -> str:
    """Of the pool, from /metrics."""
    text = lab.get("/metrics").body.decode()
    return text.partition('num_gpu_blocks="')[2].partition('"')[0] or "?"


def _request_number(answer: Json) -> int:
    return int(answer["lab"]["request"])


def _text(answer: Json) -> str:
    return str(answer["choices"][0]["text"])


def _said(answer: Json) -> str:
    text = _text(answer)
    return f"“{text[:SHOWN_CHARS]}{'…' if len(text) > SHOWN_CHARS else ''}”" if text else "“” (empty)"
