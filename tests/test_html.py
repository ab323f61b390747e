"""The HTML report as text: one file, what the evidence holds is nothing but text in it, every sentence leads to its row and raw line."""

import base64
import hashlib
import html.parser
import re
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

from diag import analysis, rawlines, rules
from diag.cli_diagnosis import page
from diag.model import Artefact, Diagnosis, Part, Section
from diag.plots import Bar, Bars, Branch, Cell, Grid, Lane, Line, Listing, Mark, Timeline, Tree
from diag.rawlines import Place
from diag.report import html as html_report
from diag.report import inert, words
from diag.report.html import runbook, timeline
from diag.sources import Source
from tests.conftest import SAMPLES
from tests.live.run import llmdiag
from tests.report_cases import CASES, CONFIRMED_CASE, HOSTILE, MONSTERS, spoiled

RULES = rules.load(rules.shipped())
INCIDENT = SAMPLES / "ghost-key-retry-loop" / "incident.zip"
EVERYTHING = {**CASES, **MONSTERS}
VOID = {"meta", "br"}
TAGS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "p", "h1", "h2", "h3", "h4", "span", "dl", "div", "dt", "dd", "nav", "ul", "ol", "li", "main", "article",
    "section", "code", "pre", "details", "summary", "footer", "script", "strong", "em", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "figcaption", "svg",
    "desc", "rect", "line", "path", "text", "br",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "aria-label", "aria-labelledby", "aria-hidden", "tabindex", "role", "scope", "title", "open",
    "viewbox", "preserveaspectratio", "x", "y", "x1", "x2", "y1", "y2", "d", "width", "height", "text-anchor", "start",
}  # fmt: skip


@pytest.fixture(scope="module")
def incident() -> Diagnosis:
    (found,) = analysis.analyse([INCIDENT], RULES)
    return found


@dataclass
class Read(html.parser.HTMLParser):
    """A page taken apart by another hand: tags, attributes, and what a reader sees below each id."""

    tags: set[str] = field(default_factory=set)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    text: str = ""
    below: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        name = dict(attrs).get("id")
        if name is not None:
            assert name not in self.below, f"two elements are called {name}"
            self.below[name] = ""
        if tag not in VOID:
            self._open.append((tag, name))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1][0] == tag, f"</{tag}> ends {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if not any(tag in ("style", "script") for tag, _ in self._open):
            self.text += data
            for _, name in self._open:
                if name is not None:
                    self.below[name] += data


def read(shown: str) -> Read:
    found = Read()
    found.feed(shown)
    found.close()
    assert not found._open, f"left open: {found._open}"
    return found


