"""CustomResourceDefinitions of those kinds of Koordinator that our own servers write, for clusters without Koordinator.

They are made of the declared types (`types.load`). Names, required fields, defaults, choices and columns are those of
Koordinator's own definitions, so that objects and clients of either work with both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from koordpolicy.engine.cel.values.types import Type

from . import types

Json = dict[str, Any]
Path = tuple[str, ...]

_GROUP: Final = "scheduling.koordinator.sh"
_VERSION: Final = "v1alpha1"
_ANY: Final[Json] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SCALARS: Final[Mapping[str, Json]] = {
    "string": {"type": "string"}, "bool": {"type": "boolean"}, "int": {"type": "integer", "format": "int64"},
    "double": {"type": "number"}, "google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    "google.protobuf.Duration": {"type": "string"}, "dyn": {"type": "object"},
}
_QUANTITIES: Final = frozenset({"allocatable", "allocated"})
_QUANTITY: Final[Json] = {
    "anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True,
}


@dataclass(frozen=True, slots=True)
class _Definition:
    """The part of a definition that is not in the declared types of a kind. Paths begin at the object."""

    kind: str
    plural: str
    short_names: tuple[str, ...]
    columns: tuple[tuple[str, str, str], ...]
    """Name, type and JSON path."""
    required: tuple[Path, ...] = ()
    defaults: Mapping[Path, Any] = field(default_factory=dict)
    choices: Mapping[Path, tuple[str, ...]] = field(default_factory=dict)
    free: tuple[Path, ...] = ()
    """Objects of which all fields are stored, without a schema."""


_DEFINITIONS: Final = (
    _Definition(
        "PodMigrationJob", "podmigrationjobs", ("pmj",), (
            ("Phase", "string", ".status.phase"), ("Status", "string", ".status.status"),
            ("Age", "date", ".metadata.creationTimestamp"), ("Node", "string", ".status.nodeName"),
            ("Reservation", "string", ".spec.reservationOptions.reservationRef.name"),
            ("PodNamespace", "string", ".spec.podRef.namespace"), ("Pod", "string", ".spec.podRef.name"),
            ("NewPod", "string", ".status.podRef.name"), ("TTL", "string", ".spec.ttl")),
        required=(("spec", "podRef"),), free=(("spec", "reservationOptions", "template"),)),
    _Definition(
        "Reservation", "reservations", (), (
            ("Phase", "string", ".status.phase"), ("Age", "date", ".metadata.creationTimestamp"),
            ("Node", "string", ".status.nodeName"), ("TTL", "string", ".spec.ttl"),
            ("Expires", "string", ".spec.expires")),
        required=(("spec", "owners"), ("spec", "template")),
        defaults={("spec", "ttl"): "24h", ("spec", "allocateOnce"): True},
        choices={("spec", "allocatePolicy"): ("Aligned", "Restricted")}, free=(("spec", "template"),)),
)


def definitions() -> tuple[Json, ...]:
    """Return the CustomResourceDefinitions, sorted by name."""
    return tuple(sorted(map(_definition, _DEFINITIONS), key=lambda each: str(each["metadata"]["name"])))


def _definition(of: _Definition) -> Json:
    declared = types.load()[f"koordinator.{of.kind}"]
    properties: Json = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    properties |= {name: {"description": each.doc, **_schema(of, (name,), each.type)}
                   for name, each in declared.fields.items() if name in ("spec", "status")}
    names = {"kind": of.kind, "listKind": f"{of.kind}List", "plural": of.plural, "singular": of.kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{of.plural}.{_GROUP}", "labels": {"app.kubernetes.io/part-of": "koord-policy"}},
        "spec": {
            "group": _GROUP, "scope": "Cluster",
            "names": {**names, **({"shortNames": list(of.short_names)} if of.short_names else {})},
            "versions": [{
                "name": _VERSION, "served": True, "storage": True, "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": name, "type": kind, "jsonPath": path} for name, kind, path in of.columns],
                "schema": {"openAPIV3Schema": {
                    "type": "object", "description": declared.doc, "properties": properties}},
            }],
        },
    }


def _schema(of: _Definition, path: Path, declared: Type) -> Json:
    """Return the structural schema of a field; positions of lists are no part of paths."""
    if path in of.free:
        return dict(_ANY)
    found = _SCALARS.get(declared.name)
    if found is not None:
        more: Json = {"default": of.defaults[path]} if path in of.defaults else {}
        if path in of.choices:
            more["enum"] = list(of.choices[path])
        return {**found, **more}
    if declared.name == "list":
        return {"type": "array", "items": _schema(of, path, declared.parameters[0])}
    if declared.name == "map":
        values = _QUANTITY if path[-1] in _QUANTITIES else _schema(of, path, declared.parameters[1])
        return {"type": "object", "additionalProperties": values}
    fields = types.load()[declared.name].fields
    required = {each[-1] for each in of.required if each[:-1] == path}
    required |= {name for name, each in fields.items() if each.required}
    properties = {
        name: {**({"description": each.doc} if each.doc else {}), **_schema(of, (*path, name), each.type)}
        for name, each in fields.items()}
    return {"type": "object", "properties": properties, **({"required": sorted(required)} if required else {})}
