"""How Sphinx makes the site: `make docs`. Nothing is fetched, at build or when it is read."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from calibrant import __version__

project = "Calibrant"
author = "The Calibrant authors"
copyright = "the Calibrant authors"
version = release = __version__
language = "en"

extensions = ["myst_parser", "scripts.documentation.extension"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["made", "results", "_build"]
# Outputs of commands are no shell.
suppress_warnings = ["misc.highlighting_failure"]
nitpicky = True
# Options and code in a sentence are pasted: -- stays as it is, and quotes stay straight.
smartquotes = False

html_theme = "furo"
html_title = "Calibrant"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_theme_options = {"sidebar_hide_name": False, "navigation_with_keys": True}
pygments_style = "a11y-light"
pygments_dark_style = "a11y-dark"
