"""Examples made and written without TensorFlow are those of the steps of the table, and of protocol buffers."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import seqio
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from t5xpg.data.cache.byte_examples import applies, batches, serialised
from t5xpg.data.cache.local import stats_of
from t5xpg.data.preprocessors import parse_jsonl
from t5xpg.data.tasks.table import register_tasks
from t5xpg.data.tasks.task_names import VOCABULARIES, rows
from t5xpg.data.text.manifest import canonical_line
from t5xpg.data.vocab.seqio_vocabularies import to_seqio

TRICKY = [chr(code) for code in range(0x20)] + list('\\"/bfnrtuab01{}: \x7f\x85\u2028é€😀')
OTHER_LINES = [
    b'{"text": "\\u0008 \\u000a \\u001f"}\n',  # control characters that an export writes otherwise
    b'{"text": "carriage return"}\r\n',
    b'{"te\rxt": "\r"}\n',
    b'{"text": ""}\n',
    b'{"text": "\xf4\x8f\xbf\xbf"}\n',
    b'{"text": "no line end"}',
]
STEPS: list[Any] = [
    parse_jsonl,
    functools.partial(seqio.preprocessors.rekey, key_map={"targets": "text"}),
    functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False),
]


def task_of(path: Path, steps: list[Any], vocabulary: Any = None, **options: Any) -> seqio.Task:
    feature = seqio.Feature(vocabulary or seqio.ByteVocabulary(extra_ids=125), add_eos=True)
    source = seqio.TextLineDataSource({"train": str(path)}, **options)
    return seqio.Task("lines", source, {"targets": feature}, [*steps, seqio.CacheDatasetPlaceholder()])


def made(task: seqio.Task, path: Path) -> Iterator[list[int]]:
    for counts, records in batches(task, path):
        ids = [list(tf.train.Example.FromString(one).features.feature["targets"].int64_list.value) for one in records]
        assert counts == list(map(len, ids))
        yield from ids


def test_examples_are_those_of_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    texts = ["".join(a + b for b in TRICKY) for a in TRICKY] + ["short"] * 300 + ["long " * 40_000, "\ud800"]
    path.write_bytes(b"".join([*map(canonical_line, texts), *OTHER_LINES]))
    task = task_of(path, STEPS)
    dataset = task.preprocess_precache(task.source.get_dataset("train", shuffle=False), seed=0)
    assert list(made(task, path)) == [example["targets"].tolist() for example in dataset.as_numpy_iterator()]


@pytest.mark.parametrize("line", [b"\n", b'{"text": "a" }\n', b'{"text": "\xff"}\n', b'{"text": "\\ud800"}\n'])
def test_what_the_steps_refuse_is_refused(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(canonical_line("first") + line)
    with pytest.raises(tf.errors.InvalidArgumentError, match="This line is not"):
        list(made(task_of(path, STEPS), path))


def test_it_is_for_the_steps_of_the_table_alone(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_bytes(canonical_line("first"))

    def is_used(steps: list[Any] = STEPS, vocabulary: Any = None, path: Path = path, **options: Any) -> bool:
        return applies(task_of(path, steps, vocabulary, **options), steps, "train")

    assert is_used()
    assert is_used(vocabulary=to_seqio(VOCABULARIES[0].vocabulary))
    assert not is_used([*STEPS, STEPS[2]])
    assert not is_used([lambda dataset: parse_jsonl(dataset), *STEPS[1:]])
    assert not is_used([STEPS[0], functools.partial(seqio.preprocessors.rekey, key_map={"targets": "other"}), STEPS[2]])
    with_end = functools.partial(seqio.preprocessors.tokenize_and_append_eos, copy_pretokenized=False)
    assert not is_used([*STEPS[:2], with_end])
    assert not is_used([*STEPS[:2], seqio.preprocessors.tokenize])  # which copies the text
    assert not is_used(vocabulary=seqio.PassThroughVocabulary(300))
    assert not is_used(skip_header_lines=1)
    assert not is_used(path=tmp_path / "elsewhere")
    # and for every cache of the table's bytes
    register_tasks(tmp_path)
    for row in rows("wikitext"):
        task = seqio.TaskRegistry.get(row.cached_as)
        place = next(i for i, step in enumerate(task.preprocessors) if isinstance(step, seqio.CacheDatasetPlaceholder))
        assert applies(task, task.preprocessors[:place], "train")


@example(["short", "", "é" * 20_000, "x" * 200])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_examples_are_those_of_protocol_buffers(texts: list[str]) -> None:
    vocabulary = seqio.ByteVocabulary()
    contents = [text.encode() for text in texts]
    expected = [seqio.dict_to_tfexample({"targets": tf.constant(vocabulary.encode(text), tf.int32)}) for text in texts]
    ids = vocabulary.encode_tf(tf.constant(bytes(range(256)))).numpy()
    assert serialised(contents, ids) == [one.SerializeToString(deterministic=True) for one in expected]


def test_features_whose_counts_would_have_one_name() -> None:
    with pytest.raises(ValueError, match="x_max_tokens"):
        stats_of({"x": 1, "x_max": 1}, {"x": 1, "x_max": 1})
