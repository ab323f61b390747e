"""A small photo-embedding service that loses one worker for good with every unreadable photo.

Needs a Redis-compatible server, `redis` and `numpy`:

    valkey-server --port 7401 --save "" --appendonly no
    python second_lab.py --redis redis://127.0.0.1:7401/0 --port 7402 --workers 4
    curl --data-binary 'any bytes' http://127.0.0.1:7402/embed        # answered
    curl --data-binary 'BROKEN bytes' http://127.0.0.1:7402/embed     # never answered, one worker gone

Also: GET /health (503 once no worker is left), GET /metrics. Stop it with SIGTERM or Ctrl-C.

Defect on show: for a photo it cannot read the encoder hands out a stand-in instead of raising. The stand-in
is cached, passes a check of form only, and makes the forward pass NaN; the retry reads the same entry again,
for ever. `--fault` picks the stand-in: `placeholder` (one blank row with a note), `none` (a null marker),
`truncated` (damage shows with the entry half sent; that half then reads as a layout of an earlier release).
"""

import argparse
import hashlib
import json
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
import uuid
import zlib
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from types import FrameType
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import redis

Floats = npt.NDArray[np.float32]

FAMILY = "heron-vit-s:photo"
FORMAT = "heron-2"
ROWS, WIDTH, PATCH_BYTES, VECTOR = 50, 256, 48, 64
STOCK_PHOTOS = 240
ENTRY_TTL_S = 6 * 3600
RESIDENT_VECTORS = 128
PROBE_TIMEOUT_S = 1.0
MAX_BODY_BYTES = 8 << 20
UNREADABLE = b"BROKEN"

_weights = np.random.default_rng(2024)
PATCH_TO_ROW = _weights.standard_normal((PATCH_BYTES, WIDTH)).astype(np.float32)
PLACE = _weights.standard_normal((ROWS, WIDTH)).astype(np.float32)
GAIN = _weights.uniform(0.5, 1.5, WIDTH).astype(np.float32)
HEAD = _weights.standard_normal((WIDTH, VECTOR)).astype(np.float32)

log = logging.getLogger("heron")


class ForwardFailed(Exception):
    """The forward pass gave a vector with NaN or infinity in it."""


class PhotoDamaged(Exception):
    """The end of a photo does not decode."""


@dataclass(frozen=True)
class Photo:
    """One upload; two uploads with the same cache key are the same photo."""

    key: str
    body: bytes = field(compare=False, repr=False)


@dataclass(frozen=True)
class Found:
    """A cache hit; a separate type because None is a value the cache may hold."""

    value: Any


@dataclass
class StoredPhoto:
    """Redis value, pickled: `data` is itself a pickle, `checksum` its CRC32, `created_at` Unix seconds."""

    version: str
    data: bytes
    checksum: int
    created_at: float


class SkippedPhoto(np.ndarray[Any, np.dtype[np.float32]]):
    """Stand-in of the encoder for a photo it could not read: one blank row and a note."""

    note: str = ""

    def __reduce__(self) -> Any:
        reduced: Any = super().__reduce__()
        rebuild, args, state = reduced
        return rebuild, args, (*state, self.note)

    def __setstate__(self, state: Any) -> None:
        *own, self.note = state
        super().__setstate__(tuple(own))


def project(body: bytes) -> Floats:
    """Turn image bytes into (ROWS, WIDTH) float32, every row of mean 0 and deviation 1. Deterministic."""
    pixels = np.resize(np.frombuffer(body, dtype=np.uint8), (ROWS, PATCH_BYTES)).astype(np.float32)
    rows = (pixels / 127.5 - 1.0) @ PATCH_TO_ROW / np.sqrt(np.float32(PATCH_BYTES)) + PLACE
    centred = rows - rows.mean(axis=1, keepdims=True)
    return np.asarray(centred / rows.std(axis=1, keepdims=True), dtype=np.float32)


def encode(photo: Photo, fault: str) -> Floats | None:
    """Encode a photo; one that cannot be read gives the stand-in of `fault`, where an error would be due."""
    if not photo.body.startswith(UNREADABLE) or fault == "truncated":
        return project(photo.body)
    if fault == "none":
        return None
    skipped = np.zeros((1, WIDTH), dtype=np.float32).view(SkippedPhoto)
    skipped.note = "photo-skipped: undecodable"
    return skipped


