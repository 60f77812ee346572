"""Which files the embedded text is read from."""

import re
from pathlib import Path

import pytest

from t5xpg.base.errors import UserError
from t5xpg.data.text.installed import CODE_PACKAGES, DOCUMENTATION_PACKAGES, SourceFile, site_packages, source_files
from t5xpg.data.text.package_documents import documentation_documents
from tests.workplace import REPOSITORY

REQUIREMENTS = REPOSITORY / "requirements"
PACKAGES = {**DOCUMENTATION_PACKAGES, **CODE_PACKAGES}


def install(site: Path, name: str, version: str, files: dict[str, bytes]) -> None:
    record = site / f"{name.replace('-', '_')}-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (record / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    for path, data in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(data)


@pytest.mark.parametrize("lock", ["cpu", "cuda", "tpu", "apple"])
def test_every_lock_pins_the_packages_to_the_same_versions(lock: str) -> None:
    pinned: dict[str, set[str]] = {}
    for line in (REQUIREMENTS / f"{lock}.txt").read_text().splitlines():
        if match := re.match(r"([a-z0-9-]+)==(\S+)(.*)", line):
            assert match.group(1) not in PACKAGES or ";" not in match.group(3), f"{line}: not on every machine"
            pinned.setdefault(match.group(1), set()).add(match.group(2))
    assert {name: pinned.get(name) for name in PACKAGES} == {name: {version} for name, version in PACKAGES.items()}


def test_the_packages_are_pure_python() -> None:
    """Their files are the same on every platform: a wheel for any Python 3 and any machine."""
    for name, version in PACKAGES.items():
        (wheel,) = site_packages().glob(f"{name.replace('-', '[-_]')}-{version}.dist-info/WHEEL")
        tags = re.findall(r"^Tag: (.*)$", wheel.read_text(), re.MULTILINE)
        assert "py3-none-any" in tags, f"{name}: {tags}"


def test_reads_the_recorded_python_files_in_one_order(tmp_path: Path) -> None:
    others = ("data.txt", "tests/x.py", "x_test.py", "_vendor/x.py", "x_pb2.py")
    contents = {"b.py": b"b\r\n", "a.py": "ä\n".encode(), "latin.py": b"\xe4\n", **dict.fromkeys(others, b"no")}
    install(tmp_path, "Some_Package", "1.0", {f"some_package/{name}": data for name, data in contents.items()})
    (tmp_path / "some_package" / "not_recorded.py").write_bytes(b"no")
    install(tmp_path, "another", "2.0", {"another.py": b"c\n"})
    files = list(source_files({"some-package": "1.0", "another": "2.0"}, tmp_path))
    assert [(file.path, file.text) for file in files] == [
        ("another.py", "c\n"),
        ("some_package/a.py", "ä\n"),
        ("some_package/b.py", "b\n"),
    ]


def test_says_which_packages_are_wrong(tmp_path: Path) -> None:
    install(tmp_path, "old", "1.0", {"old.py": b""})
    install(tmp_path, "gone", "1.0", {"gone.py": b""})
    (tmp_path / "gone.py").unlink()
    with pytest.raises(UserError, match=r"old is 1\.0 instead of 1\.1; missing 3\.0 is not installed .*make install"):
        list(source_files({"old": "1.1", "missing": "3.0"}, tmp_path))
    with pytest.raises(UserError, match=r"gone\.py was installed but is gone"):
        list(source_files({"gone": "1.0"}, tmp_path))


def test_leaves_out_what_does_not_parse_on_every_python() -> None:
    """All else that is left out, joined and cut is in the digests of the embedded datasets."""
    for source in ("def f(:", "type X = int\n", "def f[T](x: T): ..."):
        assert list(documentation_documents([SourceFile("a.py", f'"""{"word " * 30}"""\n{source}')])) == []
