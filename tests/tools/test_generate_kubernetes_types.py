from __future__ import annotations

import importlib.util
import json
from importlib.metadata import version
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
COMMITTED = (PROJECT / "schemas" / "kubernetes" / "core.json").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generator():
    spec = importlib.util.spec_from_file_location("generator", PROJECT / "tools" / "generate_kubernetes_types.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_types_are_what_the_installed_client_yields(generator):
    # The development extra pins the client; with another one the sources differ, and so may the fields.
    assert f"kubernetes {version('kubernetes')}," in json.loads(COMMITTED)["source"], "pip install -e '.[dev]'"
    assert generator.generate() == COMMITTED


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("One. Two.", "One"),
        ("Values are e.g. Big ones. More", "Values are e.g. Big ones"),
        ("version 1.2 of\n  it.", "version 1.2 of it"),
        ("", ""),
    ],
)
def test_a_first_sentence_ends_before_the_next(generator, text, want):
    assert generator.first_sentence(text) == want


@pytest.mark.parametrize(
    ("model", "want"),
    [
        ("V1PodSpec", "kubernetes.PodSpec"), ("V1alpha1Thing", "kubernetes.Thing"),
        ("CoreV1ResourceClaim", "kubernetes.ResourceClaim"), ("VersionInfo", "kubernetes.VersionInfo"),
    ],
)
def test_a_model_is_called_by_its_kind(generator, model, want):
    assert generator.name_type(model) == want


def test_a_type_that_is_not_known_is_refused(generator):
    with pytest.raises(ValueError, match="no model and no scalar is called `Mystery`"):
        generator.spell("list[Mystery]", [])
