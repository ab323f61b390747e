"""Verdicts as a file for the textfile collector of Prometheus' node exporter, replaced whole: nobody ever reads half of it.

    llmdiag_health_state{target="http://127.0.0.1:8000/metrics",engine="",state="progressing"} 1
    llmdiag_health_state{target="http://127.0.0.1:8000/metrics",engine="0",state="progressing"} 1
    llmdiag_health_exit{target="http://127.0.0.1:8000/metrics"} 0
    llmdiag_health_tokens_per_second{target="http://127.0.0.1:8000/metrics",engine="0"} 126.3

`engine=""` is the backend as a whole, and its engine where it names none. A state that it is not in is 0.
"""

import contextlib
import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from diag.errors import BundleError
from diag.health.checking import Checked
from diag.health.verdict import EXIT
from diag.loose import shown

MODE = 0o644
"""The exporter is another user, whatever the umask of the unit that runs the check."""


def write(path: Path, checked: Sequence[Checked]) -> None:
    """The file, whole or not at all. Raises BundleError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")  # the exporter reads *.prom
    try:
        if path.exists() and not path.is_file():  # it would be replaced by a file, /dev/null too
            raise FileExistsError(errno.EEXIST, "it is no file")
        partial.write_bytes(generate_latest(_registry(checked)))
        partial.chmod(MODE)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise BundleError(f"cannot write {shown(path)}: {error.strerror}", hint="name a writable file with --textfile; node_exporter reads *.prom") from error


def _registry(checked: Sequence[Checked]) -> CollectorRegistry:
    found = CollectorRegistry()
    state = Gauge("llmdiag_health_state", "1 for the state that a backend or an engine of it is in", ["target", "engine", "state"], registry=found)
    code = Gauge("llmdiag_health_exit", "0 nothing to do, 1 proved stuck, 3 not proved either way", ["target"], registry=found)
    at = Gauge("llmdiag_health_last_check_timestamp_seconds", "When it was judged", registry=found)
    per_engine = {
        "running": Gauge("llmdiag_health_requests_running", "Requests that run", ["target", "engine"], registry=found),
        "waiting": Gauge("llmdiag_health_requests_waiting", "Requests that wait", ["target", "engine"], registry=found),
        "tokens_per_s": Gauge("llmdiag_health_tokens_per_second", "Tokens a second by the engine's own counters", ["target", "engine"], registry=found),
        "steps_per_s": Gauge("llmdiag_health_steps_per_second", "Steps a second by the engine's own counters", ["target", "engine"], registry=found),
        "flat_s": Gauge("llmdiag_health_flat_seconds", "How long it has been busy and nothing moved", ["target", "engine"], registry=found),
    }
    at.set(time.time())
    for item in checked:
        code.labels(item.url).set(item.verdict.exit)
        states = {"": item.verdict.state, **{engine.engine: engine.state for engine in item.verdict.engines if engine.engine}}
        for engine_name, engine_state in states.items():
            for name in EXIT:
                state.labels(item.url, engine_name, name).set(name == engine_state)
        for engine in item.verdict.engines:
            for field, gauge in per_engine.items():
                value = getattr(engine, field)
                if value is not None:
                    gauge.labels(item.url, engine.engine or "").set(value)
    return found
