"""Every error llmdiag raises on purpose: what happened, where, and what to do next.

`cli.main` is the only place that catches `LlmdiagError`; the snapshot turns a `CollectorError` into a line of the
manifest. Anything else that escapes is a bug.
"""


class LlmdiagError(Exception):
    """Something a person can act on. `hint` is the next step, in the imperative."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class BadInput(LlmdiagError):
    """A file, option or value given by a person is not what it should be (names file and line)."""


class RuleError(LlmdiagError):
    """A rule file is wrong: names the file, the key or the signal."""


class SqlError(LlmdiagError):
    """A query is not one SELECT over known tables, or DuckDB refused it."""


class BundleError(LlmdiagError):
    """A bundle is damaged, too new, hostile, or cannot be written."""


class CollectorError(LlmdiagError):
    """A collector could not look: the only errors a collector may end with."""


class Denied(CollectorError):
    """Permission is missing: ptrace, capability, file mode, ACL."""


class Vanished(CollectorError):
    """The process, thread or file went away while it was read."""


class TimedOut(CollectorError):
    """A tool, server or file did not answer in its budget."""


class Garbled(CollectorError):
    """What was read is not in the format it should have (names artefact and line)."""


class Absent(CollectorError):
    """The source exists but the tool to read it does not (py-spy missing, journalctl without journal)."""


class CannotConnect(CollectorError):
    """A server refused, is unreachable, or speaks another protocol."""
