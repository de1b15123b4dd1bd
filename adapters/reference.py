"""The project's own reference."""

from __future__ import annotations

from .standard_module import StandardModule


class Reference(StandardModule):
    """Checks commhooks.reference with its own bucket."""

    def __init__(self) -> None:
        from importlib.metadata import PackageNotFoundError, version

        import commhooks.reference

        try:
            installed = version("commhooks")
        except PackageNotFoundError:  # run from a checkout, in an interpreter of its own
            installed = ""
        super().__init__(commhooks.reference, "reference", installed)
