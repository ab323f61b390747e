"""What journals say of units: every form journalctl prints, and who stopped what."""

import json
import struct

import pytest

from diag.parsers import journald_entries
from diag.parsers.log_clock import Clock
from tests.parsers.event_cases import at, parsed, short

UNIT = "vllm.service"
BEFORE = "Aug 20 13:37:50 gpu-7 dbus-daemon[612]: [system] Activating via systemd\n"


def journal(*lines: str) -> str:
    """Lines `13:37:51 ident[pid]: message` as -o short prints them."""
    return BEFORE + "".join(f"Aug 20 {line[:8]} gpu-7 {line[9:]}\n" for line in lines)


ONE_LINE = [
    # message of systemd, kind, initiator, pid, code
    (f"{UNIT}: Scheduled restart job, restart counter is at 3.", "restart", "systemd", None, None),
    (f"{UNIT}: Service hold-off time over, scheduling restart.", "restart", "systemd", None, None),
    (f"{UNIT}: Service RestartSec=10s expired, scheduling restart.", "restart", "systemd", None, None),
    (f"{UNIT}: Service has no hold-off time (RestartSec=0), scheduling restart.", "restart", "systemd", None, None),
    (f"{UNIT}: Watchdog timeout (limit 3min)!", "probe_failed", "systemd (watchdog)", None, None),
    (f"{UNIT}: Killing process 4711 (VLLM::EngineCor) with signal SIGKILL.", "killing", "systemd", 4711, 9),
    (f"{UNIT}: State 'stop-sigterm' timed out. Killing.", "killing", "systemd (stop timeout)", None, 9),
    (f"{UNIT}: Main process exited, code=exited, status=1/FAILURE", "exit", None, None, 1),
    (f"{UNIT}: Main process exited, code=killed, status=9/KILL", "exit", None, None, 137),
    (f"{UNIT}: Main process exited, code=dumped, status=6/ABRT", "exit", None, None, 134),
    (f"{UNIT}: Deactivated successfully.", "exit", None, None, 0),
    (f"{UNIT}: Succeeded.", "exit", None, None, 0),
    (f"{UNIT}: A process of this unit has been killed by the OOM killer.", "oom_kill", "kernel", None, 9),
    (f"{UNIT}: Start request repeated too quickly.", "stop", "systemd (start limit)", None, None),
    (f"{UNIT}: Processes still around after final SIGKILL. Entering failed mode.", "killing", "systemd", None, 9),
    (f"{UNIT}: Found left-over process 4712 (VLLM::Worker_TP) in control group while starting unit. Ignoring.", "left_over", None, 4712, None),
    (f"Started {UNIT} - Chat model.", "start", None, None, None),
    (f"Starting {UNIT} - Chat model...", "start", None, None, None),
    (f"Stopping {UNIT} - Chat model...", "killing", None, None, None),
    (f"Stopped {UNIT} - Chat model.", "stop", None, None, None),
]


@pytest.mark.parametrize(("message", "kind", "initiator", "pid", "code"), ONE_LINE)
def test_a_message_of_systemd(message: str, kind: str, initiator: str | None, pid: int | None, code: int | None) -> None:
    found = parsed(journal(f"13:37:51 systemd[1]: {message}"))
    (row,) = found["host_events"]
    assert row == {
        "ts": at("2026-08-20T13:37:51"), "origin": "journald", "kind": kind, "unit": UNIT, "initiator": initiator, "pid": pid, "code": code,
        "detail": message, "source": "x.log:2",
    }  # fmt: skip


QUIET = [
    f"{UNIT}: Failed with result 'watchdog'.", f"{UNIT}: Consumed 3h 2min CPU time.", "Started Session 12 of User ops.", "Reached target Multi-User.",
    "Starting user@1000.slice - Slice of User...", "Started apt-daily.timer - Daily apt download activities.", "Reloading.", "Received SIGINT.",
]  # fmt: skip


@pytest.mark.parametrize("message", QUIET)
def test_what_is_no_event(message: str) -> None:
    assert parsed(journal(f"13:37:51 systemd[1]: {message}"))["host_events"] == []


