"""Writes the samples of this folder: restarts in which device memory, a standby or the manager is the matter.

    python samples/device-memory/write.py [FOLDER]

The lines have the shapes of vLLM 0.20, systemd 252, nvidia-smi and ps; each look-alike differs from its incident in one fact.
"""

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
DAY = datetime.datetime(2026, 6, 10)
UNIT = "vllm.service"
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {tried} GiB. GPU 0 has a total capacity of 79.11 GiB of which {free} is free. {others}Including non-PyTorch memory, "
    "this process has {own} GiB memory in use. Of the allocated memory {allocated} GiB is allocated by PyTorch, and {spare} is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
NO_ROOM = (
    "ValueError: Free memory on device cuda:0 ({free}/79.11 GiB) on startup is less than desired GPU memory utilization ({share}, {wanted} GiB). "
    "Decrease GPU memory utilization or reduce GPU memory used by other processes."
)


def at(clock: str) -> datetime.datetime:
    return datetime.datetime.combine(DAY, datetime.time.fromisoformat(clock))


def later(clock: str, seconds: float) -> str:
    return (at(clock) + datetime.timedelta(seconds=seconds)).strftime("%H:%M:%S")


class Log:
    """One engine's log, and what ps and nvidia-smi would list of its processes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, clock: str, text: str, who: str = "APIServer", pid: int = 0, level: str = "INFO", where: str = "api_server.py:1351") -> None:
        self.lines.append(f"({who} pid={pid}) {level} {DAY:%m-%d} {clock} [{where}] {text}")

    def begin(self, clock: str, pid: int, share: float = 0.9) -> None:
        self.say(clock, "vLLM API server version 0.20.2", pid=pid)
        self.say(clock, f"non-default args: {{'model': '/models/one', 'gpu_memory_utilization': {share}}}", pid=pid, where="utils.py:233")
        self.say(later(clock, 9), "Initializing a V1 LLM engine (v0.20.2) with config: model='/models/one'", "EngineCore", pid + 2, where="core.py:105")

    def ready(self, clock: str, pid: int, share: float = 0.9) -> None:
        """A start that works: 60 s."""
        self.begin(clock, pid, share)
        self.say(later(clock, 40), "Loading weights took 24.31 seconds", "EngineCore", pid + 2, where="default_loader.py:384")
        self.say(later(clock, 56), "init engine (profile, create kv cache, warmup model) took 14.20 s", "EngineCore", pid + 2, where="core.py:281")
        self.lines.append(f"INFO:     Started server process [{pid}]")
        self.say(later(clock, 60), "Application startup complete.", pid=pid, where="on.py:62")

    def works(self, first: str, minutes: int, pid: int, usage_pct: float = 61.0) -> None:
        for minute in range(minutes):
            self.say(
                later(first, 60 * minute),
                f"Engine 000: Avg prompt throughput: 512.4 tokens/s, Avg generation throughput: 388.{minute % 10} tokens/s, Running: 12 reqs, Waiting: 0 reqs, "
                f"GPU KV cache usage: {usage_pct:.1f}%, Prefix cache hit rate: 41.0%",
                pid=pid, where="loggers.py:259",
            )  # fmt: skip

    def breaks(self, clock: str, pid: int, error: str, *, starting: bool) -> None:
        """A traceback in the engine core, and what the API server makes of it."""
        first = "EngineCore failed to start." if starting else "EngineCore encountered a fatal error."
        for text in (first, "Traceback (most recent call last):", '  File "/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 935, in run_engine_core', error):
            self.say(clock, text, "EngineCore", pid + 2, "ERROR", "core.py:935")
        last = "Engine core initialization failed. See root cause above. Failed core proc(s): {}" if starting else "AsyncLLM output_handler failed."
        self.say(later(clock, 2), f"RuntimeError: {last}" if starting else last, pid=pid, level="ERROR", where="async_llm.py:702")


def journal(*told: str) -> list[str]:
    """`10:00:00 text` -> a line of systemd; `sudo` and other programs are named by `10:00:00 program[7]: text`."""
    lines = []
    for item in told:
        clock, _, text = item.partition(" ")
        program = "" if text.split(":")[0].endswith("]") else "systemd[1]: "
        lines.append(f"{DAY:%Y-%m-%d}T{clock}.000000+00:00 gpu-1 {program}{text}")
    return lines


def ps(*rows: tuple[int, int, str, str]) -> list[str]:
    """(pid, ppid, start, command) -> `ps -eo pid,ppid,lstart,stat,rss,args`."""
    listed = [(1, 0, "08:00:00", "/sbin/init"), *rows]
    return ["    PID    PPID                  STARTED STAT   RSS COMMAND", *(f"{pid:7} {ppid:7} {at(clock):%a %b %e %H:%M:%S %Y} Sl   803112 {cmd}" for pid, ppid, clock, cmd in listed)]


def devices(*held: tuple[int, int, str, int]) -> list[str]:
    """(card, pid, name, MiB) -> nvidia-smi's processes, and the cards that they are on."""
    cards = ["index, name, uuid, utilization.gpu [%], memory.used [MiB], memory.total [MiB]"]
    cards += [f"{card}, NVIDIA H100 80GB HBM3, GPU-0000000{card}, 0, {sum(mib for other, _, _, mib in held if other == card)}, 81008" for card in (0, 1)]
    return [*cards, "gpu_uuid, pid, process_name, used_gpu_memory [MiB]", *(f"GPU-0000000{card}, {pid}, {name}, {mib}" for card, pid, name, mib in held)]


