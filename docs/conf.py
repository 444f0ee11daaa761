"""Sphinx's settings for `make site`: furo, MyST, and docs/_site/perkey_site.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import perkey

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_site"))

project = "Perkey"
html_title = "Perkey"
version = release = perkey.__version__
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "perkey_site"]
suppress_warnings = ["toc.empty_glob"]
exclude_patterns = ["_site", "diagrams", "images"]
nitpicky = True  # a name that leads nowhere is an error, as a link is
default_role = "code"  # docstrings write `name`, as Markdown does
# Types in signatures: they are shown, and not linked where the type is not Perkey's.
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72
add_module_names = False
toc_object_entries_show_parents = "hide"

# The 404 page is served at any path, so its links start here: "/0.2/" where that is the root.
html_context = {"site_root": os.environ.get("PERKEY_SITE_ROOT", "/")}
html_theme = "furo"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "_site/static/logo.svg"
templates_path = ["_site/templates"]
html_copy_source = False  # perkey_site writes each page's Markdown beside its HTML
html_show_sourcelink = False
html_domain_indices = False
html_use_index = False
html_permalinks_icon = "#"
html_additional_pages = {"404": "404.html"}
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {
    "top_of_page_buttons": [],
    "light_css_variables": {
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Roboto, Cantarell, sans-serif",
        "font-stack--monospace": "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace",  # noqa: E501  # one value
        "color-brand-primary": "#0f766e",
        "color-brand-content": "#0f766e",
        "color-brand-visited": "#0f766e",
    },
    "dark_css_variables": {
        "color-brand-primary": "#2dd4bf",
        "color-brand-content": "#5eead4",
        "color-brand-visited": "#5eead4",
        "color-background-primary": "#0d1117",
        "color-background-secondary": "#11161d",
    },
}
