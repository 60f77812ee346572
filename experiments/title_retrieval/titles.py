"""Generative retrieval over `pydocs`: makes its records, and compares predictions with BM25.

    python experiments/title_retrieval/titles.py make <folder of pydocs> <folder for the .tsv files>
    python experiments/title_retrieval/titles.py score <folder of the .tsv files> <predictions.jsonl>

A document's title is the beginning of its first line; its sentences are the other lines. One sentence in twenty is a
question of the validation split, one a question of the test split; the others are what models and BM25 know. A model
is also trained on windows of a document's known words: for each sentence, a few of them.
"""

import hashlib
import json
import random
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

_TITLE_CHARACTERS = 60
_WORD = re.compile(r"\w+")
_FEWEST_WORDS = 5  # of a question
_SHARE = 20  # one sentence in so many is held out for each of validation and test
_WINDOWS, _FEWEST, _MOST = 3, 6, 16  # windows for each sentence, and the words of a window
Pair = tuple[str, str]  # sentence, title


def documents(folder: Path) -> Iterator[list[str]]:
    """The lines of each document of an export, of all splits."""
    for split in ("train", "validation", "test"):
        with (folder / f"{split}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                # as SentencePiece normalises texts, so that each title can be spelt
                text = unicodedata.normalize("NFKC", json.loads(line)["text"])
                yield [" ".join(one.split()) for one in text.split("\n")]


def titles_of(first_lines: Sequence[str]) -> list[str]:
    """The beginnings of lines, to the end of a word; a number is appended to one that is there already."""
    seen: Counter[str] = Counter()
    titles = []
    for line in first_lines:
        title = (
            line
            if len(line) <= _TITLE_CHARACTERS
            else line[:_TITLE_CHARACTERS].rpartition(" ")[0] or line[:_TITLE_CHARACTERS]
        )
        seen[title] += 1
        titles.append(title if seen[title] == 1 else f"{title} ({seen[title]})")
    return titles


def split_pairs(folder: Path) -> dict[str, list[Pair]]:
    """The sentences of each split with the titles of their documents; a sentence of several documents is left out."""
    texts = list(documents(folder))
    titles = titles_of([lines[0] for lines in texts])
    counts = Counter(line for lines in texts for line in set(lines))
    pairs: dict[str, list[Pair]] = {"train": [(title, title) for title in titles], "validation": [], "test": []}
    for lines, title in zip(texts, titles, strict=True):
        for line in lines[1:]:
            if counts[line] > 1 or len(_WORD.findall(line)) < _FEWEST_WORDS:
                continue
            drawn = int(hashlib.sha256(line.encode()).hexdigest()[:8], 16) % _SHARE
            pairs[{0: "validation", 1: "test"}.get(drawn, "train")].append((line, title))
    return pairs


def windows(known: Sequence[Pair]) -> list[Pair]:
    """Words that follow each other in the known sentences of a document, with its title; the same every time."""
    sentences: dict[str, list[str]] = {}
    for sentence, title in known:
        sentences.setdefault(title, []).append(sentence)
    draw, rows = random.Random(0), []
    for title, texts in sentences.items():
        words = " ".join(texts).split(" ")
        for _ in range(_WINDOWS * len(texts)):
            length = draw.randint(_FEWEST, _MOST)
            start = draw.randint(0, max(0, len(words) - length))
            rows.append((" ".join(words[start : start + length]), title))
    return rows


def make(folder: Path, output: Path) -> None:
    """Write known.tsv (the known sentences), train.tsv (and windows of them), validation.tsv and test.tsv, and
    titles.txt with all titles."""
    output.mkdir(parents=True, exist_ok=True)
    pairs = split_pairs(folder)
    pairs["known"], pairs["train"] = pairs["train"], pairs["train"] + windows(pairs["train"])
    for split, rows in pairs.items():
        text = "".join(f"{sentence}\t{title}\n" for sentence, title in rows)
        (output / f"{split}.tsv").write_text(text, encoding="utf-8")
        print(f"{output / split}.tsv: {len(rows):,} sentences")
    titles = dict.fromkeys(title for _, title in pairs["known"])
    (output / "titles.txt").write_text("".join(f"{title}\n" for title in titles), encoding="utf-8")
    print(f"{output / 'titles.txt'}: {len(titles):,} titles")


def read_pairs(file: Path) -> list[Pair]:
    """The rows of a .tsv file."""
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    return [(sentence, title) for sentence, title in rows]


def recall(ranked: Sequence[Sequence[str]], titles: Sequence[str]) -> dict[str, float]:
    """The share of questions, in %, whose title is the first of the ranked ones, and among the first ten."""
    return {
        f"recall at {k}": 100
        * sum(title in found[:k] for found, title in zip(ranked, titles, strict=True))
        / len(titles)
        for k in (1, 10)
    }


def bm25(known: Sequence[Pair], questions: Sequence[str]) -> list[list[str]]:
    """The ten best titles for each question, of documents that consist of their known sentences."""
    import bm25s  # beside transformers in the environment of `make bench-peers`

    texts: dict[str, list[str]] = {}
    for sentence, title in known:
        texts.setdefault(title, []).append(sentence)
    titles = list(texts)
    index = bm25s.BM25()
    index.index(bm25s.tokenize([" ".join(texts[title]) for title in titles], show_progress=False), show_progress=False)
    found = index.retrieve(bm25s.tokenize(list(questions), show_progress=False), k=10, show_progress=False)
    return [[titles[place] for place in row] for row in found.documents]


def score(folder: Path, predictions: Path) -> None:
    """Print the recall of predictions (`make infer SPLIT=test`, ten a row) and of BM25 on the same questions."""
    questions, known = read_pairs(folder / "test.tsv"), read_pairs(folder / "known.tsv")
    rows = [json.loads(line) for line in predictions.read_text(encoding="utf-8").splitlines()]
    by_title = [title for _, title in questions]
    ranked = [row["predictions"] for row in rows]
    if len(ranked) != len(questions):
        sys.exit(f"{predictions} has {len(ranked):,} rows, and {folder / 'test.tsv'} {len(questions):,}.")
    for name, found in (("model", ranked), ("BM25", bm25(known, [sentence for sentence, _ in questions]))):
        print(name, json.dumps({key: round(value, 1) for key, value in recall(found, by_title).items()}))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["make", folder, output]:
            make(Path(folder), Path(output))
        case ["score", folder, predictions]:
            score(Path(folder), Path(predictions))
        case _:
            sys.exit(__doc__)
