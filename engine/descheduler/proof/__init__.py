"""Proofs that evictions help: where the pod's scheduler would place its successor, before the pod is evicted.

`prove` places the successors of a cycle's candidates on an overlay, `memory` remembers useless evictions of workloads,
and `cover` finds the fewest pods that relieve a node. Nothing here evicts, reads a clock or knows the scheduler, which
is called through `SuccessorPlacements`.
"""
