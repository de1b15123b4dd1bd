"""Benchmarks of implementations against each other, through the adapters of the conformance suite."""
