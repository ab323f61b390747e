"""What the documents say is true: examples run, tables are complete, nothing names the machine it was written on."""

import re
import shlex
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import diag
from diag import cli, cli_diagnosis, cli_help, collectors, rules
from tests.conftest import ROOT, SAMPLES
from tests.live.run import llmdiag

README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", *(path.relative_to(ROOT).as_posix() for path in cli_help.places().values()))
NOT_RUN = {
    **dict.fromkeys(
        (f"llmdiag snapshot {way}" for way in (
            "--port 8000", "--name vllm", "--unit vllm.service", "--container chat-7b", "4121 4188", "--port 8000 --watch --watch-for 12h",
            "--port 8000 --collect-only",
        )), "needs that service; tests/services finds real ones in each way",
    ),
    "llmdiag report samples/ghost-key-retry-loop/incident.zip -f html -o report.html": "would leave a file here; tests/test_html.py runs it",
    "llmdiag snapshot 4121": "needs a hung service with that pid; tests/live takes snapshots of real ones",
    "llmdiag snapshot --port 8000 -o nightly.zip -f json > nightly.json": "the same, and a shell",
    "llmdiag doctor": "what it says depends on the machine; tests/doctor",
    "llmdiag doctor 1": "the same",
    **dict.fromkeys((f"llmdiag demo {name}" for name in ("ghost-key", "prefix-mismatch", "restart-cascade", "slow-recovery")), "tests/live runs all demos"),
    **dict.fromkeys(("llmdiag rules test mine", *(f"llmdiag analyze samples/vllm-0.32-cpu/{name}" for name in ("worker-stopped --rules mine", "busy --rules mine --explain frozen-worker"))), "tests/test_help.py writes that rule and runs it"),
    "llmdiag analyze evidence": "what kubectl saved",
    "llmdiag analyze logs --events-map events-map.toml --tz UTC": "logs of the lab; tests/live/test_cascade_lab.py reads them",
    "llmdiag recovery logs --events-map samples/slow-recovery/events-map.toml --tz UTC": "logs of the lab; tests/live/test_recovery_lab.py reads them",
    "llmdiag compare-dumps good bad --control control --donors donors --lookups lookups.log": "dumps of your own",
    "llmdiag repro-prefix http://localhost:8080 samples/prefix-block-mismatch/prompts.jsonl --rate 1000 --every 5 --fills 10": "needs the lab; tests/live/test_prefix_lab.py",
    "llmdiag repro-prefix http://localhost:8000 failing-prompts.jsonl -o repro.json": "needs an endpoint; tests/repro and tests/live run it on the lab",
}