def forward(rows: Floats | None) -> Floats:
    """Pool encoder rows to one unit vector of VECTOR floats; raises ForwardFailed when it is not finite."""
    with np.errstate(all="ignore"):
        table = np.atleast_2d(np.asarray(rows, dtype=np.float32))
        unit = table / np.linalg.norm(table, axis=1, keepdims=True)
        pooled = (unit * GAIN).mean(axis=0) @ HEAD
        vector = pooled / np.linalg.norm(pooled)
    if not np.isfinite(vector).all():
        raise ForwardFailed("embedding is not finite")
    return np.asarray(vector, dtype=np.float32)


def wrap(rows: Floats | None) -> bytes:
    """Serialise an encoding for Redis."""
    data = pickle.dumps(rows, protocol=pickle.HIGHEST_PROTOCOL)
    item = StoredPhoto(FORMAT, data, zlib.crc32(data), time.time())
    return pickle.dumps(item, protocol=pickle.HIGHEST_PROTOCOL)


def unwrap(raw: bytes) -> Found | None:
    """Read an entry of Redis back; None when its version or checksum is wrong."""
    try:
        item = pickle.loads(raw)
    except (pickle.UnpicklingError, EOFError):
        return Found(first_release_rows(raw))
    if not isinstance(item, StoredPhoto) or item.version != FORMAT or zlib.crc32(item.data) != item.checksum:
        return None
    return Found(pickle.loads(item.data))


def first_release_rows(raw: bytes) -> Floats:
    """Read the layout of the first release: bare half-precision rows, no wrapper, maybe padded at the end."""
    row_bytes = 2 * WIDTH
    whole = raw[: len(raw) // row_bytes * row_bytes]
    with np.errstate(all="ignore"):
        return np.frombuffer(whole, dtype="<f2").reshape(-1, WIDTH).astype(np.float32)


def well_formed(value: object) -> bool:
    """Check type, rank and dtype, not the number of rows; a null marker counts as well-formed."""
    return value is None or (isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype == np.float32)


class SharedCache:
    """The L2 level: encodings in Redis, shared by every replica."""

    def __init__(self, client: redis.Redis, fault: str) -> None:
        self.client = client
        self.in_halves = fault == "truncated"

    def fetch(self, key: str) -> Found | None:
        """Return the encoding under a key, or None when it is absent or not well-formed."""
        raw: Any = self.client.get(key)
        found = None if raw is None else unwrap(raw)
        return found if found is not None and well_formed(found.value) else None

    def keep(self, photo: Photo, rows: Floats | None) -> None:
        """Store an encoding; in halves, the photo's end is checked between them (PhotoDamaged)."""
        blob = wrap(rows)
        if not self.in_halves:
            self.client.set(photo.key, blob, ex=ENTRY_TTL_S)
            return
        middle = len(blob) // 2
        self.client.set(photo.key, blob[:middle], ex=ENTRY_TTL_S)
        if photo.body.startswith(UNREADABLE):
            raise PhotoDamaged("end of photo does not decode")
        self.client.append(photo.key, blob[middle:])

    def stock(self, photos: list[Photo]) -> None:
        """Store the encodings of a list of readable photos in one go."""
        pipe = self.client.pipeline(transaction=False)
        for photo in photos:
            pipe.set(photo.key, wrap(project(photo.body)), ex=ENTRY_TTL_S)
        pipe.execute()


@dataclass
class Tally:
    """Counts behind /metrics."""

    received: int = 0
    answered: int = 0
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, received: int = 0, answered: int = 0, running: int = 0) -> None:
        """Add to the counts in one step."""
        with self.lock:
            self.received += received
            self.answered += answered
            self.running += running

    def page(self, waiting: int) -> str:
        """Render Prometheus text."""
        rows = (
            ("heron_requests_total", "counter", "Embedding requests received.", self.received),
            ("heron_responses_total", "counter", "Embedding requests answered.", self.answered),
            ("heron_requests_running", "gauge", "Embedding requests a worker has taken.", self.running),
            ("heron_jobs_waiting", "gauge", "Jobs no worker has taken yet.", waiting),
        )
        return "".join(f"# HELP {n} {text}\n# TYPE {n} {kind}\n{n} {now}\n" for n, kind, text, now in rows)


