"""From a text with blanks and a prediction to the text without them. Works on text: `<extra_id_0>` and so on."""

from __future__ import annotations

import itertools
import re

# Written in one way only: `<extra_id_07>` is ordinary text, to vocabularies too. No vocabulary has 10**9 sentinels.
SENTINEL = re.compile(r"<extra_id_(0|[1-9][0-9]{0,8})>")


def one_line(text: str) -> str:
    """A text as a terminal shows it on one line: line ends as ⏎, white space as spaces, control characters as �."""
    shown = text.replace("\r\n", "\n").replace("\n", "⏎")
    shown = "".join(" " if character.isspace() else character for character in shown)
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in shown)


def blanks_of(text: str) -> list[int]:
    """The numbers of the sentinels in a text, in their order."""
    return [int(match.group(1)) for match in SENTINEL.finditer(text)]


def fillings(prediction: str) -> dict[int, str]:
    """What a prediction says for each sentinel: the text from it to the next one. The first mention counts."""
    found: dict[int, str] = {}
    matches = list(SENTINEL.finditer(prediction))
    for match, following in itertools.zip_longest(matches, matches[1:]):
        end = following.start() if following is not None else len(prediction)
        found.setdefault(int(match.group(1)), prediction[match.end() : end])
    return found


def fill(text: str, prediction: str, before: str = "", after: str = "") -> str:
    """`text` with every sentinel that the prediction mentions replaced, between `before` and `after`; others stay."""
    found = fillings(prediction)

    def replacement(match: re.Match[str]) -> str:
        number = int(match.group(1))
        return f"{before}{found[number]}{after}" if number in found else match.group(0)

    return SENTINEL.sub(replacement, text)


def excerpt(text: str, context: int) -> str:
    """`text` with at most `context` characters before and after each blank; " … " where something was left out."""
    ranges: list[list[int]] = []
    for match in SENTINEL.finditer(text):
        start, end = max(0, match.start() - context), min(len(text), match.end() + context)
        if ranges and start <= ranges[-1][1]:
            ranges[-1][1] = end
        else:
            ranges.append([start, end])
    if not ranges:
        return text if len(text) <= 2 * context else text[: 2 * context] + " …"
    parts = [text[start:end] for start, end in ranges]
    before = "… " if ranges[0][0] > 0 else ""
    after = " …" if ranges[-1][1] < len(text) else ""
    return before + " … ".join(parts) + after
