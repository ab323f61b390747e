"""`llmdiag health` as people, scripts, systemd and Kubernetes call it."""

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import stat
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import terminals
from tests.conftest import ROOT, SAMPLES
from tests.health.toy import Slots, Toy, always, text
from tests.live.run import Said, llmdiag
from tests.repro.endpoint import Response, serving

SCHEMA = json.loads(resources.files("diag.report").joinpath("health.schema.json").read_text(encoding="utf-8"))
STOPPED = SAMPLES / "vllm-0.32-cpu" / "worker-stopped"
FAST = ("--interval", "0.1")
DEAD = "http://127.0.0.1:9"
SYSTEMD, KUBERNETES = SAMPLES / "health" / "systemd" / "restart-if-stalled", SAMPLES / "health" / "kubernetes" / "exec-probe.sh"


def health(*args: str, **env: str) -> Said:
    """JSON that its schema knows."""
    said = llmdiag("health", *args, *FAST, "-f", "json", **env)
    jsonschema.validate(said.json, SCHEMA)
    return said


def states(said: Said) -> list[str]:
    return [backend["state"] for backend in said.json["backends"]]


@contextlib.contextmanager
def full(slots: Slots, url: str, questions: int) -> Iterator[None]:
    """So many clients ask and wait for their answers."""
    def ask() -> None:
        body = json.dumps({"model": "toy", "prompt": "long"}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=60) as answer:
            answer.read()

    clients = [threading.Thread(target=ask) for _ in range(questions)]
    for client in clients:
        client.start()
    while slots.queued < questions - slots.slots:
        slots.released.wait(0.01)
    yield
    slots.released.set()
    for client in clients:
        client.join(30)


def test_a_full_server_with_a_queue_is_progressing_and_gets_nothing_but_reads() -> None:
    slots = Slots(slots=2, rate=50)
    with serving(slots, one_at_a_time=False) as server, full(slots, server.url, 7):
        before = len(server.asked)
        said = health(server.url)
        received = [(path, body) for path, body, _ in server.asked[before:]]
    (backend,) = said.json["backends"]
    (engine,) = backend["engines"]
    assert (backend["state"], said.code) == ("progressing", 0), said.out
    assert (engine["running"], engine["waiting"]) == (2, 5)
    assert engine["tokens_per_s"] == pytest.approx(100, rel=0.6), "two slots of 50 a second, as far as this machine lets both of us run"
    assert received == [("/metrics", {})] * 3


def test_the_text_names_state_rate_and_engines() -> None:
    with serving(Toy(running=12, waiting=4, per_read=30)) as server:
        said = llmdiag("health", server.url, *FAST)
    first, head, row, *_ = said.out.splitlines()
    assert said.code == 0
    assert said.err.startswith("reading /metrics 3 times, "), "nobody is told what takes so long"
    assert first.startswith(f"PROGRESSING {server.url}/metrics, "), said.out
    assert "tokens/s" in first and "generation_tokens_total moved" in first
    assert head.split()[:4] == ["engine", "state", "running", "waiting"]
    assert row.split()[:4] == ["0", "progressing", "12", "4"]


def test_of_several_backends_the_worst_counts_and_1_is_worse_than_3() -> None:
    with serving(Toy(running=1, per_read=5)) as good, serving(Toy(running=1)) as flat:
        three = health(good.url, flat.url, str(STOPPED))
        two = health(good.url, flat.url)
    assert (states(two), two.code, two.json["exit"]) == (["progressing", "busy-unproven"], 3, 3)
    assert (states(three), three.code) == (["stalled", "progressing", "busy-unproven"], 1)


def test_a_stuck_engine_is_found_when_its_floor_is_over() -> None:
    with serving(Toy(running=4, per_read=0)) as server:
        named = llmdiag("health", server.url, *FAST, "--floor", "0.15")
    assert named.code == 1
    assert named.out.startswith("STALLED ")
    assert "exit 1: proved" in named.out


