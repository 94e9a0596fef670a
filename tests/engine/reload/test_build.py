from __future__ import annotations

from collections.abc import Sequence

import pytest

from koordpolicy.engine.documents import Document
from koordpolicy.engine.framework.points import Framework, Point
from koordpolicy.engine.framework.registry import Plugin
from koordpolicy.engine.reload import Builder
from koordpolicy.engine.source import PolicyError, Problems, Severity, Source


def policy(name: str, *, params: str = "", expression: str = "true") -> str:
    return (
        "apiVersion: policy.koordinator.sh/v1alpha2\nkind: SchedulerPlugin\n"
        f"metadata: {{name: {name}}}\nspec:\n"
        + (f"  paramsFrom: [{{name: {params}}}]\n" if params else "")
        + f"  filter: [{{name: only, expression: '{expression}'}}]\n")


def shared(name: str, value: int) -> str:
    return ("apiVersion: policy.koordinator.sh/v1alpha2\nkind: PolicyParams\n"
            f"metadata: {{name: {name}}}\nspec: {{params: {{limit: {value}}}}}\n")


class Compiler:
    """Notes what it is asked to compile."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, documents: Sequence[Document], problems: Problems) -> list[Plugin]:
        self.asked.append([document.name for document in documents])
        document = documents[0]
        expression = document.spec.filter[0].expression
        problems.add("it could be shorter", expression.span, severity=Severity.WARNING)
        if expression.text == "wrong":
            problems.add("wrong expression", expression.span)
        return [Plugin(document.name, Framework.SCHEDULER, (Point.FILTER,), lambda args, handle: None, document.origin,
                       document.digest, span=document.span)]


def sources(**texts: str) -> list[Source]:
    return [Source(f"{name}.yaml", text) for name, text in texts.items()]


def test_only_what_changed_is_compiled_again() -> None:
    compiler = Compiler()
    build = Builder(compiler)
    texts = {"a": policy("a"), "b": policy("b", params="p"), "c": policy("c"), "p": shared("p", 1)}
    assert [plugin.name for plugin in build(sources(**texts))] == ["a", "b", "c"]
    assert compiler.asked == [["a"], ["b", "p"], ["c"]]
    compiler.asked.clear()
    assert [plugin.name for plugin in build(sources(**texts | {"c": policy("c2")}))] == ["a", "b", "c2"]
    assert compiler.asked == [["c2"]]
    compiler.asked.clear()
    build(sources(**texts | {"p": shared("p", 2)}))
    assert compiler.asked == [["b", "p"]]


def test_errors_are_kept_and_told_again_all_of_them_with_those_of_loading() -> None:
    compiler = Compiler()
    build = Builder(compiler)
    texts = sources(a=policy("a", expression="wrong"), b=policy("b"), c="kind: [", d=policy("d", expression="wrong"))
    for _ in range(2):
        with pytest.raises(PolicyError) as caught:
            build(texts)
        assert [problem.span.name for problem in caught.value.problems if problem.span] == [
            "a.yaml", "c.yaml", "d.yaml",
        ]
    assert compiler.asked == [["a"], ["b"], ["d"]]


def test_params_of_one_name_in_two_files_are_an_error() -> None:
    with pytest.raises(PolicyError, match=r"the PolicyParams `p` is declared twice, also at a\.yaml:3"):
        Builder(Compiler())(sources(a=shared("p", 1), b=shared("p", 2)))


def test_names_that_are_taken_twice_are_told_with_everything_else_that_is_wrong() -> None:
    with pytest.raises(PolicyError) as caught:
        Builder()(sources(a=policy("a"), b=policy("a"), c="kind: ["))
    assert [(each.span.name, each.code) for each in caught.value.problems if each.span] == [
        ("b.yaml", "duplicate-name"), ("c.yaml", "yaml-syntax"),
    ]


def test_names_are_compared_once_when_a_set_is_built_and_its_warnings_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[list[str]] = []
    monkeypatch.setattr("koordpolicy.engine.reload.build.check_names",
                        lambda documents, _: compared.append([each.name for each in documents]))
    builder, files = Builder(Compiler()), sources(a=policy("a"), b=policy("b"))
    builder(files)
    assert len(builder.warnings(files)) == 2
    assert compared == [["a", "b"]]


def test_a_reference_to_nothing_is_left_to_the_compiler_with_all_names() -> None:
    compiler = Compiler()
    Builder(compiler)(sources(a=policy("a", params="gone"), p=shared("p", 1), q=shared("q", 1)))
    assert compiler.asked == [["a", "p", "q"]]


def test_a_file_belongs_together_with_the_files_of_its_params() -> None:
    groups = Builder(Compiler()).groups(sources(a=policy("a", params="p"), b=policy("b"), p=shared("p", 1)))
    assert sorted(map(sorted, groups)) == [["a.yaml", "p.yaml"], ["b.yaml"]]


def test_what_is_to_be_said_about_files_that_build_is_kept_with_its_place() -> None:
    compiler = Compiler()
    build = Builder(compiler)
    texts = sources(a=policy("a"), p=shared("p", 1))
    build(texts)
    assert [(str(each.span), each.message) for each in build.warnings(texts)] == [
        ("a.yaml:5:38", "it could be shorter"),
    ]
    assert compiler.asked == [["a"]]


def test_what_is_not_in_force_any_more_is_forgotten() -> None:
    compiler = Compiler()
    build = Builder(compiler)
    before, after = sources(a=policy("a"), b=policy("b")), sources(a=policy("a"), c=policy("c"))
    build(before)
    build(after)
    build.warnings(after)
    build(before)
    assert compiler.asked == [["a"], ["b"], ["c"], ["b"]]