def test_a_watchdog_of_systemd_from_its_timeout_to_the_next_start() -> None:
    found = parsed(journal(
        f"13:37:51 systemd[1]: {UNIT}: Watchdog timeout (limit 3min)!",
        f"13:37:51 systemd[1]: {UNIT}: Killing process 4711 (python3) with signal SIGABRT.",
        f"13:37:53 systemd[1]: {UNIT}: Main process exited, code=dumped, status=6/ABRT",
        f"13:37:53 systemd[1]: {UNIT}: Failed with result 'watchdog'.",
        f"13:38:03 systemd[1]: {UNIT}: Scheduled restart job, restart counter is at 1.",
        f"13:38:03 systemd[1]: Stopped {UNIT} - Chat model.",
        f"13:38:03 systemd[1]: Started {UNIT} - Chat model.",
    ))  # fmt: skip
    assert short(found) == [
        ("13:37:51", "probe_failed", UNIT, "systemd (watchdog)", None),
        ("13:37:51", "killing", UNIT, "systemd (watchdog)", 6),
        ("13:37:53", "exit", UNIT, "systemd (watchdog)", 134),
        ("13:38:03", "restart", UNIT, "systemd", None),
        ("13:38:03", "stop", UNIT, "systemd (watchdog)", None),
        ("13:38:03", "start", UNIT, "systemd", None),
    ]
    (rule,) = found["watchdog_rules"]
    assert (rule["initiator"], rule["period_s"], rule["timeout_s"], rule["strikes"], rule["unit"]) == ("systemd (watchdog)", 180.0, 180.0, 1, UNIT)


def test_a_restart_by_a_person_is_not_systemds() -> None:
    found = parsed(journal(
        "13:37:49 sudo[900]:      ops : TTY=pts/0 ; PWD=/home/ops ; USER=root ; COMMAND=/usr/bin/systemctl restart vllm",
        f"13:37:50 systemd[1]: Stopping {UNIT} - Chat model...",
        f"13:38:20 systemd[1]: {UNIT}: Deactivated successfully.",
        f"13:38:20 systemd[1]: Stopped {UNIT} - Chat model.",
        f"13:38:20 systemd[1]: Starting {UNIT} - Chat model...",
        f"13:41:02 systemd[1]: Started {UNIT} - Chat model.",
    ))  # fmt: skip
    assert short(found) == [
        ("13:37:49", "restart", UNIT, "ops", None),
        ("13:37:50", "killing", UNIT, "ops", None),
        ("13:38:20", "exit", UNIT, "ops", 0),
        ("13:38:20", "stop", UNIT, "ops", None),
        ("13:38:20", "start", UNIT, "ops", None),
    ]


def test_nobody_is_named_without_a_trace() -> None:
    found = parsed(journal(f"13:37:50 systemd[1]: Stopping {UNIT}...", f"13:37:59 systemd[1]: Stopped {UNIT}.", f"13:37:59 systemd[1]: Started {UNIT}."))
    assert [(kind, who) for _, kind, _, who, _ in short(found)] == [("killing", None), ("stop", None), ("start", None)]


SUSPECTS = [
    # lines before the stop at 13:40:00, who it was
    (["13:39:58 CRON[77]: (root) CMD (/opt/watch/check.sh)"], "cron (root): /opt/watch/check.sh"),
    (["13:38:30 CRON[77]: (root) CMD (systemctl restart vllm.service)"], "cron (root): systemctl restart vllm.service"),
    (["13:38:30 CRON[77]: (root) CMD (/opt/watch/check.sh)"], None),
    (["13:39:57 CRON[77]: (root) CMD (/opt/watch/check.sh)", "13:39:58 CRON[78]: (www) CMD (/opt/rotate.sh)"], None),
    (["13:39:10 systemd[1]: Starting watch-chat.service - Chat probe..."], "watch-chat.service"),
    (["13:39:10 systemd[1]: Starting watch-chat.service...", "13:39:30 systemd[1]: Starting apt-daily.service..."], None),
    (["13:39:10 systemd[1]: Starting watch-chat.service...", "13:39:12 systemd[1]: watch-chat.service: Deactivated successfully.",
      "13:39:12 systemd[1]: Finished watch-chat.service - Chat probe."], None),
    (["13:39:10 systemd[1]: Started node-exporter.service - Metrics."], None),
    (["13:39:59 sudo[9]: bot : PWD=/ ; USER=root ; COMMAND=/usr/bin/systemctl restart other"], None),
    (["13:39:59 sudo[9]: bot : PWD=/ ; USER=root ; COMMAND=/usr/sbin/service vllm restart"], None),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "who"), SUSPECTS)
