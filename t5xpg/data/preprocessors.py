"""SeqIO preprocessors of our own. Graph operations alone, so that an iterator behind them can be saved. TensorFlow."""

import functools
from collections.abc import Sequence

import tensorflow as tf

# A text in a line of an export, with its escapes.
_TEXT = r'(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f])*'
_TEXTS = rf'"{_TEXT}"|\["{_TEXT}"(?:, "{_TEXT}")*\]'  # or a list of texts

# No line has the control character 1: it stands for what must not be read again, a backslash (b), itself (a), or a
# quotation mark of a text in a list (q).
_BACKSLASH, _ONE, _QUOTE = "\x01b", "\x01a", "\x01q"

# Escapes and what they stand for, in the order of replacement. Escaped backslashes first: they come in pairs from the
# left, so that afterwards every backslash starts an escape.
_ESCAPES: tuple[tuple[str, str], ...] = (
    (r"\\", _BACKSLASH),
    (r"\u0001", _ONE),
    (r"\"", '"'),
    (r"\b", "\b"),
    (r"\f", "\f"),
    (r"\n", "\n"),
    (r"\r", "\r"),
    (r"\t", "\t"),
    *((rf"\u{code:04x}", chr(code)) for code in range(0x20) if code != 1),
    (_QUOTE, '"'),
    (_BACKSLASH, "\\"),
    (_ONE, "\x01"),
)


def parse_jsonl(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The inverse of `canonical_line`: lines to {"text": scalar}. InvalidArgumentError, with the line, for others."""
    return parse_records(dataset, ("text",))


def parse_records(dataset: tf.data.Dataset, fields: Sequence[str], answers: str = "") -> tf.data.Dataset:
    """The inverse of `canonical_record`: lines to {field: scalar}, in the order of `fields`. Fails as `parse_jsonl`.
    answers: a field that may be a list: [its texts]."""
    parse = functools.partial(_parse_record, fields=fields, answers=answers)
    return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def _parse_record(line: tf.Tensor, fields: Sequence[str], answers: str = "") -> dict[str, tf.Tensor]:
    values = {field: f"({_TEXTS})" if field == answers else f'"({_TEXT})"' for field in fields}
    pattern = r"\{" + ", ".join(f'"{field}": {value}' for field, value in values.items()) + r"\}"
    whole = tf.strings.regex_full_match(line, pattern)
    form = ", ".join(f'"{field}": "…"' for field in fields)
    message = f"This line is not {{{form}}} as `make data` writes it; export the dataset again (FORCE=1)."
    # an error message must be UTF-8, which the line need not be
    shown = tf.strings.unicode_transcode(tf.strings.substr(line, 0, 200), "UTF-8", "UTF-8", errors="replace")
    with tf.control_dependencies([tf.debugging.Assert(whole, [message, shown])]):
        line = tf.identity(line)
    # most texts hold few kinds of escapes: what stands for itself is left alone
    escaped = tf.strings.regex_full_match(line, r"(?s).*\\.*")
    texts = {}
    for number, field in enumerate(fields, 1):
        text = tf.strings.regex_replace(line, pattern, rf"\{number}", replace_global=False)
        if field == answers:
            text = _split(text)
        texts[field] = tf.cond(escaped, functools.partial(_unescaped, text), functools.partial(tf.identity, text))
    return texts


def _split(answers: tf.Tensor) -> tf.Tensor:
    """The texts between quotation marks, with their escapes."""
    for escape, meaning in ((r"\\\\", _BACKSLASH), (r"\\\"", _QUOTE), (r'^\[?"|"\]?$', "")):
        answers = tf.strings.regex_replace(answers, escape, meaning)
    return tf.strings.split(answers, '", "')


def _unescaped(text: tf.Tensor) -> tf.Tensor:
    for escape, meaning in _ESCAPES:
        pattern, rewrite = (one.replace("\\", r"\\") for one in (escape, meaning))
        text = tf.strings.regex_replace(text, pattern, rewrite)
    return text
