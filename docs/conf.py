# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for the documentation site. `make docs` builds it from build/docs/source."""

project = "Berth"
author = "The Berth authors"
copyright = "2026 The Berth authors"  # noqa: A001 - the name that Sphinx reads
html_title = "Berth"
html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["man"]
# Anchors as GitHub makes them, so that links hold in both.
myst_heading_anchors = 6
nitpicky = True
# Pages show JSON with comments, slurm.conf and shell in one block.
highlight_language = "text"
html_theme_options = {"source_edit_link": ""}
