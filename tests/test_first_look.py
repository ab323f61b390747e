"""What is said of the first read while a window runs."""

from collections.abc import Mapping, Sequence

import pytest

from diag.first_look import sentences

Row = Mapping[str, object]


@pytest.mark.parametrize(("processes", "sockets", "said"), [
    ([], [], []),
    ([{"pid": 1, "role": "other", "state": "S"}], [], ["1 process: other"]),
    (
        [{"pid": 1, "role": "api_server", "state": "S"}, {"pid": 2, "role": "worker", "state": "T"}, {"pid": 3, "role": "worker", "state": "Z"}],
        [{"state": "LISTEN", "lport": 8000, "recv_q": 0}, {"state": "ESTABLISHED", "lport": 8000, "recv_q": 9}],
        [
            "3 processes: 2 worker, api_server", "pid 2 (worker) is stopped (state T)", "pid 3 (worker) has ended and was not reaped (zombie)",
            "listens on 8000",
        ],
    ),
    ([], [{"state": "LISTEN", "lport": 8000, "recv_q": 3}], ["listens on 8000", "3 connections to port 8000 wait to be accepted"]),
    ([], [{"state": "LISTEN", "lport": 8000, "recv_q": 1}], ["listens on 8000", "1 connection to port 8000 waits to be accepted"]),
    ([], [{"state": "LISTEN", "lport": None, "recv_q": None}], []),
])
def test_sentences(processes: Sequence[Row], sockets: Sequence[Row], said: list[str]) -> None:
    assert sentences(lambda table: {"processes": processes, "sockets": sockets}[table]) == said


def test_many_stopped_processes_are_counted() -> None:
    rows = [{"pid": number, "role": "worker", "state": "D"} for number in range(9)]
    assert sentences(lambda table: rows if table == "processes" else [])[-1] == "and 4 more processes are stopped, dead or in the kernel"
