"""The HTTP side: an OpenAI-compatible endpoint over one engine, /metrics under vLLM's names, and switches under /lab."""

import asyncio
import json
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO, get_args

from aiohttp import web

from kvlab import dumping
from kvlab.blocks import Lookup, PoolFull
from kvlab.engine import Capture, Engine, LookupMethod, Result
from kvlab.words import flatten

MODEL = "kvlab-3l"
MAX_TOKENS = 32
BODY_BYTES = 4 << 20
BINARY, LINEAR = "二分", "遍历"  # binary search, walk: what the build prints

METRICS = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started:.2f}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{labels} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{labels} {waiting}
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{labels} {usage:.6f}
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{labels} {queries}
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{labels} {hits}
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{labels} 0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{labels} {prompt}
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{labels} {generated}
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{bucket} {iterations}
vllm:iteration_tokens_total_sum{labels} {tokens}
vllm:iteration_tokens_total_count{labels} {iterations}
# TYPE vllm:request_success_total counter
vllm:request_success_total{stopped_labels} {stopped}
vllm:request_success_total{cut_labels} {cut}
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{config} 1
"""

log = logging.getLogger("lab")


class BadRequest(Exception):
    """What the client sent cannot be served; the text says why."""


class LookupLog:
    """Both lookups of each request, in the lines of a patched MindIE build."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, number: int, lookup: Lookup, method: LookupMethod) -> None:
        lines = []
        for probe in lookup.probes[: lookup.binary]:
            lines.append(f"{BINARY}IsBlockCached: {probe.cached:d}")
            if probe.block is not None:
                lines.append(f"===> PrefixCacheBlockAllocator blockHash={probe.block_hash} blockIDs ={probe.block} is computed:{probe.computed:d}")
        lines += [f"{LINEAR}IsBlockCached: {probe.cached:d}" for probe in lookup.probes[: lookup.linear + 1]]
        found = [str(probe.block) for probe in lookup.probes[: lookup.binary] if probe.block is not None]
        walked = [str(probe.block) for probe in lookup.probes[: lookup.linear]]
        lines += [f"{BINARY}:[{', '.join(found)}]", f"{LINEAR}:[{', '.join(walked)}]"]
        head = f"[{datetime.now():%Y-%m-%d %H:%M:%S.%f}] [{os.getpid()}] [{threading.get_native_id()}] [llm] [INFO]"
        self._file.write(f"{head} [scheduler.cpp:341] : schedule prefill, requestId=cmpl-{number}\n")
        self._file.writelines(f"{head} [prefix_cache_block_allocator.cpp:418] : {line}\n" for line in lines)
        self._file.flush()


@dataclass
class Job:
    """One wish to dump requests."""

    name: str
    formats: tuple[str, ...]
    kind: dumping.Kind
    left: int | None
    """Requests still to be dumped; None: all that come."""
    numbered: bool
    keep: int
    """Of numbered dumps that many stay, the latest ones; 0: all."""
    kept: deque[list[Path]] = field(default_factory=deque)


