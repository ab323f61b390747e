"""`llmdiag completion`: the script for bash, zsh or fish; and what TAB offers: ids of rules by their file names, bundles here.

A shell asks at every TAB, so that nothing is imported here but click: rules are not read.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from diag import rules, terminal

PROGRAM = "llmdiag"
VARIABLE = "_LLMDIAG_COMPLETE"
JOURNALS = ("manifest.jsonl", "manifest.json")
DEMO = re.compile(r'^RULE = "(.+)"$', re.MULTILINE)
Items = list[CompletionItem]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, rule ids and bundles.

    \b
    eval "$(llmdiag completion bash)"      in ~/.bashrc
    eval "$(llmdiag completion zsh)"       in ~/.zshrc, below compinit
    llmdiag completion fish > ~/.config/fish/completions/llmdiag.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    script = made(context.find_root().command, {}, PROGRAM, VARIABLE)
    terminal.out(f"{script.source_template % script.source_vars()}\n")


def rule_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Ids that begin so, of the shipped rules or those of --rules."""
    folder = context.params.get("folder") or context.params.get("rules_dir") or rules.shipped()
    return _beginning(incomplete, (file.stem for file in Path(folder).glob("*.toml")))


def collector_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Collectors, by their files."""
    files = (Path(__file__).parent / "collectors").glob("[!_]*.py")
    return _beginning(incomplete, (file.stem for file in files))


def demo_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Names of demos, by their lines `RULE = "…"`: importing them takes longer than a person waits for TAB."""
    files = (Path(__file__).parent / "demos").glob("*.py")
    return _beginning(incomplete, (found[1] for file in files if (found := DEMO.search(file.read_text(encoding="utf-8")))))


def bundles(context: click.Context, parameter: click.Parameter, incomplete: str) -> Items:
    """Archives and folders that begin so. Any file, as the shell knows them: where there are none, or only one folder to go
    into, or names that the shell has to quote.
    """
    found = sorted(_bundles(incomplete))
    if not found or (len(found) == 1 and found[0].endswith("/")) or any(shlex.quote(name) != name for name in found):
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(name) for name in found]


def _bundles(incomplete: str) -> Iterator[str]:
    """Names as they were begun: a folder with a / at its end, unless it is a bundle itself."""
    before, slash, name = incomplete.rpartition("/")
    try:
        entries = list(os.scandir(Path(f"{before}{slash}" or ".").expanduser()))
    except (OSError, RuntimeError):  # it may not be read; nobody is called so
        return
    for entry in entries:
        if not entry.name.startswith(name) or (entry.name.startswith(".") and not name.startswith(".")):
            continue
        typed = f"{before}{slash}{entry.name}"
        if entry.is_dir():
            is_bundle = any((Path(entry.path) / journal).exists() for journal in JOURNALS)
            yield typed if is_bundle else f"{typed}/"
        elif entry.name.endswith(".zip"):
            yield typed


def _beginning(incomplete: str, names: Iterable[str]) -> Items:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]
