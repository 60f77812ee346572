"""The pages that users read, and the commands and files in them."""

import re
from pathlib import Path

from t5xpg.base import paths
from tests.workplace import REPOSITORY

README, INDEX = REPOSITORY / "README.md", REPOSITORY / "docs" / "README.md"
_LISTED = re.findall(r"^\| \[[^]]*\]\((\w+\.md)\)", INDEX.read_text(encoding="utf-8"), re.MULTILINE)
DOCS = [INDEX.with_name(name) for name in _LISTED]  # in the order of the index
EXPERIMENTS = sorted(paths.EXPERIMENTS.glob("*/README.md"))
_FILE = re.compile(r"^```\w*\n# ([\w/]+\.(?:py|gin|toml))\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands_of(text: str) -> list[str]:
    """The lines of code blocks that call make, continued lines joined, and what is `make … NAME=value` in the text."""
    found = []
    text = re.sub(r"<!-- (\w+):begin.*?<!-- \1:end -->", "", text, flags=re.DOTALL)  # generated blocks
    for number, part in enumerate(re.split(r"^```", text, flags=re.MULTILINE)):
        if number % 2:
            lines = part.replace("\\\n", " ").splitlines()
            found += [line.partition(" #")[0] for line in lines if re.match(r"(\w+=\S+ )*make\b", line)]
        else:
            found += re.findall(r"`((?:\w+=\S+ )*make\s[^`]*=[^`]*)`", part)
    return [" ".join(command.split()) for command in found]


def files_of(page: Path) -> dict[str, str]:
    """The modules, gin files and plans of a page: code blocks that begin with `# name.py`, say, or a path."""
    return dict(_FILE.findall(page.read_text(encoding="utf-8")))
