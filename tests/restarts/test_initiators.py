"""Who pulled the trigger: each trace of the table in diag/restarts/initiators.py, and what only looks like it."""

from pathlib import Path

import pytest

from diag import evidence
from diag.sources import Dates
from tests.restarts.told import Row, asked, at, event, life, line, lines_of, only, rule, stats, told

SUDO = "dana : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND=/usr/bin/systemctl restart vllm"


def test_a_stop_by_systemctl_is_from_outside_and_no_crash() -> None:
    found = only(told(host_events=asked(0), log_events=[*life(), *lines_of(0)]))
    assert (found["how"], found["initiator"], found["who"]) == ("external", None, None)
    assert [found[name] for name in ("killed_at", "stopped_at", "restarted_at", "ready_at")] == [at(0), at(4), at(5), at(200)]
    assert (found["started_at"], found["died_at"], found["unit"]) == (at(-3600), None, "vllm")


@pytest.mark.parametrize(
    ("initiator", "detail", "who"),
    [
        ("dana", SUDO, "person"),
        ("ops", "ops : TTY=unknown ; USER=root ; COMMAND=/usr/bin/systemctl restart vllm", None),
        ("cron (root): /opt/watch/check.sh", "Stopping vllm.service", "watchdog"),
        ("vllm-check.service", "Stopping vllm.service", "watchdog"),
        ("kubernetes (pod removal)", "Killing: Stopping container server", "rollout"),
        ("kubelet (liveness probe)", "Killing: Container server failed liveness probe, will be restarted", "watchdog"),
        ("systemd (watchdog)", "vllm.service: Killing process 12 (vllm) with signal SIGABRT.", "watchdog"),
    ],
)
def test_who_asked(initiator: str, detail: str, who: str | None) -> None:
    rows = [event(0, "killing", initiator, detail=detail), event(3, "exit", initiator, code=0), event(5, "start", initiator)]
    found = only(told(host_events=rows))
    assert (found["how"], found["initiator"], found["who"]) == ("external", initiator, who)


def test_what_was_typed_at_a_terminal_is_a_person_s() -> None:
    """The journal of the stop names the person too, without the terminal."""
    typed = event(-1, "restart", "dana", detail=SUDO)
    found = only(told(host_events=[typed, *asked(0, "dana")]))
    assert (found["initiator"], found["who"], found["killed_at"]) == ("dana", "person", at(0))
    assert "TTY=pts/0" in str(found["detail"])


@pytest.mark.parametrize("second", [-3, 0, 7])
def test_a_watchdog_s_own_log_names_it(second: float) -> None:
    """It says so just before, or when the command has returned."""
    own = event(second, "restart", "chat-watchdog", unit=None, origin="map")
    found = only(told(host_events=[*asked(0), own], log_events=[*life(), *lines_of(0)]))
    assert (found["initiator"], found["who"], found["how"]) == ("chat-watchdog", "watchdog", "external")


def test_a_watchdog_s_log_alone_is_evidence() -> None:
    found = told(host_events=[event(second, "restart", "chat-watchdog", unit=None, origin="map") for second in (0, 900)])["restarts"]
    assert [(row["killed_at"], row["initiator"], row["how"]) for row in found] == [(at(0), "chat-watchdog", "external"), (at(900), "chat-watchdog", "external")]


@pytest.mark.parametrize(("every_s", "count"), [(7, 40), (60, 5), (900, 3), (1, 1)])
def test_one_that_says_so_again_and_again_restarts_again_and_again(every_s: int, count: int) -> None:
    """A second later it is the same one said twice; in a tight loop, every seven seconds, they are as many as there are lines."""
    lines = 40 if every_s == 7 else 5 if every_s == 60 else 3
    said = [event(number * every_s, "restart", "chat-watchdog", unit=None, origin="map") for number in range(lines)]
    assert len(told(host_events=said)["restarts"]) == count


