"""The memory holder: owns the device's memory, lends its blocks to engines, and takes them back when one is gone.

The device is a memory file that engines map too. Each block carries an epoch, which is one higher after each reclaim. A
reclaim is a barrier, then block by block; it takes RECLAIM_S. Who borrows keeps a connection: that it broke is how the
holder knows of a death, if the set-up lets it act on that; else it waits for the manager's word.
"""

import asyncio
import json
import mmap
import os
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from recoverylab.place import BLOCK_BYTES, BLOCK_GIB, BLOCKS, Place, begin

RECLAIM_S, BARRIER_S = 7.0, 0.05
HEAD = struct.Struct("=QQ")
"""At the beginning of each block: its epoch, and the generation it is lent to (0 = nobody)."""


class Holder:
    """The ledger of blocks, and the conversation with those who borrow."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.log = place.log("holder.log")
        self.fd = os.memfd_create("device")
        os.ftruncate(self.fd, BLOCKS * BLOCK_BYTES)
        self.memory = mmap.mmap(self.fd, BLOCKS * BLOCK_BYTES)
        self.epochs = [1] * BLOCKS
        self.owners = [0] * BLOCKS
        self.clean: dict[int, asyncio.Event] = {}
        self.going: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.place.tell("holder", port=server.sockets[0].getsockname()[1], pid=os.getpid(), fd=self.fd)
        await asyncio.Event().wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        generation = 0
        try:
            while line := await reader.readline():
                asked = json.loads(line)
                generation = asked["generation"] if asked["op"] == "open" else generation
                writer.write(json.dumps(await self._answer(asked)).encode() + b"\n")
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
            if generation and self.place.setup.reclaim_on_death:
                self._begin(generation, "its borrower is gone")

    async def _answer(self, asked: dict[str, object]) -> dict[str, object]:
        generation = int(str(asked["generation"]))
        match asked["op"]:
            case "open":
                self.clean[generation] = asyncio.Event()
                return {"free": self.owners.count(0), "total": BLOCKS}
            case "borrow":
                return self._lend(generation, int(str(asked["blocks"])))
            case "release":
                self._begin(generation, "the manager says that it is gone")
                return {}
            case "wait":
                if generation in self.clean:
                    await self.clean[generation].wait()
                return {}
        raise ValueError(asked)

    def _lend(self, generation: int, wanted: int) -> dict[str, object]:
        free = [block for block, owner in enumerate(self.owners) if owner == 0]
        if wanted > len(free):
            return {"error": f"{len(free)} blocks are free, {wanted} are wanted"}
        for block in free[:wanted]:
            self.owners[block] = generation
            HEAD.pack_into(self.memory, block * BLOCK_BYTES, self.epochs[block], generation)
        epoch = max(self.epochs[block] for block in free[:wanted])
        self.log.say(f"holder: generation {generation}: lent {wanted} blocks ({wanted * BLOCK_GIB:.1f} GiB), epoch {epoch}")
        self.place.remember("holder", "lent", generation=generation, blocks=wanted, epoch=epoch)
        return {"blocks": free[:wanted], "epoch": epoch}

    def _begin(self, generation: int, why: str) -> None:
        if generation not in self.owners:
            self.clean[generation].set()  # it died before it had borrowed anything
        elif generation not in self.going:
            self.going[generation] = asyncio.create_task(self._reclaim(generation, why))

    async def _reclaim(self, generation: int, why: str) -> None:
        clock, begun_s = self.place.clock, self.place.clock.now_s
        mine = [block for block, owner in enumerate(self.owners) if owner == generation]
        self.log.say(f"holder: reclaim of generation {generation} begins: {len(mine)} blocks, {why}")
        await clock.sleep(BARRIER_S)
        self.log.say(f"holder: device barrier done for generation {generation}, {1000 * BARRIER_S:.0f} ms")
        for number, block in enumerate(mine, 1):
            self.memory[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = bytes(BLOCK_BYTES)
            self.epochs[block] += 1
            self.owners[block] = -generation  # clean, and given back with the others
            await clock.sleep_until(begun_s + RECLAIM_S * number / len(mine))
        self.owners = [0 if owner == -generation else owner for owner in self.owners]
        self.log.say(f"holder: reclaim of generation {generation} finished: {len(mine)} blocks, epoch {max((self.epochs[block] for block in mine), default=0)}")
        self.place.remember("holder", "reclaimed", generation=generation, begin=round(begun_s, 3), end=round(clock.now_s, 3), blocks=len(mine))
        if generation in self.clean:
            self.clean[generation].set()


async def _main() -> None:
    place, _ = begin()
    await Holder(place).run()


if __name__ == "__main__":
    asyncio.run(_main())
