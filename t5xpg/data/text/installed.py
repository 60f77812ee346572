"""The installed packages whose files the embedded datasets are read from: pure-Python wheels, the same on every
platform, that every lock in `requirements/` pins to one version. Files are read as bytes, by the package's record of
installation.
"""

import csv
import importlib.metadata
import re
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from t5xpg.base.errors import UserError

# Text of prose quality; the same versions as in requirements/*.txt (a test compares).
DOCUMENTATION_PACKAGES: Mapping[str, str] = {
    "absl-py": "2.5.1",
    "beartype": "0.22.9",
    "click": "8.5.1",
    "clu": "0.0.12",
    "datasets": "5.2.0",
    "etils": "1.15.0",
    "flax": "0.12.8",
    "fsspec": "2026.9.0",
    "gin-config": "0.5.0",
    "huggingface-hub": "2.4.0",
    "jax": "0.10.2",
    "joblib": "1.6.0",
    "keras": "3.15.1",
    "ml-collections": "1.1.0",
    "narwhals": "2.28.0",
    "nltk": "3.10.4",
    "optax": "0.2.8",
    "orbax-checkpoint": "0.12.8",
    "pydantic": "2.14.3",
    "pyglove": "0.4.5",
    "rich": "15.0.0",
    "seqio": "0.0.20",
    "t5": "0.9.4",
    "tensorflow-datasets": "4.9.10",
    "treescope": "0.1.10",
    "urllib3": "2.8.0",
}

# Source code in one house style or near it, about as much as the documentation.
CODE_PACKAGES: Mapping[str, str] = {
    name: DOCUMENTATION_PACKAGES[name]
    for name in (
        "absl-py", "click", "clu", "datasets", "etils", "flax", "fsspec", "gin-config", "huggingface-hub", "joblib",
        "ml-collections", "optax", "orbax-checkpoint", "pydantic", "pyglove", "rich", "seqio", "t5", "treescope",
        "urllib3",
    )
}  # fmt: skip

# tests, copies of other packages, generated code
_SKIPPED_PATHS = re.compile(
    r"(^|/)(tests?|testing|test_[^/]*|[^/]*_tests?|conftest|_?vendor|vendored|[^/]*_pb2|[^/]*_pb2_grpc|_?version)"
    r"(/|\.py$)"
)


@dataclass(frozen=True)
class SourceFile:
    """One Python file: the path inside site-packages, with slashes, and its text with `\\n` line ends."""

    path: str
    text: str


def site_packages() -> Path:
    """Where this interpreter's packages are installed."""
    return Path(sysconfig.get_path("purelib"))


def source_files(packages: Mapping[str, str], site: Path) -> Iterator[SourceFile]:
    """The Python files of the packages (name to version) under `site`, in the same order everywhere, without tests,
    vendored and generated code. UserError where a package is missing, has another version, or no record of its files.
    """
    for _, paths in sorted(_recorded_files(packages, site).items()):
        for path in paths:
            try:
                text = (site / path).read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                continue  # a file in another encoding: test data of encodings
            except FileNotFoundError:
                raise UserError(f"{site / path} was installed but is gone: install the packages again.") from None
            yield SourceFile(path, text.replace("\r\n", "\n").replace("\r", "\n"))


def _recorded_files(packages: Mapping[str, str], site: Path) -> dict[str, list[str]]:
    installed = {
        re.sub(r"[-_.]+", "-", distribution.metadata["Name"] or "").lower(): distribution
        for distribution in importlib.metadata.distributions(path=[str(site)])
    }
    wrong: list[str] = []
    files: dict[str, list[str]] = {}
    for name, version in packages.items():
        distribution = installed.get(name)
        if distribution is None:
            wrong.append(f"{name} {version} is not installed")
        elif distribution.version != version:
            wrong.append(f"{name} is {distribution.version} instead of {version}")
        elif (record := distribution.read_text("RECORD")) is None:
            wrong.append(f"{name} has no record of its files")
        else:
            # not `distribution.files`: newer Pythons leave out of it what is gone
            paths = {row[0] for row in csv.reader(record.splitlines()) if row and row[0].endswith(".py")}
            files[name] = sorted(one for one in paths if not one.startswith("..") and not _SKIPPED_PATHS.search(one))
    if wrong:
        raise UserError(
            f"The embedded text is read from installed packages at the versions of requirements/: {'; '.join(wrong)} "
            f"(in {site}). Install the lock again (`make install`), or give the text yourself with FILES=…"
        )
    return files
