"""Pages in a real browser: charts are drawn, tables sort and filter, names stay text, in light, dark and on a phone."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedprior
from fedprior.data.federation import from_arrays
from fedprior.methods import build
from fedprior.names import on_screen
from fedprior.report.page.document import document
from fedprior.report.page.federation import page as federation_page
from fedprior.report.portrait import portrait
from fedprior.report.watching import Watch
from support import TRAIN

api = pytest.importorskip("playwright.sync_api", reason="pages in a browser need playwright")
CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="pages in a browser need chromium: apt-get install chromium")

NASTY = (
    '</script><img src=x onerror="window.bad=1">',
    "<b>bold</b>",
    "a.b[0]",
    "datum['gain']",
    "{{1+1}} ${1+1}",
    "x" * 300,
    "\x1b[31mred\u202e",
)
NAMES = (*NASTY, *(f"site {k}" for k in range(8)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as found:
        started = found.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of three methods on 15 sites, half of them with names that would like to be obeyed."""
    clients = {}
    for k, name in enumerate(NAMES):
        rng = np.random.default_rng(k)
        y = np.arange(60) % 2
        clients[name] = (rng.normal(size=(60, 2)) + y[:, None] * [1.5, 0.2 * k], y)
    data = from_arrays(clients, name="<i>data</i>")
    out = tmp_path_factory.mktemp("browser") / "out"
    found = fedprior.compare([build("pfedvem", train=TRAIN)], data, rounds=4, eval_every=2, out=out)
    found.report(out / "report.html")
    (out / "federation.html").write_text(federation_page(data, portrait(data)))
    return out


