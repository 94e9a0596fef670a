"""Unit tests of policies: fixtures, cases, coverage of expressions, and mutants that the cases must kill."""
