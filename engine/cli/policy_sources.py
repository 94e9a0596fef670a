"""Values of `--policies` that are not paths: policies in an API server, and bundles in OCI registries. The options
of bundles are declared here. The client of registries is imported only if a value names a bundle.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.source import PolicyError

from . import cluster_policies
from .exits import Exit, Stop

if TYPE_CHECKING:
    from koordpolicy.engine.bundles.reference import BundleReference
    from koordpolicy.engine.bundles.registry import RegistryAccess
    from koordpolicy.engine.bundles.transfer import Trust
    from koordpolicy.engine.reload.bundle_source import BundleFollower, BundleSource
    from koordpolicy.engine.reload.mount import Mount, Version

BUNDLE: Final = "oci:"
FORMS: Final = "`oci:REGISTRY/REPOSITORY:TAG`, `configmap:NAMESPACE/NAME` or `crd`"
"""The values that are not paths, for help texts."""
_ATTEMPTS: Final = 3
"""The attempts of a request of a command that runs once."""


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """The options of bundles as they were given."""

    verify_keys: tuple[Path, ...] = ()
    insecure_unsigned: bool = False
    registry_ca: Path | None = None

    @property
    def given(self) -> str:
        """The first of these options that was given; empty if none was."""
        given = {"--verify-key": self.verify_keys, "--insecure-unsigned": self.insecure_unsigned,
                 "--registry-ca": self.registry_ca}
        return next((name for name, value in given.items() if value), "")


@dataclass(frozen=True, slots=True)
class PolicyAccess:
    """The access to policies that are not on the disk."""

    context: str | None = None
    """The context of a kubeconfig; None for its current one."""
    bundles: BundleOptions = field(default_factory=BundleOptions)


LOCAL: Final = PolicyAccess()


def add_bundle_options(parser: argparse.ArgumentParser, *, verified: bool = True) -> None:
    """Add the options of bundles; without `verified` those for registries only."""
    group = parser.add_argument_group(
        "bundles", "Bundles are named `oci:REGISTRY/REPOSITORY:TAG[@DIGEST]`. Logins are those of\n"
                   "`docker login`. See docs/bundles.md")
    if verified:
        group.add_argument("--verify-key", metavar="FILE", action="append", default=[], type=Path,
                           help="a public key (PEM) of those who may sign bundles; may be repeated, one signature is "
                                "enough")
        group.add_argument("--insecure-unsigned", action="store_true",
                           help="use bundles of anybody: signatures are not verified")
    group.add_argument("--registry-ca", metavar="FILE", type=Path,
                       help="trust registries with a certificate of this authority (PEM), too")


def bundle_options(options: argparse.Namespace) -> BundleOptions:
    """Return the options of `add_bundle_options`; those that a command does not have are not given."""
    return BundleOptions(tuple(getattr(options, "verify_key", ())), bool(getattr(options, "insecure_unsigned", False)),
                         getattr(options, "registry_ca", None))


def is_bundle(path: str | Path) -> bool:
    """Return whether a value of `--policies` names a bundle; `./oci:x` is a file."""
    return isinstance(path, str) and path.startswith(BUNDLE)


def is_elsewhere(path: str | Path) -> bool:
    """Return whether a value of `--policies` names policies that are not on the disk."""
    return is_bundle(path) or cluster_policies.in_cluster(path)


def bundle_sources(
    paths: Iterable[str | Path], options: BundleOptions, *, attempts: int = 1,
) -> dict[str, BundleSource]:
    """Return the sources of the bundles that these values name, by value; nothing is pulled yet.

    Raises:
        Stop: a value names no bundle, or is named twice, or the options do not say whom to trust.
        PolicyError: a key or an authority cannot be used.
    """
    found: dict[str, BundleSource] = {}
    for path in paths:
        if not is_bundle(path):
            continue
        from koordpolicy.engine.bundles.transfer import BundlePuller  # few commands have one
        from koordpolicy.engine.reload.bundle_source import BundleSource

        if path in found:
            raise Stop(f"`{path}` is named twice: leave one out")
        puller = BundlePuller(reference_of(str(path)), registry_access(options, attempts=attempts),
                              _trust(str(path), options))
        found[str(path)] = BundleSource(puller)
    return found


def need_cryptography(option: str, extra: str = "bundles") -> None:
    """Raise `Stop` if the package that signs and verifies, of an `extra`, is not installed."""
    if importlib.util.find_spec("cryptography") is None:
        raise Stop(f"`{option}` needs the package cryptography: pip install 'koord-policy[{extra}]'")


def need_version(mount: Mount) -> Version:
    """Return the policy files of a path.

    Raises:
        Stop: there is nothing at the path, or it cannot be read.
        PolicyError: a file cannot be read.
    """
    from koordpolicy.engine.reload.mount import Presence

    reading = mount.read()
    if reading.stamp.presence is Presence.MISSING:
        raise Stop(f"there is no file or directory `{mount.path}`")
    if reading.version is None:
        why = reading.stamp.reason or "it changes while it is read"
        raise Stop(f"`{mount.path}` cannot be read: {why}", Exit.INVALID)
    if reading.version.problems:
        raise PolicyError(reading.version.problems)
    return reading.version


def need_bundle(paths: Iterable[str | Path], options: BundleOptions) -> None:
    """Check that options of bundles are given with a bundle only: a directory is never verified.

    Raises:
        Stop: there is an option, and no bundle.
    """
    if options.given and not any(map(is_bundle, paths)):
        raise Stop(f"`{options.given}` goes with a bundle, and none is named: `{BUNDLE}REGISTRY/REPOSITORY:TAG` is one")


def reference_of(text: str) -> BundleReference:
    """Return the reference of a bundle that a text names; raises `Stop` if it is none."""
    from koordpolicy.engine.bundles.reference import BundleReference

    try:
        return BundleReference.parse(text)
    except PolicyError as error:
        raise Stop(f"{error.problems[0].message}: {error.problems[0].help}") from None


def registry_access(options: BundleOptions, *, attempts: int = _ATTEMPTS) -> RegistryAccess:
    """Return the access to registries that the options describe; raises `Stop` if a file is not there."""
    from koordpolicy.engine.bundles.registry import RegistryAccess

    if options.registry_ca is not None and not options.registry_ca.is_file():
        raise Stop(f"`--registry-ca`: there is no file `{options.registry_ca}`")
    return RegistryAccess(options.registry_ca, attempts=attempts)


def _trust(path: str, options: BundleOptions) -> Trust:
    from koordpolicy.engine.bundles.transfer import Trust

    if options.insecure_unsigned and options.verify_keys:
        raise Stop("`--insecure-unsigned` and `--verify-key` exclude each other")
    if not options.insecure_unsigned and not options.verify_keys:
        raise Stop(f"who may sign `{path}`? Name the public key with `--verify-key FILE`, or use it whoever made it "
                   "with `--insecure-unsigned`")
    if options.insecure_unsigned:
        return Trust(unsigned=True)
    need_cryptography("--verify-key")
    from koordpolicy.engine.bundles.keys import VerifyKey  # of an extra

    return Trust(tuple(map(VerifyKey.read, options.verify_keys)))


def followed(sources: Iterable[BundleSource], interval_s: float | None) -> BundleFollower:
    """Return the follower of bundles, after one pull of each; `interval_s` is that of `--registry-interval`."""
    from koordpolicy.engine.reload.bundle_source import INTERVAL_S, BundleFollower

    follower = BundleFollower(tuple(sources), interval_s=interval_s or INTERVAL_S)
    follower.first()
    return follower


def pulled(path: str, options: BundleOptions) -> BundleSource:
    """Return the source of one bundle, which was pulled and verified.

    Raises:
        Stop: the value or an option is not usable.
        PolicyError: the registry does not answer or refuses, or the bundle is not to be trusted.
    """
    (source,) = bundle_sources([path], options, attempts=_ATTEMPTS).values()
    source.look()
    if source.fault is not None:
        raise source.fault
    return source


@contextmanager
def as_files(paths: Sequence[Path], options: BundleOptions) -> Iterator[Sequence[Path]]:
    """Yield paths of files: those of bundles are in a directory that is removed at the end; raises as `pulled` does."""
    need_bundle(map(str, paths), options)
    if not any(is_bundle(str(path)) for path in paths):
        yield paths
        return
    from koordpolicy.engine.reload.mount import Mount
    from koordpolicy.engine.reload.publish import publish

    with tempfile.TemporaryDirectory(prefix="koord-policy-") as directory:
        found: list[Path] = []
        for path in paths:
            if not is_bundle(str(path)):
                found.append(path)
                continue
            bundle = pulled(str(path), options).pulled
            assert bundle is not None
            place = Path(directory, str(path).removeprefix(BUNDLE))
            place.mkdir(parents=True)
            publish(Mount(place), bundle.files)
            found.append(place)
        yield found


def read_elsewhere(paths: Iterable[str | Path], access: PolicyAccess) -> Mapping[str, Version]:
    """Return the policies of the values that are not paths, by value; each is read once.

    Raises:
        Stop: a value or an option is not usable.
        PolicyError: the API server or a registry does not answer or refuses, or a bundle is not to be trusted.
    """
    paths = list(paths)
    versions = dict(cluster_policies.listed(paths, access.context))
    for path in bundle_sources(paths, access.bundles):  # unusable values are reported before anything is pulled
        version = pulled(path, access.bundles).read().version
        assert version is not None
        versions[path] = version
    return versions
