"""Who wants something of the engine: a batch job with long requests, and now and then a person."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path

import aiohttp

from cascadelab.batch import MODEL
from cascadelab.clock import Clock

BATCH_IP, PERSONS_IP = "127.0.0.21", "127.0.0.31"
BATCH_CLIENTS = 4
BATCHES_S = ((240.0, 4100.0), (9240.0, 14_400.0))
"""Two jobs, from and to. At its end a job gives up what it waits for."""
LONG_TOKENS = (4000, 8000)
"""At 8 tokens/s eight to seventeen minutes."""
PATIENCE_S = 60.0


def begin(clock: Clock, url: str, *, seed: int, batch: bool, busy_flag: Path | None) -> Sequence["asyncio.Task[None]"]:
    """All clients, at work. `busy_flag`: the file that the batch job sets, None = it does not know of it."""
    if batch and busy_flag is not None:
        busy_flag.touch()
    jobs = [_batch(clock, url, random.Random(f"{seed}-batch-{number}"), number) for number in range(BATCH_CLIENTS if batch else 0)]
    return [asyncio.create_task(job) for job in (*jobs, _person(clock, url, random.Random(f"{seed}-person")))]


async def _batch(clock: Clock, url: str, chance: random.Random, number: int) -> None:
    """One long request after the other, tried again when it fails."""
    for begin_s, end_s in BATCHES_S:
        await clock.sleep_until(begin_s + 5.0 * number)
        with contextlib.suppress(TimeoutError):
            await clock.within(end_s - clock.now_s, _job(clock, url, chance))


async def _job(clock: Clock, url: str, chance: random.Random) -> None:
    async with _session(BATCH_IP) as session:
        while True:
            status = await _ask(session, url, chance.randint(*LONG_TOKENS), "a long document " * 100)
            await clock.sleep(chance.uniform(5, 40) if status == 200 else chance.uniform(2, 8) if status is not None else chance.uniform(15, 30))


async def _person(clock: Clock, url: str, chance: random.Random) -> None:
    async with _session(PERSONS_IP) as session:
        while True:
            await clock.sleep(chance.uniform(60, 240))
            with contextlib.suppress(TimeoutError):
                await clock.within(PATIENCE_S, _ask(session, url, chance.randint(8, 40), "a question"))


def _session(ip: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(local_addr=(ip, 0), force_close=True))


async def _ask(session: aiohttp.ClientSession, url: str, tokens: int, text: str) -> int | None:
    """The status, None where no answer came."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
            await answer.read()
            return answer.status
    except (aiohttp.ClientError, OSError):
        return None