def commands(group: click.Group = cli.cli, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command below `llmdiag`: its words, and itself."""
    for name, command in sorted(group.commands.items()):
        yield (*before, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))


def section(title: str) -> str:
    """The text below a `## title` of the README."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def table(text: str) -> list[list[str]]:
    """Rows of the first Markdown table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def code(text: str) -> Iterator[str]:
    """Lines of code: indented after an empty line, or fenced as sh."""
    fence, indented, before = None, False, ""
    for line in text.splitlines():
        if line.startswith("```"):
            fence = line[3:] if fence is None else None
        elif fence is not None:
            if fence == "sh":
                yield line
        else:
            indented = line.startswith("    ") and (indented or not before.strip())
            if indented:
                yield line[4:]
        before = line


def examples() -> list[tuple[str, int]]:
    """Every example and the exit code that its comment gives, 0 without one."""
    found = []
    for name in DOCUMENTS:
        for line in code((ROOT / name).read_text(encoding="utf-8")):
            command, _, comment = line.partition(" #")
            if command.startswith("llmdiag "):
                said = re.search(r"exit (\d)", comment)
                found.append((command.strip(), int(said[1]) if said else 0))
    return found


def test_the_examples_were_found() -> None:
    assert len(examples()) > len(NOT_RUN)
    assert set(NOT_RUN) <= {command for command, _ in examples()}, "an example that is not there needs no reason"


@pytest.mark.parametrize(("example", "exit_code"), dict.fromkeys((e, c) for e, c in examples() if e not in NOT_RUN))
def test_an_example_runs_as_written(example: str, exit_code: int) -> None:
    said = llmdiag(*shlex.split(example)[1:], cwd=ROOT)
    assert said.code == exit_code, said.err
    assert said.out.strip()


def test_the_first_line_is_as_shown() -> None:
    shown = re.search(r"```text\n(.+)\n```", README)
    assert shown
    first = llmdiag("analyze", str(SAMPLES / "ghost-key-retry-loop" / "incident.zip"), COLUMNS="100").out.splitlines()[0]
    assert re.sub(r"[0-9a-f]{32}", "*", first) == re.sub(r"[0-9a-f]{32}", "*", shown[1])


def test_the_table_of_commands_is_complete() -> None:
    written: set[tuple[str, ...]] = set()
    for row in table(section("Commands")):
        for call in re.findall(r"`llmdiag ([^`]+)`", row[0]):
            words = [word for word in call.split() if re.fullmatch(r"[a-z-]+(\\\|[a-z]+)*", word) and not word.startswith("-")]
            name = words[0]
            rest = words[1].split("\\|") if len(words) > 1 and isinstance(cli.cli.commands.get(name), click.Group) else []
            written |= {(name,), *((name, word) for word in rest)}
    assert written == {words for words, _ in commands()}


def test_which_commands_print_json_is_said() -> None:
    without = {
        " ".join(words) for words, command in commands()
        if not isinstance(command, click.Group)
        and not any(isinstance(p.type, click.Choice) and "json" in p.type.choices and "-f" in p.opts for p in command.params)
    }
    said = re.search(r"All but (.+?) take `-f json`", section("Commands"))
    assert said
    assert set(re.findall(r"`([^`]+)`", said[1])) == without


def test_every_exit_code_is_said() -> None:
    codes = table(section("Commands"))[0][2]
    for name, number in cli_diagnosis.EXIT.items():
        assert f"{number} {name}" in codes
    assert f"{cli.ERROR} usage or error" in codes


def test_every_collector_is_said() -> None:
    written = [name for row in table(section("What happens in a snapshot")) for name in re.findall(r"`([a-z]+)`", row[0])]
    assert sorted(written) == sorted(module.NAME for module in collectors.discover())


def test_the_table_of_rules_is_complete() -> None:
    written = [row[0].strip("`") for row in table(section("Rules"))]
    assert sorted(written) == sorted(rule.id for rule in rules.load(rules.shipped()))


def test_what_the_layout_names_exists() -> None:
    block = "\n".join(code(section("Layout")))
    folders, files = re.findall(r"(?:^|\s|,)([a-z_]+(?:/[a-z_]+)*/?)(?=\s{2}|,)", block, re.M), re.findall(r"\b\w+\.py\b", block)
    folders = [name for name in folders if name.endswith("/")]
    assert "diag/" in folders
    assert [name for name in folders if not ((ROOT / name).is_dir() or (ROOT / "diag" / name).is_dir())] == []
    assert [name for name in files if not (ROOT / "diag" / name).is_file()] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_and_make_targets_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not ((ROOT / name).parent / link).exists()]
    assert links == []
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^    |`)make ([a-z]+)", text, re.M)) <= made


def test_every_sample_folder_is_said() -> None:
    text = (SAMPLES / "README.md").read_text(encoding="utf-8")
    written = sorted(row[0].strip("`") for row in table(text))
    assert written == sorted(path.parent.name for path in SAMPLES.glob("*/sample.toml"))


@pytest.mark.parametrize("words", [(), *(words for words, _ in commands())], ids=" ".join)
def test_help_fits_80_columns(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(cli.cli, [*words, "--help"], terminal_width=80)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith("Usage: ")
    assert [line for line in lines if len(line) > 80] == []
    about = dict(commands())[words].help if words else cli.cli.help
    assert about, f"llmdiag {' '.join(words)} does not say what it does"


def test_the_changelog_has_an_unreleased_section() -> None:
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert newest
    assert newest[1] == f"{diag.__version__} (unreleased)"


# Home, build and environment folders of a machine; /proc/PID/root/… is none.
MACHINE = re.compile(rb"(?<![\w.>}])/(?:work|root)/|/tmp/ven[v]\b")
REGISTRY = re.compile(rb"pypi[.](?:org|io|python)|pythonhoste[d]|index-ur[l]")


def repository_files() -> list[Path]:
    """Files that git knows or would take."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    found = [ROOT / name for name in listed.decode().split("\0") if name]
    return [path for path in found if path.is_file()]


def texts(path: Path) -> Iterator[bytes]:
    """A file, or the files inside a bundle."""
    if path.suffix != ".zip":
        yield path.read_bytes()
        return
    with zipfile.ZipFile(path) as archive:
        yield from (archive.read(member) for member in archive.namelist())


def test_no_file_names_a_machine_or_a_registry() -> None:
    hits = {
        path.relative_to(ROOT).as_posix(): hit[0].decode()
        for path in repository_files() for data in texts(path) for pattern in (MACHINE, REGISTRY) if (hit := pattern.search(data))
    }
    assert hits == {}, "write it in neutral words; a record is made anew in a bare place with `make resample`"


def test_every_dependency_says_why() -> None:
    """A comment on the line of each."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    wanted = [*project["dependencies"], *(item for items in project["optional-dependencies"].values() for item in items)]
    silent = [item for item in wanted if not item.startswith("llmdiag[") and not re.search(rf'^  "{re.escape(item)}",\s*# \S', text, re.M)]
    assert silent == []
