"""llmdiag: evidence, root cause and a reversible fix for LLM inference servers that play dead."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diag.notebook import Case

__version__ = "0.1.0"

__all__ = ["__version__", "open"]


def open(*paths: str) -> "Case":
    """Open bundles or loose evidence for a notebook: `diag.open(bundle)["thread_activity"]` is a DataFrame."""
    from diag.notebook import open_case

    return open_case(*paths)
