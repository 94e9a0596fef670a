"""Loading of documents from files, directories and ConfigMaps, with all problems of all files at once."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from koordpolicy.engine.cel.check.patterns import PatternBudget, TooManyStatesError
from koordpolicy.engine.source import PolicyError, Problem, Problems, Source, did_you_mean, in_order
from koordpolicy.engine.texts import beginning

from .conversion import convert
from .nodes import LARGEST_FILE, YamlNode, read, read_file
from .specs import GROUP, VERSION, Document, Kind

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""The suffixes of policy files."""

_KINDS: Final = {kind.value: kind for kind in Kind}
_LARGEST_CONFIGMAP: Final = 1024 * 1024
_OUR_API: Final = re.compile(rf"""(?m)^[\s{{\-,]*"?apiVersion"?\s*:\s*["']?{re.escape(GROUP)}/""")
_CONFIGMAP_KEY: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")


def is_left_out(name: str) -> bool:
    """Return whether an entry of a directory of policies, file or directory, is skipped.

    `..data` and `..2024_...` are the versions of a mounted ConfigMap: the links next to them lead there. Other names
    that begin with a dot belong to editors and version control.
    """
    return name.startswith(".")


def is_policy_file(name: str) -> bool:
    """Return whether a file in a directory of policies is a policy file, by its name."""
    return not is_left_out(name) and name.endswith(SUFFIXES)


@dataclass(frozen=True, slots=True)
class Documents:
    """Loaded documents: the valid ones, in order, and the problems of the others."""

    documents: tuple[Document, ...] = ()
    problems: tuple[Problem, ...] = ()
    read: int = 0
    """The number of documents, including invalid ones."""

    def of(self, *kinds: Kind) -> tuple[Document, ...]:
        """Return the documents of some kinds."""
        return tuple(document for document in self.documents if document.kind in kinds)

    def __add__(self, other: Documents) -> Documents:
        problems = in_order(self.problems + other.problems) if other.problems else self.problems
        return Documents(self.documents + other.documents, problems, self.read + other.read)


def load(
    sources: Iterable[Source], *, source_name: str = "", pause: Callable[[], None] = lambda: None,
) -> Documents:
    """Read and convert every document of the sources; `source_name` is the mount or directory they came from.

    Documents after the one whose schema has too large patterns, together with those before, are not read. `pause` is
    called after each document.
    """
    problems = Problems()
    found: list[Document] = []
    read_before = 0
    try:
        with PatternBudget():
            for node in _nodes_of(sources, problems):
                read_before += 1
                kind = _kind_of(node, problems)
                document = convert(node, kind, problems) if kind is not None else None
                if document is not None:
                    found.append(replace(document, source_name=source_name))
                pause()
    except TooManyStatesError as error:
        problems.found.append(error.problem)
    return Documents(tuple(found), in_order(problems.found), read_before)


def _nodes_of(sources: Iterable[Source], problems: Problems) -> Iterator[YamlNode]:
    for source in sources:
        # Each is freed before the next: freeing those of thousands of documents at once takes 10 ms.
        nodes = list(read(source, problems))
        nodes.reverse()
        while nodes:
            yield nodes.pop()


def load_paths(
    paths: Iterable[Path | str], *, source_name: str = "", limit: int = LARGEST_FILE,
) -> Documents:
    """Load policy files and directories (walked recursively; entries that begin with `.` are skipped).

    A file that is named explicitly is read whatever its suffix. `limit` bounds the bytes of each file.
    """
    problems: list[Problem] = []
    sources: list[Source] = []
    for path in paths:
        for file in files_of(Path(path), problems):
            try:
                sources.append(read_file(file, limit=limit))
            except PolicyError as error:
                problems.extend(error.problems)
    loaded = load(sources, source_name=source_name)
    return Documents(loaded.documents, in_order((*problems, *loaded.problems)), loaded.read)


def holds_policies(path: Path) -> bool:
    """Return whether a file is a text with our API group as the `apiVersion` of a document; False if it is unreadable.

    Messages may show the text of such a file only, unless the user named it: others may hold secrets.
    """
    try:
        text = read_file(path).text
    except PolicyError:
        return False
    return "\0" not in text and _OUR_API.search(text) is not None


def is_inside(path: Path, directory: Path) -> bool:
    """Return whether a path leads into a directory, with all links followed, and to no hidden file or folder."""
    inner, outer = path.resolve(), directory.resolve()
    return inner.is_relative_to(outer) and not any(map(is_left_out, inner.relative_to(outer).parts))


