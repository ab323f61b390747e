"""Kubernetes events in every table kubectl prints, and as JSON."""

import json

import pytest

from tests.parsers.event_cases import Found, at, parsed, short

DESCRIBED = """\
  Type     Reason     Age                  From     Message
  ----     ------     ----                 ----     -------
  Normal   Scheduled  28m                  default-scheduler  Successfully assigned llm/llm-0 to gpu-7
  Normal   Pulling    25m (x2 over 28m)    kubelet  Pulling image "registry.example/llm/server:1.0"
  Normal   Created    25m (x2 over 28m)    kubelet  Created container: server
  Normal   Started    25m (x2 over 28m)    kubelet  Started container server
  Warning  Unhealthy  2m (x12 over 3m)     kubelet  Liveness probe failed: Get "http://10.0.0.7:8000/health": dial tcp 10.0.0.7:8000: connect: connection refused
  Normal   Killing    2m (x4 over 3m)      kubelet  Container server failed liveness probe, will be restarted
  Warning  BackOff    30s (x6 over 2m)     kubelet  Back-off restarting failed container server in pod llm-0
"""
WANTED = [
    ("13:35:00", "start", "server", "kubelet", None), ("13:38:00", "start", "server", "kubelet", None),
    ("14:00:00", "probe_failed", "server", "kubelet (liveness probe)", None), ("14:01:00", "probe_failed", "server", "kubelet (liveness probe)", None),
    ("14:00:00", "killing", "server", "kubelet (liveness probe)", None), ("14:01:00", "killing", "server", "kubelet (liveness probe)", None),
    ("14:01:00", "back_off", "server", "kubelet", None), ("14:02:30", "back_off", "server", "kubelet", None),
]  # fmt: skip


def events_table(*rows: str, header: str = "LAST SEEN   TYPE      REASON      OBJECT      MESSAGE") -> str:
    return "\n".join([header, *rows]) + "\n"


def one(found: Found) -> tuple[object, ...]:
    (row,) = found["host_events"]
    return row["kind"], row["unit"], row["initiator"], row["code"]


MESSAGES = [
    ("Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 503", "probe_failed", "llm-0", "kubelet (liveness probe)", 503),
    ("Unhealthy", 'Readiness probe failed: Get "http://10.0.0.7:8000/health": context deadline exceeded (Client.Timeout exceeded while awaiting headers)',
     "probe_failed", "llm-0", "kubelet (readiness probe)", None),
    ("Unhealthy", "Liveness probe errored: rpc error: code = DeadlineExceeded desc = context deadline exceeded", "probe_failed", "llm-0", "kubelet (liveness probe)", None),
    ("Unhealthy", "Liveness probe failed: ", "probe_failed", "llm-0", "kubelet (liveness probe)", None),
    ("Unhealthy", "Startup probe failed: dial tcp 10.0.0.7:8000: connect: connection refused", "probe_failed", "llm-0", "kubelet (startup probe)", None),
    ("Killing", "Container server failed liveness probe, will be restarted", "killing", "llm-0/server", "kubelet (liveness probe)", None),
    ("Killing", "Container server failed startup probe, will be restarted", "killing", "llm-0/server", "kubelet (startup probe)", None),
    ("Killing", "Killing container with id docker://server:Container failed liveness probe.. Container will be killed and recreated.", "killing", "llm-0",
     "kubelet (liveness probe)", None),
    ("Killing", "Stopping container server", "killing", "llm-0/server", "kubernetes (pod removal)", None),
    ("Killing", "Container server definition changed, will be restarted", "killing", "llm-0/server", "kubelet (definition changed)", None),
    ("BackOff", "Back-off restarting failed container server in pod llm-0_llm(1b2c)", "back_off", "llm-0/server", "kubelet", None),
    ("BackOff", "Back-off restarting failed container", "back_off", "llm-0", "kubelet", None),
    ("Started", "Started container server", "start", "llm-0/server", "kubelet", None),
    ("Started", "Container started", "start", "llm-0", "kubelet", None),
    ("Evicted", "The node was low on resource: memory.", "killing", "llm-0", "kubelet (eviction)", None),
    ("Preempted", "Preempted by pod 1b2c on node gpu-7", "killing", "llm-0", "scheduler (preemption)", None),
    ("TaintManagerEviction", "Marking for deletion Pod llm/llm-0", "killing", "llm-0", "kubernetes (taint)", None),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "message", "kind", "unit", "initiator", "code"), MESSAGES)
def test_messages(reason: str, message: str, kind: str, unit: str, initiator: str, code: int | None) -> None:
    text = events_table(f"{'2026-01-01T13:58:59Z':<23} {'Warning':<10}{reason:<22}{'pod/llm-0':<12}{message}",
                        header=f"{'LAST SEEN':<24}{'TYPE':<10}{'REASON':<22}{'OBJECT':<12}MESSAGE")  # fmt: skip
    found = parsed(text)
    assert one(found) == (kind, unit, initiator, code)
    (row,) = found["host_events"]
    assert row["detail"] == f"{reason}: {message.rstrip()}"
    assert (row["ts"], row["source"], row["origin"]) == (at("2026-01-01T13:58:59"), "x.log:2", "kubernetes")


