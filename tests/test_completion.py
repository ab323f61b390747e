"""TAB in real shells, and what the shells ask for at each: quick, and nothing of the analysis imported."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diag import demos, rules
from tests.conftest import ROOT, SAMPLES

WAIT_S = 30.0
LLMDIAG = f'#!/bin/sh\nexec "{sys.executable}" -m diag.cli "$@"\n'
HEAVY = re.compile(r"\| +(duckdb|pandas|numpy|sqlglot|redis)$", re.MULTILINE)
RULES = sorted(rule.stem for rule in rules.shipped().glob("*.toml"))
SHOWN = "\x01echo '<'\x05'>' | tr -d ' '\r"
"""Before and behind the line: it is printed, without its blanks, instead of being run."""
START = {
    "bash": (["--norc", "--noprofile", "-i"], 'eval "$(llmdiag completion bash)"'),
    "zsh": (["-f", "-i"], 'autoload -Uz compinit && compinit -u -D; eval "$(llmdiag completion zsh)"'),
    "fish": (["--no-config", "-i"], "llmdiag completion fish | source"),
}


def asked(shell: str, line: str, cwd: Path = ROOT, *python: str) -> subprocess.CompletedProcess[str]:
    """What llmdiag answers to the script of a shell, the cursor behind the last word of the line."""
    words = line.split(" ")
    word = str(len(words) - 1) if shell != "fish" else words[-1]
    return subprocess.run(
        [sys.executable, *python, "-m", "diag.cli"], capture_output=True, text=True, timeout=WAIT_S, check=True, cwd=cwd,
        env={**os.environ, "_LLMDIAG_COMPLETE": f"{shell}_complete", "COMP_WORDS": line, "COMP_CWORD": word, "PYTHONPATH": str(ROOT)},
    )


def offered(line: str, cwd: Path = ROOT) -> list[str]:
    """`plain,value`, … as the script of bash gets them."""
    return asked("bash", line, cwd).stdout.splitlines()


@pytest.mark.parametrize("line", ["llmdiag rules show ", "llmdiag analyze x.zip --explain "])
def test_ids_of_all_rules(line: str) -> None:
    assert offered(line) == [f"plain,{rule}" for rule in RULES]


def test_demos_commands_and_options() -> None:
    assert offered("llmdiag demo ") == [f"plain,{rule}" for rule in sorted(demos.demos())]
    assert "plain,snapshot" in offered("llmdiag s")
    assert offered("llmdiag snapshot 1 --skip st") == ["plain,stacks"]
    assert {"plain,--port", "plain,--name", "plain,--unit", "plain,--container"} <= set(offered("llmdiag snapshot --"))


def test_rules_of_an_own_folder(tmp_path: Path) -> None:
    (tmp_path / "my-own.toml").write_text("")
    assert offered(f"llmdiag rules show --rules {tmp_path} m") == ["plain,my-own"]


@pytest.mark.parametrize("shell", sorted(START))
def test_each_shell_gets_its_own_form(shell: str) -> None:
    assert "ghost-key-retry-loop" in asked(shell, "llmdiag rules show ghost-key-r").stdout


def test_bundles_are_archives_and_folders(tmp_path: Path) -> None:
    for name in ("inner/deep", "bundle", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bundle" / "manifest.jsonl").write_text("")
    for name in ("b.zip", "a.zip", "server.log", "inner/c.zip"):
        (tmp_path / name).write_text("")
    assert offered("llmdiag analyze ", tmp_path) == ["plain,a.zip", "plain,b.zip", "plain,bundle", "plain,inner/"]
    assert offered("llmdiag report inner/c", tmp_path) == ["plain,inner/c.zip"]
    assert offered("llmdiag analyze inn", tmp_path) == ["file,inn"], "the shell goes into the only folder"
    assert offered("llmdiag analyze ser", tmp_path) == ["file,ser"], "loose evidence is any file"
    (tmp_path / "c d.zip").write_text("")
    assert offered("llmdiag analyze c", tmp_path) == ["file,c"], "the shell knows how to quote"


def test_nothing_of_the_analysis_is_imported() -> None:
    imported = asked("bash", f"llmdiag analyze {SAMPLES.name}/cpu-spin/ --explain cpu", ROOT, "-X", "importtime").stderr
    assert "diag.cli_completion" in imported
    assert HEAVY.search(imported) is None, HEAVY.search(imported)


@pytest.mark.parametrize("shell", sorted(START))
def test_tab_in_a_real_shell(shell: str, tmp_path: Path) -> None:
    """The completed line is made an echo's, so that it is seen as the shell has it."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed here")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llmdiag").write_text(LLMDIAG)
    (tmp_path / "bin" / "llmdiag").chmod(0o755)
    (tmp_path / "evidence.zip").write_text("")
    options, setup = START[shell]
    with Typist([program, *options], tmp_path) as typist:
        typist.types(f"{setup}; echo re''ady\r", until="ready")
        typist.types(f"llmdiag rules show ghost-key-r\t{SHOWN}", until="<llmdiagrulesshowghost-key-retry-loop>")
        typist.types(f"llmdiag analyze evi\t{SHOWN}", until="<llmdiaganalyzeevidence.zip>")


class Typist:
    """Somebody at a terminal of 80 columns with that program in it."""

    def __init__(self, argv: list[str], home: Path) -> None:
        ours, theirs = pty.openpty()
        self._terminal, self._seen = ours, ""
        env = {**os.environ, "HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "TERM": "dumb", "PYTHONPATH": str(ROOT), "PS1": "$ "}
        self._shell = subprocess.Popen(["setsid", "--ctty", *argv], stdin=theirs, stdout=theirs, stderr=theirs, cwd=home, env=env)
        os.close(theirs)

    def __enter__(self) -> "Typist":
        return self

    def __exit__(self, *_: object) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._terminal)

    def types(self, keys: str, until: str) -> None:
        """Types, then reads until a line is that text."""
        os.write(self._terminal, keys.encode())
        end = time.monotonic() + WAIT_S
        while until not in map(str.strip, self._seen.splitlines()):
            assert select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))[0], f"not in {WAIT_S} s; seen: {self._seen!r}"
            self._seen += os.read(self._terminal, 1 << 16).decode("utf-8", "replace")
