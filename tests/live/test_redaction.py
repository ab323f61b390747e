"""A careless service spills secrets wherever a service can: none of them is in anything that llmdiag writes or says."""

import base64
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import string
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from diag import analysis, rules
from diag.instruments import dumper
from diag.labs import Lab, is_hot, server_binary, wait_until
from diag.report import explain
from tests.live.run import Said, llmdiag

pytestmark = pytest.mark.live

LEAKY = Path(__file__).parent / "leaky.py"
WAIT_S = 60.0
MODEL = "tiny-llama-7b"
HONEST_KEY = f"clip-vit-b-32:image:{hashlib.md5(b'an honest image').hexdigest()}"
SURVIVORS = ("max_tokens=2048", "max_num_batched_tokens=8192", "vllm:prompt_tokens_total", MODEL, socket.gethostname(), HONEST_KEY, "/opt/models")
HALF = 20
"""A secret of at least so many characters must not be there by half either."""


def drawn(prefix: str = "", length: int = 24, alphabet: str = string.ascii_letters + string.digits) -> str:
    """A new secret; it has a digit, so that it is no word."""
    return f"{prefix}{''.join(secrets.choice(alphabet) for _ in range(length - 1))}{secrets.randbelow(10)}"


def ledger() -> dict[str, str]:
    """Where it is spilled -> the secret. The part before the first `_` is where it can be proved to be."""
    password = drawn("Z", 10)
    return {
        # the command line, of the service and of a child
        "argv_api_key": drawn(), "argv_second_key": drawn(), "argv_hf_token": drawn(), "argv_header": drawn(), "argv_query": drawn(),
        "argv_keyfile": drawn("", 12), "argv_redis": f"p@{drawn()}:w/{drawn('', 4)}", "child_argv": drawn(),
        # the environment
        "env_hf": drawn("hf_", 34), "env_aws": drawn("wJ/", 37, string.ascii_letters + "+/"), "env_openai": drawn("sk-proj-", 40),
        "env_db": f"Tr0ub4dor&{drawn('', 6)}", "env_dsn": drawn(), "env_vllm": drawn(), "env_mirror": drawn(), "env_ray": drawn(),
        "env_cache": secrets.token_hex(16),
        # the log
        "log_bearer": drawn(), "log_api_key": drawn(), "log_cookie": drawn(), "log_prompt": f"tell me about {drawn('patient ', 20)}, please",
        "log_content": f"my diagnosis is {drawn('', 20)} they say", "log_mail": f"jane.doe.{drawn('', 8)}", "log_error_url": drawn(),
        "log_jwt": f"eyJhbGciOiJIUzI1NiJ9.{drawn('eyJ', 30)}.{drawn('', 43)}", "log_git": drawn("ghp_", 36), "log_pem": drawn("MII", 61),
        "log_dsn": drawn(), "log_hook": f"T{drawn('', 8)}/B{drawn('', 8)}/{drawn()}", "log_aws": drawn("AKIA", 16, string.ascii_uppercase),
        "log_signature": secrets.token_hex(32), "log_basic_password": password, "log_basic": base64.b64encode(f"svc:{password}".encode()).decode(),
        "log_named_later": drawn(), "log_key_name": drawn("ghp_", 36), "log_asked": drawn(),
        # metrics, locals, names
        "metrics_api_key": drawn(), "metrics_url": drawn(), "metrics_mail": f"john.roe.{drawn('', 8)}", "metrics_help": drawn("hf_", 34),
        "locals_token": drawn(), "locals_password": drawn(), "locals_api_key": drawn(), "locals_header": drawn(), "locals_url": drawn(),
        "threads_name": drawn("xoxb-", 30), "redis_client": drawn("glpat-", 20), "unix_socket": drawn("glpat-", 20),
        "path_folder": drawn("hf_", 34), "path_log": drawn("sk-", 40),
        # in the title of a process from the start, but only the log says what it is
        "argv_late": drawn(),
    }


