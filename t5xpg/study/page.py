"""Writing the page of a study: the README's block and the pictures, made from its board and from nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from t5xpg.base.files import read_json, replaced_together, write_text
from t5xpg.base.page import escape, table, with_block
from t5xpg.base.paths import shown
from t5xpg.run.report import README_FILE
from t5xpg.run.results import write_results

FORMAT = 1
Board: TypeAlias = Mapping[str, Any]  # one JSON value, made from the records of runs and nothing else


def rounded(value: float | None, digits: int = 6) -> float | None:
    """A measure as a board has it."""
    return None if value is None else round(value, digits)


def mean(values: Sequence[float | None]) -> float | None:
    """None where one of the values is missing, or there is none."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known and len(known) == len(values) else None


@dataclass(frozen=True)
class Page:
    """How a kind of board is shown.

    board_file: its JSON in the experiment's folder. marker: the block stands between comments with this name. sections:
    the paragraphs of the block; empty ones are left out. pictures: {file name: SVG}.
    """

    board_file: str
    marker: str
    sections: Callable[[Board], Iterable[str]]
    pictures: Callable[[Board], Mapping[str, str]] = lambda board: {}

    def block(self, board: Board) -> str:
        """The block between its markers, markers included, without a line end after the last."""
        begin, end = self._markers
        written_by = f"<!-- Written by `make report` from {self.board_file}. Do not edit. -->"
        return "\n\n".join(part for part in (begin, written_by, *self.sections(board), end) if part)

    @property
    def _markers(self) -> tuple[str, str]:
        return f"<!-- {self.marker}:begin -->", f"<!-- {self.marker}:end -->"

    def texts(self, home: Path, board: Board) -> dict[Path, str]:
        """What the files of a page hold; `home` is the experiment's folder."""
        readme = home / README_FILE
        text = readme.read_text(encoding="utf-8") if readme.exists() else f"# {board['experiment']}\n"
        pictures = {home / name: svg for name, svg in self.pictures(board).items()}
        return {readme: with_block(text, self.block(board), *self._markers, readme), **pictures}

    def write(self, home: Path, board: Board) -> Path:
        """Write the board and the page into the experiment's folder, all or nothing; the path of its README."""
        kept, texts = home / self.board_file, self.texts(home, board)
        with replaced_together(kept, *texts):
            write_results(kept, board)
            for path, text in texts.items():
                write_text(path, text)
        for path in (*texts, kept):
            print(f"report: {shown(path)}", flush=True)
        return home / README_FILE

    def differences(self, home: Path) -> list[str]:
        """What differs between an experiment's board and the page made from it; empty where all is in order."""
        texts = self.texts(home, read_json(home / self.board_file))
        return [
            f"{path} is not as it is made from {home / self.board_file}"
            for path, text in texts.items()
            if not path.exists() or path.read_text(encoding="utf-8") != text
        ]


def progress(board: Board, runs: str, missing: str) -> str:
    """How many runs are done, unless all are. runs: what they are called. missing: what is shown of the others."""
    if board["runs_done"] == board["runs"]:
        return ""
    return f"{board['runs_done']} of {board['runs']} {runs} are done; {missing}."


def batch_shape(trained: Mapping[str, Any], packed: str) -> str:
    """The rows and lengths of training batches. packed: what is added where rows hold several examples."""
    lengths = "/".join(str(length) for length in trained["lengths"].values())
    return f"{trained['rows']} x {lengths}{packed if trained['packed'] else ''}"


def facts(rows: Iterable[Sequence[str]], sources: Mapping[str, list[Any]]) -> str:
    """The table at the end of a block: rows of its own, and where the runs come from, as `board.sources` has it."""
    cores = " or ".join(map(str, sources["cores"])) + (" core" if sources["cores"] == [1] else " cores")
    versions = [", ".join(f"{name} {found}" for name, found in one.items() if found) for one in sources["versions"]]
    last = [
        ["source", escape(", ".join(f"commit {commit}" for commit in sources["commit"])) or "no git checkout"],
        ["hardware", escape(f"{', '.join(sources['cpu'])}; {cores} each")],
        *(["versions", escape(one)] for one in versions),
    ]
    return table(["", ""], [*rows, *last])
