"""Parts of pages: Markdown as HTML, with its links; the differences between two texts; small pictures as SVG, which
need no scripts."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from t5xpg.site.records import SiteRun

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_WORD = re.compile(r"\s+|\w+|[^\w\s]")
_SPARK = (120, 28)
_CELL, _LETTER = 15, 7.5  # pixels
_FAINT = 3  # hundredths: less is not drawn


def html_of(text: str, link: Callable[[str], str]) -> Markup:
    """Markdown as HTML; comments are left out, and HTML in it is shown as text.

    link: the address for each address in the text, of links and pictures. Headings get ids, as GitHub gives them.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(_COMMENT.sub("", text))
    for place, token in enumerate(tokens):
        for part in token.children or ():
            for attribute in ("href", "src"):
                if attribute in part.attrs:
                    part.attrs[attribute] = link(str(part.attrs[attribute]))
        if token.type == "heading_open":
            token.attrs["id"] = anchor(tokens[place + 1].content)
        if token.type == "table_open":  # wide tables scroll by themselves
            token.attrs["tabindex"] = "0"
    return Markup(parser.renderer.render(tokens, parser.options, {}))


def anchor(heading: str) -> str:
    """The id of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def compared(target: str, prediction: str) -> Markup:
    """The prediction compared with the target, word by word: its additions as <ins>, what it lacks as <del>; as it is
    where they share no word."""
    old, new = _WORD.findall(target), _WORD.findall(prediction)
    if not {word for word in old if word.isalnum()} & {*new}:
        return escape(prediction)
    shown = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            shown.append(escape("".join(new[c:d])))
        else:
            shown += [_marked("del", old[a:b]), _marked("ins", new[c:d])]
    return Markup("").join(shown)


def _marked(tag: str, words: Sequence[str]) -> Markup:
    return Markup("<{0}>{1}</{0}>").format(Markup(tag), "".join(words)) if words else Markup("")


def spark(run: SiteRun) -> Markup:
    """A small curve of the validation loss, without its first value; "" where fewer than two are left."""
    steps, losses = next(iter(run.curves.values()))
    points = [(x, y) for x, y in zip(steps, losses, strict=True) if x and y is not None]
    if len(points) < 2:
        return Markup("")
    width, height = _SPARK
    last, low, high = points[-1][0], min(y for _, y in points), max(y for _, y in points)
    scaled = " ".join(
        f"{width * x / last:.1f},{2 + (height - 4) * (high - y) / (high - low or 1):.1f}" for x, y in points
    )
    return Markup('<svg class="spark" viewBox="0 0 {} {}" aria-hidden="true"><polyline points="{}"/></svg>').format(
        width, height, scaled
    )


def attention(example: Mapping[str, Any]) -> Markup:
    """A square for each output (down) and input (across), darker where the decoder looks. example: as
    `evaluate.attention.of_examples` gives it."""
    inputs, outputs = example["inputs"], example["outputs"]
    left, top = (10 + _LETTER * max(map(len, pieces)) for pieces in (outputs, inputs))
    width, height = left + _CELL * len(inputs), top + _CELL * len(outputs)
    parts = [
        Markup('<text x="{:.0f}" y="{:.0f}" text-anchor="end">{}</text>').format(
            left - 4, top + _CELL * (row + 0.75), piece
        )
        for row, piece in enumerate(outputs)
    ]
    for column, piece in enumerate(inputs):
        x, y = left + _CELL * (column + 0.7), top - 4
        parts.append(Markup('<text transform="translate({:.0f} {:.0f}) rotate(-90)">{}</text>').format(x, y, piece))
    for row, weights in enumerate(example["weights"]):
        for column, weight in enumerate(weights):
            if weight >= _FAINT:
                place = f'x="{left + _CELL * column:.0f}" y="{top + _CELL * row:.0f}" fill-opacity="{weight / 100:.2f}"'
                title = f"{outputs[row]} looks at {inputs[column]}: {weight}%"
                parts.append(Markup("<rect {}><title>{}</title></rect>").format(Markup(place), escape(title)))
    shape = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return Markup('<svg class="attention" {}>{}</svg>').format(Markup(shape), Markup("").join(parts))
