"""Conversion of v1alpha2 nodes to the internal form: defaults, durations in nanoseconds, expressions with places.

Nodes are validated against their schema before, so types are not checked again. All defaults are declared by the
schema. Rules that a schema cannot express (duplicate names, fields that exclude each other, features that are not
implemented) are checked here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Final

from koordpolicy.engine.cel.check.patterns import PatternBudget
from koordpolicy.engine.source import Problems

from .descheduler_conversion import descheduler_spec
from .document_fields import DocumentFields
from .internal_form import canonical, plain_form
from .nodes import YamlNode
from .plugin_conversion import params
from .qos_conversion import qos_spec
from .scheduler_conversion import scheduler_spec
from .specs import (
    GROUP,
    INTERNAL,
    NOTHING,
    Document,
    Kind,
    Metadata,
    ParamsSpec,
    Spec,
)
from .suite_conversion import convert_suite
from .suites import TestSpec
from .validation import prune, schema, validate, validate_plain

_DESCRIPTION: Final = f"{GROUP}/description"
_LARGE: Final = 1 << 16
"""Texts with more characters are serialised in pieces."""
_PIECES: Final = 5
"""The number of levels that are split: those of a list or mapping in params, and of the rules of a document."""


def convert(node: YamlNode, kind: Kind, problems: Problems) -> Document | None:
    """Return the document of a node, or None if too little of it is valid.

    If there are problems, the document is `faulty`: it has the valid parts only.

    Raises:
        TooManyStatesError: the patterns of its `paramsSchema` exceed the thread's current `PatternBudget`.
    """
    before = len(problems.found)
    complaints = list(validate(node, kind.value))
    problems.extend(complaints)
    left = prune(node, kind.value) if complaints else node
    if left is None:
        return None
    node = left
    found = Problems()
    top = DocumentFields(node, schema(kind.value), "", found)
    metadata = _metadata(top)
    spec_fields = top.sub("spec")
    assert spec_fields is not None
    with PatternBudget() as patterns:
        spec = _SPECS[kind](DocumentFields(spec_fields.node, spec_fields.schema, "spec", found))
    # A missing part may have been removed as invalid.
    problems.extend(each for each in found.found if not (complaints and each.code == "missing-field"))
    faulty = len(problems.found) > before
    name = node.at("metadata", "name")
    assert name is not None
    plain = {
        "apiVersion": f"{GROUP}/{INTERNAL}", "kind": kind.value, "metadata": plain_form(metadata),
        "spec": plain_form(spec),
    }
    faults = [] if faulty else list(validate_plain(plain, kind.value))
    for fault in faults:
        problems.add(
            f"the internal form of `{metadata.name}` is not valid: {fault}", name.span,
            help="this is a fault of koord-policy, not of the document: please report it", code="internal",
        )
    if faults:
        return None
    digest = hashlib.sha256()
    for text in canonical(plain, _PIECES if len(node.source.text) > _LARGE else 0):
        digest.update(text.encode())
    return Document(kind, metadata, spec, name.span, digest.hexdigest(), node.source.name, plain=plain, faulty=faulty,
                    patterns=patterns.patterns)


def _metadata(top: DocumentFields) -> Metadata:
    fields = top.sub("metadata")
    assert fields is not None
    annotations = fields.value("annotations") or NOTHING
    return Metadata(
        fields.text("name"), fields.value("labels") or NOTHING, annotations, annotations.get(_DESCRIPTION, ""),
    )


def _shared_params(fields: DocumentFields) -> ParamsSpec:
    return ParamsSpec(*params(fields))


def _test(fields: DocumentFields) -> TestSpec:
    return convert_suite(fields.node, fields.problems)


_SPECS: Final[Mapping[Kind, Callable[[DocumentFields], Spec]]] = {
    Kind.SCHEDULER: scheduler_spec,
    Kind.QOS: qos_spec,
    Kind.DESCHEDULER: descheduler_spec,
    Kind.PARAMS: _shared_params,
    Kind.TEST: _test,
}
