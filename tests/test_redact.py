"""Redaction: what must never leave, what must survive, and that the same secret is the same everywhere."""

import base64
import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model import SignalState, Verdict
from diag.redact import Redactor, UndecodableArtefact
from diag.report.masked import masked

SALT = b"0123456789abcdef"
TOKEN = re.compile(r"\[REDACTED:[a-z-]+:[0-9a-f]{8}\]")
HF = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ01234567"
OPENAI = "sk-" + "proj-4fQ9_x7Tz1-LmN0pQrS"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAx1y2z3\nq8w7e6r5t4+/=\n-----END RSA PRIVATE KEY-----"
BASIC = base64.b64encode(b"alice:w0nderland!").decode()

# (secret, text it is planted in)
PLANTED = [
    ("hunter2-pw", "could not connect to redis://:hunter2-pw@10.0.0.7:6379/0: Connection refused"),
    ("p%40ss/word", "rediss://user:p%40ss/word@cache.internal:6380/0"),
    ("s3cr3tpw", "ERROR connecting to redis://:s3cr3tpw@h"),
    ("b@d/pw1", "url=redis://u:b@d/pw1@h:6379/0"),
    ("httppw99", "GET http://bob:httppw99@proxy.corp:3128/x HTTP/1.1"),
    (HF, f"https://{HF}@huggingface.co/org/model"),
    ("pgpass77", "DATABASE_URL=postgres://app:pgpass77@db/prod?sslmode=require"),
    ("secondpw2", "redis://:firstpw1@a:1,redis://:secondpw2@b:2"),
    ("tok12345", "Authorization: Bearer tok12345"),
    (BASIC, f"Authorization: Basic {BASIC}"),
    ("w0nderland!", f"Authorization: Basic {BASIC}\nlater: password was w0nderland! again"),
    (OPENAI, f"-H 'Authorization: Bearer {OPENAI}' http://h:8000/v1"),
    ("nonce77aa", 'Authorization: Digest username="bob", nonce="nonce77aa", response="aa"'),
    ("k-12ab34", "x-api-key: k-12ab34"),
    ("k-12ab34", "(b'x-api-key', b'k-12ab34'), (b'host', b'h')"),
    ("sid=deadbeef01", "Cookie: theme=dark; sid=deadbeef01; a=b"),
    ("deadbeef02", 'Set-Cookie: session="deadbeef02"; Path=/'),
    ("q-tok-1", "GET /v1/models?token=q-tok-1&limit=5 HTTP/1.1"),
    ("c2lnbmF0dXJl", "https://x.blob.core.windows.net/c/f?sv=2022&sig=c2lnbmF0dXJl%3D&se=2030"),
    ("AIzaQQ", "https://maps.example.com/api?key=AIzaQQ&v=3"),
    ("deadbeefcafe", "https://b.s3.amazonaws.com/k?X-Amz-Signature=deadbeefcafe&X-Amz-Expires=60"),
    ("cli-pw-1", "+ redis-cli -h 10.0.0.1 -a cli-pw-1 PING"),
    ("cli-pw-2", "running ['redis-cli', '-a', 'cli-pw-2', 'PING']"),
    ("req-pw-1", "requirepass req-pw-1\nmaxmemory 1gb"),
    ("req pw 2", 'requirepass "req pw 2"'),
    ("req-pw-3", '1) "requirepass"\n2) "req-pw-3"\n'),
    ("mas-pw-1", "masterauth mas-pw-1"),
    ("sen-pw-1", "sentinel auth-pass mymaster sen-pw-1"),
    ("auth-pw-1", "12:00:01 -> AUTH alice auth-pw-1"),
    ("auth-pw-2", '1339518083.107412 [0 127.0.0.1:60866] "auth" "auth-pw-2"'),
    ("auth-pw-3", '1339518083.1 [0 127.0.0.1:60866] "HELLO" "3" "AUTH" "default" "auth-pw-3" "SETNAME" "x"'),
    ("auth-pw-4", r'sendto(5, "*2\r\n$4\r\nAUTH\r\n$9\r\nauth-pw-4\r\n", 30, 0, NULL, 0) = 30'),
    ("aclpw123", "ACL SETUSER worker on >aclpw123 ~* +@all"),
    (HF, f"HF_TOKEN={HF} vllm serve"),
    ("plainvalue1", "export HF_TOKEN='plainvalue1'"),
    (AWS, f"AWS_SECRET_ACCESS_KEY={AWS}"),
    ("AKIAIOSFODNN7EXAMPLE", "using AKIAIOSFODNN7EXAMPLE for s3"),
    ("not-a-prefix-1", "OPENAI_API_KEY=not-a-prefix-1"),
    ("my.tok.value", "WEIRD_SERVICE_TOKEN=my.tok.value"),
    ("jsonpw", '{"password": "jsonpw", "user": "x"}'),
    ("90210", '{"password": 90210}'),
    ('es"caped', r'{"password": "es\"caped"}'),
    (r"es\"caped", r'{"password": "es\"caped"}'),
    ("nested-pw", r'{"log":"{\"password\":\"nested-pw\",\"n\":1}\n","stream":"stderr"}'),
    ("pykey1", "{'api_key': 'pykey1', 'port': 8000}"),
    ("pykey2", "Namespace(api_key='pykey2', model='m')"),
    ("pykey3", "args: {'api_key': ['pykey3', 'pykey4']}"),
    ("pykey4", "args: {'api_key': ['pykey3', 'pykey4']}"),
    ("camel-1", '{"clientSecret":"camel-1"}'),
    ("labelkey", 'vllm:x_total{api_key="labelkey",engine="0"} 1.0'),
    ("connpw", "Connection<host=localhost,port=6379,password=connpw,db=0>"),
    ("SecretV4lue", 'password=SecretStr("SecretV4lue")'),
    ("optkey", "INFO started with --api-key optkey --port 8000"),
    ("optkey", "INFO started with --api-key=optkey --port 8000"),
    ("curlpw", "curl -s -u bob:curlpw http://h/x"),
    ("spoken1", "Incorrect API key provided: spoken1."),
    ("envlistpw", '{"name": "DB_PASSWORD", "value": "envlistpw"}'),
    ("envlistpw", "- name: DB_PASSWORD\n  value: envlistpw\n"),
    ("sk-abcdef123456", "session:sk-abcdef123456"),
    ("mail@x.y", "user:mail@x.y"),
    ("jane.doe+x@example.co.uk", "request from jane.doe+x@example.co.uk failed"),
    ("ghp_abcdefghijklmnop1234", "clone with ghp_abcdefghijklmnop1234"),
    ("gho_abcdefghijklmnop1234", "x gho_abcdefghijklmnop1234"),
    ("glpat-abcdefgh12345678", "x:glpat-abcdefgh12345678"),
    ("xoxb-1234567890-abcdef", "slack xoxb-1234567890-abcdef"),
    (JWT, f"got {JWT} from gateway"),
    ("q8w7e6r5t4", f"key:\n{PEM}\nend"),
    ("q8w7e6r5t4", "q8w7e6r5t4+/=\nMIIEowIBAAKCAQEAx1y2z3\n-----END RSA PRIVATE KEY-----\nINFO tail of a log"),
    ("MIIEowIBAAKCAQEAx1y2z3", "{'key': 'MIIEowIBAAKCAQEAx1y2z3\\\\n-----END PRIVATE KEY-----\\\\n'}"),
    ("MIIEowIBAAKCAQEAx1y2z3", "x -----BEGIN PRIVATE KEY-----\\nMIIEowIBAAKCAQEAx1y2z3\\n"),
    ("tok99xyzabc", "Bearer tok99xyzabc rejected"),
    ("tell me a secret", "Received request cmpl-1: prompt: 'tell me a secret', params: SamplingParams(max_tokens=16)"),
    ("it's private", '''Received request cmpl-1: prompt: "it's private", params: x'''),
    ("tell me more", '{"messages":[{"role":"user","content":"tell me more"}]}'),
    ("part text", '{"content":[{"type":"text","text":"part text"}]}'),
    ("my prompt", '{"prompt": "my prompt", "n": 1}'),
    ("prompt two", '{"prompt": ["prompt one", "prompt two"]}'),
    ("unclosed words", '{"prompt": "unclosed words that go on and on'),
    ("escaped words", r'body: "{\"prompt\": \"escaped words\", \"n\": 1}"'),
    ("bare words here", "prompt: bare words here, max_tokens=5"),
    ("4711, 4712", "prompt_token_ids: [4711, 4712, 4713], lora_request: None"),
    ("4712", '{\n "prompt_token_ids": [\n  4711,\n  4712\n ]\n}'),
    ("the answer", "Generated response cmpl-1: output: 'the answer', output_token_ids: [1, 2], finish_reason: stop"),
    ("said aloud", "Finish: obj=GenerateReqInput(rid='1', text='said aloud', sampling_params={})"),
    ("iVBORw0KGgoAAAANSUhEUg", '{"image_url":{"url":"data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="}}'),
    ("abcd1234", "Headers([('host', 'localhost'), ('authorization', 'Bearer abcd1234')])"),
    ("9f8a", "Headers([('host', 'localhost'), ('cookie', 'sid=9f8a')])"),
    ("sssh1", "body: grant_type=client_credentials&client_id=me&client_secret=sssh1"),
    ("Eby8vdM02xNO", "DefaultEndpointsProtocol=https;AccountName=me;AccountKey=Eby8vdM02xNO==;EndpointSuffix=core"),
    ("5e884898", f"user worker on #{'5e884898da280471' * 4} ~* &* +@all"),
    ("c0ffeeabc123", "Sentry https://c0ffeeabc123@o1.ingest.sentry.io/1"),
    ("what is kept", '{"model": "m", "input": "what is kept"}'),
    (" Paris", "out={'text': ' Paris', 'output_ids': [1], 'meta_info': {'prompt_tokens': 6}}"),
    ("quoting --password inside", "prompt: 'quoting --password inside redis://:pw@h', params: x"),
]

