"""Writes the samples of this folder: a service, four watchdogs and a batch job on a virtual clock, as their logs would tell of it.

    python samples/restarts/write.py [FOLDER]

The lines have the shapes of vLLM 0.33, systemd 252, nginx and a home-made watchdog's log; what happens follows from the
watchdogs' rules and the engine's state, and is not written down by hand.
"""

import datetime
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
DAY = datetime.datetime(2026, 6, 10)
LOAD_S = 215
UNIT = "vllm.service"
PATHS = {"chat": "/v1/chat/completions", "models": "/v1/models", "health": "/health"}


def clock(second: float) -> datetime.datetime:
    return DAY + datetime.timedelta(seconds=second)


@dataclass(frozen=True)
class Watchdog:
    """`kind`: chat (a real request), models and health (light ones), count (5xx in the proxy's log of the last period)."""

    name: str
    kind: str
    period_s: int
    timeout_s: int
    strikes: int
    offset_s: int
    what: str


CHAT = Watchdog("chat-watchdog", "chat", 300, 45, 5, 0, "a chat request")
COUNTER = Watchdog("error-counter", "count", 600, 10, 10, 240, "5xx in nginx's log")
MODELS = Watchdog("models-watchdog", "models", 900, 10, 1, 420, "GET /v1/models")
HEALTH = Watchdog("health-watchdog", "health", 1800, 10, 1, 600, "GET /health")
KUBELET = Watchdog("kube-probe", "health", 30, 5, 3, 10, "GET /health")
FOUR = (CHAT, COUNTER, MODELS, HEALTH)


