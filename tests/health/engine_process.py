"""An engine of real processes: this one answers /metrics for ever the same, below it EngineCore and Worker with vLLM's titles.

    VLLM… engine_process.py WORKER      WORKER: works | loops | sleeps

Prints its port when all are there. The counters never move: only the processes say what goes on.
"""

import subprocess
import sys
import time

RESTS = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
WORKS = """
steps = []
for number in range(40):
    exec(f"def step_{number}(n): return sum(x * x for x in range(n))")
    steps.append(globals()[f"step_{number}"])
def loop():
    print('up', flush=True)
    for _ in range(10 ** 9):
        for step in steps:
            step(300_000)
loop()
"""
LOOPS = """
def step():
    print('up', flush=True)
    while True: pass
step()
"""
CORE = """
import subprocess, sys, time
with subprocess.Popen(["VLLM::Worker", "-c", sys.argv[1]], executable=sys.argv[2], stdout=subprocess.PIPE) as worker:
    worker.stdout.readline()
    print('up', worker.pid, flush=True)
    time.sleep(600)
"""


def main() -> None:
    from tests.health.toy import Toy
    from tests.repro.endpoint import serving

    code = {"works": WORKS, "loops": LOOPS, "sleeps": RESTS}[sys.argv[1]]
    with serving(Toy(running=4)) as server, subprocess.Popen(
        ["VLLM::EngineCore", "-c", CORE, code, sys.executable], executable=sys.executable, stdout=subprocess.PIPE, text=True
    ) as core:
        assert core.stdout is not None
        worker = core.stdout.readline().split()[1]
        print(server.url, core.pid, worker, flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main()
