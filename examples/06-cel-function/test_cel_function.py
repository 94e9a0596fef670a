from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from koordpolicy.engine.cel.scalar.program import compile as compile_program
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load_paths
from koordpolicy.engine.framework.discovery import discover
from koordpolicy.engine.framework.slots import Slot, environment
from koordpolicy.engine.source import PolicyError

HERE = Path(__file__).parent


@pytest.fixture
def functions():
    """The functions as an installed distribution would bring them."""
    spec = importlib.util.spec_from_file_location("acme_zones", HERE / "acme_zones.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["acme_zones"] = module
    yield discover(pytest.fail, [EntryPoint("zones", "acme_zones", "koordpolicy.plugins")]).functions
    del sys.modules["acme_zones"]


def test_the_example_of_the_function_is_true(functions) -> None:
    (function,) = functions
    assert compile_program(function.example, environment(Slot.FILTER, extensions=functions)).call() is True


def test_the_policy_is_valid_where_the_function_is_installed_and_nowhere_else(functions) -> None:
    documents = load_paths([HERE / "policy.yaml"])
    assert [plugin.name for plugin in compile_documents(documents, extensions=functions)] == ["near-the-data"]
    with pytest.raises(PolicyError, match="no variable `acme`"):
        compile_documents(documents)