@dataclass
class Dumper:
    """Dumps the next requests, as /lab/dump asked for."""

    folder: Path | None
    jobs: dict[str, Job] = field(default_factory=dict)
    written: list[Path] = field(default_factory=list)
    """Of the request that is under way."""

    def __call__(self, capture: Capture) -> None:
        for job in list(self.jobs.values()):
            if (capture.at == "end") == (job.kind == "cache"):
                self._dump(job, capture)

    def _dump(self, job: Job, capture: Capture) -> None:
        assert self.folder is not None
        name = f"{job.name}-{capture.number}" if job.numbered else job.name
        paths = dumping.write(self.folder, job.formats, name, dumping.entries(capture, job.kind))
        self.written += paths
        job.kept.append(paths)
        while job.keep and len(job.kept) > job.keep:
            for path in job.kept.popleft():
                shutil.rmtree(path)
        if job.left is not None:
            job.left -= 1
            if not job.left:
                del self.jobs[job.name]

    def set(self, body: dict[str, Any]) -> None:
        """Add a wish, or with "on": false end all, or the named one. Raises BadRequest."""
        if self.folder is None:
            raise BadRequest("start the lab with --dump-dir DIR")
        if not body.get("on", True):
            self.jobs = {name: job for name, job in self.jobs.items() if name != body.get("name", name)}
            return
        name, formats, count = body.get("name", "dump"), body.get("formats", ["npy"]), body.get("count", 1)
        kind, keep = body.get("kv", "pool"), body.get("keep", 0)
        if not isinstance(name, str) or not name or "/" in name or name.startswith("."):
            raise BadRequest(f"{name!r} is no name of a folder")
        if not isinstance(formats, list) or not formats or any(item not in dumping.FORMATS for item in formats):
            raise BadRequest(f"formats is a list of some of {', '.join(dumping.FORMATS)}")
        if kind not in get_args(dumping.Kind) or not (count is None or (isinstance(count, int) and count > 0)) or not isinstance(keep, int):
            raise BadRequest("kv is pool, blocks or cache; count a number from 1, or null for all requests; keep a number")
        if kind == "cache" and "atb" in formats:
            raise BadRequest("an ATB dump has what was computed, too: kv is pool or blocks")
        self.jobs[name] = Job(name, tuple(formats), kind, count, count != 1, keep)


class Service:
    """One engine behind HTTP. Requests are answered one after the other."""

    def __init__(self, engine: Engine, dumper: Dumper) -> None:
        self.engine, self.dumper, self.started = engine, dumper, time.time()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._received = self._begun = self._ended = 0

    def application(self) -> web.Application:
        """All routes."""
        app = web.Application(client_max_size=BODY_BYTES)
        app.router.add_get("/v1/models", self.get_models)
        app.router.add_get("/health", self.get_health)
        app.router.add_get("/metrics", self.get_metrics)
        app.router.add_post("/v1/completions", self.post_completions)
        app.router.add_post("/v1/chat/completions", self.post_chat)
        app.router.add_post("/lab/dump", self.post_dump)
        app.router.add_post("/lab/engine", self.post_engine)
        return app

    async def get_models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "created": int(self.started), "owned_by": "llmdiag"}]})

    async def get_health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def get_metrics(self, _: web.Request) -> web.Response:
        counters, allocator = self.engine.counters, self.engine.allocator
        common = f'engine="0",model_name="{MODEL}"'
        text = METRICS.format(
            started=self.started, running=self._begun - self._ended, waiting=self._received - self._begun, usage=self.engine.usage,
            queries=counters.queries, hits=counters.hits, prompt=counters.prompt, generated=counters.generated, iterations=counters.iterations,
            tokens=counters.prompt + counters.generated, stopped=counters.stopped, cut=counters.cut, labels=f"{{{common}}}",
            bucket=f'{{{common},le="+Inf"}}', stopped_labels=f'{{{common},finished_reason="stop"}}', cut_labels=f'{{{common},finished_reason="length"}}',
            config=f'{{block_size="{allocator.block_size}",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_gpu_blocks="{allocator.total}"}}',
        )  # fmt: skip
        return web.Response(text=text, content_type="text/plain")

    async def post_completions(self, request: web.Request) -> web.Response:
        return await self._answered(request, chat=False)

    async def post_chat(self, request: web.Request) -> web.Response:
        return await self._answered(request, chat=True)

    async def _answered(self, request: web.Request, *, chat: bool) -> web.Response:
        try:
            body = await _object(request)
            prompt = _chat_prompt(body) if chat else _prompt(body)
            count = body.get("max_completion_tokens", body.get("max_tokens")) or MAX_TOKENS
            salt = body.get("cache_salt") or ""
            if not isinstance(count, int) or count < 1 or not isinstance(salt, str) or body.get("stream"):
                raise BadRequest("max_tokens is a number from 1, cache_salt a text, and nothing is streamed")
            result, dumps = await self._run(prompt, count, salt)
        except (BadRequest, PoolFull, dumping.MissingPackage) as error:
            return _refused(str(error))
        return web.json_response(_completion(result, dumps, bool(body.get("logprobs")), chat=chat))

    async def _run(self, prompt: str | list[int], count: int, salt: str) -> tuple[Result, list[Path]]:
        self._received += 1
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._generate, prompt, count, salt)

    def _generate(self, prompt: str | list[int], count: int, salt: str) -> tuple[Result, list[Path]]:
        self._begun += 1
        dumper, engine = self.dumper, self.engine
        dumper.written, engine.capture = [], dumper if dumper.jobs else None
        try:
            return engine.generate(prompt, count, salt), dumper.written
        finally:
            self._ended += 1

    async def post_dump(self, request: web.Request) -> web.Response:
        try:
            await self._between_requests(self.dumper.set, await _object(request))
        except BadRequest as error:
            return _refused(str(error))
        return web.json_response({"dumping": {name: job.left for name, job in self.dumper.jobs.items()}})

    async def post_engine(self, request: web.Request) -> web.Response:
        """{"batch": 8} sums as for that batch size; {"lookup": "linear"} looks up the other way from now on."""
        try:
            await self._between_requests(self._configure, await _object(request))
        except BadRequest as error:
            return _refused(str(error))
        return web.json_response({"batch": self.engine.model.batch, "lookup": self.engine.method})

    def _configure(self, body: dict[str, Any]) -> None:
        batch, lookup = body.get("batch", self.engine.model.batch), body.get("lookup", self.engine.method)
        if not isinstance(batch, int) or batch < 1 or lookup not in ("binary", "linear"):
            raise BadRequest("batch is a number from 1, lookup binary or linear")
        self.engine.model.batch, self.engine.method = batch, lookup

    async def _between_requests(self, change: Callable[[dict[str, Any]], None], body: dict[str, Any]) -> None:
        """Change something when no request is under way."""
        await asyncio.get_running_loop().run_in_executor(self._thread, change, body)


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        found = json.loads(await request.text() or "{}")
    except ValueError as error:
        raise BadRequest(f"no JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadRequest("the body must be a JSON object")
    return found


def _prompt(body: dict[str, Any]) -> str | list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and all(type(item) is int for item in prompt)):
        return prompt
    raise BadRequest("prompt must be a text or a list of token ids")


