"""Damaged files are read as far as they can be; nothing but a line saying so ever comes of them."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from diag.collectors import stacks
from diag.model import Artefact
from diag.parts import spelled_out
from diag.tables import CORE
from tests.parsers import test_faulthandler, test_gdb_bt, test_perf, test_pystack, test_strace
from tests.parsers.test_pyspy import NATIVE, OLD, STOPPED, TREE

JSON = json.dumps([{"pid": 7, "thread_id": 1, "thread_name": "w", "os_thread_id": 9, "active": False, "owns_gil": True, "frames": [
    {"name": "retry", "filename": "/srv/retry.py", "line": 8, "locals": [{"name": "k", "addr": 1, "arg": True, "repr": "\"a:b\""}]}]}], indent=1)
TEXTS = (
    OLD, NATIVE, TREE, STOPPED, JSON, test_faulthandler.DUMP, test_pystack.DUMP, test_gdb_bt.NOISE + test_gdb_bt.NATIVE + test_gdb_bt.PYTHON,
    test_gdb_bt.FULL, test_strace.TRACE, test_strace.SUMMARY, test_strace.ATTACHED, test_perf.REPORT, test_perf.CHILDREN, test_perf.SCRIPT,
)
COLUMNS = {table.name: set(table.column_names) for table in (*CORE, *stacks.TABLES)}


@st.composite
def damaged(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = draw(st.integers(at, min(len(text), at + 60)))
        junk = draw(st.one_of(st.text(max_size=8), st.sampled_from(["9" * 5000, "0x" + "f" * 40, "\n\n", "-1", "[", '"', ": ", " (", ")"])))
        text = text[:at] + junk + text[end:]
    return text


@settings(max_examples=150, deadline=None)
@given(text=damaged(), name=st.sampled_from(["pyspy-7-1.txt", "dump", "strace.123", "pyspy-7-1.json", "99999999999.txt"]))
def test_damaged_files(text: str, name: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    stacks.recognise(name, data)
    for table, row in stacks.parse([Artefact.of_bytes(name, "stacks", data)]):
        for one in spelled_out(row):
            assert set(one) <= COLUMNS[table]
            assert all(-(1 << 63) <= value < 1 << 63 for value in one.values() if isinstance(value, int))


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=400), head=st.sampled_from(['{"artefact":"stacks"', '{"artefact":"stacks-index"', "[", ""]))
def test_artefacts_that_are_none(text: str, head: str) -> None:
    for table, row in stacks.parse([Artefact.of_bytes("stacks/1-00.json", "stacks", (head + text).encode())]):
        assert all(set(one) <= COLUMNS[table] for one in spelled_out(row))