def test_who_stopped_it(lines: list[str], who: str | None) -> None:
    found = parsed(journal(*lines, f"13:40:00 systemd[1]: Stopping {UNIT} - Chat model...", f"13:40:01 systemd[1]: Stopped {UNIT} - Chat model."))
    assert [row[3] for row in short(found) if row[2] == UNIT] == [who, who]


def test_a_check_of_a_timer_that_ended_after_its_restart() -> None:
    found = parsed(journal(
        "13:39:10 systemd[1]: Started watch-500.service - Counts 500s.", f"13:40:00 systemd[1]: Stopping {UNIT} - Chat model...",
        "13:40:09 systemd[1]: watch-500.service: Deactivated successfully.",
    ))  # fmt: skip
    assert ("13:40:00", "killing", UNIT, "watch-500.service", None) in short(found)


COMMANDS = [
    ("/usr/bin/systemctl --no-block restart vllm", "restart", "vllm.service", None, None),
    ("/usr/bin/systemctl stop vllm.service", "killing", "vllm.service", None, None),
    ("/usr/bin/docker restart -t 5 vllm", "restart", "vllm", None, None),
    ("/usr/bin/docker kill vllm", "killing", "vllm", None, None),
    ("/usr/bin/kubectl -n llm delete pod llm-0", "killing", "llm-0", None, None),
    ("/usr/bin/supervisorctl restart vllm", "restart", "vllm", None, None),
    ("/usr/bin/kill -9 4711", "killing", None, 4711, 9),
    ("/usr/bin/pkill -f vllm", "killing", None, None, 15),
]


@pytest.mark.parametrize(("command", "kind", "unit", "pid", "code"), COMMANDS)
def test_commands_of_sudo(command: str, kind: str, unit: str | None, pid: int | None, code: int | None) -> None:
    (row,) = parsed(journal(f"13:37:51 sudo[9]: ops : TTY=pts/0 ; PWD=/ ; USER=root ; COMMAND={command}"))["host_events"]
    assert (row["kind"], row["unit"], row["initiator"], row["pid"], row["code"]) == (kind, unit, "ops", pid, code)


OTHERS = [
    ("kernel: Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:9kB", "oom_kill", None, "kernel", 4711, 9),
    ("kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=4711, GPU has fallen off the bus.", "xid", None, "kernel", 4711, 79),
    ("systemd-coredump[88]: Process 4711 (python3) of user 0 dumped core.", "exit", None, None, 4711, None),
    ("systemd-oomd[61]: Killed /system.slice/vllm.service due to memory pressure for /system.slice being 92%", "oom_kill", "vllm.service", "systemd-oomd", None, 9),
    ('kubelet[70]: I0820 13:37:51.1 70 prober.go:107] "Probe failed" probeType="Liveness" pod="llm/llm-0" podUID=x containerName="server" probeResult="failure"',
     "probe_failed", "llm-0/server", "kubelet (liveness probe)", None, None),
    ('kubelet[70]: I0820 13:37:51.1 70 kuberuntime_container.go:779] "Killing container with a grace period" pod="llm/llm-0" containerName="server" gracePeriod=30',
     "killing", "llm-0/server", "kubelet", None, None),
    ('dockerd[71]: time="2026-08-20T13:37:51Z" level=info msg="restarting container" container=4f6e0d9c8b7a exitCode=137 restartCount=3', "restart", "4f6e0d9c8b7a",
     "docker (restart policy)", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "unit", "initiator", "pid", "code"), OTHERS)
def test_others_in_a_journal(line: str, kind: str, unit: str | None, initiator: str | None, pid: int | None, code: int | None) -> None:
    (row,) = parsed(journal(f"13:37:51 {line}"))["host_events"]
    assert (row["kind"], row["unit"], row["initiator"], row["pid"], row["code"]) == (kind, unit, initiator, pid, code)


