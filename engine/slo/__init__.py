"""Settings of the QoS manager: their defaults, the overlay rule, and the NodeSLOs that a ConfigMap asks for."""
