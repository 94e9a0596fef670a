"""Annotations of pods, reservations and nodes that hold JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from koordpolicy.engine.cluster.objects.pods import PodInfo
from koordpolicy.engine.kubernetes.objects import json_kind

SCHEDULING_HINT_ANNOTATIONS: Final = (
    "internal.scheduling.koordinator.sh/scheduling-hint", "scheduling.koordinator.sh/scheduling-hint",
)

_NOTHING: Final[Mapping[str, Any]] = {}


def annotations_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object's annotations; a value that is not an object counts as empty."""
    return _mapping(_mapping(item.get("metadata")).get("annotations"))


def labels_of(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an object's labels; a value that is not an object counts as empty."""
    return _mapping(_mapping(item.get("metadata")).get("labels"))


def json_object(annotations: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the object in an annotation, read-only; an absent annotation is empty.

    Raises:
        ValueError: it is not a JSON object; the message names the annotation.
    """
    text = annotations.get(name)
    if text is None:
        return {}
    if not isinstance(text, str):
        raise ValueError(f"annotation `{name}` must be a string, not {json_kind(text)}")  # noqa: TRY004 - all that is wrong with an annotation is one kind
    return _parse(name, text)


def text_in(values: Mapping[str, Any], field: str, annotation: str) -> str:
    """Return a string field of an annotation's object, empty if it is absent; raises `ValueError` for another type."""
    value = values.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"annotation `{annotation}`: `{field}` must be a string, not {json_kind(value)}")  # noqa: TRY004 - all that is wrong with an annotation is one kind
    return value


def is_hinted(pod: PodInfo, plugin: str) -> bool:
    """Return whether a scheduling hint requires the plugin to allocate again what the pod's annotations record."""
    annotations = annotations_of(pod.object)
    for name in SCHEDULING_HINT_ANNOTATIONS:
        if annotations.get(name):
            try:
                extensions = json_object(annotations, name).get("extensions")
            except ValueError:
                return False  # reported by SchedulingHint
            return isinstance(extensions, Mapping) and plugin in extensions
    return False


def write_annotation(item: dict[str, Any], name: str, value: Mapping[str, Any]) -> None:
    """Write an object into an annotation of an object that may be written."""
    metadata = item.setdefault("metadata", {})
    annotations = metadata.get("annotations")
    if not isinstance(annotations, dict):
        annotations = metadata["annotations"] = {}
    annotations[name] = json.dumps(value, separators=(",", ":"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else _NOTHING


@lru_cache(maxsize=4_096)
def _parse(name: str, text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"annotation `{name}` is not JSON: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"annotation `{name}` must hold an object, not {json_kind(value)}")  # noqa: TRY004 - all that is wrong with an annotation is one kind
    return value
