"""Print the CustomResourceDefinitions with which a Kubernetes cluster stores policies as objects.

They are made of the same schemas that files are checked with. Once they are installed, `--policies crd` reads the
objects of the cluster, and their status says which of them are active, and what is wrong with the others.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import yaml

from koordpolicy.engine.documents.crd import definitions

from .exits import Exit
from .terminal import write

if TYPE_CHECKING:
    from . import Builtins

EXAMPLES = """\
examples:
  koord-policy crd | kubectl apply --server-side -f -
  kubectl apply -f policies/scheduler/keep-off-hot-nodes.yaml
  kubectl get schedulerplugins

exit codes: 0 printed, 2 usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command: it has none."""


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - every command is given both
    """Run the command; see the module."""
    write(text().rstrip("\n"))
    return Exit.OK


def text() -> str:
    """Return the definitions as YAML documents."""
    return yaml.dump_all(definitions(), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes what stands in several places each time, instead of an alias."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True
