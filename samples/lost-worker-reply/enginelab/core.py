"""The engine core: schedules, tells its workers, waits for the answer of the last rank, as vLLM does."""

import queue
import sys
import threading

from scheduler import Scheduler
from shm_broadcast import MessageQueue, child, fd_and_python, from_fd, option
from structured_output import StructuredOutputManager

HOW = ("drop", "compute", "stuck", "absent", "grow", "transfer")
"""What a request can make the workers do, mostly rank 1; see worker.py."""


class EngineCore:
    """Takes requests from the front end in a thread of their own; the main thread runs the loop."""

    def __init__(self, front: MessageQueue, python: str, ranks: range, of: str, group: str) -> None:
        self.front = front
        self.input: queue.Queue[dict[str, int]] = queue.Queue()
        self.scheduler = Scheduler()
        self.structured_output = StructuredOutputManager()
        self.workers = [
            child(python, f"VLLM::Worker_TP{rank}", "worker.py", "--number", str(rank), "--of", of, "--group", group)[1] for rank in ranks
        ]

    def run_busy_loop(self) -> None:
        while True:
            self._process_input_queue()
            self._process_engine_step()

    def _process_input_queue(self) -> None:
        while not self.scheduler.running or not self.input.empty():
            request = self.input.get()
            if request["grammar"]:
                self.structured_output.grammar_init(request["grammar"])
            self.scheduler.running.append(request)

    def _process_engine_step(self) -> None:
        step = self.scheduler.schedule()
        self.execute_model(**{how: any(request[how] for request in step) for how in HOW})
        for request in step:
            request["left"] -= 1
            self.front.enqueue(request=request["request"], done=request["left"] == 0)
        self.scheduler.running = [request for request in self.scheduler.running if request["left"]]

    def execute_model(self, **order: bool) -> None:
        self.collective_rpc(**order)

    def collective_rpc(self, **order: bool) -> None:
        for worker in self.workers:
            worker.enqueue(**order)
        self.get_response()

    def get_response(self) -> None:
        """All of them: no limit on any."""
        for worker in self.workers:
            worker.dequeue()

    def process_input_sockets(self) -> None:
        while True:
            self.input.put(self.front.dequeue())


def run_engine_core() -> None:
    fd, python = fd_and_python(sys.argv)
    mine = range(int(option(sys.argv, "--first")), int(option(sys.argv, "--end")))
    core = EngineCore(from_fd(fd), python, mine, option(sys.argv, "--of"), option(sys.argv, "--group"))
    threading.Thread(target=core.process_input_sockets, daemon=True).start()
    core.run_busy_loop()


if __name__ == "__main__":
    run_engine_core()
