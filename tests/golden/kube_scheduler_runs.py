"""Golden cases of decisions of an unchanged kube-scheduler: the whole decision, under its own configuration.

A file holds clusters, and decisions about one pending pod each; a decision names the objects that its cluster had in
addition (`with`) and those that were deleted (`without`). Here a cluster is made once, with one scheduling loop over
it, and follows the decisions by the objects that differ: so the queue's gates and the nominator receive changes as they
do in service.

DynamicResources is not built: its score, which is always 0 there, and its words in messages are left out.

Where nodes report different sizes of an image, the plugin ImageLocality works with the sizes of the recorded run, found
from all of its scores (see `image_sizes`); where no sizes explain them all, with those that it takes by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.builtin_plugins.scheduler.kubernetes.image_locality import ImageLocality, first_size, images_of
from koordpolicy.engine.cluster.cluster import Cluster
from koordpolicy.engine.cluster.objects.metrics import nanoseconds
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.registry import Live, Plugin, Registry
from koordpolicy.engine.scheduler.cycle.loop import SchedulingLoop
from koordpolicy.engine.scheduler.cycle.schedule_one import Settings
from koordpolicy.engine.scheduler.profiles.configuration import read
from koordpolicy.engine.scheduler.verdict.verdict import Verdict
from koordpolicy.engine.source import Source
from koordpolicy.plugin import Handle
from koordpolicy.testing import FakeClock

from .image_sizes import Observation, Sizes, sizes_of_run
from .result import Result

SUITE: Final = "kube_scheduler_runs"
_NOT_BUILT: Final = frozenset({"DynamicResources"})
_IMAGE_LOCALITY: Final = "ImageLocality"
_FAILED: Final = ". not found"

Json = Mapping[str, Any]
_Found = tuple[tuple[int, int], str]
"""The numbers of values of a part that agree and of all, and the differences (empty if there are none)."""


def parts(path: Path, *, full: bool = False) -> Sequence[str]:
    """Return the ids of the clusters that decisions were made about."""
    return list(dict.fromkeys(str(case["cluster"]) for case in _read(path)["cases"]))


def run(path: Path, *, full: bool = False) -> Iterator[Result]:
    """Yield the result of every decision of the file, cluster by cluster."""
    for part in parts(path, full=full):
        yield from run_part(path, part, full=full)


def run_part(path: Path, part: str, *, full: bool = False) -> Iterator[Result]:
    """Yield the results of the decisions about one cluster."""
    content = _read(path)
    cluster = next(each for each in content["clusters"] if each["id"] == part)
    cases = [case for case in content["cases"] if case["cluster"] == part]
    replay = _Replay(cluster, _image_sizes(cluster, cases))
    for case in cases:
        yield _result(case, replay)


def _image_sizes(cluster: Json, cases: Iterable[Json]) -> Sizes:
    """Return the sizes of images that the recorded run worked with; empty if nodes agree on them all, or if unknown."""
    holders: dict[str, dict[str, int]] = {}
    for node in (each for each in cluster["objects"] if each["kind"] == "Node"):
        for name, size in _reported(node).items():
            holders.setdefault(name, {})[node["metadata"]["name"]] = size
    if all(len(set(sizes.values())) == 1 for sizes in holders.values()):
        return {}
    replay = _Replay(cluster, {})
    observations = [found for case in cases if (found := replay.observe(case)) is not None]
    return sizes_of_run(observations, holders) or {}


def _reported(node: Json) -> dict[str, int]:
    images = node.get("status", {}).get("images", ())
    return {name: image["sizeBytes"] for image in reversed(images) for name in image["names"]}


def _result(case: Json, replay: _Replay) -> Result:
    try:
        found = _compare(replay.decide(case), case["expect"])
    except Exception as error:  # one decision must not hide the others
        return Result(SUITE, case["id"], False, f"stopped by {type(error).__name__}: {error}")
    agreement = {part: agrees for part, (agrees, _) in found.items()}
    different = {part: text for part, (_, text) in found.items() if text}
    detail = "; ".join(f"{part}: {text}" for part, text in different.items())
    return Result(SUITE, case["id"], not different, detail, agreement)


class _Replay:
    """One cluster with the scheduler that decides about it."""

    def __init__(self, content: Json, image_sizes: Sizes) -> None:
        self._base = {_key(each): each for each in content["objects"]}
        self._later: Json = content["later"]
        self._objects: dict[tuple[str, str], Json] = {}
        self._cluster = Cluster()
        self._follow(self._base)
        self._clock = FakeClock(0)
        registry = Registry.of(_plugins(image_sizes), generation=1)
        configuration = read(Source("config.json", json.dumps(content["config"])), registry)
        self._loop = SchedulingLoop(self._cluster, Live(registry), Settings(configuration.profiles), clock=self._clock)

    def decide(self, case: Json) -> Verdict:
        """Return the decision about a case's pod, in the cluster as it was by then."""
        wanted = dict(self._base)
        for key in case.get("without", ()):
            del wanted["Pod", key]
        wanted |= {_key(self._later[name]): self._later[name] for name in case.get("with", ())}
        pod = {"kind": "Pod", **case["pod"]}
        self._clock.now = nanoseconds(case["now"], "now")
        self._follow(wanted)
        self._cluster.upsert(pod)
        kind, key = _key(pod)
        try:
            gated = [verdict for verdict in self._loop.gated_verdicts() if verdict.pod.key == key]
            verdict = gated[0] if gated else self._loop.scheduler.decide(PodInfo.of(pod))
            return verdict.explained()
        finally:
            self._cluster.delete(kind, key)

    def observe(self, case: Json) -> Observation | None:
        """Return the recorded scores of ImageLocality for a case's pod; None if there are none or the case fails."""
        recorded = case["expect"]["scores"].get(_IMAGE_LOCALITY)
        if not recorded:
            return None
        try:
            verdict = self.decide(case)
        except Exception:  # it is reported where the case itself is decided
            return None
        weight = next((step.weight for step in verdict.scores if step.plugin == _IMAGE_LOCALITY), None)
        if weight is None:
            return None
        reported: dict[str, dict[int, int]] = {}
        for row, name in enumerate(verdict.names):
            for image, size in _reported(self._objects["Node", name]).items():
                reported.setdefault(image, {})[row] = size
        scores = {row: recorded[name] // weight for row, name in enumerate(verdict.names) if name in recorded}
        images = images_of(PodInfo.of(case["pod"]), volumes=True)
        return Observation(len(verdict.names), images, reported, scores)

    def _follow(self, wanted: Mapping[tuple[str, str], Json]) -> None:
        for kind, key in self._objects.keys() - wanted.keys():
            self._cluster.delete(kind, key)
        problems = self._cluster.upsert_all(
            item for key, item in wanted.items() if self._objects.get(key) is not item
        )
        if problems:
            raise ValueError("; ".join(problem.message for problem in problems))
        self._objects = dict(wanted)


def _plugins(image_sizes: Sizes) -> Iterator[Plugin]:
    def size_of(image: str, sizes: Mapping[int, int]) -> int:
        return image_sizes.get(image, first_size(image, sizes))

    def make(args: Mapping[str, Any], handle: Handle) -> ImageLocality:
        return ImageLocality(args, handle, one_size=size_of)

    for plugin in PLUGINS:
        yield replace(plugin, make=make) if plugin.name == _IMAGE_LOCALITY and image_sizes else plugin


def _compare(verdict: Verdict, expect: Json) -> dict[str, _Found]:
    """Return each part of a decision that says something here; a part is compared whatever the others are."""
    bound, possible = expect["outcome"] == "bound", expect["outcome"] != "SchedulingGated"
    found = {"feasible": _feasible(verdict, expect["feasible"])} if possible else {}
    if expect["scores"]:
        found["scores"] = _scores(verdict, expect["scores"])
        totals = dict(verdict.best())
        found["totals"] = _by_node(totals, expect["totals"])
    if not bound:
        found["message"] = _said(verdict.message(), expect["message"])
    nomination = verdict.nomination
    found["nominated"] = _same(None if nomination is None else nomination.node, expect["nominated"])
    if expect["nominated"]:
        found["victims"] = _same(
            None if nomination is None else _deleted(nomination.victims), sorted(expect["victims"]),
        )
    return found


def _feasible(verdict: Verdict, wanted: Sequence[str]) -> _Found:
    # A pod that was refused as a whole has no feasible node, whatever it would have passed.
    passed = [] if verdict.refusal is not None else [verdict.names[row] for row in verdict.passed.tolist()]
    lacks, has = sorted(set(wanted) - set(passed)), sorted(set(passed) - set(wanted))
    texts = [f"{word} {', '.join(names)}" for word, names in (("lacks", lacks), ("has", has)) if names]
    return (int(not texts), 1), " and ".join(texts)


def _scores(verdict: Verdict, wanted: Mapping[str, Mapping[str, int]]) -> _Found:
    """Compare weighted scores plugin by plugin; one that had nothing to score may be absent or 0 everywhere."""
    found = {
        step.plugin: {verdict.names[row]: int(step.scores.values[row]) * step.weight for row in verdict.passed.tolist()}
        for step in verdict.scores
    }
    agreeing = compared = 0
    texts = []
    for plugin in sorted({*found, *wanted} - _NOT_BUILT):
        ours, theirs = found.get(plugin, {}), wanted.get(plugin)
        if theirs is None:
            theirs = dict.fromkeys(ours, 0)
        (right, of), text = _by_node(ours, theirs)
        agreeing, compared = agreeing + right, compared + of
        if text:
            texts.append(f"{plugin} {text}")
    return (agreeing, compared), ", ".join(texts)


def _by_node(found: Mapping[str, int], wanted: Mapping[str, int]) -> _Found:
    different = [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]
    text = ""
    if different:
        first = different[0]
        more = f" and {len(different) - 1} more" if len(different) > 1 else ""
        text = f"({first} is {found.get(first)}, expected {wanted.get(first)}{more})"
    return (sum(found.get(name) == value for name, value in wanted.items()), len(wanted)), text


def _same(found: object, wanted: object) -> _Found:
    return (int(found == wanted), 1), "" if found == wanted else f"is {found!r}, expected {wanted!r}"


def _said(found: str, wanted: str) -> _Found:
    """Compare two messages but for the words of DynamicResources.

    It says that it has no claims to give back before what preemption says; where a preFilter before its own refused the
    pod, its postFilter fails (`not found`), and no post-filter runs.
    """
    if wanted.endswith(_FAILED):
        return _same(found.partition(" preemption: ")[0], wanted.removesuffix(_FAILED) + ".")
    return _same(found, wanted.replace("no new claims to deallocate, ", ""))


def _deleted(victims: Sequence[PodInfo]) -> list[str]:
    """Return the pods that are deleted, without those that terminate already."""
    return sorted(each.key for each in victims if "deletionTimestamp" not in each.object["metadata"])


def _key(item: Json) -> tuple[str, str]:
    metadata = item["metadata"]
    namespace = metadata.get("namespace")
    return item["kind"], f"{namespace}/{metadata['name']}" if namespace else metadata["name"]


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content
