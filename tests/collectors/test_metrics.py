"""Probes of real HTTP servers that answer, hang, trickle, lie or speak something else; saved /metrics files."""

import contextlib
import gzip
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from diag.bundle import Door, Writer
from diag.collectors import metrics, sockets
from diag.errors import Garbled
from diag.instruments import http_get
from diag.live import Options, Patient
from diag.model import Artefact
from diag.redact import Redactor
from tests.collectors import harness
from tests.collectors.children import Child, child

# argv: behaviour of /metrics, then further arguments. Each connection is served by a thread of its own.
SERVER = r"""
import gzip, json, socket, ssl, struct, sys, threading, time
how, more = sys.argv[1], sys.argv[2:]
host = "::" if how == "ipv6" else "127.0.0.1"
server = socket.socket(socket.AF_INET6 if how == "ipv6" else socket.AF_INET)
server.bind((host, 0)); server.listen(16)
port = server.getsockname()[1]
if how == "tls":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(more[0])
count = 0

def body():
    global count
    count += 1
    return f'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine="0"}} 3.0\nvllm:generation_tokens_total{{engine="0"}} {count}.0\n'.encode()

def answer(wire, status, text, *fields):
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(text)}", *fields, "", ""]
    wire.sendall("\r\n".join(lines).encode() + text)

def read_head(wire):
    data = b""
    while b"\r\n\r\n" not in data:
        part = wire.recv(4096)
        if not part: return b"", ""
        data += part
    return data, data.split(b" ")[1].decode()

def serve(wire):
    if how == "tls":
        wire = context.wrap_socket(wire, server_side=True)
    if how == "zmq":
        wire.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"); wire.recv(100); return
    head, path = read_head(wire)
    if how in ("hang", "stopped"):
        time.sleep(600)
    elif how == "reset":
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == "trickle":
        for letter in "HTTP/1.1 200 OK\r\nX-Slow: " + "a" * 100000:
            wire.sendall(letter.encode()); time.sleep(0.05)
    elif how == "trickle-body":
        wire.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            wire.sendall(b"a 1\n"); time.sleep(0.05)
    elif how == "short":
        wire.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\na 1\n")
    elif how == "chunked":
        text = body()
        wire.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(text), text))
    elif path == "/health":
        answer(wire, 200, b"", "X-Auth: no") if b"Authorization" not in head else answer(wire, 500, b"")
    elif how == "html":
        answer(wire, 200, b"<!doctype html><html><body>hello</body></html>")
    elif how == "missing":
        answer(wire, 404, b'{"detail":"Not Found"}')
    elif how == "broken":
        answer(wire, 500, b"oops")
    elif how == "auth":
        good = b"Authorization: Bearer " + more[0].encode() + b"\r\n" in head
        answer(wire, 200 if good else 401, body() if good else b"no")
    elif how == "gzip":
        answer(wire, 200, gzip.compress(body()), "Content-Encoding: gzip")
    elif how == "moved" and path == "/metrics":
        answer(wire, 307, b"", f"Location: http://127.0.0.1:{port}/metrics/")
    elif how == "elsewhere":
        answer(wire, 307, b"", f"Location: http://127.0.0.1:{more[0]}/metrics")
    elif how == "big":
        answer(wire, 200, body() + b"some_metric_total 1\n" * 20000)
    else:
        answer(wire, 200, body())

def run(wire):
    try:
        serve(wire)
    except OSError:
        pass
    wire.close()

print(json.dumps({"port": port}), flush=True)
while True:
    if how == "not-accepting":
        time.sleep(600)
    wire, _ = server.accept()
    print("accepted", flush=True)
    threading.Thread(target=run, args=(wire,), daemon=True).start()
"""


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """No probe thread and no socket outlives a run."""
    before = set(sockets._inodes(os.getpid()))
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("llmdiag")]
    assert set(sockets._inodes(os.getpid())) <= before


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.4)


