"""Print the hash of policies, which identifies a version of a directory in /status and `reload --wait`.

It covers the names and contents of the policy files, but neither the path of the directory nor the version of
koord-policy. A ConfigMap made of the files has the same hash.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .exits import Exit, Stop
from .policy_sources import (
    BundleOptions,
    PolicyAccess,
    add_bundle_options,
    bundle_options,
    is_bundle,
    need_bundle,
    need_version,
    read_elsewhere,
)
from .terminal import add_output, write, write_json

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy hash policies/scheduler
  koord-policy hash oci:registry.example.org/team/policies:v1 --verify-key sign.pub
  koord-policy reload --wait "$(koord-policy hash policies/scheduler)" --endpoints http://10.0.0.7:8888

exit codes: 0 ok, 2 there is no such path, 3 a file cannot be read, or there is none
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("path", metavar="PATH",
                        help="a directory of policies, one file, or `oci:REGISTRY/REPOSITORY:TAG`")
    add_bundle_options(parser)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given them
    """Run the command; see the module."""
    need_bundle([options.path], bundle_options(options))
    digest, files = hash_path(options.path, bundle_options(options))
    if options.output == "json":
        write_json({"path": options.path, "hash": digest, "files": files})
    else:
        write(digest)
    return Exit.OK


def hash_path(path: str, bundles: BundleOptions) -> tuple[str, dict[str, str]]:
    """Return the hash of the policies of a path or a bundle, and that of each file.

    Raises `Stop` if the path does not exist or has no policy files, `PolicyError` if files cannot be read or are being
    written.
    """
    from koordpolicy.engine.reload.mount import Mount

    if is_bundle(path):
        found = read_elsewhere([path], PolicyAccess(bundles=bundles))[path]
        return found.digest, dict(found.hashes)
    version = need_version(Mount(path))
    if not version.hashes:
        raise Stop(f"there is no policy file in `{path}`", Exit.INVALID)
    return version.digest, dict(version.hashes)
