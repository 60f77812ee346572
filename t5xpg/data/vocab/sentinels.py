"""Tokens that are named, not spelt: one id each, and a text in brackets that stands for it in prompts and decoded text.
Sentinels are the blanks of span corruption; the marks of other objectives are a vocabulary's `named_tokens`."""

import functools
import itertools
import re
from typing import Any

from t5xpg.base.errors import UserError

# Written in one way only: `<extra_id_07>` is ordinary text, to vocabularies too. No vocabulary has 10**9 sentinels.
SENTINEL = re.compile(r"<extra_id_(0|[1-9][0-9]{0,8})>")


def blanks_of(text: str) -> list[int]:
    """The numbers of the sentinels in a text, in their order."""
    return [int(match.group(1)) for match in SENTINEL.finditer(text)]


def predicted_spans(prediction: str) -> dict[int, str]:
    """What a prediction says for each sentinel: the text from it to the next one. The first mention counts."""
    found: dict[int, str] = {}
    matches = list(SENTINEL.finditer(prediction))
    for match, following in itertools.zip_longest(matches, matches[1:]):
        end = following.start() if following is not None else len(prediction)
        found.setdefault(int(match.group(1)), prediction[match.end() : end])
    return found


def fill(text: str, prediction: str, before: str = "", after: str = "") -> str:
    """`text` with every sentinel that the prediction mentions replaced, between `before` and `after`; others stay."""
    found = predicted_spans(prediction)

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


# UL2's modes, which begin the inputs, as in its released models (Tay et al. 2022, section 3.1.3: [R], [X], [S])
NLU = "[NLU]"  # R: spans that are short and few
NLG = "[NLG]"  # X: spans that are long, or many
S2S = "[S2S]"  # S: the end of the text
# BERT's
CLS = "[CLS]"  # begins inputs and targets: what is known of the whole text gathers there
MASK = "[MASK]"  # stands for a token that is to be predicted in its place
NAMED_TOKENS = (NLU, NLG, S2S, CLS, MASK)


@functools.cache
def marks(names: tuple[str, ...]) -> re.Pattern[str]:
    """What stands for one id each in a text: sentinels, with their number in the first group, and names."""
    return re.compile("|".join([SENTINEL.pattern, *map(re.escape, names)]))


def check_names(names: Any, most: int) -> None:
    """Raise UserError unless `names` can be the texts of at most so many ids."""
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name.isprintable() and name for name in names):
        raise UserError(f"named_tokens is {names!r}: expected texts, such as ('[NLU]', '[NLG]').")
    if len(set(names)) != len(names) or any(SENTINEL.search(name) for name in names):
        raise UserError(f"named_tokens is {names!r}: a name stands for one id, and for no sentinel.")
    if len(names) > most:
        raise UserError(f"There are {len(names)} named tokens, and {most} extra ids that they could have.")
