"""Sections that are pictures: what they hold, from rows of the evidence tables."""

import datetime
from collections.abc import Sequence

import pytest

from diag.evidence import Evidence
from diag.model import Section
from diag.plots import Bars, Branch, Grid, Listing, Plot, Timeline, Tree
from diag.report import heatmap, recovery, sections
from diag.report.sections import cache_families, folded_stacks, kv_map, recovery_stages, thread_heat, timeline
from tests.conftest import MakeCase

T0 = datetime.datetime(2026, 11, 30, 2, 41, 0)
START = "2026-11-30 01:00:00"


def at(seconds: float) -> str:
    return str(T0 + datetime.timedelta(seconds=seconds))


def made(module: object, evidence: Evidence) -> list[Section]:
    return list(sections._of(module, evidence))  # type: ignore[arg-type]


def plots(found: Sequence[Section]) -> list[Plot]:
    return [part.plot for section in found for part in section.parts if part.plot is not None]


def frames(tid: int, funcs: Sequence[str], *samples: int, pid: int = 7, thread: str = "", **facts: object) -> list[dict[str, object]]:
    """One stack, leaf first, in some samples."""
    return [
        {
            "sample": sample, "ts": at(sample), "pid": pid, "started_at": START, "tid": tid, "thread": thread or f"T{tid}", "active": False, "owns_gil": False, "depth": depth,
            "func": func, "qualname": func, "file": f"/srv/app/{func}.py", "line": 10 + sample, "native": False, "tool": "py-spy", "whole": True, **facts,
        }
        for sample in samples for depth, func in enumerate(funcs)
    ]  # fmt: skip


def thread(tid: int, *reads: tuple[int, float, float], pid: int = 7, name: str = "python", state: str = "S") -> list[dict[str, object]]:
    """(read, seconds on a CPU, seconds waiting for one)"""
    return [
        {"read": read, "ts": at(5 * read), "pid": pid, "started_at": START, "tid": tid, "name": name, "state": state, "user_s": run, "sys_s": 0.0, "run_s": run, "runq_s": wait,
         "vol_switches": 1, "invol_switches": 0}
        for read, run, wait in reads
    ]  # fmt: skip


def test_the_timeline_has_a_lane_for_each_kind_and_host(make_case: MakeCase) -> None:
    events = [
        {"ts": at(0), "origin": "journald", "kind": "killing", "unit": "vllm", "initiator": "watchdog", "detail": "kill -9", "host": "a"},
        {"ts": at(3), "origin": "journald", "kind": "start", "unit": "vllm", "detail": "started", "host": "b"},
        {"ts": None, "origin": "journald", "kind": "start", "unit": "vllm", "detail": "no time", "host": "b"},
    ]
    probes = [{"read": n, "ts": at(n), "target": "x", "url": "http://x/health", "outcome": "answer" if n else "timeout", "status": 200 if n else None, "seconds": 2.0, "host": "a"} for n in range(2)]
    logs = [
        {"ts": at(1), "file": "s.log", "line": 1, "level": "INFO", "message": "Application startup complete", "event": "ready", "host": "a"},
        {"ts": at(2), "file": "s.log", "line": 2, "level": "INFO", "message": "Avg prompt throughput", "event": "engine_stats", "host": "a"},
        {"ts": at(4), "file": "s.log", "line": 3, "level": "ERROR", "message": "it broke", "event": None, "host": "a"},
    ]
    requests = [{"ts": at(6.0 + n / 10), "method": "POST", "path": "/v1", "status": 503, "host": "a"} for n in range(4)]
    (found,) = made(timeline, make_case({"host_events": events, "probes": probes, "log_events": logs, "http_events": requests}))
    (plot,) = plots([found])
    assert isinstance(plot, Timeline) and found.in_words() == ()
    lanes = {lane.name: [(round(mark.at_s - T0.replace(tzinfo=datetime.UTC).timestamp(), 1), mark.tone, mark.text) for mark in lane.marks] for lane in plot.lanes}
    assert lanes["Journals, a"] == [(0.0, "bad", "vllm: killing by watchdog: kill -9")]
    assert lanes["Journals, b"] == [(3.0, "calm", "vllm: start: started")]
    assert lanes["Probes, a"] == [(0.0, "bad", "http://x/health: no answer: timeout after 2.0 s"), (1.0, "good", "http://x/health: HTTP 200 after 2.0 s")]
    assert lanes["Engine logs, a"] == [(1.0, "good", "ready: Application startup complete"), (4.0, "bad", "ERROR: it broke")]
    assert lanes["Failed requests, a"] == [(6.0, "bad", "4 requests failed with HTTP 503 or more")]


def test_of_very_many_marks_the_worst_are_kept() -> None:
    found = [{"ts": T0 + datetime.timedelta(seconds=n), "host": "a", "event": "fatal" if n == 700 else "compile", "level": "INFO", "message": f"m{n}", "source": f"s:{n}"} for n in range(900)]
    (section,) = timeline.sections({"logs": found})
    (plot,) = plots([section])
    assert isinstance(plot, Timeline)
    (lane,) = plot.lanes
    assert len(lane.marks) == timeline.MAX_MARKS and lane.left_out == 500
    assert [mark.text for mark in lane.marks if mark.tone == "bad"] == ["fatal: m700"]


