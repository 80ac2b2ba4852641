"""The report's page in a real Chromium: it answers, it loads nothing, it fits a phone and paper."""

import re
from pathlib import Path

import pytest

from kvreg.analysis import analyze
from kvreg.analysis.table import CellTable, cells_csv
from kvreg.nccl.design import Design
from kvreg.nccl.fit import analyse
from kvreg.report.evidence import Evidence
from kvreg.report.page import page
from tests.support.browser import browser
from tests.support.communication import simulate
from tests.support.demonstration import BOUNDARY_MIB, demonstration_rows
from tests.support.studies import cell

DESKTOP = {"viewport": {"width": 1280, "height": 900}}
MINUS, DASH = "\N{MINUS SIGN}", "\N{EN DASH}"
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
}


class Opened:
    """A page that was opened, and everything that it complained about or asked for."""

    def __init__(self, context, path: Path) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page = context.new_page()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def rows(self, part: str = "points") -> list[list[str]]:
        """The texts of a table's body."""
        return self.page.eval_on_selector_all(
            f"#{part}-table tbody tr",
            "rows => rows.map(row => [...row.cells].map(c => c.innerText))",
        )


@pytest.fixture(scope="module")
def chromium():
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """The demonstration as a page."""
    folder = tmp_path_factory.mktemp("page")
    rows = tuple(demonstration_rows())
    design = Design(repetitions=2, collectives=4)
    quiet = {"design": design, "noise": 0.0, "between": 0.0}
    record = simulate(folder / "nccl.jsonl", 112, 4.06, **quiet)
    other = simulate(folder / "no-peer.jsonl", 140, 2.5, **quiet)
    evidence = Evidence(
        "Demonstration",
        analyze(CellTable(rows, {"source": "cells", "cells": "sha256:" + "0" * 64})).to_dict(),
        cells_csv(rows),
        communication=(("nccl.jsonl", analyse(record)), ("no-peer.jsonl", analyse(other))),
        boundary_mib=BOUNDARY_MIB,
        simulated=True,
    )
    path = folder / "index.html"
    path.write_text(page(evidence))
    return path


@pytest.fixture
def opened(chromium, report, request):
    options = getattr(request, "param", DESKTOP)
    context = chromium.new_context(**options)
    found = Opened(context, report)
    yield found
    context.close()
    # Whatever a test did: no error, and no request but the one for the file itself.
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:", "blob:"))] == []


def test_verdicts_are_read_at_once(opened):
    tables = opened.page.locator("table.verdicts:visible")
    assert tables.count() == 1
    cells = tables.locator("td.answer")
    assert cells.count() == 12
    texts = cells.locator(".large").all_inner_texts()
    assert [text.strip() for text in texts].count("from 4") == 3
    gated = tables.locator("td.gated")
    assert gated.count() == 1 and "gated at 64" in gated.inner_text()
    # Distinct without colour: a border of another style, and a sign of its own.
    assert gated.evaluate("e => getComputedStyle(e).borderTopStyle") == "dashed"
    sign = "e => getComputedStyle(e.querySelector('.large'), '::before').content"
    signs = {
        kind: tables.locator(f"td.{kind}").first.evaluate(sign)
        for kind in ("pays", "gated", "never")
    }
    assert len(set(signs.values())) == 3
    assert opened.page.locator(".banner.simulated").is_visible()


def test_the_metric_changes_verdicts_and_curves(opened):
    select = opened.page.locator("#verdict-controls select[data-key=metric]")
    before = opened.page.locator("#curve-panels").inner_html()
    select.select_option("ttft_ms")
    table = opened.page.locator("table.verdicts:visible")
    assert "time to first token (lower is better)" in table.locator("caption").inner_text()
    assert "from 1" in table.inner_text()
    assert opened.page.locator("#curve-panels").inner_html() != before
    # Every control of the metric follows.
    values = opened.page.eval_on_selector_all(
        "select[data-key=metric]", "all => all.map(s => s.value)"
    )
    assert set(values) == {"ttft_ms"}


def test_a_verdict_leads_to_its_curves(opened):
    link = opened.page.locator("table.verdicts:visible td.gated .large a")
    link.focus()
    opened.page.keyboard.press("Enter")
    panels = opened.page.locator("#curve-panels figure")
    assert panels.count() == 1
    assert "gated at 64" in panels.inner_text()
    assert opened.page.locator("#curve-panels h3").inner_text() == "Qwen2.5-3B-Instruct"
    assert opened.page.locator("#curve-panels .gated-area").count() == 1


def test_charts_answer_to_the_pointer(opened):
    chart = opened.page.locator("#curve-panels svg").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + box["height"] / 2)
    tip = opened.page.locator("#tip")
    assert tip.is_visible()
    text = tip.inner_text()
    assert "concurrency 64" in text and "TP1" in text and "favourable" in text
    placed = tip.bounding_box()
    assert placed["x"] >= 0 and placed["x"] + placed["width"] <= 1280
    opened.page.mouse.move(2, 2)
    assert not tip.is_visible()


