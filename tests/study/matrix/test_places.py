"""Lines of a TOML text."""

from __future__ import annotations

import tomllib

from t5xpg.study.matrix.places import Places

TEXT = """# a comment with [brackets]
name = "top"

[axis.one]
title = "One"   # [not.a.table]
list = [
    "first",
    'second',
]

[axis . two] # here
"quoted" = 1

[[many]]
names = ["a"]

[[many]]
names = ["b", "c"]
"""


def test_lines_are_found() -> None:
    tomllib.loads(TEXT)
    places = Places(TEXT)
    assert places.line("", "name") == 2
    assert places.line("axis.one") == 4
    assert places.line("axis.one", "title") == 5
    assert places.line("axis.one", "list") == 6
    assert places.line("axis.one", "list", "first") == 7
    assert places.line("axis.one", "list", "second") == 8
    assert places.line("axis.two", "quoted") == 12
    assert places.line("many", "names", "a", index=0) == 15
    assert places.line("many", "names", "c", index=1) == 18


def test_the_nearest_place_stands_for_what_is_not_found() -> None:
    places = Places(TEXT)
    assert places.line("axis.one", "list", "third") == 6
    assert places.line("axis.one", "absent") == 4
    assert places.line("absent", "absent") == 1
    assert places.line("many", "names", index=7) == 1
