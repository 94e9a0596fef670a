"""Files of a recorded node: the text of each after a write, as the kernel would print it.

Most files have the text that was written. Some take one line or one word per write and change only what it names:
`schemata` and `tasks` of resctrl groups, the limits of block devices, the features of the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Final

from .qos_manager.block_io import MODEL_FILE, QOS_FILE, THROTTLES, WEIGHT_FILE
from .qos_manager.resctrl import format_line, parse_schemata
from .qos_manager.sysctl import SCHED_FEATURES_FILE, feature_states


def apply_writes(files: MutableMapping[str, str], writes: Iterable[tuple[str, str]]) -> None:
    """Apply writes in order; a task that is moved leaves its present resctrl group."""
    for file, text in writes:
        name = file.rpartition("/")[2]
        if file.startswith("resctrl/") and name == "tasks":
            for other in [each for each in files if each.startswith("resctrl/") and each.endswith("/tasks")]:
                files[other] = _without_task(files[other], text)
        merge = _sched_features if file == SCHED_FEATURES_FILE else _MERGES.get(name)
        files[file] = text if merge is None else merge(files.get(file, ""), text)


def _without_task(present: str, task: str) -> str:
    return "\n".join(line for line in present.split() if line != task.strip())


def _tasks(present: str, text: str) -> str:
    return "\n".join((*present.split(), text.strip()))


def _schemata(present: str, text: str) -> str:
    values = parse_schemata(present)
    for kind, changed in parse_schemata(text).items():
        values[kind] = {**values.get(kind, {}), **changed}
    return "\n".join(format_line(kind, caches).rstrip("\n;") for kind, caches in values.items())


def _throttle(present: str, text: str) -> str:
    return "\n".join(f"{disk} {value}" for disk, value in _disks(present, text).items() if value != "0")


def _per_disk(present: str, text: str) -> str:
    return "\n".join(f"{disk} {value}" for disk, value in _disks(present, text).items())


def _disks(present: str, text: str) -> Mapping[str, str]:
    pairs = (line.strip().partition(" ") for line in (*present.splitlines(), *text.splitlines()))
    return {disk: value.strip() for disk, _, value in pairs if disk}


def _sched_features(present: str, text: str) -> str:
    states = {**feature_states(present), **feature_states(text)}
    return " ".join(name if on else f"NO_{name}" for name, on in states.items())


_MERGES: Final[Mapping[str, Callable[[str, str], str]]] = {
    "tasks": _tasks, "cgroup.procs": _tasks, "schemata": _schemata,
    **dict.fromkeys(THROTTLES.values(), _throttle),
    **dict.fromkeys((WEIGHT_FILE, QOS_FILE, MODEL_FILE), _per_disk),
}
