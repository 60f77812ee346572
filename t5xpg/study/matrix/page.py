"""The page of a matrix: the tables of its README, made from matrix.json and from nothing else."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from t5xpg.base.markdown import UNKNOWN, decimals, escape, table
from t5xpg.base.progress import duration
from t5xpg.run.report import Board, Page
from t5xpg.study.board import batch_shape, facts, progress
from t5xpg.study.matrix.plan import AXES

_NOTHING = "\N{EN DASH}"  # a pair that is not trained
# The objective whose targets are the whole text, whatever the vocabulary: its cells can be compared.
_COMPARABLE = "lm"
_PACKED = "one example each, or where it says packed as many as fit; held-out text is never packed"

Cell = Mapping[str, Any]


def sections(board: Board) -> Iterator[str]:
    """The paragraphs of the block of the experiment's README."""
    yield progress(board, "cells", f"the others are shown as {UNKNOWN}")
    yield _how_to_read(board)
    yield _matrix(board, "text")
    numbered = enumerate(_reasons(board), start=1)
    yield "\n".join(f"- {_superscript(number)} {escape(why)}" for number, why in numbered)
    yield "The same of all targets, sentinels and ends included, in nats per target token:"
    yield _matrix(board, "targets")
    yield _bits(board)
    yield _matrix(board, "bits")
    yield "Every cell:"
    yield _cells(board)
    yield facts(_facts(board), board["sources"])


PAGE = Page("matrix.json", "matrix", sections)


def line(cell: Cell) -> str:
    """A cell for a terminal."""
    name = ",".join(cell[axis] for axis in AXES)
    if cell["loss"] is None:
        return f"{name}: {_values(cell, 'text')}"
    loss, unigram = map(decimals, _losses(cell, "text"))
    verdict = "learned" if cell["learned"] else "has not learned"
    return f"{name}: {loss} nats a token of text, unigram {unigram}: {verdict}"


def _how_to_read(board: Board) -> str:
    updates = " or ".join(f"{count:,}" for count in sorted({cell["steps"] for cell in board["cells"]}))
    learned, done = board["learned"], board["runs_done"]
    every = "all" if learned == done else f"{learned:,} of {done:,}"
    return (
        f"Loss on held-out text after {updates} updates, in nats per token of text that is predicted, beside that of a "
        "unigram model, which gives each token the probability that it has in the training targets of the same run. "
        "Sentinels and ends are left out here: they follow from how targets are made, and a model that knows no more "
        "has learned nothing of the text. **Bold**: lower than the unigram's, here and over all targets, as in "
        f"{every} of the cells."
    )


def _bits(board: Board) -> str:
    cells = [cell for cell in board["cells"] if cell["objective"] == _COMPARABLE and cell["done"]]
    if not cells:
        return ""
    measured = ", ".join(
        f"{_title(board, 'vocabulary', cell)} {cell['held_out_target_bytes']:,}"
        for cell in cells
        if cell["held_out_target_bytes"] is not None
    )
    return (
        "And all targets in bits per byte that they stand for. Those of a language model are the text itself, so that "
        f"bits per byte compare {_title(board, 'objective', cells[0])} runs whatever their vocabularies. The text that "
        f"was measured is the same ({measured} bytes; a vocabulary of pieces counts a space in front of each "
        "document). They were trained for as many updates, not on as much text: a piece is some bytes long. Of all "
        "other objectives the number is the negative log-likelihood of the targets, sentinels and ends included, over "
        "the bytes that the targets stand for. It compares with the number beside it, and not across vocabularies or "
        "objectives."
    )


def _losses(cell: Cell, measure: str) -> tuple[float | None, float | None]:
    """(model, unigrams). measure: "text" and "targets": nats per token of these; "bits": bits per byte of targets."""
    part, name = cell["of_text"] if measure == "text" else cell, "bits_per_byte" if measure == "bits" else "loss"
    return part[name], part["unigram"][name]


def _matrix(board: Board, measure: str) -> str:
    values_by_cell = {tuple(cell[axis] for axis in AXES): _values(cell, measure) for cell in board["cells"]}
    reasons = _reasons(board)
    notes = {
        (one["architecture"], one["objective"]): f"{_NOTHING}{_superscript(reasons.index(one['reason']) + 1)}"
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


def _superscript(number: int) -> str:
    """The number in superscript characters, as the mark of a note: the site shows no HTML of a page."""
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


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


def _cells(board: Board) -> str:
    rows = [
        [*(_title(board, axis, cell) for axis in AXES), *_numbers(cell)]
        for cell in board["cells"]
        if cell["done"] and cell["diverged_at"] is None
    ]
    header = ["architecture", "objective", "vocabulary", "parameters", "rows x lengths", "steps", "target tokens"]
    header += ["held-out target tokens", "of text", "loss", "unigram", "loss of text", "unigram", "bits a byte"]
    header += ["unigram", "token accuracy", "most frequent token", "learned"]
    return table(header, rows, numbers_from=3) if rows else ""


def _numbers(cell: Cell) -> list[str]:
    counts = [cell["steps"], cell["target_tokens"], cell["held_out_target_tokens"], cell["of_text"]["tokens"]]
    measured = [value for measure in ("targets", "text", "bits") for value in _losses(cell, measure)]
    return [
        f"{cell['num_params']:,}",
        batch_shape(cell, " packed"),
        *(f"{count:,}" for count in counts),
        *map(decimals, [*measured, cell["accuracy"], cell["unigram"]["accuracy"]]),
        "yes" if cell["learned"] else "no",
    ]


def _facts(board: Board) -> Iterator[list[str]]:
    done = [cell for cell in board["cells"] if cell["done"]]
    method = "counts of the training targets of the run itself, each id once more (Laplace)"
    yield ["unigram", f"{method}; of text alone it is told where text stands, and the model is not"]
    yield ["rows", _PACKED if any(cell["packed"] for cell in done) else "one example each"]
    digests = board["dataset"]["sha256"] or {}
    parts = "; ".join(f"{split} {digest[:12]}…" for split, digest in digests.items())
    yield ["data", escape(f"{board['dataset']['name']}: {parts}" if parts else board["dataset"]["name"])]
    for vocabulary in board["vocabularies"]:
        ids = " or ".join(f"{count:,}" for count in vocabulary["ids"])
        command = f", `{vocabulary['command']}`" if vocabulary["command"] else ""
        yield [f"vocabulary {escape(vocabulary['title'])}", f"{ids or UNKNOWN} ids{command}"]
    yield ["seed", ", ".join(sorted({str(cell["seed"]) for cell in board["cells"]}))]
    seconds = [cell["training_seconds"] for cell in done if cell["training_seconds"] is not None]
    if seconds:
        middle, spread = duration(statistics.median(seconds)), f"{duration(min(seconds))} to {duration(max(seconds))}"
        yield ["time", f"{middle} of training a cell in the median ({spread}); starts and measuring not counted"]


def _title(board: Board, axis: str, cell: Cell) -> str:
    """The title of a cell's entry of an axis, as Markdown."""
    return escape(next(one["title"] for one in board[AXES[axis]] if one["name"] == cell[axis]))