SURVIVORS = [
    "ERR Client sent AUTH, but no password is set", 'curl -H "Authorization: Bearer $TOKEN" http://h',
    "RuntimeError: HTTP 401 for url: https://huggingface.co/api/models/x", "x-request-id: 8f14e45f-ea7e-4a6b-8c12-3d5f00f00f00",
    "user_id=5 session_id=abc key_id=9 author=Bob authority=ca", "s3://bucket/key@2 hf://org/model@main ssh://git@host/x",
    'vllm:cache_config_info{block_size="16",cache_salt="",prefix_caching_hash_algo="sha256"} 1.0',
    "keyspace hits: 5, key count: 3; secret_count=3", "# HELP vllm:prompt_tokens_total Number of prefill tokens processed.",
    "max_tokens=2048", "prompt_tokens: 1284", "KV token usage: 0.87", "stop_token_ids=[1,2]", "tokenizer='/models/x'",
    "Avg generation throughput: 12.5 tokens/s, prompt throughput: 0.0 tokens/s", 'vllm:prompt_tokens_total{engine="0"} 1284.0',
    "vllm:generation_tokens_total 5", "vllm:iteration_tokens_total_count 7", "--max-num-batched-tokens 256", "num_tokens=4",
    "token_usage: 0.5", "block_hash=1234567890123456", "clip-vit-b-32:image:d41d8cd98f00b204e9800998ecf8427e",
    "model@1@0@1a2b3c@half", "123e4567-e89b-12d3-a456-426614174000", "42", "True", "None", "/usr/lib/python3.11/site-packages/x.py",
    "10.1.2.3:6379", "gpu-12.cluster.local", "e83c5163316f89bfbde7d9ab23ca2e25604af290", "vllm.v1.engine.core.EngineCore.step",
    'File "/srv/cache.py", line 3 in get', "#new-token: 5, #cached-token: 0, token usage: 0.01, #running-req: 1",
    "eos_token='<|endoftext|>', pad_token_id=0", "api_key=None", "password: null", "--api-key-file /etc/keys/one", "PWD=/srv/x",
    "redis://10.0.0.7:6379/0", "http://h:8000/v1/models?limit=5", "http://host:8000/path@v1", "git+https://github.com/a/b@v1.2",
    "git@github.com:a/b.git", "registry/img@sha256:d41d8cd98f00b204e9800998ecf8427e", "vllm@0.service", "memcpy@GLIBC_2.14",
    "icon@2x.png", "libc.so.6", "root@gpu-12.example.com", "hf_config", "hf_overrides={}", "hf_text_config.num_layers", "task-1234567890",
    "sk-learn-model-1", "disk-usage-12345678", "WRONGPASS invalid username-password pair or user is disabled.",
    "NOAUTH Authentication required.", "ERR AUTH <password> called without any password configured for the default user.",
    "AUTH failed for client 10.0.0.3", "def connect(host: str, password: str | None = None) -> None:",
    "    client = Redis(host=host, password=self.password)", "os.environ['HF_TOKEN']", 'api_key=os.environ["OPENAI_API_KEY"],',
    "check_password (auth.py:12)", "get_api_key (server.py:44)", '{"name": "check_token", "filename": "a.py", "line": 3}',
    "api_key='EMPTY'", "password=**********", "HF_TOKEN=$HF_TOKEN", "password={{ vault.pw }}", "Basic configuration done",
    "Bearer authentication", "slot update_slots: id 0 | task 0 | new prompt, n_ctx_slot = 4096, n_keep = 0, task.n_tokens = 12",
    "prompt eval time = 100.21 ms / 12 tokens", "prompt: None", "content-type: application/json", "content-length: 24",
    "id=7 addr=10.0.0.2:5000 name=vllm-worker-3 age=12 flags=N db=0 user=default cmd=get", "forward pass: 0.12s", "n_pass=3",
    "pass: 12 failed: 0", "key='clip:image:1'", "cache_key=clip-vit-b-32:image:aa", "primary_key=7", "2026-11-30 02:41:10,123 INFO x",
    "WARNING: tokenizer_mode='auto', skip_tokenizer_init=False, trust_remote_code=False", "Thread 4188 (active+gil): \"engine-loop\"",
    "text='hello'", "output='/tmp/x'", "user alice on the host > log", "<object at 0x7f71437d6640>",
    'preparation_data: {"log_to_stderr": False, "authkey": <AuthenticationString at 0x7fa7096de980>, "name": "EngineCore"}', "::1", "[::1]:8000",
    "requirepass is not set", "Loading safetensors checkpoint shards: 100% Completed | 1/1", "https://docs.vllm.ai/en/latest/#token",
]


