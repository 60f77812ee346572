"""Prose out of docstrings, and pieces of source code."""

from __future__ import annotations

from t5xpg.data.text.installed import SourceFile
from t5xpg.data.text.package_documents import code_documents, documentation_documents

MODULE = '''# Copyright 2020 Somebody
"""Tools for reading and writing the files of an experiment.

Licensed under the Apache License, Version 2.0. You may not use this file.

The files are read once, in the order in which they were written,
    with this line indented.
"""

def first():
    """Returns the number of the words in a file that somebody gave us.

    Example::

        first("a file")
            is_not_prose = 1

    The words are separated by spaces, and nothing else separates them.

    >>> first("another file of some length that is not prose at all")
    3

    ```
    first("fenced code is not prose either, however many words it has")
    ```

    ===========  ===========
    Column one   Column two
    ===========  ===========

    .. math:: e^{x} and other things that are no prose, even if they go on for long

        and on

    .. note:: This is dropped with its mark, and what stands below it is kept.

        Notes are prose like all the others that somebody wrote down here.

    Returns:
    """

class Second:
    """A second thing, described in a sentence that is long enough to be kept."""

    def method(self):
        """The words are separated by spaces, and nothing else separates them."""
        def inner():
            r"""An inner function with a \\d backslash and a sentence of its own."""

if True:
    def conditional():
        """Defined in a condition, but documented as well as all the others are."""
'''

# a paragraph is a line, whatever its lines and their indentation were
PROSE = """Tools for reading and writing the files of an experiment.
The files are read once, in the order in which they were written, with this line indented.
Returns the number of the words in a file that somebody gave us.
Example:
The words are separated by spaces, and nothing else separates them.
Column one Column two
Notes are prose like all the others that somebody wrote down here.
Defined in a condition, but documented as well as all the others are.
A second thing, described in a sentence that is long enough to be kept.
An inner function with a \\d backslash and a sentence of its own."""


def test_takes_the_prose_of_docstrings_once() -> None:
    file = SourceFile("module.py", MODULE)
    assert list(documentation_documents([file, file])) == [PROSE]


def test_joins_docstrings_to_documents() -> None:
    functions = [
        f'def f{i}():\n    """Function number {i} does the thing with the number {i}, as one would expect."""\n'
        for i in range(100)
    ]
    documents = list(documentation_documents([SourceFile("a.py", "\n".join(functions))]))
    assert [1500 <= len(document) < 1700 for document in documents] == [True] * (len(documents) - 1) + [False]
    assert "\n\n".join(documents).count("Function number") == 100


def test_leaves_out_what_does_not_parse_on_every_python() -> None:
    for source in ("def f(:", "type X = int\n", "def f[T](x: T): ..."):
        assert list(documentation_documents([SourceFile("a.py", f'"""{"word " * 30}"""\n{source}')])) == []


def test_cuts_code_before_statements() -> None:
    body = "".join(f"    number_{i} = compute(number_{i}, other)\n" for i in range(60))
    statements = [
        f"@decorator\ndef function_{i}(\n    number, other\n):\n{body}\n    return number\n" for i in range(5)
    ]
    source = "# Licensed under something\n#\n\n" + "\n\n".join(statements)
    pieces = list(code_documents([SourceFile("a.py", source)] * 2))
    assert "\n\n\n".join(pieces) == "\n\n".join(statements).strip("\n")
    assert len(pieces) == 5
    assert all(piece.startswith("@decorator\ndef function_") for piece in pieces)


def test_leaves_out_tables_of_data() -> None:
    table = "TABLE = [\n" + "    0x1234, 0x5678, 0x9abc,\n" * 20 + "]\n"
    assert list(code_documents([SourceFile("a.py", table), SourceFile("b.py", f"X = '{'long ' * 99}'\n")])) == []
