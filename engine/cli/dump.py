"""Write a dump of a live cluster that the other commands take with `--cluster`.

It has all kinds that the policies and the built-in plugins read, and Namespaces. The file is for this user only: pods
may contain secrets in their environment.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from .cluster_loading import LIVE_CLUSTER, context_of
from .composition import access_of, add_policies, registry_of
from .exits import Exit, Stop
from .terminal import add_output, progress, table, warn, write, write_json

if TYPE_CHECKING:
    from koordpolicy.engine.client.connection import Connection
    from koordpolicy.engine.cluster.sources.dump import Dumped
    from koordpolicy.engine.framework.registry import Registry

    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy dump --cluster kube --out cluster.json
  koord-policy dump --cluster kube:staging --policies policies/ --out staging.json --output json
  koord-policy dump --cluster kube --out cluster.json && koord-policy audit policies/ --cluster cluster.json

exit codes: 0 written, 2 usage, 3 policies are invalid, or the cluster cannot be listed
"""

_FIRST: Final = ("Node", "Pod", "Namespace")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--cluster", metavar="SOURCE", required=True,
                        help="kube[:CONTEXT], the cluster of the kubeconfig or of that context; it is only read")
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="the dump; an existing one is replaced")
    add_policies(parser)
    add_output(parser)


def run(options: argparse.Namespace, builtins: Builtins) -> int:
    """Run the command; see the module."""
    if options.cluster.partition(":")[0] != LIVE_CLUSTER:
        raise Stop("`--cluster` takes `kube[:CONTEXT]` here: a dump is made of a live cluster")
    path: Path = options.out
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise Stop(f"cannot write `{path}`: it is not a file")
    from koordpolicy.engine.client.kubeconfig import load_connection

    context = context_of(options.cluster)
    kinds = kinds_of(registry_of(options.policies, builtins, access=access_of(options)))
    found = _write(load_connection(context), kinds, path)
    for text in found.faults:
        warn(f"warning: {text}")
    if options.output == "json":
        write_json({"file": str(path), "bytes": found.bytes, "objects": dict(found.objects),
                    "omitted": dict(found.omitted)})
        return Exit.OK
    table(["kind", "objects"], [[kind, count] for kind, count in found.objects.items()])
    if found.omitted:
        write()
        table(["not in the dump", "why"], list(map(list, found.omitted.items())))
    write(f"\n{sum(found.objects.values())} objects of {len(found.objects)} kinds in `{path}`, {found.bytes:,} bytes")
    return Exit.OK


def kinds_of(registry: Registry) -> list[str]:
    """Return the kinds that the plugins of a registry read: nodes, pods and namespaces first, then by name."""
    read = {read.kind for plugin in registry.plugins.values() for read in plugin.reads}
    return [*_FIRST, *sorted(read.difference(_FIRST))]


def _write(connection: Connection, kinds: list[str], path: Path) -> Dumped:
    """Write the dump to a new file beside the path, and then put it there: a link is replaced, not followed."""
    from koordpolicy.engine.client.transport import Transport
    from koordpolicy.engine.cluster.sources.dump import dump
    from koordpolicy.engine.files import beside_of, create_private, reason_of

    beside = beside_of(path)
    with progress("dumping", len(kinds)) as done:

        async def run() -> Dumped:
            async with Transport(connection, user_agent="koord-policy/dump") as transport:
                return await dump(transport, kinds, file, progress=done)

        try:
            with os.fdopen(create_private(beside), "wb") as file:
                found = asyncio.run(run())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except OSError as error:
            raise Stop(f"cannot write `{path}`: {reason_of(error)}") from None
        finally:
            beside.unlink(missing_ok=True)
    return found
