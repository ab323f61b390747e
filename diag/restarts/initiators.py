"""Who pulled the trigger of a restart, and whether the process had died before anybody did.

    journald   Scheduled restart job, no Stopping before it      the supervisor, after a death
               Stopping/Stopped/Started                           somebody outside: sudo, cron, a unit of a timer within seconds
               Watchdog timeout (limit …)!                        systemd's WatchdogSec=
    docker     kill -> die -> stop -> start -> restart            `docker restart` by a script; die -> start: the restart policy
    kubelet    failed liveness probe, will be restarted           the kubelet; Stopping container: removal of the pod, a rollout
    engine     Watchdog timeout (self.watchdog_timeout=…)         SGLang's own watchdog
               shutdown triggered, received signal=SIGTERM        a signal from outside, and no crash
               cannot schedule new futures after shutdown         the same, seen by a client
               encountered a fatal error, died unexpectedly       a crash
    own log    an event that the events map names `restart`       a watchdog of one's own, unless it speaks of a deployment
               `killing` of an events map                         whose rule or probes are known: a watchdog; else who asked is open
               `exit` or `stop` of an events map                  only who wrote it down; who restarts what he saw exit is a supervisor
"""

import re
from collections.abc import Sequence

from diag.restarts import fingerprints
from diag.restarts.records import Event, Line, Restart, Time, between_s

SUPERVISORS = frozenset({"systemd", "docker (restart policy)", "supervisord", "kubelet"})
"""They start again what has died: no cause."""
MOPPING_UP = frozenset({"systemd", "systemd (stop timeout)", "supervisord (stop timeout)"})
"""They end what does not end by itself after somebody else asked for it."""
GAVE_UP = frozenset({"systemd (start limit)", "supervisord (gave up)"})
ROLLOUT = ("kubernetes (", "kubelet (definition changed)", "kubelet (eviction)", "scheduler (preemption)", "host boot", "deployment/", "replicaset/", "statefulset/")
PROBERS = ("kubelet (liveness probe)", "kubelet (startup probe)", "systemd (watchdog)", "docker (healthcheck)", "cron (", "autoheal")
ENGINES_OWN = "sglang (watchdog)"
DEPLOYS = re.compile(r"(?i)\b(?:re)?(?:deploy\w*|roll(?:ing|ed)?[ -]?(?:out|update|restart|back)\w*|releas\w+|upgrad\w+|helm|argo\w*|ansible|spinnaker)\b")
WATCHES = re.compile(r"(?i)watch|prob(?:e|er|ing)|health|liveness|heartbeat|monitor|heal")
"""What logs of one's own call themselves, or say of what they do."""
NEAR_BEFORE_S, NEAR_AFTER_S = 120.0, 30.0
"""A watchdog says that it restarts just before it does, or when `systemctl restart` has returned."""
ASK_TIE_S = 1.0
"""Who only says that he restarts sends no signal by it: where a line of death is a whole second older, the engine was dead before."""
TIE_S = 2.0
"""Journals have whole seconds: what is no further apart has no order, and a signal explains a death, not the reverse."""
KERNEL_BEFORE_S = 60.0
SIGNALLED = frozenset({129, 130, 131, 143})
CRASHED = frozenset({132, 133, 134, 135, 136, 139})
KILLED = 137
SOFT = re.compile(r"soft=True|(?i:soft watchdog)")
"""SGLang's watchdog that writes dumps and ends nothing."""
RECEIVED = re.compile(r"received signal|SIGTERM|SIGINT|KeyboardInterrupt: terminated|cannot schedule new futures")
DEATHS = frozenset({"fatal", "engine_dead", "worker_died"})
DEVICE_KINDS = frozenset({"xid", "nvrm", "device_error", "nccl_error", "segfault", "hung_task"})


def is_down(event: Event) -> bool:
    """Does the event say that a unit is being ended or has ended?"""
    return event.kind in ("killing", "exit", "stop", "oom_kill") and event.initiator not in GAVE_UP


def is_ask(event: Event) -> bool:
    """Somebody who is no supervisor decided to restart."""
    return event.kind == "restart" and event.initiator not in SUPERVISORS


