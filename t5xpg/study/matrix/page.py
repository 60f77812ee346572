"""The page of a matrix: the tables of its README, made from matrix.json and from nothing else."""

from collections.abc import Mapping
from typing import Any

from t5xpg.base.markdown import UNKNOWN, decimals, escape, table
from t5xpg.run.report import Board, Page
from t5xpg.study.board import render, superscript
from t5xpg.study.matrix.plan import AXES

_NOTHING = "\N{EN DASH}"  # a pair that is not trained
# The objective whose targets are the whole text, whatever the vocabulary: its cells can be compared.
_COMPARABLE = "lm"

Cell = Mapping[str, Any]


def sections(board: Board) -> list[str]:
    """The paragraphs of the block of the experiment's README."""
    return render(
        "matrix.md.j2",
        board,
        comparable=[cell for cell in board["cells"] if cell["objective"] == _COMPARABLE and cell["done"]],
        matrix=lambda measure: _matrix(board, measure),
        reasons=_reasons(board),
        title=lambda axis, cell: _title(board, axis, cell),
    )


PAGE = Page("matrix.json", "matrix", sections)


def line(cell: Cell) -> str:
    """A cell for a terminal."""
    name = ",".join(cell[axis] for axis in AXES)
    if cell["loss"] is None:
        return f"{name}: {_values(cell, 'text')}"
    loss, unigram = map(decimals, _losses(cell, "text"))
    verdict = "learned" if cell["learned"] else "has not learned"
    return f"{name}: {loss} nats a token of text, unigram {unigram}: {verdict}"


def _losses(cell: Cell, measure: str) -> tuple[float | None, float | None]:
    """(model, unigrams). measure: "text" and "targets": nats per token of these; "bits": bits per byte of targets."""
    part, name = cell["of_text"] if measure == "text" else cell, "bits_per_byte" if measure == "bits" else "loss"
    return part[name], part["unigram"][name]


def _matrix(board: Board, measure: str) -> str:
    values_by_cell = {tuple(cell[axis] for axis in AXES): _values(cell, measure) for cell in board["cells"]}
    reasons = _reasons(board)
    notes = {
        (one["architecture"], one["objective"]): f"{_NOTHING}{superscript(reasons.index(one['reason']) + 1)}"
        for one in board["left_out"]
    }
    rows = []
    for architecture in board["architectures"]:
        for vocabulary in board["vocabularies"]:
            pairs = [(architecture["name"], objective["name"]) for objective in board["objectives"]]
            values = [values_by_cell.get((*pair, vocabulary["name"])) or notes[pair] for pair in pairs]
            rows.append([escape(architecture["title"]), escape(vocabulary["title"]), *values])
    header = ["architecture", "vocabulary", *(escape(one["title"]) for one in board["objectives"])]
    return table(header, rows, numbers_from=2)


def _values(cell: Cell, measure: str) -> str:
    if cell["diverged_at"] is not None:
        return f"not finite after step {cell['diverged_at']:,}"
    if not cell["done"]:
        return UNKNOWN
    loss, unigram = map(decimals, _losses(cell, measure))
    return f"{f'**{loss}**' if cell['learned'] else loss} / {unigram}"


def _reasons(board: Board) -> list[str]:
    """The reasons for pairs that are left out, in the order of their footnotes."""
    return list(dict.fromkeys(one["reason"] for one in board["left_out"]))


def _title(board: Board, axis: str, cell: Cell) -> str:
    """The title of a cell's entry of an axis, as Markdown."""
    return escape(next(one["title"] for one in board[AXES[axis]] if one["name"] == cell[axis]))
