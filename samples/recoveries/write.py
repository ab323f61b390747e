"""Writes the samples of this folder: one engine that dies and comes back, as its logs would tell of it, with one thing slow at a time.

    python samples/recoveries/write.py [FOLDER]

The lines have the shapes of vLLM 0.18, systemd 252, nginx, Kubernetes and of home-made routers and watchdogs. All cases are
the same quarter of an hour; what is told apart is what the fields of `Case` name.
"""

import datetime
import random
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
DAY = datetime.datetime(2026, 6, 10, 9)
UNIT = "vllm.service"
DIES_S = 1800
"""Seconds after nine at which the engine dies."""
CHAT = "/v1/chat/completions"


def clock(second: float) -> datetime.datetime:
    return DAY + datetime.timedelta(seconds=second)


@dataclass(frozen=True)
class Case:
    """What differs from a recovery in which nothing is slow. Seconds."""

    weights_s: float = 5.8
    filesystem: str = "XFS"
    compile_s: float = 2.0
    cold_cache: bool = False
    partly: bool = False
    """Of two graphs the cold cache has one."""
    probe_s: float = 1.0
    """Period of the watchdog's look; two misses make it act where it looks every second, else five."""
    strikes: int = 2
    keeps_running: bool = False
    """The API server does not end with its engine: it takes the watchdog."""
    switch_s: float = 1.0
    """When the router sends traffic, after ready."""
    router_log: bool = True
    proxy_log: bool = True
    asked: bool = True
    """Do users ask while nothing is served?"""
    backlog: int = 0
    """Requests that the router lets go at once when it is ready."""
    gradual: bool = False
    """Or it answers 429 to most of them, and lets in what the engine can serve."""
    admitted_pct: int = 30
    patience_s: float = 60.0
    """After how long a client gives up."""
    queue_s: float = 0.0
    """How long the proxy keeps requests after ready."""
    kept: int = 60
    """How many it keeps."""
    stay_of: int = 3
    """Of so many one stays for its answer; negative: of so many one leaves."""
    leave_anyway: bool = False
    """Clients leave on ordinary days too, every third after 30 s."""
    too_many: bool = False
    """The proxy answers 429 rather than let anybody wait."""
    warmed: bool = True
    worked_s: int = 600
    """How long it had worked before."""
    hit_before_pct: float = 62.0
    hit_after_pct: float = 3.0
    """Prefix hit rate, and that of the first minute where it is not warmed."""
    cold_s: int = 70
    """How long it is not warm."""
    preempts: bool = False
    """The first minute throws requests out of the cache again."""
    begins_cold: bool = False
    """The first start of a deployment: nothing was there before."""