def server(pid: int, clock: str, parent: int = 1, port: int = 8000) -> tuple[tuple[int, int, str, str], ...]:
    """The processes of one engine."""
    return ((pid, parent, clock, f"/opt/venv/bin/python3 /opt/venv/bin/vllm serve /models/one --port {port}"), (pid + 2, pid, later(clock, 5), "VLLM::EngineCore"))


def write(folder: Path, **files: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {"vllm": "vllm.log", "standby": "standby.log", "journal": "journal.log", "ps": "ps.txt", "smi": "nvidia-smi.csv", "manager": "manager.log", "events_map": "events-map.toml"}
    for name, lines in files.items():
        (folder / names[name]).write_text("".join(f"{line}\n" for line in lines))


# --- memory that is not given back ---

KILLED = ("09:00:00 Started vllm.service - vLLM server.", "10:00:00 vllm.service: Main process exited, code=killed, status=9/KILL", "10:00:00 vllm.service: Failed with result 'signal'.")
AGAIN = ("10:00:05 vllm.service: Scheduled restart job, restart counter is at 1.", "10:00:05 Started vllm.service - vLLM server.")
GAVE_UP = ("10:00:20 vllm.service: Main process exited, code=exited, status=1/FAILURE", "10:00:20 vllm.service: Failed with result 'exit-code'.")


def refused(free: str = "7.42", share: float = 0.9, wanted: str = "71.2") -> Log:
    """It served for an hour, its API server was killed, and the new engine core is refused its memory."""
    log = Log()
    log.ready("09:00:00", 4100)
    log.works("09:02:00", 57, 4100)
    log.begin("10:00:06", 5100, share)
    log.breaks("10:00:17", 5100, NO_ROOM.format(free=free, share=share, wanted=wanted), starting=True)
    return log


def memory(to: Path) -> None:
    told = journal(*KILLED, *AGAIN, *GAVE_UP)
    write(to / "orphan-holds", vllm=refused().lines, journal=told, ps=ps((4102, 1, "09:00:05", "VLLM::EngineCore")), smi=devices((0, 4102, "VLLM::EngineCore", 72904)))
    tenant = (6200, 6100, "09:31:00", "/usr/local/bin/ollama runner --model /srv/models/blob --port 40113")
    serve = (6100, 1, "08:10:00", "/usr/local/bin/ollama serve")
    again = refused()
    again.begin("10:02:06", 5300)
    again.breaks("10:02:17", 5300, NO_ROOM.format(free="7.39", share=0.9, wanted="71.2"), starting=True)
    screen = (1200, 1, "08:00:20", "/usr/lib/xorg/Xorg -core :0")
    smi = devices((0, 6200, "/usr/local/bin/ollama", 72904), (0, 1200, "/usr/lib/xorg/Xorg", 38))
    write(to / "tenant-holds", vllm=again.lines, journal=told, ps=ps(serve, tenant, screen), smi=smi)
    # the old core too holds a good part: it is what should not be there
    orphan = (4102, 1, "09:00:05", "VLLM::EngineCore")
    smi = devices((0, 4102, "VLLM::EngineCore", 40136), (0, 6200, "/usr/local/bin/ollama", 32768))
    write(to / "tenant-and-orphan", vllm=refused().lines, journal=told, ps=ps(serve, tenant, orphan), smi=smi)
    # an engine core of which no list says whose child it is: nobody may be told to end that
    smi = devices((0, 6200, "/usr/local/bin/ollama", 40136), (0, 8802, "VLLM::EngineCore", 32768))
    write(to / "tenant-and-unlisted", vllm=refused().lines, journal=told, ps=ps(serve, tenant), smi=smi)
    # it had started, and the tenant took more afterwards
    grown = Log()
    grown.ready("09:00:00", 4100)
    grown.works("09:02:00", 28, 4100)
    others = "Process 6200 has 24.60 GiB memory in use. "
    grown.breaks("09:31:20", 4100, TORCH.format(tried="2.00", free="1.21 GiB", others=others, own="52.60", allocated="49.81", spare="118.20 MiB"), starting=False)
    ended = journal(KILLED[0], "09:31:24 vllm.service: Main process exited, code=exited, status=1/FAILURE", "09:31:24 vllm.service: Failed with result 'exit-code'.")
    write(to / "tenant-grows", vllm=grown.lines, journal=ended, ps=ps(serve, tenant), smi=devices((0, 6200, "/usr/local/bin/ollama", 25190)))
    write(to / "tenant-grows-unlisted", vllm=grown.lines, journal=ended)
    write(to / "share-too-large", vllm=refused("78.02", 0.995, "78.72").lines, journal=told, ps=ps(), smi=devices())
    write(to / "holder-not-listed", vllm=refused().lines, journal=told)
    slow = refused()
    slow.ready("10:00:27", 5300)
    record = journal(*KILLED, *AGAIN, *GAVE_UP, "10:00:25 vllm.service: Scheduled restart job, restart counter is at 2.", "10:00:26 Started vllm.service - vLLM server.")
    write(to / "slow-reclaim", vllm=slow.lines, journal=record)
    fine = Log()
    fine.ready("09:00:00", 4100)
    fine.works("09:02:00", 57, 4100)
    fine.ready("10:00:06", 5100)
    fine.works("10:02:00", 20, 5100)
    write(to / "reclaimed", vllm=fine.lines, journal=journal(*KILLED, *AGAIN), manager=RECLAIMED, events_map=RECLAIMS, smi=devices((0, 5102, "VLLM::EngineCore", 72904)), ps=ps(*server(5100, "10:00:05")))


RECLAIMED = [f"{DAY:%Y-%m-%d} 10:00:00 memory-manager: reclaim started on GPU 0", f"{DAY:%Y-%m-%d} 10:00:04 memory-manager: reclaim finished, 78.4 GiB free on GPU 0"]
RECLAIMS = [
    "[[event]]", 'file = "manager*.log"', 'kind = "reclaim_done"', 'initiator = "memory-manager"', r"regex = '^(?P<ts>\S+ \S+) .*reclaim finished'", "",
    "[[event]]", 'file = "manager*.log"', 'kind = "reclaim_start"', 'initiator = "memory-manager"', r"regex = '^(?P<ts>\S+ \S+) .*reclaim started'",
]  # fmt: skip


# --- fragments, and a standby ---


def fragments(to: Path) -> None:
    """Minutes or hours after a restart, or in a first life, memory runs out, with much or with little of it in pieces."""
    for name, spare, allocated, minutes, lived in (
        ("fragmented", "9.35 GiB", "58.11", 20, True), ("full", "118.20 MiB", "67.34", 20, True), ("fragmented-late", "9.35 GiB", "58.11", 190, True),
        ("fragmented-reclaimed", "9.35 GiB", "58.11", 20, True), ("fragmented-first-life", "9.35 GiB", "58.11", 20, False), ("fragmented-no-journal", "9.35 GiB", "58.11", 20, False),
    ):  # fmt: skip
        log = Log()
        if lived:
            log.ready("09:00:00", 4100)
            log.works("09:02:00", 57, 4100)
        log.ready("10:00:06", 5100)
        log.works("10:02:00", minutes, 5100, 97.0)
        end = later("10:02:10", 60 * minutes)
        log.breaks(end, 5100, TORCH.format(tried="2.00", free="1.21 GiB", others="", own="77.60", allocated=allocated, spare=spare), starting=False)
        died = (f"{later(end, 4)} vllm.service: Main process exited, code=exited, status=1/FAILURE", f"{later(end, 4)} vllm.service: Failed with result 'exit-code'.")
        told = {} if name == "fragmented-no-journal" else {"journal": journal(*(KILLED if lived else ()), *AGAIN[-lived - 1 :], *died)}
        manager = {"manager": RECLAIMED, "events_map": RECLAIMS} if name == "fragmented-reclaimed" else {}
        write(to / name, vllm=log.lines, **told, **manager)


def standby(to: Path) -> None:
    """A standby is started at 10:20; the primary runs out of memory two minutes later."""
    for name, card in (("standby-same-card", 0), ("standby-own-card", 1)):
        log, other = Log(), Log()
        log.ready("09:00:00", 4100, 0.6)
        log.works("09:02:00", 80, 4100, 88.0)
        other.ready("10:20:00", 7100, 0.3)
        own, free = ("52.60", "1.21 GiB") if card == 0 else ("77.60", "1.21 GiB")
        others = "Process 7102 has 25.30 GiB memory in use. " if card == 0 else ""
        log.breaks("10:22:10", 4100, TORCH.format(tried="2.00", free=free, others=others, own=own, allocated="49.81" if card == 0 else "74.90", spare="118.20 MiB"), starting=False)
        told = ("09:00:00 Started vllm.service - vLLM server.", "10:20:00 Started vllm-standby.service - vLLM standby.", "10:22:14 vllm.service: Main process exited, code=exited, status=1/FAILURE")
        write(
            to / name, vllm=log.lines, standby=other.lines, journal=journal(*told, "10:22:14 vllm.service: Failed with result 'exit-code'."),
            ps=ps(*server(7100, "10:19:55", port=8001)), smi=devices((card, 7102, "VLLM::EngineCore", 25907)),
        )  # fmt: skip


# --- the manager ---

WATCHED = [
    "[[event]]", 'file = "manager.log"', 'kind = "probe_failed"', 'initiator = "engine-manager"', r"regex = '^(?P<ts>\S+ \S+) engine-manager: (?P<unit>\S+) does not answer'",
    "period_s = 2", "timeout_s = 1", "strikes = 2", "",
    "[[event]]", 'file = "manager.log"', 'kind = "restart"', 'initiator = "engine-manager"', r"regex = '^(?P<ts>\S+ \S+) engine-manager: starting (?P<unit>\S+)'",
]  # fmt: skip


def manager(to: Path) -> None:
    """The engine dies at 10:00; its manager would start it within seconds."""
    for name, alive, given in (("manager-gone", False, True), ("manager-acts", True, True), ("manager-not-given", False, False), ("manager-silent", False, True)):
        log = Log()
        log.ready("09:00:00", 4100)
        log.works("09:02:00", 57, 4100)
        log.breaks("10:00:00", 4100, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", starting=False)
        back = "10:00:08" if alive else "10:38:12"
        log.ready(later(back, 1), 5100)
        log.works(later(back, 90), 10, 5100)
        told = [KILLED[0], "10:00:03 vllm.service: Main process exited, code=exited, status=1/FAILURE", "10:00:03 vllm.service: Failed with result 'exit-code'."]
        if name == "manager-gone":
            told.insert(1, "09:48:30 engine-manager.service: Main process exited, code=killed, status=9/KILL")
            told.insert(2, "09:48:30 engine-manager.service: Failed with result 'signal'.")
        if given:
            told.insert(0, "08:00:00 Started engine-manager.service - engine manager.")
        if not alive:
            told.append(f"{back} sudo[811]: dana : TTY=pts/0 ; PWD=/srv ; USER=root ; COMMAND=/usr/bin/systemctl start {UNIT}")
        told.append(f"{back} Started vllm.service - vLLM server.")
        own = [f"{DAY:%Y-%m-%d} 09:20:00 engine-manager: vllm does not answer, 1 of 2"]
        if alive:
            own += [f"{DAY:%Y-%m-%d} 10:00:{second} engine-manager: vllm does not answer, {n} of 2" for n, second in enumerate(("05", "07"), 1)]
            own += [f"{DAY:%Y-%m-%d} 10:00:08 engine-manager: starting vllm"]
        extra = {"manager": own, "events_map": WATCHED} if given else {}
        write(to / name, vllm=log.lines, journal=journal(*told), **extra)


def outage(log: Log, told: list[str], began: str, back: str, pid: int, by: str) -> None:
    """The engine dies, and `by` starts it again."""
    log.breaks(began, pid - 1000, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", starting=False)
    told += [f"{later(began, 3)} vllm.service: Main process exited, code=exited, status=1/FAILURE", f"{later(began, 3)} vllm.service: Failed with result 'exit-code'."]
    if by == "person":
        told.append(f"{back} sudo[811]: dana : TTY=pts/0 ; PWD=/srv ; USER=root ; COMMAND=/usr/bin/systemctl start {UNIT}")
    told.append(f"{back} Started vllm.service - vLLM server.")
    log.ready(later(back, 1), pid)


def several(to: Path) -> None:
    """Outages of one morning, and who watched in each of them."""
    for name in ("manager-gone-before", "one-of-two-managers", "manager-log-not-given"):
        log = Log()
        log.ready("09:00:00", 4100)
        log.works("09:02:00", 10, 4100)
        told = ["08:00:00 Started engine-manager.service - engine manager.", "08:00:00 Started engine-watchdog.service - engine watchdog.", KILLED[0]]
        own = [f"{DAY:%Y-%m-%d} 09:05:00 engine-manager: vllm does not answer, 1 of 2"]
        extra: dict[str, list[str]] = {}
        if name == "manager-gone-before":  # gone while a person is at once there; started again; then silent
            told.append("09:18:00 engine-manager.service: Main process exited, code=killed, status=9/KILL")
            outage(log, told, "09:20:00", "09:20:50", 5100, "person")
            told.append("09:25:00 Started engine-manager.service - engine manager.")
            extra = {"manager": own, "events_map": WATCHED}
        elif name == "one-of-two-managers":  # one is gone, the other one is restarted, in vain
            told.append("09:48:30 engine-manager.service: Main process exited, code=killed, status=9/KILL")
        else:  # the manager is there once, and nothing is told of it later
            outage(log, told, "09:20:00", "09:24:00", 5100, "person")
            told.insert(-2, "09:21:00 Started engine-manager.service - engine manager.")
        outage(log, told, "10:00:00", "10:38:12", 6100, "person")
        if name == "one-of-two-managers":
            told.insert(-2, "10:04:00 Started engine-watchdog.service - engine watchdog.")
        write(to / name, vllm=log.lines, journal=journal(*told), **extra)


def edges(to: Path) -> None:
    """What is nearly an orphan that holds memory, a share that is too large, or a standby."""
    told = journal(*KILLED, *AGAIN, *GAVE_UP)
    log = Log()
    log.begin("10:00:06", 5100, 0.2)
    log.breaks("10:00:17", 5100, "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", starting=True)
    write(to / "share-too-small", vllm=log.lines, journal=told, ps=ps(), smi=devices((0, 5102, "VLLM::EngineCore", 15800)))
    write(to / "reclaimed-share-too-large", vllm=refused("78.02", 0.995, "78.72").lines, journal=told, ps=ps(), smi=devices(), manager=RECLAIMED, events_map=RECLAIMS)
    tenant = ((6100, 1, "08:10:00", "/usr/local/bin/ollama serve"), (6200, 6100, "09:31:00", "/usr/local/bin/ollama runner --model /srv/models/blob --port 40113"))
    small = devices((0, 6200, "/usr/local/bin/ollama", 71900), (0, 4102, "VLLM::EngineCore", 412), (0, 7102, "VLLM::EngineCore", 590))
    write(to / "tenant-and-small-ones", vllm=refused().lines, journal=told, ps=ps(*tenant, (4102, 1, "09:00:05", "VLLM::EngineCore"), *server(7100, "09:40:00", port=8001)), smi=small)
    primary = Log()
    primary.ready("09:00:00", 4100, 0.6)
    primary.works("09:02:00", 8, 4100, 88.0)
    primary.breaks("09:10:00", 4100, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", starting=False)
    primary.ready("09:10:06", 4300, 0.6)
    primary.works("09:12:00", 70, 4300, 88.0)
    primary.breaks(
        "10:22:10", 4300, TORCH.format(tried="2.00", free="1.21 GiB", others="Process 7102 has 25.30 GiB memory in use. ", own="52.60", allocated="49.81", spare="118.20 MiB"), starting=False,
    )  # fmt: skip
    told = journal(
        KILLED[0], "09:10:03 vllm.service: Main process exited, code=exited, status=1/FAILURE", "09:10:05 Started vllm.service - vLLM server.",
        "10:22:14 vllm.service: Main process exited, code=exited, status=1/FAILURE", "10:22:14 vllm.service: Failed with result 'exit-code'.",
    )  # fmt: skip
    both = devices((0, 7102, "VLLM::EngineCore", 25907))
    write(to / "standby-not-in-journal", vllm=primary.lines, journal=told, ps=ps(*server(7100, "10:19:55", port=8001)), smi=both)
    own = [f"{DAY:%Y-%m-%d} 10:10:00 engine-manager: vllm does not answer, 1 of 2"]
    write(to / "standby-with-manager-log", vllm=primary.lines, ps=ps(*server(7100, "10:19:55", port=8001)), smi=both, manager=own, events_map=WATCHED)


def main(to: Path) -> None:
    memory(to)
    fragments(to)
    standby(to)
    manager(to)
    several(to)
    edges(to)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
