"""Records of a flight recording, and their form on the disk: arrays of MessagePack, each with a tag.

Times are in nanoseconds since the epoch. New fields are appended with a default, so that older recordings stay
readable; a reader ignores fields that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

FORMAT: Final = 1
"""The version of the records; a reader refuses others."""

_LARGEST: Final = 8 * 1024 * 1024
"""The maximum number of bytes of a record; an API server takes objects of 1.5 MiB."""
_ARRAY32: Final = b"\xdd"
"""The mark of an array with 32 bits of length, which MessagePack lets be written before its elements are known."""


class RecordedChoice(msgspec.Struct, frozen=True, array_like=True):
    """A plugin that a profile enables (`PluginChoice`)."""

    name: str
    weight: int | None = None
    args: dict[str, Any] = msgspec.field(default_factory=dict)
    points: list[str] | None = None


class RecordedProfile(msgspec.Struct, frozen=True, array_like=True):
    """The configuration of a profile (`ProfileSpec`); `disabled` has an empty point for all points."""

    name: str
    enabled: list[RecordedChoice] = msgspec.field(default_factory=list)
    disabled: dict[str, list[str]] = msgspec.field(default_factory=dict)
    args: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    named_only: bool = False


class RecordedSettings(msgspec.Struct, frozen=True, array_like=True):
    """The settings of a scheduler (`Settings`)."""

    profiles: list[RecordedProfile]
    tie_break: str = "first"
    seed: int = 0
    feature_gates: list[str] = msgspec.field(default_factory=list)
    initial_backoff: int = 1_000_000_000
    longest_backoff: int = 10_000_000_000
    binding_timeout: int = 60_000_000_000
    kubernetes: str = ""
    """The release of Kubernetes that the plugins of all profiles follow; empty for that of each profile."""
    foreign_pods: bool = True
    """True if pods are scheduled, too, whose scheduler name is the name of no profile."""


class Header(msgspec.Struct, frozen=True, array_like=True, tag="header"):
    """The first record of a segment."""

    format: int
    program: str
    """The version of the recording program."""
    run: str
    """Identifies the recording process."""
    number: int
    """The number of the segment within its run, from 1."""
    time: int
    fields: dict[str, list[list[str]] | None] | None
    """The recorded fields by kind, None for whole objects; None for all kinds as a whole."""
    kinds: list[str] | None
    """The kinds that the source of the cluster contains; None where it may contain all."""
    settings: RecordedSettings
    """The settings of the scheduler."""
    metric_expiry: int = 180
    """The age at which a NodeMetric expires, in seconds; 0 for never."""


class Policies(msgspec.Struct, frozen=True, array_like=True, tag="policies"):
    """The active policies from here on."""

    time: int
    generation: int
    digest: str
    plugins: dict[str, str]
    """The digest of each plugin of the scheduler, by name."""


class Existing(msgspec.Struct, frozen=True, array_like=True, tag="existing"):
    """An object that exists at the start of the segment; `node` is that of an assumed pod, else empty."""

    object: Any
    node: str = ""


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """The end of the objects that exist at the start; before it a segment cannot be replayed."""

    time: int
    objects: int


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """An object was added, replaced, or deleted (`object` is None).

    `own` is true if the scheduler wrote the change itself, while it decided.
    """

    time: int
    kind: str
    key: str
    object: Any
    own: bool = False


class Touched(msgspec.Struct, frozen=True, array_like=True, tag="touched"):
    """An object was replaced by one that is equal in all recorded fields."""

    time: int
    kind: str
    key: str
    own: bool = False


class Decided(msgspec.Struct, frozen=True, array_like=True, tag="decided"):
    """A scheduling cycle: the node of the pod, or the reasons why it got none."""

    time: int
    pod: str
    uid: str
    profile: str
    generation: int
    node: str | None
    passed: int
    """The number of feasible nodes."""
    score: int | None = None
    """The weighted total of the node; None if nothing was scored."""
    next_node: str | None = None
    """The second-best node."""
    next_score: int | None = None
    reasons: list[tuple[str, str, str, int]] = msgspec.field(default_factory=list)
    """Plugin, rule, reason and number of nodes for each reason of a pod without a node."""
    nominated: str = ""
    """The nominated node, where victims are evicted."""
    victims: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """Key and UID of each victim."""
    pending: bool = False
    """True if the pod waits for a permit or is being bound: `Concluded` follows."""
    duration: int = 0
    """The duration of the cycle, in nanoseconds."""
    reasons_left_out: int = 0
    """The number of reasons that are not recorded."""


class Concluded(msgspec.Struct, frozen=True, array_like=True, tag="concluded"):
    """The end of a binding cycle that outlived its scheduling cycle; without a node it failed."""

    time: int
    pod: str
    uid: str
    node: str | None
    reasons: list[tuple[str, str, str, int]] = msgspec.field(default_factory=list)
    reasons_left_out: int = 0


class Idle(msgspec.Struct, frozen=True, array_like=True, tag="idle"):
    """No pod was ready to be scheduled."""

    time: int


class Gap(msgspec.Struct, frozen=True, array_like=True, tag="gap"):
    """Records were dropped before this one, and another segment begins after it."""

    time: int
    dropped: int


class SegmentEnd(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The segment ends here in order; `last` if the recording process ended."""

    time: int
    last: bool = False


Record: TypeAlias = (
    Header | Policies | Existing | Started | Changed | Touched | Decided | Concluded | Idle | Gap | SegmentEnd
)


class RecordError(ValueError):
    """Bytes are no records; the message is the reason."""


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise NotImplementedError(f"a {type(value).__name__} cannot be recorded")


_ENCODER: Final = msgspec.msgpack.Encoder(enc_hook=_plain)
_DECODER: Final = msgspec.msgpack.Decoder(list[Record])


def encode(record: Record) -> bytes:
    """Return one record as bytes; characters that are not Unicode text become question marks.

    Raises:
        RecordError: it holds what MessagePack cannot (a number beyond 64 bits, for example), or nests too deeply.
    """
    try:
        try:
            encoded = _ENCODER.encode(record)
        except UnicodeEncodeError:
            encoded = _ENCODER.encode(_with_text(record))
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise RecordError(str(error) or type(error).__name__) from None
    if len(encoded) > _LARGEST:
        raise RecordError(f"it has more than {_LARGEST:,} bytes")
    return encoded


def _with_text(record: Record) -> Record:
    changed = {name: json.loads(json.dumps(value, ensure_ascii=False, default=_plain).encode("utf-8", "replace"))
               for name in record.__struct_fields__ if not isinstance(value := getattr(record, name), int | None)}
    return msgspec.structs.replace(record, **changed)


def encode_block(records: Sequence[bytes]) -> bytes:
    """Return encoded records as one block, as `decode_block` reads it."""
    return b"".join((_ARRAY32, len(records).to_bytes(4, "big"), *records))


def decode_block(block: bytes) -> list[Record]:
    """Return the records of a block.

    Raises:
        RecordError: it is not a block of records.
    """
    try:
        return _DECODER.decode(block)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise RecordError(str(error) or type(error).__name__) from None