def look(
    patient: Child, tmp_path: Path, *, options: Options | None = None, seen: Mapping[str, Sequence[Mapping[str, object]]] | None = None
) -> harness.Run:
    """Sockets first, as in a snapshot, then metrics."""
    found = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid).rows
    return harness.run(metrics, patient.pid, tmp_path, window_s=0.25, root=patient.pid, options=options, seen={**found, **(seen or {})})


def outcomes(run: harness.Run, path: str = "/metrics") -> list[object]:
    return [row["outcome"] for row in run.of("probes") if str(row["url"]).endswith(path)]


def test_answer_is_read_twice(tmp_path: Path) -> None:
    with child(SERVER, "good") as patient:
        run = look(patient, tmp_path)
    port = patient.facts["port"]
    assert (run.error, run.notes) == (None, [])
    assert [(row["read"], row["target"], row["url"], row["outcome"], row["status"]) for row in run.of("probes")] == [
        (read, f"127.0.0.1:{port}", f"http://127.0.0.1:{port}{path}", "answer", 200) for read in (0, 1) for path in ("/health", "/metrics")
    ]
    tokens = run.of("metrics", name="vllm:generation_tokens_total")
    assert [(row["read"], row["value"], row["engine"], row["target"]) for row in tokens] == [
        (0, 1.0, "0", f"127.0.0.1:{port}"), (1, 2.0, "0", f"127.0.0.1:{port}"),
    ]
    assert tokens[0]["ts"] is not None and tokens[0]["source"] == f"metrics/{port}-metrics-0.txt:5"
    text = next(item for item in run.artefacts if item.name == f"{port}-metrics-0.txt").text().splitlines()
    assert text[0].startswith("# llmdiag read=0 ts=") and " status=200 seconds=" in text[0]
    assert text[1] == f"# llmdiag url=http://127.0.0.1:{port}/metrics"


@pytest.mark.parametrize("title", ["python3 -m sglang.launch_server --model-path m", "sglang::scheduler_TP0"])
def test_a_server_that_generates_on_health_is_not_asked_for_it(title: str, tmp_path: Path) -> None:
    with child(SERVER, "good") as patient:
        run = look(patient, tmp_path, seen={"processes": [{"pid": patient.pid, "role": "api_server", "cmd": title}]})
    assert (run.error, run.notes, outcomes(run), outcomes(run, "/health")) == (None, [], ["answer", "answer"], [])


@pytest.mark.parametrize("how, outcome", [("hang", "timeout"), ("not-accepting", "timeout"), ("trickle", "timeout"), ("trickle-body", "timeout")])
def test_no_answer_in_time_is_a_row(how: str, outcome: str, tmp_path: Path, impatient: None) -> None:
    with child(SERVER, how) as patient:
        run = look(patient, tmp_path)
    assert outcomes(run) == [outcome, outcome]
    assert all(row["status"] is None for row in run.of("probes", outcome="timeout"))
    assert run.of("metrics") == []
    assert {note.table_name for note in run.notes} == {"metrics"}
    assert "gave no answer (timeout" in run.notes[0].reason


def test_stopped_server_times_out(tmp_path: Path, impatient: None) -> None:
    with child(SERVER, "good") as patient:
        os.kill(patient.pid, signal.SIGSTOP)
        run = look(patient, tmp_path)
        os.kill(patient.pid, signal.SIGCONT)
    assert outcomes(run) == outcomes(run, "/health") == ["timeout", "timeout"]


@pytest.mark.parametrize("how", ["reset", "short"])
def test_connection_that_ends_early_is_a_reset(how: str, tmp_path: Path) -> None:
    with child(SERVER, how) as patient:
        run = look(patient, tmp_path)
    assert outcomes(run) == ["reset", "reset"]
    assert {row["status"] for row in run.of("probes")} == {None}
    assert {note.table_name for note in run.notes} == {"metrics"}