def flat(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", EVERYTHING)
def test_nothing_of_the_evidence_is_markup(name: str) -> None:
    shown = html_report.render([EVERYTHING[name]])
    found = read(shown)
    assert found.tags <= TAGS, found.tags - TAGS
    assert {attribute for _, attribute, _ in found.attributes} <= ATTRIBUTES, sorted({item[1] for item in found.attributes} - ATTRIBUTES)
    assert all(value.startswith("#") and value[1:] in found.below for _, attribute, value in found.attributes if attribute == "href"), "a link leads out of the page or nowhere"
    assert found.tags.isdisjoint({"img", "iframe", "form", "object", "embed", "base", "link"})
    assert all(char.isprintable() or char == "\n" for char in shown), sorted({hex(ord(char)) for char in shown if not char.isprintable()})


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_first_line_is_the_heading_and_everything_found_is_told(name: str) -> None:
    diagnosis = EVERYTHING[name]
    found = read(html_report.render([diagnosis]))
    lead, subject = words.headline(diagnosis)
    seen = flat(found.text)
    assert flat(f"{lead}{': ' + inert.inert(subject, html_report.MAX_TEXT_CHARS) if subject else ''}") in seen, seen[:400]
    for result in diagnosis.findings:
        for sentence in words.told_in_full(result):
            assert flat(inert.inert(sentence.text, html_report.MAX_TEXT_CHARS)) in seen, sentence
        for action in result.actions:
            assert not action.run or flat(inert.command(action.run)) in seen, action.run
    for gap in words.missing(diagnosis):
        assert flat(inert.command(gap.command)) in seen, gap
    assert all(flat(rule) in seen for rule, _ in words.ruled_out(diagnosis))
    assert flat(words.sharing(diagnosis)) in seen and flat(words.pause(diagnosis)) in seen


def test_hostile_texts_are_text_everywhere_they_reach() -> None:
    text = "</style></script><script>alert(1)</script> {{7*7}} {% raw %} javascript:alert(1) \x1b[31m \u202e <a href=javascript:alert(1)>x</a>" + HOSTILE
    plots = (
        Timeline((Lane(text, (Mark(0.0, text, "bad", None, text), Mark(9.0, text, "calm", 12.0, text))),)), Grid(text, (text,), (Line(text, (Cell(text, "bad", text),), text),), (Cell(text, "bad", text),), text),
        Tree(text, (Branch((text, text, text), 2, text, (Branch((text,), 1, text),)),)), Bars((Bar(text, 3.0, text, "bad", 1.0),)), Listing((text,), ((text,),)),
    )  # fmt: skip
    base = spoiled(text)
    sections = (*base.sections, *(Section(text, (Part(text, plot=plot),)) for plot in plots))
    shown = html_report.render([replace(base, sections=sections)])
    found = read(shown)
    assert found.tags <= TAGS, found.tags - TAGS
    assert shown.count("<script") == 1 and shown.count("<style") == 1 and shown.count("</script") == 1 and shown.count("</style") == 1
    assert found.text.count("{{7*7}}") > 20 and "49" not in found.text, "a template in the evidence is run"
    assert all(char.isprintable() or char == "\n" for char in shown), "what moves or turns text is in the page"
    assert r"\x1b[31m \u202e" in found.text


def test_the_policy_allows_the_pages_own_style_and_script_and_nothing_else() -> None:
    shown = html_report.render([CONFIRMED_CASE])
    (policy,) = [value for tag, name, value in read(shown).attributes if tag == "meta" and name == "content" and "default-src" in value]
    style, script = (re.search(rf"<{tag}>(.*?)</{tag}>", shown, re.DOTALL) for tag in ("style", "script"))
    assert style is not None and script is not None
    hashes = ["sha256-" + base64.b64encode(hashlib.sha256(item[1].encode()).digest()).decode() for item in (style, script)]
    assert policy == f"default-src 'none'; style-src '{hashes[0]}'; script-src '{hashes[1]}'; img-src data:; base-uri 'none'; form-action 'none'"
    assert "url(" not in style[1] and "@import" not in style[1] and "unsafe" not in policy


def test_each_sentence_leads_to_its_row_and_the_raw_line_of_the_bundle(incident: Diagnosis) -> None:
    shown = page([incident], [INCIDENT], None, None, None)
    found = read(shown)
    checked = 0
    with zipfile.ZipFile(INCIDENT) as bundle:
        for result in incident.findings:
            for signal in result.held():
                for row, says in zip(signal.rows, signal.says, strict=False):
                    below = [flat(text) for name, text in found.below.items() if re.fullmatch(r"c1-f\d+-s\d+-\d+", name) and flat(inert.inert(says, 2000)) in flat(text)]
                    assert below, f"no row for: {says}"
                    path, _, line = str(row["source"]).rpartition(":")
                    if line.isdecimal():
                        raw = bundle.read(f"artefacts/{path}").decode().splitlines()[int(line) - 1]
                        assert any(flat(inert.inert(raw, 4000)) in text for text in below), (raw, below)
                        checked += 1
    assert checked >= 5, f"only {checked} raw lines were there to compare"
    links = [value[1:] for tag, name, value in found.attributes if tag == "a" and name == "href" and re.fullmatch(r"#c1-f\d+-s\d+-\d+", value)]
    assert len(links) >= checked and set(links) <= found.below.keys()


def test_raw_lines_are_cut_and_never_taken_from_another_bundle() -> None:
    def source(name: str, **files: bytes) -> Source:
        artefacts = [Artefact.of_bytes(path.replace("_", "."), "logs", data) for path, data in files.items()]
        return Source(name, "host", "1", {"logs": artefacts}, None)

    document = b'{"threads": [{"frames": [{"name": "get", "locals": [{"name": "a/key", "repr": "1"}, {"name": "key", "repr": "2"}]}]}]}'
    both = [
        source("one", a_log=b"first\nsecond\n", only_log=b"x" * 1_000_000 + b"\n\xff\n", s_json=document, list_json=b'[{"frames": [1, 0]}]', deep_json=b"[" * 100_000),
        source("two", a_log=b"1\n2\n"),
    ]
    places = [Place("one", "a.log:2"), Place("two", "a.log:1"), Place(None, "a.log:1"), Place(None, "only.log:1"), Place("one", "only.log:2"), Place("one", "a.log:9"),
              Place("one", "a.log#key"), Place("one", "gone.log:1"), Place("three", "a.log:1"), Place("one", "s.json#threads/0/frames/0/locals/key"), Place("one", "list.json#threads/0/frames/1"),
              Place("one", "s.json#threads[0]/frames/7"), Place("one", "deep.json#0/0")]  # fmt: skip
    found = rawlines.read(both, places)
    assert found == {
        places[0]: "second", places[1]: "1", places[3]: "x" * rawlines.MAX_CHARS + "… (1000000 characters)", places[4]: "\ufffd",
        places[9]: '{"name": "key", "repr": "2"}', places[10]: "0",
    }, found  # fmt: skip


def test_a_diagnosis_with_pictures_comes_out_of_the_jail_as_it_went_in(incident: Diagnosis) -> None:
    kinds = {type(part.plot) for section in incident.sections for part in section.parts}
    assert {Timeline, Grid, Tree, Bars, Listing} <= kinds, kinds
    (again,) = msgspec.json.decode(msgspec.json.encode([incident], enc_hook=str), type=list[Diagnosis])
    assert again.sections == incident.sections


def test_several_captures_are_one_page_with_one_line_of_time(incident: Diagnosis) -> None:
    calm = CASES["clear"]
    found = read(html_report.render([replace(calm, sections=incident.sections), incident], best=incident))
    assert {"c1", "c2", "together"} <= found.below.keys()
    assert "Stack samples (capture 1)" in found.text and "Stack samples (capture 2)" in found.text
    seen = flat(found.text)
    assert "CONFIRMED ghost-key-retry-loop" in seen[:400] and "capture 2 of 2" in seen[:400], "the one that says most comes first, the number tells the time"
    assert seen.index("All captures on one line of time") > seen.index("Do next")


@pytest.mark.parametrize(("text", "shown"), [
    ("1. one\n   Expected: `x`. If not: go.\n2. two\n", "<ol>\n<li>one<br>\nExpected: <code>x</code>. If not: go.</li>\n<li>two</li>\n</ol>\n"),
    ("Look at **this** and `that`.", "<p>Look at <strong>this</strong> and <code>that</code>.</p>\n"),
    ("```sh\nkill -CONT 7\n```", '<pre><code class="language-sh">kill -CONT 7\n</code></pre>\n'),
    ("# Big\n[x](javascript:alert(1)) <b>no</b> ![i](http://e/i.png) https://e.example &amp;",
     "<p><strong>Big</strong></p>\n<p>[x](javascript:alert(1)) &lt;b&gt;no&lt;/b&gt; ![i](http://e/i.png) https://e.example &amp;amp;</p>\n"),
    ('```"><script>\nx\n```', '<pre><code class="language-&quot;&gt;&lt;script&gt;">x\n</code></pre>\n'),
])  # fmt: skip
def test_a_runbook_has_lists_and_code_and_no_more(text: str, shown: str) -> None:
    assert runbook.to_html(text) == shown


def test_time_is_drawn_to_scale_with_empty_stretches_cut_out() -> None:
    marks = tuple(Mark(float(at), f"at {at}", "calm") for at in (0, 10, 20, 7220, 7230))
    chart = timeline.chart(Timeline((Lane("log", marks),)))
    (cut,) = chart.cuts
    assert cut.label == "2 h"
    xs = [box.x for box in chart.lanes[0].boxes]
    assert xs == sorted(xs) and xs[0] >= 0 and xs[-1] <= timeline.WIDTH, xs
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1]) and xs[2] < cut.x < xs[3], xs
    lone = timeline.chart(Timeline((Lane("log", (Mark(5.0, "only", "bad"),)),)))
    assert 0 < lone.lanes[0].boxes[0].x < timeline.WIDTH and not lone.cuts and lone.ticks[0].label == "00:00:05"


