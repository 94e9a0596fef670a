"""Manage the QoS of a live cluster's nodes: the server that stands for koord-manager.

Of the ConfigMap slo-controller-config the manager makes a NodeSLO for each node, and a NodeMetric that says what the
node's agent reports. Of the reports it computes batch and mid resources, and publishes them in the status of nodes.
With `--webhook-bind` it serves webhooks that make colocation profiles effective and refuse what cannot be honoured.
Several may run: all serve webhooks, and the one that holds the Lease writes. SIGTERM ends it. See docs/manager.md.
"""

from __future__ import annotations

import argparse
import logging
import ssl
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from . import delegation
from .client_options import add_lease_arguments, add_limit_arguments, lease_of, namespace_name, object_name
from .cluster_loading import LIVE_CLUSTER
from .composition import need_file
from .durations import seconds
from .ending import end_at_signals, leave
from .exits import Exit, Stop, refuse_given
from .logs import add_format_argument, start_server_logs
from .policy_sources import need_cryptography
from .serving import address, fault_of_files, listen, start_listener, tls_of
from .terminal import write

if TYPE_CHECKING:
    from koordpolicy.engine.manager.certificate_rotation import CertificateSettings
    from koordpolicy.engine.manager.operations import ManagerOperations
    from koordpolicy.engine.manager.server import ManagerServer
    from koordpolicy.engine.serving.listeners import ListenerThread

    from . import Builtins

EXAMPLES: Final = """\
examples:
  koord-policy manager --cluster kube --leader-elect=false
  koord-policy manager --cluster kube:staging --namespace koordinator-system --health-bind 127.0.0.1:8000
  koord-policy manager --cluster kube --webhook-bind 0.0.0.0:9876 --tls-cert tls.crt --tls-key tls.key
  koord-policy manager --cluster kube --webhook-bind 0.0.0.0:9876 --webhook-certificates koord-policy-manager-tls

exit codes: 0 after SIGTERM, 1 the Lease was lost, 2 usage, 3 the kubeconfig is invalid
"""

_GRACE_S: Final = 10.0
_LEASE_NAME: Final = "koord-policy-manager"
_SERVICE: Final = "koord-policy-manager"
_NAMESPACE: Final = "koordinator-system"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--cluster", metavar="kube[:CONTEXT]", required=True,
                        help="the live cluster: the current context of the kubeconfig or another one, or in a pod the "
                             "service account")
    parser.add_argument("--namespace", metavar="NAMESPACE", type=namespace_name, default=_NAMESPACE,
                        help=f"the namespace of slo-controller-config (default: {_NAMESPACE})")
    parser.add_argument("--config-map", metavar="NAME", type=object_name, default="slo-controller-config",
                        help="the name of that ConfigMap (default: slo-controller-config)")
    parser.add_argument("--sync-period", metavar="TIME", type=seconds, default=60.0,
                        help="compare each node that often, also without news: measurements become stale without an "
                             "event (default: 60s)")
    parser.add_argument("--koordinator-parity", action="store_true",
                        help="as koord-manager, leave pods without a report out of `maxUsageRequest`, which promises "
                             "too much after the start of pods")
    group = parser.add_argument_group("API server")
    add_lease_arguments(group, verb="write", name=_LEASE_NAME, namespace="that of `--namespace`")
    add_limit_arguments(group, qps=30, burst=50)
    group = parser.add_argument_group("serving")
    group.add_argument("--webhook-bind", metavar="HOST:PORT", type=address,
                       help="serve webhooks there, with `--tls-cert` and `--tls-key`")
    group.add_argument("--bind", metavar="HOST:PORT", type=address,
                       help="serve /healthz, /livez, /readyz, /metrics and /configz there; with `--tls-cert` over "
                            "https, to whom the API server permits it")
    group.add_argument("--health-bind", metavar="HOST:PORT", type=address,
                       help="serve the same there without TLS, to everybody that --bind serves")
    group.add_argument("--tls-cert", metavar="FILE",
                       help="the certificate (PEM), which is read again when the file changes")
    group.add_argument("--tls-key", metavar="FILE", help="its private key")
    group.add_argument("--webhook-certificates", metavar="SECRET", type=object_name,
                       help="make certificates for the webhooks, instead of `--tls-cert`: they are stored in this "
                            "Secret of `--namespace`, and renewed, and their authority is written into the webhook "
                            "configurations")
    group.add_argument("--webhook-configuration", metavar="NAME", type=object_name,
                       help="the name of the mutating and of the validating webhook configuration (default: "
                            f"{_SERVICE})")
    group.add_argument("--webhook-name", metavar="NAME", type=object_name, action="append",
                       help="a DNS name or IP address by which the API server calls the webhooks, may be repeated "
                            f"(default: {_SERVICE}.NAMESPACE.svc)")
    group.add_argument("--client-ca", metavar="FILE", help="take client certificates of this authority, too")
    delegation.add_arguments(group)
    add_format_argument(group)


