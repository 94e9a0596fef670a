from __future__ import annotations

import math
import re

from koordpolicy.engine.experiments import plots
from koordpolicy.engine.experiments import presentation as shown
from koordpolicy.engine.experiments.axes import Axis, points
from koordpolicy.engine.experiments.journal import ExperimentOutcome
from koordpolicy.engine.experiments.plots import BarGroups, Panel
from koordpolicy.engine.experiments.report import page
from koordpolicy.engine.experiments.sweep import Finished, Swept

AXES = (Axis("workload", ("default", "cpu<0>")), Axis("policy", ("BestFit", "FGD")), Axis("seed", (42, 43)))


def outcome(point):
    best = 95.0 if point["policy"] == "FGD" else 93.0
    curve = [min(float(x), best + (point["seed"] - 42.5)) for x in range(131)]
    return ExperimentOutcome(
        {"gpu_alloc_pct": curve[-1], "frag_amount_pct": 5.0, "frag_ratio_pct": 99.0, "failed": 2500 + point["seed"]},
        {"gpu_alloc_pct": curve, "frag_amount_pct": [None] * 131, "frag_ratio_pct": curve},
    )


SWEPT = Swept(tuple(Finished(point, outcome(point)) for point in points(AXES)), (), 0)


def test_means_are_taken_over_seeds_for_each_other_combination():
    found = shown.summary(SWEPT.finished, shown.REPLAYS)
    assert (found.axes, found.counts) == (("workload", "policy"), {"failed"})
    assert [(values, runs, figures[0]) for values, runs, figures in found.rows] == [
        (("default", "BestFit"), 2, (93.0, math.sqrt(0.5))), (("default", "FGD"), 2, (95.0, math.sqrt(0.5))),
        (("cpu<0>", "BestFit"), 2, (93.0, math.sqrt(0.5))), (("cpu<0>", "FGD"), 2, (95.0, math.sqrt(0.5)))]


def test_a_line_is_the_mean_over_seeds_and_each_workload_has_its_own_panels():
    drawn = shown.panels(SWEPT.finished, shown.REPLAYS)
    assert list(drawn) == ["", "default", "cpu<0>"]
    allocation = drawn["default"][0]
    assert isinstance(allocation, Panel)
    assert [line.label for line in allocation.lines] == ["BestFit", "FGD"]
    best_fit = allocation.lines[0]
    assert (best_fit.mean[50], best_fit.deviation[50], best_fit.mean[130], best_fit.deviation[130]) == (
        50.0, 0.0, 93.0, math.sqrt(0.5))
    overview = drawn[""]
    assert all(isinstance(each, BarGroups) for each in overview)
    assert overview[0].values == (
        ("BestFit", (93.0, 93.0), (math.sqrt(0.5),) * 2), ("FGD", (95.0, 95.0), (math.sqrt(0.5),) * 2),
    )


def test_figures_are_drawn_over_the_axis_that_is_a_number():
    axes = (Axis("params.cpuPercent", (55, 60, 65)), Axis("policy", ("a", "b")))
    finished = [
        Finished(point, ExperimentOutcome({"pending": point["params.cpuPercent"], "hot": None}))
        for point in points(axes)
    ]
    (panels,) = shown.panels(finished, shown.SNAPSHOTS).values()
    assert [(each.y, each.x, [(line.label, line.x, line.mean) for line in each.lines]) for each in panels] == [
        ("pending", "params.cpuPercent", [(label, (55.0, 60.0, 65.0), (55.0, 60.0, 65.0)) for label in "ab"])]


def test_the_page_needs_nothing_but_itself_and_escapes_what_is_written():
    text = page(SWEPT, AXES, shown.REPLAYS, title="a < b", about="koord-policy")
    assert not re.search(r"""(src|href)=["'](?!#)""", re.sub(r'xlink:href="#', 'href="#', text))
    assert "<script" not in text
    assert "<h1>a &lt; b</h1>" in text
    assert "Workload cpu&lt;0&gt;" in text
    assert text.count("<svg") == 3
    ids = re.findall(r'\bid="([^"]+)"', text)
    clips = [each for each in ids if each.startswith("p") and len(each) == 11]
    assert len(clips) == len(set(clips))
    assert text.count('class="number best"') == 2


def test_the_same_sweep_makes_the_same_page():
    pages = {page(SWEPT, AXES, shown.REPLAYS, title="t", about="a") for _ in range(2)}
    assert len(pages) == 1


def test_experiments_that_were_not_run_are_told_on_the_page():
    swept = Swept((), (({"seed": 1}, "a < b"), ({"seed": 2}, "a < b")), 0)
    assert "2 experiments could not be run.<br>2: a &lt; b" in page(swept, AXES, shown.REPLAYS, title="t", about="a")


def test_a_picture_is_a_png():
    assert plots.png(shown.panels(SWEPT.finished[:4], shown.REPLAYS)["default"][:1]).startswith(b"\x89PNG\r\n")