@pytest.mark.parametrize(("reason", "message"), [
    ("Pulled", "Successfully pulled image in 2m3s"), ("BackOff", "Back-off pulling image x"), ("FailedScheduling", "0/3 nodes are available"),
    ("Created", "Created container: server"), ("Scheduled", "Successfully assigned llm/llm-0 to gpu-7"), ("TaintManagerEviction", "Cancelling deletion of Pod llm/llm-0"),
])  # fmt: skip
def test_what_is_no_event(reason: str, message: str) -> None:
    assert parsed(events_table(f"18s         Warning   {reason:<12}pod/llm-0   {message}"))["host_events"] == []


OBJECTS = [
    ("node/gpu-7", "NodeNotReady", "Node gpu-7 status is now: NodeNotReady", ("heartbeat_lost", "gpu-7", "kubernetes", None)),
    ("node/gpu-7", "Rebooted", "Node gpu-7 has been rebooted, boot id: 1b2c", ("restart", "gpu-7", "host boot", None)),
    ("node/gpu-7", "SystemOOM", "System OOM encountered, victim process: VLLM::EngineCor, pid: 4711", ("oom_kill", "gpu-7", "kernel", 9)),
    ("statefulset/llm", "SuccessfulDelete", "delete Pod llm-0 in StatefulSet llm successful", ("killing", "llm-0", "statefulset/llm", None)),
    ("replicaset/llm-5d", "SuccessfulDelete", "Deleted pod: llm-5d-x2x", ("killing", "llm-5d-x2x", "replicaset/llm-5d", None)),
    ("deployment/llm", "ScalingReplicaSet", "Scaled down replica set llm-5d to 0 from 1", ("restart", "llm", "kubernetes (rollout)", None)),
]


@pytest.mark.parametrize(("about", "reason", "message", "wanted"), OBJECTS)
def test_events_of_other_objects(about: str, reason: str, message: str, wanted: tuple[object, ...]) -> None:
    header = f"{'LAST SEEN':<12}{'TYPE':<10}{'REASON':<20}{'OBJECT':<22}MESSAGE"
    assert one(parsed(events_table(f"{'18s':<12}{'Warning':<10}{reason:<20}{about:<22}{message}", header=header))) == wanted


def test_ages_become_times_where_the_time_of_printing_is_known() -> None:
    found = parsed("Thu Jan  1 14:03:00 UTC 2026\n" + DESCRIBED, "events.txt")
    wanted = [(time, kind, None if unit is None else "server", who, code) for time, kind, unit, who, code in WANTED]
    rows = [(clock, kind, str(unit).rpartition("/")[2] if unit else "server", who, code) for clock, kind, unit, who, code in short(found)]
    assert [(kind, who, clock) for clock, kind, _, who, _ in rows] == [(kind, who, clock) for clock, kind, _, who, _ in wanted]
    details = [str(row["detail"]) for row in found["host_events"]]
    assert details[2].endswith("[first of 12, the last at 2026-01-01 14:01:00]")
    assert details[3].endswith("[last of 12 since 2026-01-01 14:00:00]")
    assert found["event_files"][0]["assumed"] is None


@pytest.mark.parametrize("line", ["Thu Jan  1 14:03:00 UTC 2026", "Thu, 01 Jan 2026 15:03:00 +0100", "2026-01-01T14:03:00Z", "2026-01-01T14:03:00+00:00"])
def test_spellings_of_the_time_of_printing(line: str) -> None:
    found = parsed(f"{line}\n" + events_table("18s         Warning   Unhealthy   pod/llm-0   Liveness probe failed: "))
    assert [row[0] for row in short(found)] == ["14:02:42"]


def test_ages_without_it_are_no_times_and_that_is_said() -> None:
    found = parsed(events_table("2m (x12 over 3m)  Warning   Unhealthy   pod/llm-0   Liveness probe failed: HTTP probe failed with statuscode: 404",
                                header="LAST SEEN         TYPE      REASON      OBJECT      MESSAGE"))  # fmt: skip
    (row,) = found["host_events"]
    assert row["ts"] is None
    assert "[2m (x12 over 3m) before it was printed] [last of 12]" in str(row["detail"])
    assert "ages such as 25m are no times" in str(found["event_files"][0]["assumed"])
    assert "ages such as 25m are no times" in str(found["collected"][0]["reason"])


