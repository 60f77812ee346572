"""Tokens that are named, not spelt: one id each, and a text in brackets that stands for it in prompts and decoded text.

Sentinels are the blanks of span corruption; these are the marks of other objectives. A vocabulary has those that its
`named_tokens` say, as some of its extra ids: see `vocabularies`.
"""

from __future__ import annotations

import functools
import re
from typing import Any

from t5xpg.errors import UserError
from t5xpg.filling import SENTINEL

# UL2's modes, which begin the inputs (Tay et al. 2022, section 3.1.3, calls them [R], [X] and [S]; the names here are
# those of its released models)
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