def redactor() -> Redactor:
    return Redactor(salt=SALT)


@pytest.mark.parametrize(("secret", "text"), PLANTED, ids=range(len(PLANTED)))
def test_a_planted_secret_is_gone(secret: str, text: str) -> None:
    assert secret in text or secret == 'es"caped'
    once = redactor()
    out = once.text(text)
    assert secret not in out
    assert sum(once.counts.values()) >= 1
    assert once.text(out) == out
    assert secret not in redactor().bytes_(text.encode()).decode()
    assert secret not in redactor().name(text)


@pytest.mark.parametrize("text", SURVIVORS)
def test_what_diagnosis_needs_survives(text: str) -> None:
    judge = redactor()
    assert judge.text(text) == text
    assert judge.name(text) == text
    assert judge.json({"detail": text, text: 1}) == {"detail": text, text: 1}
    assert judge.counts == {}


@pytest.mark.parametrize(("secret", "text"), PLANTED, ids=range(len(PLANTED)))
def test_a_planted_secret_is_gone_inside_json_and_a_docker_log(secret: str, text: str) -> None:
    assert secret not in json.dumps(redactor().json({"a": [{"line": text}]}))
    # docker writes every line as a JSON string: quotes and newlines come escaped
    assert secret not in redactor().text(json.dumps({"log": text + "\n", "stream": "stdout"}))


