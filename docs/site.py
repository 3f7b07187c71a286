"""Hooks of mkdocs, which builds the site from these pages (make site)."""

import posixpath
import re

REPOSITORY = "https://github.com/graylink/graylink/blob/main/"
LINK = re.compile(r"\]\((?P<to>[^)\s:]+)\)")


def on_files(files, config):
    """Adds the README of the repository as the first page, and leaves out what is no page."""
    for f in list(files):
        if f.src_uri == "site.py":
            files.remove(f)
    return files


def on_page_markdown(markdown, page, config, files):
    """Has links to files outside of docs lead to the repository."""

    def rewrite(match):
        to = match.group("to")
        path, _, fragment = to.partition("#")
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), path))
        if not path or target.startswith("docs/"):
            return match.group(0)
        return "](" + REPOSITORY + target + ("#" + fragment if fragment else "") + ")"

    return LINK.sub(rewrite, markdown)