def files_of(path: Path, problems: list[Problem]) -> Iterator[Path]:
    """Yield the policy files of a path (see `load_paths`); one that does not exist is a problem."""
    if path.is_dir():
        yield from _files_below(path, problems, ())
    elif path.exists():
        yield path
    else:
        problems.append(Problem(f"there is no file or directory `{path}`", code="unreadable"))


def _files_below(directory: Path, problems: list[Problem], above: tuple[Path, ...]) -> Iterator[Path]:
    try:
        entries, real = sorted(directory.iterdir()), directory.resolve()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        problems.append(Problem(f"cannot read the directory `{directory}`: {reason}", code="unreadable"))
        return
    if real in above:  # a link to a parent directory
        return
    top = above[0] if above else real
    outside = not real.is_relative_to(top)
    for entry in entries:
        if is_left_out(entry.name):
            continue
        if entry.is_dir():
            yield from _files_below(entry, problems, (*above, real))
        elif is_policy_file(entry.name):
            # A pipe is read only if it is named explicitly: one in a directory may never end.
            if entry.exists() and not entry.is_file():
                problems.append(Problem(f"cannot read `{entry}`: it is not a file", code="unreadable"))
            elif (outside or entry.is_symlink()) and not entry.resolve().is_relative_to(top) and not (
                    holds_policies(entry)):
                problems.append(Problem(f"cannot read `{entry}`: it is a link that leads outside of the directory, to "
                                        "a file without policies", code="unreadable"))
            else:
                yield entry


def _kind_of(node: YamlNode, problems: Problems) -> Kind | None:
    """Return the kind of a document; report it and return None if the kind is unknown."""
    version, kind = node.at("apiVersion"), node.at("kind")
    known = ", ".join(f"`{name}`" for name in _KINDS)
    if not node.fields and node.value != {}:
        problems.add("a document must be a mapping", node.span, help="is the `- ` or the text there by mistake?",
                     code="wrong-type")
    elif version is None or kind is None:
        name = "apiVersion" if version is None else "kind"
        example = VERSION if version is None else "SchedulerPlugin"
        hint = f"for example `{name}: {example}`"
        problems.add(f"missing field `{name}`", node.place, help=hint, code="missing-field")
    elif version.scalar != VERSION:
        text = str(version.text)
        if kind.text == "ConfigMap":
            hint = "check the documents inside a manifest with `koord-policy lint --configmap`"
        elif text.startswith(f"{GROUP}/"):
            hint = f"this release reads `{VERSION}`"
        else:
            hint = did_you_mean(text, [VERSION]) or f"policy documents have `{VERSION}`"
        problems.add(f"`{text}` is not a version of policy documents", version.span, help=hint, code="unknown-version")
    elif kind.scalar not in _KINDS:
        hint = did_you_mean(kind.text, _KINDS) or f"one of {known}"
        problems.add(f"there is no kind `{kind.text}` in `{VERSION}`", kind.span, help=hint, code="unknown-kind")
    else:
        return _KINDS[kind.text]
    return None


def read_configmap(source: Source, problems: Problems | None = None) -> tuple[tuple[str, Source], ...]:
    """Return the files inside the ConfigMaps of a manifest, by key; their positions are in the manifest.

    Applies the checks of the API server and the kubelet: keys, the size of 1 MiB for all data together, values that are
    not strings; and that the engine would read the keys as files. Problems are added to `problems`, or raised as
    `PolicyError` without it.
    """
    gathered = Problems() if problems is None else problems
    held: list[tuple[str, Source]] = []
    kinds = [(node, node.at("kind")) for node in read(source, gathered)]
    maps = [node for node, kind in kinds if kind is not None and kind.text == "ConfigMap"]
    if not maps and not gathered.errors:
        gathered.add("there is no ConfigMap in this manifest", source.span(0), code="missing-field",
                     help="`kind: ConfigMap` with the policy files under `data`")
    for node in maps:
        held.extend(_files_of(node, gathered))
    if problems is None:
        gathered.raise_errors()
    return tuple(held)