def _chat_prompt(body: dict[str, Any]) -> str:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(item, dict) for item in messages):
        raise BadRequest("messages must be a list of objects")
    return flatten(messages)


def _refused(why: str) -> web.Response:
    return web.json_response({"error": {"message": why, "type": "BadRequestError", "code": 400}}, status=400)


def _completion(result: Result, dumps: list[Path], logprobs: bool, *, chat: bool) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": 0, "finish_reason": result.finish_reason, "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": result.text}} if chat else {"text": result.text}
    if logprobs and chat:
        choice["logprobs"] = {"content": [
            {"token": step.text, "logprob": step.logprob, "top_logprobs": [{"token": text, "logprob": value} for text, value in step.top.items()]}
            for step in result.steps
        ]}  # fmt: skip
    elif logprobs:
        choice["logprobs"] = {
            "tokens": [step.text for step in result.steps], "token_logprobs": [step.logprob for step in result.steps],
            "top_logprobs": [step.top for step in result.steps],
        }  # fmt: skip
    return {
        "id": f"cmpl-{result.number}", "object": "chat.completion" if chat else "text_completion", "created": int(time.time()), "model": MODEL,
        "choices": [choice], "lab": {"request": result.number, "blocks": result.table, "written_by": result.written_by, "dumps": [str(path) for path in dumps]},
        "usage": {
            "prompt_tokens": result.prompt_tokens, "completion_tokens": result.completion_tokens,
            "total_tokens": result.prompt_tokens + result.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
        },
    }  # fmt: skip