def test_descriptions_of_old_systemd_are_the_unit_that_is_named() -> None:
    found = parsed(journal(
        "13:37:50 systemd[1]: Stopping Chat model...", f"13:37:59 systemd[1]: {UNIT}: Main process exited, code=exited, status=0/SUCCESS",
        "13:37:59 systemd[1]: Stopped Chat model.", "13:37:59 systemd[1]: Started Chat model.",
    ))  # fmt: skip
    assert [row[2] for row in short(found)] == [UNIT] * 4


def test_hold_off_and_counter_are_one_restart() -> None:
    found = parsed(journal(
        f"13:37:51 systemd[1]: {UNIT}: Service hold-off time over, scheduling restart.", f"13:37:51 systemd[1]: {UNIT}: Scheduled restart job, restart counter is at 4.",
    ))  # fmt: skip
    (row,) = found["host_events"]
    assert row["detail"] == f"{UNIT}: Scheduled restart job, restart counter is at 4."


def test_a_boot_is_a_restart_of_everything() -> None:
    found = parsed(journal("13:37:51 systemd[1]: Started vllm.service.") + "-- Boot 0123456789abcdef0123456789abcdef --\n")
    assert short(found)[-1] == (None, "restart", None, "host boot", None)


FORMS = [
    ("Aug 20 13:37:51 gpu-7 ", "2026-08-20T13:37:51"),
    ("Aug  2 13:37:51.123456 gpu-7 ", "2026-08-02T13:37:51.123456"),
    ("2026-08-20T13:37:51+0200 gpu-7 ", "2026-08-20T11:37:51"),
    ("2026-08-20T13:37:51.123456+02:00 gpu-7 ", "2026-08-20T11:37:51.123456"),
    ("Thu 2026-08-20 13:37:51 UTC gpu-7 ", "2026-08-20T13:37:51"),
    ("1787225871.500000 gpu-7 ", "2026-08-20T11:37:51.5"),
]


@pytest.mark.parametrize(("head", "time"), FORMS)
def test_text_forms(head: str, time: str) -> None:
    found = parsed(f"{head}sshd[1]: x\n{head}systemd[1]: Started {UNIT}.\n")
    (row,) = found["host_events"]
    assert row["ts"] == at(time)


@pytest.mark.parametrize("head", [head for head, _ in FORMS])
def test_who_and_what_of_text_forms(head: str) -> None:
    entry = journald_entries.of_text(7, f"{head}vllm[4711]: INFO: a [1]: b", Clock(2026, "UTC", None))
    assert entry is not None
    assert (entry.number, entry.ident, entry.pid, entry.message) == (7, "vllm", 4711, "INFO: a [1]: b")


MESSAGE_IDS = [
    ("7d4958e842da4a758f6c1cdc7b36dcc5", {}, "start", None),
    ("39f53479d3a045ac8e11786248231fbf", {}, "start", None),
    ("de5b426a63be47a7b6ac3eaac82e2f6f", {}, "killing", None),
    ("9d1aaa27d60140bd96365438aad20286", {}, "stop", None),
    ("98e322203f7a4ed290d09fe03c09fe15", {"EXIT_CODE": "killed", "EXIT_STATUS": "9"}, "exit", 137),
    ("5eb03494b6584870a536b337290809b3", {"N_RESTARTS": "3"}, "restart", None),
    ("fe6faa94e7774663a0da52717891d8ef", {}, "oom_kill", 9),
]


def record(us: int, message: str | list[int], **fields: str) -> dict[str, object]:
    base = {"__CURSOR": "s=1;i=2", "__REALTIME_TIMESTAMP": str(us), "_PID": "1", "SYSLOG_IDENTIFIER": "systemd", "MESSAGE": message}
    return base | fields


@pytest.mark.parametrize(("message_id", "fields", "kind", "code"), MESSAGE_IDS)
def test_message_ids_count_whatever_the_text_says(message_id: str, fields: dict[str, str], kind: str, code: int | None) -> None:
    line = json.dumps(record(1787225871500000, "Worte in einer anderen Sprache", MESSAGE_ID=message_id, UNIT=UNIT, **fields))
    (row,) = parsed(line + "\n", "j.json")["host_events"]
    assert (row["kind"], row["unit"], row["code"], row["ts"]) == (kind, UNIT, code, at("2026-08-20T11:37:51.5"))


