"""Golden cases of the resource executor, run on a tree of plain files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from koordpolicy.engine.agent.host.control_groups import ROOT, ControlGroups
from koordpolicy.engine.agent.resource_executor.executor import ResourceExecutor
from koordpolicy.engine.agent.resource_executor.levels import merge
from koordpolicy.engine.agent.resource_executor.results import FileWriteResult, FileWriteStatus
from koordpolicy.engine.agent.resource_executor.table import FILES, logical_name
from koordpolicy.engine.agent.resource_executor.tree import FileTree
from koordpolicy.engine.agent.resource_executor.values import shares_to_weight, whole_number
from koordpolicy.engine.framework.qos import Adjustment

Case = Mapping[str, Any]
_LOOKED_AT = (FileWriteStatus.WRITTEN, FileWriteStatus.UNCHANGED)


class _Files:
    """A machine of plain files with one control group file, at the root of its hierarchy."""

    def __init__(self, directory: str, version: int, file: str) -> None:
        self.name = f"{ROOT}/{logical_name(file)}"
        subsystem = FILES[logical_name(file)].subsystem
        self.executor = ResourceExecutor(FileTree(ControlGroups(
            version, "cgroupfs", {"" if version == 2 else subsystem: directory},
        )))
        self.place = self.executor.tree.place(self.name)

    def fill(self, content: str) -> None:
        for path in {self.place.path, self.place.read_path}:
            Path(path).write_text(content, encoding="utf-8")

    def content(self) -> str:
        return Path(self.place.path).read_text(encoding="utf-8")

    def write(self, text: str, *, cached: bool) -> FileWriteResult:
        adjustment = Adjustment("cgroup", "node", "a case", writes=((self.name, text),), recovers=not cached)
        return self.executor.apply((adjustment,), 0)[0].writes[0]


def _merge_update(case: Case) -> dict[str, Any]:
    inputs = case["inputs"]
    with tempfile.TemporaryDirectory() as directory:
        files = _Files(directory, inputs["cgroup_version"], inputs["file"])
        files.fill(inputs["content_before"])
        files.executor.start(0)
        contents = []
        try:
            merged = merge(files.name, files.executor.tree.read(files.name), inputs["new_value"])
        except ValueError:
            return {"error": True, "after_merge_pass": None, "after_update_pass": None}
        for text in (merged, inputs["new_value"]):
            if text is not None and files.write(text, cached=False).failed:
                return {"error": True, "after_merge_pass": None, "after_update_pass": None}
            contents.append(files.content())
        return {"error": False, "after_merge_pass": contents[0], "after_update_pass": contents[1]}


def _executor_update(case: Case) -> dict[str, Any]:
    inputs = case["inputs"]
    with tempfile.TemporaryDirectory() as directory:
        files = _Files(directory if inputs["path_exists"] else f"{directory}/gone", inputs["cgroup_version"],
                       inputs["file"])
        if inputs["path_exists"]:
            files.fill("")
        if inputs["executor_started"]:
            files.executor.start(0)
        try:
            result = files.write(inputs["value"], cached=inputs["cacheable"])
        except RuntimeError:
            return {"updated": False, "error": True}
    # koordlet calls every attempt of an uncached write an update
    return {"updated": not inputs["cacheable"] or result.status in _LOOKED_AT, "error": result.failed}


def _cpu_shares_to_weight(case: Case) -> dict[str, Any]:
    try:
        return {"weight": shares_to_weight(whole_number(case["inputs"]["shares"])), "error": False}
    except ValueError:
        return {"weight": None, "error": True}


RUNNERS: Mapping[str, Callable[[Case], dict[str, Any]]] = {
    "merge_update": _merge_update,
    "executor_update": _executor_update,
    "cpu_shares_to_weight": _cpu_shares_to_weight,
}