def test_charts_answer_to_the_keyboard(opened):
    chart = opened.page.locator("#curve-panels svg").first
    chart.focus()
    opened.page.keyboard.press("ArrowRight")
    tip = opened.page.locator("#tip")
    assert "concurrency 1" in tip.inner_text()
    opened.page.keyboard.press("ArrowRight")
    assert "concurrency 4" in tip.inner_text()
    opened.page.keyboard.press("Escape")
    assert not tip.is_visible()
    assert tip.get_attribute("aria-live") == "polite"


def test_differences_show_the_interval_that_decides(opened):
    opened.page.get_by_role("button", name="Difference", exact=True).click()
    chart = opened.page.locator("#curve-panels svg").first
    assert chart.locator(".zero").count() == 1
    assert chart.locator(".whisker").count() == 6
    assert f"TP2 {MINUS} TP1" in chart.text_content()


def test_a_series_is_switched_off_and_the_others_dimmed(opened):
    count = "document.querySelectorAll('#curve-panels [data-series=tp1] .point').length"
    assert opened.page.evaluate(count) == 72
    button = opened.page.locator("#curve-legend button", has_text="TP2")
    button.hover()
    assert opened.page.locator("#curve-panels [data-series=tp1].dimmed").count() == 12
    opened.page.locator("#curve-legend button", has_text="TP1").click()
    assert opened.page.evaluate(count) == 0
    pressed = opened.page.locator("#curve-legend button", has_text="TP1").get_attribute(
        "aria-pressed"
    )
    assert pressed == "false"


def test_the_table_sorts_up_and_down(opened):
    head = opened.page.locator("#points-table thead th", has_text="Difference")
    head.locator("button").click()
    values = [row[5] for row in opened.rows()]
    numbers = [float(value.replace(MINUS, "-").rstrip("%")) for value in values if value != DASH]
    assert numbers == sorted(numbers) and head.get_attribute("aria-sort") == "ascending"
    assert values[-1] == DASH  # the gated comparison has none: last
    head.locator("button").click()
    values = [row[5] for row in opened.rows()]
    assert float(values[0].rstrip("%")) == max(numbers) and values[-1] == DASH
    # Numbers sort as numbers.
    level = opened.page.locator("#points-table thead th", has_text="Conc.")
    level.locator("button").click()
    assert [int(row[2]) for row in opened.rows()] == sorted([1, 4, 8, 16, 32, 64] * 12)


def test_the_table_filters(opened):
    assert len(opened.rows()) == 72
    opened.page.locator("#points-table select[data-filter=verdict]").select_option("gated")
    assert [row[0] for row in opened.rows()] == ["Qwen2.5-3B-Instruct"]
    opened.page.locator("#points-table select[data-filter=verdict]").select_option("")
    opened.page.locator("#points-table input[type=search]").fill("phi short")
    rows = opened.rows()
    assert len(rows) == 6 and {row[1] for row in rows} == {"short"}
    assert opened.page.locator("#points-table .count").inner_text() == "6 of 72 rows"


def test_cells_are_all_there(opened):
    opened.page.locator("#cells summary").click()
    opened.page.locator("#cells-table tbody tr").first.wait_for()
    assert len(opened.rows("cells")) == 720
    opened.page.locator("#cells-table select[data-filter=state]").select_option("RESOURCE_GATED")
    assert len(opened.rows("cells")) == 5


def test_a_table_is_saved_as_it_is_shown(opened, tmp_path):
    opened.page.locator("#points-table input[type=search]").fill("Llama short")
    with opened.page.expect_download() as download:
        opened.page.locator("#points-table").get_by_role("button", name="Save as CSV").click()
    download.value.save_as(tmp_path / "saved.csv")
    lines = (tmp_path / "saved.csv").read_text().splitlines()
    assert len(lines) == 7 and lines[0].startswith("model,workload,concurrency")


def test_communication_shows_fits_and_other_measurements(opened):
    section = opened.page.locator("#communication")
    assert section.locator("#communication-fits tbody tr").count() == 6
    assert "112" in section.locator("#communication-fits").inner_text()
    section.locator("select").select_option(label="no-peer.jsonl")
    assert "140" in section.locator("#communication-fits").inner_text()
    assert section.locator("figure").count() == 2


def test_memory_shows_the_boundary_and_what_passed_it(opened):
    panels = opened.page.locator("#memory-panels figure")
    assert panels.count() == 4 and panels.locator(".boundary").count() == 4
    assert opened.page.locator("#memory-panels .point.hollow").count() == 5


