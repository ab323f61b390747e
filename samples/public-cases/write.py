"""Writes the public cases whose evidence no editor can write: caches of a server, comparisons of dumps, experiments on a prefix cache.

    python samples/public-cases/write.py [CASE…]      # all, or some of those at the end of this file

The other cases are files that were written by hand: edit them.
"""

import datetime
import hashlib
import importlib.util
import json
import pickle
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import redis

from diag import labs

HERE = Path(__file__).parent
DAY_S = 86_400
BEGUN = datetime.datetime(2026, 11, 30, 4, 0, tzinfo=datetime.UTC).timestamp()


def _prefix_cache() -> Any:
    """Dumps, comparisons and experiments are made by the functions of samples/prefix-cache/write.py."""
    spec = importlib.util.spec_from_file_location("prefix_cache_write", HERE.parent / "prefix-cache" / "write.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made = _prefix_cache()


def digest(text: object, chars: int = 64) -> str:
    return hashlib.sha256(str(text).encode()).hexdigest()[:chars]


# --- caches ---


def saved(target: Path, fill: Callable[[Any], None]) -> None:
    """dump.rdb of a server that was filled so."""
    with tempfile.TemporaryDirectory() as folder, labs.start_server(Path(folder)) as server:
        client = redis.Redis.from_url(server.tcp_url)
        fill(client)
        client.save()
        client.close()
        shutil.copyfile(Path(folder) / "dump.rdb", target / "dump.rdb")


def lmcache_payloads_evicted(client: Any) -> None:
    """LMCache 0.2: what a chunk is, and its bytes, in two keys that are evicted one by one."""
    for number in range(48):
        tokens, name = 32, f"mistralai/Mistral-7B-Instruct-v0.3@1@0@{digest(number, 16)}@half"
        data = np.random.default_rng(number).normal(size=2 * 2 * tokens * 8).astype("<f2").tobytes()
        client.set(f"{name}metadata", struct.pack("=7i", len(data), 1, 2, 2, 2, tokens, 8))
        if number not in (5, 17, 31):
            client.set(f"{name}kv_bytes", data)


def completions_without_choices(client: Any) -> None:
    """LiteLLM: completions under the digest of their request, two of them with an empty list of choices."""
    for number in range(60):
        choice = {"finish_reason": "stop", "index": 0, "message": {"content": f"It is {digest(number, 9)}.", "role": "assistant"}}
        answer = {
            "id": f"chatcmpl-{digest(number, 12)}", "created": 1795000000 + number, "model": "gpt-4o-mini", "object": "chat.completion",
            "choices": [] if number in (20, 41) else [choice], "usage": {"completion_tokens": 9, "prompt_tokens": 31, "total_tokens": 40},
        }  # fmt: skip
        client.set(digest(f"request {number}"), json.dumps({"timestamp": 1795000000.5 + number, "response": json.dumps(answer)}), ex=DAY_S)


def entity_cut_short(client: Any) -> None:
    """A catalogue's entities as JSON; one was written by halves, and every read of it falls through to the database."""
    for number in range(60):
        entity = {"id": digest(number, 32), "name": f"orders_{number}", "columns": [{"name": f"c{n}", "dataType": "BIGINT"} for n in range(12)], "version": 0.3}
        text = json.dumps(entity)
        client.set(f"om:prod:entity:table:{digest(number, 32)}", text[:311] if number == 23 else text, ex=2 * DAY_S)


def two_serializers(client: Any) -> None:
    """Sessions of two programs under one prefix: pickles of the one, JSON of the other. Which of them is at fault the values do not say."""
    for number in range(30):
        session = {"user": number, "seen": [number, number + 1], "lang": "de"}
        client.set(f":1:session:{digest(number, 32)}", pickle.dumps(session), ex=DAY_S)
        client.set(f":1:session:{digest(f'other {number}', 32)}", json.dumps(session), ex=DAY_S)


# --- experiments on a prefix cache ---


def trial(
    arm: str, ordinal: int, answer: str, cached: int | None, *, kind: str = "reask", prompt: int = 0, bypass: bool = False, reproduced: bool | None = None, tokens: int = 512
) -> dict[str, object]:
    """One question. `reproduced`: wrong again when asked again, and right with the cache bypassed; None = it was not suspicious."""
    return {
        "arm": arm, "ordinal": ordinal, "kind": kind, "prompt": prompt, "variant": None, "answer_class": answer, "suspicious": answer != "same", "reproduced": reproduced,
        "hit": None if cached is None else cached > 0, "cached_tokens": cached, "prompt_tokens": tokens, "bypass": bypass, "seconds": 0.6, "ts": BEGUN + 2 * ordinal, "note": "",
    }  # fmt: skip


def baseline(*prompts: int) -> list[dict[str, object]]:
    """Each prompt twice with the cache bypassed: right."""
    return [trial("baseline", 2 * place + n, "same", 0, kind="baseline", prompt=prompt, bypass=True) for place, prompt in enumerate(prompts) for n in (1, 2)]


def experiment(target: Path, model: str, trials: Iterable[Mapping[str, object]], *, verdict: str, arms: tuple[str, ...] = ("pressure",), **more: object) -> None:
    """repro.json as `llmdiag repro-prefix` writes it, as far as rules read it."""
    reproduced = verdict == "reproduced"
    made.save_experiment(target, {
        **made.EXPERIMENT, "model": model, "verdict": verdict, "started_at": BEGUN, "seconds": 900.0, "ended": "reproduced" if reproduced else "full",
        "exercised": verdict != "not-exercised", "healed_by_bypass": True if reproduced else None, "arms": [{"arm": arm, "stickiness": 1.0 if reproduced else None} for arm in arms],
        "trials": list(trials), **more,
    })  # fmt: skip


def second_ask_wrong(target: Path, work: Path) -> None:
    """One request after the other, temperature 0: the first is computed and right, the second takes its prefix from the cache and is wrong."""
    asks = [trial("control", 1, "same", 0), trial("control", 2, "different", 480, reproduced=True), trial("control", 3, "different", 480, kind="confirm")]
    asks += [trial("control", 4, "same", 0, kind="confirm", bypass=True), trial("control", 5, "different", 480, reproduced=True)]
    experiment(target, "llama-3.1-8b-wormhole", [*baseline(0), *asks], verdict="reproduced", arms=("control",))


def only_in_a_burst(target: Path, work: Path) -> None:
    """Wrong only among 32 that arrive at once; each of them alone is right."""
    burst = [trial("pressure", 10 + n, "garbled" if n % 3 else "same", 448, prompt=n % 4, reproduced=False if n % 3 else None) for n in range(12)]
    alone = [trial("pressure", 40 + n, "same", 448, kind="confirm", prompt=n % 4) for n in range(4)]
    experiment(target, "qwen3-30b-a3b", [*baseline(0, 1, 2, 3), *burst, *alone], verdict="no-failure")


def both_arms_the_same(target: Path, work: Path) -> None:
    """Now and then wrong with four at once, with hits and without; not when asked again."""
    asks = [trial("pressure", 10 + n, "different" if n in (4, 9) else "same", 416 if n % 2 else 0, reproduced=False if n in (4, 9) else None) for n in range(12)]
    experiment(target, "qwen3-next-80b", [*baseline(0), *asks], verdict="no-failure")


def another_wording(target: Path, work: Path) -> None:
    """Numbers differ in the last digits, and once two words that were as good as each other changed places."""
    made.fine(target, work)
    asks = [trial("pressure", 100 + n, "different" if n == 6 else "same", 384, reproduced=False if n == 6 else None) for n in range(12)]
    experiment(target, "gemma-3-27b", [*baseline(0), *asks, trial("pressure", 120, "same", 384, kind="confirm")], verdict="no-failure")


def hits_of_the_host_tier(target: Path, work: Path) -> None:
    """Right while blocks are on the card, loops once they come back from host memory."""
    asks = [trial("control", n, "same", 448) for n in (1, 2, 3)]
    asks += [trial("pressure", 310, "garbled", 448, reproduced=True), trial("pressure", 311, "garbled", 448, kind="confirm"), trial("pressure", 312, "same", 0, kind="confirm", bypass=True)]
    asks += [trial("pressure", 340, "garbled", 448, reproduced=True)]
    experiment(target, "deepseek-v3.2", [*baseline(0), *asks], verdict="reproduced")


def one_token_over(target: Path, work: Path) -> None:
    """Prompts of 449 tokens (1 modulo 64) are wrong with the cache and without, those of 450 and 448 never."""
    wrong = [trial("baseline", n, "garbled", 0, kind="baseline", bypass=True, tokens=449) for n in (1, 2)]
    right = [trial("baseline", 2 + n, "same", 0, kind="baseline", prompt=1 + n // 3, bypass=True, tokens=450 - 2 * (n // 3)) for n in (1, 2, 3, 4)]
    asks = [trial("control", 1 + n, "same" if n % 3 else "garbled", 448, prompt=n % 3, reproduced=None if n % 3 else False, tokens=(449, 450, 448)[n % 3]) for n in range(6)]
    experiment(target, "qwen2.5-14b", [*wrong, *right, *asks], verdict="no-failure", arms=("control",))


def two_blocks_one_place(target: Path, work: Path) -> None:
    """Two blocks of the card were moved to one block of host memory: one request reads the other's."""
    made.compared(target, work, made.cache(made.PROMPT), made.cache(made.PROMPT, {1: made.OTHER}), {"request-c": made.cache(made.OTHER)})


def hits_not_told(target: Path, work: Path) -> None:
    """200 times the same question, answers that differ, token ids beyond the vocabulary; the server does not tell what came from its cache."""
    asks = [trial("pressure", 10 + n, "garbled" if n in (3, 7, 8) else "same", None, reproduced=True if n in (3, 7, 8) else None) for n in range(10)]
    first = [{**item, "hit": None, "cached_tokens": None} for item in baseline(0)]
    experiment(target, "llama-3.1-70b-fp8", [*first, *asks], verdict="reproduced", bypass={"by": "nonce", "proven": False, "says": "what came from the cache is not told"})


def other_layout(target: Path, work: Path) -> None:
    """The same prompt by two versions of the engine: keys and values with heads before tokens in one of them."""
    made.two_layouts(target, work)
    made.versions(target, "vllm-0.25.1.dist-info", "vllm-0.26.0.dist-info", "lmcache-0.5.2.dist-info")


def path_not_taken(target: Path, work: Path) -> None:
    """The patch and its absence are wrong alike, and not one of the requests took a block from outside."""
    asks = [trial("pressure", 1 + n, "same" if n == 11 else "cut-short", 0, prompt=n % 4, reproduced=None if n == 11 else False) for n in range(38)]
    first = [trial("baseline", 1 + n, "cut-short", 0, kind="baseline", prompt=n % 4, bypass=True) for n in range(8)]
    experiment(target, "glm-4.7", [*first, *asks], verdict="not-exercised")


def one_key_for_two(target: Path, work: Path) -> None:
    """Two prompts whose first blocks have one key: the second request is given the block of the first."""
    made.compared(target, work, made.cache(made.PROMPT), made.cache(made.PROMPT, {0: made.OTHER}), {"request-a": made.cache(made.OTHER)})
    rows = [
        {"request": request, "method": "engine", "position": n, "block_hash": "7f3a90c1" if n == 0 else f"{n}{mark}02be", "block_id": 61 + n, "cached": True, "computed": True,
         "hit": n == 0 or request == "request-a", "ts": BEGUN + second}
        for second, (request, mark) in enumerate((("request-a", "c"), ("request-b", "d")))
        for n in range(3)
    ]  # fmt: skip
    (target / "lookups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def keys_of_another_process(target: Path, work: Path) -> None:
    """Python 3.11 gives None another hash in every process: nothing that one stored is found by the other, and all is computed, rightly."""
    rows = [
        {"request": f"cmpl-{process}{n}", "method": "engine", "position": 0, "block_hash": digest((process, "prompt"), 16), "cached": False, "computed": None, "hit": False, "ts": BEGUN + 5 * n + process}
        for n in range(6) for process in (0, 1)
    ]  # fmt: skip
    (target / "lookups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made.versions(target, "vllm-0.18.1.dist-info", "lmcache-0.4.2.dist-info")
    experiment(target, "qwen3-8b", [*baseline(0, 1), *(trial("pressure", 1 + n, "same", 0, prompt=n % 2) for n in range(20))], verdict="not-exercised")


def one_token_for_ever(target: Path, work: Path) -> None:
    """The same token to the end, from the first hit on; this server has no way to bypass its cache."""
    asks = [trial("control", 1, "same", 0), *(trial("control", 2 + n, "garbled", 384, reproduced=False) for n in range(6))]
    experiment(target, "qwen3-coder-30b-4bit", asks, verdict="no-failure", arms=("control",), bypass={"by": None, "proven": False, "says": "none"})


def second_image(target: Path, work: Path) -> None:
    """Two questions of the same text over two images: the second is answered with what is in the first."""
    asks = [trial("control", 1, "same", 0), trial("control", 2, "different", 496, prompt=1, reproduced=True), trial("control", 3, "different", 496, kind="confirm", prompt=1)]
    asks += [trial("control", 4, "same", 0, kind="confirm", prompt=1, bypass=True), trial("control", 5, "same", 496)]
    experiment(target, "qwen3-omni-30b", [*baseline(0, 1), *asks], verdict="reproduced", arms=("control",))


CASES: Mapping[str, Callable[[Path, Path], None]] = {
    "R01": lambda target, work: saved(target, lmcache_payloads_evicted), "R07": lambda target, work: saved(target, completions_without_choices),
    "R09": lambda target, work: saved(target, entity_cut_short), "R11": lambda target, work: saved(target, two_serializers),
    "G01": second_ask_wrong, "G03": only_in_a_burst, "G05": both_arms_the_same, "G06": another_wording, "G07": hits_of_the_host_tier, "G09": one_token_over,
    "G11": two_blocks_one_place, "G13": hits_not_told, "G17": other_layout, "G19": path_not_taken, "G23": one_key_for_two, "G24": keys_of_another_process,
    "G25": one_token_for_ever, "M15": second_image,
}  # fmt: skip


def main() -> None:
    for name in sys.argv[1:] or CASES:
        target = HERE / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        with tempfile.TemporaryDirectory() as work:
            CASES[name](target, Path(work))
        print(name, sum(path.stat().st_size for path in target.iterdir()))


if __name__ == "__main__":
    main()
