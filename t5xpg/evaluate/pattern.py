"""A regular expression as an automaton over the tokens of a vocabulary: every way to spell a text that it matches."""

import re

import numpy as np

from t5xpg.base.errors import UserError, first_line
from t5xpg.data.vocab.vocabulary import Vocabulary
from t5xpg.models.decoding.constraint import Constraint, automaton

_SHOWN = 120  # characters of a pattern, or of what is wrong with it, in a message
_BEFORE = b"\0"
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def pattern_constraint(pattern: str, vocabulary: Vocabulary) -> Constraint:
    """The automaton of the answers whose whole text the pattern (in the syntax of Rust's `regex`) matches.

    Raises UserError for a pattern that is none, or that no tokens of the vocabulary can spell.
    """
    import outlines_core  # late: few decodings have a pattern

    texts, is_led_by_space = token_bytes(vocabulary)
    tokens_of_text: dict[bytes | str, list[int]] = {}
    for token, text in texts.items():
        tokens_of_text.setdefault(text, []).append(token)
    # whole answers: without \z the automaton ends where the first alternative does. An expression of which all may be
    # empty can't be anchored so: a token of no vocabulary stands before it.
    before = vocabulary.size
    tokens_of_text.setdefault(_BEFORE, []).append(before)
    try:
        known = outlines_core.Vocabulary(vocabulary.eos_id, tokens_of_text)
        index = outlines_core.Index(rf"\x00{' ' if is_led_by_space else ''}(?:{pattern})\z", known)
    except ValueError as error:
        raise _refusal(pattern, first_line(error)) from None
    transitions, final = index.get_transitions(), index.get_final_states()
    start = transitions.pop(index.get_initial_state())[before]
    numbers = {state: number for number, state in enumerate(dict.fromkeys([start, *transitions, *final]))}
    end = len(numbers)
    parts = [np.zeros((0, 3), np.int64)]
    for state, by_token in transitions.items():
        by_token = {token: numbers[to] for token, to in by_token.items() if token not in (vocabulary.eos_id, before)}
        by_token |= {vocabulary.eos_id: end} if state in final else {}
        parts.append(np.array([(numbers[state], *pair) for pair in by_token.items()], np.int64).reshape(-1, 3))
    sources, tokens, targets = np.concatenate(parts).T
    constraint = automaton(sources, tokens, targets, end + 1)
    if int(constraint.distances[0]) > end:
        raise _refusal(pattern, "no tokens of the vocabulary spell what it matches")
    return constraint


def _refusal(pattern: str, why: str) -> UserError:
    shown = pattern if len(pattern) <= _SHOWN else f"{pattern[:_SHOWN]} …"
    return UserError(
        f"PATTERN={shown} cannot be used: {why[:_SHOWN]}. Expected a regular expression for whole answers, without ^, "
        "$, \\b, lookaround and back references."
    )


def token_bytes(vocabulary: Vocabulary) -> tuple[dict[int, bytes], bool]:
    """{token: the UTF-8 bytes that it adds to a text}, without special tokens and those that end within a character
    but for single bytes; and whether the tokens of every text begin with a space that is no part of it."""
    counts = vocabulary.token_bytes()
    pieces = {token: vocabulary.piece(token) for token in np.nonzero(counts)[0].tolist()}
    texts = {token: bytes([int(match[1], 16)]) for token, piece in pieces.items() if (match := _BYTE.fullmatch(piece))}
    others = pieces.keys() - texts.keys()
    anchor = next((token for token in sorted(others) if pieces[token][-1].isalnum()), None)
    if anchor is None:
        return texts, False
    before = vocabulary.decode([anchor])
    for token in sorted(others):
        text = vocabulary.decode([anchor, token])[len(before) :]  # within a text, where no space is dropped
        if "\ufffd" not in text and len(text.encode(errors="surrogatepass")) == counts[token]:
            texts[token] = text.encode(errors="surrogatepass")
    words = (
        token for token in sorted(others & texts.keys()) if texts[token].startswith(b" ") and len(texts[token]) > 1
    )
    spaced = next(words, None)
    if spaced is None or vocabulary.decode([spaced]).encode() == texts[spaced]:
        return texts, False
    # the space is a piece's; that of a byte would stay in the text
    return {token: text for token, text in texts.items() if pieces[token] != "<0x20>"}, True
