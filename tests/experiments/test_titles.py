"""The records of experiments/title_retrieval, and the recall of ranked titles."""

import json
from pathlib import Path

import pytest

from tests.workplace import program_of

titles = program_of("experiments/title_retrieval/titles.py")


def test_titles_are_short_and_different() -> None:
    long = "Returns the sum of all numbers in a list of lists of numbers and of more lists"
    assert titles.titles_of(["Sums.", long, "Sums.", long]) == [
        "Sums.",
        "Returns the sum of all numbers in a list of lists of",
        "Sums. (2)",
        "Returns the sum of all numbers in a list of lists of (2)",
    ]
    assert titles.titles_of(["x" * 70]) == ["x" * 60]


def test_each_sentence_is_in_one_split_with_its_documents_title(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [
        "\n".join(
            [f"Title\u00a0{i}", "too short", "the same in all of the documents", f"this is sentence number {i} here"]
        )
        for i in range(300)
    ]
    for split, part in (("train", texts[:200]), ("validation", texts[200:250]), ("test", texts[250:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in part))
    titles.make(tmp_path, tmp_path / "out")
    rows = {
        split: titles.read_pairs(tmp_path / "out" / f"{split}.tsv")
        for split in ("train", "known", "validation", "test")
    }
    names = [f"Title {i}" for i in range(300)]
    assert rows["known"][:300] == [(name, name) for name in names]
    known = dict[str, str]()
    for sentence, title in rows["known"]:
        known[title] = f"{known[title]} {sentence}" if title in known else sentence
    assert rows["train"][: len(rows["known"])] == rows["known"]
    assert all(window in known[title] for window, title in rows["train"])
    sentences = [*rows["known"][300:], *rows["validation"], *rows["test"]]
    assert sorted(sentences) == sorted((f"this is sentence number {i} here", f"Title {i}") for i in range(300))
    assert min(len(rows["validation"]), len(rows["test"])) > 5
    assert (tmp_path / "out" / "titles.txt").read_text().splitlines() == names


def test_recall_counts_the_first_and_the_first_ten() -> None:
    ranked = [["a", "b"], ["b", "a"], ["c"] * 10 + ["a"], []]
    assert titles.recall(ranked, ["a"] * 4) == {"recall at 1": 25.0, "recall at 10": 50.0}
