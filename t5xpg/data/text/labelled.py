"""Supervised tasks: the fields of inputs and targets, and the metrics of predictions. Without TensorFlow.

The fields of an export of records (`make data FIELDS=…`) say which tasks it has: languages (en,de) give
`<dataset>_translate_en_de` and back, `text,label` gives `<dataset>_classify`, `inputs,targets` gives
`<dataset>_text_to_text`. Tasks over TensorFlow Datasets have names of their own: TFDS_TASKS.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from t5xpg.base.errors import UserError

# The fields of an export of text, and those of the records that have one task.
TEXT = ("text",)
LABELLED = ("text", "label")
PAIRS = ("inputs", "targets")
TRANSLATE, CLASSIFY, TEXT_TO_TEXT = "translate", "classify", "text_to_text"
TRIVIA_QA = "trivia_qa_open"

_LANGUAGE = re.compile(r"[a-z]{2}")
# The endings of the names of tasks of records, before the vocabulary.
ENDING = re.compile(rf"{TRANSLATE}_[a-z]{{2}}_[a-z]{{2}}|{CLASSIFY}|{TEXT_TO_TEXT}")
_EXPECTED = (
    "Expected two languages or more (FIELDS=en,de), FIELDS=text,label, or FIELDS=inputs,targets; where the files call "
    "a field otherwise: FIELDS=inputs=question,targets=answer."
)


@dataclass(frozen=True)
class Supervised:
    """A task whose targets are the answers to its inputs. kind: TRANSLATE, CLASSIFY, TEXT_TO_TEXT, or a name in
    TFDS_TASKS. inputs, targets: the fields that they are made of. metrics: functions of `t5xpg.data.metrics`."""

    kind: str
    metrics: tuple[str, ...]
    inputs: str = ""
    targets: str = ""

    def prompt(self, dataset: str | None) -> str:
        """The text that the task of a dataset puts in front of a field to make the inputs; may be ""."""
        if _are_languages((self.inputs, self.targets)):
            from babel import Locale  # as t5's preprocessor of translations names languages

            return f"translate {Locale(self.inputs).english_name} to {Locale(self.targets).english_name}: "
        # as T5 writes classification: the name of the task in front, so that tasks can be mixed
        return {CLASSIFY: f"{CLASSIFY} {dataset}: ", TRIVIA_QA: "trivia_qa question: "}.get(self.kind, "")


@dataclass(frozen=True)
class TfdsTask:
    """A task over TensorFlow Datasets. dataset: with configuration and version. splits: slices of its splits."""

    dataset: str
    splits: Mapping[str, str]
    supervised: Supervised


# Versions and splits are those of T5's own tasks.
TFDS_TASKS: Mapping[str, TfdsTask] = {
    # Raffel et al. 2020; its validation split is newstest2018
    "wmt19_ende": TfdsTask(
        "wmt19_translate/de-en:1.0.0",
        {"train": "train", "validation": "validation"},
        Supervised("wmt19_ende", ("bleu", "chrf"), "en", "de"),
    ),
    # Roberts et al. 2020, closed-book: about a tenth of the training questions is held out, as ORQA does; the test
    # split is the public validation split, as the answers of the test questions are not public
    TRIVIA_QA: TfdsTask(
        "trivia_qa/unfiltered.nocontext:1.1.0",
        {"train": "train[:78785]", "validation": "train[78785:]", "test": "validation"},
        Supervised(TRIVIA_QA, ("trivia_qa",)),
    ),
    # t5's squad_v010_allanswers: version 1.1, questions with their paragraphs
    "squad": TfdsTask(
        "squad/v1.1:3.0.0", {"train": "train", "validation": "validation"}, Supervised("squad", ("squad",))
    ),
}


def parse_fields(option: str) -> dict[str, str]:
    """The fields of `FIELDS=`: name in the export to name in the files. Raises UserError for fields without a task."""
    fields: dict[str, str] = {}
    for word in option.replace(",", " ").split():
        name, _, column = word.partition("=")
        if name in fields:
            raise UserError(f"FIELDS={option}: {name} is given twice.")
        fields[name] = column or name
    if len(set(fields.values())) < len(fields):
        raise UserError(f"FIELDS={option}: one field of the files is given for two.")
    if not supervised_tasks(tuple(fields)):
        raise UserError(f"FIELDS={option}: there is no task of such records. {_EXPECTED}")
    if _are_languages(tuple(fields)):
        from babel import Locale, UnknownLocaleError  # as t5's preprocessor of translations names languages

        for code in fields:
            try:
                Locale(code)
            except UnknownLocaleError:
                raise UserError(f"FIELDS={option}: {code} is no language (ISO 639-1). {_EXPECTED}") from None
    return fields


def question_of(fields: Sequence[str]) -> str:
    """The field that decides a record's split, so that no question of the training split is asked again in test."""
    return next((field for field in fields if field in (LABELLED[0], PAIRS[0])), fields[0])


def supervised_tasks(fields: Sequence[str]) -> dict[str, Supervised]:
    """The tasks of records with these fields, by the endings of their names; none for an export of text."""
    if set(fields) == set(LABELLED):
        return {CLASSIFY: Supervised(CLASSIFY, ("accuracy", "macro_f1"), *LABELLED)}
    if set(fields) == set(PAIRS):
        return {TEXT_TO_TEXT: Supervised(TEXT_TO_TEXT, ("exact_match", "token_f1", "edit_similarity"), *PAIRS)}
    pairs = itertools.permutations(fields, 2) if _are_languages(fields) else ()
    return {f"{TRANSLATE}_{one}_{other}": Supervised(TRANSLATE, ("bleu", "chrf"), one, other) for one, other in pairs}


def _are_languages(fields: Sequence[str]) -> bool:
    return len(fields) > 1 and all(_LANGUAGE.fullmatch(field) for field in fields)
