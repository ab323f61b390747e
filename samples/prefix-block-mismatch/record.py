"""Record the lab's incident: `python record.py` in this folder writes dumps/ and incident/ anew.

One engine with the binary lookup is put under pressure until a prompt that was answered well is answered otherwise. Of
that request, of the same prompt with a salt of its own (nothing cached), and of the request whose block it was given,
the tensors are kept; of the lookups what the last requests logged.
"""

import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from kvlab import dumping  # noqa: E402
from kvlab.engine import Capture, Engine, Result, Settings  # noqa: E402
from kvlab.server import LookupLog  # noqa: E402

from diag.repro import prompts, variants  # noqa: E402

FORMAT = "safetensors"
EVERY, MOST, SEED = 5, 400, 0
LOGGED = 24
"""Lookups of so many requests go into the log, the wrong one last."""

Kept = dict[str, list[dumping.Entry]]


class Recorder:
    """One engine whose requests are kept: their tensors, in memory, and what their lookups logged."""

    def __init__(self) -> None:
        self.engine = Engine(Settings(dtype="bfloat16", seed=SEED), on_lookup=self._log, capture=self._keep)
        self.kept: dict[int, Kept] = {}
        self.logs: deque[str] = deque(maxlen=LOGGED)

    def _log(self, *looked: object) -> None:
        text = io.StringIO()
        LookupLog(text)(*looked)  # type: ignore[arg-type]
        self.logs.append(text.getvalue())

    def _keep(self, capture: Capture) -> None:
        kind: dumping.Kind = "blocks" if capture.at == "prefill" else "cache"
        copies = [dumping.Entry(e.op, e.place, e.tensor.clone(), e.layer) for e in dumping.entries(capture, kind)]
        self.kept.setdefault(capture.number, {})[kind] = copies

    def pressed(self, most: int) -> Result | None:
        """Ask until an answer turns wrong, at most so many variants -> that request."""
        asked = prompts.read(HERE / "prompts.jsonl")
        good = [self.engine.generate(item.text or "").text for item in asked]
        for number in range(most):
            self.engine.generate(variants.pressure(asked, number, SEED).text or "")
            if number % EVERY == 0:
                which = number // EVERY % len(asked)
                found = self.engine.generate(asked[which].text or "")
                if found.text != good[which] and self.engine.generate(asked[which].text or "", salt=f"{number}").text == good[which]:
                    return found
        return None


def _write(folder: Path, name: str, found: list[dumping.Entry]) -> None:
    with tempfile.TemporaryDirectory() as place:
        (written,) = dumping.write(Path(place), [FORMAT], name, found)
        shutil.copytree(written, folder / name)


def main() -> None:
    """Dumps, log, and what `compare-dumps` says of them."""
    for name in ("dumps", "incident"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    recorder = Recorder()
    bad = recorder.pressed(MOST)
    if bad is None:
        sys.exit("no answer turned wrong: change SEED")
    donors = sorted({writer for writer in bad.written_by[0] if writer and writer != bad.number})
    dumps, incident = HERE / "dumps", HERE / "incident"
    _write(dumps, "bad", recorder.kept[bad.number]["blocks"])
    _write(dumps, "good", recorder.kept[bad.number + 1]["blocks"])
    for number in donors:
        _write(dumps / "donors", f"request-{number}", recorder.kept[number]["cache"])
    incident.mkdir()
    (incident / "lookups.log").write_text("".join(recorder.logs), encoding="utf-8")
    told = ["--donors", "dumps/donors", "--lookups", "incident/lookups.log", "-o", "incident/comparison.json"]
    command = [sys.executable, "-m", "diag.cli", "compare-dumps", "dumps/good", "dumps/bad", *told]
    done = subprocess.run(command, cwd=HERE, env={**os.environ, "PYTHONPATH": str(HERE.parents[1])}, check=False)
    print(f"request {bad.number} answered {bad.text!r}, its block 0 holds rows of requests {donors}; exit {done.returncode}")


if __name__ == "__main__":
    main()
