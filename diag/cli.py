"""The command line: which commands there are, how errors end, exit codes. Only `cli*.py` and `terminal.py` print.

Heavy imports happen inside the commands, so that `--help` stays fast.
"""

import errno
import sys
import traceback
from pathlib import Path

import click

from diag import __version__, terminal
from diag.cli_analyze import analyze, report
from diag.cli_cache import restore_cache, scan_cache
from diag.cli_completion import VARIABLE, completion
from diag.cli_demo import demo
from diag.cli_doctor import doctor
from diag.cli_health import EXEC_PROBE, health
from diag.cli_help import help_
from diag.cli_query import query, schema
from diag.cli_recovery import recovery
from diag.cli_repro import repro_prefix
from diag.cli_rules import rules_group
from diag.cli_snapshot import snapshot
from diag.cli_tensors import compare_dumps
from diag.errors import BadInput, LlmdiagError

ERROR = 2
INTERRUPTED = 130
NO_MEMORY = "error: there is not as much memory as this process needs\n  give it less evidence at a time, or raise the limit (ulimit -v, the container's)"
COMMANDS = (snapshot, analyze, report, query, schema, rules_group, demo, scan_cache, restore_cache, compare_dumps, repro_prefix, health, recovery, doctor, completion, help_)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="llmdiag")
def cli() -> None:
    """Find out why an LLM inference service plays dead, answers rubbish or keeps being restarted.

    \b
    llmdiag snapshot PID      collect from a live service and diagnose it
    llmdiag analyze PATH...   the same from a bundle or loose evidence files
    llmdiag report PATH       a runbook report to attach to a ticket
    llmdiag scan-cache        find ghost keys in Redis or Valkey
    llmdiag compare-dumps A B tensor dumps: which block is wrong, and whose it is
    llmdiag repro-prefix URL  does the prefix cache answer with wrong blocks
    llmdiag health URL        is an engine stuck, or only busy
    llmdiag recovery PATH...  where the time of a recovery went
    llmdiag doctor            what this machine allows, how to fix the rest
    llmdiag help [TOPIC]      a tour, how to read a report, how to write a rule
    """
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise BadInput("the current folder was deleted", hint="cd to one that exists, and try again") from error


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Entry point: every expected error becomes two lines on stderr and exit code 2; Ctrl-C is 130."""
    if EXEC_PROBE in sys.argv[1:]:
        sys.exit(_probed())
    try:
        code = _printed()
    except MemoryError:  # where there was none left to say so the first time
        code = ERROR
    sys.exit(code)


def _probed() -> int:
    """Kubernetes restarts on every code but 0, so that only what was proved may give one: not an error of ours, not a typing mistake."""
    try:
        return 1 if _printed() == 1 else 0
    except BaseException:
        traceback.print_exc()
        return 0


def _printed() -> int:
    """The command of the command line and its exit code, its output flushed."""
    terminal.steady_streams()
    try:
        code = _run()
        sys.stdout.flush()
    except terminal.OutputLost as error:
        terminal.silence(sys.stdout)
        code = ERROR
        if error.args[0] != errno.EPIPE:
            terminal.note(f"error: cannot write the output: {error.args[1]}\n  free some space, or send it elsewhere")
    return code


def _run() -> int:
    """The command of the command line, and its exit code."""
    try:
        code = cli.main(standalone_mode=False, complete_var=VARIABLE)  # a number after --help and --version, else None
    except SystemExit as left:
        if isinstance(left.__context__, BrokenPipeError):  # click takes it for a lost stdout and says 1: "matched"
            terminal.note("error: a connection was closed while something was sent through it\n  try again")
            return ERROR
        code = left.code
    except LlmdiagError as error:
        terminal.note(f"error: {terminal.printable(str(error))}")
        return ERROR
    except click.ClickException as error:
        return _usage(error)
    except (click.Abort, KeyboardInterrupt):
        terminal.note("interrupted")
        return INTERRUPTED
    except terminal.OutputLost:
        raise
    except MemoryError:
        terminal.note(NO_MEMORY)
        return ERROR
    except Exception:  # Python would end with 1, which is "stalled", "matched", "differ": a mistake of ours must accuse nobody
        terminal.note(_mistake())
        return ERROR
    return code if isinstance(code, int) else 0


def _mistake() -> str:
    """What is being handled, in full; where memory is short, what failed is seldom a mistake, and cannot be told."""
    try:
        return f"{terminal.printable(traceback.format_exc())}error: this is a mistake in llmdiag\n  report it with what is above; nothing was judged"
    except MemoryError:
        return NO_MEMORY


def _usage(error: click.ClickException) -> int:
    try:
        error.show()
    except OSError:  # stderr is full or gone
        terminal.silence(sys.stderr)
    return ERROR


if __name__ == "__main__":
    main()
