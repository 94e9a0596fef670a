"""Limits of block devices: blocks of the QoS strategy, their disks, and the lines of the `blkio` files.

Pure functions; files and defaults are Koordinator's (blkio_reconcile.go). A file holds one line per disk (`8:0 1000`),
and a write changes the line of the disk that it names. Only files that exist are written: weights and models need a
kernel that has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cel.values.values import EvaluationError
from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.framework.qos import Storage

from .node_slo import SLOSection
from .suppression import Writes

DEVICE: Final = "device"
VOLUME_GROUP: Final = "volumegroup"
POD_VOLUME: Final = "podvolume"

THROTTLES: Final[Mapping[str, str]] = {
    "readIOPS": "blkio.throttle.read_iops_device", "readBPS": "blkio.throttle.read_bps_device",
    "writeIOPS": "blkio.throttle.write_iops_device", "writeBPS": "blkio.throttle.write_bps_device",
}
"""The file of each limit per second; 0 means no limit."""
WEIGHT_FILE: Final = "blkio.cost.weight"
QOS_FILE: Final = "blkio.cost.qos"
MODEL_FILE: Final = "blkio.cost.model"
FULL_WEIGHT: Final = 100

_QOS: Final[Mapping[str, tuple[str, int]]] = {
    "rpct": ("readLatencyPercent", 95), "rlat": ("readLatency", 3000),
    "wpct": ("writeLatencyPercent", 95), "wlat": ("writeLatency", 3000),
}
_MODEL: Final[Mapping[str, str]] = {
    "rbps": "modelReadBPS", "rseqiops": "modelReadSeqIOPS", "rrandiops": "modelReadRandIOPS",
    "wbps": "modelWriteBPS", "wseqiops": "modelWriteSeqIOPS", "wrandiops": "modelWriteRandIOPS",
}
_MOUNT: Final = "/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/{volume}/mount"


@dataclass(frozen=True, slots=True)
class Block:
    """A block device with its limits: the name, its type (`device`, `volumegroup` or `podvolume`), and the numbers.

    `numbers` has the keys of Koordinator's `ioCfg`; an absent one means no limit.
    """

    name: str
    type: str
    numbers: Mapping[str, int] = field(default_factory=dict)
    user_model: bool = False


def read_blocks(owner: SLOSection | None) -> tuple[Block, ...]:
    """Return the blocks of a `blkioQOS` section; none if it is absent or disabled.

    Raises `EvaluationError` with the path of a value that is of the wrong type or out of range.
    """
    if owner is None or owner.flag("enable") is False:
        return ()
    found = []
    for each in owner.each("blocks"):
        config = each.sub("ioCfg") or SLOSection({}, f"{each.path}.ioCfg")
        numbers = {}
        for name in (*THROTTLES, "ioWeightPercent", *(name for name, _ in _QOS.values()), *_MODEL.values()):
            value = config.whole(name)
            if value is not None:
                numbers[name] = _in_range(name, value, f"{config.path}.{name}")
        user_model = config.flag("enableUserModel") or False
        lacking = [f"`{name}`" for name in _MODEL.values() if name not in numbers]
        if user_model and lacking:
            raise EvaluationError(f"{config.path}: `enableUserModel` needs {', '.join(lacking)}")
        found.append(Block(each.text("name"), each.text("type"), numbers, user_model))
    return tuple(found)


def _in_range(name: str, value: int, path: str) -> int:
    lowest, highest = 0, None
    if name == "ioWeightPercent":
        lowest, highest = 1, 100
    elif name in _MODEL.values():
        lowest = 1
    elif name.endswith("LatencyPercent"):
        highest = 100
    if value < lowest or (highest is not None and value > highest):
        allowed = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
        raise EvaluationError(f"`{path}` must be {allowed}, not {value}")
    return value


def disk_of(name: str, kind: str, storage: Storage, pod: PodInfo | None = None) -> str:
    """Return the number (`MAJ:MIN`) of a block's disk.

    Raises `EvaluationError` if there is no such device, volume group or mounted volume, or a `podvolume` is not a
    pod's.
    """
    number: str | None
    if kind == DEVICE:
        bare = name.removeprefix("/dev/")
        number = next((
            storage.devices[each] for each in (name, bare, f"/dev/{bare}") if each in storage.devices
        ), None)
    elif kind == VOLUME_GROUP:
        number = storage.volume_groups.get(name)
    elif kind == POD_VOLUME:
        if pod is None:
            raise EvaluationError(f"block `{name}`: only a pod has a `{POD_VOLUME}`")
        number = storage.mounts.get(_MOUNT.format(uid=pod.uid, volume=_volume_of(name, storage, pod)))
    else:
        raise EvaluationError(
            f"block `{name}`: there is no type `{kind}`, only `{DEVICE}`, `{VOLUME_GROUP}` and `{POD_VOLUME}`",
        )
    if not number:
        raise EvaluationError(f"the disk of {kind} `{name}` is not known", reason="NoDisk")
    return number


def _volume_of(name: str, storage: Storage, pod: PodInfo) -> str:
    """Return the name of the mounted volume: of a claim, the volume that it is bound to."""
    volumes = (pod.object.get("spec") or {}).get("volumes") or ()
    volume: Mapping[str, Any] | None = next((each for each in volumes if each.get("name") == name), None)
    if volume is None:
        raise EvaluationError(f"the pod has no volume `{name}`")
    metadata = pod.object.get("metadata") or {}
    if volume.get("persistentVolumeClaim") is not None:
        claim = str(volume["persistentVolumeClaim"].get("claimName", ""))
    elif volume.get("ephemeral") is not None:
        claim = f"{metadata.get('name', '')}-{name}"  # Kubernetes' rule for the claim of an ephemeral volume
    elif volume.get("csi") is not None:
        return name
    else:
        raise EvaluationError(f"volume `{name}` is neither of a claim nor of a CSI driver")
    bound = storage.claims.get(f"{metadata.get('namespace', '')}/{claim}")
    if not bound:
        raise EvaluationError(f"the volume of claim `{claim}` is not known", reason="NoDisk")
    return bound


def tier_writes(
    directory: str, blocks: Sequence[tuple[Block, str]], files: Mapping[str, str],
) -> Writes:
    """Return the writes that limit a directory to these blocks, each with its disk, and drop the limits of others."""
    found: list[tuple[str, str]] = []
    disks = {disk for _, disk in blocks}
    for name, file in THROTTLES.items():
        lines = _lines(f"{directory}/{file}", files)
        if lines is not None:
            desired = {disk: str(block.numbers.get(name, 0)) for block, disk in blocks}
            resets = {disk: "0" for disk, value in lines.items() if disk not in disks and value != "0"}
            writes = {**{disk: value for disk, value in desired.items() if value != "0" or disk in lines}, **resets}
            found += _changed(f"{directory}/{file}", writes, lines)
    lines = _lines(f"{directory}/{WEIGHT_FILE}", files)
    if lines is not None:
        desired = {disk: str(block.numbers.get("ioWeightPercent", FULL_WEIGHT)) for block, disk in blocks}
        resets = {disk: str(FULL_WEIGHT) for disk in lines if disk not in disks}
        found += _changed(f"{directory}/{WEIGHT_FILE}", {**desired, **resets}, lines)
    return tuple(found)


def device_writes(directory: str, disk: str, numbers: Mapping[str, int], files: Mapping[str, str]) -> Writes:
    """Return the writes that give one disk of a directory these numbers, by the keys of `ioCfg`; others stay.

    Raises `EvaluationError` if a number is out of range.
    """
    found: list[tuple[str, str]] = []
    for name, value in numbers.items():
        file = f"{directory}/{file_of(name)}"
        text = str(_in_range(name, value, name))
        lines = _lines(file, files)
        if lines is not None and lines.get(disk, _unset(file)) != text:
            found.append((file, f"{disk} {text}"))
    return tuple(found)


def restoring_writes(disk: str, originals: Mapping[str, str], files: Mapping[str, str]) -> Writes:
    """Return the writes that restore one disk to its values in the original texts, by file."""
    found: list[tuple[str, str]] = []
    for file, text in originals.items():
        original = (_lines(file, originals) or {}).get(disk, _unset(file)) if text else _unset(file)
        lines = _lines(file, files)
        if lines is not None and lines.get(disk, _unset(file)) != original:
            found.append((file, f"{disk} {original}"))
    return tuple(found)


def file_of(name: str) -> str:
    """Return the file of a throttle or of the weight, by its key in `ioCfg`."""
    return WEIGHT_FILE if name == "ioWeightPercent" else THROTTLES[name]


def _unset(file: str) -> str:
    """Return the value of a disk that a file does not list."""
    return str(FULL_WEIGHT) if file.endswith(WEIGHT_FILE) else "0"


def root_writes(directory: str, blocks: Sequence[tuple[Block, str]], files: Mapping[str, str]) -> Writes:
    """Return the writes that set latency targets and cost models of the root's disks, and switch off those of others.

    A disk's cost model stays when its block is removed, as in koordlet: without `enable` it has no effect.
    """
    found: list[tuple[str, str]] = []
    lines = _lines(f"{directory}/{QOS_FILE}", files)
    if lines is not None:
        desired = {
            disk: "enable=1 ctrl=user " + " ".join(
                f"{key}={block.numbers.get(name, default)}" for key, (name, default) in _QOS.items()
            )
            for block, disk in blocks
        }
        resets = {
            disk: "enable=0" for disk, value in lines.items() if disk not in desired and "enable=0" not in value.split()
        }
        found += _changed(f"{directory}/{QOS_FILE}", {**desired, **resets}, lines)
    lines = _lines(f"{directory}/{MODEL_FILE}", files)
    if lines is not None:
        found += _changed(f"{directory}/{MODEL_FILE}", {disk: _model(block) for block, disk in blocks}, lines)
    return tuple(found)


def _model(block: Block) -> str:
    if not block.user_model:
        return "ctrl=auto"
    return "ctrl=user " + " ".join(f"{key}={block.numbers[name]}" for key, name in _MODEL.items())


def _lines(file: str, files: Mapping[str, str]) -> dict[str, str] | None:
    """Return the value of each disk in a file, or None if the file does not exist."""
    text = files.get(file)
    if text is None:
        return None
    pairs = (line.strip().partition(" ") for line in text.splitlines())
    return {disk: value.strip() for disk, _, value in pairs if _is_disk(disk)}


def _is_disk(text: str) -> bool:
    major, colon, minor = text.partition(":")
    return bool(colon) and major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()


def _changed(file: str, desired: Mapping[str, str], lines: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return [(file, f"{disk} {value}") for disk, value in desired.items() if lines.get(disk) != value]