@dataclass
class World:
    """Everybody's logs."""

    case: Case
    rng: random.Random = field(default_factory=lambda: random.Random(11))
    engine: list[tuple[float, str]] = field(default_factory=list)
    journal: list[tuple[float, str]] = field(default_factory=list)
    access: list[tuple[float, str]] = field(default_factory=list)
    router: list[tuple[float, str]] = field(default_factory=list)
    watchdog: list[tuple[float, str]] = field(default_factory=list)
    pid: int = 5100
    from_s: float = 0.0
    """When its quarter of an hour begins, after nine."""

    def clock(self, second: float) -> datetime.datetime:
        return clock(self.from_s + second)

    def vllm(self, second: float, text: str, who: str = "APIServer", level: str = "INFO", where: str = "api_server.py:1024") -> None:
        pid = self.pid + {"APIServer": 0, "EngineCore": 40, "Worker": 80}[who]
        self.engine.append((second, f"({who} pid={pid}) {level} {self.clock(second):%m-%d %H:%M:%S} [{where}] {text}"))

    def systemd(self, second: float, text: str, who: str = "systemd[1]") -> None:
        self.journal.append((second, f"{self.clock(second):%Y-%m-%dT%H:%M:%S.%f}+00:00 gpu-1 {who}: {text}"))

    def route(self, second: float, text: str) -> None:
        self.router.append((second, f"{self.clock(second):%Y-%m-%d %H:%M:%S} router: {text}"))

    def watch(self, second: float, text: str) -> None:
        self.watchdog.append((second, f"{self.clock(second):%Y-%m-%d %H:%M:%S} watchdog: {text}"))

    def request(self, begin: float, took_s: float, status: int = 200, first_byte_s: float | None = None) -> None:
        end = begin + took_s
        first = "-" if first_byte_s is None else f"{first_byte_s:.3f}"
        self.access.append((end, f'10.0.0.21 - - [{self.clock(end):%d/%b/%Y:%H:%M:%S} +0000] "POST {CHAT} HTTP/1.1" {status} 311 "-" "app/3.2" '
                                 f'rt={took_s:.3f} uht="{first}" ua="10.0.0.7:8000"'))

    def stats(self, second: float, running: int, waiting: int, kv_pct: float, hit_pct: float) -> None:
        self.vllm(second, f"Engine 000: Avg prompt throughput: {running * 31.0:.1f} tokens/s, Avg generation throughput: {running * 42.5:.1f} tokens/s, "
                          f"Running: {running} reqs, Waiting: {waiting} reqs, GPU KV cache usage: {kv_pct:.1f}%, Prefix cache hit rate: {hit_pct:.1f}%", where="loggers.py:248")

    # --- a start, a life, an end ---

    def boot(self, second: float) -> float:
        """One start; when it is ready."""
        case, worker = self.case, "Worker"
        self.vllm(second + 4, "vLLM API server version 0.18.1")
        self.vllm(second + 4, "non-default args: {'model_tag': '/models/one', 'port': 8000}")
        self.vllm(second + 9, "Initializing a V1 LLM engine (v0.18.1) with config: model='/models/one'", "EngineCore", where="core.py:93")
        self.vllm(second + 12, "rank 0 in world size 1 is assigned as DP rank 0, PP rank 0, TP rank 0, EP rank 0", worker, where="parallel_state.py:1208")
        at = second + 13
        self.vllm(at, "Starting to load model /models/one...", worker, where="gpu_model_runner.py:2602")
        self.vllm(at, f"Filesystem type for checkpoints: {case.filesystem}. Checkpoint size: 15.27 GiB. Available RAM: 412.00 GiB.", worker, where="weight_utils.py:1108")
        at += case.weights_s + 0.6
        self.vllm(at, f"Loading weights took {case.weights_s:.2f} seconds", worker, where="default_loader.py:314")
        self.vllm(at, f"Model loading took 15.27 GiB memory and {case.weights_s + 0.6:.2f} seconds", worker, where="gpu_model_runner.py:2620")
        self.vllm(at + 1, "Using cache directory: /home/serve/.cache/vllm/torch_compile_cache/8f1c02/rank_0_0/backbone for vLLM's torch.compile", "EngineCore", where="backends.py:548")
        share = case.compile_s / 2
        self.vllm(at + 1 + share, f"Dynamo bytecode transform time: {share:.2f} s", "EngineCore", where="backends.py:559")
        at += 1 + case.compile_s
        if case.partly:
            self.vllm(at, "Directly load the compiled graph(s) for compile range (8193, 16384) from the cache, took 0.410 s", "EngineCore", where="backends.py:164")
        if case.cold_cache:
            self.vllm(at, f"Compiling a graph for compile range (1, 8192) takes {share:.2f} s", "EngineCore", where="backends.py:226")
        else:
            self.vllm(at, f"Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took {share:.3f} s", "EngineCore", where="backends.py:164")
        self.vllm(at, f"torch.compile takes {case.compile_s:.2f} s in total", "EngineCore", where="monitor.py:34")
        self.vllm(at + 4, "Available KV cache memory: 51.20 GiB", "Worker", where="gpu_worker.py:298")
        self.vllm(at + 4, "GPU KV cache size: 419,424 tokens", "EngineCore", where="kv_cache_utils.py:1087")
        self.vllm(at + 10, "Graph capturing finished in 5 secs, took 0.62 GiB", "Worker", where="gpu_model_runner.py:3480")
        self.vllm(at + 11, f"init engine (profile, create kv cache, warmup model) took {12 + case.compile_s:.2f} seconds", "EngineCore", where="core.py:218")
        self.vllm(at + 12, "Starting vLLM API server 0 on http://0.0.0.0:8000")
        self.engine.append((at + 13, f"INFO:     Started server process [{self.pid}]"))
        self.vllm(at + 13, "Application startup complete.", where="on.py:62")
        return at + 13

    def serve(self, begin: float, end: float, slower: float = 1.0, hit_pct: float = 62.0) -> None:
        """A request every two seconds, statistics every ten."""
        for number, second in enumerate(range(int(begin), int(end), 2)):
            took = self.rng.uniform(0.8, 1.6) * slower
            if self.case.leave_anyway and number % 3 == 0 and second < end - 30:
                self.request(second, 30.0, 499)
            else:
                self.request(second, took, first_byte_s=took / 3)
        for second in range(int(begin) + 6, int(end), 10):
            self.stats(second, self.rng.randint(2, 4), 0, self.rng.uniform(20, 30), hit_pct)

    def dies(self) -> float:
        """The engine dies; when the new process begins."""
        case, second = self.case, float(DIES_S)
        self.systemd(second, "NVRM: Xid (PCI:0000:41:00): 79, pid=5140, name=VLLM::EngineCor, GPU has fallen off the bus.", "kernel")
        self.vllm(second + 0.2, "EngineCore encountered a fatal error.", "EngineCore", "ERROR", "core.py:935")
        self.vllm(second + 0.2, "torch.AcceleratorError: CUDA error: unspecified launch failure", "EngineCore", "ERROR", "core.py:935")
        for _ in range(3):
            self.request(second - 1, 1.2, 500)
        if not case.keeps_running:
            self.vllm(second + 0.3, "Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.", level="ERROR", where="core_client.py:771")
            self.systemd(second + 1, f"{UNIT}: Main process exited, code=exited, status=1/FAILURE")
            self.systemd(second + 1, f"{UNIT}: Failed with result 'exit-code'.")
            self.systemd(second + 2, f"{UNIT}: Scheduled restart job, restart counter is at 1.")
            self.systemd(second + 2.1, f"Started {UNIT} - vLLM server.")
            return second + 2.1
        for number in range(1, case.strikes + 1):
            self.watch(second + number * case.probe_s, f"probe failed (no heartbeat), {number} of {case.strikes}")
        at = second + case.strikes * case.probe_s + 0.2
        self.watch(at, "restarting vllm")
        self.systemd(at + 0.3, f"Stopping {UNIT} - vLLM server...")
        self.systemd(at + 1.3, f"{UNIT}: Deactivated successfully.")
        self.systemd(at + 1.3, f"Stopped {UNIT} - vLLM server.")
        self.systemd(at + 1.4, f"Started {UNIT} - vLLM server.")
        return at + 1.4

    def comes_back(self, begun: float) -> None:
        """From the new process until the end of the evidence."""
        case = self.case
        self.pid += 1000
        ready = self.boot(begun)
        switched = ready + case.switch_s
        if case.asked:
            for second in range(DIES_S + 3, int(switched), 4):
                self.request(second, 0.002, 429 if case.too_many else 503)
        if case.switch_s > 10:
            self.route(ready + 1, "10.0.0.7:8000 is ready, waiting for the drain of 10.0.0.8:8000 to end")
            self.route(switched - 0.5, "drain done: 10.0.0.8:8000")
        self.route(switched, "traffic switched to 10.0.0.7:8000")
        self.route(switched, f"admitting {100 if case.backlog and not case.gradual else case.admitted_pct}%")
        calm = switched
        if case.backlog and not case.gradual:
            calm = self.rush(switched)
        elif case.admitted_pct < 100:
            self.route(switched + 30, "admitting 100%")
        if case.gradual:
            calm = self.trickle(switched)
        if case.queue_s:
            calm = self.queued(switched)
        if not case.warmed:
            self.serve(switched, switched + case.cold_s, slower=6.0, hit_pct=case.hit_after_pct)
            calm = switched + case.cold_s
        if case.preempts:
            self.preemptions(switched)
        self.serve(calm, calm + 180, hit_pct=case.hit_before_pct)

    def rush(self, second: float) -> float:
        """The whole backlog at once: most of it waits, some is thrown out of the cache again, the last ones time out."""
        backlog = self.case.backlog
        if backlog < 64:
            return self.burst(second)
        self.route(second, f"released {backlog} queued requests")
        for number in range(backlog):
            took = 2.0 + 0.4 * number
            late = took > self.case.patience_s
            self.request(second, min(took, self.case.patience_s), 504 if late else 200, None if late else took - 1.0)
        for place, waiting in enumerate((backlog - 32, backlog - 80, 90, 40, 0)):
            self.stats(second + 5 + 10 * place, 32, max(0, waiting), 99.1, 4.0)
        self.preemptions(second)
        return second + 90

    def burst(self, second: float) -> float:
        """A small backlog: it waits for a moment, and nobody notices."""
        backlog = self.case.backlog
        self.route(second, f"released {backlog} queued requests")
        for _ in range(backlog):
            took = self.rng.uniform(1.0, 1.9)
            self.request(second, took, first_byte_s=took / 2)
        self.stats(second + 1, backlog // 4, backlog // 2, 60.0, 50.0)
        return second + 4

    def preemptions(self, second: float) -> None:
        for number in range(3):
            self.vllm(second + 7 + number, f"Sequence group {number} is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space.",
                      "EngineCore", "WARNING", "scheduler.py:1057")

    def trickle(self, second: float) -> float:
        """The same backlog, let in as it can be served."""
        for number in range(self.case.backlog):
            took = self.rng.uniform(0.9, 2.2)
            self.request(second + 0.3 * number, took, first_byte_s=took / 3)
        for place, running in enumerate((8, 9, 12, 16, 17, 16, 10)):
            self.stats(second + 5 + 10 * place, running, place % 3, 40.0 + running, 20.0 + 6 * place)
        return second + 90

    def queued(self, second: float) -> float:
        """The proxy keeps a queue that is longer than clients wait: it lets some go too late."""
        case = self.case
        if not case.too_many:
            self.route(second, f"released {case.kept} queued requests")
        for number in range(case.kept):
            begin = second - case.queue_s + 10 + 2 * number
            stays = number % case.stay_of == 0 if case.stay_of > 0 else number % -case.stay_of > 0
            if not stays and not case.too_many:
                self.request(begin, case.patience_s, 499)
            elif case.too_many and number % 3:
                self.request(begin + case.queue_s, 0.002, 429)
            else:
                wait = case.queue_s if not case.too_many else 0.4
                self.request(begin + (0 if not case.too_many else case.queue_s), wait + 1.1, first_byte_s=wait)
        return second + 100

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        logs = {"vllm.log": self.engine, "journal.log": self.journal}
        if self.case.proxy_log:
            logs["access.log"] = self.access
        if self.case.router_log:
            logs["router.log"] = self.router
        if self.watchdog:
            logs["watchdog.log"] = self.watchdog
        for name, lines in logs.items():
            (folder / name).write_text("".join(f"{line}\n" for _, line in sorted(lines, key=lambda item: item[0])))
        entries = [ROUTER] if self.case.router_log else []
        if self.watchdog:
            entries.append(WATCHDOG.format(period=self.case.probe_s, strikes=self.case.strikes))
        if entries:
            (folder / "events-map.toml").write_text("\n".join(entries))


def _entry(file: str, kind: str, initiator: str, words: str, more: str = "") -> str:
    return f'[[event]]\nfile = "{file}"\nkind = "{kind}"\ninitiator = "{initiator}"\nregex = \'^(?P<ts>\\S+ \\S+) {words}\'\n{more}'


ROUTER = "\n".join((
    _entry("router.log", "drain_done", "router", "router: drain done: (?P<unit>\\S+)"), _entry("router.log", "traffic_switch", "router", "router: traffic switched to (?P<unit>\\S+)"),
    _entry("router.log", "admitted_pct", "router", "router: admitting (?P<code>\\d+)%"), _entry("router.log", "queue_released", "router", "router: released (?P<code>\\d+) queued"),
))  # fmt: skip
WATCHDOG = "\n".join((
    _entry("watchdog.log", "restart", "watchdog", "watchdog: restarting (?P<unit>\\S+)", "period_s = {period}\ntimeout_s = 1\nstrikes = {strikes}\nwhat = \"a heartbeat\"\n"),
    _entry("watchdog.log", "probe_failed", "watchdog", "watchdog: probe failed"),
))  # fmt: skip


def recovery(case: Case, from_s: float = 0.0) -> World:
    """Ten minutes of work, a death, a recovery; or, of a first start, only that."""
    world = World(case, from_s=from_s)
    if case.begins_cold:
        world.systemd(0, f"Started {UNIT} - vLLM server.")
        ready = world.boot(0)
        world.serve(ready + 1, ready + 180)
        return world
    ordinary = World(replace(case, weights_s=5.8, compile_s=2.0, cold_cache=False, partly=False, filesystem="XFS"), rng=world.rng, from_s=from_s)
    ordinary.systemd(DIES_S - case.worked_s - 36, f"Started {UNIT} - vLLM server.")
    ordinary.boot(DIES_S - case.worked_s - 36)
    ordinary.serve(DIES_S - case.worked_s, DIES_S, hit_pct=case.hit_before_pct)
    world.engine, world.journal, world.access = ordinary.engine, ordinary.journal, ordinary.access
    world.comes_back(world.dies())
    return world


CASES = {
    "healthy": Case(),
    "cold-start": Case(weights_s=168.4, filesystem="NFS", begins_cold=True, router_log=False),
    "slow-detect": Case(keeps_running=True, probe_s=30.0, strikes=5),
    "quick-detect": Case(keeps_running=True),
    "slow-switch": Case(switch_s=95.0),
    "no-router-log": Case(switch_s=95.0, router_log=False, proxy_log=False),
    "nobody-asked": Case(switch_s=95.0, router_log=False, asked=False),
    "thundering": Case(backlog=240),
    "admitted-gradually": Case(backlog=240, gradual=True),
    "expired-queue": Case(queue_s=45.0, patience_s=30.0),
    "two-left": Case(queue_s=45.0, patience_s=30.0, kept=5),
    "one-in-ten-left": Case(queue_s=45.0, patience_s=30.0, stay_of=-10),
    "leave-anyway": Case(queue_s=45.0, patience_s=30.0, stay_of=2, leave_anyway=True),
    "refused-early": Case(queue_s=45.0, patience_s=30.0, too_many=True),
    "not-warm": Case(warmed=False),
    "slow-weights": Case(weights_s=168.4, filesystem="NFS"),
    "slow-compile": Case(compile_s=96.0, cold_cache=True),
    "slow-compile-partly": Case(compile_s=96.0, cold_cache=True, partly=True, worked_s=100),
    "slow-compile-network": Case(compile_s=96.0, cold_cache=True, weights_s=30.0, filesystem="NFS", worked_s=100),
    "slow-weights-cold-cache": Case(weights_s=168.4, filesystem="NFS", compile_s=24.0, cold_cache=True, worked_s=100),
    "short-switch": Case(switch_s=5.5, worked_s=100),
    "router-log-only": Case(proxy_log=False, worked_s=100),
    "kernels-not-warm": Case(warmed=False, hit_after_pct=60.0, cold_s=20, worked_s=100),
    "no-shared-prefixes": Case(warmed=False, hit_before_pct=8.0, hit_after_pct=2.0, cold_s=20, worked_s=100),
    "thundering-no-router-log": Case(backlog=240, router_log=False, worked_s=100),
    "backlog-served": Case(backlog=40, worked_s=100),
}


EVENTS = """\
LAST SEEN              TYPE      REASON      OBJECT      MESSAGE
{rows}"""


def killing(folder: Path, reason: str, failures: bool) -> None:
    """A pod whose container is ended while its engine works: for a rollout, or for a probe that failed."""
    world = World(Case(router_log=False, proxy_log=False))
    world.boot(-36)
    for second in range(0, 600, 10):
        world.stats(second, 4, 0, 30.0 + second / 100, 60.0)
    world.vllm(601, "[shutdown] API server: shutdown triggered", where="launcher.py:254")
    world.pid += 1000
    ready = world.boot(606)
    for second in range(int(ready), int(ready) + 120, 10):
        world.stats(second, 4, 0, 30.0, 60.0)
    rows = []
    for second in (550, 570, 590) if failures else ():
        rows.append((second, "Warning", "Unhealthy", "Liveness probe failed: Get \"http://10.0.0.7:8000/health\": context deadline exceeded"))
    rows += [(600, "Normal", "Killing", reason), (606, "Normal", "Started", "Started container server")]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vllm.log").write_text("".join(f"{line}\n" for _, line in sorted(world.engine, key=lambda item: item[0])))
    (folder / "events.txt").write_text(EVENTS.format(rows="".join(f"{clock(second):%Y-%m-%dT%H:%M:%SZ}   {kind:<8}  {why:<10}  pod/llm-0   {text}\n" for second, kind, why, text in rows)))


def one_after_another(*cases: Case) -> World:
    """Recoveries an hour apart; in between the engine is started anew by hand."""
    first, *others = (recovery(case, 3600.0 * number) for number, case in enumerate(cases))
    for number, other in enumerate(others, 1):
        first.stats(max(first.engine)[0] + 10, 0, 0, 0.0, 62.0)
        stop = World(Case(), from_s=3600.0 * number)
        begun = DIES_S - cases[number].worked_s - 40
        stop.systemd(begun, "dana : TTY=pts/0 ; PWD=/srv ; USER=root ; COMMAND=/usr/bin/systemctl restart vllm", "sudo[811]")
        stop.systemd(begun, f"Stopping {UNIT} - vLLM server...")
        stop.systemd(begun + 3, f"Stopped {UNIT} - vLLM server.")
        for mine, theirs in ((first.engine, other.engine), (first.journal, stop.journal + other.journal), (first.access, other.access), (first.router, other.router)):
            mine += [(3600.0 * number + second, line) for second, line in theirs]
    return first


def main(to: Path) -> None:
    for name, case in CASES.items():
        recovery(case).write(to / name)
    one_after_another(CASES["backlog-served"], replace(CASES["not-warm"], preempts=True, worked_s=100)).write(to / "backlog-served-then-not-warm")
    killing(to / "rollout-killing", "Stopping container server", failures=False)
    killing(to / "liveness-killing", "Container server failed liveness probe, will be restarted", failures=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