def test_of_two_watchdogs_the_nearer_one_is_named_and_the_other_told() -> None:
    own = [event(-40, "restart", "slow-dog", unit=None, origin="map"), event(-1, "restart", "chat-dog", unit=None, origin="map")]
    found = only(told(host_events=[*asked(0), *own]))
    assert found["initiator"] == "chat-dog"
    assert "slow-dog too" in str(found["detail"])


def test_docker_restart_is_from_outside_though_its_event_comes_last() -> None:
    kinds = (("killing", 0, 15), ("exit", 2, 0), ("stop", 2, None), ("start", 3, None), ("restart", 3, None))
    rows = [event(second, kind, None, unit="vllm", origin="docker", code=code) for kind, second, code in kinds]
    found = only(told(host_events=rows))
    assert (found["how"], found["initiator"]) == ("external", None)
    assert "docker restart" in str(found["detail"])


def test_a_restart_policy_after_a_crash_is_a_death() -> None:
    rows = [event(0, "exit", None, unit="vllm", origin="docker", code=1), event(1, "restart", "docker (restart policy)", unit="vllm", origin="docker"),
            event(1, "start", "docker (restart policy)", unit="vllm", origin="docker")]  # fmt: skip
    found = only(told(host_events=rows))
    assert (found["how"], found["initiator"], found["killed_at"]) == ("self", "docker (restart policy)", None)


def dead(code: int | None, second: float = 0) -> list[Row]:
    return [event(second, "exit", None, code=code), event(second + 3, "restart", "systemd"), event(second + 3, "stop", "systemd"), event(second + 3, "start", "systemd")]


@pytest.mark.parametrize(("code", "how"), [(1, "self"), (139, "self"), (134, "self"), (137, "auto"), (None, "auto"), (143, "external")])
def test_an_end_that_nobody_asked_for(code: int | None, how: str) -> None:
    """137 is somebody's SIGKILL or the kernel's: it stays open. 143 is a SIGTERM that was obeyed."""
    assert only(told(host_events=dead(code)))["how"] == how


def test_stopped_is_printed_by_systemd_after_a_death_too() -> None:
    found = only(told(host_events=dead(1)))
    assert (found["how"], found["initiator"], found["killed_at"]) == ("self", "systemd", None)


def test_out_of_memory_is_a_death_of_the_process_it_names() -> None:
    killed = event(-1, "oom_kill", "kernel", unit=None, origin="dmesg", pid=77, code=9)
    mine = [{**row, "pid": 77} if row["kind"] == "exit" else row for row in dead(137)]
    found = only(told(host_events=[killed, *mine]))
    assert (found["how"], found["died_at"]) == ("self", at(-1))
    other = [{**row, "pid": 78} if row["kind"] == "exit" else row for row in dead(137)]
    assert only(told(host_events=[killed, *other]))["how"] == "auto"


@pytest.mark.parametrize("second", [0.0, 1.0, 2.0])
def test_what_the_engine_says_after_a_kill_is_no_crash(second: float) -> None:
    """Clients and workers miss the engine that was taken away: the order of two journals with whole seconds says nothing."""
    after = [line(second, "engine_dead"), line(second + 1, "worker_died", "Worker proc VllmWorker-1 died unexpectedly, shutting down executor.")]
    found = only(told(host_events=asked(1), log_events=[*life(), *after, *lines_of(1)]))
    assert (found["how"], found["died_at"]) == ("external", None)


def test_a_death_and_a_kill_ten_seconds_later_is_a_death() -> None:
    found = only(told(host_events=asked(10), log_events=[*life(), line(0, "fatal"), *lines_of(10)]))
    assert (found["how"], found["died_at"], found["killed_at"]) == ("self", at(0), at(10))


def test_an_engine_that_shuts_itself_down_after_a_fatal_error_was_not_killed() -> None:
    found = only(told(host_events=dead(1, 5), log_events=[*life(), line(0, "fatal"), line(1, "shutdown_signal"), line(15, "startup"), line(200, "ready")]))
    assert (found["how"], found["killed_at"], found["died_at"]) == ("self", None, at(0))