@dataclass(frozen=True)
class Job:
    """Work for a worker; no photo means a health probe."""

    photo: Photo | None
    reply: "Future[Floats | None]"


class Embedder:
    """Worker threads behind one queue; the HTTP threads put jobs on it and wait for the reply."""

    def __init__(self, cache: SharedCache, fault: str, pause_s: float) -> None:
        self.cache = cache
        self.fault = fault
        self.pause_s = pause_s
        self.jobs: queue.Queue[Job] = queue.Queue()
        self.tally = Tally()
        self.numbers = count(1)
        # L1. lru_cache keeps return values, never exceptions: it fills only after a forward pass that worked.
        self.resident_vector = lru_cache(maxsize=RESIDENT_VECTORS)(self.compute_vector)

    def start(self, workers: int) -> None:
        """Start the worker threads; they end with the process."""
        for number in range(workers):
            threading.Thread(target=self.work, name=f"embed-{number}", daemon=True).start()

    def submit(self, photo: Photo | None) -> "Future[Floats | None]":
        """Queue a photo, or a probe."""
        job = Job(photo, Future())
        self.jobs.put(job)
        return job.reply

    def work(self) -> NoReturn:
        """Body of a worker thread."""
        while True:
            job = self.jobs.get()
            if not job.reply.set_running_or_notify_cancel():
                continue
            if job.photo is None:
                job.reply.set_result(None)
                continue
            self.tally.add(running=1)
            try:
                vector = self.answer(job.photo)
            except Exception as error:  # handed to the HTTP thread, which reports it
                self.tally.add(running=-1)
                job.reply.set_exception(error)
            else:
                self.tally.add(running=-1, answered=1)
                job.reply.set_result(vector)

    def answer(self, photo: Photo) -> Floats:
        """Embed one photo, with the log lines around it."""
        number, began = next(self.numbers), time.perf_counter()
        log.info("request %d: photo of %d bytes, started", number, len(photo.body))
        vector = self.embed_with_retry(photo)
        log.info("request %d: done in %.1f ms", number, (time.perf_counter() - began) * 1e3)
        return vector

    def embed_with_retry(self, photo: Photo) -> Floats:
        """Retry until the embedding works: any failure counts as a passing one, the cache is asked again."""
        while True:
            try:
                return self.resident_vector(photo)
            except (ForwardFailed, PhotoDamaged):
                if self.pause_s > 0:
                    time.sleep(self.pause_s)

    def compute_vector(self, photo: Photo) -> Floats:
        """Work of an L1 miss: encoding, then forward pass."""
        return forward(self.encoded(photo))

    def encoded(self, photo: Photo) -> Floats | None:
        """Return the encoding from L2, or compute it and store it there."""
        found = self.cache.fetch(photo.key)
        if found is not None:
            rows: Floats | None = found.value
            return rows
        rows = encode(photo, self.fault)
        self.cache.keep(photo, rows)
        return rows


class FrontDoor(ThreadingHTTPServer):
    """The HTTP server; one thread per connection."""

    request_queue_size = 64

    def __init__(self, port: int, embedder: Embedder, run_id: str) -> None:
        super().__init__(("127.0.0.1", port), Visit)
        self.embedder = embedder
        self.run_id = run_id


