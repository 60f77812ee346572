"""How a refusal is tested: that it comes, names the setting or the file, and says what to do. Its sentence is free."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from t5xpg import cli
from t5xpg.base.errors import UserError


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """The block ends with a UserError whose message has each of the words."""
    try:
        yield
    except UserError as error:
        said = str(error)
    else:
        pytest.fail(f"nothing is refused with {words}")
    assert_named(said, words)


def program_refused(capsys: pytest.CaptureFixture[str], arguments: Sequence[str], *words: str, code: int = 1) -> str:
    """The program ends with `code` and without a traceback, and names each of the words on the standard error, which
    is returned."""
    capsys.readouterr()
    try:
        found = cli.main(arguments)
    except SystemExit as end:  # argparse
        found = int(end.code or 0)
    said = capsys.readouterr().err
    assert found == code, said
    assert_named(said, words)
    return said


def assert_named(said: str, words: Sequence[str]) -> None:
    """A message has each of the words, and is no traceback."""
    assert "Traceback" not in said
    assert [word for word in words if word not in said] == [], said