def test_a_fatal_line_is_none_while_the_engine_goes_on() -> None:
    going = [stats(second, 30.0) for second in range(10, 120, 10)]
    assert told(log_events=[*life(), line(0, "fatal"), *going])["restarts"] == []
    assert [row["killed_at"] for row in told(log_events=[*life(), line(0, "fatal"), *going, *lines_of(300)])["restarts"]] == [at(301)]


def test_the_500s_of_a_shutdown_prove_a_signal() -> None:
    found = told(log_events=[*life(), line(0, "futures_after_shutdown"), line(0, "engine_dead"), line(9, "startup"), line(200, "ready")])
    assert (only(found)["how"], only(found)["killed_at"]) == ("external", at(0))
    assert {row["fingerprint"]: row["n"] for row in found["restart_consequences"]} == {"futures-after-shutdown": 1, "engine-dead-body": 1}


def test_sglang_s_own_watchdog() -> None:
    found = only(told(log_events=[*life(), line(0, "watchdog", "Watchdog timeout (self.watchdog_timeout=300)"), line(60, "startup")]))
    assert (found["how"], found["initiator"], found["who"]) == ("external", "sglang (watchdog)", "watchdog")


def test_killed_while_it_loads() -> None:
    """Never ready between: one restart each, and the second life begins with the start of the first."""
    rows = [*asked(0), *asked(100)]
    first, second = told(host_events=rows, log_events=[*life(), *lines_of(0, None), *lines_of(100)])["restarts"]
    assert (first["ready_at"], second["ready_at"]) == (None, at(300))
    assert second["started_at"] == at(5)


def test_a_start_without_an_end_is_a_restart_of_unknown_cause() -> None:
    """A SIGKILL leaves no line in the engine's log."""
    found = only(told(log_events=[*life(), stats(-10, 30.0), line(20, "startup"), line(200, "ready")]))
    assert (found["how"], found["restarted_at"], found["ready_at"]) == ("unknown", at(20), at(200))


def test_jobs_of_timers_are_no_services() -> None:
    job = [event(second + after, kind, None, unit="check.service", code=code) for second in range(0, 3000, 300)
           for after, kind, code in ((0, "start", None), (2, "exit", 1))]  # fmt: skip
    assert [row["unit"] for row in told(host_events=[*job, *asked(1000)])["restarts"]] == ["vllm"]


def test_a_container_that_died_soon_is_no_job() -> None:
    """Of one that waits in CrashLoopBackOff Kubernetes tells the last life, however short, and no start after it."""
    life_of_a_pod = [event(0, "start", None, unit="llm-0/server", origin="kubernetes"), event(90, "exit", None, unit="llm-0/server", origin="kubernetes", code=139)]
    assert [(row["unit"], row["how"]) for row in told(host_events=life_of_a_pod)["restarts"]] == [("llm-0/server", "self")]


def test_two_services_in_one_journal_have_restarts_of_their_own() -> None:
    rows = [*asked(0, "dana"), *asked(50, "dana", unit="embed.service")]
    found = told(host_events=rows, log_events=[*life(), *lines_of(0)])["restarts"]
    assert [(row["unit"], row["ready_at"]) for row in found] == [("vllm", at(200)), ("embed", None)]


def test_a_kill_by_pid_names_who_did_it() -> None:
    kill = event(0, "killing", "eve", unit=None, pid=77, detail="eve : TTY=pts/1 ; USER=root ; COMMAND=/usr/bin/kill -9 77")
    found = only(told(host_events=[kill, *dead(137, 1)]))
    assert (found["how"], found["initiator"], found["who"]) == ("external", "eve", "person")


def test_what_was_lost() -> None:
    lines = [*life(), stats(-5, 30.0, running=6), line(1, "shutdown_step", "[shutdown] API server: aborting in-flight requests count=9"), *lines_of(0)]
    assert only(told(host_events=asked(0), log_events=lines))["lost_requests"] == 9
    assert only(told(host_events=asked(0), log_events=[row for row in lines if row["event"] != "shutdown_step"]))["lost_requests"] == 6
    assert only(told(host_events=asked(0)))["lost_requests"] is None