def test_the_hottest_thread_comes_first_and_those_alike_are_one_row(make_case: MakeCase) -> None:
    stacks = [*frames(1, ["spin"], 0, 1, active=True, thread="busy"), *frames(2, ["step"], 1, owns_gil=True)]
    for tid in range(10, 30):
        stacks += frames(tid, ["wait"], 0, 1, thread=f"pool-{tid}")
    threads = [*thread(1, (0, 0.0, 0.0), (1, 4.0, 0.9)), *thread(2, (0, 1.0, 0.0), (1, 1.2, 0.0)), *(row for tid in range(10, 30) for row in thread(tid, (0, 1.0, 0.0), (1, 1.0, 0.0)))]
    (found,) = made(thread_heat, make_case({"stack_frames": stacks, "threads": threads}))
    (plot,) = plots([found])
    assert isinstance(plot, Grid) and found.title == "What 22 threads did"
    assert plot.columns == ("s0", "s1", "class", "CPU %", "wants CPU %")
    signs = {line.name: [None if cell is None else cell.sign for cell in line.cells] for line in plot.lines}
    assert signs == {
        "pid 7: busy 1": ["●", "●", "spin", "80", "98"], "pid 7: T2 2": [None, "G", "parked", "4", "4"], "pid 7: 20 threads (pool-10, pool-11, …)": ["·", "·", "parked", "0", "0"],
    }, signs  # fmt: skip
    assert plot.lines[0].name == "pid 7: busy 1"
    assert {cell.sign for line in plot.lines for cell in line.cells if cell is not None and not cell.sign.isdecimal()} <= {cell.sign for cell in plot.legend}


def test_further_reads_of_the_counters_are_columns_too(make_case: MakeCase) -> None:
    rows = [*thread(1, (0, 0.0, 0.0), (1, 5.0, 0.0), (2, 5.5, 0.0)), *thread(2, (0, 9.0, 0.0), (1, 9.0, 0.0), (2, 9.05, 0.0))]
    (found,) = made(thread_heat, make_case({"threads": rows}))
    (plot,) = plots([found])
    assert isinstance(plot, Grid) and plot.columns[:2] == ("r1", "r2")
    signs = {line.name: [cell and cell.sign for cell in line.cells[:2]] for line in plot.lines}
    assert signs == {"pid 7: python 1": ["100", "10"], "pid 7: python 2": ["0", "1"]}, signs


def test_threads_of_two_hosts_with_equal_numbers_are_two(make_case: MakeCase) -> None:
    both = [{**row, "host": host} for host in ("a", "b") for row in thread(7, (0, 0.0, 0.0), (1, 0.0, 0.0))]
    (found,) = made(thread_heat, make_case({"threads": both}))
    (plot,) = plots([found])
    assert isinstance(plot, Grid) and [line.name.split()[0] for line in plot.lines] == ["a", "b"]


def test_stacks_fold_into_a_prefix_tree(make_case: MakeCase) -> None:
    pool = [row for tid in range(10, 14) for row in frames(tid, ["wait", "get", "worker", "boot"], 0, 1, thread=f"pool-{tid}")]
    torn = frames(99, ["half"], 0, whole=False)
    stacks = [*pool, *frames(20, ["poll", "worker", "boot"], 0), *frames(20, ["read", "worker", "boot"], 1), *frames(1, ["main"], 0, 1, pid=8), *torn]
    (found,) = made(folded_stacks, make_case({"stack_frames": stacks}))
    (plot,) = plots([found])
    assert isinstance(plot, Tree) and found.title == "Stacks of 6 threads in 2 samples, folded"
    top, main = plot.branches
    assert (top.frames, top.weight) == (("boot (app/boot.py)", "worker (app/worker.py)"), 5)
    assert [(branch.frames, branch.weight) for branch in top.branches] == [
        (("get (app/get.py)", "wait (app/wait.py)"), 4), (("poll (app/poll.py)",), 1), (("read (app/read.py)",), 1),
    ]  # fmt: skip
    assert top.branches[0].note == "pool-10, pool-11, pool-12, …, in 8 stacks" and top.note == ""
    assert (main.frames, main.note) == (("main (app/main.py)",), "T1, in 2 stacks")


def test_a_tree_that_grows_without_end_is_cut() -> None:
    rows = [
        {"bundle": "b", "host": "h", "pid": 1, "tid": tid, "times": 1, "thread": None, "funcs": ["top", *(f"f{tid % 50}-{depth}" for depth in range(30)), f"leaf{tid}"], "files": [""] * 32}
        for tid in range(2000)
    ]
    (section,) = folded_stacks.sections({"stacks": rows, "places": [], "samples": [{"of": 1}]})
    (plot,) = plots([section])
    assert isinstance(plot, Tree)

    def count(branches: Sequence[Branch]) -> int:
        return sum(1 + count(branch.branches) for branch in branches)

    assert count(plot.branches) < 2 * folded_stacks.MAX_NODES, count(plot.branches)
    assert plot.branches[0].branches[-1].frames == ("and 38 further ways",) and plot.branches[0].branches[-1].weight == 38 * 40


