"""Records KV events and lookups of vLLM's own cache manager, without a model: requests come, hit, allocate, end, and evict.

    python samples/vllm-kv-events/record.py DIR        # with a Python that has vLLM 0.32

`walk` is what vLLM does. For `bisect` one early block is evicted by hand now and then, and what is logged as the engine's
answer is what the search of vLLM V0 (bisect_left over "is it not cached") says about the same map.
"""

import json
import os
import random
import sys
from bisect import bisect_left
from pathlib import Path

os.environ.pop("PYTHONHASHSEED", None)

import msgspec
import torch
from vllm.distributed.kv_events import KVEventBatch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK, POOL, REQUESTS = 4, 24, 25
START_S = 1796007298.0


def manager() -> KVCacheManager:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
    config = KVCacheConfig(num_blocks=POOL, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return KVCacheManager(
        config, max_model_len=256, scheduler_block_size=BLOCK, hash_block_size=BLOCK, enable_caching=True, enable_kv_cache_events=True
    )


def record(folder: Path, seed: int, *, bisect: bool) -> None:
    kv_cache_utils.init_none_hash(sha256)
    cache = manager()
    pool = cache.block_pool
    hasher = kv_cache_utils.get_request_block_hasher(BLOCK, sha256)
    chance = random.Random(seed)
    prompts = [[chance.randrange(50_000) for _ in range(6 * BLOCK)] for _ in range(3)]
    now, frames, lines, running = START_S, [], [], []

    def publish() -> None:
        if events := cache.take_events():
            batch = msgspec.msgpack.encode(KVEventBatch(ts=now, events=events, data_parallel_rank=0))
            frames.append(msgspec.msgpack.encode([b"kv-events", len(frames).to_bytes(8, "big"), batch]))

    for number in range(REQUESTS):
        now += 1.0
        prompt = chance.choice(prompts)
        tokens = prompt[: chance.choice([2, 4, 5, 6]) * BLOCK] + [chance.randrange(50_000) for _ in range(chance.randrange(3, 9))]
        salt = "s1" if chance.random() < 0.1 else None
        request = Request(f"r{number}", tokens, SamplingParams(max_tokens=4), None, block_hasher=hasher, cache_salt=salt)
        if bisect and number % 6 == 5:
            first = pool.get_cached_block(request.block_hashes[0], [0])
            if first:
                pool.evict_blocks({first[0].block_id})
            publish()
            now += 0.1
        blocks, hit, _ = cache.get_computed_blocks(request)
        answer = hit // BLOCK
        if bisect:  # at least the last token is always computed anew
            most = request.block_hashes[: (len(tokens) - 1) // BLOCK]
            answer = bisect_left(most, True, key=lambda block_hash: not pool.get_cached_block(block_hash, [0]))
        lines += [
            {"request": f"r{number}", "method": "engine", "position": n, "block_hash": block_hash.hex(), "hit": n < answer, "ts": now}
            for n, block_hash in enumerate(request.block_hashes)
        ]
        now += 0.2
        allocated = cache.allocate_slots(request, len(tokens) - hit, hit, blocks)
        publish()
        if allocated is not None:
            request.num_computed_tokens = len(tokens)
            running.append(request)
        while len(running) > (2 if allocated is not None else 0):
            cache.free(running.pop(chance.randrange(len(running))))
        now += 0.2
        publish()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kv-events.frames").write_bytes(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
    (folder / "lookups.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    record(Path(sys.argv[1]) / "walk", 5, bisect=False)
    record(Path(sys.argv[1]) / "bisect", 5, bisect=True)