def test_structure_of_what_is_around_survives() -> None:
    out = redactor().text("Received request a: prompt: 'tell me a secret', params: SamplingParams(n=1, max_tokens=16), ids: [4]")
    assert re.fullmatch(
        r"Received request a: prompt: '\[PROMPT len=16 h=[0-9a-f]{8}\]', params: SamplingParams\(n=1, max_tokens=16\), ids: \[4\]", out,
    )
    assert TOKEN.sub("*", redactor().text("redis://:hunter2-pw@10.0.0.7:6379/0: refused")) == "redis://:*@10.0.0.7:6379/0: refused"
    assert TOKEN.sub("*", redactor().text("serve --api-key abcdef12 --port 8000")) == "serve --api-key * --port 8000"
    document = '{"password": 90210, "prompt_token_ids": [1, 2], "a": {"api_key": "x1y2z3"}, "max_tokens": 5}'
    assert json.loads(redactor().text(document)).keys() == json.loads(document).keys()
    assert json.loads(redactor().text(document))["max_tokens"] == 5


def test_argv() -> None:
    words = redactor().argv([
        "/usr/bin/vllm", "serve", "org/model", "--api-key", "first-key", "second-key", "--hf-token=third-key", "--port", "8000",
        "--max-num-batched-tokens", "256", "--tokenizer", "org/tok", "--redis-url", "redis://:fourth-key@h:6379/0",
        "--config", '{"password": "fifth-key"}', "HF_TOKEN=sixth-key",
    ])
    assert not re.search("(first|second|third|fourth|fifth|sixth)-key", " ".join(words))
    assert words[:3] == ["/usr/bin/vllm", "serve", "org/model"]
    assert words[7:13] == ["--port", "8000", "--max-num-batched-tokens", "256", "--tokenizer", "org/tok"]
    assert len(words) == 18


