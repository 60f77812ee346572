"""The table of tasks by name, `<dataset>_<objective>[_<vocabulary>]`, without TensorFlow; `table` registers them.

Records have supervised tasks instead, `<dataset>_translate_en_de[_<vocabulary>]` (see `text.labelled`), and so have
some data sets of TensorFlow Datasets, `squad[_<vocabulary>]`. A vocabulary that was made for a dataset (`make vocab`)
is called `<dataset>_<name>`: every dataset can be read with it, as `mine_span_corruption_norwegian_unigram_32000`.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from t5xpg.base.errors import UserError, nearest
from t5xpg.base.paths import data_directory
from t5xpg.data.objectives import KINDS, NextLine, Objective, Passkey, PrefixLM, SpanCorruption
from t5xpg.data.text.datasets import built_in
from t5xpg.data.text.labelled import TEXT, TFDS_TASKS, Supervised, supervised_tasks
from t5xpg.data.text.manifest import find_manifests, read_manifest
from t5xpg.data.vocab.record import NAME, find_vocabularies, read_record
from t5xpg.data.vocab.sentinels import NAMED_TOKENS, NLG, NLU, S2S
from t5xpg.data.vocab.vocabulary import BYT5_GOOGLE, OWN, Vocabulary


@dataclass(frozen=True)
class Part:
    """A task of the table: its name, what it makes of the text, and the token that it puts in front of the inputs."""

    name: str
    objective: Objective
    mode: str | None = None
    rate: float = 1.0  # in its mixture

    @property
    def reserved(self) -> int:
        """Tokens of the inputs that are not of the text."""
        return int(self.mode is not None)


# The denoisers of UL2 (Tay et al. 2022), in a mixture of equal rates, of which S is one of seven.
UL2: tuple[Part, ...] = (
    Part("r1", SpanCorruption(0.15, 3.0), NLU),
    Part("r2", SpanCorruption(0.15, 8.0), NLU),
    Part("s", PrefixLM(0.25), S2S),
    Part("x1", SpanCorruption(0.5, 3.0), NLG),
    Part("x2", SpanCorruption(0.5, 8.0), NLG),
    Part("x3", SpanCorruption(0.15, 64.0), NLG),
    Part("x4", SpanCorruption(0.5, 64.0), NLG),
)


SPAN_CORRUPTION, UL2_MIXTURE = "span_corruption", "ul2"
# The objectives that take sentinels or nothing besides the tokens, and those that take named tokens.
NEXT_LINE, PASSKEY = "next_line", "passkey"  # of vocabularies with a token for the end of a line, and of bytes
PLAIN = (SPAN_CORRUPTION, "iid_denoising", "prefix_lm", "lm", NEXT_LINE, PASSKEY)
MARKED = ("mlm", *(f"{UL2_MIXTURE}_{denoiser.name}" for denoiser in UL2), UL2_MIXTURE)
OBJECTIVES = (*PLAIN, *MARKED)


@dataclass(frozen=True)
class NamedVocabulary:
    """A vocabulary of the table: its suffix in names, numbers that suit it, and objectives that it has no tasks of."""

    suffix: str
    vocabulary: Vocabulary
    span_corruption: SpanCorruption
    leaves_out: tuple[str, ...] = ()

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives that it has tasks of."""
        possible = OBJECTIVES if set(NAMED_TOKENS) <= set(self.vocabulary.named_tokens) else PLAIN
        left_out = self.leaves_out if self.vocabulary.kind == BYTES.kind else (*self.leaves_out, PASSKEY)
        return tuple(one for one in possible if one not in left_out)

    @property
    def has_supervised(self) -> bool:
        """Whether it has supervised tasks, which need no more ids than span corruption."""
        return SPAN_CORRUPTION in self.objectives


# Bytes, with the mean span of ByT5 (Xue et al. 2022).
BYTES = Vocabulary("bytes", extra_ids=125)
GOOGLE_BYTES = Vocabulary("bytes", extra_ids=0, sentinels=BYT5_GOOGLE)
# Bytes with ids for every objective, 640 in all, a multiple of 128: 0 padding, 1 end, 2 unknown, 3 to 258 the bytes,
# 259 [NLU], 260 [NLG], 261 [S2S], 262 [CLS], 263 [MASK], and 264 to 639 the sentinels, <extra_id_375> to <extra_id_0>.
# That many suffice for UL2's shortest spans in inputs of 1,500 tokens.
NAMED_BYTES = Vocabulary("bytes", extra_ids=381, named_tokens=NAMED_TOKENS)
BYTE_SPANS = SpanCorruption(0.15, 20.0)

