from __future__ import annotations

from pathlib import Path

from koordpolicy.builtin_plugins.scheduler import PLUGINS
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.documents import load_paths
from koordpolicy.engine.scheduler.extensions.fragmentation import TypicalPod
from koordpolicy.engine.scheduler.profiles.profile import PluginChoice, ProfileSpec
from koordpolicy.engine.scheduler.trace_profile import trace_profile

TYPICAL = (TypicalPod(8000, 500, 1, frozenset({"T4"}), 1.0),)
TOLD = {"typicalPods": [TYPICAL[0].to_json()]}
DOCUMENTS = compile_documents(load_paths([Path(__file__).parents[3] / "policies" / "trace"]))


def told(profile):
    return trace_profile(profile, TYPICAL, [*PLUGINS, *DOCUMENTS])


def test_plugins_and_documents_that_ask_for_the_typical_pods_are_told_those_of_the_trace():
    assert told(ProfileSpec()).args == {"trace-gpu-worth": TOLD}
    enabled = ProfileSpec(enabled=(PluginChoice("FragmentationGradient"),))
    assert told(enabled).args == {"FragmentationGradient": TOLD, "trace-gpu-worth": TOLD}


def test_what_a_profile_says_about_typical_pods_stays():
    given = ProfileSpec(args={"trace-gpu-worth": {"typicalPods": []}, "GpuShare": {"select": "random"}})
    assert told(given).args == given.args