def test_server_that_died_refuses(tmp_path: Path) -> None:
    with child(SERVER, "good") as patient:
        found = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid).rows

        def kill(tick: object) -> None:
            if getattr(tick, "number", None) == 1:
                patient.process.kill()
                patient.process.wait()

        run = harness.run(metrics, patient.pid, tmp_path, window_s=0.25, root=patient.pid, seen=found, at_beat=kill)
    assert run.error is None
    assert [row["outcome"] for row in run.of("probes", read=1)] == ["refused", "refused"]


def test_port_that_speaks_something_else_is_passed_over_unless_it_was_given(tmp_path: Path) -> None:
    with child(SERVER, "zmq") as patient:
        found = look(patient, tmp_path)
        given = look(patient, tmp_path, options=Options(ports=(patient.facts["port"],)))
    assert (found.rows, found.notes) == ({}, [])
    assert not [item.name for item in found.artefacts if item.name == "probes-1.jsonl"], "it is not asked again"
    assert outcomes(given) == ["garbled", "garbled"]
    assert {note.table_name for note in given.notes} == {"metrics"}


@pytest.mark.parametrize("how, status, note", [
    ("missing", 404, None), ("broken", 500, "answered 500"), ("html", 200, "no /metrics text"), ("auth", 401, "--bearer-file"),
])
def test_answers_without_metrics(how: str, status: int, note: str | None, tmp_path: Path) -> None:
    with child(SERVER, how, "secret-token") as patient:
        run = look(patient, tmp_path)
    assert [(row["outcome"], row["status"]) for row in run.of("probes") if str(row["url"]).endswith("/metrics")] == [("answer", status)] * 2
    assert run.of("metrics") == []
    assert [item.table_name for item in run.notes] == ([] if note is None else ["metrics"])
    assert note is None or note in run.notes[0].reason
    assert b"hello" not in run.bytes()


def test_bearer_token_goes_to_metrics_only_and_is_written_nowhere(tmp_path: Path) -> None:
    with child(SERVER, "auth", "s3cr3t-t0ken-xyz") as patient:
        run = look(patient, tmp_path, options=Options(bearer="s3cr3t-t0ken-xyz"))
    assert run.of("metrics", name="vllm:num_requests_running")
    assert {row["status"] for row in run.of("probes")} == {200}, "/health answers 500 when it gets the token"
    assert b"s3cr3t" not in run.bytes()


def test_bearer_token_cannot_smuggle_headers(tmp_path: Path) -> None:
    with child(SERVER, "auth", "x") as patient:
        run = look(patient, tmp_path, options=Options(bearer="x\r\nX-Evil: 1"))
    assert {row["status"] for row in run.of("probes") if str(row["url"]).endswith("/metrics")} == {401}
    assert "was not sent" in run.notes[0].reason


@pytest.mark.parametrize("how", ["gzip", "chunked", "moved", "ipv6"])
def test_other_ways_to_send_metrics(how: str, tmp_path: Path) -> None:
    with child(SERVER, how) as patient:
        run = look(patient, tmp_path)
    assert [row["value"] for row in run.of("metrics", name="vllm:num_requests_running")] == [3.0, 3.0]
    assert {row["target"] for row in run.of("metrics")} == {row["target"] for row in run.of("probes")}
    assert {str(row["target"]).rpartition(":")[0] for row in run.of("probes")} <= ({"[::1]", "127.0.0.1"} if how == "ipv6" else {"127.0.0.1"})


def test_redirect_to_another_place_is_not_followed(tmp_path: Path) -> None:
    with child(SERVER, "good") as trap, child(SERVER, "elsewhere", trap.facts["port"]) as patient:
        run = look(patient, tmp_path)
        trap.process.kill()
        assert trap.process.stdout is not None and trap.process.stdout.read() == "", "the other server was asked"
    assert [row["status"] for row in run.of("probes") if str(row["url"]).endswith("/metrics")] == [307, 307]


