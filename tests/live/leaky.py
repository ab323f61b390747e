"""A careless service: a real HTTP server with a cache that spills secrets in every place a service can.

What it spills comes as JSON on standard input, on its command line and in its environment, so that whoever starts it
knows each secret and where it must be found. Ready when it writes `{"pid": …, "port": …, "child": …}` to `--ready-fd`.
"""

import argparse
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import redis

LOG = logging.getLogger("leaky")

METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="{model}"}} 1.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{engine="0",model_name="{model}"}} 1284.0
# HELP upstream_up Last error of {help_text}
# TYPE upstream_up gauge
upstream_up{{api_key="{label_key}",endpoint="https://svc:{label_url}@upstream.example:8443/v1"}} 1.0
# TYPE user_requests_total counter
user_requests_total{{user="{label_mail}@corp.example",token_type="bearer"}} 3.0
"""


class Front(BaseHTTPRequestHandler):
    """Answers /metrics and /health, and logs what it was sent, headers included."""

    metrics = ""

    def do_GET(self) -> None:
        LOG.info('%s - "GET %s HTTP/1.1" 200 OK headers=%r', self.client_address[0], self.path, dict(self.headers))
        body = self.metrics.encode() if self.path == "/metrics" else b"{}"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logged above."""


def read_for_ever(client: redis.Redis, cache_key: str, session_token: str, password: str, spilled: dict[str, str]) -> None:
    """The hot thread: an honest key beside secrets in its locals, values of it read again and again."""
    api_key = spilled["local_api_key"] + ":v1"
    headers = {"Authorization": "Bearer " + spilled["local_header"]}
    upstream = f"https://svc:{spilled['local_url']}@upstream.example/v1"
    while True:
        value = client.get(cache_key)
        if value is None and not (api_key and headers and upstream and session_token and password):
            raise KeyError(cache_key)


def log_everything(spilled: dict[str, str], model: str) -> None:
    """One line or more per secret, worded as engines and libraries word it."""
    LOG.info("model %s loaded, max_tokens=2048, max_num_batched_tokens=8192, host %s", model, socket.gethostname())
    LOG.info("rotating credentials, was %s", spilled["log_named_later"])
    LOG.info("upstream request headers: {'Authorization': 'Bearer %s', 'Accept': '*/*'}", spilled["log_bearer"])
    LOG.warning("401 from upstream, sent x-api-key: %s", spilled["log_api_key"])
    LOG.warning("> Authorization: Basic %s", spilled["log_basic"])
    LOG.info("Cookie: theme=dark; session_id=%s", spilled["log_cookie"])
    LOG.info(
        "Received request chatcmpl-1: prompt: '%s', params: SamplingParams(n=1, temperature=0.7, stop=[], max_tokens=2048, "
        "min_tokens=0), prompt_token_ids: None, lora_request: None.", spilled["log_prompt"],
    )
    LOG.info('body {"model": "%s", "messages": [{"role": "user", "content": "%s"}], "max_tokens": 2048}', model, spilled["log_content"])
    LOG.info("ticket opened by %s@corp.example", spilled["log_mail"])
    try:
        raise ConnectionError(f"Error 111 connecting to redis://:{spilled['log_error_url']}@cache.example:6379/0. Connection refused.")
    except ConnectionError:
        LOG.exception("cache lost")
    LOG.error("id token %s was refused", spilled["log_jwt"])
    LOG.error("fatal: could not read from https://oauth2:%s@github.example/x.git", spilled["log_git"])
    LOG.info("tls key\n-----BEGIN PRIVATE KEY-----\n%s\n-----END PRIVATE KEY-----", spilled["log_pem"])
    LOG.info("dsn host=db.example dbname=x user=app password=%s sslmode=require", spilled["log_dsn"])
    LOG.info("notify https://hooks.slack.com/services/%s", spilled["log_hook"])
    LOG.info("aws access key %s", spilled["log_aws"])
    LOG.info("GET https://bucket.s3.example/model.safetensors?X-Amz-Expires=900&X-Amz-Signature=%s 200", spilled["log_signature"])
    LOG.warning("credentials rotated: api_key=%s", spilled["log_named_later"])
    LOG.warning("alias known as secret_key=%s", spilled["late"])
    LOG.warning("retrying the pool with %s", os.environ["DB_PASSWORD"])
    LOG.warning("cache miss for key sess:%s:9e107d9d372bb6826bd81d3542a419d6", spilled["log_key_name"])


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--ready-fd", type=int, required=True)
    parser.add_argument("--redis-url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--cache-key", required=True)
    args, _ = parser.parse_known_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(asctime)s [leaky.py:%(lineno)d] %(message)s", datefmt="%m-%d %H:%M:%S")
    spilled: dict[str, str] = json.load(sys.stdin)
    log_everything(spilled, args.model)

    client = redis.Redis.from_url(args.redis_url, client_name=spilled["client_name"])
    client.set(args.cache_key, b"\x93NUMPY-not-really")
    client.set(f"{args.cache_key.rpartition(':')[0]}:{os.environ['CACHE_API_KEY']}", b"\x93NUMPY-not-really")
    client.set(f"sess:{spilled['log_key_name']}:9e107d9d372bb6826bd81d3542a419d6", b"1")

    hidden = socket.socket(socket.AF_UNIX)
    hidden.bind("\0ipc-" + spilled["socket_name"])
    hidden.listen()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "--password", spilled["child_argv"]])
    hot = (client, args.cache_key, spilled["local_token"] + ":s1", "pw:" + spilled["local_password"], spilled)
    threading.Thread(target=read_for_ever, args=hot, name=f"upload-{spilled['thread_name']}", daemon=True).start()

    Front.metrics = METRICS.format(model=args.model, **spilled)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Front)
    os.write(args.ready_fd, json.dumps({"pid": os.getpid(), "port": server.server_port, "child": child.pid}).encode() + b"\n")
    os.close(args.ready_fd)
    threading.Thread(target=server.serve_forever, name="front", daemon=True).start()
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
