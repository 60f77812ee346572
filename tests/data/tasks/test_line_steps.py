"""Lines to be completed and numbers to be found, against plain Python on real code; what a task of them measures."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import seqio

from t5xpg.data.objectives import NextLine, Passkey
from t5xpg.data.tasks.table import ROWS, register_tasks
from t5xpg.data.tasks.task_names import BYTES, NAMED_BYTES
from t5xpg.data.text import package_documents
from t5xpg.data.text.export import export_dataset
from t5xpg.data.text.wheels import CODE_WHEELS, source_files, wheels_directory
from t5xpg.data.vocab.seqio_vocabularies import to_seqio
from t5xpg.data.vocab.training import VocabularySettings, train_model
from t5xpg.data.vocab.vocabulary import Vocabulary
from tests.data.tasks.objective_examples import examples_of
from tests.refusals import refused
from tests.small_tokenizers import sentencepiece_model

LENGTHS = {"inputs": 64, "targets": 24}


@pytest.fixture(scope="module")
def code() -> list[str]:
    files = source_files({"absl-py": CODE_WHEELS["absl-py"]}, wheels_directory())
    return list(itertools.islice(package_documents.code_documents(files), 40))


def examples(texts: list[str], lines: int, vocabulary: seqio.Vocabulary) -> list[dict[str, np.ndarray]]:
    return examples_of([vocabulary.encode(text) for text in texts], NextLine(lines), vocabulary, **LENGTHS)


def expected(text: str, lines: int) -> list[tuple[str, str]]:
    """Inputs and targets, from the definition."""
    code = text.encode()
    found = []
    place = 0
    for number, line in enumerate(code.split(b"\n")):
        if number and line.strip(b" \t\r\f\v") and len(line) < LENGTHS["targets"]:
            found.append((code[max(0, place - LENGTHS["inputs"] + 1) : place], line))
        place += len(line) + 1
    taken = min(len(found), lines)
    if not taken:
        return []
    stride = len(found) // taken
    first = (sum(byte + 3 for byte in code) + 13) % stride
    return [(one.decode(errors="replace"), two.decode()) for one, two in found[first::stride][:taken]]


@pytest.mark.parametrize(("lines", "vocabulary"), [(1, BYTES), (4, NAMED_BYTES), (1000, BYTES)])
def test_lines_and_what_stands_before_them(code: list[str], lines: int, vocabulary: Vocabulary) -> None:
    given = [*code, "only one line", "first\n\n  \nlonger than the targets can be, and so not asked for", "é\nø", ""]
    made = examples(given, lines, to_seqio(vocabulary))
    assert all(row["inputs"][-1] == row["targets"][-1] == 1 for row in made)
    assert all(len(row["inputs"]) <= 64 and len(row["targets"]) <= 24 for row in made)
    found = [(vocabulary.decode(row["inputs"]), vocabulary.decode(row["targets"])) for row in made]
    assert found == [pair for text in given for pair in expected(text, lines)]
    assert len(found) > {1: 30, 4: 120, 1000: 1000}[lines]


def test_lines_of_pieces(code: list[str], tmp_path: Path) -> None:
    """Pieces end where lines end: what is asked for are lines of the text, and behind the inputs."""
    lines = [line for text in code for line in text.split("\n") if line.strip()]
    settings = VocabularySettings(size=600, normalization="identity", byte_fallback=True)
    model = tmp_path / "code.model"
    model.write_bytes(train_model(lines, settings, sum(map(len, lines))))
    vocabulary = Vocabulary("sentencepiece", 10, model_file=str(model))
    for text in [*code[:8], "\n   \nfirst\n        \n\t\n  last"]:
        made = [
            (vocabulary.decode(row["inputs"]), vocabulary.decode(row["targets"]))
            for row in examples([text], 1000, to_seqio(vocabulary))
        ]
        known = [line.strip() for line in text.split("\n")[1:] if line.strip()]
        short = [line for line in known if len(vocabulary.encode(line)) < 20]
        assert set(short) <= {line.strip() for _, line in made} <= set(known)
        for before, line in made:
            assert before.endswith("\n")
            # the first of the spaces in front of a run of pieces is not said
            assert f"{before}{line}".replace(" ", "") in text.replace(" ", "")


def test_a_vocabulary_without_ends_of_lines_is_refused(tmp_path: Path) -> None:
    for name, symbols in (("a.model", []), ("b.model", ["\n", "\n\n"])):
        model_file = sentencepiece_model(tmp_path / name, user_defined_symbols=symbols)
        with refused("no token", "use bytes"):
            examples(["a\nb"], 1, to_seqio(Vocabulary("sentencepiece", 0, model_file=model_file)))


def test_a_number_stands_in_a_line_of_its_own_anywhere(code: list[str]) -> None:
    """What is around the line is the text, stretch by stretch; places and numbers are spread."""
    rows = examples_of(map(BYTES.encode, code), Passkey(3), to_seqio(BYTES), inputs=256, targets=8)
    places, numbers, text = [], [], []
    for row in rows:
        inputs, number = (BYTES.decode(row[name]) for name in ("inputs", "targets"))
        before, line, behind = inputs.partition(f"\nThe pass key is {number}. Remember it.\n")
        assert line
        assert len(number) == 3
        places.append(len(before.encode()))
        numbers.append(number)
        text.append(before + behind)
    assert all(len(row["inputs"]) == 256 for row in rows[:-1])
    assert "".join(text) == "".join(code)
    assert len(rows) > 100
    assert len(set(numbers)) > len(rows) / 2
    assert min(places) < 20 < 200 < max(places)


def test_what_is_measured(code: list[str], tmp_path: Path) -> None:
    """Of an export of code."""
    text = tmp_path / "code.jsonl"
    text.write_text("".join(json.dumps({"text": piece}) + "\n" for piece in code))
    export_dataset("mine", data_dir=tmp_path / "data", files={None: [text]}, log=lambda line: None)
    register_tasks(tmp_path / "data")
    task = seqio.TaskRegistry.get("mine_next_line")
    (row, *_) = task.get_dataset(LENGTHS, "validation", shuffle=False, use_cached=False).as_numpy_iterator()
    again = list(task.get_dataset(LENGTHS, "validation", shuffle=True, seed=3, use_cached=False).as_numpy_iterator())
    assert any(np.array_equal(row["inputs"], other["inputs"]) for other in again), "the same lines for every seed"
    text = BYTES.decode(row["targets"])
    target = task.postprocess_fn(text, example=row, is_target=True)
    assert target == text.strip()
    assert task.postprocess_fn(f"  {target} \n    and more\n", example=row, is_target=False) == target
    found = {name: value for metric in task.metric_fns for name, value in metric([target], [target]).items()}
    assert found == {"exact_match": 100.0, "edit_similarity": 100.0}
    before = BYTES.decode(row["inputs"])
    assert ROWS["mine_next_line"].copied(before) == before.split("\n")[-2]
