"""From the text of ``--impl`` to an adapter."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from .adapter import Adapter, UnusableImplementation
from .standard_module import LOADED_FROM_PATH, StandardModule
from .torch_adapter import TorchAdapter

TORCH_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
FORMS = "reference, torch, tensorplay, package.module, package.module:name, path/to/file.py or path/to/file.py:name"


def load(text: str) -> Adapter:  # type: ignore[type-arg]
    """Imports what ``text`` names and gives its adapter.

    Args:
        text: ``reference``, ``torch``, ``tensorplay``, ``package.module``, ``path/to/file.py``, or one of the last two
            with ``:name``, where name is a hook or an adapter class.

    Raises:
        UnusableImplementation: It cannot be imported or is nothing that can be checked. The message is meant for the
            user and says what was looked for and what was found.
    """
    place, name = _split(text)
    missing = _prepare_torch()
    if missing and (text in ("reference", "torch") or not (name or text == "tensorplay")):
        raise _needs_torch(text, missing)
    if text == "reference":
        from .reference import Reference

        return Reference()
    if text == "torch":
        import torch

        return StandardModule(_import(TORCH_HOOKS, text), "torch", str(torch.__version__))

    if text == "tensorplay":
        _import(text, text)
        from .tensorplay import TensorPlay

        return TensorPlay()

    module = _import(place, text)
    if not name:
        return StandardModule(module, text)
    adapter = _from_name(module, name, text)
    if missing and isinstance(adapter, TorchAdapter):
        raise _needs_torch(text, missing)
    return adapter


def _from_name(module: ModuleType, name: str, text: str) -> Adapter:  # type: ignore[type-arg]
    from .one_hook import OneHook

    found: object = module
    for part in name.split("."):
        if not hasattr(found, part):
            near = [other for other in vars(module) if not other.startswith("_")]
            raise UnusableImplementation(
                f"--impl={text}: {module.__name__} has no {name!r}; it has {', '.join(near[:12]) or 'nothing public'}"
            )
        found = getattr(found, part)
    if isinstance(found, ModuleType):
        return StandardModule(found, text)
    if isinstance(found, Adapter):
        return found
    if isinstance(found, type) and issubclass(found, Adapter):
        try:
            return found()
        except Exception as error:
            raise UnusableImplementation(f"--impl={text}: {name}() raised {_last_line(error)}") from error
    if isinstance(found, type):
        raise UnusableImplementation(
            f"--impl={text}: {name} is a class, but not derived from commhooks.adapters.Adapter; "
            "expected an adapter class or a function hook(state, bucket)"
        )
    return OneHook(found, module, text)


def _split(text: str) -> tuple[str, str]:
    """Splits ``place:name``; a drive letter's colon does not count."""
    head, colon, tail = text.rpartition(":")
    if colon and head and not ("/" in tail or "\\" in tail):
        return head, tail
    return text, ""


def _prepare_torch() -> ImportError | None:
    """Makes torch's collectives visible. Without torch only an adapter of another framework can be used."""
    try:
        from . import torch_collectives

        torch_collectives.install()
    except ImportError as error:
        return error
    return None


def _needs_torch(text: str, error: ImportError) -> UnusableImplementation:
    return UnusableImplementation(f"--impl={text} needs torch, which {sys.executable} cannot import: {error}")


def _import(place: str, text: str) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _import_file(Path(place), text)
        return importlib.import_module(place)
    except UnusableImplementation:
        raise
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if place == missing or place.startswith(missing + "."):
            raise UnusableImplementation(
                f"--impl={text}: no module named {missing!r} in {sys.executable}; --impl takes {FORMS}"
            ) from error
        raise UnusableImplementation(f"--impl={text}: importing it raised {_last_line(error)}") from error
    except BaseException as error:
        # SystemExit and the like too: a module that ends the interpreter on import is as unusable as any other.
        raise UnusableImplementation(f"--impl={text}: importing it raised {_last_line(error)}") from error


def _import_file(path: Path, text: str) -> ModuleType:
    if not path.is_file():
        raise UnusableImplementation(f"--impl={text}: no file {path} in {Path.cwd()}")
    # A file called random.py must not take the place of the standard library's module.
    name = path.stem if path.stem not in sys.modules else f"implementation_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    # Its neighbours can be imported, as when the file is run.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[name] = module
    setattr(module, LOADED_FROM_PATH, True)
    spec.loader.exec_module(module)
    return module


def _last_line(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)
    place = f" ({where[-1].filename}, line {where[-1].lineno})" if where else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}, line {error.lineno})"
    text = traceback.format_exception_only(type(error), error)[-1].strip()
    return f"{text}{place}"
