"""How an implementation plugs into the conformance suite. Imports without torch."""

from .adapter import (
    CAPABILITIES,
    DTYPES,
    HOOKS,
    WRAPPERS,
    Adapter,
    Bucket,
    Description,
    Place,
    TensorFacts,
    UnusableImplementation,
)
from .torch_adapter import TorchAdapter

__all__ = [
    "CAPABILITIES",
    "DTYPES",
    "HOOKS",
    "WRAPPERS",
    "Adapter",
    "Bucket",
    "Description",
    "Place",
    "TensorFacts",
    "TorchAdapter",
    "UnusableImplementation",
]
