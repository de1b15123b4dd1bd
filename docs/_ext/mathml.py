"""Shows formulas as MathML, which browsers draw themselves: no script, no font, no network.

The translation is that of docutils. Select it with ``html_math_renderer = "mathml"``.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

logger = logging.getLogger(__name__)


def to_mathml(latex: str, *, block: bool) -> str:
    r"""Translates a formula.

    Raises:
        ValueError: It has something that cannot be translated; the message names the formula.

    Example:
        >>> to_mathml(r"u^2", block=False).replace("\n", "").replace("  ", "")
        '<math xmlns="http://www.w3.org/1998/Math/MathML"><msup><mi>u</mi><mn>2</mn></msup></math>'
    """
    try:
        return _with_fences(str(latex2mathml.tex2mathml(latex, as_block=block)))
    except MathError as error:
        raise ValueError(f"the formula {latex!r} cannot be shown as MathML: {error}") from None


def _with_fences(mathml: str) -> str:
    """Says which bars open and which close: browsers stretch those that they take for operators, and set them apart."""
    for bar in "|‖":
        mathml = mathml.replace(f'<mo class="mathopen">{bar}</mo>', f'<mo form="prefix" stretchy="false">{bar}</mo>')
        mathml = mathml.replace(f"<mo>{bar}</mo>", f'<mo form="postfix" stretchy="false">{bar}</mo>')
    return mathml


def _visit_inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(f'<span class="math">{_shown(node, block=False)}</span>')
    raise nodes.SkipNode


def _visit_block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node["number"]:
        translator.body.append(f'<span class="eqno">({node["number"]})')
        translator.add_permalink_ref(node, "Link to this formula")
        translator.body.append("</span>")
    translator.body.append(f"{_shown(node, block=True)}</div>\n")
    raise nodes.SkipNode


def _shown(node: nodes.Element, *, block: bool) -> str:
    try:
        return to_mathml(node.astext(), block=block)
    except ValueError as error:
        logger.warning(str(error), location=node, type="mathml")
        return f"<code>{_escaped(node.astext())}</code>"


def _escaped(text: str) -> str:
    """The text with what HTML reads as markup made harmless."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def setup(app: Sphinx) -> dict[str, Any]:
    """Offers the renderer to Sphinx."""
    app.add_css_file("mathml.css")
    app.add_html_math_renderer("mathml", inline_renderers=(_visit_inline, None), block_renderers=(_visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
