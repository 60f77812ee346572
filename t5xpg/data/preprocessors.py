"""SeqIO preprocessors of our own. Graph operations alone, so that an iterator behind them can be saved. TensorFlow."""

from __future__ import annotations

import tensorflow as tf

# A whole line of an export, as `manifest.canonical_line` writes it; the group is the text with its escapes.
_LINE = r'\{"text": "((?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f])*)"\}'

# The control character 1 cannot stand in a line. With a letter behind it it holds the place of what must not be read
# again while other escapes are replaced: a backslash (b), and the control character 1 itself (a).
_BACKSLASH, _ONE = "\x01b", "\x01a"

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
    (_BACKSLASH, "\\"),
    (_ONE, "\x01"),
)


def parse_jsonl(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Lines of an export (scalar strings) to examples {"text": scalar string}: the inverse of `canonical_line`.

    Reading fails with InvalidArgumentError, showing the line, where it is not one that an export writes.
    """
    return dataset.map(_parse_line, num_parallel_calls=tf.data.AUTOTUNE)


def _parse_line(line: tf.Tensor) -> dict[str, tf.Tensor]:
    whole = tf.strings.regex_full_match(line, _LINE)
    message = 'This line is not {"text": "…"} as `make data` writes it; export the dataset again (FORCE=1).'
    # an error message must be UTF-8, which the line need not be
    shown = tf.strings.unicode_transcode(tf.strings.substr(line, 0, 200), "UTF-8", "UTF-8", errors="replace")
    with tf.control_dependencies([tf.debugging.Assert(whole, [message, shown])]):
        text = tf.strings.regex_replace(line, _LINE, r"\1", replace_global=False)
    # most texts hold few kinds of escapes: what stands for itself is left alone
    escaped = tf.strings.regex_full_match(text, r"(?s).*\\.*")
    return {"text": tf.cond(escaped, lambda: _unescaped(text), lambda: text)}


def _unescaped(text: tf.Tensor) -> tf.Tensor:
    for escape, meaning in _ESCAPES:
        pattern = escape.replace("\\", r"\\")
        rewrite = meaning.replace("\\", r"\\")
        text = tf.strings.regex_replace(text, pattern, rewrite)
    return text