def test_the_word_of_a_watchdog_whose_rule_is_given_makes_it_one() -> None:
    rows = [event(0, "killing", "ops"), event(3, "exit", "ops", code=0), event(5, "start", "ops")]
    assert only(told(host_events=rows))["who"] is None
    assert only(told(host_events=rows, watchdog_rules=[rule("ops", 60, 5, 3, "GET /health")]))["who"] == "watchdog"


@pytest.mark.parametrize(
    ("kind", "initiator", "detail", "who"),
    [
        ("killing", "deploy", "supervisor: deploy sends TERM to engine", "rollout"),
        ("restart", "release-bot", "restarting engine", "rollout"),
        ("restart", "runner", "rolling update of engine", "rollout"),
        ("killing", "runner", "TERM to engine", None),
        ("killing", "runner", "engine failed its health check", "watchdog"),
        ("killing", "liveness-script", "TERM to engine", "watchdog"),
        ("restart", "chat", "restarting engine", "watchdog"),
    ],
)
def test_who_is_behind_a_log_of_one_s_own(kind: str, initiator: str, detail: str, who: str | None) -> None:
    """A signal by somebody without probes or a rule is a watchdog's only where he says so."""
    found = only(told(host_events=[event(0, kind, initiator, unit="engine", origin="map", detail=detail), event(5, "start", "x", unit="engine", origin="map")]))
    assert (found["how"], found["initiator"], found["who"]) == ("external", initiator, who)


def test_somebody_with_failed_probes_is_a_watchdog_whatever_its_name() -> None:
    rows = [event(-5, "probe_failed", "deploy", unit="engine", origin="map"), event(0, "killing", "deploy", unit="engine", origin="map"), event(5, "start", "x", unit="engine", origin="map")]
    assert only(told(host_events=rows))["who"] == "watchdog"


def test_whose_log_tells_of_an_exit_did_not_ask_for_it() -> None:
    rows = [event(0, "exit", "supervisor", unit="engine", origin="map"), event(3, "restart", "supervisor", unit="engine", origin="map"), event(3, "start", "supervisor", unit="engine", origin="map")]
    found = only(told(host_events=rows))
    assert (found["how"], found["initiator"], found["who"], found["killed_at"]) == ("auto", "supervisor", "supervisor", None)
    crash = [{**row, "code": 1} if row["kind"] == "exit" else row for row in rows]
    assert only(told(host_events=crash))["how"] == "self"
    assert only(told(host_events=[*rows[:1], event(4, "start", "other", unit="engine", origin="map")]))["how"] == "unknown"


def test_who_says_restarting_before_the_exit_asked_for_it() -> None:
    rows = [event(0, "restart", "keeper", unit="engine", origin="map"), event(2, "exit", "keeper", unit="engine", origin="map"), event(3, "start", "keeper", unit="engine", origin="map")]
    found = only(told(host_events=rows))
    assert (found["how"], found["initiator"], found["who"]) == ("external", "keeper", "watchdog")


def test_a_real_drill_in_which_a_deploy_sent_the_signal() -> None:
    """The supervisor wrote down exits and who sent TERM; it ended nothing itself, and no probe did."""
    drill = Path(__file__).parent.parent / "recovery" / "drill"
    found = evidence.open_paths([drill / name for name in ("server.log", "supervisor.log", "events-map.toml")], dates=Dates(2026, "UTC"))
    rows, _ = found.rows("SELECT how, initiator, who FROM restarts ORDER BY restart", "test", 10)
    assert rows[:2] == [{"how": "self", "initiator": "supervisor", "who": "supervisor"}, {"how": "external", "initiator": "deploy", "who": "rollout"}]
    assert "supervisor" not in {row["initiator"] for row in rows[2:]}