COLUMN_SETS = [
    # -A
    "NAMESPACE   LAST SEEN              TYPE      REASON      OBJECT      MESSAGE\n"
    "llm         2026-01-01T13:58:59Z   Warning   Unhealthy   pod/llm-0   Liveness probe failed: HTTP probe failed with statuscode: 503\n",
    # -o wide
    "LAST SEEN              TYPE      REASON      OBJECT      SUBOBJECT                SOURCE           MESSAGE                                                         FIRST SEEN             COUNT   NAME\n"
    "2026-01-01T13:58:59Z   Warning   Unhealthy   pod/llm-0   spec.containers{server}  kubelet, gpu-7   Liveness probe failed: HTTP probe failed with statuscode: 503   2026-01-01T13:58:59Z   1       llm-0.17a\n",
    # before 1.15
    "LAST SEEN              FIRST SEEN             COUNT     NAME        KIND      SUBOBJECT                 TYPE      REASON      SOURCE           MESSAGE\n"
    "2026-01-01T13:58:59Z   2026-01-01T13:58:59Z   1         llm-0.17a   Pod       spec.containers{server}   Warning   Unhealthy   kubelet, gpu-7   Liveness probe failed: HTTP probe failed with statuscode: 503\n",
    # custom-columns
    "TIME                   NAME    REASON      MESSAGE\n2026-01-01T13:58:59Z   llm-0   Unhealthy   Liveness probe failed: HTTP probe failed with statuscode: 503\n",
    # pasted without its header, blanks lost
    "2026-01-01T13:58:59Z Warning Unhealthy pod/llm-0 Liveness probe failed: HTTP probe failed with statuscode: 503\n",
    "2026-01-01T13:58:59Z   Unhealthy   pod/llm-0   Liveness probe failed: HTTP probe failed with statuscode: 503\n",
    "LAST SEEN\tTYPE\tREASON\tOBJECT\tMESSAGE\n2026-01-01T13:58:59Z\tWarning\tUnhealthy\tpod/llm-0\tLiveness probe failed: HTTP probe failed with statuscode: 503\n",
]


@pytest.mark.parametrize("text", COLUMN_SETS)
def test_column_sets(text: str) -> None:
    (row,) = parsed(text)["host_events"]
    assert (row["ts"], row["kind"], row["initiator"], row["code"]) == (at("2026-01-01T13:58:59"), "probe_failed", "kubelet (liveness probe)", 503)
    assert row["unit"] in ("llm-0", "llm-0/server")


def test_custom_columns_without_an_object() -> None:
    found = parsed("2026-01-01T13:58:59Z   Killing     Container server failed liveness probe, will be restarted\n")
    assert one(found) == ("killing", None, "kubelet (liveness probe)", None)


def v1(reason: str, message: str, **more: object) -> dict[str, object]:
    about = {"kind": "Pod", "namespace": "llm", "name": "llm-0", "fieldPath": "spec.containers{server}"}
    return {"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"llm-0.{reason}", "namespace": "llm"}, "involvedObject": about, "reason": reason,
            "message": message, "type": "Warning", **more}  # fmt: skip


def test_a_list_of_v1_events() -> None:
    document = {"apiVersion": "v1", "kind": "List", "items": [
        v1("Killing", "Container server failed liveness probe, will be restarted", count=1, firstTimestamp="2026-01-01T14:01:00Z", lastTimestamp="2026-01-01T14:01:00Z"),
        v1("Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 503", count=3, firstTimestamp="2026-01-01T14:00:00Z",
           lastTimestamp="2026-01-01T14:00:40Z"),
        v1("Started", "Started container server", count=None, eventTime="2026-01-01T13:00:00.123456Z", firstTimestamp=None, lastTimestamp=None),
    ]}  # fmt: skip
    found = parsed(json.dumps(document, indent=4), "events.json")
    assert short(found) == [
        ("13:00:00", "start", "llm-0/server", "kubelet", None),
        ("14:00:00", "probe_failed", "llm-0/server", "kubelet (liveness probe)", 503),
        ("14:00:40", "probe_failed", "llm-0/server", "kubelet (liveness probe)", 503),
        ("14:01:00", "killing", "llm-0/server", "kubelet (liveness probe)", None),
    ]
    assert found["host_events"][0]["source"] == "events.json#llm/llm-0.Started"


def test_events_k8s_io_and_a_stream_of_watch() -> None:
    event = {
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "llm-0.1", "namespace": "llm"}, "reason": "Unhealthy", "note": "Readiness probe failed: ",
        "regarding": {"kind": "Pod", "name": "llm-0"}, "eventTime": "2026-01-01T14:00:00.5Z",
        "series": {"count": 4, "lastObservedTime": "2026-01-01T14:00:30.123456789Z"},
    }  # fmt: skip
    text = "".join(json.dumps(item) + "\n" for item in ({"type": "ADDED", "object": event}, {"type": "MODIFIED", "object": event}))
    found = parsed(text, "watch.json")
    assert [row["ts"] for row in found["host_events"]] == [at("2026-01-01T14:00:00.5"), at("2026-01-01T14:00:00.5"), at("2026-01-01T14:00:30.123456"), at("2026-01-01T14:00:30.123456")]
