"""Bundles come back as they were pushed, and only if one of the known keys signed them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from koordpolicy.engine.bundles.faults import BundleFault
from koordpolicy.engine.bundles.layer import pack
from koordpolicy.engine.bundles.reference import BundleReference, digest_of
from koordpolicy.engine.bundles.registry import RegistryAccess
from koordpolicy.engine.bundles.signatures import payload_of
from koordpolicy.engine.bundles.transfer import BundlePuller, PulledBundle, PushedBundle, Trust, push
from tests.oci_registry import OciRegistry, Reply

from .conftest import Keys, write_keys

FILES = {"a.yaml": b"one", "b/c.yaml": b"two"}
ABOUT = {"org.opencontainers.image.revision": "abc"}
UNSIGNED = Trust(unsigned=True)


def tagged(registry: OciRegistry) -> str | None:
    content = registry.manifests.get("team/policies:v1")
    return None if content is None else digest_of(content)


def test_a_signed_bundle_comes_back_with_its_signer(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    pushed = push(reference, FILES, ABOUT, access, keys.sign)
    assert pushed == PushedBundle(str(tagged(registry)), digest_of(pack(FILES)), None)
    puller = BundlePuller(reference, access, Trust((keys.verify,)))
    assert puller.newer() == PulledBundle(pushed.digest, FILES, ABOUT, keys.verify.path)
    assert puller.newer(pushed.digest) is None


def test_the_same_files_are_the_same_bundle_and_are_signed_once(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    first = push(reference, FILES, ABOUT, access, keys.sign)
    registry.requests.clear()
    again = push(reference, dict(reversed(FILES.items())), ABOUT, access, keys.sign)
    assert (again.digest, again.layer, again.before) == (first.digest, first.layer, first.digest)
    assert [str(each) for each in registry.requests if each.method in ("PUT", "POST")] == [
        f"PUT /v2/team/policies/manifests/{first.digest}"]


def test_a_tag_moves_to_the_next_bundle_and_back(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    puller = BundlePuller(reference, access, Trust((keys.verify,)))
    first = push(reference, FILES, {}, access, keys.sign)
    second = push(reference, {"a.yaml": b"2"}, {}, access, keys.sign)
    newer = puller.newer(first.digest)
    assert (second.before, newer and newer.files) == (first.digest, {"a.yaml": b"2"})
    push(reference, FILES, {}, access, keys.sign)
    older = puller.newer(second.digest)
    assert (tagged(registry), older and older.files) == (first.digest, FILES)


def test_nobody_finds_a_bundle_by_its_tag_before_it_is_signed(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    push(reference, FILES, {}, access, keys.sign)
    written = [each.path.rpartition("/")[2].partition("?")[0] for each in registry.requests if each.method == "PUT"]
    assert written[-2:] == [f"{str(tagged(registry)).replace(':', '-')}.sig", "v1"]


def test_a_push_that_fails_leaves_the_tag(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    before = push(reference, FILES, {}, access, keys.sign).digest
    registry.fault = lambda request: Reply(500) if request.method == "PUT" and ".sig" in request.path else None
    with pytest.raises(BundleFault, match="it answered 500"):
        push(reference, {"a.yaml": b"2"}, {}, access, keys.sign)
    assert tagged(registry) == before


def test_several_keys_may_sign_and_one_of_those_known_is_enough(
    reference: BundleReference, access: RegistryAccess, keys: Keys, tmp_path: Path,
):
    other = write_keys(tmp_path, "other", curve=True)
    pushed = push(reference, FILES, {}, access, keys.sign)
    push(reference, FILES, {}, access, other.sign)
    for known in (keys.verify, other.verify):
        assert BundlePuller(reference, access, Trust((known,))).newer() == PulledBundle(
            pushed.digest, FILES, {}, known.path)


def refusal(reference: BundleReference, access: RegistryAccess, trust: Trust) -> BundleFault:
    with pytest.raises(BundleFault) as refused:
        BundlePuller(reference, access, trust).newer()
    return refused.value


def test_a_bundle_without_a_signature_is_used_only_where_that_is_permitted(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    digest = push(reference, FILES, {}, access).digest
    fault = refusal(reference, access, Trust((keys.verify,)))
    assert (fault.problem.message, fault.problem.code, fault.passing) == (
        f"`{reference.at(digest)}` has no signature", "unsigned", False)
    assert BundlePuller(reference, access, UNSIGNED).newer() == PulledBundle(digest, FILES, {})
    assert not any(b"signature" in content for content in registry.manifests.values())


def test_a_signature_of_another_key_is_none(
    reference: BundleReference, access: RegistryAccess, keys: Keys, tmp_path: Path,
):
    digest = push(reference, FILES, {}, access, write_keys(tmp_path, "other").sign).digest
    fault = refusal(reference, access, Trust((keys.verify,)))
    assert (fault.problem.message, fault.problem.code) == (
        f"no signature of `{reference.at(digest)}` is of `{keys.verify.path}` ({keys.verify.id})", "wrong-signature")


def test_a_signature_of_another_bundle_is_none(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    first = push(reference, FILES, {}, access, keys.sign).digest
    second = push(reference, {"a.yaml": b"evil"}, {}, access).digest
    signatures = {digest: f"team/policies:{digest.replace(':', '-')}.sig" for digest in (first, second)}
    registry.manifests[signatures[second]] = registry.manifests[signatures[first]]
    assert refusal(reference, access, Trust((keys.verify,))).problem.code == "wrong-signature"


@pytest.mark.parametrize("api", [True, False])
def test_a_signature_in_a_bundle_of_sigstore_is_found_by_what_refers_to_the_manifest(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys, api: bool,
):
    digest = push(reference, FILES, {}, access).digest
    kind = "application/vnd.dev.sigstore.bundle.v0.3+json"
    statement = json.dumps({
        "_type": "https://in-toto.io/Statement/v1", "predicateType": "https://sigstore.dev/cosign/sign/v1",
        "subject": [{"digest": {"sha256": digest.removeprefix("sha256:")}}], "predicate": {}}).encode()
    signed = b"DSSEv1 28 application/vnd.in-toto+json %d %s" % (len(statement), statement)
    bundle = json.dumps({"mediaType": kind, "dsseEnvelope": {
        "payloadType": "application/vnd.in-toto+json", "payload": base64.b64encode(statement).decode(),
        "signatures": [{"sig": base64.b64encode(keys.sign.sign(signed)).decode()}]}}).encode()
    registry.blobs[digest_of(bundle)] = bundle
    layer = {"mediaType": kind, "digest": digest_of(bundle), "size": len(bundle)}
    manifest = json.dumps({"schemaVersion": 2, "layers": [layer | {"mediaType": "text/plain"}, layer]}).encode()
    registry.manifests[f"team/policies@{digest_of(manifest)}"] = manifest
    of_manifest = {"mediaType": "x", "digest": digest_of(manifest), "size": len(manifest)}
    index = json.dumps({"schemaVersion": 2, "manifests": [
        of_manifest | {"artifactType": "application/spdx+json"}, of_manifest | {"artifactType": kind}]}).encode()
    if api:
        registry.fault = lambda request: Reply(200, index) if "/referrers/" in request.path else None
    else:
        registry.manifests[f"team/policies:{digest.replace(':', '-')}"] = index
    assert BundlePuller(reference, access, Trust((keys.verify,))).newer() == PulledBundle(
        digest, FILES, {}, keys.verify.path)
    registry.blobs[digest_of(bundle)] = bundle.replace(b'"sig": "', b'"sig": "AAAA')
    assert refusal(reference, access, Trust((keys.verify,))).problem.code == "registry"


def test_nothing_is_read_of_a_bundle_before_its_signature_is_verified(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    layer = push(reference, FILES, {}, access).layer
    registry.requests.clear()
    refusal(reference, access, Trust((keys.verify,)))
    assert not [each for each in registry.requests if layer in each.path or (
        each.method == "GET" and "/manifests/sha256:" in each.path)]


def test_an_exchanged_layer_or_manifest_is_refused(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    pushed = push(reference, FILES, {}, access, keys.sign)
    registry.blobs[pushed.layer] = pack(FILES | {"a.yaml": b"owe"})
    trust = Trust((keys.verify,))
    assert refusal(reference, access, trust).problem.code == "digest-mismatch"
    registry.manifests[f"team/policies@{pushed.digest}"] = b"{}"
    assert refusal(reference, access, trust).problem.code == "digest-mismatch"


def test_a_digest_in_the_reference_goes_before_the_tag(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    first = push(reference, FILES, {}, access, keys.sign).digest
    push(reference, {"a.yaml": b"2"}, {}, access, keys.sign)
    registry.requests.clear()
    pinned = BundlePuller(reference.at(first), access, Trust((keys.verify,)))
    assert pinned.newer() == PulledBundle(first, FILES, {}, keys.verify.path)
    assert not [each for each in registry.requests if each.path.endswith("/v1")]


def test_a_bundle_that_is_missing_is_named(reference: BundleReference, access: RegistryAccess):
    digest = f"sha256:{'a' * 64}"
    assert refusal(reference, access, UNSIGNED).problem.message == f"there is no bundle `{reference}`"
    assert refusal(reference.at(digest), access, UNSIGNED).problem.message == (
        f"there is no bundle `{reference.at(digest)}`")


def test_a_signed_image_of_another_kind_is_no_bundle(
    reference: BundleReference, access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    image = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}).encode()
    registry.manifests |= {"team/policies:v1": image, f"team/policies@{digest_of(image)}": image}
    assert refusal(reference, access, UNSIGNED).problem.code == "not-a-bundle"


def test_the_place_of_a_bundle_is_not_part_of_what_is_trusted(
    access: RegistryAccess, registry: OciRegistry, keys: Keys,
):
    """A mirror has the signatures of the registry that it copies, as cosign verifies them."""
    first = BundleReference.parse(f"{registry.host}/team/policies:v1")
    digest = push(first, FILES, {}, access, keys.sign).digest
    registry.manifests |= {f"mirror{name.removeprefix('team/policies')}": content
                           for name, content in registry.manifests.items()}
    assert first.name.encode() in payload_of(first, digest)
    mirror = BundleReference.parse(f"{registry.host}/mirror:v1")
    assert BundlePuller(mirror, access, Trust((keys.verify,))).newer() == PulledBundle(
        digest, FILES, {}, keys.verify.path)
