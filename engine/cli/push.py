"""Store policies as a bundle in an OCI registry, from which `--policies oci:REF` and `koord-policy pull` take it.

The policies are linted first: with an error nothing is pushed. Bundles of the same files have the same layer, and
without other annotations the same digest. With `--sign-key` the bundle is signed before the tag names it, in cosign's
format. Logins are those of `docker login`.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy import __version__
from koordpolicy.engine.explanation import counted
from koordpolicy.engine.source import PolicyError, Severity

from .exits import Exit, Stop
from .policy_sources import (
    add_bundle_options,
    bundle_options,
    need_cryptography,
    need_version,
    reference_of,
    registry_access,
)
from .terminal import add_output, warn, write, write_json
from .time_limit import compile_limit

if TYPE_CHECKING:
    from koordpolicy.engine.bundles.keys import SignKey
    from koordpolicy.engine.lint.reports import LintReport

    from . import Builtins

EXAMPLES: Final = """\
examples:
  koord-policy push registry.example.org/team/policies:v1 policies --sign-key sign.pem
  koord-policy push registry.example.org/team/policies:prod policies --sign-key sign.pem \\
      --bundle-version 1.4.0 --revision "$(git rev-parse HEAD)"
  koord-policy push localhost:5000/team/policies:dev policies/scheduler policies/qos --output json

a pair of keys:
  openssl genpkey -algorithm ed25519 -out sign.pem && openssl pkey -in sign.pem -pubout -out sign.pub

exit codes: 0 stored, 2 usage, 3 policies are invalid, or the registry does not answer or refuses
"""

_KEY: Final = re.compile(r"[a-z0-9][A-Za-z0-9._/-]{0,254}")
_LONGEST: Final = 4096
_OWN: Final = "sh.koordinator.policy."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("reference", metavar="REF", help="REGISTRY/REPOSITORY:TAG; an existing tag is moved")
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a directory of policies, or one file")
    parser.add_argument("--sign-key", metavar="FILE", type=Path,
                        help="sign with this private key (PEM; ECDSA P-256 or Ed25519); the environment variable "
                             "KOORD_POLICY_SIGN_PASSWORD decrypts it")
    parser.add_argument("--bundle-version", metavar="TEXT", help="the version that the bundle names, such as 1.4.0")
    parser.add_argument("--revision", metavar="TEXT", help="the revision that the bundle names, such as a git commit")
    parser.add_argument("--annotation", metavar="KEY=VALUE", type=_annotation, action="append", default=[],
                        help="a further annotation of the bundle; may be repeated")
    add_bundle_options(parser, verified=False)
    add_output(parser)


def _annotation(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not _KEY.fullmatch(key) or len(value) > _LONGEST:
        raise argparse.ArgumentTypeError(f"`{text}` is no annotation such as org.opencontainers.image.source=URL")
    if key.startswith(_OWN):
        raise argparse.ArgumentTypeError(f"`{key}`: annotations that begin with {_OWN} are written by `push`")
    return key, value


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    reference = reference_of(options.reference)
    if reference.digest or not reference.tag:
        raise Stop(f"`{options.reference}`: a bundle is pushed to a tag, and its digest follows from its content")
    key = _sign_key(options.sign_key)
    with compile_limit():
        files, names = _files_of(options.paths)
        report = _linted(files, names, builtins)

    from koordpolicy.engine.bundles import manifest
    from koordpolicy.engine.bundles.transfer import push
    from koordpolicy.engine.reload.mount import Version, hash_of

    hashes = {name: hash_of(content) for name, content in files.items()}
    digest = Version.of({}, hashes).digest
    warnings, notes = report.count(Severity.WARNING), report.count(Severity.NOTE)
    annotations = dict(options.annotation) | {
        manifest.HASH: digest, manifest.LINT: f"errors=0 warnings={warnings} notes={notes}",
        manifest.MADE_BY: f"koord-policy {__version__}",
        **({manifest.VERSION: options.bundle_version} if options.bundle_version else {}),
        **({manifest.REVISION: options.revision} if options.revision else {})}
    pushed = push(reference, files, annotations, registry_access(bundle_options(options)), key)
    if options.output == "json":
        write_json({
            "reference": str(reference), "digest": pushed.digest, "layer": pushed.layer, "hash": digest,
            "before": pushed.before, "files": hashes, "warnings": warnings, "notes": notes,
            "signedBy": None if key is None else key.id, "annotations": dict(sorted(annotations.items()))})
        return Exit.OK
    write(f"pushed {reference.at(pushed.digest)}")
    if pushed.before not in (None, pushed.digest):
        write(f"  the tag `{reference.tag}` was {pushed.before}")
    write(f"  hash {digest}, {counted(len(files), 'file')}, {counted(warnings, 'warning')}")
    write("  not signed" if key is None else f"  signed with `{key.path}`, whose public key is {key.id}")
    return Exit.OK


def _sign_key(path: Path | None) -> SignKey | None:
    if path is None:
        return None
    need_cryptography("--sign-key")
    from koordpolicy.engine.bundles.keys import PASSWORD, SignKey

    return SignKey.read(path, os.environ.get(PASSWORD))


def _files_of(paths: Sequence[str]) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the contents of all policy files by their name in the bundle, and these names' files.

    Raises:
        Stop: there is no such path, no file, or two files of one name.
        PolicyError: a file cannot be read.
    """
    from koordpolicy.engine.reload.mount import Mount
    from koordpolicy.engine.reload.publish import content_of

    files: dict[str, bytes] = {}
    names: dict[str, str] = {}
    for path in paths:
        mount = Mount(path)
        for relative, content in content_of(mount, need_version(mount)).items():
            name = relative or Path(path).name
            if name in files:
                raise Stop(f"`{names[name]}` and `{mount.name_of(relative)}` would both be `{name}` in the bundle: "
                           "name a directory that holds both, or rename one")
            files[name], names[name] = content, mount.name_of(relative)
    if not files:
        raise Stop(f"there is no policy file in {', '.join(f'`{path}`' for path in paths)}", Exit.INVALID)
    return files, names


def _linted(files: Mapping[str, bytes], names: Mapping[str, str], builtins: Builtins) -> LintReport:
    """Return the linter's report without errors; raises `PolicyError` if there are any."""
    from koordpolicy.engine.lint.configuration import FILE

    from .lint import report_of

    texts = {names[name]: content for name, content in files.items() if Path(name).name != FILE}
    if not texts:
        raise Stop("there is no policy file but the linter's settings", Exit.INVALID)
    report = report_of(texts, builtins)
    if not report.documents:
        raise Stop(f"there is no document in {', '.join(f'`{name}`' for name in texts)}", Exit.INVALID)
    if report.count(Severity.ERROR):
        raise PolicyError(each.problem for each in report.entries if each.problem.severity is Severity.ERROR)
    for entry in report.entries:
        if entry.problem.severity is Severity.WARNING:
            warn(entry.problem.render())
    return report