def test_body_is_capped_at_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_get, "MAX_BODY_BYTES", 1000)
    with child(SERVER, "big") as patient:
        run = look(patient, tmp_path)
    assert "were kept" in run.notes[0].reason
    text = next(item for item in run.artefacts if item.name.endswith("-metrics-0.txt")).text()
    assert len(text) < 1200 and text.endswith("some_metric_total 1\n")
    assert "collected" not in run.rows


def test_tls_with_a_certificate_nobody_knows(tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate")
    pem = tmp_path / "server.pem"
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*command, "-keyout", str(pem), "-out", str(tmp_path / "cert.pem")], check=True, capture_output=True)
    pem.write_text(pem.read_text() + (tmp_path / "cert.pem").read_text())
    with child(SERVER, "tls", pem) as patient:
        run = look(patient, tmp_path)
    assert [(row["outcome"], row["status"]) for row in run.of("probes")] == [("answer", 200)] * 4
    assert {str(row["url"]).partition(":")[0] for row in run.of("probes")} == {"https"}
    assert len(run.of("metrics", name="vllm:num_requests_running")) == 2


def test_stopping_early_keeps_what_was_read(tmp_path: Path, impatient: None) -> None:
    with child(SERVER, "hang") as patient:
        found = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid).rows

        class CtrlC(Exception):
            pass

        def interrupt(tick: object) -> None:
            raise CtrlC

        with pytest.raises(CtrlC):
            harness.run(metrics, patient.pid, tmp_path, root=patient.pid, seen=found, at_beat=interrupt)
    (written,) = tmp_path.glob("bundle-metrics-*/artefacts/metrics/probes-0.jsonl")
    assert [json.loads(line)["outcome"] for line in written.read_text().splitlines()[1:]] == ["timeout", "timeout"]


def test_environment_proxies_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with child(SERVER, "good") as patient:
        run = look(patient, tmp_path)
    assert outcomes(run) == ["answer", "answer"]


def test_probes_do_not_show_up_as_backlog(tmp_path: Path, door: Door, impatient: None) -> None:
    """Sockets and metrics run together: the unanswered probes of the first read wait in the accept queue."""
    with child(SERVER, "not-accepting") as patient:
        found = harness.run(sockets, patient.pid, tmp_path, window_s=0.25, root=patient.pid).rows
        asking = metrics.collect(_patient(patient, found), door)
        next(asking)
        try:
            run = harness.run(sockets, patient.pid, tmp_path, window_s=1.0, root=patient.pid)
        finally:
            asking.close()
        raw = Path(f"/proc/{patient.pid}/net/tcp").read_text().splitlines()
    (listener,) = [line.split() for line in raw if f":{patient.facts['port']:04X} 00000000:0000 0A" in line]
    assert int(listener[4].partition(":")[2], 16) == 2, "the kernel counts both probes"
    assert [row["recv_q"] for row in run.of("sockets", state="LISTEN")] == [0, 0]


def _patient(patient: Child, rows: Mapping[str, Sequence[Mapping[str, object]]]) -> Patient:
    return Patient(patient.pid, patient.pid, [patient.pid], Options(), lambda table: rows.get(table, ()))


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    """A way into a bundle for code that is driven by hand."""
    writer = Writer(tmp_path / "together", Redactor(), {}, {})
    yield Door(writer, "metrics", 1 << 20)
    writer._journal.close()


OWN_NETWORK = r"""
import ctypes, fcntl, http.server, json, socket, struct
if ctypes.CDLL(None, use_errno=True).unshare(0x40000000) != 0:
    print(json.dumps({"port": -1}), flush=True); raise SystemExit
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", 1))  # lo up
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"# TYPE a gauge\na 1\n")
    def log_message(self, *arguments): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(json.dumps({"port": server.server_port}), flush=True)
server.serve_forever()
"""


def test_service_in_a_network_of_its_own_is_asked_there(tmp_path: Path) -> None:
    with child(OWN_NETWORK) as patient:
        if patient.facts["port"] < 0:
            pytest.skip("no right to make a network namespace")
        run = look(patient, tmp_path)
    assert run.notes == []
    assert [row["value"] for row in run.of("metrics", name="a")] == [1.0, 1.0]


