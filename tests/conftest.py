"""Fixtures that several files of tests share."""

pytest_plugins = ["browser"]