def test_light_and_dark_by_wish(opened):
    paper = "getComputedStyle(document.body).backgroundColor"
    light = opened.page.evaluate(paper)
    opened.page.locator("#theme").click()
    assert opened.page.evaluate(paper) != light
    assert opened.page.locator("#theme").inner_text() == "Light"


@pytest.mark.parametrize("opened", [{**DESKTOP, "color_scheme": "dark"}], indirect=True)
def test_dark_by_the_systems_wish(opened):
    red, green, blue = map(
        int,
        re.findall(r"\d+", opened.page.evaluate("getComputedStyle(document.body).backgroundColor"))[
            :3
        ],
    )
    assert max(red, green, blue) < 60


@pytest.mark.parametrize("opened", [PHONE], indirect=True)
def test_a_phone_shows_everything_without_scrolling_sideways(opened):
    width = opened.page.evaluate("document.documentElement.scrollWidth")
    assert width == 390
    beyond = """() => [...document.querySelectorAll('main *')].filter(e => {
        const box = e.getBoundingClientRect();
        return box.width && box.right > 391 && !e.closest('.table-frame, .scroll');
    }).map(e => e.tagName + '.' + e.className).slice(0, 5)"""
    assert opened.page.evaluate(beyond) == []
    # One model at a time, text of a readable size.
    assert opened.page.locator("#curve-panels figure").count() == 3
    size = opened.page.evaluate(
        "() => { const s = document.querySelector('#curve-panels svg');"
        " return 11 * s.getBoundingClientRect().width / s.viewBox.baseVal.width; }"
    )
    assert size >= 9
    opened.page.locator("#curve-panels svg").first.tap()
    assert opened.page.locator("#tip").is_visible()


def test_paper_has_verdicts_and_no_controls(opened):
    opened.page.emulate_media(media="print")
    assert not opened.page.locator("#curve-controls").is_visible()
    assert opened.page.locator("table.verdicts:visible").count() == 1
    assert opened.page.pdf(format="A4").startswith(b"%PDF")
    # Inside the paper: nothing is cut off at the right.
    opened.page.set_viewport_size({"width": 700, "height": 1000})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 700


@pytest.mark.parametrize("opened", [{**DESKTOP, "java_script_enabled": False}], indirect=True)
def test_without_scripts_the_verdicts_are_there(opened):
    assert opened.page.locator("table.verdicts:visible td.answer").count() == 12
    assert not opened.page.locator("#curves").is_visible()


def test_text_stands_out_from_its_ground(opened):
    """Contrast of 4.5 to 1 (WCAG AA), light and dark, for what carries meaning."""
    contrast = """selector => {
        const parse = colour => colour.match(/[\\d.]+/g).map(Number);
        const weights = [0.2126, 0.7152, 0.0722];
        const light = channels => weights.reduce((sum, weight, index) => {
            const part = channels[index] / 255;
            const line = part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
            return sum + weight * line;
        }, 0);
        const element = document.querySelector(selector);
        const groundOf = node => {
            const found = parse(getComputedStyle(node).backgroundColor);
            return found[3] === 0 ? groundOf(node.parentElement) : found;
        };
        const two = [light(parse(getComputedStyle(element).color)), light(groundOf(element))];
        return (Math.max(...two) + 0.05) / (Math.min(...two) + 0.05);
    }"""
    selectors = (
        ".headline", ".about", ".limits li", "dt", "td.pays .large", "td.pays .small",
        "td.never .small",
        "td.gated .large", ".strip .mark b", ".banner", ".data td", "figcaption span.pays",
    )  # fmt: skip
    for _ in range(2):
        for selector in selectors:
            assert opened.page.evaluate(contrast, selector) >= 4.5, selector
        opened.page.locator("#theme").click()


def test_hostile_names_run_nothing(chromium, tmp_path):
    name = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=2'>"
    rows = tuple(
        cell(name, "w<i>", None, level, tp, n)
        for level in (1, 4)
        for tp in (1, 2, 4)
        for n in (1, 2, 3)
    )
    analysis = analyze(CellTable(rows, {"source": "rows"})).to_dict()
    path = tmp_path / "index.html"
    path.write_text(page(Evidence(name, analysis, cells_csv(rows))))
    context = chromium.new_context(**DESKTOP)
    opened = Opened(context, path)
    assert opened.complaints == []
    assert opened.page.evaluate("window.hacked") is None
    assert opened.page.locator("h1").inner_text() == name
    assert opened.page.locator("main img").count() == 0
    # Three degrees: two pairs to choose from, and both have their own verdicts.
    opened.page.locator("#verdict-controls select[data-key=pair]").select_option("1")
    caption = opened.page.locator("table.verdicts:visible caption").inner_text()
    assert "TP4 against TP1" in caption
    assert opened.complaints == []
    context.close()
