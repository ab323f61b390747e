"""What `llmdiag repro-prefix` saw: the arms, the first wrong answer beside the good one, whether it stays, and what heals it."""

from collections.abc import Iterator, Mapping, Sequence

from diag.model import Part, Section
from diag.report.answers import beside, grep
from diag.report.layout import columns
from diag.report.sections import Rows

Row = Mapping[str, object]

ORDER = 10
READS = {
    "runs": r"SELECT *, regexp_replace(source, '#verdict$', '') AS file FROM prefix_runs ORDER BY started, source",
    "arms": r"""
SELECT regexp_replace(source, '#trials\[\d+\]$', '') AS file, bundle, arm, count(*) AS requests, count(CASE WHEN kind = 'reask' THEN 1 END) AS reasks,
  count(CASE WHEN kind = 'reask' AND hit THEN 1 END) AS hits, count(CASE WHEN kind = 'reask' THEN hit END) AS told,
  count(CASE WHEN reproduced THEN 1 END) AS wrong, count(CASE WHEN NOT reproduced THEN 1 END) AS noise,
  min(CASE WHEN reproduced THEN ordinal END) AS first, min_by(answer_class, CASE WHEN reproduced THEN ordinal END) AS class
FROM prefix_trials GROUP BY ALL""",
    "trials": r"""
SELECT *, regexp_replace(source, '#trials\[\d+\]$', '') AS file FROM prefix_trials WHERE kind <> 'variant' OR reproduced IS NOT NULL ORDER BY ts, ordinal""",
    "prompts": r"SELECT *, regexp_replace(source, '#prompts\[\d+\]$', '') AS file FROM prefix_prompts",
}
ARMS = {
    "baseline": "what is right, with the cache bypassed",
    "control": "only the final question changes, so that no new blocks fill the cache",
    "pressure": "new blocks fill the cache and evict old ones",
}
COLUMNS = ("arm", "requests", "asked again", "cache hits", "wrong", "noise", "first wrong")
CLASSES = {
    "empty": "empty", "cut-short": "cut short", "echo": "an echo of the prompt", "garbled": "garbled", "different": "another one than the good one",
}  # fmt: skip
NOTE = (
    "Asked again: the failing prompts as they stand in the file. Cache hits: those of them that used cached blocks. Wrong: so again when repeated "
    "at once, and right with the cache bypassed. Noise: odd answers of which that is not true."
)
VERDICTS = {
    "reproduced": "REPRODUCED", "no-failure": "NO FAILURE, though the cache was put to the test", "not-exercised": "NOT EXERCISED: that nothing failed means nothing",
    "endpoint-dead": "THE ENDPOINT DIED during the experiment",
}  # fmt: skip
HEADLINES = {
    ("no-failure", True): "the prefix cache experiment found no failure",
    ("not-exercised", False): "nothing found, but the experiment did not test the prefix cache",
}  # fmt: skip
"""Verdict and whether the cache was put to the test -> the first line of a report without a finding."""
MAX_RUNS = 4
NOT_KEPT = "(not kept: the experiment was run with --no-answers)"


def sections(rows: Mapping[str, Rows]) -> Iterator[Section]:
    """One for each experiment."""
    for run in rows["runs"][:MAX_RUNS]:
        here = {name: [row for row in found if (row["file"], row["bundle"]) == (run["file"], run["bundle"])] for name, found in rows.items()}
        yield Section(f"Experiment with the prefix cache of {run['url']}", tuple(_parts(run, here)), HEADLINES.get((str(run["verdict"]), bool(run["exercised"])), ""))


def _parts(run: Row, here: Mapping[str, Rows]) -> Iterator[Part]:
    seconds = run["seconds"]
    took = f" in {seconds:.0f} s" if isinstance(seconds, int | float) else ""
    yield Part(f"{VERDICTS.get(str(run['verdict']), str(run['verdict']))} (model {run['model']}, {run['requests']} requests{took}).")
    first = next((row for row in here["trials"] if row["reproduced"]), None)
    told = str(run["because"] or "") if first is None else ""
    if told:
        yield Part(f"{told[:1].upper()}{told[1:]}.")
    yield Part(drawn=tuple(columns(COLUMNS, _arms(here["arms"]))))
    yield Part(f"{'; '.join(f'{arm}: {what}' for arm, what in ARMS.items() if any(row['arm'] == arm for row in here['arms']))}.")
    yield Part(NOTE)
    if first is not None:
        yield from _failure(first, here)
    if not told or run["verdict"] == "endpoint-dead":  # else the reasons of the verdict say it
        yield Part(_exercised(run))