def test_marks_on_each_other_are_one_and_say_how_many() -> None:
    marks = (*(Mark(number / 1000, f"line {number}", "bad") for number in range(300)), Mark(100.0, "late", "bad"), Mark(10.0, "down", "bad", 60.0))
    (lane,) = timeline.chart(Timeline((Lane("log", marks),))).lanes
    assert len(lane.boxes) == 3, [box.about for box in lane.boxes]
    assert any(box.about.startswith("300 times, first: 1970-01-01 00:00:00Z line 0") for box in lane.boxes)
    assert any("until 1970-01-01 00:01:00Z (50 s) down" in box.about for box in lane.boxes)


def test_what_is_left_out_of_a_timeline_is_said() -> None:
    lanes = tuple(Lane(name, tuple(Mark(float(n), f"{name} {n}", "bad" if n == 7 else "calm") for n in range(300)), left_out) for name, left_out in (("a", 12), ("b", 0)))
    seen = flat(read(html_report.render([replace(CASES["clear"], sections=(Section("Times", (Part(plot=Timeline(lanes)),)),))])).text)
    assert "a (12 more are not shown)" in seen and f"600 moments from 1970-01-01 00:00:00Z to 1970-01-01 00:04:59Z, the worst {timeline.MAX_LISTED}, as a table" in seen
    assert "a 7" in seen and "b 7" in seen, "the worst are kept"


@pytest.mark.parametrize(("seconds", "said"), [(0.25, "0.2 s"), (12, "12 s"), (60, "1 min"), (250, "4 min 10 s"), (7500, "2 h 5 min"), (86400 * 3 + 4 * 3600, "3 d 4 h")])
def test_a_duration_has_two_units_at_most(seconds: float, said: str) -> None:
    assert timeline.duration(seconds) == said


def test_the_command_writes_it_and_prints_it(tmp_path: Path) -> None:
    said = llmdiag("report", str(INCIDENT), "-f", "html", "-o", str(tmp_path / "report.html"))
    assert (said.code, said.out) == (1, ""), said.err
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and text.count("<h1") == 1
    printed = llmdiag("report", str(INCIDENT), "-f", "html")
    assert printed.code == 1 and printed.out == text
    assert llmdiag("analyze", str(INCIDENT), "-f", "html").code == 2, "a page is a whole report"