def is_signal(line: Line) -> bool:
    """A line that is only written when a signal has come from outside, or the engine's own watchdog acts."""
    if line.event == "futures_after_shutdown":
        return fingerprints.PROOF_OF_SIGTERM.search(line.message) is not None
    if line.event == "watchdog":
        return SOFT.search(line.message) is None
    return line.event == "shutdown_signal" or (line.event == "shutdown_step" and line.message.startswith("Shutting down"))


def attribute(restart: Restart, known: frozenset[str]) -> None:
    """Fill in how it ended, who did it and in which words. `known` = initiators that probe or have a rule."""
    mine = _supervisors(restart)
    kills = [event for event in restart.events if event.kind == "killing" and event.initiator not in SUPERVISORS]
    asked = [event for event in restart.events if is_ask(event) and event.initiator not in mine]
    own = _signals(restart.lines)
    outside = [event for event in kills if event.initiator not in MOPPING_UP] + asked
    died = _first_death(restart)
    acts = [event.ts for event in outside if event.kind == "killing"] + [line.ts for line in own]
    # who only says that he restarts may say so long before, or when it is done
    first = _first(acts or [event.ts for event in outside])
    by_itself = died is not None and (first is None or between_s(died, first) > (TIE_S if acts else ASK_TIE_S))
    restart.died_at = died if by_itself else None
    restart.killed_at = first
    if not by_itself and (first is not None or _asked_to_end(restart)):
        restart.how = "external"
        _name(restart, outside, own, known)
        return
    restart.initiator = next((event.initiator for event in restart.events if event.initiator in SUPERVISORS | mine and event.kind in ("restart", "start")), None)
    restart.who = "supervisor" if restart.initiator is not None else None
    if by_itself or (restart.code is not None and _is_crash(restart.code)):
        restart.how = "self"
        restart.detail = _death(restart)
    elif restart.initiator is not None:
        restart.how = "auto"
        restart.detail = f"ended{_code(restart.code)}, nobody is seen to have asked for it; {restart.initiator} started it again"
    else:
        restart.detail = f"ended{_code(restart.code)}, by itself or by somebody who is not in the evidence"


def kind_of(initiator: str | None, detail: str, origin: str, known: frozenset[str], kind: str = "restart") -> str | None:
    """watchdog | person | rollout; None = cannot be told. `kind` of the event that names him."""
    if initiator is None:
        return None
    if initiator in known or initiator.startswith(PROBERS) or initiator == ENGINES_OWN or initiator.endswith((".service", "(watchdog)")):
        return "watchdog"
    if origin == "map":
        return _of_map(initiator, detail, kind)
    if initiator.startswith(ROLLOUT):
        return "rollout"
    if "TTY=" in detail and "TTY=unknown" not in detail:
        return "person"
    return None


def _of_map(initiator: str, detail: str, kind: str) -> str | None:
    """Somebody with a log of his own, of whom no probe and no rule is known."""
    if WATCHES.search(initiator):
        return "watchdog"
    if DEPLOYS.search(initiator) or DEPLOYS.search(detail):
        return "rollout"
    return "watchdog" if kind == "restart" or WATCHES.search(detail) else None


def _supervisors(restart: Restart) -> frozenset[str]:
    """Who, by his own log, saw it exit and started it again: he found it dead, and did not ask for its end."""
    own = [(event.initiator, event) for event in restart.events if event.origin == "map" and event.initiator is not None]
    exits = {name: event.ts for name, event in own if event.kind == "exit"}
    again = {name for name, event in own if event.kind in ("restart", "start") and exits.get(name, Time.max) <= event.ts}
    return frozenset(again - {name for name, event in own if event.kind == "restart" and event.ts < exits.get(name, Time.min)})


def _asker(event: Event) -> str | None:
    """Who asked for it: in an events map the initiator of an `exit` or a `stop` is whose log tells of it."""
    return None if event.origin == "map" and event.kind in ("exit", "stop") else event.initiator


