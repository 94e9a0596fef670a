"""Comparison of policies over a cluster: the outcome of a set, the difference of two, and rules without effect."""
