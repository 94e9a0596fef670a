"""Shipped suites with one odd value at any place: each is refused at its place, or its cases pass or fail."""

from __future__ import annotations

import contextlib
import random
import shutil
from pathlib import Path

import pytest
import yaml

from koordpolicy.__main__ import builtins
from koordpolicy.engine.documents.nodes import read, to_plain
from koordpolicy.engine.source import PolicyError, Source
from koordpolicy.engine.testing.cases import run_case
from koordpolicy.engine.testing.suites import cases_of, load_suites
from tests.odd_values import ODD, places, with_value

POLICIES = Path(__file__).parents[3] / "policies"
TRIED = 300


@pytest.mark.parametrize("suite", [
    "descheduler/protect-system-pods", "qos/limit-best-effort-io", "scheduler/node-affinity",
])
def test_a_suite_with_an_odd_value_anywhere_is_refused_or_its_cases_pass_or_fail(suite: str, tmp_path: Path):
    source = POLICIES / f"{suite}.test.yaml"
    shutil.copy(POLICIES / f"{suite}.yaml", tmp_path)
    path, content = tmp_path / source.name, to_plain(read(Source(source.name, source.read_text()))[0])
    chance, below = random.Random(0), [each for each in places(content) if each[:1] == ("spec",)]
    for _ in range(TRIED):
        place, value = chance.choice(below), chance.choice(ODD)
        path.write_text(yaml.safe_dump(with_value(content, place, value), allow_unicode=True))
        with contextlib.suppress(PolicyError):
            for each, case in cases_of(load_suites([path], tuple(builtins())).suites):
                assert all(mismatch.about for mismatch in run_case(each, case).mismatches), (place, value)


@pytest.mark.parametrize(("change", "told"), [
    ("pods: {web: {object: {metadata: true}}}", "an object of the kind Pod has no `metadata.name`"),
    ("pods: {web: {object: {metadata: {name: null}}}}", "an object of the kind Pod has no `metadata.name`"),
    ("nodes: {cool: {object: {metadata: []}}}", "an object of the kind Node has no `metadata.name`"),
])
def test_a_fixture_whose_object_has_no_name_is_no_fixture(misses, change: str, told: str):
    assert misses(f"- {{name: nameless, pod: web, nodes: [cool], filter: pass, with: {{{change}}}}}") == {
        "nameless": [f"the case: a case that can run | {told}"],
    }