# --- which ports -----------------------------------------------------------------------------------------------

ROOT = 100


def _listen(pid: int, port: int, laddr: str = "0.0.0.0") -> dict[str, object]:
    return {"pid": pid, "lport": port, "laddr": laddr, "state": "LISTEN", "read": 0}


def _process(pid: int, role: str, comm: str = "python") -> dict[str, object]:
    return {"pid": pid, "role": role, "comm": comm}


@pytest.mark.parametrize("listening, processes, ports", [
    ([_listen(ROOT, 8000)], [], [8000]),
    ([_listen(ROOT, 45000)], [], [45000]),
    ([_listen(ROOT, 8000), _listen(ROOT, 45000)], [], [8000]),
    ([_listen(101, 5557), _listen(ROOT, 8000)], [_process(101, "engine_core")], [8000]),
    ([_listen(101, 45001), _listen(102, 9000), _listen(ROOT, 8000)], [], [8000, 9000]),
    ([_listen(101, 45001)], [_process(ROOT, "other"), _process(101, "worker")], [45001]),
    ([_listen(101, 29500), _listen(102, 8000)], [_process(101, "worker"), _process(102, "api_server")], [8000]),
    ([_listen(101, 6379), _listen(ROOT, 8000)], [_process(101, "other", "valkey-server")], [8000]),
    ([_listen(ROOT, 8000, "::"), _listen(ROOT, 8000)], [], [8000]),
    ([_listen(ROOT, port) for port in range(8000, 8006)], [], [8000, 8001, 8002, 8003]),
    ([], [], []),
])
def test_ports_worth_asking(
    listening: list[Mapping[str, object]], processes: list[Mapping[str, object]], ports: list[int], door: Door
) -> None:
    rows = {"sockets": listening, "processes": processes}
    patient = Patient(ROOT, ROOT, [ROOT, 101, 102], Options(), lambda table: rows[table])
    found = metrics._places(patient, door)
    assert [place.port for place in found] == ports
    assert {place.host for place in found} <= {"0.0.0.0"}, "IPv4 is preferred"


def test_unread_sockets_are_said(tmp_path: Path) -> None:
    with child(SERVER, "good") as patient:
        run = harness.run(metrics, patient.pid, tmp_path, window_s=0.25, root=patient.pid, options=Options(skip=frozenset({"sockets"})))
        given = replace(Options(), ports=(patient.facts["port"],), skip=frozenset({"sockets"}))
        named = harness.run(metrics, patient.pid, tmp_path, window_s=0.25, root=patient.pid, options=given)
    assert [(note.table_name, note.status) for note in run.notes] == [("*", "partial")]
    assert "--port" in run.notes[0].reason
    assert outcomes(named) == ["answer", "answer"]


def test_process_without_ports_was_looked_at(tmp_path: Path) -> None:
    with child("import signal; print('{}', flush=True); signal.pause()") as patient:
        run = look(patient, tmp_path)
    assert (run.rows, run.notes, run.error) == ({}, [], None)


# --- saved files -----------------------------------------------------------------------------------------------

TEXT = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} %s\n'


def _reads(*names: str) -> dict[str, tuple[object, object]]:
    """File name -> (target, read)."""
    rows = harness.parse(metrics, {name: TEXT % "1.0" for name in names})["metrics"]
    return {str(row["source"]).rpartition(":")[0]: (row["target"], row["read"]) for row in rows}


def test_saved_reads_are_ordered_by_name() -> None:
    assert _reads("idle/metrics2.txt", "idle/metrics10.txt", "idle/metrics1.txt", "busy/metrics1.txt") == {
        "idle/metrics1.txt": ("idle/metrics", 0), "idle/metrics2.txt": ("idle/metrics", 1), "idle/metrics10.txt": ("idle/metrics", 2),
        "busy/metrics1.txt": ("busy/metrics", 0),
    }
    assert _reads("after.txt", "before.txt") == {"before.txt": ("metrics", 0), "after.txt": ("metrics", 1)}
    assert _reads("metrics-8000.txt", "metrics-8001.txt") == {"metrics-8000.txt": ("metrics-8000", 0), "metrics-8001.txt": ("metrics-8001", 0)}
    assert _reads("m-8000-2.prom", "m-8000-1.prom") == {"m-8000-1.prom": ("m-8000", 0), "m-8000-2.prom": ("m-8000", 1)}


