"""EngineCore: builds an engine stage by stage, then runs the batch. A process of its own, child of the API server.

Each stage really happens: memory is borrowed from the holder and mapped, weights are read from disk, hashed and copied
there, the "compiler" really computes and keeps what it found in a cache directory, blocks of the pool are marked. What a
disk or a card would slow down is paced. Its words are vLLM 0.33's. SIGUSR1 is an error of the device: it says so, and dies.
"""

import hashlib
import json
import math
import mmap
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from recoverylab.batch import KV_TOKENS, Batch, Request
from recoverylab.holder import HEAD
from recoverylab.place import BLOCK_BYTES, BLOCK_GIB, BLOCKS, MODEL, WANTED, Place, begin

IMPORTS_S, DEVICE_S, WEIGHTS_S, POOL_S, GRAPHS_S = 3.0, 1.5, 3.0, 1.0, 2.0
"""Lab seconds that these stages take at least."""
SHARDS, SHARD_BYTES = 4, 7 << 20
ROUNDS, ITERATIONS = 64, 140_000
"""What a compiler has to compute: 2 s of one core where this was written."""
NOTICED_S, MOURN_S = 0.05, 1.0
"""What the clock gives the API server to see that its core is gone, and the manager to see that a start failed."""
STEP_S = 0.01
BEAT_S = 1.0
SHOWN_S = 0.5
ERROR = (
    "CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n"
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
FREE = (
    "Free memory on device cuda:0 ({free:.2f}/{total:.2f} GiB) on startup is less than desired GPU memory utilization ({share}, {wanted:.2f} GiB). "
    "Decrease GPU memory utilization or reduce GPU memory used by other processes."
)


class AcceleratorError(RuntimeError):
    """What torch raises when the device fails."""


class Core:
    """One life of the core."""

    def __init__(self, place: Place, generation: int) -> None:
        self.place, self.clock, self.generation = place, place.clock, generation
        self.log = place.log("vllm.log")
        self.batch = Batch()
        self.words: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.broken = threading.Event()
        self.computing: tuple[float, float] | None = None
        self.spans: dict[str, float] = {}
        told = place.told("holder")
        self.holder = socket.create_connection(("127.0.0.1", told["port"]))
        self.heard = self.holder.makefile("rb")
        with Path(f"/proc/{told['pid']}/fd/{told['fd']}").open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), BLOCKS * BLOCK_BYTES)

    def say(self, text: str, where: str, level: str = "INFO") -> None:
        """A line of vLLM's, with its head before each part."""
        for part in text.split("\n"):
            self.log.line(f"(EngineCore pid={os.getpid()}) {level} {self.clock.at(self.clock.now_s):%m-%d %H:%M:%S} [{where}] {part}")

    def tell(self, **what: object) -> None:
        """To the API server."""
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    def ask(self, op: str, **more: object) -> dict[str, Any]:
        """The holder's answer."""
        self.holder.sendall(json.dumps({"op": op, "generation": self.generation, **more}).encode() + b"\n")
        found: dict[str, Any] = json.loads(self.heard.readline())
        return found

    def stage(self, name: str, begun_s: float) -> float:
        """The end of a stage: for the ledger, and how long it took."""
        end_s = self.clock.now_s
        self.place.remember("core", name, generation=self.generation, begin=round(begun_s, 3), end=round(end_s, 3))
        self.spans[name] = end_s - begun_s
        return end_s - begun_s

    # --- start ---

    def build(self) -> None:
        self.clock.pause_until(self.place.told(f"born-{self.generation}")["second"] + IMPORTS_S)
        begun_s = self.clock.now_s
        self.place.remember("core", "began", generation=self.generation, pid=os.getpid())
        self.say(f"Initializing a V1 LLM engine (v0.33.0) with config: model='/models/{MODEL}', speculative_config=None, tokenizer='/models/{MODEL}'", "core.py:111")
        free = self.ask("open", pid=os.getpid())["free"]
        for block in range(BLOCKS):
            HEAD.unpack_from(self.memory, block * BLOCK_BYTES)
        self.clock.pause_until(begun_s + DEVICE_S)
        self.say("rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, EP rank N/A, EPLB rank N/A", "parallel_state.py:2350")
        wanted = int(BLOCKS * WANTED)
        if free < wanted:
            sizes = {"free": free * BLOCK_GIB, "total": BLOCKS * BLOCK_GIB, "wanted": wanted * BLOCK_GIB}
            raise ValueError(FREE.format(**sizes, share=WANTED))
        self.stage("device", begun_s)
        self._weights(blocks := SHARDS * SHARD_BYTES // BLOCK_BYTES)
        begun_s = self.clock.now_s
        compiled_s = self._compile()
        self._pool(wanted - blocks)
        self._graphs()
        took_s = self.clock.now_s - begun_s
        self.say(f"init engine (profile, create kv cache, warmup model) took {took_s:.2f} s (compilation: {compiled_s:.2f} s)", "core.py:402")
        self.place.remember("core", "built", generation=self.generation)

    def _weights(self, wanted: int) -> None:
        begun_s = self.clock.now_s
        self.say(f"Starting to load model /models/{MODEL}...", "gpu_model_runner.py:4120")
        blocks, hash_ = self._borrowed(wanted), hashlib.sha256()
        for shard in range(SHARDS):
            data = (self.place.run / "weights" / f"shard-{shard}.bin").read_bytes()
            hash_.update(data)
            for number in range(SHARD_BYTES // BLOCK_BYTES):
                block = blocks[shard * SHARD_BYTES // BLOCK_BYTES + number] * BLOCK_BYTES
                piece = data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
                self.memory[block + HEAD.size : block + BLOCK_BYTES] = piece[HEAD.size :]
            self.clock.pause_until(begun_s + WEIGHTS_S * (shard + 1) / SHARDS)
        took_s = self.stage("weights", begun_s)
        self.say(f"Loading weights took {took_s:.2f} seconds", "default_loader.py:501")
        self.say(f"Model loading took {wanted * BLOCK_GIB:.2f} GiB memory and {took_s:.6f} seconds", "gpu_model_runner.py:4310")
        self.say(f"weights sha256 {hash_.hexdigest()[:16]}", "default_loader.py:512")

    def _borrowed(self, wanted: int) -> list[int]:
        answer = self.ask("borrow", blocks=wanted)
        if "error" in answer:
            raise ValueError(f"No available memory for the cache blocks: {answer['error']}")
        blocks: list[int] = answer["blocks"]
        return blocks

    def _compile(self) -> float:
        """Search for kernels, or read what a search before found."""
        begun_s, folder = self.clock.now_s, self.place.run / "compile-cache"
        if not self.place.setup.warm_cache:
            folder = folder / f"of-engine-{self.generation}"
        folder.mkdir(parents=True, exist_ok=True)
        self.say(f"Using cache directory: /var/cache/vllm/torch_compile_cache/{folder.name}/rank_0_0/backbone for vLLM's torch.compile", "backends.py:812")
        found = folder / "kernels.json"
        if found.exists():
            kernels = json.loads(found.read_text())
            if kernels != [_searched(number, 1_000) for number in range(len(kernels))]:
                raise ValueError(f"{found} is damaged")
            took_s = self.stage("compile", begun_s)
            self.say(f"Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took {took_s:.3f} s", "backends.py:350")
            return took_s
        self.say("Starting torch.compile", "monitor.py:34")
        self.computing = begun_s, time.process_time()
        kernels = []
        for number in range(ROUNDS):
            _searched(number, ITERATIONS)
            kernels.append(_searched(number, 1_000))
            if number == ROUNDS // 8:
                self.say(f"Dynamo bytecode transform time: {self.clock.now_s - begun_s:.2f} s", "backends.py:869")
                dynamo_s = self.clock.now_s
        self.computing = None
        found.write_text(json.dumps(kernels))
        self.say(f"Compiling a graph for compile range (1, 8192) takes {self.clock.now_s - dynamo_s:.2f} s", "backends.py:391")
        return self.stage("compile", begun_s)

    def _pool(self, wanted: int) -> None:
        begun_s = self.clock.now_s
        self.say(f"Available KV cache memory: {wanted * BLOCK_GIB:.2f} GiB", "gpu_worker.py:402")
        for block in self._borrowed(wanted):
            if HEAD.unpack_from(self.memory, block * BLOCK_BYTES)[1] != self.generation:
                raise ValueError(f"block {block} belongs to somebody else")
            self.memory[block * BLOCK_BYTES + HEAD.size : block * BLOCK_BYTES + 4096] = bytes(4096 - HEAD.size)
        self.clock.pause_until(begun_s + POOL_S)
        self.say(f"GPU KV cache size: {KV_TOKENS:,} tokens, Maximum concurrency for 4,096 tokens per request: {KV_TOKENS / 4096:.2f}x", "kv_cache_utils.py:2327")
        self.stage("kv_pool", begun_s)

    def _graphs(self) -> None:
        begun_s = self.clock.now_s
        for number in range(8):
            _searched(number, 2_000)
            self.clock.pause_until(begun_s + GRAPHS_S * (number + 1) / 8)
        took_s = self.stage("graphs", begun_s)
        self.say(f"Graph capturing finished in {took_s:.0f} secs, took 0.42 GiB", "gpu_model_runner.py:5120")

    # --- work ---

    def serve(self) -> None:
        """The engine's loop, until it breaks or its parent is gone."""
        threading.Thread(target=self._beat, daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()
        self.tell(ready=True)
        last_s = shown_s = self.clock.now_s
        while True:
            if self.broken.is_set():
                raise AcceleratorError(ERROR)
            time.sleep(STEP_S)
            while not self.words.empty():
                word = self.words.get()
                if word is None:
                    return
                if word["op"] == "add":
                    self.batch.waiting.append(Request(word["number"], word["prefix"], word["wanted"]))
                else:
                    self.batch.drop(word["number"])
            now_s = self.clock.now_s
            done = self.batch.step(now_s - last_s)
            last_s = now_s
            if done or now_s - shown_s >= SHOWN_S:
                self.tell(done=done, seen=self.batch.seen)
                shown_s = now_s

    def _listen(self) -> None:
        for line in sys.stdin:
            self.words.put(json.loads(line))
        self.words.put(None)

    def _beat(self) -> None:
        """A heartbeat at each whole lab second."""
        port = self.place.told("manager")["port"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
            second = float(int(self.clock.now_s)) + BEAT_S
            while True:
                self.clock.pause_until(second)
                out.sendto(json.dumps({"generation": self.generation, "second": second}).encode(), ("127.0.0.1", port))
                second += BEAT_S

    def follow(self) -> None:
        """In a thread: the lab's clock waits for this process, and what it computes lasts as long as its processor time."""
        while True:
            computing = self.computing
            most_s = math.inf if computing is None else computing[0] + self.clock.scale * (time.process_time() - computing[1])
            self.clock.follow(most_s)
            time.sleep(0.005)


def _searched(number: int, iterations: int) -> str:
    return hashlib.pbkdf2_hmac("sha256", str(number).encode(), b"kernel", iterations, 8).hex()


def main() -> None:
    place, (generation,) = begin()
    core = Core(place, int(generation))
    signal.signal(signal.SIGUSR1, lambda *_: core.broken.set())
    follower = threading.Thread(target=core.follow, daemon=True)
    follower.start()
    try:
        core.build()
        core.serve()
    except (ValueError, AcceleratorError) as error:
        place.clock.expect(NOTICED_S if isinstance(error, AcceleratorError) else MOURN_S)
        name = "torch.AcceleratorError: " if isinstance(error, AcceleratorError) else "ValueError: "
        begins = "EngineCore encountered a fatal error." if isinstance(error, AcceleratorError) else "EngineCore failed to start."
        frames = "".join(traceback.format_tb(error.__traceback__)).replace(str(Path(__file__).parent), "/opt/venv/lib/python3.11/site-packages/vllm/v1/engine").rstrip()
        core.say(f"{begins}\nTraceback (most recent call last):\n{frames}\n{name}{error}", "core.py:935", "ERROR")
        place.remember("core", "died", generation=core.generation, error=str(error).partition("\n")[0])
        sys.stdout.flush()
        os._exit(1)
    place.clock.leave()
    os._exit(0)


if __name__ == "__main__":
    main()