@dataclass
class World:
    """The service and everybody's logs. Times are seconds of the day."""

    watchdogs: Sequence[Watchdog]
    busy: Callable[[int], bool]
    """Is every slot taken, so that a chat probe waits longer than its patience?"""
    load_s: int = LOAD_S
    dies: bool = False
    """The engine dies where a watchdog would have restarted it, and systemd starts it again."""
    frozen: Callable[[int], bool] = lambda second: False
    """Does nothing move though requests are running? Light requests are answered all the same."""
    prefill: Callable[[int], bool] = lambda second: False
    """Is one long prompt read, so that only the KV usage moves?"""
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    engine: list[tuple[float, str]] = field(default_factory=list)
    journal: list[tuple[float, str]] = field(default_factory=list)
    access: list[tuple[float, str]] = field(default_factory=list)
    watchdog_log: list[tuple[float, str]] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    in_a_row: dict[str, int] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    ready_at: float = 0.0
    pid: int = 4100
    restarts: list[tuple[float, str]] = field(default_factory=list)
    kv: float = 20.0
    due: list[tuple[int, Watchdog, str]] = field(default_factory=list)

    # --- what each writes ---

    def vllm(self, second: float, text: str, who: str = "APIServer", level: str = "INFO", where: str = "launcher.py:254") -> None:
        pid = self.pid if who == "APIServer" else self.pid + 40
        self.engine.append((second, f"({who} pid={pid}) {level} {clock(second):%m-%d %H:%M:%S} [{where}] {text}"))

    def systemd(self, second: float, text: str) -> None:
        self.journal.append((second, f"{clock(second):%Y-%m-%dT%H:%M:%S.%f}+00:00 gpu-1 systemd[1]: {text}"))

    def say(self, second: float, who: Watchdog, text: str) -> None:
        self.watchdog_log.append((second, f"{clock(second):%Y-%m-%d %H:%M:%S} {who.name}: {text}"))

    def request(self, second: float, status: int, path: str, agent: str, took: float, client: str = "10.0.0.21") -> None:
        if status >= 500:
            self.failures.append(second)
        stamp = f"{clock(second):%d/%b/%Y:%H:%M:%S} +0000"
        method = "POST" if path in (PATHS["chat"], "/tokenize") else "GET"
        self.access.append((second, f'{client} - - [{stamp}] "{method} {path} HTTP/1.1" {status} 311 "-" "{agent}" {took:.3f}'))

    # --- the service ---

    def boot(self, second: float, first: bool = False) -> None:
        self.pid += 0 if first else 1000
        self.vllm(second + 4, "  █▄█▀ █     █     █     █  version 0.33.0", where="api_utils.py:347")
        self.vllm(second + 4, "non-default args: {'model_tag': '/models/one', 'port': 8000}", where="api_utils.py:286")
        self.vllm(second + self.load_s - 15, "Loading weights took 168.42 seconds", "Worker", where="default_loader.py:501")
        self.vllm(second + self.load_s - 4, "init engine (profile, create kv cache, warmup model) took 9.10 s", "EngineCore", where="core.py:402")
        self.engine.append((second + self.load_s - 1, f"INFO:     Started server process [{self.pid}]"))
        self.vllm(second + self.load_s - 1, "Application startup complete.", where="on.py:62")
        self.ready_at = second + self.load_s

    def unboot(self, second: float) -> None:
        """What it would have written later is not written."""
        self.engine = [item for item in self.engine if item[0] <= second]

    def up(self, second: float) -> bool:
        return second >= self.ready_at

    def kill(self, second: float, by: str, ask: Callable[[float], None] | None = None) -> None:
        self.restarts.append((second, by))
        self.unboot(second)
        serving = self.up(second)
        if ask is not None:
            ask(second)
        self.systemd(second + 0.4, f"Stopping {UNIT} - vLLM server...")
        if serving:
            self.vllm(second + 1, "[shutdown] API server: shutdown triggered")
            self.vllm(second + 1, "[shutdown] API server: stopping engine client mode=abort timeout=0s", where="launcher.py:270")
            for number in range(4):
                self.vllm(second + 1 + number // 2, "RuntimeError: cannot schedule new futures after shutdown", level="ERROR", where="serving.py:310")
                self.request(second + 1 + number // 2, 500, "/v1/chat/completions", "python-httpx/0.28", 0.02)
            for _ in range(8):
                self.request(second + 2, 500, "/v1/chat/completions", "batch/2.1", self.rng.uniform(40, 200))
            self.vllm(second + 3, "[shutdown] EngineCore: trigger received signal=SIGTERM", "EngineCore", where="core.py:1454")
            self.vllm(second + 3, "EngineCore encountered an issue. See stack trace (above) for the root cause.", level="ERROR", where="async_llm.py:702")
            self.vllm(second + 3, "[shutdown] MPClient: complete", where="core_client.py:777")
        else:
            self.vllm(second + 1, "KeyboardInterrupt: terminated", level="ERROR", where="api_server.py:90")
        self.systemd(second + 5, f"{UNIT}: Deactivated successfully.")
        self.systemd(second + 5, f"Stopped {UNIT} - vLLM server.")
        self.systemd(second + 5.2, f"Started {UNIT} - vLLM server.")
        self.boot(second + 5.2)

    def die(self, second: float) -> None:
        self.restarts.append((second, "itself"))
        self.unboot(second)
        self.vllm(second, "EngineCore encountered a fatal error.", "EngineCore", "ERROR", "core.py:935")
        self.vllm(second, "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "EngineCore", "ERROR", "core.py:935")
        self.vllm(second + 1, "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup", level="ERROR", where="core_client.py:771")
        for _ in range(8):
            self.vllm(second + 1, "EngineCore encountered an issue. See stack trace (above) for the root cause.", level="ERROR", where="async_llm.py:702")
            self.request(second + 1, 500, "/v1/chat/completions", "batch/2.1", self.rng.uniform(40, 200))
        self.vllm(second + 2, "[shutdown] API server: shutdown triggered")
        self.systemd(second + 5, f"{UNIT}: Main process exited, code=exited, status=1/FAILURE")
        self.systemd(second + 5, f"{UNIT}: Failed with result 'exit-code'.")
        self.systemd(second + 8, f"{UNIT}: Scheduled restart job, restart counter is at {len(self.restarts)}.")
        self.systemd(second + 8.1, f"Started {UNIT} - vLLM server.")
        self.boot(second + 8.1)

    def traffic(self, second: int) -> None:
        """Statistics every 30 s, a request of a user every 40 s."""
        if second % 30 == 20 and self.up(second):
            running = 4 if self.busy(second) or self.frozen(second) else 1
            speed = 0.0 if self.frozen(second) or self.prefill(second) else self.rng.uniform(7.2, 8.6) * running
            self.kv = self.kv if self.frozen(second) else self.kv + 0.3 if self.prefill(second) else self.rng.uniform(20, 60)
            self.vllm(second, f"Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {speed:.1f} tokens/s, Running: {running} reqs, "
                              f"Waiting: {3 * (running > 1)} reqs, GPU KV cache usage: {self.kv:.1f}%, Prefix cache hit rate: 0.0%", where="loggers.py:335")
        if self.frozen(second) and second % 60 == 45 and self.up(second):
            self.vllm(second, "No available shared memory broadcast block found in 60 seconds. This typically happens when some processes are hanging or "
                              "doing some time-consuming work (e.g. compilation, weight/kv cache quantization).", "EngineCore", where="shm_broadcast.py:681")
        if self.rng.random() < 1 / 40:
            if not self.up(second):
                self.request(second, 502, "/v1/chat/completions", "python-httpx/0.28", 0.001)
            elif not self.frozen(second) and not self.prefill(second) and not self.busy(second):
                self.request(second, 200, "/v1/chat/completions", "python-httpx/0.28", self.rng.uniform(4, 30))
            elif not self.frozen(second) and not self.prefill(second) and self.rng.random() < 0.5:
                self.request(second, 200, "/v1/chat/completions", "batch/2.1", self.rng.uniform(90, 400))

    # --- the watchdogs ---

    def look(self, second: int, dog: Watchdog) -> None:
        if dog.kind == "count":
            begin = max(second - dog.period_s, self.since.get(dog.name, 0.0))
            errors = sum(begin < moment <= second for moment in self.failures)
            if errors >= dog.strikes:
                self.act(second, dog, f"{errors} errors in the last {dog.period_s} s, restarting vllm")
            return
        down = not self.up(second)
        stuck = dog.kind == "chat" and (self.busy(second) or self.frozen(second))
        path = PATHS[dog.kind]
        end = second + (dog.timeout_s if stuck and not down else 0)
        self.request(end, 502 if down else 499 if stuck else 200, path, f"{dog.name}/1", dog.timeout_s if stuck and not down else 1.2, "10.0.0.9")
        self.in_a_row[dog.name] = count = self.in_a_row.get(dog.name, 0) + 1 if down or stuck else 0
        if not count:
            return
        why = "connection refused" if down else f"no answer within {dog.timeout_s} s"
        self.say(end, dog, f"probe failed ({why}), {count} of {dog.strikes}")
        if count >= dog.strikes:
            self.in_a_row[dog.name] = 0
            self.due.append((end + 1, dog, f"stuck: {count} failures in a row, restarting vllm"))

    def act(self, second: float, dog: Watchdog, text: str) -> None:
        if self.dies:
            if self.up(second):
                self.die(second)
            return
        self.say(second, dog, text)
        self.since[dog.name] = second + 3
        self.kill(second, dog.name)

    def run(self, begin: int, end: int, most: int = 8) -> None:
        """One second after the other; no more restarts than asked for."""
        self.systemd(begin, f"Started {UNIT} - vLLM server.")
        self.boot(begin, first=True)
        for second in range(begin, end):
            self.traffic(second)
            for item in [item for item in self.due if item[0] <= second]:
                self.due.remove(item)
                self.act(*item)
            for dog in self.watchdogs:
                if second % dog.period_s == dog.offset_s % dog.period_s and second - begin > self.load_s + 60 and len(self.restarts) < most:
                    self.look(second, dog)

    def write(self, folder: Path, *, without: frozenset[str] = frozenset()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        logs = {"vllm.log": self.engine, "journal.log": self.journal, "access.log": self.access, "watchdog.log": self.watchdog_log}
        for name, lines in logs.items():
            if lines and name not in without:
                (folder / name).write_text("".join(f"{line}\n" for _, line in sorted(lines, key=lambda item: item[0])))
        if "watchdog.log" not in without and self.watchdog_log:
            (folder / "events-map.toml").write_text(events_map(self.watchdogs))


def events_map(dogs: Sequence[Watchdog]) -> str:
    """What their owner says of their lines."""
    parts = []
    for dog in dogs:
        rule = f"period_s = {dog.period_s}\ntimeout_s = {dog.timeout_s}\nstrikes = {dog.strikes}\nwhat = \"{dog.what}\"\n"
        for kind, words in (("restart", "restarting (?P<unit>\\w+)"), ("probe_failed", "probe failed")):
            if dog.kind != "count" or kind == "restart":
                parts.append(
                    f'[[event]]\nfile = "watchdog.log"\nkind = "{kind}"\ninitiator = "{dog.name}"\n'
                    f"regex = '^(?P<ts>\\S+ \\S+) {dog.name}: .*{words}'\n{rule if kind == 'restart' else ''}"
                )
    return "\n".join(parts)


def sudo(world: World, user: str = "dana") -> Callable[[float], None]:
    return lambda second: world.journal.append(
        (second, f"{clock(second):%Y-%m-%dT%H:%M:%S.%f}+00:00 gpu-1 sudo[811]: {user} : TTY=pts/0 ; PWD=/srv ; USER=root ; COMMAND=/usr/bin/systemctl restart {UNIT}")
    )


def hours(*spans: tuple[float, float]) -> Callable[[int], bool]:
    """True in these stretches of the day, in hours."""
    return lambda second: any(first * 3600 <= second < last * 3600 for first, last in spans)


def cascade(dies: bool = False) -> World:
    world = World(FOUR, hours((9.05, 9.5), (13.05, 13.5)), dies=dies)
    world.run(8 * 3600, 14 * 3600 + 1800)
    return world


def once(frozen: Callable[[int], bool] | None = None) -> World:
    """One watchdog, one restart: of an engine with every slot taken, or of one that is stuck."""
    world = World((CHAT,), hours((9.05, 9.5)) if frozen is None else hours(), frozen=frozen or (lambda second: False))
    world.run(8 * 3600 + 1800, 9 * 3600 + 2700, most=1)
    return world


def beside_a_router() -> World:
    """The first chain of `cascade`, and a person who restarts another service meanwhile."""
    world = World(FOUR, hours((9.05, 9.5)))
    world.run(8 * 3600 + 1800, 10 * 3600 + 1800, most=4)
    for after, text in ((0, "Stopping router.service - router..."), (1, "router.service: Deactivated successfully."), (1, "Stopped router.service - router."),
                        (2, "Started router.service - router.")):  # fmt: skip
        world.systemd(world.restarts[1][0] - 60 + after, text)
    return world


def after_a_hang() -> World:
    """The engine is stuck, the chat probe restarts it, and who counts errors restarts it once more for what that left."""
    world = World((CHAT, COUNTER), hours(), frozen=hours((9.05, 9.5)))
    world.run(8 * 3600 + 1800, 9 * 3600 + 3000, most=2)
    return world


def watched(frozen: Callable[[int], bool] | None = None, prefill: Callable[[int], bool] | None = None) -> World:
    """Nobody but the kubelet asks, and only for /health."""
    world = World((KUBELET,), hours(), frozen=frozen or hours(), prefill=prefill or hours())
    world.run(8 * 3600 + 2700, 9 * 3600 + 1800)
    return world


def tight(took_s: Callable[[random.Random], float]) -> World:
    """Probes of the kubelet that take so long."""
    world = World((), hours())
    world.run(9 * 3600, 9 * 3600 + 2400)
    for second in range(9 * 3600 + 300, 9 * 3600 + 2400, 10):
        seconds = took_s(world.rng)
        world.request(second + min(seconds, 1.0), 499 if seconds >= 1 else 200, "/health", "kube-probe/1.31", min(seconds, 1.0), "10.0.0.1")
    return world


DESCRIBED = """\
Name:             llm-0
Namespace:        serving
Containers:
  server:
    State:          Running
      Started:      Wed, 10 Jun 2026 09:00:00 +0000
    Ready:          True
    Restart Count:  0
    Liveness:       http-get http://:8000/health delay=300s timeout=1s period=10s #success=1 #failure=3
"""


MAPPED = """\
[[event]]
file = "watchdog.log"
kind = "restart"
initiator = "cron-check"
regex = '^(?P<ts>\\S+ \\S+) cron-check: .*restarting'
timeout_s = 1
what = "GET /health"
"""
"""What the owner of a check says that waits a second; how often it asks, and how many misses it takes, he does not say."""
FAILED = """\
Events:
  Type     Reason     Age                 From     Message
  ----     ------     ----                ----     -------
  Warning  Unhealthy  4m (x9 over 35m)    kubelet  Liveness probe failed: Get "http://10.2.0.7:8000/health": context deadline exceeded (Client.Timeout exceeded while awaiting headers)
  Warning  Unhealthy  2m (x3 over 30m)    kubelet  Readiness probe failed: Get "http://10.2.0.7:8000/health": context deadline exceeded (Client.Timeout exceeded while awaiting headers)
  Normal   Killing    1m                  kubelet  Container server failed liveness probe, will be restarted
"""


def tokenizing() -> World:
    """The stuck engine of `once`, whose front end still counts tokens for whoever asks."""
    world = once(frozen=hours((9.05, 9.5)))
    for second in range(int(9.05 * 3600), int(world.restarts[0][0]), 40):
        world.request(second, 200, "/tokenize", "app/3.2", 0.004)
    return world


def hang(end: float = 9.4, *, light: str = PATHS["health"], answered: int = 0, seen: bool = False, notices: int | None = None) -> World:
    """The hang of `watched` from nine on: what it asks for, how many chat requests are answered all the same, whether /health sees it, how often the engine complains."""
    world, begin = watched(frozen=hours((9.0, end))), 9 * 3600
    health = [item for item in world.access if "GET /health" in item[1] and begin + 60 < item[0] < end * 3600]
    changed = {item: (item[0], item[1].replace('HTTP/1.1" 200', 'HTTP/1.1" 503')) for item in health[1:] if seen}
    world.access = [changed.get(item, item) for item in world.access]
    world.access = [(second, line.replace(f"GET {PATHS['health']} ", f"GET {light} ")) for second, line in world.access]
    for number in range(answered):
        world.request(begin + 90 + 45 * number, 200, PATHS["chat"], "app/3.2", 2.1)
    told = [item for item in world.engine if "No available shared memory" in item[1]]
    world.engine = [item for item in world.engine if item not in told or notices is None or item in told[:notices]]
    return world


def journal_of(folder: Path, *deaths: tuple[int, float, str]) -> None:
    """Deaths (day, hour, unit), each followed by systemd's own restart."""
    lines = []
    for day, hour, unit in deaths:
        for after, text in ((0, f"{unit}: Main process exited, code=killed, status=11/SEGV"), (0, f"{unit}: Failed with result 'signal'."),
                            (3, f"{unit}: Scheduled restart job, restart counter is at 1."), (3, f"Started {unit} - model server.")):  # fmt: skip
            lines.append(f"{clock(86400 * day + 3600 * hour + after):%Y-%m-%dT%H:%M:%S}.000000+00:00 gpu-1 systemd[1]: {text}\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "journal.log").write_text("".join(lines))
    (folder / "vllm.log").write_text(STARTED)


STARTED = """\
(APIServer pid=4100) INFO 06-10 08:00:04 [api_utils.py:286] non-default args: {'model_tag': '/models/one', 'port': 8000}
(EngineCore pid=4140) INFO 06-10 08:03:31 [core.py:402] init engine (profile, create kv cache, warmup model) took 9.10 s
(APIServer pid=4100) INFO 06-10 08:03:34 [on.py:62] Application startup complete.
"""
"""The log of the first life, which was rotated away with those that followed."""
POD = """\
Name:             llm-0
Namespace:        serving
Controlled By:    StatefulSet/llm
Containers:
{containers}Conditions:
  Type              Status
  Ready             False
"""
CONTAINER = """\
  {name}:
    State:          {state}
    Last State:     Terminated
      Reason:       Error
      Exit Code:    139
      Started:      Wed, 10 Jun 2026 09:00:00 +0000
      Finished:     Wed, 10 Jun 2026 09:04:11 +0000
    Ready:          False
    Restart Count:  {count}
"""
WAITING, RUNNING = "Waiting\n      Reason:       CrashLoopBackOff", "Running\n      Started:      Wed, 10 Jun 2026 09:04:13 +0000"


def pod(folder: Path, *containers: tuple[str, str, int]) -> None:
    """(name, state, restart count) of containers whose last life ended with a segmentation fault."""
    folder.mkdir(parents=True, exist_ok=True)
    told = "".join(CONTAINER.format(name=name, state=state, count=count) for name, state, count in containers)
    (folder / "pod.txt").write_text(POD.format(containers=told))
    (folder / "vllm.log").write_text(STARTED)


def deploys() -> World:
    world = World((COUNTER,), hours(), load_s=LOAD_S)
    at = {int(hour * 3600) for hour in (9.05, 10.0, 10.9)}
    world.systemd(8 * 3600, f"Started {UNIT} - vLLM server.")
    world.boot(8 * 3600, first=True)
    for second in range(8 * 3600, 11 * 3600 + 1200):
        world.traffic(second)
        if second in at:
            world.kill(second, "dana", sudo(world))
    world.say(8 * 3600, COUNTER, "started")
    return world


def main(to: Path) -> None:
    world = cascade()
    world.write(to / "cascade")
    world.write(to / "cascade-no-watchdog-log", without=frozenset({"watchdog.log"}))
    cascade(dies=True).write(to / "crashes")
    deploys().write(to / "deploys")
    beside_a_router().write(to / "cascade-beside-a-router")
    after_a_hang().write(to / "one-more-after-a-hang")
    after_a_hang().write(to / "one-more-by-nobody", without=frozenset({"watchdog.log"}))
    once().write(to / "false-kill")
    once(frozen=hours((9.05, 9.5))).write(to / "true-hang")
    tokenizing().write(to / "true-hang-tokenizing")
    journal_of(to / "crashes-of-one-unit", *((0, hour, "vllm.service") for hour in (9, 9.5, 10.5)), (0, 10, "router.service"))
    journal_of(to / "crashes-of-two-units", *((0, hour, unit) for hour, unit in ((9, "vllm.service"), (9.5, "router.service"), (10, "vllm.service"), (10.5, "router.service"))))
    journal_of(to / "crashes-days-apart", *((day, 9.0, "vllm.service") for day in (0, 1, 2)))
    pod(to / "crash-loop-pod", ("server", WAITING, 6), ("proxy", RUNNING, 1))
    pod(to / "crashed-twice-pod", ("server", WAITING, 2))
    pod(to / "runs-again-pod", ("server", RUNNING, 6))
    watched(frozen=hours((9.0, 9.4))).write(to / "probe-misses-hang", without=frozenset({"watchdog.log"}))
    no_watchdog = frozenset({"watchdog.log"})
    hang(9.065, answered=2).write(to / "short-hang", without=no_watchdog)
    hang(answered=20, notices=0).write(to / "statistics-hang", without=no_watchdog)
    hang(light=PATHS["models"], answered=1, notices=1).write(to / "models-miss-hang", without=no_watchdog)
    hang(seen=True).write(to / "probe-sees-hang", without=no_watchdog)
    watched(prefill=hours((9.0, 9.4))).write(to / "long-prefill", without=frozenset({"watchdog.log"}))
    for name, took in (("probe-too-tight", lambda rng: rng.lognormvariate(-1.2, 0.9)), ("probe-with-room", lambda rng: rng.uniform(0.002, 0.05))):
        tight(took).write(to / name)
        (to / name / "pod.txt").write_text(DESCRIBED)
    tight(lambda rng: rng.lognormvariate(-1.2, 0.9)).write(to / "probe-too-tight-by-map")
    (to / "probe-too-tight-by-map" / "events-map.toml").write_text(MAPPED)
    tight(lambda rng: rng.lognormvariate(-1.2, 0.9)).write(to / "probe-too-tight-failing")
    (to / "probe-too-tight-failing" / "pod.txt").write_text(DESCRIBED + FAILED)
    for second, who in world.restarts:
        print(f"{clock(second):%H:%M:%S} {who}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
