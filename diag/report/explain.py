"""`analyze --explain RULE`: every signal of one rule, whether it matched or not, with its nearest miss."""

from rich.text import Text

from diag.model import Diagnosis, SignalState
from diag.report import words


def facts(diagnosis: Diagnosis, rule: str) -> dict[str, object] | None:
    """One rule's signals as data; None when there is no such rule."""
    result = next((r for r in (*diagnosis.findings, *diagnosis.inconclusive, *diagnosis.ruled_out) if r.rule == rule), None)
    if result is None:
        folded_under = next((cause for cause, names in diagnosis.folded.items() if rule in names), None)
        return None if folded_under is None else {"rule": rule, "verdict": "matched", "folded_under": folded_under, "signals": []}
    return {
        "rule": rule, "title": result.title, "verdict": result.verdict.value,
        "signals": [
            {
                "signal": s.id, "role": s.role, "state": s.state.value, "says": list(s.says), "near": s.near,
                "tables": list(s.unseen_tables), "because": s.because, "rows": words.plain_rows(s.rows[:20]),
                "collect": [words.hint_for(diagnosis, table) for table in s.unseen_tables],
            }
            for s in result.signals
        ],
    }


def render(found: dict[str, object]) -> Text:
    """The same for a terminal."""
    text = Text()
    text.append(f"{str(found['verdict']).upper()} {found['rule']}\n", style=words.verdict_colour(str(found["verdict"])))
    if "folded_under" in found:
        text.append(f"  explained by {found['folded_under']}\n")
    for signal in found["signals"]:  # type: ignore[attr-defined]
        mark = {SignalState.HELD: "+", SignalState.EMPTY: "-", SignalState.UNSEEN: "?"}[SignalState(signal["state"])]
        text.append(f"[{mark}] {signal['signal']} ({signal['role']}): {signal['state']}\n")
        for sentence in signal["says"]:
            text.append(f"      {words.inert(sentence)}\n")
        if signal["near"]:
            text.append(f"      nearest: {words.inert(signal['near'])}\n")
        if signal["tables"]:
            text.append(f"      not collected: {', '.join(signal['tables'])}{' (' + words.inert(signal['because']) + ')' if signal['because'] else ''}\n")
            text.append(f"      {'; '.join(dict.fromkeys(signal['collect']))}\n", style="cyan")
    return text