@pytest.mark.parametrize("command", [
    ["redis-cli", "-h", "h", "-a", "the-secret-1", "PING"], ["-a", "the-secret-1"], ["x", "--password", "the-secret-1"],
    ["redis-server", "--requirepass", "the-secret-1"], ["redis-cli", "AUTH", "bob", "the-secret-1"], ["curl", "-u", "bob:the-secret-1", "h"],
    ["sshpass", "-p", "the-secret-1", "ssh", "h"], ["sh", "-c", "redis-cli -a the-secret-1 PING"], ["x", "--token", "the-secret-1"],
    ["x", "--header", "Authorization: Bearer the-secret-1"], ["llama", "--prompt", "the-secret-1"], ["redis-cli", "-u", "redis://x:the-secret-1@h"],
])
def test_argv_of_other_programs(command: list[str]) -> None:
    out = redactor().argv(command)
    assert "the-secret-1" not in " ".join(out)
    assert len(out) == len(command)


def test_argv_leaves_the_harmless_alone() -> None:
    words = ["ray::Worker", "--api-key", "--port", "80", "--password", "/run/secrets/pw", "--seed", "0", "--hf-token", "true"]
    assert redactor().argv(words) == words


def test_env() -> None:
    out = redactor().env({
        "VLLM_USE_V1": "1", "VLLM_API_KEY": "vk-123456", "HF_TOKEN": "tok-of-hf", "HOME": "/root", "SECRET_SAUCE": "x", "CUDA_VISIBLE_DEVICES": "0,1",
        "NCCL_DEBUG": "INFO", "VLLM_PROXY": "http://u:proxypw1@p:1", "REDISCLI_AUTH": "cli-auth-1", "HTTP_PROXY": "http://u:proxypw2@p:1",
    })
    assert out["VLLM_USE_V1"] == "1"
    assert out["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert out["NCCL_DEBUG"] == "INFO"
    assert out["VLLM_API_KEY"] is not None
    assert TOKEN.fullmatch(out["VLLM_API_KEY"])
    assert "proxypw1" not in str(out["VLLM_PROXY"])
    assert [name for name, value in out.items() if value is None] == ["HF_TOKEN", "HOME", "SECRET_SAUCE", "REDISCLI_AUTH", "HTTP_PROXY"]


def test_values_found_anywhere_are_swept_everywhere() -> None:
    judge = redactor()
    judge.argv(["vllm", "--api-key", "argv-value-1"])
    judge.env({"HF_TOKEN": "env-value-1", "ALL_PROXY": "http://u:proxyvalue@p:1"})
    judge.url("redis://:url%2Dvalue-1@h:6379")
    judge.pair("x-api-key", "header-value-1")
    judge.text('{"password": "log-value-1"}')
    seen = "argv-value-1 env-value-1 proxyvalue url%2Dvalue-1 url-value-1 header-value-1 log-value-1"
    out = judge.text(seen)
    assert [TOKEN.fullmatch(word) is not None for word in out.split()] == [True] * 7
    assert TOKEN.sub("*", judge.name("dump-argv-value-1.json")) == "dump-*.json"
    assert judge.json({"k": "argv-value-1"}) != {"k": "argv-value-1"}


def test_common_words_numbers_and_paths_are_not_swept() -> None:
    judge = redactor()
    judge.argv(["x", "--password", "production", "--api-key", "123456", "--hf-token", "/run/secrets/hf", "--token", "short"])
    judge.pair("password", "worker")
    survivors = "production worker 123456 /run/secrets/hf short"
    assert judge.text(survivors) == survivors


def test_equal_secrets_get_equal_tokens_whatever_carries_them() -> None:
    judge = redactor()
    carriers = [
        *judge.argv(["--api-key", OPENAI]), judge.text(f"Authorization: Bearer {OPENAI}"), judge.text(f'{{"api_key": "{OPENAI}"}}'),
        judge.text(f"saw {OPENAI} here"), judge.url(f"http://h/?key={OPENAI}"), str(judge.env({"VLLM_API_KEY": OPENAI})),
        judge.pair("x-api-key", OPENAI), judge.name(f"session:{OPENAI}"), json.dumps(judge.json([OPENAI])),
    ]
    tokens = [found for text in carriers for found in TOKEN.findall(text)]
    assert len(tokens) == len(carriers) - 1
    assert len(set(tokens)) == 1
    encoded = {*TOKEN.findall(judge.url("redis://:p%40ss%2Fword@h")), *TOKEN.findall(judge.text(r'{"password": "p@ss\/word"}'))}
    assert len(encoded) == 1


def test_other_salt_other_token_and_the_salt_is_random() -> None:
    text = "password=abc123xyz"
    assert Redactor(salt=b"a" * 16).text(text) == Redactor(salt=b"a" * 16).text(text)
    assert len({Redactor(salt=b"a" * 16).text(text), Redactor(salt=b"b" * 16).text(text), Redactor().text(text), Redactor().text(text)}) == 4


def test_disabled_lets_everything_through() -> None:
    judge = Redactor(enabled=False)
    text = f"password=abc123xyz {HF} prompt: 'x y'"
    assert judge.text(text) == judge.name(text) == judge.url(text) == judge.pair("password", text) == text
    assert judge.argv(["--api-key", "k"]) == ["--api-key", "k"]
    assert judge.env({"HF_TOKEN": "k"}) == {"HF_TOKEN": "k"}
    assert judge.json({"password": ["x"]}) == {"password": ["x"]}
    assert judge.bytes_(b"\xff\0") == b"\xff\0"
    assert judge.counts == {}


def test_prompts_may_be_kept_but_secrets_inside_are_not() -> None:
    judge = Redactor(salt=SALT, prompts=False)
    assert judge.text("prompt: 'tell me', n=1") == "prompt: 'tell me', n=1"
    assert judge.json({"content": "hello you", "prompt_token_ids": [1, 2]}) == {"content": "hello you", "prompt_token_ids": [1, 2]}
    assert HF not in judge.text(f"prompt: 'tell me {HF}'")
    assert HF not in json.dumps(judge.json({"prompt": f"my key is {HF}", "messages": [{"content": f"x {HF}"}]}))


def test_json_walk() -> None:
    found = redactor().json({
        "pid": 1, "ok": True, "load": 0.5, "none": None, "session:sk-abcdef123456": "x",
        "frames": [{"name": "get", "line": 3, "locals": [
            {"name": "api_key", "addr": 1, "repr": '"pk-local-1"'}, {"name": "prompt", "repr": '"tell me a secr'},
            {"name": "n", "repr": "3"}, {"name": "token", "repr": "15043"}, {"name": "lock", "repr": "<_thread.lock at 0x7f71>"},
        ]}],
        "env": [{"name": "DB_PASSWORD", "value": "db-pw-12"}, {"name": "MODEL", "value": "org/m"}],
        "rows": [{"var": "hf_token", "repr": "'row-tok-1'"}, {"key": "db_password", "value": "row-pw-1"}],
        "headers": [["authorization", "Bearer head-1"], ["host", "h"]], "cmd": ["vllm", "--api-key", "cmd-key-1", "--port", "80"],
        "credentials": {"deep": ["cred-1x", {"er": "cred-2x"}]}, "password": 12345678,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "said this"}]}, {"role": "user", "content": "said that"}],
        "choices": [{"text": "said so", "finish_reason": "stop"}], "prompt_token_ids": [[110011, 120012], [130013]], "text": "plain log line",
        "tuple": ("a", 1),
    })
    dumped = json.dumps(found)
    for secret in ("sk-abcdef123456", "pk-local-1", "tell me", "db-pw-12", "head-1", "cmd-key-1", "row-tok-1", "row-pw-1", "cred-1x", "cred-2x", "12345678",
                   "said this", "said that", "said so", "110011", "120012", "130013"):
        assert secret not in dumped, secret
    assert isinstance(found, dict)
    assert [found[key] for key in ("pid", "ok", "load", "none", "text", "tuple")] == [1, True, 0.5, None, "plain log line", ["a", 1]]
    assert [local["repr"] for local in found["frames"][0]["locals"][2:]] == ["3", "15043", "<_thread.lock at 0x7f71>"]
    assert found["frames"][0]["locals"][0]["repr"].strip('"') == TOKEN.findall(dumped)[1]
    assert found["env"][1] == {"name": "MODEL", "value": "org/m"}
    assert found["cmd"][3:] == ["--port", "80"]


