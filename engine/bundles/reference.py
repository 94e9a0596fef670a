"""References of bundles: `REGISTRY/REPOSITORY:TAG`, with an optional digest."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final

from koordpolicy.engine.source import PolicyError, Problem

SCHEME: Final = "oci:"
"""The beginning of `--policies oci:REFERENCE`."""
_HOST: Final = re.compile(
    r"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(?::[0-9]{1,5})?")
_PART: Final = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST_REPOSITORY: Final = 255
_FORM: Final = "write REGISTRY/REPOSITORY:TAG, such as registry.example.org/team/policies:v1"


@dataclass(frozen=True, slots=True)
class BundleReference:
    """The name of a bundle; at least one of tag and digest is not empty."""

    registry: str
    """The host, with a port where it is not that of the scheme."""
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> BundleReference:
        """Return the reference that a text names, with or without `oci:`; raises `PolicyError` if it is none."""
        name, at, digest = text.removeprefix(SCHEME).partition("@")
        registry, slash, path = name.partition("/")
        repository, colon, tag = path.partition(":")
        if not slash or not _HOST.fullmatch(registry) or not ("." in registry or ":" in registry
                                                              or registry == "localhost"):
            raise _refusal(text, f"`{registry}` is no registry" if slash else "it has no registry")
        if not _REPOSITORY.fullmatch(repository) or len(repository) > _LONGEST_REPOSITORY:
            raise _refusal(text, f"`{repository}` is no repository, which has lowercase letters, digits and "
                                 "`.`, `_`, `-`, `/` between them")
        if colon and not _TAG.fullmatch(tag):
            raise _refusal(text, f"`{tag}` is no tag")
        if at and not _DIGEST.fullmatch(digest):
            raise _refusal(text, f"`{digest}` is no digest such as sha256: and 64 digits")
        if not (tag or digest):
            raise _refusal(text, "it has neither a tag nor a digest")
        return cls(registry, repository, tag, digest)

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    def at(self, digest: str) -> BundleReference:
        """Return the same reference with a digest."""
        return replace(self, digest=digest)

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def digest_of(content: bytes) -> str:
    """Return the digest by which a registry names a content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _refusal(text: str, why: str) -> PolicyError:
    return PolicyError([Problem(f"`{text}` names no bundle: {why}", help=_FORM, code="usage")])
