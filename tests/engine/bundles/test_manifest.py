"""Manifests are those of the OCI image specification, and what others send is bounded and refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koordpolicy.engine.bundles.faults import BundleFault
from koordpolicy.engine.bundles.layer import LARGEST_LAYER
from koordpolicy.engine.bundles.manifest import (
    LAYER,
    BundleManifest,
    Descriptor,
    StoredSignature,
    read_signatures,
    signatures_manifest,
    signatures_tag,
)

DESCRIPTOR = Descriptor.of(LAYER, b"layer")
MANIFEST = BundleManifest(DESCRIPTOR, {"b": "2", "a": "1"})


def test_a_manifest_is_that_of_an_artifact_with_one_layer_and_comes_back():
    assert json.loads(MANIFEST.encoded()) == {
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": "application/vnd.koord-policy.bundle.v1",
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "size": 2, "data": "e30=",
                   "digest": "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
        "layers": [{"mediaType": "application/vnd.koord-policy.policies.v1.tar", "size": 5,
                    "digest": "sha256:dac1d7cfa95021764849fd102524e141488c5e3a90f861dbb5a12d9ac8584f85"}],
        "annotations": {"a": "1", "b": "2"}}
    assert BundleManifest.read(MANIFEST.encoded()) == MANIFEST
    assert BundleManifest(DESCRIPTOR, {"a": "1", "b": "2"}).encoded() == MANIFEST.encoded()


def changed(**fields: Any) -> bytes:
    return json.dumps(json.loads(MANIFEST.encoded()) | fields).encode()


LAYER_JSON = DESCRIPTOR.to_json()


@pytest.mark.parametrize(("content", "why"), [
    (b"{", "its manifest is not JSON"),
    (b"\xff", "its manifest is not JSON"),
    (b"[" * 100_000, "its manifest is not JSON"),
    (b"[]", "its manifest has not the schema version 2"),
    (changed(schemaVersion=1), "its manifest has not the schema version 2"),
    (changed(layers=[]), "it does not have exactly one layer"),
    (changed(layers=[LAYER_JSON, LAYER_JSON]), "it does not have exactly one layer"),
    (changed(layers="x"), "it does not have exactly one layer"),
    (changed(layers=["x"]), "a descriptor is not an object"),
    (changed(layers=[LAYER_JSON | {"size": -1}]), "a descriptor has no media type, sha256 digest and size"),
    (changed(layers=[LAYER_JSON | {"size": True}]), "a descriptor has no media type, sha256 digest and size"),
    (changed(layers=[LAYER_JSON | {"size": 1.5}]), "a descriptor has no media type, sha256 digest and size"),
    (changed(layers=[LAYER_JSON | {"digest": "sha256:../../x"}]),
     "a descriptor has no media type, sha256 digest and size"),
    (changed(layers=[LAYER_JSON | {"mediaType": f"{LAYER}+gzip"}]),
     f"the media type of its layer is `{LAYER}+gzip`, not `{LAYER}`"),
    (changed(layers=[LAYER_JSON | {"size": LARGEST_LAYER + 1}]),
     f"its layer has {LARGEST_LAYER + 1:,} bytes, more than the {LARGEST_LAYER:,} that are read"),
    (changed(annotations={"a": 1}), "its annotations are not up to 64 texts of 4096 characters"),
    (changed(annotations={"a": "x" * 4097}), "its annotations are not up to 64 texts of 4096 characters"),
    (changed(annotations={f"a{index}": "" for index in range(65)}),
     "its annotations are not up to 64 texts of 4096 characters"),
])
def test_a_malformed_manifest_is_refused_with_the_reason(content: bytes, why: str):
    with pytest.raises(BundleFault) as refused:
        BundleManifest.read(content)
    assert (refused.value.problem.message, refused.value.problem.code) == (
        f"the bundle is refused: {why}", "malformed-bundle")


@pytest.mark.parametrize(("fields", "kind"), [
    ({"artifactType": "application/vnd.cncf.helm.chart"}, "application/vnd.cncf.helm.chart"),
    ({"artifactType": None}, "application/vnd.oci.image.manifest.v1+json"),
    ({"artifactType": 7, "mediaType": "application/vnd.oci.image.index.v1+json"},
     "application/vnd.oci.image.index.v1+json"),
])
def test_what_is_no_bundle_is_named_by_its_type(fields: dict[str, Any], kind: str):
    with pytest.raises(BundleFault) as refused:
        BundleManifest.read(changed(**fields))
    assert refused.value.problem.message == (
        f"it is no bundle of policies: its type is `{kind}`, not `application/vnd.koord-policy.bundle.v1`")


PAYLOAD = Descriptor("application/vnd.dev.cosign.simplesigning.v1+json", f"sha256:{'a' * 64}", 200)
SIGNATURE = {"dev.cosignproject.cosign/signature": "c2ln"}


def test_signatures_are_layers_of_a_manifest_under_the_tag_that_cosign_looks_at():
    stored = (StoredSignature(PAYLOAD, SIGNATURE),)
    assert read_signatures(signatures_manifest(stored)) == stored
    assert stored[0].signature == b"sig"
    assert signatures_tag(f"sha256:{'a' * 64}") == f"sha256-{'a' * 64}.sig"


def test_a_signature_that_is_not_base64_is_none():
    assert StoredSignature(PAYLOAD, {"dev.cosignproject.cosign/signature": "!"}).signature == b""
    assert StoredSignature(PAYLOAD, {}).signature == b""


def test_other_layers_and_large_payloads_are_no_signatures_and_too_many_are_refused():
    layer = PAYLOAD.to_json() | {"annotations": SIGNATURE}
    layers = [layer | {"mediaType": "text/plain"}, layer | {"size": (64 << 10) + 1}, layer]
    assert read_signatures(json.dumps({"schemaVersion": 2, "layers": layers}).encode()) == (
        StoredSignature(PAYLOAD, SIGNATURE),)
    with pytest.raises(BundleFault, match="its signatures are no list of at most 32"):
        read_signatures(json.dumps({"schemaVersion": 2, "layers": [layer] * 33}).encode())