def _arms(arms: Rows) -> list[list[str]]:
    order = list(ARMS)
    return [
        [str(row["arm"]), str(row["requests"]), str(row["reasks"]), str(row["hits"]) if row["told"] or not row["reasks"] else "unknown", str(row["wrong"]),
         str(row["noise"]), "-" if row["first"] is None else f"request {row['first']}: {row['class']}"]
        for row in sorted(arms, key=lambda row: order.index(str(row["arm"])) if row["arm"] in order else len(order))
    ]  # fmt: skip


def _failure(first: Row, here: Mapping[str, Rows]) -> Iterator[Part]:
    """The first wrong answer: which, what it says, does it stay, what heals it, and where the engine's log has it."""
    prompt = next((row for row in here["prompts"] if row["prompt"] == first["prompt"]), None)
    what = f"prompt {first['prompt']}" + (f" (line {prompt['line']})" if prompt is not None and prompt["line"] is not None else "")
    what = what if first["variant"] is None else f"variant {first['variant']} of {what}"
    cached = "" if first["cached_tokens"] is None else f"; {first['cached_tokens']} of {_or_unknown(first['prompt_tokens'])} tokens of it came from the cache"
    yield Part(f"First wrong answer: request {first['ordinal']} of the {first['arm']} arm, {what}: {CLASSES.get(str(first['answer_class']), first['answer_class'])}{cached}.")
    good = None if prompt is None or first["variant"] is not None else prompt["good"]
    bad = "" if first["answer_class"] == "empty" else first["excerpt"]
    if good is None and bad is None:
        yield Part(NOT_KEPT, "answers")
    else:
        for label, text in zip(("good", "bad"), beside(None if good is None else str(good), None if bad is None else str(bad)), strict=True):
            yield from [] if text is None else [Part(text, label)]
    yield Part(_stays(first, here["trials"]))
    past = [row for row in here["trials"] if _is_same(row, first) and row["bypass"] and not row["suspicious"] and row["answer_class"] != "error"]
    yield Part(f"Healed: with the cache bypassed the same question was right, {_times(len(past))}; so neither the model nor the prompt is at fault.")
    if first["request"] is not None:
        yield Part(f"In the engine's log it is request {first['request']}:", run=grep(first["request"], first["sent"]))


def _is_same(row: Row, first: Row) -> bool:
    return (row["prompt"], row["variant"]) == (first["prompt"], first["variant"])


def _stays(first: Row, trials: Rows) -> str:
    """Asked again at once, and later with other requests between."""
    at_once = [row for row in trials if row["kind"] == "repeat" and row["answer_class"] != "error"]
    later = [
        row for row in trials
        if row["kind"] == "reask" and row["prompt"] == first["prompt"] and row["arm"] == first["arm"] and _int(row["ordinal"]) > _int(first["ordinal"])
        and row["answer_class"] != "error"
    ]  # fmt: skip
    told = [f"{when} it was wrong {_of(found)} times" for found, when in ((at_once, "repeated at once"), (later, "asked later, with other requests between,")) if found]
    if not told:
        return "Whether it sticks is not known: it was not asked again after that."
    wrong = sum(bool(row["suspicious"]) for row in (*at_once, *later))
    return f"{'It sticks' if wrong else 'It does not stick'}: {'; '.join(told)}."


def _of(found: Sequence[Row]) -> str:
    return f"{sum(bool(row['suspicious']) for row in found)} of {len(found)}"


def _exercised(run: Row) -> str:
    full = f"seen by {run['full_by']}" if run["full_by"] is not None else "nothing shows that it was ever full"
    if run["exercised"]:
        return f"The hit path was exercised: cached blocks were used after the cache had been full ({full})."
    return f"The hit path was NOT shown to be exercised in a full cache ({full}): that other prompts did not fail is no all-clear."


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)


def _int(value: object) -> int:
    return int(value)  # type: ignore[call-overload, no-any-return]