def run(options: argparse.Namespace, builtins: Builtins) -> int:  # noqa: ARG001 - as all commands
    """Manage the cluster until a signal ends it."""
    from koordpolicy.engine.client.kubeconfig import load_connection
    from koordpolicy.engine.client.leader_election import Ended
    from koordpolicy.engine.manager.operations import ManagerOperations
    from koordpolicy.engine.manager.server import ManagerServer, ManagerSettings

    kind, _, context = options.cluster.partition(":")
    if kind != LIVE_CLUSTER:
        raise Stop("`--cluster` of a manager is a live one: `kube` or `kube:CONTEXT`")
    tls = _context(options)
    delegation.refuse_without_effect(options)
    if options.webhook_bind is not None and tls is None:
        raise Stop("`--webhook-bind` needs `--tls-cert` and `--tls-key`, or `--webhook-certificates`: the API server "
                   "calls webhooks over https only")
    start_server_logs(options.log_format)
    connect = partial(load_connection, context or None)
    operations = ManagerOperations(
        access=delegation.access_of(options, connect) if delegation.protects(options) else None)
    settings = ManagerSettings(
        namespace=options.namespace, config_map=options.config_map,
        lease=lease_of(options, name=_LEASE_NAME, namespace=options.namespace),
        qps=30.0 if options.kube_api_qps is None else options.kube_api_qps, burst=options.kube_api_burst or 50,
        sync_s=options.sync_period, parity=options.koordinator_parity, certificates=_certificates(options))
    server = ManagerServer(connect, settings, requests=operations.requests, ready=lambda: _say_ready(server),
                           context=tls)
    operations.follow(server)
    listeners = _listen(options, operations, server, tls)
    end_at_signals(server.stop, _GRACE_S)
    try:
        ended = server.run()
    finally:
        for listener in listeners:
            listener.close()
        operations.endpoints.close()
    if ended is Ended.LOST_LEASE:
        logging.getLogger(__name__).error("the Lease was lost: another manager may lead now")
        leave(Exit.UNEXPECTED)
    return Exit.OK


def _context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS context; one without certificate if the manager makes it."""
    from koordpolicy.engine.serving.listeners import server_context

    if options.webhook_certificates is None:
        refuse_given(options, ("webhook_configuration", "webhook_name"), "goes with `--webhook-certificates`")
        return tls_of(options, certificates_optional=True)
    refuse_given(options, ("tls_cert", "tls_key"), "goes without `--webhook-certificates`")
    if options.webhook_bind is None:
        raise Stop("`--webhook-certificates` goes with `--webhook-bind`")
    need_cryptography("--webhook-certificates", "certificates")
    if options.client_ca is not None:
        need_file(Path(options.client_ca), "`--client-ca` takes certificates (PEM)")
    try:
        return server_context(options.client_ca, optional=True)
    except ssl.SSLError as error:
        raise Stop(fault_of_files(options, error)) from None


def _certificates(options: argparse.Namespace) -> CertificateSettings | None:
    if options.webhook_certificates is None:
        return None
    from koordpolicy.engine.manager.certificate_rotation import CertificateSettings  # of an extra

    return CertificateSettings(
        namespace=options.namespace, secret=options.webhook_certificates,
        configuration=options.webhook_configuration or _SERVICE,
        names=options.webhook_name or (f"{_SERVICE}.{options.namespace}.svc",))


def _listen(
    options: argparse.Namespace, operations: ManagerOperations, server: ManagerServer, tls: ssl.SSLContext | None,
) -> list[ListenerThread]:
    from koordpolicy.engine.manager.webhooks import Webhooks
    from koordpolicy.engine.serving.certificates import CertificateFiles
    from koordpolicy.engine.serving.listeners import ListenerThread

    listeners = []
    if options.webhook_bind is not None and tls is not None:
        app = Webhooks(server.objects, synced=lambda: server.synced, requests=operations.reviews).app()
        if options.tls_cert is not None:
            app.cleanup_ctx.append(CertificateFiles(tls, options.tls_cert, options.tls_key).follow)
        host, port = options.webhook_bind
        listeners.append(start_listener(ListenerThread(app, host, port, tls), "--webhook-bind", (host, port)))
    return listeners + listen(lambda app, _: operations.endpoints.add_to(app), (
        ("--bind", options.bind, tls), ("--health-bind", options.health_bind, None)))


def _say_ready(server: ManagerServer) -> None:
    lease = server.settings.lease
    waits = f"; waits for the Lease {lease.namespace}/{lease.name}" if lease is not None else ""
    write(f"ready: {len(server.objects.keys('Node'))} nodes{waits}")
    sys.stdout.flush()
