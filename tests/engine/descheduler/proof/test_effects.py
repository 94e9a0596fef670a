"""The effect of proofs, by document, by plugin and by configuration."""

from __future__ import annotations

from typing import Any

import pytest

from koordpolicy.builtin_plugins.descheduler import PLUGINS
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.profile import build_profiles
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Registry
from koordpolicy.engine.source import PolicyError, Source


def document(name: str, spec: str) -> str:
    return (f"apiVersion: policy.koordinator.sh/v1alpha2\nkind: DeschedulerPlugin\nmetadata: {{name: {name}}}\n"
            f"spec: {{{spec}}}\n")


BALANCE = "type: Balance, nodes: {source: 'true'}"
DESCHEDULE = "type: Deschedule, criteria: [{name: a, expression: 'true'}]"
TEXTS = [
    document("balance", BALANCE), document("balance-off", f"{BALANCE}, proof: 'Off'"),
    document("deschedule", DESCHEDULE), document("deschedule-warn", f"{DESCHEDULE}, proof: Warn"),
]


def effects(**profile: Any) -> dict[str, str]:
    registry = Registry.of([*PLUGINS, *compile_documents(load(
        [Source(f"{number}.yaml", text) for number, text in enumerate(TEXTS)]))], generation=1)
    given = config.read_plain({"profiles": [{"plugins": {"balance": {"enabled": [
        {"name": "LowNodeLoad"}, {"name": "RemoveDuplicates"}]}}, **profile}]})
    built, = build_profiles(given.profiles, registry, dry_run=True)
    return {each.name: each.proof.value for each in (*built.deschedule, *built.balance)}


def test_documents_have_their_own_effect_and_plugins_of_an_upstream_configuration_none():
    assert effects() == {
        "deschedule": "Off", "deschedule-warn": "Warn", "LowNodeLoad": "Off", "RemoveDuplicates": "Off",
        "balance": "Enforce", "balance-off": "Off",
    }


def test_a_profile_with_a_map_proves_low_node_load_and_what_it_names():
    assert effects(proof={})["LowNodeLoad"] == "Enforce"
    found = effects(proof={"LowNodeLoad": "Warn", "RemoveDuplicates": "Enforce", "balance": "Off"})
    assert (found["LowNodeLoad"], found["RemoveDuplicates"], found["balance"]) == ("Warn", "Enforce", "Off")


def test_a_map_that_names_an_unknown_plugin_is_refused():
    with pytest.raises(PolicyError, match="its `proof` names the plugin `LowNodeLod`, which does not exist"):
        effects(proof={"LowNodeLod": "Warn"})


def test_an_eviction_filter_proves_nothing():
    text = document("veto", "type: EvictionFilter, proof: Warn, criteria: [{name: a, expression: 'true'}]")
    assert [each.message for each in load([Source("veto.yaml", text)]).problems] == [
        "`proof` means nothing for the type `EvictionFilter`"]


def test_an_unknown_effect_is_refused_at_its_place():
    text = "apiVersion: descheduler/v1alpha2\nkind: DeschedulerConfiguration\nprofiles:\n- proof: {LowNodeLoad: On}\n"
    with pytest.raises(PolicyError) as caught:
        config.read(Source("d.yaml", text))
    problem, = caught.value.problems
    assert str(problem.span) == "d.yaml:4:24"