def test_json_with_bytes_torn_lines_and_fields_given_twice() -> None:
    broken = [ord(char) for char in f"{UNIT}: Watchdog timeout (limit 1min 30s)!"] + [0xFF, 0x1B]
    lines = [
        json.dumps(record(1787225871500000, "x", SYSLOG_IDENTIFIER="vllm")), json.dumps(record(1787225872500000, broken, UNIT=UNIT)), '{"__REALTIME_TIMESTAMP":"178722',
        json.dumps(record(1787225873500000, "y") | {"_SYSTEMD_UNIT": ["a", "b"], "MESSAGE": None}),
        json.dumps(record(1787225874500000, "vllm.service: Main process exited, code=exited, status=3/NOTIMPLEMENTED", UNIT=UNIT)),
    ]  # fmt: skip
    found = parsed("\n".join(lines) + "\n")
    assert [(row["kind"], row["source"], row["code"]) for row in found["host_events"]] == [("probe_failed", "x.log:2", None), ("exit", "x.log:5", 3)]
    assert [row["timeout_s"] for row in found["watchdog_rules"]] == [90.0]


def test_export_with_a_binary_field() -> None:
    def entry(us: int, message: bytes, *more: bytes) -> bytes:
        text = b"__CURSOR=s=1\n__REALTIME_TIMESTAMP=%d\n__MONOTONIC_TIMESTAMP=1\n_PID=1\nSYSLOG_IDENTIFIER=systemd\nUNIT=vllm.service\n" % us
        field = b"MESSAGE\n" + struct.pack("<Q", len(message)) + message + b"\n" if b"\n" in message or not message.isascii() else b"MESSAGE=" + message + b"\n"
        return text + field + b"".join(more) + b"\n"

    data = (
        entry(1787225871500000, b"Stopping vllm.service...\n\nsecond \xff line") + entry(1787225872500000, b"vllm.service: Deactivated successfully.")
        + entry(1787225873500000, b"Started vllm.service.", b"BIG=" + b"x" * (3 << 20) + b"\n")
    )  # fmt: skip
    found = parsed(data, "j.export")
    assert [(row["kind"], row["source"]) for row in found["host_events"]] == [("exit", "j.export:12"), ("start", "j.export:20")]
    lines = data.split(b"\n")
    assert [lines[int(str(row["source"]).rpartition(":")[2]) - 1] for row in found["host_events"]] == [b"__CURSOR=s=1"] * 2


def test_the_clock_went_back_and_it_is_said() -> None:
    found = parsed("".join(f"2026-08-20T{clock}+0000 gpu-7 systemd[1]: Started {UNIT}.\n" for clock in ("13:00:00", "12:58:30", "12:58:31")))
    (file,) = found["event_files"]
    assert file["assumed"] == "the clock goes back 90 s at line 2: it was set, or the zone changed its offset"
    assert (file["first_ts"], file["last_ts"], file["format"], file["events"]) == (at("2026-08-20T12:58:30"), at("2026-08-20T13:00:00"), "journald", 3)
    assert found["collected"] == [{"table_name": "host_events", "status": "ok", "reason": file["assumed"]}]


def test_new_year_and_what_was_assumed() -> None:
    text = f"Dec 31 23:59:59 gpu-7 systemd[1]: Stopping {UNIT}...\nJan  1 00:00:03 gpu-7 systemd[1]: Started {UNIT}.\n"
    assert [row["ts"] for row in parsed(text, year=2024)["host_events"]] == [at("2024-12-31T23:59:59"), at("2025-01-01T00:00:03")]
    assumed = str(parsed(text, year=None, tz=None)["event_files"][0]["assumed"])
    assert "the last one not in the future" in assumed
    assert "zone UTC" in assumed


def test_the_hour_that_comes_twice() -> None:
    """In Berlin 02:59:59 is followed by 02:00:00 when summer time ends."""
    text = "".join(f"Oct 25 {clock} gpu-7 systemd[1]: Started {UNIT}.\n" for clock in ("02:30:00", "02:59:59", "02:00:01", "02:30:00", "03:00:00"))
    times = [row["ts"] for row in parsed(text, tz="Europe/Berlin")["host_events"]]
    assert times == [at(f"2026-10-25T{clock}") for clock in ("00:30:00", "00:59:59", "01:00:01", "01:30:00", "02:00:00")]
