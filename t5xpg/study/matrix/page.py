"""The page of a matrix: the tables of its README, and the short one of the repository's, made from matrix.json."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from t5xpg.base.page import UNKNOWN, decimals, escape, table
from t5xpg.base.progress import duration
from t5xpg.study.judged_sources import commits, hardware, libraries

BEGIN, END = "<!-- matrix:begin -->", "<!-- matrix:end -->"
_NOTHING = "\N{EN DASH}"  # a pair that is not trained
# Of whose cells the targets are all of the text, whatever the vocabulary.
_COMPARABLE = "lm"

Board = Mapping[str, Any]
Cell = Mapping[str, Any]
Measure: TypeAlias = Callable[[Cell], tuple[float | None, float | None]]


def block(board: Board) -> str:
    """The block of the experiment's README, markers included, without a line end after the last."""
    sections = [
        BEGIN,
        "<!-- Written by `make report` from matrix.json. Do not edit. -->",
        _progress(board),
        _how_to_read(board),
        _matrix(board, _of_text),
        _footnotes(board),
        "The same of all targets, sentinels and ends included, in nats per target token:",
        _matrix(board, _of_targets),
        _bits(board),
        _matrix(board, _in_bits),
        "Every cell:",
        _cells(board),
        _facts(board),
        END,
    ]
    return "\n\n".join(section for section in sections if section)


def short_block(board: Board, place: str) -> str:
    """The block of the repository's README. place: the folder of the experiment, as a link from there."""
    begin, end = short_markers(board["experiment"])
    comparable = [f"{escape(_title(board, 'vocabularies', cell['vocabulary']))} {cell['bits_per_byte']:.2f}"
                  for cell in _of(board, _COMPARABLE) if cell["bits_per_byte"] is not None]  # fmt: skip
    sentence = f" Bits per byte, in which language models compare whatever their vocabularies: {', '.join(comparable)}."
    sections = [
        begin,
        f"<!-- Written by `make report EXP={board['experiment']}`. Do not edit. -->",
        _progress(board),
        _how_to_read(board) + (sentence if comparable else ""),
        _matrix(board, _of_text),
        f"{_footnotes(board)}\n\nSteps, tokens and all the rest: [{escape(place)}]({place}/README.md).",
        end,
    ]
    return "\n\n".join(section for section in sections if section)


def short_markers(experiment: str) -> tuple[str, str]:
    """What the short block stands between."""
    return f"<!-- {experiment}:begin -->", f"<!-- {experiment}:end -->"


def line(cell: Cell) -> str:
    """A cell for a terminal."""
    name = f"{cell['architecture']},{cell['objective']},{cell['vocabulary']}"
    if cell["loss"] is None:
        return f"{name}: {_values(cell, _of_text)}"
    reached, unigram = map(decimals, _of_text(cell))
    verdict = "learned" if cell["learned"] else "has not learned"
    return f"{name}: {reached} nats a token of text, unigram {unigram}: {verdict}"


def _progress(board: Board) -> str:
    if board["runs_done"] == board["runs"]:
        return ""
    return f"{board['runs_done']} of {board['runs']} cells are done; the others are shown as {UNKNOWN}."


def _how_to_read(board: Board) -> str:
    steps = sorted({cell["steps"] for cell in board["cells"]})
    updates = " or ".join(f"{count:,}" for count in steps)
    beaten = board["learned"]
    every = "all" if beaten == board["runs_done"] else f"{beaten:,} of {board['runs_done']:,}"
    return (
        f"Loss on held-out text after {updates} updates, in nats per token of text that is predicted, beside that of a "
        "unigram model, which gives each token the probability that it has in the training targets of the same run. "
        "Sentinels and ends are left out here: they follow from how targets are made, and a model that knows no more "
        "has learned nothing of the text. **Bold**: lower than the unigram's, here and over all targets, as in "
        f"{every} of the cells."
    )


def _bits(board: Board) -> str:
    cells = _of(board, _COMPARABLE)
    if not cells:
        return ""
    measured = [
        f"{_title(board, 'vocabularies', cell['vocabulary'])} {cell['held_out_target_bytes']:,}"
        for cell in cells
        if cell["held_out_target_bytes"] is not None
    ]
    return (
        "And all targets in bits per byte that they stand for. Those of a language model are the text itself, so that "
        f"bits per byte compare {escape(_title(board, 'objectives', _COMPARABLE))} runs whatever their vocabularies. "
        f"The text that was measured is the same ({escape(', '.join(measured))} bytes; a vocabulary of pieces counts a "
        "space in front of each document). They were trained for as many updates, not on as much text: a piece is some "
        "bytes long. Of all other objectives the number is the negative log-likelihood of the targets, sentinels and "
        "ends included, over the bytes that the targets stand for. It compares with the number beside it, and not "
        "across vocabularies or objectives."
    )


def _of_text(cell: Cell) -> tuple[float | None, float | None]:
    """Of a model and of the unigrams: nats per token of text."""
    return cell["of_text"]["loss"], cell["of_text"]["unigram"]["loss"]


def _of_targets(cell: Cell) -> tuple[float | None, float | None]:
    """Nats per target token."""
    return cell["loss"], cell["unigram"]["loss"]


def _in_bits(cell: Cell) -> tuple[float | None, float | None]:
    """Bits per byte of the targets."""
    return cell["bits_per_byte"], cell["unigram"]["bits_per_byte"]


