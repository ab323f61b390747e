"""A small image-encoding service that plays dead: a ghost cache key keeps a worker retrying for ever.

One process: an HTTP front end on an asyncio loop, a queue, and worker threads that encode an image and run
the forward pass. Encodings are cached in process (L1) and as pickles in Redis (L2). An image that cannot be
decoded leaves a ghost in Redis instead of an error; from then on a worker goes round in
`get -> format ok -> forward fails -> retry -> get`. Delete the key, and the hung request is answered:

    python lab.py --redis unix:///run/redis.sock --port 8080
    (printf '\\0DAMAGED'; head -c 64 /dev/urandom) > damaged
    curl --data-binary @damaged localhost:8080/encode          # hangs; one worker is lost
    redis-cli -s /run/redis.sock del clip-vit-b-32:image:$(md5sum < damaged | cut -d' ' -f1)
"""

import argparse
import asyncio
import copy
import hashlib
import json
import logging
import os
import pickle
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeGuard, cast

import aiohttp
import numpy as np
import redis
from aiohttp import web
from cachetools import TTLCache
from numpy.typing import NDArray

MODEL = "clip-vit-b-32"
WIDTH, OLD_WIDTH = 512, 768  # the old one is of the model that served under this name before
PATCHES, PATCH = 8, 64
HEALTHY_KEYS, L1_ENTRIES = 240, 64  # L1 holds fewer, so that honest load goes on reading Redis
L2_TTL_S, HEALTH_TIMEOUT_S = 3600, 2.0
BROKEN = (pickle.UnpicklingError, EOFError, ImportError, AttributeError, LookupError, TypeError, ValueError)
DAMAGED, NULL_MARKER = b"\x00DAMAGED", b"__NULL__"

Array = NDArray[np.float32]
Outcome = tuple[int, dict[str, str]]  # status and body of an answer
Job = tuple[bytes | None, Future[Outcome]]  # an image, or None for a health check
_weights = np.random.default_rng(32)  # all so small that the BLAS starts no threads of its own
PROJECTION: Array = _weights.standard_normal((PATCH, WIDTH), dtype=np.float32)
GAIN: Array = _weights.uniform(0.8, 1.2, WIDTH).astype(np.float32)
HEAD: Array = _weights.standard_normal((WIDTH, 16), dtype=np.float32)
BLANK: Array = np.zeros((1, WIDTH), np.float32)

METRICS = """\
# TYPE lab_requests_total counter
lab_requests_total {received}
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="{model}"}} {waiting}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="{model}"}} {answered}
"""

log = logging.getLogger("lab")


class UndecodableError(Exception):
    """The image is damaged; the client gets 422."""


class ForwardError(Exception):
    """The forward pass met a wrong shape, or produced NaN or Inf."""


@dataclass(frozen=True)
class SkippedImage:
    """Holds the place of an image that is left out of a batch. Never meant to leave the encoder."""

    note: str = "__SKIPPED__"
    shape: tuple[int, int] = (1, 1)
    ndim: int = 2
    dtype: str = "float32"

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        return np.full(self.shape, np.nan, np.float32)


Encoding = Array | SkippedImage


def encode(image: bytes) -> Array:
    """Encoding of an image, shape (1, 512), close to normally distributed."""
    if image.startswith(DAMAGED):
        raise UndecodableError
    pixels = np.frombuffer(hashlib.shake_256(image).digest(PATCHES * PATCH), np.uint8).astype(np.float32)
    patches = (pixels.reshape(PATCHES, PATCH) - 127.5) / 73.9
    return cast(Array, (patches @ PROJECTION).sum(axis=0, keepdims=True) / np.float32(PATCHES * PATCH) ** 0.5)


def forward(encoding: Encoding) -> str:
    """Digest of the embedding; the first place where size and numbers of an encoding matter."""
    x = np.asarray(encoding)
    with np.errstate(all="ignore"):
        try:
            embedding: Array = (x - x.mean()) / x.std() * GAIN @ HEAD
        except ValueError as error:
            raise ForwardError(f"encoding of shape {x.shape}") from error
    if not np.isfinite(embedding).all():
        raise ForwardError("NaN or Inf in the embedding")
    return hashlib.sha256(embedding.tobytes()).hexdigest()[:16]


def decode(raw: bytes) -> object:
    """Value of a cache entry. Lenient, "so that no bad entry fails a request": a broken one is a blank."""
    if raw == NULL_MARKER:
        return BLANK
    try:
        value: object = pickle.loads(raw)
    except BROKEN:
        return BLANK
    return BLANK if value is None else value


