"""A bundle is a source as a directory is: its last version stays active, whatever a registry does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from koordpolicy.engine.bundles.keys import SignKey, VerifyKey
from koordpolicy.engine.bundles.logins import Logins
from koordpolicy.engine.bundles.manifest import HASH
from koordpolicy.engine.bundles.reference import BundleReference
from koordpolicy.engine.bundles.registry import RegistryAccess
from koordpolicy.engine.bundles.transfer import BundlePuller, Trust, push
from koordpolicy.engine.client.pacing import Backoff
from koordpolicy.engine.framework.registry import Live
from koordpolicy.engine.reload import Builder, InvalidAtStart, Mount, Presence
from koordpolicy.engine.reload.bundle_source import BundleFollower, BundleSource
from koordpolicy.engine.source import PolicyError
from tests.oci_registry import OciRegistry, Reply

from .conftest import POLICY, Time, begun, messages, names, reloader_of

PRIVATE = ed25519.Ed25519PrivateKey.generate()
SIGN, VERIFY = SignKey("sign.pem", PRIVATE), VerifyKey("sign.pub", PRIVATE.public_key())
ACCESS = RegistryAccess(logins=Logins({"DOCKER_CONFIG": "/nowhere"}), seconds=60.0)
TWO = POLICY.replace("one", "two")


@pytest.fixture
def reference(registry: OciRegistry) -> BundleReference:
    return BundleReference.parse(f"{registry.host}/p:v1")


@pytest.fixture
def stored(reference: BundleReference) -> Callable[..., str]:
    """Push files and return the digest of the bundle; their texts are policies."""
    def push_files(annotations: dict[str, str] | None = None, key: SignKey | None = SIGN, **files: str) -> str:
        contents = {f"{name}.yaml": text.encode() for name, text in files.items()}
        return push(reference, contents, annotations or {}, ACCESS, key).digest

    return push_files


@pytest.fixture
def source(reference: BundleReference) -> BundleSource:
    return BundleSource(BundlePuller(reference, ACCESS, Trust((VERIFY,))))


def active(live: Live) -> str:
    return " ".join(names(live))


@contextmanager
def running(follower: BundleFollower) -> Iterator[None]:
    """Run a follower, whose thread has ended afterwards."""
    follower.started()
    (thread,) = (each for each in threading.enumerate() if each.name == "bundles")
    try:
        yield
    finally:
        follower.closed()
        thread.join(60)
        assert not thread.is_alive()


def test_a_bundle_has_the_hash_of_the_directory_that_it_was_made_of(
    tmp_path: Path, source: BundleSource, stored: Callable[..., str], registry: OciRegistry,
):
    (tmp_path / "a.yaml").write_text(POLICY)
    directory = Mount(tmp_path).read().version
    assert directory is not None
    digest = stored({HASH: directory.digest}, a=POLICY)
    assert source.look()
    version = source.read().version
    assert version is not None
    assert (version.digest, version.bundle, version.files["a.yaml"].name) == (
        directory.digest, digest, f"oci:{registry.host}/p:v1/a.yaml")
    assert (source.stamp().presence, source.stamp().marks) == (Presence.BUNDLE, (digest,))
    assert not source.look()


def test_a_hash_that_its_maker_got_wrong_is_refused(source: BundleSource, stored: Callable[..., str]):
    digest = stored({HASH: "0123"}, a=POLICY)
    source.look()
    assert source.stamp().reason.startswith(f"the bundle {digest} names the hash 0123, and has ")


def test_a_newer_bundle_is_activated_and_the_status_names_its_digest(
    time: Time, live: Live, source: BundleSource, stored: Callable[..., str],
):
    first = stored(a=POLICY)
    source.look()
    reloader = begun(live, time, source, builder=Builder())
    assert (active(live), reloader.status().sources[0].bundle) == ("one", first)
    second = stored(a=TWO)
    assert source.look()
    time.run(reloader, 1)
    (status,) = reloader.status().sources
    assert (active(live), status.bundle, status.to_json()["bundle"]) == ("two", second, second)
    stored(a=POLICY)
    source.look()
    time.run(reloader, 1)
    assert (active(live), reloader.status().sources[0].bundle) == ("one", first)


def test_a_bundle_with_other_annotations_is_active_without_a_reload(
    time: Time, live: Live, source: BundleSource, stored: Callable[..., str],
):
    stored(a=POLICY)
    source.look()
    reloader = begun(live, time, source, builder=Builder())
    newer = stored({"org.opencontainers.image.revision": "2"}, a=POLICY)
    source.look()
    time.run(reloader, 1)
    assert (reloader.status().generation, reloader.status().sources[0].bundle) == (1, newer)


def test_an_invalid_bundle_is_refused_with_its_place_and_the_active_one_is_named(
    time: Time, live: Live, source: BundleSource, stored: Callable[..., str],
):
    first = stored(a=POLICY)
    source.look()
    reloader = begun(live, time, source, builder=Builder())
    stored(a=TWO.replace("'true'", "'true &&'"))
    source.look()
    time.run(reloader, 1)
    (status,) = reloader.status().sources
    assert (active(live), status.bundle, str(status.problems[0].span)) == ("one", first, f"{source.path}/a.yaml:4:47")


def test_while_the_registry_is_away_its_last_bundle_stays_with_a_warning(
    time: Time, live: Live, source: BundleSource, stored: Callable[..., str], registry: OciRegistry,
):
    stored(a=POLICY)
    source.look()
    reloader = begun(live, time, source, builder=Builder())
    registry.fault = lambda _: Reply(503)
    assert source.look()
    assert not source.look()
    time.run(reloader, 1)
    (status,) = reloader.status().sources
    assert (active(live), reloader.status().healthy, status.warnings) == ("one", True, (
        f"changes of `{source.path}` may be missed: the registry `{registry.host}`: it answered 503",))
    registry.fault = lambda _: None
    assert source.look()
    time.run(reloader, 1)
    assert reloader.status().sources[0].warnings == ()


def test_a_bundle_of_another_signer_is_a_problem_that_stays_while_the_registry_is_away(
    time: Time, live: Live, source: BundleSource, stored: Callable[..., str], registry: OciRegistry,
):
    stored(a=POLICY)
    source.look()
    reloader = begun(live, time, source, builder=Builder())
    stored(key=SignKey("x", ed25519.Ed25519PrivateKey.generate()), a=TWO)
    assert source.look()
    time.run(reloader, 1)
    (message,) = messages(reloader)
    assert message.startswith(f"`{source.path}` cannot be read: no signature of `{registry.host}/p:v1@sha256:")
    registry.fault = lambda _: Reply(503)
    assert source.look()
    time.run(reloader, 1)
    assert (active(live), messages(reloader), reloader.status().healthy) == ("one", [message], False)
    registry.fault = lambda _: None
    stored(a=TWO)
    assert source.look()
    time.run(reloader, 1)
    assert (active(live), messages(reloader), reloader.status().healthy) == ("two", [], True)


def test_a_bundle_that_is_gone_leaves_the_active_one(
    time: Time, live: Live, source: BundleSource, stored: Callable[..., str], registry: OciRegistry,
):
    stored(a=POLICY)
    source.look()
    reloader = begun(live, time, source, builder=Builder())
    del registry.manifests["p:v1"]
    source.look()
    time.run(reloader, 1)
    assert (active(live), messages(reloader)) == ("one", [
        f"`{source.path}` cannot be read: there is no bundle `{registry.host}/p:v1`"])


def test_a_start_without_the_registry_is_refused_or_uses_the_last_good_bundle(
    tmp_path: Path, time: Time, live: Live, source: BundleSource, reference: BundleReference,
    stored: Callable[..., str], registry: OciRegistry,
):
    stored(a=POLICY)
    source.look()
    begun(live, time, source, builder=Builder(), state_dir=tmp_path / "state")
    registry.fault = lambda _: Reply(503)
    away = BundleSource(BundlePuller(reference, ACCESS, Trust((VERIFY,))))
    assert (away.stamp().presence, away.stamp().reason) == (Presence.UNREADABLE, "it has not been pulled yet")
    away.look()
    with pytest.raises(PolicyError, match="it answered 503"):
        begun(Live(), time, away, builder=Builder())
    resumed = Live()
    reloader = reloader_of(resumed, away, builder=Builder(), state_dir=tmp_path / "state",
                           invalid_at_start=InvalidAtStart.LAST_GOOD)
    reloader.begin(time.now)
    assert (active(resumed), reloader.status().sources[0].last_good) == ("one", True)
    registry.fault = lambda _: None
    digest = stored(a=TWO)
    away.look()
    time.run(reloader, 1)
    assert (active(resumed), reloader.status().sources[0].bundle) == ("two", digest)


def test_the_next_look_is_after_the_interval_or_as_the_fault_demands(
    source: BundleSource, reference: BundleReference, stored: Callable[..., str], registry: OciRegistry,
):
    backoff = Backoff(clock=lambda: 0.0, jitter=lambda: 0.0)
    early, late = (BundleFollower([source], interval_s=60.0, random=lambda part=part: part) for part in (0.0, 1.0))
    digest = stored(a=POLICY)
    source.look()
    assert (early.delay_after(source, backoff), late.delay_after(source, backoff)) == (54.0, 66.0)
    registry.fault = lambda _: Reply(503)
    source.look()
    assert [early.delay_after(source, backoff) for _ in range(3)] == [0.8, 1.6, 3.2]
    short = BundleFollower([source], interval_s=2.0)
    assert short.delay_after(source, backoff) == 2.0
    registry.fault = lambda _: Reply(429, headers={"Retry-After": "600"})
    source.look()
    assert early.delay_after(source, backoff) == 600.0
    registry.fault = lambda _: None
    pinned = BundleSource(BundlePuller(reference.at(digest), ACCESS, Trust((VERIFY,))))
    pinned.look()
    assert early.delay_after(pinned, backoff) == float("inf")
    pinned_and_missing = BundleSource(
        BundlePuller(reference.at(f"sha256:{'a' * 64}"), ACCESS, Trust(unsigned=True)))
    pinned_and_missing.look()
    assert early.delay_after(pinned_and_missing, backoff) == 54.0


def test_a_follower_reports_changes_until_it_is_closed(source: BundleSource, stored: Callable[..., str]):
    stored(a=POLICY)
    follower = BundleFollower([source], interval_s=0.01)
    follower.first()
    first = source.pulled
    changed = threading.Event()
    follower.on_change(changed.set)
    with running(follower):
        digest = stored(a=TWO)
        assert changed.wait(60)
    assert first is not None
    assert source.pulled == replace(first, digest=digest, files={"a.yaml": TWO.encode()})


def test_a_defect_does_not_end_the_thread(
    source: BundleSource, stored: Callable[..., str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
):
    stored(a=POLICY)
    seen = threading.Semaphore(0)

    def look() -> bool:
        seen.release()
        raise RuntimeError("a defect")

    follower = BundleFollower([source], interval_s=0.01)
    monkeypatch.setattr(source, "look", look)
    with running(follower):
        assert seen.acquire(timeout=60)
        assert seen.acquire(timeout=60)
    assert f"looking for a newer bundle of `{source.path}` failed" in caplog.messages