def _matrix(board: Board, measure: Measure) -> str:
    notes = _notes(board)
    rows = []
    for architecture in board["architectures"]:
        for vocabulary in board["vocabularies"]:
            cells = []
            for objective in board["objectives"]:
                pair = (architecture["name"], objective["name"])
                cell = _find(board, *pair, vocabulary["name"])
                cells.append(f"{_NOTHING}<sup>{notes[pair]}</sup>" if cell is None else _values(cell, measure))
            rows.append([escape(architecture["title"]), escape(vocabulary["title"]), *cells])
    header = ["architecture", "vocabulary", *(escape(one["title"]) for one in board["objectives"])]
    return table(header, rows, numbers_from=2)


def _values(cell: Cell, measure: Measure) -> str:
    if cell["diverged_at"] is not None:
        return f"not finite after step {cell['diverged_at']:,}"
    if not cell["done"]:
        return UNKNOWN
    reached, unigram = map(decimals, measure(cell))
    return f"{f'**{reached}**' if cell['learned'] else reached} / {unigram}"


def _notes(board: Board) -> dict[tuple[str, str], int]:
    """The number of the footnote of each pair that is left out."""
    reasons = list(dict.fromkeys(one["reason"] for one in board["left_out"]))
    return {(one["architecture"], one["objective"]): reasons.index(one["reason"]) + 1 for one in board["left_out"]}


def _footnotes(board: Board) -> str:
    reasons = dict.fromkeys(one["reason"] for one in board["left_out"])
    return "<br>\n".join(f"<sup>{number}</sup> {escape(reason)}" for number, reason in enumerate(reasons, start=1))


def _cells(board: Board) -> str:
    rows = []
    for cell in board["cells"]:
        if cell["done"] and cell["diverged_at"] is None:
            rows.append(
                [
                    escape(_title(board, "architectures", cell["architecture"])),
                    escape(_title(board, "objectives", cell["objective"])),
                    escape(_title(board, "vocabularies", cell["vocabulary"])),
                    *_row(cell),
                ]
            )
    header = ["architecture", "objective", "vocabulary", "parameters", "rows x lengths", "steps", "target tokens"]
    header += ["held-out target tokens", "of text", "loss", "unigram", "loss of text", "unigram", "bits a byte"]
    header += ["unigram", "accuracy", "most frequent token", "learned"]
    return table(header, rows, numbers_from=3) if rows else ""


def _row(cell: Cell) -> Iterator[str]:
    lengths = "/".join(str(length) for length in cell["lengths"].values())
    yield f"{cell['num_params']:,}"
    yield f"{cell['rows']} x {lengths}{' packed' if cell['packed'] else ''}"
    yield f"{cell['steps']:,}"
    yield f"{cell['target_tokens']:,}"
    yield f"{cell['held_out_target_tokens']:,}"
    yield f"{cell['of_text']['tokens']:,}"
    for measure in (_of_targets, _of_text, _in_bits):
        yield from map(decimals, measure(cell))
    yield decimals(cell["accuracy"])
    yield decimals(cell["unigram"]["accuracy"])
    yield "yes" if cell["learned"] else "no"


def _facts(board: Board) -> str:
    found = board["sources"]
    done = [cell for cell in board["cells"] if cell["done"]]
    seeds = ", ".join(sorted({str(cell["seed"]) for cell in board["cells"]}))
    seconds = [cell["training_seconds"] for cell in done if cell["training_seconds"] is not None]
    how = "counts of the training targets of the run itself, each id once more (Laplace)"
    rows = [["unigram", f"{how}; of text alone it is told where text stands, and the model is not"]]
    rows.append(["rows", _packing(done)])
    digests = board["dataset"]["sha256"] or {}
    parts = "; ".join(f"{split} {digest[:12]}…" for split, digest in digests.items())
    rows.append(["data", escape(f"{board['dataset']['name']}: {parts}" if parts else board["dataset"]["name"])])
    for one in board["vocabularies"]:
        ids = " or ".join(f"{count:,}" for count in one["ids"])
        made = f", `{one['command']}`" if one["command"] else ""
        rows.append([f"vocabulary {escape(one['title'])}", f"{ids or UNKNOWN} ids{made}"])
    rows.append(["seed", seeds])
    if seconds:
        middle, spread = duration(statistics.median(seconds)), f"{duration(min(seconds))} to {duration(max(seconds))}"
        rows.append(["time", f"{middle} of training a cell in the median ({spread}); starts and measuring not counted"])
    rows.append(["source", commits(found)])
    rows.append(["hardware", hardware(found)])
    rows += [["versions", versions] for versions in libraries(found)]
    return table(["", ""], rows)


def _packing(cells: Sequence[Cell]) -> str:
    """What a row of a training batch holds."""
    if not any(cell["packed"] for cell in cells):
        return "one example each"
    return "one example each, or where it says packed as many as fit; held-out text is never packed"


def _of(board: Board, objective: str) -> list[Cell]:
    return [cell for cell in board["cells"] if cell["objective"] == objective and cell["done"]]


def _find(board: Board, architecture: str, objective: str, vocabulary: str) -> Cell | None:
    wanted = (architecture, objective, vocabulary)
    found = (cell for cell in board["cells"] if (cell["architecture"], cell["objective"], cell["vocabulary"]) == wanted)
    return next(found, None)


def _title(board: Board, axis: str, name: str) -> str:
    return str(next(one["title"] for one in board[axis] if one["name"] == name))
