"""No module imports itself by way of others: neither when it is loaded, nor inside of functions, nor for types alone.

Packages are resolved by path: what `src/koordpolicy` holds or links to, at whatever depth.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "koordpolicy"

NOT_BROKEN_YET: Mapping[frozenset[str], str] = {}
"""Cycles that are known, as the modules of each, with the reason why they stand. The table only shrinks."""


def modules_of(package: Path) -> dict[str, Path]:
    """Return the files of all modules below a directory that is a package, by dotted name; links are followed."""
    found, pending = {}, [(package.name, package)]
    while pending:
        name, directory = pending.pop()
        for each in directory.iterdir():
            if each.suffix == ".py":
                found[name if each.stem == "__init__" else f"{name}.{each.stem}"] = each
            elif each.is_dir() and (each / "__init__.py").exists():
                pending.append((f"{name}.{each.name}", each))
    return found


def imports_of(module: str, path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules of the same package that a module names in an import anywhere in it, but itself."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    found = set()
    for name in names_imported(path.read_text(encoding="utf-8"), package):
        module_of = name
        while module_of and module_of not in modules:
            module_of = module_of.rpartition(".")[0]
        found.add(module_of)
    return found - {"", module}


def names_imported(text: str, package: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{each.name}" for each in node.names)


def cycles_in(edges: Mapping[str, Collection[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that reach each other: the strongly connected components of more than one."""
    reached = {each: reachable(each, edges) for each in edges}
    together = {
        frozenset(other for other in reached[each] if each in reached[other]) for each in edges if each in reached[each]
    }
    return {each for each in together if len(each) > 1}


def reachable(start: str, edges: Mapping[str, Collection[str]]) -> set[str]:
    found: set[str] = set()
    pending = [start]
    while pending:
        new = set(edges[pending.pop()]) - found
        found |= new
        pending.extend(new)
    return found


def cycles_of(package: Path) -> set[frozenset[str]]:
    modules = modules_of(package)
    return cycles_in({name: imports_of(name, path, modules) for name, path in modules.items()})


def test_no_module_imports_itself_by_way_of_others():
    found = cycles_of(PACKAGE)
    new = sorted(sorted(each) for each in found - NOT_BROKEN_YET.keys())
    assert not new, f"import cycles: {new}"
    gone = sorted(sorted(each) for each in NOT_BROKEN_YET.keys() - found)
    assert not gone, f"no cycle any more, strike it off NOT_BROKEN_YET: {gone}"


def test_every_module_of_the_package_is_looked_at():
    modules = modules_of(PACKAGE)
    assert {"koordpolicy", "koordpolicy.__main__", "koordpolicy.builtin_plugins"} <= modules.keys()
    assert len(modules) == sum(1 for each in PACKAGE.iterdir() for _ in each.resolve().rglob("*.py")) + sum(
        1 for each in PACKAGE.iterdir() if each.suffix == ".py"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from .b import x", "from .a import y"),
        ("from . import b", "import p.a"),
        ("from p.b import x", "def f():\n    from .a import y\n"),
        ("from .c.d import x", "from ..a import y"),
        ("import p.b", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a\n"),
    ],
)
def test_a_cycle_is_found_however_the_import_is_written(tmp_path: Path, first: str, second: str):
    other = "p.c.d" if ".c" in first else "p.b"
    for name, text in {"p": "", "p.c": "", "p.a": first, other: second}.items():
        path = tmp_path.joinpath(*name.split("."))
        path = path / "__init__.py" if name in ("p", "p.c") else path.with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert cycles_of(tmp_path / "p") == {frozenset(("p.a", other))}


def test_modules_that_share_one_below_both_are_no_cycle():
    assert cycles_in({"a": {"c"}, "b": {"a", "c"}, "c": set()}) == set()
    assert cycles_in({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == {frozenset("abc")}
