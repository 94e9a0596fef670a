"""References of bundles are read as the distribution specification writes them, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from koordpolicy.engine.bundles.reference import BundleReference
from koordpolicy.engine.source import PolicyError

DIGEST = f"sha256:{'a' * 64}"
FORM = "which has lowercase letters, digits and `.`, `_`, `-`, `/` between them"


@pytest.mark.parametrize(("text", "expected"), [
    ("registry.example.org/team/policies:v1", BundleReference("registry.example.org", "team/policies", "v1")),
    ("oci:localhost/p:v1", BundleReference("localhost", "p", "v1")),
    ("127.0.0.1:5000/a/b-c/d__e:x.1", BundleReference("127.0.0.1:5000", "a/b-c/d__e", "x.1")),
    ("[::1]:5000/p:v1", BundleReference("[::1]:5000", "p", "v1")),
    (f"r.io/p@{DIGEST}", BundleReference("r.io", "p", "", DIGEST)),
    (f"r.io/p:v1@{DIGEST}", BundleReference("r.io", "p", "v1", DIGEST)),
])
def test_a_reference_has_registry_repository_tag_and_digest(text: str, expected: BundleReference):
    assert BundleReference.parse(text) == expected
    assert str(expected) == text.removeprefix("oci:")


@pytest.mark.parametrize(("text", "why"), [
    ("policies:v1", "it has no registry"),
    ("team/policies:v1", "`team` is no registry"),
    ("https://r.io/p:v1", "`https:` is no registry"),
    ("user@r.io/p:v1", "it has no registry"),
    ("r.io/Team:v1", f"`Team` is no repository, {FORM}"),
    ("r.io/../../p:v1", f"`../../p` is no repository, {FORM}"),
    ("r.io/p", "it has neither a tag nor a digest"),
    ("r.io/p:", "`` is no tag"),
    ("r.io/p:a/b", "`a/b` is no tag"),
    (f"r.io/p:{'v' * 129}", f"`{'v' * 129}` is no tag"),
    ("r.io/p@sha256:12", "`sha256:12` is no digest such as sha256: and 64 digits"),
    (f"r.io/p@sha512:{'a' * 128}", f"`sha512:{'a' * 128}` is no digest such as sha256: and 64 digits"),
])
def test_other_texts_are_refused_with_the_part_that_is_wrong(text: str, why: str):
    with pytest.raises(PolicyError) as refused:
        BundleReference.parse(text)
    (problem,) = refused.value.problems
    assert problem.message == f"`{text}` names no bundle: {why}"
    assert problem.help == "write REGISTRY/REPOSITORY:TAG, such as registry.example.org/team/policies:v1"
