"""A small language model server whose prefix cache reuses the wrong block: answers turn empty, cut or foreign, and stay so.

A transformer with a paged KV cache, an LRU block allocator with real eviction and prefix caching by content hash, behind
an OpenAI-compatible endpoint. With `--lookup binary` the cache is searched as vLLM V0 and MindIE 2.2.RC1 did: under
pressure an early block is evicted while later ones stay, the search steps over the hole, and a block that nobody wrote is
taken for computed. `--lookup linear` walks, stops at the first miss, and is right under the same pressure:

    python lab.py --lookup binary --port 8080 --lookup-log lookups.log --dump-dir dumps
    curl localhost:8080/v1/completions -d '{"prompt": "The spare key hangs behind the map. \\nTell me about the spare key"}'
    llmdiag repro-prefix http://localhost:8080 prompts.jsonl
    curl localhost:8080/lab/dump -d '{"on": true, "name": "bad", "formats": ["npy", "atb"]}'   # the next request

Tensor dumps go to DIR/FORMAT/NAME; the engine's own module says where the hole comes from (kvlab/blocks.py).
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path

import torch
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent))
from kvlab.engine import Engine, Settings
from kvlab.model import DTYPES
from kvlab.server import MODEL, Dumper, LookupLog, Service

log = logging.getLogger("lab")


async def serve(options: argparse.Namespace) -> None:
    """Run until SIGTERM or SIGINT."""
    settings = Settings(options.lookup, options.dtype, options.seed, options.blocks, options.block_size, options.lookup_order, options.request_seconds)
    with contextlib.ExitStack() as stack:
        engine = Engine(settings)
        engine.model.batch = options.batch
        if options.lookup_log is not None:
            engine.on_lookup = LookupLog(stack.enter_context(options.lookup_log.open("a", encoding="utf-8")))
        runner = web.AppRunner(Service(engine, Dumper(options.dump_dir)).application(), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, options.host, options.port).start()
        ready = {"ready": True, "port": runner.addresses[0][1], "pid": os.getpid()}
        log.info("%s: %d blocks of %d tokens, %s lookup, port %d", MODEL, options.blocks, options.block_size, options.lookup, ready["port"])
        stop = asyncio.Event()
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, stop.set)
        line = json.dumps(ready).encode() + b"\n"
        if options.ready_fd is None:
            sys.stdout.buffer.write(line)
            sys.stdout.flush()
        else:
            os.write(options.ready_fd, line)
            os.close(options.ready_fd)
        await stop.wait()
        await runner.cleanup()


def main() -> None:
    """Read the options and serve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 takes a free one")
    add("--lookup", choices=("binary", "linear"), default="binary")
    add("--lookup-order", choices=("before", "after"), default="before", help="look up before or after the blocks of the prompt are allocated")
    add("--lookup-log", type=Path, metavar="FILE", help="both lookups of each request, as a patched MindIE logs them")
    add("--blocks", type=int, default=64, metavar="N", help="size of the pool")
    add("--block-size", type=int, default=16, metavar="TOKENS")
    add("--dtype", choices=DTYPES, default="float32")
    add("--seed", type=int, default=0, metavar="N", help="of the weights")
    add("--batch", type=int, default=1, metavar="N", help="sum as kernels for that batch size do: close results, not equal ones")
    add("--request-seconds", type=float, default=2.0, metavar="S", help="how far the engine's clock goes with each request")
    add("--dump-dir", type=Path, metavar="DIR", help="where POST /lab/dump writes")
    add("--ready-fd", type=int, metavar="FD", help="the ready line goes there instead of stdout")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    torch.set_num_threads(1)  # the products are too small to be shared out
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