def test_a_proxy_beside_its_backend() -> None:
    with serving(Toy(running=1, per_read=5)) as backend, serving(Toy(running=9)) as proxy:
        said = health(backend.url, "--proxy", proxy.url)
    assert said.code == 0
    assert [item["source"] for item in said.json["backends"]] == ["live", "proxy"]
    assert [path for path, _, _ in proxy.asked] == ["/v1/models"]


WRONG: tuple[tuple[str, ...], ...] = (
    (), ("no-such-folder",), ("ftp://a",), ("http://a:1", "--reads", "1"), ("http://a:1", "http://a:1"), ("http://a:1", "http://b:1", "--pid", "1"),
    (str(STOPPED), "--watch"), (str(STOPPED), "--record", "x"), ("http://a:1", "--bearer-file", "/nowhere"), (str(ROOT / "rules"),), (str(ROOT / "README.md"),),
    ("http://a:1", "--colour"), ("http://a:1", "--interval", "nan"), ("http://a:1", "--interval", "0"), ("http://user:secret@a",), ("unix:no",),
)  # fmt: skip
CALLS = """
import json, sys
from diag.cli import main
for args in json.loads(sys.argv[1]):
    sys.argv = ["llmdiag", "health", *args]
    try:
        main()
    except SystemExit as left:
        print(json.dumps(left.code), flush=True)
        print("--", file=sys.stderr, flush=True)
"""


def test_usage_errors_are_2_and_never_harm_a_probe() -> None:
    calls = [*WRONG, *((*args, "--exec-probe") for args in WRONG)]
    done = subprocess.run([sys.executable, "-c", CALLS, json.dumps(calls)], capture_output=True, text=True, cwd=ROOT)
    codes = [int(line) for line in done.stdout.splitlines()]
    assert dict(zip(calls, codes, strict=True)) == {args: 0 if "--exec-probe" in args else 2 for args in calls}
    assert all(said.strip() for said in done.stderr.split("--\n")[:-1]), "each says what is wrong"
    assert "secret" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("target", "code"), [(DEAD, 3), (str(STOPPED), 1)])
def test_an_exec_probe_gives_only_what_was_proved(target: str, code: int) -> None:
    assert llmdiag("health", target, *FAST).code == code
    assert llmdiag("health", target, *FAST, "--exec-probe").code == (1 if code == 1 else 0)


def test_an_error_of_llmdiag_itself_does_not_harm_a_probe() -> None:
    broken = "import diag.health.recorded as r; r.judged = None\nfrom diag.cli import main\nimport sys\nsys.argv = ['llmdiag', 'health', *sys.argv[1:]]\nmain()"
    ended = [subprocess.run([sys.executable, "-c", broken, str(STOPPED), *more], capture_output=True, text=True, cwd=ROOT) for more in ((), ("--exec-probe",))]
    assert "TypeError" in ended[1].stderr
    assert [done.returncode for done in ended] == [2, 0], "1 is what stalled ends with"