def test_families_and_their_ghosts(make_case: MakeCase) -> None:
    def key(name: str, verdict: str, family: str = "emb:<hex>", **facts: object) -> dict[str, object]:
        return {"target": "redis://x", "db": 0, "key": name, "key_hex": "ff", "family": family, "bytes": 10, "codec": "npy", "verdict": verdict, "reasons": "placeholder" if verdict != "ok" else None, **facts}

    keys = [key("emb:1", "ghost"), key("emb:2", "ok"), key("emb:3", "soft"), key("lock:1", "ok", "lock:<n>"), key(None, "ghost", key_hex="c3", bytes=None)]  # type: ignore[arg-type]
    (found,) = made(cache_families, make_case({"cache_keys": keys}))
    bars, listing = plots([found])
    assert found.title == "Cached values: 2 ghosts among 5 keys that were judged"
    assert isinstance(bars, Bars) and isinstance(listing, Listing)
    assert [(bar.name, bar.value, bar.part, bar.tone, bar.text) for bar in bars.bars] == [
        ("emb:<hex>", 4, 3, "bad", "2 ghosts, 1 soft of 4 keys, 30 bytes, npy"), ("lock:<n>", 1, None, "calm", "1 key, 10 bytes, npy"),
    ]  # fmt: skip
    assert listing.rows == (("0xc3", "0", "unknown", "placeholder", "ghost"), ("emb:1", "0", "10", "placeholder", "ghost"), ("emb:3", "0", "10", "placeholder", "soft"))


def test_a_map_of_a_cache_is_a_picture_too() -> None:
    cells = [
        {"good_dump": "g", "bad_dump": "b", "layer": layer, "block": block, "worst": heatmap.WORST.index("aliased" if (layer, block) == (1, 2) else "same"), "rel_l2": 1.25 if (layer, block) == (1, 2) else 0.0,
         "cosine": 0.01}
        for layer in range(2) for block in range(3)
    ]  # fmt: skip
    (section,) = kv_map.sections({"cells": cells})
    (plot,) = plots([section])
    assert isinstance(plot, Grid) and plot.columns == ("0", "1", "2")
    assert [[cell and (cell.sign, cell.tone) for cell in line.cells] for line in plot.lines] == [[(".", "good")] * 3, [(".", "good"), (".", "good"), ("a", "bad")]]
    assert [line.note for line in plot.lines] == ["", "cos 0.01 rel 1.25"] and [cell.sign for cell in plot.legend] == [".", "a"]
    assert plot.lines[1].cells[2] is not None and plot.lines[1].cells[2].about == "block 2, another request's: cosine 0.01, relative L2 1.25"


@pytest.mark.parametrize("wide", [4096])
def test_a_picture_of_a_wide_cache_has_bounds(wide: int) -> None:
    cells = {(layer, block): heatmap.Cell("nan" if block == 3000 else "same", 0.0, 1.0) for layer in range(64) for block in range(wide)}
    plot = heatmap.plot(cells)
    assert len(plot.columns) <= heatmap.MAX_COLUMNS and len(plot.lines) <= heatmap.MAX_ROWS
    assert "~" in plot.columns and any(cell is not None and cell.sign == "N" for line in plot.lines for cell in line.cells)


def test_the_bars_of_a_recovery_are_those_of_the_text(make_case: MakeCase) -> None:
    log = [
        ("2026-11-30 02:00:00", "startup", "vLLM API server version 0.12.0"), ("2026-11-30 02:00:20", "weights_loading", "Starting to load model x..."),
        ("2026-11-30 02:02:00", "weights_loaded", "Loading weights took 98.50 seconds"), ("2026-11-30 02:03:00", "ready", "Application startup complete."),
    ]  # fmt: skip
    rows = [{"ts": ts, "file": "s.log", "line": n, "level": "INFO", "message": message, "event": event, "dated": True, "logger": "x"} for n, (ts, event, message) in enumerate(log, 1)]
    evidence = make_case({"log_events": rows}, collected=["log_events", "log_files"])
    (found,) = made(recovery_stages, evidence)
    (plot,) = plots([found])
    assert isinstance(plot, Bars)
    assert found.in_words() == (), "a lone start that went well is no matter for a text"
    told = recovery.told(*(evidence.rows(sql, name, 100)[0] for name, sql in recovery_stages.READS.items()))
    (drawn,) = [part.drawn for part in told if part.drawn]
    assert [bar.name for bar in plot.bars] == [" ".join(line.split("  ")[1].split()) for line in drawn], drawn
    longest = [bar for bar in plot.bars if bar.tone == "bad"]
    assert [(bar.name, bar.value) for bar in longest] == [("weights", 98.5)] and longest[0].text == "98.5 s, the longest"


def test_the_report_of_a_text_is_not_longer_for_pictures(make_case: MakeCase) -> None:
    evidence = make_case({"stack_frames": frames(1, ["main"], 0), "threads": thread(1, (0, 0.0, 0.0))})
    assert [section for section in sections.of(evidence) if section.in_words()] == []
