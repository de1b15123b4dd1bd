"""``.. code-of:: default_hooks.allreduce_hook``: the code of an object of the reference, without its docstring."""

from __future__ import annotations

import ast
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from commhooks.conformance.clauses import REFERENCE

Definition = ast.FunctionDef | ast.ClassDef


class CodeOf(SphinxDirective):
    """Shows the code of a function or class; its docstring stands beside it as the specification."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """One block of highlighted code."""
        module, _, name = self.arguments[0].partition(".")
        path = REFERENCE / f"{module}.py"
        self.env.note_dependency(str(path))
        try:
            code = code_of(path, name)
        except (OSError, KeyError) as error:
            raise self.error(f"there is no {name!r} in {path.name}: {error}") from None
        block = nodes.literal_block(code, code, language="python", classes=["code-of"])
        block["linenos"] = False
        self.set_source_info(block)
        return [block]


def code_of(path: Path, name: str) -> str:
    """The code of the object ``name``, such as "GradBucket.buffer", without docstrings.

    Raises:
        KeyError: The file has no such object.
    """
    text = path.read_text(encoding="utf-8")
    scope: list[ast.stmt] = ast.parse(text).body
    node: Definition | None = None
    for part in name.split("."):
        named = {each.name: each for each in scope if isinstance(each, Definition)}
        node = named[part]
        scope = node.body
    assert node is not None
    hidden = {line for each in ast.walk(node) if isinstance(each, Definition) for line in _docstring_lines(each)}
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    assert node.end_lineno is not None
    lines = text.splitlines()
    return "\n".join(lines[number - 1] for number in range(first, node.end_lineno + 1) if number not in hidden)


def _docstring_lines(node: Definition) -> range:
    if ast.get_docstring(node) is None:
        return range(0)
    statement = node.body[0]
    assert statement.end_lineno is not None
    return range(statement.lineno, statement.end_lineno + 1)


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_directive("code-of", CodeOf)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
