"""Hooks of mkdocs (mkdocs.yml): files of the repository that pages link to are part of the site, under repository/."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
"""A link to a file: its path, and the anchor in it. Addresses have a colon."""
SITE = "repository"


def linked(page: str, text: str) -> dict[str, str]:
    """The links of a page (its path in the repository) as they are written, with the path in the repository each leads to."""
    folder = posixpath.dirname(page)
    return {found[1]: posixpath.normpath(posixpath.join(folder, found[1])) for found in LINK.finditer(text)}


def outside() -> set[str]:
    """The files outside of docs/ that pages lead to, and those that these lead to."""
    pages = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    result: set[str] = set()
    while pages:
        page = pages.pop()
        for path in linked(page, (ROOT / page).read_text()).values():
            if not path.startswith("docs/") and path not in result and (ROOT / path).is_file():
                result.add(path)
                pages += [path] if path.endswith(".md") else []
    return result


def on_files(files: Any, config: Any) -> Any:
    """Adds them to the site."""
    from mkdocs.structure.files import File

    for path in sorted(outside()):
        files.append(File.generated(config, f"{SITE}/{path}", abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """The page with its links out of docs/ led to where these files lie in the site."""
    place = page.file.src_uri
    source = place.removeprefix(f"{SITE}/") if place.startswith(f"{SITE}/") else f"docs/{place}"
    paths = linked(source, markdown)

    def mended(found: re.Match[str]) -> str:
        path = paths[found[1]]
        goal = path.removeprefix("docs/") if path.startswith("docs/") else f"{SITE}/{path}"
        return f"]({posixpath.relpath(goal, posixpath.dirname(place) or '.')}{found[2] or ''})"

    return LINK.sub(mended, markdown)