def configuration_in(source: Source, *kinds: str) -> Source:
    """Return the text of a component's configuration: the source itself, or the value of a ConfigMap's key.

    Positions in the result are positions in the manifest. A manifest may hold other objects than ConfigMaps, and
    ConfigMaps other keys.

    Raises:
        PolicyError: no key, or more than one, of the ConfigMaps holds a document of one of the kinds.
    """
    if "ConfigMap" not in source.text:
        return source
    maps = [node for node in read(source, Problems()) if _is(node, "ConfigMap")]
    if not maps:
        return source
    found = [
        (key, part) for node in maps for key, part, inside in _held(node)
        if any(_is(each, kind) for each in inside for kind in kinds)
    ]
    if len(found) == 1:
        return found[0][1]
    kind = "` or `".join(kinds)
    if found:
        names = ", ".join(f"`{key}`" for key, _ in found)
        raise PolicyError([Problem(f"several keys of this manifest hold a `{kind}`: {names}", found[1][1].span(0),
                                   "write the one that is meant to a file of its own", code="not-a-configuration")])
    keys = ", ".join(f"`{beginning(key)}`" for node in maps for key, _, _ in _held(node)) or "none"
    raise PolicyError([Problem(f"no key of this ConfigMap holds a `{kind}`", maps[0].span,
                               f"it has {keys}", code="not-a-configuration")])


def read_configuration(source: Source, *kinds: str) -> YamlNode:
    """Return the document of a component's configuration; see `configuration_in`.

    Raises:
        PolicyError: the text is no YAML, holds another number of documents than one, or numbers that JSON does not
            have, as which Kubernetes' components read it.
    """
    source = configuration_in(source, *kinds)
    documents = read(source)
    if len(documents) != 1:
        message = f"a configuration file holds one document, not {len(documents)}"
        raise PolicyError([Problem(message, source.span(0), code="not-a-configuration")])
    problems = [
        Problem(f"the number `{each.text}` is not finite", each.span, "write a finite number", code="invalid-value")
        for each in _scalars(documents[0]) if isinstance(each.scalar, float) and not math.isfinite(each.scalar)
    ]
    if problems:
        raise PolicyError(problems)
    return documents[0]


def _scalars(node: YamlNode) -> Iterator[YamlNode]:
    pending = [node]
    while pending:
        each = pending.pop()
        if isinstance(each.value, tuple | Mapping):
            pending += reversed(each.items or tuple(each.fields.values()))
        else:
            yield each


def configurations_in(nodes: Iterable[YamlNode], kinds: Collection[str]) -> tuple[YamlNode, ...]:
    """Return documents, and after each ConfigMap the documents of these kinds in its keys."""
    return tuple(
        each for node in nodes
        for each in (node, *(inner for _, _, inside in (_held(node) if _is(node, "ConfigMap") else ())
                             for inner in inside if any(_is(inner, kind) for kind in kinds)))
    )


def _is(node: YamlNode, kind: str) -> bool:
    found = node.at("kind")
    return found is not None and found.scalar == kind


def _held(node: YamlNode) -> Iterator[tuple[str, Source, tuple[YamlNode, ...]]]:
    """Yield key, text and documents of the values of a ConfigMap that are YAML."""
    data = node.at("data")
    for key, value in (data.fields if data is not None else {}).items():
        if isinstance(value.scalar, str) and "kind" in value.text:
            yield key, value.part, read(value.part, Problems())


def _files_of(node: YamlNode, problems: Problems) -> Iterator[tuple[str, Source]]:
    total = 0
    for section in ("data", "binaryData"):
        below = node.at(section)
        for key, value in (below.fields if below else {}).items():
            total += len(key.encode()) + len(value.text.encode())
            if not _CONFIGMAP_KEY.fullmatch(key) or key.startswith(".."):
                problems.add(
                    f"`{beginning(key)}` is not a key that a ConfigMap may have", value.place, code="invalid-value",
                    help="write at most 253 letters, digits, `-`, `_` and `.`, not beginning with `..`",
                )
            elif not isinstance(value.scalar, str):
                problems.add(
                    f"the value of `{key}` is not a string", value.place, help="write it as a block: `|`",
                    code="wrong-type",
                )
            elif not is_policy_file(key):
                problems.add(
                    f"`{beginning(key)}` would not be read: policy files end in {', '.join(SUFFIXES)}, and do not "
                    "begin with a dot", value.place, code="unreadable-file",
                    help="rename it, or keep what is not a policy in another ConfigMap",
                )
            elif section == "data":
                yield key, value.part
    if total > _LARGEST_CONFIGMAP:
        name = node.at("metadata", "name")
        problems.add(
            f"the ConfigMap holds {total} bytes, but the API server takes {_LARGEST_CONFIGMAP}",
            (name or node).span, help="split it into several", code="too-large",
        )
