"""What a report says: tables, words, figures, escaping, sources, the same bytes every time."""

import csv
import hashlib
import io
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kvreg.analysis import analyze
from kvreg.analysis.table import CellTable, cells_csv
from kvreg.cli import main
from kvreg.errors import ContractError, NotFoundError
from kvreg.nccl.design import Design
from kvreg.nccl.fit import analyse
from kvreg.report.cost import cost_text
from kvreg.report.evidence import Evidence, gather
from kvreg.report.figures import figures
from kvreg.report.markup import Markup, element, join
from kvreg.report.page import page
from kvreg.report.publication import publish
from kvreg.report.tables import tables
from kvreg.report.wording import answer, headline, limitations
from kvreg.sweep.plan import load_plan
from tests.support.communication import simulate
from tests.support.demonstration import BOUNDARY_MIB, demonstration_rows
from tests.support.studies import cell, m2_rows, m4_answers, study
from tests.support.sweeps import ARTIFACT, FACTS, write_sweep

SMALL = Design(payloads=(1024, 65536, 4 * 2**20), repetitions=3, collectives=5)


def evidence_of(rows, **fields) -> Evidence:
    rows = tuple(rows)
    table = CellTable(rows, {"source": "cells", "cells": "sha256:" + "0" * 64})
    return Evidence("a study", analyze(table).to_dict(), cells_csv(rows), **fields)


@pytest.fixture(scope="module")
def demonstration() -> Evidence:
    """The principal experiment's design with the published answers, simulated."""
    return evidence_of(demonstration_rows(), simulated=True, boundary_mib=BOUNDARY_MIB)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Evidence:
    """One model, one shape, three levels, and a communication measurement."""
    record = simulate(tmp_path_factory.mktemp("nccl") / "nccl.jsonl", 112, 4, design=SMALL)
    rates = {level: {1: [10.0, 11, 12], 2: [20.0, 21, 23]} for level in (1, 4, 8)}
    return evidence_of(study(rates), communication=(("nccl.jsonl", analyse(record)),))