@dataclass(frozen=True)
class Patient:
    """The running service, what it was given, and the server it reads from."""

    lab: Lab
    child: int
    spilled: Mapping[str, str]
    redis_url: str


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    spilled = ledger()
    folder = tmp_path_factory.mktemp("leaky")
    with redis_with_password(folder, spilled["argv_redis"]) as url, service(folder, spilled, url) as running:
        wait_until(lambda: is_hot(running.lab.pid) or hottest(running.lab.pid), WAIT_S)
        os.kill(running.lab.pid, signal.SIGSTOP)  # it reads without a pause: only while somebody looks
        yield running


@contextlib.contextmanager
def awake(patient: Patient) -> Iterator[None]:
    """While this lasts the service runs."""
    os.kill(patient.lab.pid, signal.SIGCONT)
    try:
        yield
    finally:
        os.kill(patient.lab.pid, signal.SIGSTOP)


def hottest(pid: int) -> bool:
    """Does any thread of the process run most of the time?"""
    def run_ns() -> dict[str, int]:
        return {task.name: int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()}

    before = run_ns()
    return bool(wait_until(lambda: any(after - before.get(tid, after) > 10_000_000 for tid, after in run_ns().items()), WAIT_S))


@contextlib.contextmanager
def redis_with_password(folder: Path, password: str) -> Iterator[str]:
    """A server that wants a password -> the URL that has it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    argv = [str(server_binary()), "--bind", "127.0.0.1", "--port", str(port), "--requirepass", password, "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def answers() -> bool:
        with contextlib.suppress(redis.ConnectionError), redis.Redis(port=port, password=password) as client:
            return bool(client.ping())
        return False

    try:
        wait_until(answers, WAIT_S)
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        yield f"redis://:{quote(password, safe='')}@127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def service(folder: Path, spilled: Mapping[str, str], url: str) -> Iterator[Patient]:
    """The careless service, started from a folder and with a log whose names hold secrets too."""
    home = folder / f"run-{spilled['path_folder']}"
    home.mkdir()
    program = Path(shutil.copy(LEAKY, home / "leaky.py"))
    log = home / f"server-{spilled['path_log']}.log"
    ours, theirs = os.pipe()
    argv = [
        sys.executable, str(program), "--ready-fd", str(theirs), "--redis-url", url, "--model", MODEL, "--cache-key", HONEST_KEY,
        "--max-tokens=2048", "--download-dir", "/opt/models", "--api-key", spilled["argv_api_key"], spilled["argv_second_key"],
        f"--hf-token={spilled['argv_hf_token']}", "--header", f"X-Api-Key: {spilled['argv_header']}",
        "--webhook", f"https://hooks.example/in?token={spilled['argv_query']}&max=3", "--ssl-keyfile-password", spilled["argv_keyfile"],
        "--served-alias", spilled["argv_late"], "--pool-note", f"pool-{spilled['env_db']}",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, cwd=home, env=environment(spilled), stdin=subprocess.PIPE, stdout=out, stderr=out, pass_fds=(theirs,), start_new_session=True,
        )
    os.close(theirs)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(for_the_service(spilled)).encode())
        process.stdin.close()
        with os.fdopen(ours, "rb") as pipe:
            line = pipe.readline()
        assert line, log.read_text()
        ready = json.loads(line)
        yield Patient(Lab(ready["pid"], ready["port"], url, log, process), ready["child"], spilled, url)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment(spilled: Mapping[str, str]) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"], "VLLM_USE_V1": "1", "HF_TOKEN": spilled["env_hf"], "AWS_SECRET_ACCESS_KEY": spilled["env_aws"],
        "OPENAI_API_KEY": spilled["env_openai"], "DB_PASSWORD": spilled["env_db"], "DATABASE_URL": f"postgresql://app:{spilled['env_dsn']}@db.example:5432/x",
        "VLLM_API_KEY": spilled["env_vllm"], "HF_ENDPOINT": f"https://mirror:{spilled['env_mirror']}@mirror.example",
        "RAY_REDIS_PASSWORD": spilled["env_ray"], "CACHE_API_KEY": spilled["env_cache"],
    }


def for_the_service(spilled: Mapping[str, str]) -> dict[str, str]:
    """What comes neither by command line nor by environment, by the names the service knows."""
    renamed = {
        "label_key": "metrics_api_key", "label_url": "metrics_url", "label_mail": "metrics_mail", "help_text": "metrics_help",
        "local_token": "locals_token", "local_password": "locals_password", "local_api_key": "locals_api_key", "local_header": "locals_header",
        "local_url": "locals_url", "thread_name": "threads_name", "client_name": "redis_client", "socket_name": "unix_socket",
        "child_argv": "child_argv", "late": "argv_late",
    }
    return {name: value for name, value in spilled.items() if name.startswith("log_")} | {new: spilled[old] for new, old in renamed.items()}


# ---- where each secret really is


def origins(patient: Patient) -> dict[str, bytes]:
    """Kind of place -> what is there, read past llmdiag."""
    with awake(patient):
        return _origins(patient)


def _origins(patient: Patient) -> dict[str, bytes]:
    pid = patient.lab.pid
    proc = Path(f"/proc/{pid}")
    dumped = subprocess.run(
        [dumper.executable(), "dump", "--pid", str(pid), "--json", "--locals", "--locals", "--locals"], capture_output=True, check=True,
    ).stdout
    with redis.Redis.from_url(patient.redis_url) as client:
        keys = b"\n".join(client.scan_iter())
        clients = json.dumps(client.client_list()).encode()
    return {
        "argv": (proc / "cmdline").read_bytes(), "child": Path(f"/proc/{patient.child}/cmdline").read_bytes(), "env": (proc / "environ").read_bytes(),
        "log": patient.lab.log.read_bytes(), "metrics": patient.lab.get("/metrics").body, "locals": dumped, "threads": dumped,
        "redis": clients, "keys": keys, "unix": Path("/proc/net/unix").read_bytes(),
        "path": os.fsencode((proc / "cwd").readlink()) + os.fsencode((proc / "fd" / "2").readlink()),
    }


def test_every_secret_is_where_it_is_said_to_be(patient: Patient) -> None:
    found = origins(patient)
    for name, secret in patient.spilled.items():
        if name in ("log_basic_password", "log_asked"):
            continue  # inside log_basic; sent by llmdiag itself, below
        place = found[name.partition("_")[0]]
        assert secret.encode() in place or quote(secret, safe="").encode() in place, name
    assert patient.spilled["env_cache"].encode() in found["keys"]
    assert patient.spilled["env_db"].encode() in found["log"]
    assert patient.spilled["env_db"].encode() in found["argv"]
    assert patient.spilled["argv_late"].encode() in found["log"]
    assert len(patient.spilled) >= 30


# ---- what llmdiag writes and says


def forms(secret: str) -> dict[str, bytes]:
    """The spellings a secret may leak in."""
    raw = secret.encode()
    found = {
        "plain": raw, "in a URL": quote(secret, safe="").encode(), "in JSON": json.dumps(secret)[1:-1].encode(), "in hex": raw.hex().encode(),
        **{f"in base64 at {at}": base64.b64encode(b"\0" * at + raw)[4:-4] for at in range(3)},
    }
    if len(secret) >= HALF:
        found |= {"its first half": raw[: len(raw) // 2 + 2], "its second half": raw[len(raw) // 2 - 2:]}
    return found


def leaks(spilled: Mapping[str, str], things: Mapping[str, bytes]) -> list[str]:
    return [
        f"{name} ({form}) in {thing}: …{data[max(0, data.find(spelled) - 60):data.find(spelled) + 20]!r}"
        for name, secret in spilled.items()
        for form, spelled in forms(secret).items()
        for thing, data in things.items()
        if spelled in data
    ]


def everything_in(bundle: Path) -> dict[str, bytes]:
    """The raw bytes of a bundle, the names of its members, and each member unpacked."""
    with zipfile.ZipFile(bundle) as packed:
        members = {f"{bundle.name}:{name}": packed.read(name) for name in packed.namelist()}
        names = "\n".join(packed.namelist()).encode() + packed.comment
    return {f"{bundle.name} raw": bundle.read_bytes(), f"{bundle.name} names": names, **members}


def said_by(title: str, said: Said) -> dict[str, bytes]:
    return {f"stdout of {title}": said.out.encode(), f"stderr of {title}": said.err.encode()}


def told(bundle: Path) -> dict[str, bytes]:
    """Every report of a bundle and every evidence table."""
    def calling(*args: str) -> Said:
        said = llmdiag(*args)
        assert said.code in (0, 1, 3), said.err
        return said

    found: dict[str, bytes] = {}
    for command in ("report", "analyze"):
        for form in ("text", "md", "json"):
            found |= said_by(f"{command} {form}", calling(command, str(bundle), "-f", form))
    found |= said_by("explain", calling("analyze", str(bundle), "--explain", "ghost-key-retry-loop"))
    shipped = rules.load(rules.shipped())
    for diagnosis in analysis.analyse([bundle], shipped):  # what the command prints of each, from one analysis
        found |= {f"explain {rule.id}": explain.render(explain.facts(diagnosis, rule.id) or {}).plain.encode() for rule in shipped}
    return found


def shoot(patient: Patient, bundle: Path, *args: str) -> Said:
    """`llmdiag snapshot` on the patient, with the password of the cache server and a bearer token of its own."""
    bearer = bundle.with_suffix(".bearer")
    bearer.write_text(patient.spilled["log_asked"])
    with awake(patient):
        said = llmdiag(
            "snapshot", str(patient.lab.pid), "-o", str(bundle), "--window", "1.5", "--samples", "3", "--bearer-file", str(bearer), *args,
            LLMDIAG_REDIS_URL=patient.redis_url,
        )
    assert said.code in (0, 1, 3), said.err
    return said


@pytest.mark.parametrize("which", ["keys", "all"])
def test_no_secret_in_anything_written_or_said(patient: Patient, tmp_path: Path, which: str) -> None:
    bundle = tmp_path / "b.zip"
    first = shoot(patient, bundle, "--locals", which)
    things = everything_in(bundle) | said_by("snapshot", first)
    if which == "keys":
        things |= told(bundle)
    assert leaks(patient.spilled, things) == []


@pytest.fixture(scope="module")
def plain(patient: Patient, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """What is in a bundle that was made without any option."""
    bundle = tmp_path_factory.mktemp("plain") / "b.zip"
    shoot(patient, bundle)
    return everything_in(bundle)


def test_what_is_no_secret_survives_and_the_rest_was_read(plain: Mapping[str, bytes]) -> None:
    things = plain
    text = b"\n".join(things.values()).decode("utf-8", "replace")
    assert [word for word in SURVIVORS if word not in text] == []
    # the places were looked into: a bundle that leaves them out would be clean too
    members = " ".join(things)
    assert all(re.search(part, members) for part in (
        r"processes/processes-0", r"processes/environ", r"logs/0-", r"metrics/\d+-metrics-1", r"stacks/\d+-00", r"redis/server", r"redis/keys", r"sockets/",
    )), members
    tokens = set(re.findall(r"\[REDACTED:([a-z-]+):", text))
    assert {"api-key", "password", "url-password", "bearer", "hf-token", "jwt", "email", "cookie", "private-key", "git-token"} <= tokens, tokens


def test_equal_secrets_stay_joinable(plain: Mapping[str, bytes]) -> None:
    """The password of the pool is an environment variable, an argument and a word in the log: one token."""
    things = plain
    log = next(data for name, data in things.items() if re.search(r"logs/0-", name)).decode()
    arguments = next(data for name, data in things.items() if "processes-0" in name).decode()
    spoken = re.search(r"retrying the pool with (\[REDACTED:[a-z-]+:[0-9a-f]{8}\])", log)
    noted = re.search(r"pool-(\[REDACTED:[a-z-]+:[0-9a-f]{8}\])", arguments)
    assert spoken is not None
    assert noted is not None
    assert spoken[1] == noted[1]


def test_a_snapshot_that_is_killed_leaves_no_secret_either(patient: Patient, tmp_path: Path) -> None:
    """What a killed llmdiag leaves is redacted too; only the alias, which the log names at the very end, is not known yet."""
    with awake(patient):
        tool = subprocess.Popen(
            [sys.executable, "-m", "diag.cli", "snapshot", str(patient.lab.pid), "-o", str(tmp_path / "b.zip"), "--window", "60"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "LLMDIAG_REDIS_URL": patient.redis_url},
        )
        try:
            journal = tmp_path / "b" / "manifest.jsonl"
            wait_until(lambda: journal.exists() and all(name in journal.read_text() for name in ("artefacts/stacks", "artefacts/sockets", "artefacts/processes")), WAIT_S)
        finally:
            tool.kill()
            tool.wait()
    left = {str(path): path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}
    assert len(left) > 3
    assert leaks({name: value for name, value in patient.spilled.items() if name != "argv_late"}, left) == []


def test_with_no_redact_they_are_all_there(patient: Patient, tmp_path: Path) -> None:
    """The proof that each of them would have been in the bundle."""
    bundle = tmp_path / "b.zip"
    shoot(patient, bundle, "--no-redact", "--locals", "all")
    text = b"\n".join(everything_in(bundle).values())
    missing = [name for name, secret in patient.spilled.items() if not any(spelled in text for spelled in forms(secret).values())]
    assert missing == []


@pytest.mark.parametrize("url", ["redis://:{}@127.0.0.1:1/0", "redis://:{}@127.0.0.1:notaport/0", "redis://:{}@[::1", "redis://:{}\u2100@host/0", "nonsense:{}"])
def test_a_wrong_address_is_never_repeated(patient: Patient, tmp_path: Path, url: str) -> None:
    """What a person types goes into error messages: without its password."""
    secret = drawn()
    bundle = tmp_path / "b.zip"
    said = llmdiag("snapshot", str(patient.child), "-o", str(bundle), "--window", "0.5", "--samples", "2", "--redis", url.format(secret))
    refused = "127.0.0.1:1" not in url
    assert (said.code == 2) == refused, said.err
    assert list(tmp_path.iterdir()) == ([] if refused else [bundle])
    things = said_by("snapshot", said) | ({} if refused else everything_in(bundle))
    assert leaks({"typed": secret}, things) == []
    scanned = llmdiag("scan-cache", url.format(secret))
    assert scanned.code == 2
    assert leaks({"typed": secret}, said_by("scan-cache", scanned)) == []


def test_a_wrong_password_is_never_repeated(patient: Patient, tmp_path: Path) -> None:
    secret = drawn()
    url = patient.redis_url.replace(quote(patient.spilled["argv_redis"], safe=""), secret)
    bundle = tmp_path / "b.zip"
    with awake(patient):
        said = llmdiag("snapshot", str(patient.lab.pid), "-o", str(bundle), "--window", "0.5", "--samples", "2", "--redis", url, "--log", f"/no/such/password={secret}.log")
    assert secret in url
    things = everything_in(bundle) | said_by("snapshot", said)
    assert any(b"no/such" in data for data in things.values())
    # nothing says that the alias is a secret when the log is not read
    told_by_the_log = ("argv_late",)
    assert leaks({"typed": secret} | {name: value for name, value in patient.spilled.items() if name not in told_by_the_log}, things) == []