def test_a_secret_found_late_in_json_is_swept_from_what_came_before() -> None:
    assert "late-secret-1" not in json.dumps(redactor().json({"a": "saw late-secret-1", "password": "late-secret-1"}))


def test_a_key_in_hex_is_the_redacted_key_in_hex() -> None:
    judge = redactor()
    row = judge.json({"key": "user:mail@x.y", "key_hex": b"user:mail@x.y".hex(), "other_hex": b"clip:1".hex(), "raw_hex": "ff00"})
    assert isinstance(row, dict)
    assert bytes.fromhex(row["key_hex"]).decode() == row["key"] == judge.name("user:mail@x.y")
    assert (row["other_hex"], row["raw_hex"]) == (b"clip:1".hex(), "ff00")


def test_a_key_in_hex_that_is_not_utf8_is_looked_into_too() -> None:
    judge = redactor()
    judge.text("password=Hunter2xyz9")
    for secret in (b"sk-abcdefgh12345678", b"Hunter2xyz9"):
        found = judge.json({"key": None, "key_hex": (b"\xff\xfeapi:" + secret).hex()})
        assert isinstance(found, dict)
        assert bytes.fromhex(found["key_hex"]).startswith(b"\xff\xfeapi:[REDACTED:")
        assert secret.hex() not in found["key_hex"]
    harmless = (b"\xff\xfeclip:1").hex()
    assert judge.json({"key_hex": harmless}) == {"key_hex": harmless}


