"""docker events and docker inspect: who stopped and started containers, and the trap of RestartCount."""

import json

import pytest

from tests.parsers.event_cases import at, parsed, short

ID = "4f6e0d9c8b7a" + "0" * 52
POLICY, HEALTH = "docker (restart policy)", "docker (healthcheck)"


def text(*events: str) -> str:
    """`59.5 die exitCode=137` -> a line of docker events."""
    lines = []
    for event in events:
        clock, action, *attributes = event.split(" | ")
        lines.append(f"2026-01-01T13:{clock}123456Z container {action} {ID} ({', '.join([*attributes, 'image=vllm/vllm-openai:v0.32', 'name=vllm'])})")
    return "\n".join(lines) + "\n"


def as_json(*events: str) -> str:
    lines = []
    for event in events:
        clock, action, *attributes = event.split(" | ")
        nanos = int(at(f"2026-01-01T13:{clock}123456").replace(tzinfo=__import__("datetime").UTC).timestamp() * 1e6) * 1000
        pairs = dict(item.split("=") for item in attributes) | {"image": "vllm", "name": "vllm"}
        lines.append(json.dumps({"status": action, "id": ID, "from": "vllm", "Type": "container", "Action": action, "Actor": {"ID": ID, "Attributes": pairs},
                                 "scope": "local", "time": nanos // 10**9, "timeNano": nanos}, separators=(",", ":")))  # fmt: skip
    return "\n".join(lines) + "\n"


BY_A_SCRIPT = ("00:00. | kill | signal=15", "00:09. | die | execDuration=812 | exitCode=0", "00:09. | stop", "00:10. | start", "00:10. | restart")
BY_POLICY = ("00:00. | oom", "00:00. | die | execDuration=9 | exitCode=137", "00:01. | start", "01:00. | health_status: unhealthy")
OTHERS = ("00:00. | exec_create: curl -f http://localhost:8000/health", "00:01. | exec_die | exitCode=1", "00:02. | health_status: healthy", "00:03. | create", "00:04. | destroy")


@pytest.mark.parametrize("form", [text, as_json])
def test_a_restart_by_a_script(form) -> None:  # type: ignore[no-untyped-def]
    found = parsed(form(*BY_A_SCRIPT))
    assert short(found) == [
        ("13:00:00", "killing", "vllm", None, 15), ("13:00:09", "exit", "vllm", None, 0), ("13:00:09", "stop", "vllm", None, None),
        ("13:00:10", "start", "vllm", None, None), ("13:00:10", "restart", "vllm", None, None),
    ]  # fmt: skip
    assert found["host_events"][0]["ts"] == at("2026-01-01T13:00:00.123456")
    assert "execDuration=812" in str(found["host_events"][1]["detail"])
    assert found["host_events"][1]["source"] == "x.log:2"


@pytest.mark.parametrize("form", [text, as_json])
def test_a_restart_by_the_policy(form) -> None:  # type: ignore[no-untyped-def]
    assert short(parsed(form(*BY_POLICY))) == [
        ("13:00:00", "oom_kill", "vllm", "kernel", 9), ("13:00:00", "exit", "vllm", None, 137), ("13:00:01", "restart", "vllm", POLICY, None),
        ("13:00:01", "start", "vllm", POLICY, None), ("13:01:00", "probe_failed", "vllm", HEALTH, None),
    ]  # fmt: skip


@pytest.mark.parametrize("form", [text, as_json])
def test_what_is_no_event(form) -> None:  # type: ignore[no-untyped-def]
    assert parsed(form(*OTHERS))["host_events"] == []


def test_a_start_by_hand_long_after_a_death_is_nobodys() -> None:
    found = parsed(text("00:00. | die | exitCode=1", "05:00. | start"))
    assert [(kind, who) for _, kind, _, who, _ in short(found)] == [("exit", None), ("start", None)]


def inspect(**state: object) -> list[dict[str, object]]:
    return [{
        "Id": ID, "Created": "2026-01-01T10:00:00Z", "Name": "/vllm", "RestartCount": 0,
        "State": {"Status": "running", "OOMKilled": False, "ExitCode": 0, "Pid": 4711, "StartedAt": "2026-01-01T13:00:10.5Z", "FinishedAt": "2026-01-01T13:00:09Z", **state},
        "HostConfig": {"RestartPolicy": {"Name": "unless-stopped"}},
        "Config": {"Healthcheck": {"Test": ["CMD-SHELL", "curl -f localhost:8000/health"], "Interval": 15 * 10**9, "Timeout": 10 * 10**9}},
    }]  # fmt: skip


def test_inspect_does_not_believe_the_restart_count() -> None:
    log = [{"Start": "2026-01-01T13:05:00Z", "End": "2026-01-01T13:05:10Z", "ExitCode": -1, "Output": "Health check exceeded timeout (10s)"},
           {"Start": "2026-01-01T13:06:00Z", "End": "2026-01-01T13:06:01Z", "ExitCode": 0, "Output": "ok"}]  # fmt: skip
    found = parsed(json.dumps(inspect(Health={"Status": "unhealthy", "FailingStreak": 1, "Log": log}), indent=4), "inspect.json")
    assert short(found) == [
        ("13:00:09", "exit", "vllm", None, None), ("13:00:10", "start", "vllm", None, None), ("13:05:10", "probe_failed", "vllm", HEALTH, -1),
    ]  # fmt: skip
    assert "RestartCount 0 (policy unless-stopped; `docker restart` sets it back to 0)" in str(found["host_events"][1]["detail"])
    assert found["host_events"][2]["detail"] == "Health check exceeded timeout (10s)"
    (rule,) = found["watchdog_rules"]
    assert (rule["initiator"], rule["period_s"], rule["timeout_s"], rule["strikes"], rule["what"]) == (HEALTH, 15.0, 10.0, 3, "CMD-SHELL curl -f localhost:8000/health")


def test_inspect_of_a_container_that_was_killed_for_memory() -> None:
    state = {"Status": "exited", "OOMKilled": True, "ExitCode": 137, "Pid": 0, "FinishedAt": "2026-01-01T14:00:00Z"}
    assert short(parsed(json.dumps(inspect(**state), indent=4))) == [
        ("14:00:00", "oom_kill", "vllm", "kernel", 9), ("14:00:00", "exit", "vllm", None, 137), ("13:00:10", "start", "vllm", None, None),
    ]  # fmt: skip
    never = inspect(FinishedAt="0001-01-01T00:00:00Z")
    assert [row[1] for row in short(parsed(json.dumps(never, indent=4)))] == ["start"]
