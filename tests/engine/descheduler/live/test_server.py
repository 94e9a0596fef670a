"""A live descheduler follows what its policies and its configuration read."""

from __future__ import annotations

from dataclasses import replace

from koordpolicy.__main__ import builtins
from koordpolicy.engine.cli.proving import scheduler_of_pods
from koordpolicy.engine.client.resources import BY_KIND
from koordpolicy.engine.cluster.kinds import WORKLOAD_READS
from koordpolicy.engine.compile import compile_documents
from koordpolicy.engine.descheduler import config
from koordpolicy.engine.descheduler.limits import CycleLimits
from koordpolicy.engine.descheduler.live.permissions import DESCHEDULER, OF_PROOFS
from koordpolicy.engine.descheduler.live.server import DeschedulerServer, DeschedulerSettings
from koordpolicy.engine.descheduler.workload_limits import WorkloadLimits
from koordpolicy.engine.documents import load
from koordpolicy.engine.framework.registry import Live, Registry
from koordpolicy.engine.source import Source

from ...client.lease_server import LEASE, assert_the_lease_gets_events
from ...client.object_server import ObjectServer

WORKLOADS = {read.kind for read in WORKLOAD_READS}
PLAIN = config.read_plain({"dryRun": True, "profiles": [{
    "name": "p", "plugins": {point: {"disabled": [{"name": "*"}]} for point in ("evict", "filter")}}]})
LIMITED = replace(PLAIN, limits=CycleLimits(workloads=WorkloadLimits(per_workload=2)))
OLD_PODS = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: old-pods}
spec:
  type: Deschedule
  criteria: [{name: old, expression: "true"}]
  %s
"""


def followed(configuration: config.DeschedulerConfiguration, text: str = OLD_PODS % "") -> set[str]:
    async def nothing() -> None:
        pass

    plugins = compile_documents(load([Source("p.yaml", text)]))
    with ObjectServer() as api:
        server = DeschedulerServer(
            lambda: api.connection, Live(Registry.of(plugins, generation=1)), lambda: configuration)
        try:
            server.io.submit(nothing()).result(60)  # all calls before are made
            needed = {each.resource for each in server.permissions()}
            kinds = set(server.feed.views)
        finally:
            server.io.close()
    assert {f"{kind.lower()}s" for kind in kinds & WORKLOADS} == {f"{kind.lower()}s" for kind in WORKLOADS} & needed
    return kinds & WORKLOADS


BALANCE = """\
apiVersion: policy.koordinator.sh/v1alpha2
kind: DeschedulerPlugin
metadata: {name: leave}
spec:
  type: Balance
  %s
  nodes: {source: nodeInfo.name == 'one'}
"""


def proving(text: str, *, given: bool) -> bool:
    """Return whether the kinds are followed, and needed, by which a scheduler decides."""
    async def nothing() -> None:
        pass

    plugins = [*builtins(), *compile_documents(load([Source("p.yaml", text)]))]
    live = Live(Registry.of(plugins, generation=1))
    scheduler = scheduler_of_pods(None, live)
    with ObjectServer() as api:
        server = DeschedulerServer(
            lambda: api.connection, live, lambda: PLAIN, scheduler=replace(scheduler, assumed=not given))
        try:
            server.io.submit(nothing()).result(60)  # all calls before are made
            kinds, needed = set(server.feed.views), {each.resource for each in server.permissions()}
        finally:
            server.io.close()
    assert (set(OF_PROOFS) <= kinds) == ({BY_KIND[kind].plural for kind in OF_PROOFS} <= needed)
    return set(OF_PROOFS) <= kinds


def test_what_a_scheduler_reads_is_followed_where_a_proof_has_an_effect_or_its_configuration_is_given():
    assert proving(BALANCE % "proof: Enforce", given=False)
    assert proving(BALANCE % "proof: Warn", given=False)
    assert not proving(BALANCE % 'proof: "Off"', given=False)
    assert not proving(OLD_PODS % "", given=False)
    assert proving(OLD_PODS % "", given=True)


def test_the_shipped_role_has_what_kube_schedulers_default_plugins_read():
    registry = Registry.of(builtins(), generation=1)
    kinds = {read.kind for read in scheduler_of_pods(None, Live(registry)).reads(registry)}
    listed = {each.resource for each in DESCHEDULER if "list" in each.verbs}
    assert {BY_KIND[kind].plural for kind in kinds} <= listed


def test_workloads_are_followed_where_a_limit_counts_by_them():
    assert followed(PLAIN) == set()
    assert followed(LIMITED) == WORKLOADS
    assert followed(PLAIN, OLD_PODS % "limits: {perWorkload: 2}") == WORKLOADS
    assert followed(PLAIN, OLD_PODS % "limits: {perOwner: 50%}") == WORKLOADS


def test_the_lease_gets_an_event_when_this_process_becomes_the_leader_and_when_it_stops():
    assert_the_lease_gets_events(lambda api: DeschedulerServer(
        lambda: api.connection, Live(Registry.of((), generation=1)), lambda: PLAIN,
        settings=DeschedulerSettings(lease=LEASE)), "koord-descheduler")
