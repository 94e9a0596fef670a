from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from koordpolicy.__main__ import builtins
from koordpolicy.engine import cli
from koordpolicy.engine.client.informer import Change, InformerView
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import Builder, Reloader
from koordpolicy.engine.reload.api_source import ObjectSource
from koordpolicy.engine.reload.object_status import status_of

HERE = Path(__file__).parent
MOMENT = 1_769_860_800_000_000_000


def applied(file: str, generation: int = 1) -> Change:
    body = yaml.safe_load((HERE / file).read_text())
    body["metadata"] |= {"uid": "u", "generation": generation}
    return Change(body["kind"], "", body["metadata"]["name"], "u", msgspec.Raw(json.dumps(body).encode()))


def test_the_status_is_that_of_the_readme():
    source, states = ObjectSource(), []
    source.follow(lambda: [InformerView(synced=True)])

    class Observer:
        def started(self) -> None:
            pass

        def published(self, found: Any) -> None:
            states[:] = found

        def closed(self) -> None:
            pass

    source.deliver([applied("limits.yaml"), applied("keep-off-hot-nodes.yaml")])
    reloader = Reloader(Live(), [source], Builder(), observers=[Observer()])
    reloader.begin(0.0)
    first = source.objects["SchedulerPlugin/keep-off-hot-nodes"]
    good = status_of(first, states[0], {}, MOMENT)
    source.deliver([applied("edited.yaml", 2)])
    for now in (1.0, 1.1):
        reloader.step(now)
    edited = status_of(source.objects["SchedulerPlugin/keep-off-hot-nodes"], states[0], {first.digest: 1}, MOMENT)
    assert good is not None
    assert edited is not None
    (block,) = (each for each in (HERE / "README.md").read_text().split("```") if each.startswith("yaml\nstatus:"))
    shown = yaml.safe_load(block.removeprefix("yaml\n"))["status"]
    assert [good["conditions"][0]["status"], good["activeGeneration"]] == ["True", 1]
    assert shown == {field: edited[field] for field in shown}
    assert {"observedGeneration", "activeGeneration", "conditions", "errors"} == set(shown)


def test_the_definitions_have_the_kinds_of_the_example(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["crd"], builtins) == 0
    kinds = {each["spec"]["names"]["kind"] for each in yaml.safe_load_all(capsys.readouterr().out)}
    assert {applied(file.name).kind for file in HERE.glob("*.yaml")} <= kinds