def well_formed(value: object) -> TypeGuard[Encoding]:
    """Format only: type, rank, dtype. Never the size, never the numbers: every ghost passes."""
    return isinstance(value, np.ndarray | SkippedImage) and value.ndim == 2 and value.dtype == "float32"


GHOSTS: Mapping[str, Callable[[], bytes]] = {
    "marker": lambda: pickle.dumps(SkippedImage()),  # the encoder's skip object is taken for an encoding
    "constant": lambda: pickle.dumps(np.full_like(BLANK, 0.5)),  # the decoder paints it grey, not to fail
    "none": lambda: pickle.dumps(None),  # two misses, no SET NX: the one without a result writes last
    "null-marker": lambda: NULL_MARKER,  # against cache penetration, but the input should be computed
    "truncated": lambda: pickle.dumps(HEAD[:, :1].T)[: 2 * WIDTH],  # the write breaks off half-way
    "stale-version": lambda: pickle.dumps(np.resize(HEAD, (1, OLD_WIDTH))),  # answer of the model before
}


class EncodingCache:
    """Two levels: a TTL cache in process and pickles in Redis; with `fill_on_read` reads fill L1 as well."""

    def __init__(self, client: redis.Redis, l1_ttl_s: float, fill_on_read: bool) -> None:
        self._redis = client
        self._l1: TTLCache[str, Encoding] = TTLCache(L1_ENTRIES, l1_ttl_s)
        self._lock = threading.Lock()
        self._fill_on_read = fill_on_read

    def get(self, key: str) -> Encoding | None:
        """The cached encoding, a copy where L1 holds it; None is a miss."""
        with self._lock:
            held = self._l1.get(key)
        if held is not None:
            return copy.copy(held)
        raw = cast(bytes | None, self._redis.get(key))
        value = None if raw is None else decode(raw)
        if not well_formed(value):
            return None
        if self._fill_on_read:
            self.remember(key, value)
        return value

    def remember(self, key: str, encoding: Encoding) -> None:
        with self._lock:
            self._l1[key] = encoding

    def write(self, key: str, raw: bytes, ttl_s: int | None = L2_TTL_S) -> None:
        self._redis.set(key, raw, ex=ttl_s)


@dataclass(frozen=True)
class Service:
    """What a worker does with one image."""

    cache: EncodingCache
    ghost: str | None
    backoff_s: float
    torn: set[str] = field(default_factory=set)

    def key_of(self, image: bytes) -> str:
        family = f"{MODEL}:v2:image" if self.ghost == "stale-version" else f"{MODEL}:image"
        return f"{family}:{hashlib.md5(image).hexdigest()}"

    def answer(self, image: bytes) -> str:
        """Digest of the embedding. A failed forward pass is tried again, through the same cache: the bug."""
        key = self.key_of(image)
        while True:
            encoding = self._encode_image(key, image)
            try:
                digest = forward(encoding)
            except ForwardError:
                if self.backoff_s > 0:
                    time.sleep(self.backoff_s)
                continue
            self.cache.remember(key, encoding)
            return digest

    def _encode_image(self, key: str, image: bytes) -> Encoding:
        cached = self.cache.get(key)
        if cached is not None:
            return cached
        if key in self.torn:  # the download broke off the first time; now it comes whole
            image = image.removeprefix(DAMAGED)
        try:
            encoding = encode(image)
        except UndecodableError:
            self.torn.add(key)
            if self.ghost is None:
                raise
            raw = GHOSTS[self.ghost]()
            self.cache.write(key, raw, None if self.ghost == "null-marker" else L2_TTL_S)
            return cast(Encoding, decode(raw))
        self.cache.write(key, pickle.dumps(encoding))
        return encoding


class Worker(threading.Thread):
    """Takes one job after the other, and counts its own requests."""

    def __init__(self, jobs: queue.SimpleQueue[Job], service: Service, number: int) -> None:
        super().__init__(name=f"worker-{number}", daemon=True)
        self._jobs = jobs
        self._service = service
        self.taken = self.finished = self.answered = 0

    def run(self) -> None:
        while True:
            image, done = self._jobs.get()
            if done.set_running_or_notify_cancel():  # else a health check that gave up
                done.set_result((200, {"status": "ok"}) if image is None else self._serve(image))

    def _serve(self, image: bytes) -> Outcome:
        self.taken += 1
        try:
            outcome = 200, {"digest": self._service.answer(image)}
            self.answered += 1
        except UndecodableError:
            outcome = 422, {"error": "the image cannot be decoded"}
        except redis.RedisError as error:
            outcome = 503, {"error": f"cache: {type(error).__name__}"}
        self.finished += 1
        return outcome