VOCABULARIES: tuple[NamedVocabulary, ...] = (
    # the tasks that are meant where no vocabulary is named: each objective with the fewest ids that it needs
    NamedVocabulary("", BYTES, BYTE_SPANS),
    NamedVocabulary("", NAMED_BYTES, BYTE_SPANS, leaves_out=PLAIN),
    # the others with the ids of those, for models that are to be compared, or go from one to another
    NamedVocabulary("bytes640", NAMED_BYTES, BYTE_SPANS, leaves_out=MARKED),
    # for Google's ByT5 checkpoints: sentinels from 258 downwards, too few of them for spans of single tokens
    NamedVocabulary("byt5", GOOGLE_BYTES, BYTE_SPANS, leaves_out=("iid_denoising",)),
)

# The objective's numbers for the tokens of a model, whichever: those of T5.
TOKENS_SPAN_CORRUPTION = SpanCorruption(0.15, 3.0)
# What is said of a task without a cache; `make train` makes one.
NOT_CACHED = "is not cached"


@dataclass(frozen=True)
class KnownTask:
    """What the table has under one name: a task, or a mixture of several.

    parts: what it makes of text; none for a supervised task. dataset: the export that it reads; None for TensorFlow
    Datasets. cached_as: the task whose cache holds its tokens, shared by all objectives, and vocabularies of the same
    tokens.
    """

    name: str
    vocabulary: Vocabulary
    parts: tuple[Part, ...]
    cached_as: str
    supervised: Supervised | None = None
    dataset: str | None = None

    @property
    def objective(self) -> Objective | None:
        """The objective of the only task; None for a mixture, and for a supervised task."""
        return self.parts[0].objective if len(self.parts) == 1 else None

    @property
    def features(self) -> tuple[str, ...]:
        """The features of its examples."""
        return Objective.features if self.objective is None else self.objective.features

    @property
    def has_metrics(self) -> bool:
        """Whether something is measured of what a model says, besides its loss."""
        return self.supervised is not None or isinstance(self.objective, NextLine | Passkey)

    @property
    def prompt(self) -> str:
        """What the task puts in front of its inputs; "" for nothing, and for a mixture."""
        mode = self.parts[0].mode if len(self.parts) == 1 else None
        return self.supervised.prompt(self.dataset) if self.supervised else mode or ""

    def copied(self, inputs: str) -> str:
        """The answer that repeats the inputs: without the prompt; where the next line is asked for, the last one."""
        if isinstance(self.objective, NextLine):
            return inputs.removesuffix("\n").rpartition("\n")[2]
        return inputs.removeprefix(self.prompt)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The task, or those of the mixture."""
        return tuple(part.name for part in self.parts) or (self.name,)


def rows(
    dataset: str, entries: Sequence[NamedVocabulary] = VOCABULARIES, fields: Sequence[str] = TEXT
) -> list[KnownTask]:
    """All that the table has of a dataset; the tasks of a mixture before it. fields: see `manifest.Manifest`."""
    found: list[KnownTask] = []
    if tuple(fields) != TEXT:
        for ending, supervised in supervised_tasks(fields).items():
            found += _supervised(f"{dataset}_{ending}", supervised, entries, dataset)
        return found
    for entry in entries:
        cached_as = task_name(dataset, SPAN_CORRUPTION, _suffix_of_tokens(entry, entries))
        for objective in entry.objectives:
            name = task_name(dataset, objective, entry.suffix)
            found.append(
                KnownTask(name, entry.vocabulary, _parts(dataset, objective, entry), cached_as, dataset=dataset)
            )
    return found


def tfds_rows(entries: Sequence[NamedVocabulary] = VOCABULARIES) -> list[KnownTask]:
    """All that the table has of TensorFlow Datasets."""
    return [row for name, task in TFDS_TASKS.items() for row in _supervised(name, task.supervised, entries)]


def known_tasks(
    data_dir: Path, fields: Mapping[str, Sequence[str]] | None = None, planned: Sequence[NamedVocabulary] = ()
) -> dict[str, KnownTask]:
    """All tasks of the table by name: those of exports and vocabularies below `data_dir`, of datasets that are known by
    name, and of TensorFlow Datasets. fields, planned: exports and vocabularies that are to be made."""
    entries = (*vocabularies(data_dir), *planned)
    known = {name: dataset.fields for name, dataset in built_in().items()} | dict(fields or {})
    for name, folder in find_manifests(data_dir).items():
        if NAME.fullmatch(name):  # others were not made by an export
            known.setdefault(name, TEXT)
            with contextlib.suppress(UserError):  # reported where the export is read
                known[name] = read_manifest(folder).fields
    # `a_prefix_lm` is of the dataset `a`, not `a_prefix`
    listed = [row for dataset in sorted(known, key=len) for row in rows(dataset, entries, known[dataset])]
    found: dict[str, KnownTask] = {}
    for row in [*listed, *tfds_rows(entries)]:
        found.setdefault(row.name, row)
    return found


def _supervised(
    name: str, supervised: Supervised, entries: Sequence[NamedVocabulary], dataset: str | None = None
) -> list[KnownTask]:
    """A supervised task with every vocabulary."""
    return [
        KnownTask(
            name=task_name(name, "", entry.suffix),
            vocabulary=entry.vocabulary,
            parts=(),
            cached_as=task_name(name, "", _suffix_of_tokens(entry, entries)),
            supervised=supervised,
            dataset=dataset,
        )
        for entry in entries
        if entry.has_supervised
    ]


def _parts(dataset: str, objective: str, entry: NamedVocabulary) -> tuple[Part, ...]:
    def name(ending: str) -> str:
        return task_name(dataset, ending, entry.suffix)

    if objective.startswith(UL2_MIXTURE):
        ends = {f"{UL2_MIXTURE}_{one.name}": one for one in UL2}
        return tuple(replace(one, name=name(end)) for end, one in ends.items() if objective in (end, UL2_MIXTURE))
    settings = entry.span_corruption if objective == SPAN_CORRUPTION else KINDS[objective]()
    return (Part(name(objective), settings),)


def _suffix_of_tokens(entry: NamedVocabulary, entries: Sequence[NamedVocabulary]) -> str:
    """The suffix of the first vocabulary with the same tokens of text: extra ids are none."""

    def tokens(one: NamedVocabulary) -> tuple[str, str | None]:
        return one.vocabulary.kind, one.vocabulary.model_file

    return next(one.suffix for one in entries if tokens(one) == tokens(entry) and one.has_supervised)


def task_name(dataset: str, objective: str, vocabulary_suffix: str = "") -> str:
    """The task of the table that reads `dataset`."""
    return "_".join(filter(None, (dataset, objective, vocabulary_suffix)))


def vocabularies(data_dir: Path) -> tuple[NamedVocabulary, ...]:
    """The vocabularies of the table: the fixed ones, and readable ones of `make vocab` below `data_dir`."""
    found: list[NamedVocabulary] = []
    for name, folder in find_vocabularies(data_dir).items():
        with contextlib.suppress(UserError):
            record = read_record(folder)
            found += entries_of(name, record.vocabulary_in(folder), record.keeps_lines)
    return (*VOCABULARIES, *found)


def entries_of(name: str, vocabulary: Vocabulary, keeps_lines: bool) -> list[NamedVocabulary]:
    """What a vocabulary called `name` adds to the table: itself, and with ids for named tokens behind its own.
    keeps_lines: the ends of lines are tokens of their own."""
    found = [NamedVocabulary(name, vocabulary, TOKENS_SPAN_CORRUPTION, leaves_out=() if keeps_lines else (NEXT_LINE,))]
    if vocabulary.sentinels != OWN:
        extra_ids = vocabulary.extra_ids + len(NAMED_TOKENS)
        named = replace(vocabulary, extra_ids=extra_ids, named_tokens=NAMED_TOKENS)
        found.append(NamedVocabulary(name, named, TOKENS_SPAN_CORRUPTION, leaves_out=PLAIN))
    return found


def vocabulary_size(task: str) -> int:
    """The number of ids of a task's vocabulary. Raises UserError for a task that is not in the table."""
    known = known_tasks(data_directory())
    if task not in known:
        raise UserError(f"{unknown_task(task, known)} The size of its vocabulary is not known: set VOCAB_SIZE.")
    return known[task].vocabulary.size


def unknown_task(task: str, known: Iterable[str]) -> str:
    """The message about a task that is not known: the nearest names, and commands that add tasks."""
    return (
        f"There is no task or mixture named {task}.{nearest(task, known)} A text makes tasks (make data DATASET=…), "
        "and so does a vocabulary (make vocab DATASET=… SIZE=…)."
    )


def cache_command(task: str, module_import: Sequence[str] = (), force: bool = False) -> str:
    """What to type to cache a task that is registered by the modules of `module_import`."""
    modules = f" MODULE_IMPORT={','.join(module_import)}" if module_import else ""
    return f"make cache TASK={task}{modules}{' FORCE=1' if force else ''}"
