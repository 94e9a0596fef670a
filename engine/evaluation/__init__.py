"""Evaluation that documents of all kinds share: match, aggregates, sort keys, and distances for explanations."""
