"""Puts a figure that the project's own code draws into a page.

``.. drawing:: NAME`` computes the figure ``docs/figures/NAME.py`` when the page is read. Its content is the caption,
and ``:alt:`` says what there is to see. The SVG is part of the page, so it follows the reader's choice of light or
dark.
"""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import OptionSpec

DOCS = Path(__file__).resolve().parents[1]


class Drawing(SphinxDirective):
    """The directive ``drawing``."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[OptionSpec] = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """A figure with the SVG and the caption.

        Raises:
            DirectiveError: There is no such figure, or no text for those who cannot see it.
        """
        if not self.options.get("alt"):
            raise self.error(f"the figure {self.arguments[0]} needs :alt:, which says in words what there is to see")
        if str(DOCS) not in sys.path:
            sys.path.insert(0, str(DOCS))
        import figures

        try:
            svg = figures.svg(self.arguments[0])
        except ValueError as error:
            raise self.error(str(error)) from None
        for path in sorted((DOCS / "figures").glob("*.py")):
            self.env.note_dependency(str(path))
        label = html.escape(self.options["alt"], quote=True)
        svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        drawing = nodes.raw("", f'<div class="drawing">{svg}</div>', format="html")
        figure = nodes.figure("", drawing)
        parsed = self.parse_content_to_nodes()
        if len(parsed) != 1 or not isinstance(parsed[0], nodes.paragraph):
            raise self.error("a figure's caption is one paragraph")
        figure += nodes.caption("", "", *parsed[0].children)
        self.set_source_info(figure)
        return [figure]


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.add_directive("drawing", Drawing)
    app.add_css_file("drawings.css")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
