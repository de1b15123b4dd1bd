"""The part of a reproduction script that drives the implementation.

For one with torch's tensors it is made of those methods of ``TorchAdapter`` that the script needs, so that the script
works without the suite; one that has an adapter of its own needs commhooks.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence

from commhooks.adapters import Adapter, Place, TensorFacts, TorchAdapter
from commhooks.conformance.world import Implementation

# Called by the script itself, so needed in any case.
ALWAYS = ("__init__", "join")


def driver(implementation: Implementation, programs: Sequence[str]) -> Iterator[str]:
    """The parts, for programs with these sources."""
    description = implementation.description
    if not description.places:
        yield FOREIGN.replace("TEXT", repr(implementation.text))
        return
    own = [f"PLACES = {description.places!r}", NAMED]
    if description.own_bucket:
        own.append(OWN_BUCKET)
    if description.hook is not None:
        own.append(OWN_STATE)
    methods = _used_methods("\n".join([*programs, *own]))
    yield _source(Place)
    if any("TensorFacts" in method for method in methods):
        yield _source(TensorFacts)
    # Each method is a part of its own, which scripts share.
    yield "\n\n\n".join(["class Driver:", *methods])
    if description.file is not None:
        module = next(iter(description.places.values()))
        yield LOAD_FILE.replace("PATH", repr(description.file)).replace("NAME", repr(module))
    body = "\n".join(textwrap.indent(part.strip("\n") + "\n", "    ") for part in own)
    yield f"class Implementation(Driver):\n{body}"


_source = functools.cache(inspect.getsource)


@functools.cache
def _methods() -> dict[str, str]:
    """The sources of all that ``TorchAdapter`` can do."""
    found = {
        **vars(TorchAdapter),
        **{name: value for name, value in vars(Adapter).items() if name not in vars(TorchAdapter)},
    }
    sources = {
        name: inspect.getsource(value)
        for name, value in found.items()
        if inspect.isfunction(value) and not getattr(value, "__isabstractmethod__", False)
    }
    return {name: source.replace("super().__init__()\n", "").rstrip() for name, source in sources.items()}


@functools.cache
def _used_methods(text: str) -> tuple[str, ...]:
    """The sources of the methods that a text names, of those that these name, and so on; in the order of the class."""
    methods = _methods()
    used: set[str] = set()
    names = {*ALWAYS, *re.findall(r"\.(\w+)", text)}
    while fresh := (names & set(methods)) - used:
        used |= fresh
        names = {name for method in fresh for name in re.findall(r"\.(\w+)", methods[method])}
    return tuple(source for name, source in methods.items() if name in used)


FOREIGN = """
from commhooks.adapters import Place
from commhooks.adapters.loading import load


def Implementation():
    return load(TEXT)
"""

LOAD_FILE = """
def load_file(path: str, name: str) -> None:
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


load_file(PATH, NAME)
"""

NAMED = """
def named(self, name: str) -> object:
    return getattr(importlib.import_module(self.PLACES[name]), name)
"""

OWN_BUCKET = '''
def bucket(self, index, values, parameters, is_last):
    """A bucket of the implementation's own class."""
    buffer = self.tensor(values, self.facts(parameters[0]).dtype)
    return self.named("GradBucket")(index=index, buffer=buffer, parameters=list(parameters), is_last=is_last)
'''

OWN_STATE = '''
def state(self, hook: str, group: object) -> object:
    """What the function or its module makes with commhooks_state, or the process group."""
    module = importlib.import_module(self.PLACES[hook])
    make = getattr(self.named(hook), "commhooks_state", getattr(module, "commhooks_state", None))
    return group if make is None else make(group)
'''
