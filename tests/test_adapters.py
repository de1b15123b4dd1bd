"""From the text of --impl to an adapter, and what an adapter says about its implementation."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commhooks.adapters import CAPABILITIES, HOOKS, WRAPPERS, Adapter, UnusableImplementation
from commhooks.adapters.loading import load

FILES = {
    "raises.py": "raise LookupError('this module is not for you')\n",
    "leaves.py": "import sys\nsys.exit('bye')\n",
    "syntax.py": "def hook(state bucket): ...\n",
    "empty.py": "x = 1\n",
    "needs.py": "import a_module_that_is_nowhere\n",
    "declares.py": "commhooks_capabilities = ['allreduce_hooks']\ndef allreduce_hook(state, bucket): ...\n",
    "text.py": "commhooks_capabilities = 'allreduce_hook'\ndef allreduce_hook(state, bucket): ...\n",
    "one.py": "def hook(state): ...\nnumber = 7\nclass Something: ...\ndef right(state, bucket): ...\n",
    "claims.py": "def hook(state, bucket): ...\nhook.commhooks_claims = {'perfect'}\n",
    "error.py": "def hook(state, bucket): ...\nhook.commhooks_error = -0.5\n",
    "dtypes.py": "def hook(state, bucket): ...\nhook.commhooks_dtypes = 'float32'\n",
    "types.py": "def hook(state, bucket): ...\nhook.commhooks_dtypes = {'float'}\n",
    "random.py": "def noop_hook(state, bucket): ...\n",
    "few.py": "from torch.distributed import GradBucket\ndef noop_hook(state, bucket): ...\n",
    "neighbour.py": "from few import noop_hook\n",
    "promises.py": "commhooks_capabilities = ['fp16_compress_hook', 'float32']\ndef noop_hook(state, bucket): ...\n",
    "stateful.py": "def commhooks_state(group): return ['state', group]\ndef hook(state, bucket): ...\n",
    "own.py": (
        "from commhooks.adapters import Description, TorchAdapter\n"
        "class Mine(TorchAdapter):\n"
        "    def describe(self): return Description('mine', 'own', '1', 'torch', frozenset())\n"
        "    def named(self, name): raise AttributeError(name)\n"
        "class Broken(Mine):\n"
        "    def __init__(self): raise ValueError('no device')\n"
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with implementations of many kinds, which is the working directory; they are forgotten afterwards."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no_such_module", ["no module named 'no_such_module'", "path/to/file.py"]),
        ("json.nothing", ["no module named 'json.nothing'"]),
        ("json", ["none of the standard names", "allreduce_hook"]),
        ("empty.py", ["none of the standard names"]),
        ("nowhere.py", ["no file nowhere.py"]),
        ("raises.py", ["LookupError: this module is not for you", "line 1"]),
        ("leaves.py", ["SystemExit: bye"]),
        ("syntax.py", ["SyntaxError"]),
        ("needs.py", ["a_module_that_is_nowhere"]),
        ("declares.py", ["allreduce_hooks", "known are"]),
        ("one.py:missing", ["has no 'missing'", "hook"]),
        ("one.py:hook", ["hook(state)", "hook(state, bucket)"]),
        ("one.py:number", ["is a int"]),
        ("one.py:Something", ["Something is a class", "commhooks.adapters.Adapter"]),
        ("claims.py:hook", ["commhooks_claims", "'perfect'"]),
        ("error.py:hook", ["commhooks_error of ", "must be a finite number above 0, got -0.5"]),
        ("dtypes.py:hook", ["commhooks_dtypes of ", "a set of float16, bfloat16", "got 'float32'"]),
        ("types.py:hook", ["commhooks_dtypes of ", "got {'float'}"]),
        ("text.py", ["commhooks_capabilities", "a list of names"]),
        ("own.py:Broken", ["Broken() raised ValueError: no device"]),
    ],
)
def test_unusable_implementation(text: str, words: list[str], folder: Path) -> None:
    """What cannot be checked is refused with a message that names it, what was found and what was expected."""
    with pytest.raises(UnusableImplementation) as caught:
        load(text).describe()
    for word in words:
        assert word in str(caught.value)


def test_torch_offers_everything() -> None:
    """torch's package, in its submodule layout, offers every hook and wrapper, and its bucket without constructor."""
    description = load("torch").describe()
    assert {*HOOKS, *WRAPPERS, "GradBucket"} <= description.capabilities
    assert "GradBucket.constructor" not in description.capabilities


def test_reference_offers_every_documented_capability() -> None:
    """Nothing that the suite can check is missing in the reference, but for two options of torch's wrapper alone."""
    lacking = {"DistributedDataParallel.built_in", "DistributedDataParallel.mixed_precision"}
    assert set(CAPABILITIES) - lacking == load("reference").describe().capabilities
    assert lacking <= load("torch").describe().capabilities


def test_what_a_module_lacks_is_not_offered(folder: Path) -> None:
    """A module with one name offers that one; torch's bucket, imported for an annotation, is not its own."""
    offered = load("few.py").describe().capabilities
    assert {"noop_hook", "float32"} <= offered
    assert not offered & {"allreduce_hook", "fp16_compress_wrapper", "GradBucket", "GradBucket.constructor"}


def test_what_a_module_declares_counts(folder: Path) -> None:
    """A declared capability is offered although it is missing, so that its checks fail; nothing else is."""
    assert load("promises.py").describe().capabilities == {"fp16_compress_hook", "float32"}


def test_a_file_does_not_hide_a_module(folder: Path) -> None:
    """A file that is called like a module of the standard library leaves that one in its place."""
    import random

    load("random.py")
    assert sys.modules["random"] is random


def test_neighbours_of_a_file_can_be_imported(folder: Path) -> None:
    """A file finds the modules beside it, as when it is run."""
    assert "noop_hook" in load("neighbour.py").describe().capabilities


def test_one_hook_has_its_own_state(folder: Path) -> None:
    """The state of a user-written hook is what its module makes of the process group, or the group itself."""
    assert load("stateful.py:hook").state("hook", "the group") == ["state", "the group"]
    assert load("one.py:right").state("right", "the group") == "the group"


def test_adapter_class(folder: Path) -> None:
    """An adapter class is instantiated."""
    adapter = load("own.py:Mine")
    assert isinstance(adapter, Adapter)
    assert adapter.describe().name == "mine"


def test_expressions_name_wrapped_hooks() -> None:
    """An expression with wrappers gives a hook, and may name hooks of the caller's."""
    adapter = load("torch")
    inner = object()
    assert adapter.hook("probe", probe=inner) is inner
    assert callable(adapter.hook("fp16_compress_wrapper(bf16_compress_wrapper(noop_hook))"))
    with pytest.raises(AttributeError, match="no_hook"):
        adapter.hook("fp16_compress_wrapper(no_hook)")


def test_adapters_import_without_torch() -> None:
    """Every module of the package imports where torch is not installed."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import importlib, pkgutil, commhooks.adapters as package\n"
        "for module in pkgutil.walk_packages(package.__path__, 'commhooks.adapters.'):\n"
        "    importlib.import_module(module.name)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
