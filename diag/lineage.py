"""What a piece of SQL reads, from its syntax tree: base tables, relations named, columns its conditions need, what must have rows.

DuckDB's own `get_table_names` raises on USING, NATURAL, ASOF and PIVOT, so sqlglot does it: all tables minus the
common table expressions that are visible where they are used.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from diag.errors import SqlError

TABLE_FUNCTIONS = frozenset({"unnest", "generate_series", "range", "generateseries"})
OF_ONE_ROW = (exp.Case, exp.Cast, exp.Coalesce, exp.Concat, exp.Connector, exp.Greatest, exp.If, exp.Least, exp.Left, exp.Nullif, exp.Round, exp.TimeToStr)
"""Functions that are no aggregates for certain; of any other it is not known."""
SUBTOTALS = (exp.Cube, exp.GroupingSets, exp.Rollup, exp.Tuple)


@dataclass(frozen=True)
class Reads:
    """Relations that the SQL names (tables, views, derivations) and the columns its conditions mention."""

    relations: frozenset[str]
    columns: frozenset[str]
    needs: frozenset[str]
    """Relations that must have a row each, or the SQL has none. What is hard to tell is left out."""


@lru_cache(maxsize=4096)
def reads(sql: str, where: str = "query") -> Reads:
    """Exactly one SELECT -> what it reads. Raises SqlError naming `where`."""
    nodes = list(_one_select(sql, where).walk())
    relations = {_relation(node, where) for node in nodes if isinstance(node, exp.Table) and not _is_cte(node)}
    joins = [node for node in nodes if isinstance(node, exp.Join)]
    conditions = [node for node in nodes if isinstance(node, exp.Where | exp.Having | exp.Qualify | exp.Filter)]
    conditions += [join.args["on"] for join in joins if join.args.get("on") is not None]
    columns = {column.name.lower() for condition in conditions for column in condition.find_all(exp.Column)}
    columns |= {name.name.lower() for join in joins for name in join.args.get("using") or ()}
    return Reads(frozenset(relations - {""}), frozenset(columns), _needs(nodes[0], {}))


def check_known(sql: str, known: Collection[str], where: str) -> Reads:
    """Like `reads`, and every relation must exist."""
    found = reads(sql, where)
    unknown = sorted(found.relations - set(known))
    if unknown:
        raise SqlError(f"{where}: no such table: {', '.join(unknown)}", hint="llmdiag schema lists the tables")
    return found


def _one_select(sql: str, where: str) -> exp.Query | exp.Pivot:
    try:
        statements = [tree for tree in sqlglot.parse(sql, read="duckdb") if tree is not None]
    except (SqlglotError, RecursionError) as error:
        raise SqlError(f"{where}: not SQL that can be read: {str(error).splitlines()[0]}", hint="one SELECT in DuckDB's dialect") from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query | exp.Pivot):
        raise SqlError(f"{where}: exactly one SELECT is allowed", hint="no other statement and no second one")
    if any(True for _ in statements[0].find_all(exp.Into, exp.Command, exp.Insert, exp.Update, exp.Delete, exp.Create, exp.Drop)):
        raise SqlError(f"{where}: exactly one SELECT is allowed", hint="it may not change anything")
    return statements[0]


def _relation(node: exp.Table, where: str) -> str:
    if isinstance(node.this, exp.Func):
        name = (node.this.name or node.this.key).lower()
        if name not in TABLE_FUNCTIONS and node.this.key not in TABLE_FUNCTIONS:
            raise SqlError(f"{where}: table function {name}() is not allowed", hint=f"allowed: {', '.join(sorted(TABLE_FUNCTIONS))}")
        return ""
    if node.args.get("db") is not None:
        raise SqlError(f"{where}: {node.sql()} is not a table of the evidence", hint="llmdiag schema lists the tables")
    return node.name.lower()


def _is_cte(table: exp.Table) -> bool:
    """Is the name bound by a WITH that is visible here? A plain CTE does not see itself, nor later ones."""
    below: object = table
    above: exp.Expr | None = table.parent
    path = {id(table)}
    while above is not None:
        path.add(id(above))
        scope = above.args.get("with_") or above.args.get("with")
        if isinstance(scope, exp.With) and scope is not below and _bound(table.name, scope, path):
            return True
        if isinstance(above, exp.With) and _bound(table.name, above, path):
            return True
        below, above = above, above.parent
    return False


def _bound(name: str, scope: exp.With, path: set[int]) -> bool:
    for cte in scope.expressions:
        inside = id(cte) in path
        if inside and not scope.recursive:
            return False
        if cte.alias.lower() == name.lower():
            return True
        if inside:
            return False
    return False


def _needs(query: exp.Expr, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """See Reads.needs. `known`: what the WITHs that are visible here need."""
    scope = query.args.get("with_") or query.args.get("with")
    if isinstance(scope, exp.With):
        for cte in scope.expressions:
            known = {**known, cte.alias.lower(): frozenset() if scope.recursive else _needs(cte.this, known)}
    match query:
        case exp.Union():
            return _needs(query.left, known) & _needs(query.right, known)
        case exp.Intersect():
            return _needs(query.left, known) | _needs(query.right, known)
        case exp.Except():
            return _needs(query.left, known)
        case exp.Subquery():
            return _needs(query.this, known)
        case exp.Select() if not _may_sum_up(query):
            return _sources(query, known)
    return frozenset()


def _may_sum_up(select: exp.Select) -> bool:
    """Has it perhaps a row also where nothing is read, like count(*) without GROUP BY?"""
    group = select.args.get("group")
    if group is not None or select.args.get("having") is not None:
        return group is None or not group.expressions or any(isinstance(item, SUBTOTALS) for item in group.expressions)
    functions = (found for item in select.expressions for found in item.find_all(exp.Func) if found.find_ancestor(exp.Select) is select)
    return any(not isinstance(found, OF_ONE_ROW) and not isinstance(found.parent, exp.Window) for found in functions)


def _sources(select: exp.Select, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    first = select.args.get("from_") or select.args.get("from")
    if first is None:
        return frozenset()
    found = _source(first.this, known)
    for join in select.args.get("joins") or ():
        if join.side in ("RIGHT", "FULL") or join.method not in ("", "ASOF", "NATURAL"):
            return frozenset()
        if join.side == "" and join.kind in ("", "INNER", "CROSS", "SEMI"):
            found |= _source(join.this, known)
    return found


def _source(node: exp.Expr, known: Mapping[str, frozenset[str]]) -> frozenset[str]:
    if node.args.get("joins") or node.args.get("pivots"):
        return frozenset()
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Func):
        name = node.name.lower()
        return known.get(name, frozenset({name}))
    return _needs(node, known) if isinstance(node, exp.Subquery) else frozenset()