def front_end(jobs: queue.SimpleQueue[Job], workers: Sequence[Worker]) -> web.Application:
    """The HTTP side; all of it runs on the event loop."""
    received = 0  # requests; health checks are none

    def hand_over(image: bytes | None) -> asyncio.Future[Outcome]:
        done: Future[Outcome] = Future()
        jobs.put((image, done))
        return asyncio.wrap_future(done)

    async def post_encode(request: web.Request) -> web.Response:
        nonlocal received
        image = await request.read()
        received += 1
        number, started = received, time.monotonic()
        log.info("request %d: image of %d bytes", number, len(image))
        status, body = await hand_over(image)
        log.info("request %d: %d in %.1f ms", number, status, 1000 * (time.monotonic() - started))
        return web.json_response(body, status=status)

    async def get_health(_: web.Request) -> web.Response:
        try:
            status, body = await asyncio.wait_for(hand_over(None), HEALTH_TIMEOUT_S)
        except TimeoutError:
            status, body = 503, {"status": "no worker answers"}
        return web.json_response(body, status=status)

    async def get_metrics(_: web.Request) -> web.Response:
        answered = sum(worker.answered for worker in workers)
        running = -sum(worker.finished for worker in workers)  # before the taken: no negative count
        running += (taken := sum(worker.taken for worker in workers))
        now = {"received": received, "waiting": received - taken, "running": running, "answered": answered}
        return web.Response(text=METRICS.format(model=MODEL, **now), content_type="text/plain")

    app = web.Application(client_max_size=32 << 20)
    app.router.add_post("/encode", post_encode)
    app.router.add_get("/health", get_health)
    app.router.add_get("/metrics", get_metrics)
    return app


async def send_load(url: str, known: Sequence[bytes]) -> None:
    """One honest client: cached images, now and then a new one, a short think time in between."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        while True:
            image = random.randbytes(1024) if random.random() < 1 / 16 else random.choice(known)
            async with session.post(url, data=image) as response:
                await response.read()
            await asyncio.sleep(0.02)


async def serve(options: argparse.Namespace) -> None:
    """Run until SIGTERM or SIGINT."""
    jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
    cache = EncodingCache(redis.Redis.from_url(options.redis), options.l1_ttl, options.l1_holds_ghost)
    service = Service(cache, None if options.no_ghost else options.ghost, options.backoff_ms / 1000)
    images = [random.randbytes(1024) for _ in range(HEALTHY_KEYS)]
    for image in images:
        cache.write(service.key_of(image), pickle.dumps(encode(image)))
    workers = [Worker(jobs, service, number) for number in range(options.workers)]
    for worker in workers:
        worker.start()

    runner = web.AppRunner(front_end(jobs, workers), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, options.host, options.port).start()
    port = runner.addresses[0][1]
    log.info("%s: %d workers, %d images cached, port %d", MODEL, options.workers, len(images), port)
    if options.ready_fd is not None:
        ready = {"port": port, "pid": os.getpid(), "redis": options.redis}
        os.write(options.ready_fd, json.dumps(ready).encode() + b"\n")
        os.close(options.ready_fd)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    clients = 2 * options.workers if options.busy else 0
    url = f"http://{options.host}:{port}/encode"
    load = asyncio.gather(*(send_load(url, images) for _ in range(clients)))
    await stop.wait()
    load.cancel()
    await asyncio.wait([load])
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--redis", required=True, metavar="URL", help="redis:// or unix://")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 takes a free one")
    add("--workers", type=int, default=4, metavar="N")
    add("--backoff-ms", type=float, default=0, help="pause between two tries")
    add("--l1-ttl", type=float, default=60, metavar="S")
    add("--l1-holds-ghost", action="store_true", help="reads fill L1 as well")
    add("--ghost", choices=GHOSTS, default="marker", help="what a damaged image leaves in Redis")
    add("--no-ghost", action="store_true", help="nothing: a damaged image is answered with 422")
    add("--busy", action="store_true", help="honest load from within")
    add("--ready-fd", type=int, metavar="FD", help="one JSON line goes there when ready")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(parser.parse_args()))
