"""The wheels from whose files the embedded datasets are read: pure-Python packages of prose quality, the same bytes on
every machine. They are downloaded as data and read; installed packages may have other versions.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import sha256_of_file

_LIST = Path(__file__).with_suffix(".txt")
_ENTRY = re.compile(r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})$", re.MULTILINE)

# tests, copies of other packages, generated code
_SKIPPED_PATHS = re.compile(
    r"(^|/)(tests?|testing|test_[^/]*|[^/]*_tests?|conftest|_?vendor|vendored|[^/]*_pb2|[^/]*_pb2_grpc|_?version)"
    r"(/|\.py$)"
)


@dataclass(frozen=True)
class Wheel:
    """A version of a package, as one file."""

    name: str
    version: str
    sha256: str

    def file(self, folder: Path) -> Path:
        """The path of the wheel in a folder of wheels."""
        return folder / f"{self.name}-{self.version}.whl"


@dataclass(frozen=True)
class SourceFile:
    """One Python file: the path inside site-packages, with slashes, and its text with `\\n` line ends."""

    path: str
    text: str


DOCUMENTATION_WHEELS: Mapping[str, Wheel] = {
    match["name"]: Wheel(**match.groupdict()) for match in _ENTRY.finditer(_LIST.read_text(encoding="ascii"))
}

# Source code in one house style or near it, about as much as the documentation.
CODE_WHEELS: Mapping[str, Wheel] = {
    name: DOCUMENTATION_WHEELS[name]
    for name in (
        "absl-py", "click", "clu", "datasets", "etils", "flax", "fsspec", "gin-config", "huggingface-hub", "joblib",
        "ml-collections", "optax", "orbax-checkpoint", "pydantic", "pyglove", "rich", "seqio", "t5", "treescope",
        "urllib3",
    )
}  # fmt: skip


def wheels_directory() -> Path:
    """The folder of downloaded wheels: in the user's cache, for all checkouts."""
    return paths.user_cache() / "t5xpg" / "wheels"


def source_files(wheels: Mapping[str, Wheel], folder: Path) -> Iterator[SourceFile]:
    """The Python files of the wheels (by name) in a folder, in the same order everywhere, without tests, vendored and
    generated code. Raises UserError as `download` does.
    """
    download(wheels.values(), folder)
    for _, wheel in sorted(wheels.items()):
        with zipfile.ZipFile(wheel.file(folder)) as archive:
            names = (name for name in archive.namelist() if name.endswith(".py"))
            for name in sorted(name for name in names if not _SKIPPED_PATHS.search(name)):
                try:
                    text = archive.read(name).decode("utf-8")
                except UnicodeDecodeError:
                    continue  # a file in another encoding: test data of encodings
                yield SourceFile(name, text.replace("\r\n", "\n").replace("\r", "\n"))


def download(wheels: Iterable[Wheel], folder: Path) -> None:
    """Let pip fetch each wheel that is missing or damaged in the folder, from the registry that pip is set up for; pip
    checks its digest. Raises UserError if a wheel is not available.
    """
    files = {wheel: wheel.file(folder) for wheel in wheels}
    missing = [wheel for wheel, file in files.items() if not (file.is_file() and sha256_of_file(file) == wheel.sha256)]
    if not missing:
        return
    print(f"text: downloading {len(missing)} packages to read, about 20 MB, into {folder}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        new = Path(temporary)
        requirements = new / _LIST.name
        requirements.write_text(
            "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in missing)
        )
        options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--require-hashes", "--quiet"]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *options]
        process = subprocess.run([*command, "-r", requirements, "-d", new], capture_output=True, text=True)
        if process.returncode:
            errors = [line for line in process.stderr.splitlines() if "ERROR" in line or "No module" in line]
            reason = errors[-1] if errors else f"pip ended with {process.returncode}"
            raise UserError(
                f"The packages whose text is read could not be downloaded: {reason} (`python -m pip config list` says "
                "where pip looks). Without a network, give a text of your own: make data DATASET=… FILES=…"
            )
        for wheel in missing:
            (file,) = new.glob(f"{wheel.name.replace('-', '_')}-{wheel.version}-*.whl")
            file.replace(wheel.file(folder))
