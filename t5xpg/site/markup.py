"""Parts of pages: Markdown as HTML, with its links, and the differences between two texts."""

import difflib
import re
from collections.abc import Callable, Sequence

from markdown_it import MarkdownIt
from markupsafe import Markup, escape

_COMMENT = re.compile(r"<!--.*?-->\n*", re.DOTALL)
_WORD = re.compile(r"\s+|\w+|[^\w\s]")


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
