"""By name: the first way that fits decides; several are listed, secrets masked; llmdiag never finds itself."""

import os
import sys

import pytest

from diag.errors import BadInput
from diag.services import by_name
from tests.services.people import listening, started

RESTS = "import time; print(1, flush=True); time.sleep(600)"


def test_a_title_is_found_whatever_its_case() -> None:
    with listening("Zugvogel-Engine") as person:
        found = by_name.find("zugvogel-engine")
    assert found.pids == (person.pid,)
    assert found.says.startswith("is called 'zugvogel-engine': pid")


def test_the_beginning_of_a_program_is_enough_and_more_than_a_word_of_its_arguments() -> None:
    with started(["zugvogel.entrypoints.api_server", "-c", RESTS], sys.executable) as server, started([sys.executable, "-c", RESTS, "--router-of", "zugvogel"]):
        assert by_name.find("zugvogel").pids == (server.pid,)


def test_a_word_of_the_command_line_is_found() -> None:
    with started([sys.executable, "-c", RESTS, "/models/zugvogel-7b"]) as person:
        found = by_name.find("zugvogel-7b")
    assert found.pids == (person.pid,)
    assert found.says.startswith("has in its command line")


def test_several_are_listed_and_no_secret_with_them() -> None:
    with (
        started(["zugvogel-serve", "-c", RESTS, "--api-key", "sk-canary-12345678901234567890"], sys.executable) as one,
        started(["zugvogel-serve", "-c", RESTS], sys.executable) as other, pytest.raises(BadInput) as caught,
    ):
        by_name.find("zugvogel-serve")
    assert "2 services" in caught.value.message
    assert f"pid {one.pid}, " in caught.value.hint
    assert f"pid {other.pid}, " in caught.value.hint
    assert "sk-canary" not in str(caught.value)


def test_another_llmdiag_that_asks_for_it_is_not_it() -> None:
    with (
        started([sys.executable, "-c", RESTS, "/models/zugvogel-8b"]) as person,
        started(["llmdiag", "-c", RESTS, "--name", "zugvogel-8b"], sys.executable),
    ):
        assert by_name.find("zugvogel-8b").pids == (person.pid,)


def test_nobody_of_that_name() -> None:
    name = f"nobody-is-called-so-{os.getpid()}"  # it is on no command line: this process was started before
    with pytest.raises(BadInput) as caught:
        by_name.find(name)
    assert name in caught.value.message
    assert "ps -ef" in caught.value.hint
    with pytest.raises(BadInput):
        by_name.find("  ")
