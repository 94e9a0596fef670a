"""Promotion of the shadow; does not depend on HTTP."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.reload.admin import AdminRefusal
from koordpolicy.engine.reload.file_changes import file_changes, files_of, to_json
from koordpolicy.engine.reload.history import SHORTEST_HASH, GenerationRecord
from koordpolicy.engine.reload.mount import Mount
from koordpolicy.engine.reload.publish import content_of
from koordpolicy.engine.reload.reloader import Reloader
from koordpolicy.engine.reload.status import BLOCKED
from koordpolicy.engine.source import PolicyError

from .shadow import Shadow, ShadowResult

DECISIONS: Final = 1000
"""The default minimum number of decisions before a promotion."""
MOST_DIFFERENCES: Final = 0.001
"""The default maximum part of differing decisions."""

_MOST_DECISIONS: Final = 1_000_000_000
_EXAMPLES: Final = 5
_FIELDS: Final = ("decisions", "maxDifferences", "hash", "active", "dryRun")


@dataclass(frozen=True, slots=True)
class PromotionRequest:
    """The requirements of a promotion: the minimum number of decisions, and the maximum part (0 to 1) that differ."""

    decisions: int = DECISIONS
    differences: float = MOST_DIFFERENCES
    hash: str = ""
    """The beginning of the hash that is expected in the shadow (of the registry, or of the directory)."""
    active: str = ""
    """The hash of the registry that is expected to be active; empty for any."""
    dry_run: bool = False
    """True to return the effect of a promotion, and change nothing."""

    @classmethod
    def of(cls, data: object) -> PromotionRequest:
        """Read a request; raises `ValueError` with what is wrong with it."""
        if not isinstance(data, dict):
            raise ValueError("the body must be an object")  # noqa: TRY004 - one kind of error for the reader of a body
        unknown = sorted(map(str, data.keys() - set(_FIELDS)))
        if unknown:
            fields = ", ".join(f"`{each}`" for each in _FIELDS)
            raise ValueError(f"`{unknown[0][:80]}` is not a field: there are {fields}")
        decisions, part = data.get("decisions", DECISIONS), data.get("maxDifferences", MOST_DIFFERENCES)
        if not isinstance(decisions, int) or isinstance(decisions, bool) or not 0 < decisions <= _MOST_DECISIONS:
            raise ValueError(f"`decisions` must be a whole number from 1 to {_MOST_DECISIONS}")
        if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
            raise ValueError("`maxDifferences` must be a number from 0 to 1")
        expected = data.get("hash", "")
        if not isinstance(expected, str):
            raise ValueError("`hash` must be a string")  # noqa: TRY004 - as above
        if expected and len(expected) < SHORTEST_HASH:
            raise ValueError(f"`hash` must be a hash, or at least its first {SHORTEST_HASH} digits")
        active, dry_run = data.get("active", ""), data.get("dryRun", False)
        if not isinstance(active, str):
            raise ValueError("`active` must be a string")  # noqa: TRY004 - as above
        if not isinstance(dry_run, bool):
            raise ValueError("`dryRun` must be true or false")  # noqa: TRY004 - as above
        return cls(decisions, float(part), expected, active, dry_run)


@dataclass(frozen=True, slots=True)
class Promotion:
    """A shadow that may be promoted: the files to write, and their target."""

    path: str
    files: dict[str, bytes] = field(repr=False)
    over: str
    """The hash of the registry that it was compared with."""
    facts: dict[str, Any]

    def begin(self, reloader: Reloader) -> Future[GenerationRecord]:
        """Write the files and activate them; see `Reloader.publish`."""
        return reloader.publish(self.path, self.files, over=self.over)


def judge(shadow: Shadow | None, reloader: Reloader, request: PromotionRequest) -> Promotion:
    """Return the promotion of the shadow; reads its files, so it may wait for the disk.

    Raises:
        AdminRefusal: there is no shadow, too many decisions differ, or it cannot be published from here.
    """
    if shadow is None:
        raise AdminRefusal("there is no shadow: start the server with `--shadow DIR`", "no-shadow")
    status, agreement = shadow.reloader.status(), shadow.agreement
    problems = [problem.message for source in status.sources for problem in source.problems]
    source = status.sources[0]
    record = status.history[-1] if status.history else None
    if not shadow.ready or problems or record is None or not record.versions[source.path].hashes:
        why = "; ".join(problems[:3]) or "its directory holds no policies"
        raise AdminRefusal(f"there is no valid set in the shadow: {why}", "shadow-invalid")
    if record.digest != agreement.shadow:
        raise AdminRefusal("what is in the shadow has just changed: 0 decisions were compared", "not-enough")
    hashes = {"hash": record.digest, "directoryHash": source.digest, "active": agreement.active}
    if request.hash and not any(each and each.startswith(request.hash) for each in hashes.values()):
        raise AdminRefusal(f"`{record.digest}` is in the shadow (its directory's hash is `{source.digest}`), not "
                      f"`{request.hash[:80]}`", "other-hash", hashes)
    if agreement.shadow == agreement.active:
        raise AdminRefusal(f"`{agreement.active}` is active already", "in-force", hashes)
    if request.active and request.active != agreement.active:
        raise AdminRefusal(f"`{agreement.active}` is active, not `{request.active[:80]}`", "other-active", hashes)
    tally = agreement.tally
    compared, differing = tally.compared, tally.count(ShadowResult.DIFFERS) + tally.count(ShadowResult.ERROR)
    comparison: dict[str, Any] = tally.to_json(_EXAMPLES) | {"failing": dict(agreement.failing)}
    facts = hashes | {"comparison": comparison}
    if differing > request.differences * max(compared, request.decisions):
        raise AdminRefusal(
            f"{differing} of {compared} decisions differ, and at most {100 * request.differences:g} % may",
            "differs",
            facts,
        )
    if compared < request.decisions:
        raise AdminRefusal(
            f"{compared} decisions were compared so far, {differing} of them differ; {request.decisions} are wanted",
            "not-enough",
            facts,
        )
    targets = reloader.status().sources
    if len(targets) != 1:
        paths = ", ".join(f"`{each.path}`" for each in targets)
        raise AdminRefusal(
            f"the shadow agrees, and which of {paths or 'no `--policies`'} it is to replace cannot be known: "
            "publish it by hand",
            "not-publishable",
            facts,
        )
    target = targets[0]
    refused = [problem.message for problem in target.problems if problem.code != BLOCKED]
    if refused:
        raise AdminRefusal(f"`{target.path}` holds a version that is not active, which would be lost: {refused[0]}",
                      "policies-invalid", facts)
    try:
        files = content_of(Mount(source.path), record.versions[source.path])
    except PolicyError as error:
        raise AdminRefusal(error.problems[0].message, error.problems[0].code, facts) from None
    return Promotion(target.path, files, agreement.active, facts)


def changes_of(shadow: Shadow | None, reloader: Reloader) -> dict[str, Any]:
    """Return the files that a promotion would change, as `file_changes.to_json` does; empty without a valid shadow."""
    status = None if shadow is None else shadow.reloader.status()
    if status is None or not status.history or any(source.problems for source in status.sources):
        return {}
    active = reloader.status().history
    return to_json(file_changes(files_of(active[-1] if active else None), files_of(status.history[-1])))
