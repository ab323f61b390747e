"""The HTML report in a real browser: what a person finds there, on a phone, in the dark, on paper, without scripts and without a network."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diag import analysis, rules
from diag.cli_diagnosis import page as page_of
from diag.model import Diagnosis
from diag.report import html as html_report
from diag.report import inert, words
from tests.chromium import Browser, Page, binary
from tests.conftest import SAMPLES
from tests.report_cases import CASES, MONSTERS

pytestmark = pytest.mark.skipif(binary() is None, reason="no Chromium here: apt-get install chromium (as root, tests/setup-servers.sh does it)")
RULES = rules.load(rules.shipped())
REAL = {
    "ghost": SAMPLES / "ghost-key-retry-loop" / "incident.zip", "prefix": SAMPLES / "prefix-block-mismatch" / "incident", "cascade": SAMPLES / "restarts" / "cascade",
    "clear": SAMPLES / "vllm-0.32-cpu" / "busy",
}  # fmt: skip
MADE = {"inconclusive": CASES["inconclusive"], "hostile": MONSTERS["hostile"], "many": MONSTERS["12 findings"]}
NAMES = (*REAL, *MADE)
# what is too faint: letters of less than 4.5 to 1 (3 to 1 where they are large), as WCAG 2 counts it
FAINT = """(() => {
  const channel = c => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4 };
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length === 3 ? [...n, 1] : n };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = node => { for (; node; node = node.parentElement) { const c = rgba(getComputedStyle(node).backgroundColor); if (c[3] === 1) return c } return [255, 255, 255, 1] };
  const found = new Set();
  for (const node of document.querySelectorAll('body *')) {
    if (node.closest('svg, script, .vh, .skip') || ![...node.childNodes].some(child => child.nodeType === 3 && child.data.trim())) continue;
    const style = getComputedStyle(node), a = light(rgba(style.color)), b = light(behind(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < (parseFloat(style.fontSize) >= 24 ? 3 : 4.5)) found.add(`${node.tagName}.${node.className}: ${ratio.toFixed(2)}`);
  }
  return [...found];
})()"""
SEEN = "document.body.textContent.replace(/\\s+/g, ' ')"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


Report = tuple[Diagnosis, Path]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Report]:
    """A diagnosis and its page, by name; each is made once."""
    folder = tmp_path_factory.mktemp("pages")

    @functools.cache
    def made(name: str) -> Report:
        if name in REAL:
            (diagnosis,) = analysis.analyse([REAL[name]], RULES)
            shown = page_of([diagnosis], [REAL[name]], None, None, None)
        else:
            diagnosis = MADE[name]
            shown = html_report.render([diagnosis])
        file = folder / f"{name}.html"
        file.write_text(shown, encoding="utf-8")
        return diagnosis, file

    return made


def flat(text: str) -> str:
    return " ".join(text.split())


def quiet(page: Page, file: Path) -> None:
    """It asks for nothing but itself, and nothing complains."""
    assert page.complaints() == []
    assert page.requests() == [file.absolute().as_uri()]


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("name", REAL)
def test_rule_key_sentences_and_raw_lines_are_in_the_page(browser: Browser, report: Callable[[str], Report], name: str, scripts: bool) -> None:
    diagnosis, file = report(name)
    with browser.page(file, scripts=scripts) as page:
        lead, subject = words.headline(diagnosis)
        heading = flat(page.ask("[...document.querySelectorAll('h1')].map(item => item.textContent).join(' | ')"))
        assert heading == flat(f"{lead}{f': {subject}' if subject else ''}")
        seen = flat(page.ask(SEEN))
        for result in diagnosis.findings:
            assert result.rule in seen
            for sentence in words.told_in_full(result):
                assert flat(inert.inert(sentence.text, 2000)) in seen, sentence
        links = page.ask("""[...document.querySelectorAll('article > section.finding .held a.source')].map(link => {
          const row = document.getElementById(link.hash.slice(1));
          return [link.textContent, row?.textContent.replace(/\\s+/g, ' ') ?? null, row?.querySelector('.raw')?.textContent ?? null];
        })""")
        assert bool(links) == bool(diagnosis.findings)
        for source, row, raw in links:
            assert row is not None and source in row, f"{source} leads nowhere"
            if source.rpartition(":")[2].isdecimal() or "#threads/" in source:  # a line, or a value of a JSON document
                assert raw is not None and raw.strip(), (source, row)
        assert page.ask("document.querySelectorAll('pre button').length") == (page.ask("document.querySelectorAll('pre.command, .runbook pre').length") if scripts else 0)
        quiet(page, file)


@pytest.mark.parametrize("name", NAMES)
def test_no_scrolling_sideways_on_a_phone(browser: Browser, report: Callable[[str], Report], name: str) -> None:
    _, file = report(name)
    with browser.page(file, width=380, height=800, scripts=False) as page:
        page.ask("document.querySelectorAll('details').forEach(item => { item.open = true })")
        wide = page.ask("""[...document.querySelectorAll('body *')].filter(item => item.getBoundingClientRect().right > 381 && !item.closest('.scroll, pre, .vh, .skip'))
          .map(item => `${item.tagName}.${item.getAttribute('class')}: ${item.textContent.slice(0, 60)}`).slice(0, 5)""")
        assert page.ask("document.documentElement.scrollWidth") <= 380 and wide == [], wide
        quiet(page, file)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_letters_stand_out_by_day_and_by_night(browser: Browser, report: Callable[[str], Report], name: str, dark: bool) -> None:
    _, file = report(name)
    with browser.page(file, dark=dark) as page:
        page.ask("document.querySelectorAll('details').forEach(item => { item.open = true })")
        ground = page.ask("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") != dark, ground
        assert page.ask(FAINT) == []


@pytest.mark.parametrize("name", NAMES)
def test_who_does_not_see_it_can_read_it(browser: Browser, report: Callable[[str], Report], name: str) -> None:
    _, file = report(name)
    with browser.page(file) as page:
        assert page.ask("document.querySelectorAll('h1, main, header, nav, footer').length") >= 5 and page.ask("document.documentElement.lang") == "en"
        assert page.ask("[...document.querySelectorAll('svg[role=img]')].every(item => item.querySelector('title') && item.querySelector('desc'))")
        assert page.ask("[...document.querySelectorAll('svg:not([role=img])')].every(item => item.getAttribute('aria-hidden') === 'true')")
        assert page.ask("[...document.querySelectorAll('table')].every(item => item.querySelector('th'))")
        assert page.ask("[...document.querySelectorAll('td[class]:not(.none):not(.left):not(.amount)')].every(item => item.textContent.trim())"), "a colour without a sign"
        levels = page.ask("[...document.querySelectorAll('main h2, main h3, main h4')].map(item => Number(item.tagName[1]))")
        assert all(after - before <= 1 for before, after in zip([1, *levels], levels, strict=False)), levels


def test_on_paper_everything_folded_is_there_and_nothing_to_press(browser: Browser, report: Callable[[str], Report]) -> None:
    _, file = report("cascade")
    with browser.page(file, scripts=False) as page:
        page.print_styles()
        assert page.ask("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert page.ask("getComputedStyle(document.querySelector('details.long')).display") == "none", "pages of what is drawn already"
        folded = page.ask("[...document.querySelectorAll('details:not(.long, .long *)')].filter(item => item.lastElementChild.getBoundingClientRect().height === 0).map(item => item.textContent.slice(0, 80))")
        assert folded == []


def test_a_click_copies_the_command(browser: Browser, report: Callable[[str], Report]) -> None:
    diagnosis, file = report("ghost")
    with browser.page(file) as page:
        assert page.ask("document.querySelector('pre.command code').textContent") == diagnosis.findings[0].actions[0].run
        page.ask("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve() }")
        page.ask("document.querySelector('pre.command button').click()")
        assert page.ask("window.copied") == diagnosis.findings[0].actions[0].run
        assert page.ask("getComputedStyle(document.querySelector('pre.command')).userSelect") == "all", "without scripts a click selects all of it"


def test_a_hostile_log_is_text(browser: Browser, tmp_path: Path) -> None:
    lines = (
        "<script>window.caught = 1</script></style><img src=http://evil.example/x onerror='window.caught = 2'>", "\x1b[2J\x1b[31mred\x1b[0m", "\u202egnp.exe\u202c",
        "{{7*7}} {% for %}", "javascript:window.caught=3", "A" * 1_000_000,
    )  # fmt: skip
    log = tmp_path / "server.log"
    log.write_text("".join(f"ERROR 11-30 02:41:{number:02} [core.py:{number}] EngineCore encountered a fatal error: {line}\n" for number, line in enumerate(lines)), encoding="utf-8")
    (diagnosis,) = analysis.analyse([log], RULES)
    file = tmp_path / "report.html"
    file.write_text(page_of([diagnosis], [log], None, None, None), encoding="utf-8")
    assert file.stat().st_size < 1_000_000, "a long line is not cut"
    with browser.page(file) as page:
        seen = page.ask(SEEN)
        for text in ("<script>window.caught = 1</script>", "<img src=http://evil.example/x", r"\x1b[2J\x1b[31mred", r"\u202egnp.exe\u202c", "{{7*7}}", "javascript:window.caught=3"):
            assert text in seen, f"{text} is not shown"
        assert page.ask("window.caught ?? null") is None and page.ask("document.querySelectorAll('img').length") == 0
        assert page.ask("document.documentElement.scrollWidth") <= 1280
        quiet(page, file)