def test_file_named_by_its_time_knows_its_time() -> None:
    rows = harness.parse(metrics, {"metrics-1796007298.txt": TEXT % "1.0", "metrics-1796007307.5.txt": TEXT % "2.0"})["metrics"]
    assert [(row["read"], row["value"]) for row in rows] == [(0, 1.0), (1, 2.0)]
    times = [row["ts"] for row in rows]
    assert (times[1] - times[0]).total_seconds() == 9.5  # type: ignore[operator]


def test_artefact_of_a_bundle_handed_in_loose_keeps_time_and_target() -> None:
    text = "# llmdiag read=1 ts=1796007298.5 status=200 seconds=0.01\n# llmdiag url=http://127.0.0.1:8000/metrics\n" + TEXT % "1.0"
    (row,) = harness.parse(metrics, {"8000-metrics-1.txt": text})["metrics"]
    assert (row["read"], row["target"], row["source"]) == (1, "127.0.0.1:8000", "8000-metrics-1.txt:4")


def test_gzip_is_read() -> None:
    (row,) = harness.parse(metrics, {"metrics1.txt.gz": gzip.compress((TEXT % "4.0").encode())})["metrics"]
    assert row["value"] == 4.0


def test_bad_line_costs_one_line_and_is_said() -> None:
    rows = harness.parse(metrics, {"m1.txt": TEXT % "oops" + 'vllm:x{engine="0"} 1\n'})
    assert [row["name"] for row in rows["metrics"]] == ["vllm:x"]
    assert rows["collected"] == [{"table_name": "metrics", "status": "partial", "reason": rows["collected"][0]["reason"]}]
    assert str(rows["collected"][0]["reason"]).startswith("m1.txt:2: not a sample line (1 such")


def test_text_without_samples_was_looked_at() -> None:
    assert harness.parse(metrics, {"m.txt": "# HELP a b\n# TYPE a gauge\n"}) == {"collected": [{"table_name": "metrics", "status": "ok"}]}


@pytest.mark.parametrize("name, head", [
    ("server.log", b"INFO 11-30 06:00:00 [loggers.py:1] Engine 000: Running: 1 reqs\n"), ("t1", b"1796007279.258632468\n"),
    ("threads1.txt", b"1 1 python S 0 0 -\n"), ("sockets-0.jsonl", b'{"artefact":"sockets","read":0,"ts":1.0}\n'),
    ("page.html", b"<html># HELP"), ("broken.gz", b"\x1f\x8b\x08nonsense"), ("README.md", b"# Title\n# HELP wanted\n"),
])
def test_other_files_are_left_to_others(name: str, head: bytes) -> None:
    assert not metrics.recognise(name, head)


@pytest.mark.parametrize("line", [b"{", b'{"read":0}', b'{"read":0,"ts":1e300,"target":"x","url":"x","outcome":"x","seconds":1}'])
def test_damaged_probes_name_file_and_line(line: bytes) -> None:
    broken = Artefact.of_bytes("metrics/probes-0.jsonl", "metrics", b'{"artefact":"probes","read":0,"ts":1.0}\n' + line)
    with pytest.raises(Garbled, match=r"metrics/probes-0\.jsonl:2"):
        list(metrics.parse([broken]))


def test_port_that_nobody_listens_on_is_refused() -> None:
    with contextlib.closing(socket.socket()) as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        answer = http_get.get(socket.socket, "127.0.0.1", port, "/", seconds=2, headers={})
    assert (answer.outcome, answer.status) == ("refused", None)
