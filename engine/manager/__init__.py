"""The manager of a cluster's QoS: NodeSLOs, NodeMetrics, batch and mid resources of nodes, and admission webhooks."""