def _name(restart: Restart, outside: Sequence[Event], own: Sequence[Line], known: frozenset[str]) -> None:
    """The most telling of those who asked: a log of one's own, somebody named, the engine's watchdog, an exit somebody had asked for."""
    pool = [event for event in (*outside, *(e for e in restart.events if e.kind in ("stop", "exit"))) if _asker(event) is not None]
    pool = [event for event in pool if event.initiator not in (SUPERVISORS | MOPPING_UP | GAVE_UP | {"kernel"})]
    at = restart.killed_at
    pool.sort(key=lambda event: (event.origin != "map", event.kind not in ("restart", "killing"), abs(between_s(at, event.ts)) if at is not None else 0.0))
    watch = next((line for line in own if line.event == "watchdog"), None)
    words = []
    if pool:
        chosen = pool[0]
        restart.initiator = chosen.initiator
        said = [event for event in pool if event.initiator == chosen.initiator]
        restart.who = kind_of(chosen.initiator, " ".join(event.detail for event in said), chosen.origin, known, chosen.kind)
        # what somebody typed tells more than what the supervisor wrote of it
        told = next((event for event in said if "COMMAND=" in event.detail), chosen)
        words.append(f"{told.initiator}: {told.detail}" if told.detail else str(told.initiator))
        others = dict.fromkeys(str(event.initiator) for event in pool if event.initiator != chosen.initiator)
        words += [f"{name} too" for name in others]
    elif watch is not None:
        restart.initiator, restart.who = ENGINES_OWN, "watchdog"
        words.append(watch.message)
    else:
        docker = any(event.origin == "docker" and event.kind == "restart" for event in outside)
        words.append("`docker restart` by somebody who is not named" if docker else "a signal from outside; nobody is named")
    stubborn = next((event for event in restart.events if event.kind == "killing" and event.initiator in MOPPING_UP - {"systemd"}), None)
    if stubborn is not None:
        words.append(f"it did not stop in time: {stubborn.detail}")
    restart.detail = "; ".join(" ".join(word.split())[:300] for word in words)


def _signals(lines: Sequence[Line]) -> list[Line]:
    """Lines of signals from outside. What an engine says of its own end after a fatal error is none; a worker that is missed may be their first victim."""
    found: list[Line] = []
    death: Line | None = None
    for line in lines:
        if is_signal(line) and (death is None or (death.event != "fatal" and RECEIVED.search(line.message) and between_s(death.ts, line.ts) <= TIE_S)):
            found.append(line)
        elif line.event in DEATHS and death is None:
            death = line
    return found


def _first(moments: Sequence[Time]) -> Time | None:
    return min(moments) if moments else None


def _first_death(restart: Restart) -> Time | None:
    deaths = [line.ts for line in restart.lines if line.event in DEATHS]
    deaths += [event.ts for event in restart.events if event.kind == "oom_kill" or event.kind in DEVICE_KINDS]
    deaths += [event.ts for event in restart.events if event.kind == "exit" and _asker(event) is None and event.code is not None and _is_crash(event.code)]
    return _first(deaths)


def _is_crash(code: int) -> bool:
    """An exit code of a process that failed, and not one that says "ended by a signal that somebody sends"."""
    return code in CRASHED or 0 < code < 128


def _asked_to_end(restart: Restart) -> bool:
    if any(event.kind in ("stop", "exit") and _asker(event) not in (None, "kernel", *SUPERVISORS, *GAVE_UP) for event in restart.events):
        return True
    return restart.code in SIGNALLED


def _code(code: int | None) -> str:
    return "" if code is None else f" with code {code}" + (" (SIGKILL)" if code == KILLED else "")


def _death(restart: Restart) -> str:
    """What the engine, the kernel or the exit code says of a death."""
    kernel = next((event for event in restart.events if event.kind == "oom_kill" or event.kind in DEVICE_KINDS), None)
    line = next((line for line in restart.lines if line.event in DEATHS), None)
    words = [f"{kernel.kind}: {kernel.detail}"] if kernel is not None else []
    words += [line.message] if line is not None else []
    words += [f"ended{_code(restart.code)}"] if restart.code is not None else []
    return "; ".join(" ".join(word.split())[:300] for word in words)
