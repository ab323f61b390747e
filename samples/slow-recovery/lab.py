"""An engine dies, and coming back goes well or badly: a recovery drill with all its parts, two minutes of it in twenty seconds.

Separate processes: a holder of the device's memory, an engine (API server and core), a router, a manager, and clients with
a patience. `--setup bad`: a slow probe, memory that is given back late, a start that does not wait for it, a cold compile
cache, a switch after a drain, all who wait at once. `--setup good`: a heartbeat, waiting for memory, a warm cache, a switch on ready, 30 %
first. Three drills: `kill` (-9 of the core), `device-error`, `kill-under-load`. The lab's clock runs `--scale` times as fast:

    python lab.py --logs logs --setup bad --drill kill-under-load
    llmdiag recovery logs --events-map events-map.toml --tz UTC

The ledger (`--ledger`) holds when each stage really began and ended, and what each client got. It is for tests, and no evidence.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from recoverylab.clock import Clock
from recoverylab.engine_core import NOTICED_S, SHARD_BYTES, SHARDS
from recoverylab.place import BAD, GOOD, Place, Setup

LEAST_SCALE, MOST_SCALE = 1.0, 6.0
"""Beyond, two missed heartbeats would be less than 0.3 real seconds."""
CLIENTS = {"kill": 6, "device-error": 6, "kill-under-load": 18}
BEFORE_S, PHASE_S = 17.0, 0.2
"""From ready to the drill, and how far into a second: right after a heartbeat, and soon after a probe."""
AFTER_S = {"kill": 14.0, "device-error": 14.0, "kill-under-load": 24.0}
"""From the switch to the end."""
MOST_S = 300.0


async def run(options: argparse.Namespace) -> None:
    """One drill, or until SIGTERM or SIGINT."""
    logs: Path = options.logs
    logs.mkdir(parents=True, exist_ok=True)
    ledger = options.ledger or logs.with_name(f"{logs.name}-ledger.jsonl")
    files = ledger.with_suffix(".run")
    shutil.rmtree(files, ignore_errors=True)
    ledger.unlink(missing_ok=True)
    (files / "weights").mkdir(parents=True)
    # its calendar ends before the real one does: no log is from the future; its seconds begin when the calendar's do
    place = Place(Clock.begin(options.scale, math.floor(time.time() - MOST_S), files / "clock"), logs.resolve(), files.resolve(), ledger.resolve(), _setup(options))
    for shard in range(SHARDS):
        (files / "weights" / f"shard-{shard}.bin").write_bytes(random.Random(f"{options.seed}-{shard}").randbytes(SHARD_BYTES))
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    ticking = asyncio.create_task(place.clock.tick())
    started: list[asyncio.subprocess.Process] = []
    try:
        drill = asyncio.create_task(_drill(place, options, started))
        await asyncio.wait({drill, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if drill.done():
            drill.result()
        drill.cancel()
    finally:
        ticking.cancel()
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        shutil.rmtree(files, ignore_errors=True)


def _setup(options: argparse.Namespace) -> Setup:
    words = (("heartbeat", options.notice, "heartbeat"), ("warm_cache", options.cache, "warm"), ("drain", options.switch, "drain"), ("share", options.readmit, "share"))
    return replace(BAD if options.setup == "bad" else GOOD, **{name: chosen == yes for name, chosen, yes in words if chosen is not None})


async def _drill(place: Place, options: argparse.Namespace, started: list[asyncio.subprocess.Process]) -> None:
    """Everything in its order: start, load, fault, recovery, aftermath."""
    clock = place.clock
    clients = options.clients or CLIENTS.get(options.drill, CLIENTS["kill"])
    for told, *command in (("holder", "holder.py"), ("router", "router.py"), ("manager", "manager.py"), ("router", "load.py", str(clients), str(options.seed))):
        started.append(await asyncio.create_subprocess_exec(*place.command(*command), stdin=asyncio.subprocess.DEVNULL))
        await _until(place, started, told, "port", 1)
    await _until(place, started, "ready", "generation", 1)
    engine = place.told("engine-1")
    _tell(options.ready_fd, {"port": place.told("router")["port"], "pid": os.getpid(), "engine": engine["core"], "logs": str(place.logs)})
    await clock.sleep_until(math.ceil(place.told("ready")["second"]) + BEFORE_S + PHASE_S)
    if options.drill == "none":
        return
    place.remember("lab", "fault", drill=options.drill)
    if options.drill != "device-error":
        clock.expect(NOTICED_S)  # who is killed cannot say that it leaves
    os.kill(engine["core"], signal.SIGUSR1 if options.drill == "device-error" else signal.SIGKILL)
    await _until(place, started, "switched", "server", 2)
    await clock.sleep(options.after if options.after is not None else AFTER_S[options.drill])
    place.remember("lab", "over", queue_peak=place.told("queue").get("peak", 0))


async def _until(place: Place, started: list[asyncio.subprocess.Process], told: str, key: str, least: int) -> None:
    """Until somebody says so. SystemExit: a part of the lab ended, or it takes too long."""
    while place.told(told).get(key, 0) < least:
        if any(process.returncode is not None for process in started) or place.clock.now_s > MOST_S:
            raise SystemExit(f"a part of the lab ended, or it took too long: no {told!r}")
        await asyncio.sleep(0.02)


def _tell(fd: int | None, ready: dict[str, object]) -> None:
    line = json.dumps({"ready": True, **ready}).encode() + b"\n"
    if fd is None:
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
        return
    os.write(fd, line)
    os.close(fd)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--logs", type=Path, required=True, metavar="DIR", help="evidence goes there; events-map.toml beside this file reads it")
    add("--ledger", type=Path, metavar="FILE", help="what really happened, JSON lines (beside the logs otherwise)")
    add("--setup", choices=("bad", "good"), default="bad", help="how everything is set up")
    add("--drill", choices=(*CLIENTS, "none"), default="kill-under-load", help="what happens to the engine; none: nothing")
    add("--notice", choices=("probe", "heartbeat"), help="other than the set-up: how its death is noticed")
    add("--cache", choices=("cold", "warm"), help="other than the set-up: the compile cache")
    add("--switch", choices=("ready", "drain"), help="other than the set-up: when the router switches")
    add("--readmit", choices=("all", "share"), help="other than the set-up: who is let in first")
    add("--clients", type=int, metavar="N", help="how many ask at the same time")
    add("--after", type=float, metavar="S", help="lab seconds from the switch to the end")
    add("--scale", type=float, default=MOST_SCALE, metavar="N", help=f"lab seconds in a real one, {LEAST_SCALE:.0f} to {MOST_SCALE:.0f}")
    add("--seed", type=int, default=5, metavar="N", help="of what the clients ask")
    add("--ready-fd", type=int, metavar="FD", help="the ready line goes there instead of stdout")
    options = parser.parse_args()
    if not LEAST_SCALE <= options.scale <= MOST_SCALE:
        parser.error(f"--scale: {LEAST_SCALE:.0f} to {MOST_SCALE:.0f}")
    if options.logs.exists() and any(options.logs.iterdir()):
        parser.error(f"{options.logs} is not empty: two drills in one log would be nobody's afternoon")
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