def test_a_lost_stdout_does_not_harm_a_probe() -> None:
    with Path("/dev/full").open("wb") as full_disk:
        done = subprocess.run([sys.executable, "-m", "diag.cli", "health", str(STOPPED), "--exec-probe"], stdout=full_disk, stderr=subprocess.PIPE, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_deadline_ends_it_with_nothing_proved() -> None:
    with serving(always(Response(wait_for=threading.Event()))) as server:
        codes = [llmdiag("health", server.url, "--deadline", "0.3", *more).code for more in ((), ("--exec-probe",))]
    assert codes == [3, 0]


def test_a_token_from_file_or_environment_is_sent_and_not_shown(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("sk-of-the-file\n")
    with serving(always(Response(401))) as server:
        file = llmdiag("health", server.url, *FAST, "--reads", "2", "--bearer-file", str(secret))
        variable = llmdiag("health", server.url, *FAST, "--reads", "2", LLMDIAG_API_KEY="sk-of-the-variable")
    assert {headers["authorization"] for _, _, headers in server.asked} == {"Bearer sk-of-the-file", "Bearer sk-of-the-variable"}
    assert "sk-of" not in file.out + file.err + variable.out + variable.err
    assert (file.code, variable.code) == (3, 3)


def test_what_a_check_recorded_is_judged_the_same(tmp_path: Path) -> None:
    with serving(Toy(running=2, per_read=8)) as server:
        live = health(server.url, "--record", str(tmp_path / "kept"))
    recorded = health(str(tmp_path / "kept"))
    assert (states(live), states(recorded)) == (["progressing"], ["progressing"])
    assert recorded.json["backends"][0]["engines"] == live.json["backends"][0]["engines"]
    assert recorded.json["interval_s"] is None


def gauges(path: Path) -> dict[tuple[str, str | None, str | None], float]:
    """(name, engine, state) -> value, by Prometheus' own parser."""
    families = text_string_to_metric_families(path.read_text())
    return {(sample.name, sample.labels.get("engine"), sample.labels.get("state")): sample.value for family in families for sample in family.samples}


def test_the_textfile_is_what_prometheus_reads(tmp_path: Path) -> None:
    path = tmp_path / "llmdiag.prom"
    path.write_text("old")
    path.chmod(0o600)
    with serving(Toy(running=2, per_read=8)) as server:
        health(server.url, "--textfile", str(path))
    found = gauges(path)
    assert found["llmdiag_health_state", "", "progressing"] == found["llmdiag_health_state", "0", "progressing"] == 1
    assert found["llmdiag_health_state", "", "stalled"] == found["llmdiag_health_state", "0", "stalled"] == 0
    assert found["llmdiag_health_exit", None, None] == 0
    assert found["llmdiag_health_requests_running", "0", None] == 2
    assert found["llmdiag_health_requests_waiting", "0", None] == 0
    assert found["llmdiag_health_tokens_per_second", "0", None] > 0
    assert found["llmdiag_health_last_check_timestamp_seconds", None, None] == pytest.approx(time.time(), abs=3600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "the exporter is another user"
    assert list(tmp_path.iterdir()) == [path], "a part of it was left behind"


def test_watching_writes_the_textfile_anew_each_round(tmp_path: Path) -> None:
    path, at = tmp_path / "llmdiag.prom", ("llmdiag_health_last_check_timestamp_seconds", None, None)
    with serving(Toy(running=2, per_read=8)) as server, watching(server.url, "--textfile", str(path)) as process:
        assert process.stdout is not None
        process.stdout.readline()  # a line comes after the file of its round
        first = gauges(path)
        for _ in process.stdout:
            later = gauges(path)
            if later[at] > first[at]:
                break
        ended(process)
    assert later[at] > first[at], "it was written once"
    assert later["llmdiag_health_state", "", "progressing"] == 1


def test_a_textfile_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # as /dev/null would be, a pipe would be replaced by a file
    for place in (tmp_path / "no" / "x.prom", tmp_path / "pipe"):
        said = llmdiag("health", str(STOPPED), "--textfile", str(place))
        assert said.code == 2
        assert "--textfile" in said.err
    assert (tmp_path / "pipe").is_fifo()


@contextlib.contextmanager
def watching(*args: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen([sys.executable, "-m", "diag.cli", "health", *args, *FAST, "--watch"], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]") -> int:
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    process.stdout.read()
    return process.wait(30)


def test_watching_without_a_terminal_is_a_line_a_round() -> None:
    with serving(Toy(running=2, per_read=8)) as server, watching(server.url) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        code = ended(process)
    assert "BUSY-UNPROVEN" in lines[0], "one read compares with nothing"
    assert all("PROGRESSING" in line and "tokens/s" in line for line in lines[1:]), lines
    assert code == 0


def test_watching_sees_a_hang_and_its_end() -> None:
    toy = Toy(running=2, per_read=8)
    with serving(toy) as server, watching(server.url, "--floor", "0.3", "-f", "json") as process:
        assert process.stdout is not None
        wanted = ["progressing", "stalled", "progressing"]
        for state in wanted:
            for line in process.stdout:
                found = json.loads(line)
                jsonschema.validate(found, SCHEMA)
                if found["backends"][0]["state"] == state:
                    break
            toy.per_read = 8 - toy.per_read
        code = ended(process)
    assert code in (0, 1, 3), "that of the last round"


def test_watching_in_a_terminal_draws_a_table_again_and_again() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = b""
    with serving(Toy(running=2, per_read=8)) as server, subprocess.Popen(
        [sys.executable, "-m", "diag.cli", "health", server.url, *FAST, "--watch"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT,
        env={**os.environ, "TERM": "xterm", "NO_COLOR": "1"},
    ) as process:
        os.close(theirs)
        while shown.count(b"PROGRESSING") < 3:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # Linux says so when the last writer is gone
            while piece := os.read(ours, 65536):
                shown += piece
        code = process.wait(30)
    os.close(ours)
    text = shown.decode()
    assert code == 0
    assert "Ctrl-C ends" in text
    assert "tokens/s" in text
    assert not re.search(r"\x1b\[[0-9;]*[34][0-9]m", text), "a colour in spite of NO_COLOR"
    assert "\x1b[?25h" in text, "the cursor is back"


def test_a_dumb_terminal_gets_lines() -> None:
    with serving(Toy(running=2, per_read=8)) as server:
        shown = terminals.seen("health", server.url, *FAST, "--watch", "--deadline", "4")
    assert "PROGRESSING" in shown, shown
    assert "Ctrl-C" not in shown


def script(path: Path, tools: Path, *args: str, **env: str) -> "subprocess.CompletedProcess[str]":
    """One of the examples, with the tools it calls in a folder before PATH."""
    return subprocess.run(
        ["sh", str(path), *args], capture_output=True, text=True, timeout=60, cwd=ROOT,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **env},
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """llmdiag as installed, and a systemctl that writes down what it is asked."""
    folder = tmp_path / "tools"
    folder.mkdir()
    tool(folder, "llmdiag", f'exec {sys.executable} -m diag.cli "$@" --interval 0.1 --floor 0.15')
    tool(folder, "systemctl", f'echo "$*" >> {tmp_path}/asked; [ "$1" != show ] || echo 0')
    return folder


def tool(folder: Path, name: str, code: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{code}\n")
    (folder / name).chmod(0o755)


def restarts(tools: Path) -> list[str]:
    return [line for line in (tools.parent / "asked").read_text().splitlines() if line.startswith("start")]


@pytest.mark.parametrize(("per_read", "wanted"), [(5, []), (0, ["start --no-block llmdiag-restart@vllm.service"])])
def test_systemd_restarts_what_is_stuck_and_nothing_else(tools: Path, per_read: float, wanted: list[str]) -> None:
    with serving(Toy(running=3, per_read=per_read)) as server:
        done = script(SYSTEMD, tools, "vllm", server.url)
    assert done.returncode == 0, done.stderr
    assert restarts(tools) == wanted, done.stdout


BROKEN = ("exit 1", "exit 2", "exit 3", "exit 127", "kill -9 $$", "echo Traceback >&2; exit 1", "echo STALLED http://a; exit 0", "echo STALLED; kill -11 $$")


@pytest.mark.parametrize("code", BROKEN)
def test_an_llmdiag_that_is_broken_restarts_nothing(tools: Path, code: str) -> None:
    tool(tools, "llmdiag", code)
    done = script(SYSTEMD, tools, "vllm", DEAD)
    assert done.returncode != 0, "a watch that watches nothing must be seen"
    assert "nothing was judged" in done.stderr
    assert restarts(tools) == []
    assert script(KUBERNETES, tools, DEAD, COUNTED=str(tools / "counted")).returncode == 0
    assert not (tools / "counted").exists()


def test_a_look_that_cannot_be_made_is_a_failure_of_the_unit_and_restarts_nothing(tools: Path) -> None:
    for args in ((), ("vllm",), ("vllm", "")):
        done = script(SYSTEMD, tools, *args)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert "TARGET" in done.stderr
    (tools / "llmdiag").unlink()
    (tools / "sh").symlink_to("/bin/sh")
    done = subprocess.run(["/bin/sh", str(SYSTEMD), "vllm", DEAD], capture_output=True, text=True, env={"PATH": str(tools)})
    assert (done.returncode, done.stdout) == (127, ""), done
    assert f"no llmdiag in PATH={tools}" in done.stderr
    assert not (tools.parent / "asked").exists()


def test_what_is_not_proved_is_judged_all_the_same(tools: Path) -> None:
    with serving(Toy()) as idle:
        for target, word in ((DEAD, "UNREACHABLE "), (idle.url, "IDLE-PROVEN ")):
            done = script(SYSTEMD, tools, "vllm", target)
            assert (done.returncode, done.stdout.startswith(word)) == (0, True), done
    assert restarts(tools) == []


@pytest.mark.parametrize(("path", "args", "deadline_s"), [(SYSTEMD, ("vllm",), "3"), (KUBERNETES, (), "3")])
def test_the_units_wait_for_a_queue_as_long_as_for_all_else(tools: Path, path: Path, args: tuple[str, ...], deadline_s: str) -> None:
    """By hand 10 s of a queue in which nobody is admitted are enough: no engine is ended for that."""
    tool(tools, "llmdiag", f'exec {sys.executable} -m diag.cli "$@" --interval 0.1')
    with serving(Toy(waiting=4)) as server:
        done = script(path, tools, *args, server.url, LLMDIAG_DEADLINE_S=deadline_s, COUNTED=str(tools / "counted"))
    assert "STALLED" not in done.stdout and f"not finished within {deadline_s} s" in done.stderr, done
    assert restarts(tools) == [] if path == SYSTEMD else not (tools / "counted").exists()


def test_the_units_say_where_llmdiag_is_and_systemd_reads_them() -> None:
    folder = SYSTEMD.parent
    for name in ("llmdiag-health@.service", "llmdiag-restart@.service"):
        assert "Environment=PATH=/opt/llmdiag/bin:" in (folder / name).read_text()
    readme = (SAMPLES / "health" / "README.md").read_text()
    for name in (*(path.name for path in folder.iterdir()), "/etc/llmdiag/", "TARGET=", "/opt/llmdiag/bin", ".busy", "exec-probe.sh", "startupProbe"):
        assert name in readme, f"{name} is not described"
    assert "-m 755 restart-if-stalled" in readme, "who installs it as any file gets a unit that cannot start"


def test_the_command_that_would_prove_it_is_printed_and_proves_it() -> None:
    with serving(Toy(running=3)) as server:
        first = llmdiag("health", server.url, *FAST, "--floor", "1.5")
        (line,) = [line for line in first.out.splitlines() if "llmdiag health" in line]
        words = shlex.split(line.partition("llmdiag ")[2])
        second = llmdiag(*words)
    assert (first.code, second.code) == (3, 1), (first.out, second.out)
    assert words == ["health", server.url, "--patience", "2", "--interval", "0.1", "--floor", "1.5"]
    with serving(Toy(running=3, per_read=1)) as server:
        assert "--patience" not in llmdiag("health", server.url, *FAST).out


def test_the_first_line_names_the_rank_that_is_stuck() -> None:
    def handler(path, body, headers):  # type: ignore[no-untyped-def]
        response = toy(path, body, headers)
        if path != "/metrics":
            return response
        frozen = Toy(running=3).metrics().replace('engine="0"', 'engine="1"').splitlines()
        return text(toy.metrics() + "\n".join(line for line in frozen if line.startswith("vllm")) + "\n")

    toy = Toy(running=2, per_read=30)
    with serving(handler) as server:
        said = llmdiag("health", server.url, *FAST, "--floor", "0.15")
    assert said.code == 1
    assert said.out.startswith(f"STALLED {server.url}/metrics: engine 1 of 2: 3 requests run"), said.out


def test_a_proxy_alone_is_said_to_be_one() -> None:
    with serving(Toy(running=9)) as proxy:
        said = llmdiag("health", "--proxy", proxy.url)
    assert "only proxies are named" in said.err and "reading /metrics" not in said.err, said.err
    assert ": a proxy that answers" in said.out


def test_a_name_that_is_not_known_is_not_refused() -> None:
    said = llmdiag("health", "http://no-such-host.invalid:8000", *FAST, "--reads", "2", "--pid", str(os.getpid()))
    assert said.code == 3, said.out
    assert "the name of the host is not known" in said.out and "refused" not in said.out


def test_kubernetes_fails_a_stuck_engine_three_times_and_no_more(tools: Path) -> None:
    tool(tools, "llmdiag", "echo STALLED http://a: nothing moved; exit 1")
    done = [script(KUBERNETES, tools, DEAD, COUNTED=str(tools / "counted")) for _ in range(5)]
    assert [item.returncode for item in done] == [1, 1, 1, 0, 0]
    assert "somebody has to look" in done[-1].stdout
    (tools / "counted").write_text("1\n2\nrubbish\n")
    assert script(KUBERNETES, tools, DEAD, COUNTED=str(tools / "counted")).returncode == 1, "what is long ago does not count"
    assert script(KUBERNETES, tools, DEAD, COUNTED=str(tools / "no" / "such")).returncode == 0, "what cannot be counted is not asked for"


def test_kubernetes_asks_the_real_thing(tools: Path) -> None:
    with serving(Toy(running=3)) as server:
        done = script(KUBERNETES, tools, server.url, COUNTED=str(tools / "counted"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith("STALLED ")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert script(KUBERNETES, tools, f"http://127.0.0.1:{port}", COUNTED=str(tools / "counted")).returncode == 0


def test_what_moved_in_between_is_shown_as_moved(tmp_path: Path) -> None:
    """Equal at the first and the last read, and higher at the one in the middle: that is the progress of the first line."""
    files = [tmp_path / f"read-{number}.txt" for number in range(3)]
    for file, usage in zip(files, (0.09375, 0.11, 0.09375), strict=True):
        file.write_text(
            f'vllm:num_requests_running{{engine="0"}} 1\nvllm:num_requests_waiting{{engine="0"}} 0\nvllm:kv_cache_usage_perc{{engine="0"}} {usage}\n'
            'vllm:prompt_tokens_total{engine="0"} 5000001\n'
        )
    said = llmdiag("health", *map(str, files))
    assert "vllm:kv_cache_usage_perc moved" in said.out.splitlines()[0], said
    assert "vllm:kv_cache_usage_perc 0.09375 (reached 0.11)" in said.out
    assert "vllm:prompt_tokens_total 5000001 (did not move)" in said.out
    witnesses = health(*map(str, files)).json["backends"][0]["engines"][0]["witnesses"]
    assert witnesses["vllm:kv_cache_usage_perc"] == {"before": 0.09375, "after": 0.09375, "highest": 0.11}
    assert witnesses["vllm:prompt_tokens_total"] == {"before": 5000001, "after": 5000001}


def test_json_is_all_there_is_on_stdout() -> None:
    said: dict[str, Any] = health(str(STOPPED), str(SAMPLES / "vllm-0.32-cpu" / "busy")).json
    assert said["schema"] == "llmdiag.health/1"
    assert [backend["engine_kind"] for backend in said["backends"]] == ["vllm", "vllm"]


def test_a_folder_that_may_not_be_entered_is_no_stalled_engine(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o600)  # root enters all the same, and finds nothing
    said = llmdiag("health", str(folder))
    assert (said.code, said.out) == (2, ""), said
    assert "holds no reads of /metrics" in said.err