def test_what_was_redacted_when_less_was_known_can_be_swept_again() -> None:
    judge = redactor()
    early, known = judge.text("alias q7w6e5r4t3y2"), judge.known
    judge.text("secret_key=q7w6e5r4t3y2")
    assert judge.known > known
    assert "q7w6e5r4t3y2" in early
    assert "q7w6e5r4t3y2" not in judge.sweep(early)
    assert Redactor(enabled=False).sweep(early) == early


def test_json_refuses_what_it_cannot_look_into() -> None:
    with pytest.raises(TypeError, match="Path"):
        redactor().json({"a": [Path("x")]})


@pytest.mark.parametrize("data", [b"\xff\xfe", b"ok \x80 ok", "password=topsecret1 ok".encode("utf-16-le"), "password=x".encode("utf-16")])
def test_what_is_not_utf8_is_refused(data: bytes) -> None:
    with pytest.raises(UndecodableArtefact, match="cannot be redacted"):
        redactor().bytes_(data)


def test_zeros_in_a_log_are_text() -> None:
    data = b"\0" * 4096 + b"line one\n"
    assert redactor().bytes_(data) == data


@pytest.mark.parametrize("text", [
    "a" * 1_000_000, 'prompt: "' + "b" * 1_000_000, "password='" + "c'\\" * 300_000, "://" * 300_000, "@" * 1_000_000, "a@" * 500_000, "a." * 500_000,
    "-eyJ" * 250_000, "sk-" * 300_000, "-----BEGIN PRIVATE KEY-----" * 30_000, "-----END PRIVATE KEY-----" * 30_000, "redis-cli " * 100_000, "name: a " * 100_000 + "value", "[" * 1_000_000,
    '"prompt": [' + '"x", ' * 200_000, "key=" * 250_000, "token_ids=[" + "1, " * 300_000, "\\" * 1_000_000 + '"', "password=" + ")" * 1_000_000 + "x",
    'password="' * 100_000, "--password " * 90_000, "user a on " * 100_000, "AUTH " * 200_000, "redis://" + "@/" * 300_000, "Cookie: " * 100_000,
    "password=\\\\\"" * 90_000, "curl -u " * 100_000, "prompt: a " * 100_000, "password: " + "a=" * 400_000, "data:;base64," * 70_000,
    " " * 1_000_000 + "password=abc123xyz",
])
def test_a_very_long_line_is_done_and_stays_the_same_when_done_again(text: str) -> None:
    judge = redactor()
    out = judge.text(text)
    assert judge.text(out) == out


