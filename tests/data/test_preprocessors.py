"""Lines of an export and back, in the graph."""

import functools
import json
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from t5xpg.data.preprocessors import _parse_record, parse_records
from t5xpg.data.text.lines import Answers
from t5xpg.data.text.manifest import canonical_line, canonical_record, texts_of_line

_parse = tf.function(functools.partial(_parse_record, fields=("text",)), input_signature=[tf.TensorSpec([], tf.string)])
_parse_answers = tf.function(
    functools.partial(_parse_record, fields=("inputs", "targets"), answers="targets"),
    input_signature=[tf.TensorSpec([], tf.string)],
)

# all control characters, the characters of escapes, and some others
_TRICKY = [chr(code) for code in range(0x20)] + list('\\"/bfnrtuab01{}: \x7f\x85\u2028é€😀')


def parsed(line: bytes) -> bytes:
    return _parse(tf.constant(line.rstrip(b"\n")))["text"].numpy()


@settings(max_examples=120)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from(_TRICKY)))
def test_parsing_inverts_the_export(text: str) -> None:
    assert parsed(canonical_line(text)).decode("utf-8") == text


@settings(max_examples=100)
@given(st.text(st.sampled_from('\\"nu0123abx ')))
def test_agrees_with_json_on_what_it_accepts(body: str) -> None:
    line = f'{{"text": "{body}"}}'
    try:
        mine = parsed(line.encode())
    except tf.errors.InvalidArgumentError:
        return
    assert mine.decode("utf-8") == json.loads(line)["text"]


@pytest.mark.parametrize(
    "line",
    [b"", b'{"text": "a"', b'{"text":"a"}', b'{"text": "a", "id": 3}', b'{"text": "a\\x"}', b'{"text": "a"b"}',
     b'{"text": "a\\"}', b'{"text": "a\tb"}', b'{"text": "\\u00e9"}', b'{"text": "\xff"}'],
)  # fmt: skip
def test_refuses_other_lines(line: bytes) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"is not .*as `make data` writes it"):
        parsed(line)


def test_records_of_several_fields(tmp_path: Path) -> None:
    values = [('"\\', "\\n\n"), ("\x01a\x01", "\t\\u0001"), ("é\u2028", "\b\f\r\x1f\\\\"), ("}", '", "b": "')]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(canonical_record(one, ("a", "b")) for one in values))
    dataset = parse_records(tf.data.TextLineDataset(str(path)), ("a", "b"))
    assert [(one["a"].decode(), one["b"].decode()) for one in dataset.as_numpy_iterator()] == values
    path.write_text('{"a": "x", "b": "y", "c": "z"}\n')
    with pytest.raises(tf.errors.InvalidArgumentError, match="as `make data` writes it; export the"):
        list(parse_records(tf.data.TextLineDataset(str(path)), ("a", "b")))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.text(st.sampled_from([*_TRICKY, ","])), min_size=1)
)
def test_one_answer_or_several(texts: list[str]) -> None:
    value = Answers.of(tuple(texts)) if len(texts) > 1 else texts[0]
    line = canonical_record(("a\n[", value), ("inputs", "targets"))
    assert texts_of_line(line) == ["a\n[", *texts]
    example = _parse_answers(tf.constant(line.rstrip(b"\n")))
    assert example["inputs"].numpy() == b"a\n["
    assert [text.decode() for text in example["targets"].numpy()] == texts
