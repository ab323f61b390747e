"""Clients of the service: each asks, waits no longer than its patience, thinks a moment, and asks again."""

import asyncio
import random
import sys
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))
from recoverylab.place import MODEL, Place, begin

PATIENCE_S = 28.0
"""After which a client gives up."""
PREFIXES = 6
TOKENS = (45, 100)
THINK_S, AGAIN_S = (0.4, 1.6), (1.0, 2.0)
"""Between two questions, and after one that failed."""


async def client(place: Place, url: str, number: int, chance: random.Random) -> None:
    """One of them, for ever."""
    clock = place.clock
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=connector) as session:
        while not place.told("ready"):
            await asyncio.sleep(0.02)
        await clock.sleep(chance.uniform(0, 2))
        while True:
            prefix = f"document {chance.randrange(PREFIXES)}: " + "a long text " * 50
            body = {"model": MODEL, "messages": [{"role": "user", "content": prefix}], "max_tokens": chance.randint(*TOKENS)}
            sent_s = clock.now_s
            outcome, status = await _asked(place, session, url, body)
            place.remember("client", "request", client=number, sent=round(sent_s, 3), outcome=outcome, status=status)
            await clock.sleep(chance.uniform(*(THINK_S if outcome == "ok" else AGAIN_S)))


async def _asked(place: Place, session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> tuple[str, int | None]:
    """ok | failed | left, and the status."""
    try:
        status = await place.clock.within(PATIENCE_S, _answer(session, url, body))
    except TimeoutError:
        return "left", None
    except (aiohttp.ClientError, OSError):
        return "failed", None
    return ("ok" if status == 200 else "failed"), status


async def _answer(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> int:
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        await answer.read()
        return answer.status


async def _main() -> None:
    place, (clients, seed) = begin()
    url = f"http://127.0.0.1:{place.told('router')['port']}"
    await asyncio.gather(*(client(place, url, number, random.Random(f"{seed}-{number}")) for number in range(int(clients))))


if __name__ == "__main__":
    asyncio.run(_main())