class View:
    """A page in a tab, with all that it complains about."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.complaints: list[str] = []
        self.tab = browser.new_page(**{"viewport": {"width": 1100, "height": 900}, **options})
        self.tab.on("console", lambda said: self.complaints.append(f"{said.type}: {said.text}"))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("request", lambda asked: self.complaints.append(asked.url) if asked.url != url else None)
        self.tab.goto(url)

    def read(self) -> None:
        """Scroll to the end, as a reader does, until every chart that can be seen is drawn."""
        self.tab.evaluate("""async () => {
            for (const place of document.querySelectorAll("[data-chart]")) {
                if (place.offsetParent === null) continue;
                place.scrollIntoView();
                while (!("drawn" in place.dataset)) await new Promise((done) => setTimeout(done, 10));
            }
        }""")

    def count(self, what: str) -> int:
        return int(self.tab.locator(what).count())

    def column(self, table: str, number: int) -> list[str]:
        cells = self.tab.locator(f"{table} tbody tr td:nth-child({number})")
        return [str(text) for text in cells.all_text_contents()]


@pytest.fixture
def open_page(browser: Any, place: Path) -> Iterator[Any]:
    views: list[View] = []

    def opened(name: str = "report.html", **options: Any) -> View:
        views.append(View(browser, (place / name).as_uri(), **options))
        return views[-1]

    yield opened
    for view in views:
        view.tab.close()


SITES = ".option:not([hidden]) .table"


def test_a_report_is_drawn_without_complaints(open_page: Any) -> None:
    view = open_page()
    view.read()
    seen = view.tab.evaluate('[...document.querySelectorAll("[data-chart]")].filter((p) => p.offsetParent).length')
    assert seen >= 8
    assert view.count("[data-chart][data-drawn] svg.marks") == seen
    assert view.count("[data-chart] svg.marks path") > 100
    assert view.complaints == []


def test_a_federation_is_drawn_without_complaints(open_page: Any) -> None:
    view = open_page("federation.html")
    view.read()
    assert view.count("[data-chart][data-drawn] svg.marks") == 3
    assert view.column("main > .table", 1) == [on_screen(name) for name in NAMES]
    assert view.complaints == []


def test_names_stay_text(open_page: Any) -> None:
    """On axes, in cells and in tooltips; nothing of them was run or made an element."""
    view = open_page()
    view.read()
    cells = view.column(SITES, 1)
    labels = view.tab.locator("[data-chart] .role-axis-label text").all_text_contents()
    for name in NASTY:
        assert on_screen(name) in cells
        assert any(on_screen(name).startswith(label.rstrip("…")) and len(label) > 3 for label in labels)
    view.tab.locator("[data-chart] .mark-symbol path").first.hover()
    assert view.count("main img, main b b, main i") == 0
    assert view.tab.evaluate("window.bad") is None
    assert view.complaints == []


def test_a_table_sorts_by_numbers_and_by_names(open_page: Any) -> None:
    view = open_page()
    button = view.tab.locator(f"{SITES} th button", has_text="NLL gain").first
    button.click()

    def gains() -> list[float]:
        return [float(text.split(" ")[0].replace("+", "")) for text in view.column(SITES, 3)]

    assert gains() == sorted(gains(), reverse=True)
    button.click()
    assert gains() == sorted(gains())
    assert view.tab.locator(f"{SITES} th[aria-sort=ascending]").inner_text().startswith("NLL gain")
    view.tab.locator(f"{SITES} th button", has_text="site").first.click()
    names = [name for name in view.column(SITES, 1) if name.startswith("site ")]
    assert names == sorted(names)


def test_a_table_filters(open_page: Any) -> None:
    view = open_page()
    rows = len(view.column(SITES, 1))
    assert rows == len(NAMES)
    view.tab.locator(f"{SITES} input").fill("site 3")
    assert view.column(SITES, 1) == ["site 3"]
    assert f"1 of {rows} rows" in view.tab.locator(SITES).first.inner_text()
    view.tab.locator(f"{SITES} input").fill("")
    assert len(view.column(SITES, 1)) == rows


def test_another_method_may_be_chosen(open_page: Any) -> None:
    view = open_page()
    choice = view.tab.locator(".choice").first
    names = choice.locator("option").all_text_contents()
    shown = choice.locator("select").input_value()
    other = next(name for name in names if name != shown)
    choice.locator("select").select_option(other)
    view.read()
    assert choice.locator(".option:not([hidden]) figcaption b").first.inner_text().startswith(f"{other}:")
    assert choice.locator(".option:not([hidden]) [data-drawn]").count() == 1
    assert view.complaints == []


def test_light_and_dark(open_page: Any) -> None:
    """As the system has it, until the reader decides otherwise; letters are always seen."""
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = open_page(), open_page(color_scheme="dark")
    assert light.tab.evaluate(paper) == "rgb(255, 255, 255)"
    assert dark.tab.evaluate(paper) == "rgb(20, 23, 26)"
    dark.tab.locator("#theme").click()
    assert dark.tab.evaluate(paper) == "rgb(255, 255, 255)"
    dark.tab.locator("#theme").click()
    dark.read()
    ink = 'getComputedStyle(document.querySelector(".role-axis-label text")).fill'
    assert dark.tab.evaluate(ink) == "rgb(163, 172, 181)"


def test_a_phone_shows_everything(open_page: Any) -> None:
    """Nothing sticks out to the right; what is wide scrolls within its own place."""
    view = open_page(viewport={"width": 375, "height": 700}, device_scale_factor=2)
    view.read()
    assert view.tab.evaluate("document.documentElement.scrollWidth") == 375
    assert (
        view.tab.evaluate('Math.max(...[...document.querySelectorAll("svg.marks")].map((s) => s.clientWidth))') <= 375
    )
    assert view.complaints == []


def test_paper_is_white_and_has_no_buttons(open_page: Any) -> None:
    view = open_page(color_scheme="dark")
    view.tab.emulate_media(media="print", color_scheme="dark")
    assert view.tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not view.tab.locator("#theme").is_visible()
    assert view.tab.pdf(format="A4").startswith(b"%PDF")


def test_a_page_without_script_shows_its_drawings(browser: Any, tmp_path: Path) -> None:
    """As the papers' tables have it."""
    from fedprior.report.charts.papers import Entry, column
    from fedprior.report.page.blocks import Figure
    from fedprior.report.page.document import Page

    chart = column([Entry(NASTY[0], 80.0, 70.0, 1.0, "80 → 70")])
    assert chart is not None
    (tmp_path / "a.html").write_text(document(Page("x", "", [Figure(chart, "x")]), live=False))
    view = View(browser, (tmp_path / "a.html").as_uri())
    assert view.count("figure svg path") > 3
    assert view.count("img") == 0
    assert view.complaints == []
    view.tab.close()


def test_a_watched_run_is_followed(browser: Any, place: Path, tmp_path: Path) -> None:
    """The page is made at round 2; when the journal grows, it shows round 4 without being loaded again."""
    run = place / "pfedvem"
    for name in ("config.toml", "clients.csv", "logs.csv"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "events.jsonl").write_text("".join(line for line in lines if json.loads(line)["round"] <= 2))
    with Watch(tmp_path) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        view = View(browser, server.url)
        view.tab.locator(".lead", has_text="round 2 of 4").wait_for()
        view.tab.evaluate("window.same = true")
        (tmp_path / "events.jsonl").write_text("".join(lines))
        view.tab.locator(".lead", has_text="round 4 of 4").wait_for()
        view.read()
        assert view.tab.evaluate("window.same")
        assert {said for said in view.complaints if not said.startswith(f"{server.url}main?")} <= {
            server.url + "favicon.ico"
        }
        view.tab.close()
        server.shutdown()
        thread.join()
