"""A healthy engine and the four watchdogs that keep restarting it: three hours of the incident in two minutes.

A toy engine with two slots (a process that really dies and starts), a supervisor, a batch job that keeps long requests in
flight, and the incident's watchdogs: a chat probe every 5 minutes, a counter of 500s every 10, two light probes every 15
and 30. The chat probe queues behind the batch, the engine is restarted, the requests in flight fail with 500, the counter
counts them, and the light probes meet an engine that loads. The lab's clock runs `--scale` times as fast; its logs say lab time:

    python lab.py --logs logs --hours 3
    llmdiag analyze logs --events-map events-map.toml                  # written beside the logs

    python lab.py --logs logs --hours 3 --health llmdiag --hang-at 9000       # the same hours; the engine really hangs at second 9000

The ledger (`--ledger`) is what the lab itself knows of each restart. It is for tests, and no evidence.
"""

import argparse
import asyncio
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parent))
from cascadelab import guard, load, watchdogs
from cascadelab.clock import Clock, Log
from cascadelab.supervisor import Place, Supervisor

MAP, ROUNDS = "events-map.toml", "rounds.jsonl"
"""Beside the logs: how to read them, and what `llmdiag health` said in each of its rounds."""
LEAST_SCALE, MOST_SCALE = 1.0, 100.0
"""Beyond, the shortest timeout would be less than 0.3 real seconds."""
LOAD_S, SLOTS = 215.0, 2


async def run(options: argparse.Namespace) -> None:
    """Until the hours are over, or SIGTERM or SIGINT."""
    hours_s = options.hours * 3600
    logs: Path = options.logs
    logs.mkdir(parents=True, exist_ok=True)
    ledger = options.ledger or logs.with_name(f"{logs.name}-ledger.jsonl")
    # its calendar ends where the real one begins: no log is from the future
    clock = Clock.begin(options.scale, time.time() - hours_s, ledger.with_suffix(".clock"))
    supervisor = Supervisor(clock, Place(logs, ledger, ledger.with_suffix(".beat")), slots=SLOTS, load_s=LOAD_S)
    flag = ledger.with_suffix(".busy")
    for old in (flag, ledger, logs.parent / ROUNDS):
        old.unlink(missing_ok=True)
    stop = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    ticking = asyncio.create_task(clock.tick())
    await supervisor.start()
    tasks: list[asyncio.Task[None]] = []
    try:
        await _ready(supervisor.url)
        told = watchdogs.events_map() if options.health is None else guard.events_map()
        (logs.parent / MAP).write_text(told, encoding="utf-8")
        if options.health is None:
            tasks += watchdogs.watch(clock, supervisor, logs, flag)
        else:
            own, record = Log(logs / guard.LOG, clock), Log(logs.parent / ROUNDS, clock)
            tasks.append(asyncio.create_task(guard.Guard(shlex.split(options.health), clock, supervisor, own, record).run()))
        tasks += load.begin(clock, supervisor.url, seed=options.seed, batch=not options.no_batch, busy_flag=flag if options.busy_flag else None)
        if options.hang_at is not None:
            tasks.append(asyncio.create_task(_hang(clock, supervisor, options.hang_at)))
        _tell(options.ready_fd, {"port": supervisor.port, "pid": os.getpid(), "engine": supervisor.pid, "logs": str(logs)})
        over = [asyncio.create_task(_wished(stop)), asyncio.create_task(clock.sleep_until(hours_s))]
        tasks += over
        while not any(task.done() for task in over):
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # what failed ends the lab
                tasks.remove(task)
    finally:
        ticking.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await supervisor.close()
        for suffix in (".clock", ".beat", ".busy"):
            ledger.with_suffix(suffix).unlink(missing_ok=True)


async def _wished(stop: asyncio.Event) -> None:
    await stop.wait()


async def _hang(clock: Clock, supervisor: Supervisor, second: float) -> None:
    await clock.sleep_until(second)
    supervisor.hang()


async def _ready(url: str) -> None:
    """Until the first engine answers."""
    async with aiohttp.ClientSession() as session:
        for _ in range(600):
            try:
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
    raise SystemExit("the engine did not start")


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
    add("--logs", type=Path, required=True, metavar="DIR", help="evidence goes there; the map for --events-map beside it")
    add("--ledger", type=Path, metavar="FILE", help="what the lab knows of each restart, JSON lines (beside the logs otherwise)")
    add("--hours", type=float, default=3.0, metavar="H", help="of the lab's clock")
    add("--scale", type=float, default=100.0, metavar="N", help=f"lab seconds in a real one, {LEAST_SCALE:.0f} to {MOST_SCALE:.0f}")
    add("--seed", type=int, default=32, metavar="N", help="of what the clients ask")
    add("--no-batch", action="store_true", help="no batch job: nothing goes wrong")
    add("--busy-flag", action="store_true", help="the batch job sets the flag that the chat watchdog honours")
    add("--health", metavar="COMMAND", help="guarded by `COMMAND health` instead of the watchdogs, for example llmdiag")
    add("--hang-at", type=float, metavar="S", help="lab second in which the engine's loop stops for good")
    add("--ready-fd", type=int, metavar="FD", help="the ready line goes there instead of stdout")
    options = parser.parse_args()
    if not LEAST_SCALE <= options.scale <= MOST_SCALE:
        parser.error(f"--scale: {LEAST_SCALE:.0f} to {MOST_SCALE:.0f}")
    if options.logs.exists() and any(options.logs.iterdir()):
        parser.error(f"{options.logs} is not empty: two runs in one log would be nobody's afternoon")
    asyncio.run(run(options))


if __name__ == "__main__":
    main()