class Visit(BaseHTTPRequestHandler):
    """One HTTP exchange."""

    server: FrontDoor
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """POST /embed: body is an image, reply its vector; waits as long as the worker takes."""
        length = self.headers.get("Content-Length", "")
        if self.path != "/embed" or not length.isdecimal() or not 0 < int(length) <= MAX_BODY_BYTES:
            self.close_connection = True  # the body stays unread
            status = HTTPStatus.BAD_REQUEST if self.path == "/embed" else HTTPStatus.NOT_FOUND
            self.reply(status, {"error": "POST an image to /embed"})
            return
        body = self.rfile.read(int(length))
        embedder = self.server.embedder
        embedder.tally.add(received=1)
        try:
            vector = embedder.submit(Photo(photo_key(self.server.run_id, body), body)).result()
        except Exception as error:
            log.exception("request failed")
            self.reply(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": type(error).__name__})
            return
        self.reply(HTTPStatus.OK, {"vector": [] if vector is None else vector.tolist()})

    def do_GET(self) -> None:
        """GET /health and GET /metrics."""
        embedder = self.server.embedder
        if self.path == "/metrics":
            self.send(HTTPStatus.OK, "text/plain; version=0.0.4", embedder.tally.page(embedder.jobs.qsize()))
        elif self.path == "/health":
            probe = embedder.submit(None)
            try:
                probe.result(timeout=PROBE_TIMEOUT_S)
            except TimeoutError:
                probe.cancel()
                self.reply(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "no worker answered"})
            else:
                self.reply(HTTPStatus.OK, {"status": "ok"})
        else:
            self.reply(HTTPStatus.NOT_FOUND, {"error": "no such page"})

    def reply(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        """Send JSON."""
        self.send(status, "application/json", json.dumps(content) + "\n")

    def send(self, status: HTTPStatus, kind: str, text: str) -> None:
        """Send a whole response; a client that has left is no error of the service."""
        payload = text.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep an access log, without the probes that come every few seconds."""
        if self.path not in ("/health", "/metrics"):
            status = code.value if isinstance(code, HTTPStatus) else code
            log.info('%s "%s" %s', self.client_address[0], self.requestline, status)

    def log_message(self, format: str, *args: Any) -> None:
        """Send the messages of the base class to the log."""
        log.warning("%s %s", self.client_address[0], format % args)


def photo_key(run_id: str, body: bytes) -> str:
    """Name the cache entry of an image; the run's random id makes the same image a new key in every run."""
    return f"{FAMILY}:{hashlib.md5(run_id.encode() + body, usedforsecurity=False).hexdigest()}"


def stock_photos(run_id: str) -> list[Photo]:
    """List the photos the cache starts with; posting b'stock-0' ... hits them in L2."""
    bodies = [f"stock-{number}".encode() for number in range(STOCK_PHOTOS)]
    return [Photo(photo_key(run_id, body), body) for body in bodies]


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="photo-embedding service with a poisoned-cache defect")
    parser.add_argument("--redis", required=True, metavar="URL", help="e.g. redis://127.0.0.1:7401/0")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free port")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="back-off between retries (default 0)")
    parser.add_argument("--fault", choices=("placeholder", "none", "truncated"), default="placeholder")
    parser.add_argument("--ready-fd", type=int, help="inherited descriptor, gets a JSON line: port, pid")
    given = parser.parse_args()
    if given.workers < 1 or given.pause_ms < 0:
        parser.error("--workers must be at least 1 and --pause-ms at least 0")
    return given


def stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    """Leave on SIGTERM or SIGINT; the threads are daemons and do not hold the process."""
    raise SystemExit(0)


def main() -> None:
    """Fill the cache, start the workers, serve."""
    given = arguments()
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    layout = "%(asctime)s %(levelname)s %(threadName)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=layout)
    run_id = uuid.uuid4().hex
    cache = SharedCache(redis.Redis.from_url(given.redis, socket_timeout=5.0), given.fault)
    try:
        cache.stock(stock_photos(run_id))
    except redis.RedisError as error:
        raise SystemExit(f"cannot fill the cache at {given.redis}: {error}; is the server up?") from error
    log.info("cache filled with %d photos", STOCK_PHOTOS)
    embedder = Embedder(cache, given.fault, given.pause_ms / 1e3)
    embedder.start(given.workers)
    with FrontDoor(given.port, embedder, run_id) as server:
        log.info("listening on 127.0.0.1:%d with %d workers", server.server_port, given.workers)
        if given.ready_fd is not None:
            with os.fdopen(given.ready_fd, "w") as ready:
                ready.write(json.dumps({"port": server.server_port, "pid": os.getpid()}) + "\n")
        server.serve_forever()


if __name__ == "__main__":
    main()
