"""How Sphinx builds the documentation. ``make docs`` runs it with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
BUILD = DOCS / "_build"
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent / "tests")]

from inventories import write_inventory  # noqa: E402  the path to it is set above

project = "commhooks"
author = "the commhooks authors"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_needs",
    # The following are in _ext; each says at its top what it does.
    "clauses",
    "code_of",
    "evidence",
    "clause_table",
    "implementations",
    "overview",
    "drawings",
    "mathml",
]

exclude_patterns = ["_build", "_ext", "figures", "guides/examples", "**/README*"]
nitpicky = True
default_role = "literal"
add_module_names = False
toc_object_entries = False
python_use_unqualified_type_names = True
autodoc_typehints = "description"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Type variables, which have no page.
nitpick_ignore_regex = [("py:.*", r"(.*\.)?(State|Hook)")]

intersphinx_mapping = {}
for _name, _address in (("torch", "https://docs.pytorch.org/docs/2.13/"), ("python", "https://docs.python.org/3/")):
    write_inventory(DOCS / "inventories" / f"{_name}.txt", BUILD / "inventories" / f"{_name}.inv")
    intersphinx_mapping[_name] = (_address, str(BUILD / "inventories" / f"{_name}.inv"))

needs_types = [
    {"directive": "clause", "title": "Clause", "prefix": "", "color": "", "style": ""},
    {"directive": "check", "title": "Check", "prefix": "", "color": "", "style": ""},
    {"directive": "mutant", "title": "Mutant", "prefix": "", "color": "", "style": ""},
]
needs_id_regex = r"^[A-Za-z][A-Za-z0-9_.-]+$"
_text = {"schema": {"type": "string"}, "default": ""}
needs_fields = {
    "level": {"description": "MUST, SHOULD or MAY", **_text},
    "since": {"description": "The documented version that brought it", **_text},
    "source": {"description": "The object whose docstring it stands in", **_text},
}
needs_links = {
    "verifies": {"incoming": "Checked by", "outgoing": "Verifies"},
    "breaks": {"incoming": "Mutants", "outgoing": "Breaks"},
}
needs_title_optional = True
needs_show_link_id = False
needs_show_link_title = True
needs_role_need_template = "{{ title }}"
needs_role_need_max_title_length = -1
needs_css = "blank.css"
needs_default_layout = "clause"
_clause_head = '<<meta_id()>> <<meta("level")>> <<meta("since", prefix="since ")>>'
needs_layouts = {
    name: {"grid": "simple_footer", "layout": {"head": [head], "meta": [], "footer": ["<<meta_links_all()>>"]}}
    for name, head in (("clause", _clause_head), ("check", '<<meta("title")>>'), ("mutant", '<<meta("title")>>'))
}

html_theme = "furo"
html_title = "commhooks"
html_static_path = ["_static"]
html_css_files = [("commhooks.css", {"priority": 900})]
html_show_copyright = False
html_show_sourcelink = False
# Summaries are fetched, which a page opened from a file may not do.
html_show_search_summary = False
html_copy_source = False
