"""Evidence for a notebook: `diag.open(bundle)["thread_activity"]` is a DataFrame."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from diag import evidence

if TYPE_CHECKING:
    import pandas as pd


class Case:
    """Opened evidence: a mapping from table name to DataFrame."""

    def __init__(self, loaded: evidence.Evidence) -> None:
        self._loaded = loaded

    def __getitem__(self, table: str) -> "pd.DataFrame":
        return self._loaded.frame(table)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._loaded.bases))

    def sql(self, query: str) -> "pd.DataFrame":
        """One SELECT over the evidence -> DataFrame. Raises SqlError."""
        import pandas as pd

        self._loaded.reads(query, "query")
        found = self._loaded.find(query, "query", 1_000_000)
        return pd.DataFrame(found.rows, columns=list(found.columns))


def open_case(*paths: str) -> Case:
    """Bundles, folders or loose files in any mix."""
    return Case(evidence.open_paths(paths))