FRAGMENTS = [
    *(text for _, text in PLANTED), *SURVIVORS, "password=", "'", '"', "\\", "\\\"", " ", "\n", ",", ";", "[", "]", "{", "}", ":", "=", "@", "://",
    "[REDACTED:api-key:1a2b3c4d]", "[PROMPT len=39 h=fc6e9b06]", "[REDACTED:", "AUTH ", "--api-key ", "requirepass ", "Cookie: ", "Bearer ",
    "prompt: ", "token=", "redis://", "hunter2-pw", "?", "&", "-", ">", "user x on ", "\0", "http://", "a", "1",
]


@settings(deadline=None, max_examples=400)
@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=5)), max_size=8).map("".join))
def test_redacting_twice_changes_nothing(text: str) -> None:
    judge = redactor()
    once = judge.text(text)
    assert judge.text(once) == once
    assert redactor().text(once) == once


@settings(deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(FRAGMENTS) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["password", "name", "value", "prompt", "text", "a", "token_ids", "x_hex"]), inner, max_size=4),
    max_leaves=12,
))
def test_walking_json_twice_changes_nothing(value: object) -> None:
    judge = redactor()
    once = judge.json(value)
    assert judge.json(once) == once


@settings(deadline=None)
@given(secret=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40).filter(lambda s: any(c.isdigit() for c in s)))
def test_any_secret_in_json_is_gone_and_swept(secret: str) -> None:
    judge = redactor()
    secret = f"q7{secret}"
    assert secret not in judge.text(json.dumps({"password": secret, "n": 1}))
    assert secret not in judge.text(f"and again ({secret}) here")
    assert secret not in str(judge.json({"a": secret}))


def test_what_is_told_of_loose_evidence_keeps_its_verdicts() -> None:
    """Though each of them is equal to a text that was met before."""
    given = (str(Verdict.INCONCLUSIVE.value), Verdict.INCONCLUSIVE, str(SignalState.UNSEEN.value), SignalState.UNSEEN)
    told = masked(given, Redactor(SALT))
    assert told == given
    assert (type(told[1]), type(told[3])) == (Verdict, SignalState), told
