"""A worker: waits for an order, computes, answers. Rank 1 can be told to do something else."""

import ctypes
import platform
import sys
import time

from shm_broadcast import MessageQueue, fd_and_python, from_fd

CLONE = {"x86_64": 56, "aarch64": 220}
CLONE_VFORK_AND_SIGCHLD = 0x4000 | 17


class WorkerProc:
    """One rank."""

    def __init__(self, orders: MessageQueue, rank: int) -> None:
        self.orders, self.rank = orders, rank

    def worker_busy_loop(self) -> None:
        while True:
            order = self.orders.dequeue()
            answer = self.execute_model(order["compute"] and self.rank == 1, order["stuck"] and self.rank == 1)
            if order["drop"] and self.rank == 1:
                print("rank 1: an answer is lost", file=sys.stderr, flush=True)
                continue
            self.orders.enqueue(tokens=answer)

    def execute_model(self, for_ever: bool, stuck: bool) -> int:
        """A step; one that ends at once, or never does."""
        if stuck:
            sleep_in_the_kernel()
        while for_ever:
            forward()
        return forward()


def forward() -> int:
    return sum(range(1000))


def sleep_in_the_kernel() -> None:
    """Until a child that shares this memory has ended, which it never does: state D, as behind a driver or a file server that hangs."""
    if ctypes.CDLL(None).syscall(CLONE[platform.machine()], CLONE_VFORK_AND_SIGCHLD, 0, 0, 0, 0) == 0:
        while True:
            time.sleep(1000)


def main() -> None:
    fd, _ = fd_and_python(sys.argv)
    rank = int(sys.argv[sys.argv.index("--rank") + 1])
    WorkerProc(from_fd(fd), rank).worker_busy_loop()


if __name__ == "__main__":
    main()