def read_csv(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


class Page(HTMLParser):
    """The elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


# -- words -------------------------------------------------------------------------------------


def test_the_published_answers_are_in_the_tables(demonstration):
    rows = read_csv(tables(demonstration)["crossovers.csv"])
    found = {
        (row["model"], row["workload"]): row["first_sustained_favorable"]
        for row in rows
        if row["metric"] == "output_tokens_per_s"
    }
    assert found == m4_answers()


def test_the_headline_counts_every_kind(demonstration):
    assert headline(demonstration) == (
        "By output throughput, TP2 beats TP1 from some concurrency on in 10 of 12 combinations of"
        " model and token shape; 1 shows no sustained gain; 1 meets the memory boundary."
    )


def test_answers_at_a_glance(demonstration):
    entry = dict(demonstration.analysis["crossovers"][0])
    effects = {4: -0.2, 16: 0.125, 64: 0.5}

    def said(value, **fields):
        return answer({**entry, "first_sustained_favorable": value, **fields}, effects)

    assert (said(16).large, said(16).small) == ("from 16", "+12% at 16, +50% at 64")
    top = said(64, at_top_of_grid=True)
    assert (top.large, top.small) == ("at 64", "+50% at 64; nothing larger was tested")
    assert said("none").kind == "never" and said("none").large == "none"
    gated = said("RESOURCE_GATED@64")
    assert (gated.kind, gated.large) == ("gated", "gated at 64")
    assert said("none", estimable=False).kind == "unknown"
    assert len({said(value).kind for value in (16, "none", "RESOURCE_GATED@64")}) == 3


def test_a_gated_level_lends_no_effect():
    rows = study({1: {1: [10.0] * 3, 2: [14.0, 15, 16]}, 4: {1: [20.0] * 3, 2: [None] * 3}})
    text = page(evidence_of(rows))
    assert "gated at 4" in text and "+50% at 1 below it" in text


def test_limitations_say_what_applies(demonstration, small):
    simulated = " ".join(limitations(demonstration))
    for said in ("simulated", "bare cell table", "Gated is not zero", "nothing above: Phi-4-mini"):
        assert said in simulated
    assert "not measured" in simulated  # communication
    other = " ".join(limitations(small))
    assert "simulated" not in other and "Gated" not in other
    assert "does not explain serving results" in other


def test_holm_changes_are_named():
    # One comparison just inside its interval among many that are not.
    rates = {1: {1: [10.0, 10, 10, 10, 10], 2: [10.2, 10.9, 10.3, 10.9, 10.3]}}
    rows = [
        row
        for number in range(6)
        for row in study(
            rates if number == 0 else {1: {1: [1.0, 2, 3], 2: [3.0, 1, 2]}}, f"m{number}"
        )
    ]
    said = " ".join(limitations(evidence_of(rows)))
    assert "the answer changes for m0 w" in said
    assert "Holm-corrected: none" in page(evidence_of(rows))


def test_one_server_a_cell_shows_a_pattern_and_no_verdict():
    evidence = evidence_of(m2_rows())
    assert headline(evidence).startswith("No verdict on TP2 against TP1")
    text = page(evidence)
    assert "not estimable" in text and "by means alone: from 16" in text
    said = " ".join(limitations(evidence))
    assert "no basis for an inference" in said and "Holm" not in said


def test_within_server_results_claim_nothing():
    rows = tuple(study({1: {1: [1.0, 2], 2: [3.0, 4]}, 4: {1: [1.0, 2], 2: [3.0, 4]}}))
    table = CellTable(rows, {"source": "rows"}, "within-server, descriptive")
    evidence = Evidence("case", analyze(table).to_dict(), cells_csv(rows))
    text = page(evidence)
    assert "no intervals and no crossovers" in text and "pays from" not in text
    assert "descriptive.csv" in tables(evidence)
    drawn = {name for name, _ in figures(evidence)}
    assert "throughput.svg" in drawn and "crossovers.svg" not in drawn


# -- tables and figures ------------------------------------------------------------------------


def test_tables_carry_the_numbers_of_the_analysis(small):
    made = tables(small)
    assert json.loads(made["analysis.json"]) == json.loads(json.dumps(small.analysis))
    assert made["cells.csv"].decode() == small.cells
    [first, *_] = read_csv(made["points.csv"])
    point = small.analysis["points"][0]["metrics"]["output_tokens_per_s"]
    assert float(first["mean_difference"]) == point["mean"]
    assert float(first["interval_high"]) == point["interval"][1]
    assert first["verdict"] == point["verdict"]
    fits = read_csv(made["communication-fits.csv"])
    assert {(row["timer"], row["fit"]) for row in fits} == {
        (timer, fit) for timer in ("host", "event", "graph") for fit in ("plain", "relative")
    }
    assert len(read_csv(made["communication-payloads.csv"])) == 9


def test_figures_are_svg_and_png_and_always_the_same(small):
    first, again = dict(figures(small)), dict(figures(small))
    names = ("throughput", "ttft", "tpot", "crossovers", "memory", "communication")
    assert set(first) == {f"{name}.{kind}" for name in names for kind in ("svg", "png")}
    for name, data in first.items():
        assert data.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
        assert data == again[name], name


def test_figures_draw_hostile_names_as_they_are(tmp_path):
    rows = [
        cell("m$^{", "w_$x", None, level, tp, n)
        for level in (1, 4)
        for tp in (1, 2)
        for n in (1, 2)
    ]
    assert len(dict(figures(evidence_of(rows)))) == 10


# -- the page ----------------------------------------------------------------------------------

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=alert(1)> {{data}} & \u2028"


def test_hostile_names_stay_text():
    rows = [
        cell(HOSTILE, "w<b>{{style}}", None, level, tp, n)
        for level in (1, 4)
        for tp in (1, 2)
        for n in (1, 2, 3)
    ]
    text = page(replace(evidence_of(rows), title=HOSTILE))
    read = Page(text)
    assert [tag for tag, _ in read.elements].count("script") == 2
    assert "img" not in [tag for tag, _ in read.elements]
    assert not [
        name for _, attributes in read.elements for name in attributes if name.startswith("on")
    ]
    assert any(HOSTILE in found for found in read.texts)  # the title, whole
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["analysis"]["design"]["models"] == [HOSTILE]
    assert "\u2028" not in data


def test_nothing_is_loaded_and_nothing_may_be(small):
    text = page(small)
    read = Page(text)
    sources = [
        value
        for _, attributes in read.elements
        for key in ("src", "href")
        if (value := attributes.get(key))
    ]
    assert set(sources) <= {"#verdicts", "data:,"}
    assert "http:" not in text.replace("http://www.w3.org/2000/svg", "") and "https:" not in text
    assert "@import" not in text and "url(" not in text.replace("url(#hatch)", "")
    policy = next(a["content"] for tag, a in read.elements if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_the_page_is_the_same_for_the_same_evidence(demonstration, small):
    assert page(demonstration) == page(demonstration)
    assert page(small) != page(demonstration)


def test_the_page_stays_small(demonstration):
    assert len(page(demonstration)) < 1_000_000


def test_simulated_is_the_first_thing_said(demonstration, small):
    said = '<p class="banner simulated" role="note">Simulated data.'
    text = page(demonstration)
    assert said in text and text.index(said) < text.index("<h1>")
    assert said not in page(small)


@given(
    st.text(), st.dictionaries(st.sampled_from(["class", "title", "data-x"]), st.text(), max_size=2)
)
def test_markup_gives_back_what_went_in(text, attributes):
    read = Page(str(element("p", attributes, text)))
    [(_, found)] = read.elements
    assert {key: value or "" for key, value in found.items()} == {
        key: value.replace("\r\n", "\n").replace("\r", "\n") if "\r" not in value else found[key]
        for key, value in attributes.items()
    }
    assert "<" not in str(join(text)) and ">" not in str(join(text))
    assert isinstance(join(["a", Markup("<b>")]), Markup)


# -- sources -----------------------------------------------------------------------------------


def test_a_sweep_directory_says_where_it_came_from(tmp_path):
    folder = write_sweep(tmp_path / "sweep")
    evidence = gather(folder)
    text = page(evidence)
    digest = load_plan(folder).digest
    for said in (ARTIFACT, FACTS, digest, "vllm serve", "0.18.1", "14,848 MiB"):
        assert said in text
    for said in ("2 \N{MULTIPLICATION SIGN} Tesla T4", "linked by PHB", "driver 580.159.04"):
        assert said in text
    assert "a-private-package" not in text
    assert "Mean seconds of a measured cell" in text and "92.5" in text
    assert evidence.title == "smoke" and not evidence.simulated


def test_checksums_are_those_of_the_raw_files(tmp_path):
    folder = write_sweep(tmp_path / "sweep")
    out = tmp_path / "report"
    publish(replace(gather(folder), communication=()), out)
    listed = (out / "raw-files.sha256").read_text()
    assert len(listed.splitlines()) == 4 + 36
    assert "cells/opt-125m.short.c1.tp1.r1/attempt-1/server.log" in listed
    for where, name in ((folder, out / "raw-files.sha256"), (out, out / "SHA256SUMS")):
        subprocess.run(["sha256sum", "--quiet", "--check", name], cwd=where, check=True)
    text = (out / "index.html").read_text()
    assert hashlib.sha256((folder / "ledger.jsonl").read_bytes()).hexdigest() in text


def test_what_did_not_go_well_is_on_the_page(tmp_path):
    states = {
        "opt-125m.long.c16.tp2.r2": "RESOURCE_GATED",
        "opt-125m.short.c1.tp1.r3": "FAILED",
    }
    folder = write_sweep(
        tmp_path / "sweep",
        states=states,
        without=lambda cell: cell.id == "opt-125m.short.c4.tp1.r1",
    )
    text = page(gather(folder))
    for said in (
        "Unfinished sweep: 1 planned cell has",
        "gated at 16",
        "the server ended with status 1",
        "repetition 3",
    ):
        assert said in text


def test_what_every_attempt_cost_adds_up(tmp_path):
    evidence = gather(write_sweep(tmp_path / "s"))
    rows = read_csv(tables(evidence)["cost.csv"])
    assert len(rows) == evidence.analysis["design"]["cells"]
    total = sum(float(row["total_s"]) for row in rows)
    assert evidence.cost["total_s"] == pytest.approx(total)
    assert sum(evidence.cost["total"].values()) == pytest.approx(total)
    assert "All, in total" in page(evidence)
    text = cost_text(evidence.cost, cells=True)
    assert "all, total" in text and rows[0]["cell"] in text


def test_one_degree_alone_is_drawn_without_a_crossover(tmp_path):
    folder = write_sweep(tmp_path / "s")
    plan = folder / "plan.toml"
    text = plan.read_text().replace("tensor_parallel = [1, 2]", "tensor_parallel = [1]")
    plan.write_text(text)
    identity = json.loads((folder / "identity.json").read_text())
    identity["plan"] = load_plan(folder).digest
    (folder / "identity.json").write_text(json.dumps(identity))
    evidence = gather(folder)
    assert "TP1 alone was tried" in page(evidence)
    drawn = {name for name, _ in figures(evidence)}
    assert "throughput.svg" in drawn and "crossovers.svg" not in drawn


def test_what_stayed_below_the_boundary_is_no_mean(tmp_path):
    folder = write_sweep(tmp_path / "s", states={"opt-125m.long.c16.tp2.r2": "RESOURCE_GATED"})
    rows = read_csv(tables(gather(folder))["points.csv"])
    [row] = [
        row
        for row in rows
        if (row["workload"], row["concurrency"], row["metric"])
        == ("long", "16", "output_tokens_per_s")
    ]
    assert row["verdict"] == "gated" and row["candidate_mean"] == "" and row["baseline_mean"] != ""


def test_a_simulated_engine_is_said_by_its_identity(tmp_path):
    folder = write_sweep(tmp_path / "sweep")
    identity = json.loads((folder / "identity.json").read_text())
    (folder / "identity.json").write_text(json.dumps({**identity, "simulated": True}))
    assert gather(folder).simulated


def test_other_sources_are_refused(tmp_path):
    with pytest.raises(NotFoundError):
        gather(tmp_path / "none.csv")
    folder = write_sweep(tmp_path / "sweep")
    (folder / "facts.json").write_text("[]")
    with pytest.raises(ContractError, match=r"facts\.json"):
        gather(folder)


# -- the command -------------------------------------------------------------------------------


def test_the_command_writes_everything(tmp_path, small):
    cells, nccl, out = tmp_path / "cells.csv", tmp_path / "nccl.jsonl", tmp_path / "out"
    cells.write_text(small.cells)
    simulate(nccl, 112, 4, design=SMALL)
    argv = [
        *("sweep", "report", "--cells", cells, "--nccl", nccl, "--out", out),
        *("--title", "A title", "--boundary", "9000", "--json"),
    ]
    result = CliRunner().invoke(main, list(map(str, argv)), catch_exceptions=False)
    assert result.exit_code == 0, result.stdout
    files = json.loads(result.stdout)["files"]
    for name, digest in files.items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest.removeprefix(
            "sha256:"
        )
    assert {"index.html", "tables/cells.csv", "figures/communication.png"} <= set(files)
    assert not list(out.rglob(".part-*"))
    text = (out / "index.html").read_text()
    assert "<h1>A title</h1>" in text and "9,000 MiB" in text
    assert "Simulated data" in text  # the communication measurement says so itself


def test_the_command_refuses_what_cannot_be_meant(tmp_path):
    folder = write_sweep(tmp_path / "sweep")
    for argv in (
        ["--out", tmp_path / "out"],
        [folder, "--cells", folder, "--out", tmp_path / "out"],
        [folder, "--out", folder / "report"],
    ):
        result = CliRunner().invoke(main, ["sweep", "report", *map(str, argv)])
        assert result.exit_code == 2, result.output


def test_without_matplotlib_the_command_says_what_to_do(tmp_path):
    # A module of that name that cannot be imported, earlier on the path.
    (tmp_path / "matplotlib.py").write_text("raise ImportError('gone', name='matplotlib')\n")
    argv = [
        sys.executable,
        "-m",
        "kvreg",
        "sweep",
        "report",
        tmp_path,
        "--out",
        tmp_path.parent / "o",
    ]
    run = subprocess.run(
        argv,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert run.returncode == 3 and "there is no matplotlib here" in run.stderr


def test_the_help_of_both_commands_has_examples():
    for argv in (["sweep", "report"], ["nccl"], ["nccl", "fit"]):
        text = CliRunner().invoke(main, [*argv, "--help"]).stdout
        assert "Examples:\n" in text and "kvreg " in text
