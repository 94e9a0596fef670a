"""Write the policies of a bundle in an OCI registry to a directory, once its signature is verified.

The bundle is pulled and verified as a whole before a file is written. `koord-policy hash DIR` prints the hash that
`push` printed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from koordpolicy.engine.escaping import one_line

from .exits import Exit, Stop
from .policy_sources import BUNDLE, add_bundle_options, bundle_options, pulled
from .terminal import add_output, write, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES: Final = """\
examples:
  koord-policy pull registry.example.org/team/policies:v1 --out policies --verify-key sign.pub
  koord-policy pull registry.example.org/team/policies:prod --out policies --replace --verify-key sign.pub
  koord-policy pull localhost:5000/team/policies:dev --out policies --insecure-unsigned

exit codes: 0 written, 2 usage, 3 the registry does not answer or refuses, or the bundle is not to be trusted: then
nothing is written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("reference", metavar="REF", help="REGISTRY/REPOSITORY:TAG, REGISTRY/REPOSITORY@DIGEST or both")
    parser.add_argument("--out", metavar="DIR", type=Path, required=True,
                        help="the directory that is written; it is created if it does not exist")
    parser.add_argument("--replace", action="store_true",
                        help="DIR may hold files: its policy files are replaced by those of the bundle, others stay")
    add_bundle_options(parser)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    out: Path = options.out
    if out.exists() and not out.is_dir():
        raise Stop(f"`--out {out}` is not a directory")
    if out.is_dir() and not options.replace and any(out.iterdir()):
        raise Stop(f"`--out {out}` is not empty: name another directory, or replace its policy files with `--replace`")
    reference = f"{BUNDLE}{options.reference.removeprefix(BUNDLE)}"
    source = pulled(reference, bundle_options(options))
    version, bundle = source.read().version, source.pulled
    assert version is not None
    assert bundle is not None

    from koordpolicy.engine.reload.mount import Mount
    from koordpolicy.engine.reload.publish import publish

    out.mkdir(parents=True, exist_ok=True)
    publish(Mount(out), bundle.files)
    if options.output == "json":
        write_json({
            "reference": source.path.removeprefix(BUNDLE), "digest": bundle.digest, "hash": version.digest,
            "out": str(out), "files": dict(version.hashes), "signer": bundle.signer or None,
            "annotations": dict(bundle.annotations)})
        return Exit.OK
    files = len(bundle.files)
    write(f"pulled {source.path.removeprefix(BUNDLE)} ({bundle.digest}) to `{out}`")
    write(f"  hash {version.digest}, {files} file{'' if files == 1 else 's'}")
    write(f"  signed by `{bundle.signer}`" if bundle.signer else "  the signature was not looked at")
    for name, value in sorted(bundle.annotations.items()):
        write(f"  `{one_line(name)}`: `{one_line(value)}`")
    return Exit.OK
