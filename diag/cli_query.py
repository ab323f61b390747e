"""`llmdiag query` and `llmdiag schema`: SQL over the evidence, the data dictionary, and the JSON Schemas of what commands print."""

import json
from pathlib import Path
from typing import Any

import click

from diag import terminal
from diag.cli_diagnosis import DATE, EVENTS_MAP, PATHS, ZONE, dates_of
from diag.errors import BadInput


@click.command()
@PATHS
@click.argument("sql")
@terminal.format_option("text", "csv", "parquet", "json")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="File to write (needed for parquet).")
@DATE
@ZONE
@EVENTS_MAP
def query(
    paths: tuple[Path, ...], sql: str, form: str, output: Path | None, date: str | None, tz: str | None, events_map: str | None
) -> None:
    """One SELECT over the evidence tables (at most 1,000 rows); `schema` lists the tables."""
    from diag import jail

    if form == "parquet" and output is None:
        raise BadInput("parquet is a binary format", hint="name a file with -o rows.parquet")
    with terminal.progress("reading"):
        answer = jail.query(paths, sql, dates_of(date, tz, events_map))
    if answer.more:
        terminal.note(f"{jail.MAX_ROWS} rows and more; narrow the query to see the rest")
    if form == "text":
        terminal.rows(answer.columns, answer.rows, null="NULL", output=output)
        if not answer.rows and output is None:
            terminal.out_line("0 rows")
        return
    import pandas as pd

    frame = pd.DataFrame(answer.rows, columns=answer.columns, dtype=object)  # otherwise a NULL makes 1 into 1.0
    match form:
        case "parquet":
            _save_parquet(frame, output)
        case "csv":
            terminal.emit(frame.to_csv(index=False), output)
        case _:
            terminal.emit(json.dumps({"schema": "llmdiag.rows/1", "columns": answer.columns, "rows": answer.rows, "more": answer.more}, default=str) + "\n", output)


@click.command()
@click.argument("table", required=False)
@click.option("--json", "document", is_flag=False, flag_value="", metavar="NAME", help="Instead: the JSON Schema of a document that commands print; without NAME, which there are.")
@click.option("--tables", is_flag=True, help="Only names and what each is for.")
@terminal.format_option("text", "json")
def schema(table: str | None, document: str | None, tables: bool, form: str) -> None:
    """The data dictionary: every evidence table, view and derivation with its columns and units; --tables: only their names."""
    if document is not None:
        _json_schema(document)
        return
    from diag import evidence

    extras = evidence.Extras()
    loaded = evidence.load([], evidence.collectors_of(extras), extras)
    abouts = _abouts()
    if table is not None and table not in loaded.columns:
        raise BadInput(f"no table {table!r}", hint="llmdiag schema lists them")
    names = [table] if table is not None else sorted(loaded.columns)
    if form == "json":
        terminal.out(json.dumps({"schema": "llmdiag.tables_of_evidence/1", "tables": [
            {"name": name, "about": abouts.get(name, ""), "rests_on": sorted(loaded.bases[name]),
             "columns": [{"name": c.name, "type": c.type, "about": c.about, "null": c.null or "unknown"} for c in loaded.columns[name].values()]}
            for name in names]}) + "\n")
        return
    if tables:
        terminal.rows(["table", "describes"], [{"table": name, "describes": abouts.get(name, "")} for name in names])
        return
    console = terminal.console()
    for name in names:
        console.print(f"[bold]{name}[/bold]  {terminal.markup(abouts.get(name, ''))}")
        for column in loaded.columns[name].values():
            null = f" [NULL = {column.null}]" if column.null else ""
            console.print(f"  {column.name:<18}{column.type:<11}{terminal.markup(column.about + null)}", highlight=False)


def _json_schema(name: str) -> None:
    from diag.report import schemas

    if not name:
        terminal.rows(["name", "describes"], [{"name": each, "describes": (schemas.of(each) or {}).get("description")} for each in schemas.names()])
        return
    found = schemas.of(name)
    if found is None:
        raise BadInput(f"no document {name!r}", hint="llmdiag schema --json lists them")
    terminal.out(json.dumps(found, indent=1) + "\n")


def _abouts() -> dict[str, str]:
    from diag import evidence, tables

    extras = evidence.Extras()
    declared = tables.merged(t for c in evidence.collectors_of(extras) for t in c.TABLES)
    derived = {t.name: t.about for module in evidence.derivations_of(extras).values() for t in module.GIVES}
    return {name: t.about for name, t in declared.items()} | derived | {name: v.about for name, v in evidence.views_of(extras).items()}


def _save_parquet(frame: Any, output: Path | None) -> None:
    import duckdb

    if output is None:
        return
    connection = duckdb.connect(":memory:")
    connection.register("rows", frame)
    try:
        with terminal.whole(output) as partial:
            connection.execute(f"COPY rows TO '{str(partial).replace(chr(39), chr(39) * 2)}' (FORMAT parquet)")
    except (duckdb.Error, OSError) as error:
        raise BadInput(f"cannot write {output}: {error}", hint="name a writable file with -o") from error
