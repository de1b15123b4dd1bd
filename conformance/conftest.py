"""Loads the suite's plugin, so that ``pytest conformance --impl=…`` works from a checkout."""

pytest_plugins = ["commhooks.conformance.plugin"]
