"""The sessions of the pages in docs/ print what the pages say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.workplace import REPOSITORY

SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [page for page in sorted((REPOSITORY / "docs").glob("*.md")) if SESSION.search(page.read_text("utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sessions_print_what_the_page_says(page: Path) -> None:
    """All of a page one after another, as one who reads it would type them."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for number, session in enumerate(SESSION.finditer(text), start=1):
        line = text[: session.start(1)].count("\n")
        parsed = doctest.DocTestParser().get_doctest(session[1], names, f"session {number}", str(page), line)
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
        runner.run(parsed, out=said.append, clear_globs=False)
        assert runner.failures == 0, "".join(said)
        names = parsed.globs


def test_there_are_sessions() -> None:
    assert "objectives" in {page.stem for page in PAGES}
