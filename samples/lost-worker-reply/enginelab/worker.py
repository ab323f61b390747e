"""A worker: waits for an order, computes, answers. Rank 1 can be told to do something else."""

import ctypes
import platform
import sys
import threading
import time
from collections.abc import Callable

from kv_connector import KVConnector
from shm_broadcast import MessageQueue, fd_and_python, from_fd, option

CLONE = {"x86_64": 56, "aarch64": 220}
CLONE_VFORK_AND_SIGCHLD = 0x4000 | 17


class WorkerProc:
    """One rank."""

    def __init__(self, orders: MessageQueue, rank: int, meet: Callable[[], object]) -> None:
        self.orders, self.rank, self.meet, self.connector = orders, rank, meet, KVConnector()

    def worker_busy_loop(self) -> None:
        while True:
            order = self.orders.dequeue()
            if order["transfer"]:
                self.transfer()
            mine = order if self.rank == 1 else dict.fromkeys(order, False)
            answer = self.execute_model(mine["compute"], mine["stuck"], mine["absent"], mine["grow"])
            if mine["drop"]:
                print("rank 1: an answer is lost", file=sys.stderr, flush=True)
                continue
            self.orders.enqueue(tokens=answer)

    def transfer(self) -> None:
        """Rank 1 asks for blocks, the others wait until theirs are taken."""
        print(f"rank {self.rank}: blocks are moved", file=sys.stderr, flush=True)
        if self.rank == 1:
            self.connector.start_load_kv()
        else:
            self.connector.wait_for_save()

    def execute_model(self, for_ever: bool, stuck: bool, absent: bool, grow: bool) -> int:
        """A step; one that ends at once, or never does."""
        if grow:
            take_memory()
        if stuck:
            sleep_in_the_kernel()
        if absent:
            wait_for_input()
        self.meet()
        while for_ever:
            forward()
        return forward()


def forward() -> int:
    return sum(range(1000))


def take_memory() -> None:
    """More and more of the host's, as with pinned buffers that nobody counts."""
    taken = []
    while True:
        taken.append(b"x" * (1 << 20))


def wait_for_input() -> None:
    """Of something on the host that is never there."""
    print("rank 1: stays away", file=sys.stderr, flush=True)
    threading.Event().wait()


def barrier(rank: int, of: int, group: str) -> Callable[[], object]:
    """Where the ranks meet in every step: in gloo's barrier, or nowhere. A file lets them find each other."""
    if not group:
        return lambda: None
    from torch import distributed

    distributed.init_process_group("gloo", init_method=f"file://{group}", rank=rank, world_size=of)
    return distributed.barrier


def sleep_in_the_kernel() -> None:
    """Until a child that shares this memory has ended, which it never does: state D, as behind a driver or a file server that hangs."""
    if ctypes.CDLL(None).syscall(CLONE[platform.machine()], CLONE_VFORK_AND_SIGCHLD, 0, 0, 0, 0) == 0:
        while True:
            time.sleep(1000)


def main() -> None:
    fd, _ = fd_and_python(sys.argv)
    rank = int(option(sys.argv, "--number"))
    meet = barrier(rank, int(option(sys.argv, "--of")), option(sys.argv, "--group"))
    WorkerProc(from_fd(fd), rank, meet).worker_busy_loop()


if __name__ == "__main__":
    main()
