"""Pods as `kubectl describe` prints them and as JSON: how containers ended, and the rule of each probe."""

import json

from tests.parsers.event_cases import at, parsed, short

TEXT = """\
Name:             llm-0
Namespace:        llm
Priority:         0
Node:             gpu-7/10.0.0.2
Start Time:       Tue, 01 Feb 2022 13:00:00 +0100
Status:           Running
Controlled By:    StatefulSet/llm
Containers:
  server:
    Container ID:   containerd://4f6e
    Image:          registry.example/llm/server:1.0
    Port:           8000/TCP
    State:          Waiting
      Reason:       CrashLoopBackOff
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
      Started:      Tue, 01 Feb 2022 13:36:17 +0100
      Finished:     Tue, 01 Feb 2022 14:02:40 +0100
    Ready:          False
    Restart Count:  6
    Liveness:       http-get http://:8000/health delay=60s timeout=1s period=10s #success=1 #failure=3
    Readiness:      http-get http://:8000/health delay=0s timeout=1s period=5s #success=1 #failure=3
    Startup:        exec [curl -sf localhost:8000/health] delay=0s timeout=2s period=10s #success=1 #failure=30
    Environment:    <none>
  proxy:
    Image:          envoy
    State:          Running
      Started:      Tue, 01 Feb 2022 13:00:10 +0100
    Restart Count:  0
Conditions:
  Type              Status
  Ready             False
Volumes:            <none>
Events:
  Type     Reason     Age                From     Message
  ----     ------     ----               ----     -------
  Normal   Killing    2m (x4 over 3m)    kubelet  Container server failed liveness probe, will be restarted
"""


def test_describe() -> None:
    found = parsed(TEXT, "describe.txt")
    assert short(found) == [
        ("12:36:17", "start", "llm-0/server", "kubelet", None),
        ("13:02:40", "oom_kill", "llm-0/server", "kernel", 9),
        ("13:02:40", "exit", "llm-0/server", "kernel", 137),
        (None, "back_off", "llm-0/server", "kubelet", None),
        ("12:00:10", "start", "llm-0/proxy", "kubelet", None),
        (None, "killing", "llm-0/server", "kubelet (liveness probe)", None),
    ]
    assert found["host_events"][2]["ts"] == at("2022-02-01T13:02:40")
    assert found["host_events"][2]["detail"] == "Last State Terminated: OOMKilled; restart count 6"
    rules = [tuple(row[key] for key in ("initiator", "what", "period_s", "timeout_s", "strikes", "unit", "delay_s", "source")) for row in found["watchdog_rules"]]
    assert rules == [
        ("kubelet (liveness probe)", "http-get http://:8000/health", 10.0, 1.0, 3, "llm-0/server", 60.0, "describe.txt:22"),
        ("kubelet (readiness probe)", "http-get http://:8000/health", 5.0, 1.0, 3, "llm-0/server", 0.0, "describe.txt:23"),
        ("kubelet (startup probe)", "exec [curl -sf localhost:8000/health]", 10.0, 2.0, 30, "llm-0/server", 0.0, "describe.txt:24"),
    ]
    assert "ages such as 25m" in str(found["event_files"][0]["assumed"])


def test_two_pods_and_a_time_of_printing() -> None:
    found = parsed("2026-01-01T14:03:00Z\n" + TEXT + "\n\n" + TEXT.replace("llm-0", "llm-1"), "describe.txt")
    assert {row["unit"] for row in found["host_events"]} == {"llm-0/server", "llm-0/proxy", "llm-1/server", "llm-1/proxy"}
    assert [clock for clock, kind, *_ in short(found) if kind == "killing"] == ["14:00:00", "14:01:00"] * 2


POD = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "llm-0", "namespace": "llm", "deletionTimestamp": "2026-01-01T15:00:00Z"},
    "spec": {"containers": [{
        "name": "server",
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8000, "scheme": "HTTP"}, "timeoutSeconds": 2, "initialDelaySeconds": 5},
        "readinessProbe": {"tcpSocket": {"port": 8000}, "failureThreshold": 7}, "startupProbe": {"exec": {"command": ["curl", "-sf"]}, "periodSeconds": 3},
    }]},
    "status": {"containerStatuses": [{
        "name": "server", "restartCount": 2,
        "state": {"running": {"startedAt": "2026-01-01T14:05:00Z"}},
        "lastState": {"terminated": {"exitCode": 143, "reason": "Error", "startedAt": "2026-01-01T13:00:00Z", "finishedAt": "2026-01-01T14:04:00Z"}},
    }]},
}  # fmt: skip


def test_pod_json() -> None:
    for document in (POD, {"apiVersion": "v1", "kind": "List", "items": [POD]}, {"apiVersion": "v1", "kind": "PodList", "items": [{**POD, "kind": None}]}):
        if document.get("kind") == "PodList":
            del document["items"][0]["kind"]  # type: ignore[index]
        found = parsed(json.dumps(document, indent=1), "pod.json")
        assert short(found) == [
            ("13:00:00", "start", "llm-0/server", "kubelet", None),
            ("14:04:00", "exit", "llm-0/server", None, 143),
            ("14:05:00", "start", "llm-0/server", "kubelet", None),
            ("15:00:00", "killing", "llm-0", "kubernetes (pod removal)", None),
        ]
        rules = [(row["initiator"], row["what"], row["period_s"], row["timeout_s"], row["strikes"], row["delay_s"]) for row in found["watchdog_rules"]]
        assert rules == [
            ("kubelet (liveness probe)", "http-get http://:8000/health", 10.0, 2.0, 3, 5.0),
            ("kubelet (readiness probe)", "tcp-socket :8000", 10.0, 1.0, 7, 0.0),
            ("kubelet (startup probe)", "exec curl -sf", 3.0, 1.0, 3, 0.0),
        ]
