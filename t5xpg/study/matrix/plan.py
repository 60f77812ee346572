"""The plan of a matrix: matrix.toml in an experiment's folder, beside the gin file that all of its cells share.

dataset = "pydocs"

[architectures.decoder_lm]                # what an entry of an axis lays over the gin file; both may be left out
title = "decoder-only, LM"
gin_files = ["gin/architectures/decoder_only.gin"]
bindings = ["encoder_decoder.T5Config.num_decoder_layers=4"]

[objectives.lm]                           # the name of an objective of the table of tasks
title = "LM"

[vocabularies.bpe]
title = "BPE"
train = { model = "bpe", size = 2000 }    # the options of `make vocab`; none for bytes

[trained]                                 # architecture = its objectives, each with every vocabulary
decoder_lm = ["lm"]

[[left_out]]                              # every other pair, and why
architectures = ["decoder_lm"]
objectives = ["mlm"]
reason = "…"
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import Field, PlainValidator

from t5xpg.base.errors import UserError, nearest
from t5xpg.data.tasks.task_names import OBJECTIVES, task_name
from t5xpg.data.vocab.record import NAME
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.study.plan_file import AtLeastOne, Binding, GinFile, Mistake, Name, Plan, Table, Text

AXES = {"architecture": "architectures", "objective": "objectives", "vocabulary": "vocabularies"}


class Entry(Table):
    """An entry of an axis: gin files and bindings that are laid over those of the experiment."""

    title: str
    gin_files: list[GinFile] = Field(default_factory=list)
    bindings: list[Binding] = Field(default_factory=list)


class TrainedVocabulary(NamedTuple):
    """A vocabulary that is trained on the dataset, and its name among those of the dataset."""

    name: str
    settings: VocabularySettings


def _trained_vocabulary(options: Any) -> TrainedVocabulary:
    if not isinstance(options, dict):
        raise ValueError('a table such as { model = "bpe", size = 2000 } is needed.')
    known = [field.name for field in dataclasses.fields(VocabularySettings) if field.name != "sample"]
    for option in options:
        if option not in ("name", *known):
            raise ValueError(f"{option} is not known.{nearest(option, ('name', *known))}")
    try:
        settings = VocabularySettings(**{option: value for option, value in options.items() if option != "name"})
    except UserError as error:
        raise ValueError(str(error)) from None
    except TypeError:
        raise ValueError(f"a value is of another type than `make vocab` takes, in {options!r}.") from None
    name = options.get("name", settings.name)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError("a name of letters, digits and _ is needed.")
    return TrainedVocabulary(name, settings)


class VocabularyEntry(Entry):
    """A vocabulary. train: None for bytes."""

    train: Annotated[TrainedVocabulary, PlainValidator(_trained_vocabulary)] | None = None


class LeftOut(Table):
    """Pairs that are not trained, and why."""

    architectures: Annotated[list[str], AtLeastOne]
    objectives: Annotated[list[str], AtLeastOne]
    reason: Text


class MatrixPlan(Plan):
    """The contents of matrix.toml."""

    dataset: Text
    architectures: Annotated[dict[Name, Entry], AtLeastOne]
    objectives: Annotated[dict[Name, Entry], AtLeastOne]
    vocabularies: Annotated[dict[Name, VocabularyEntry], AtLeastOne]
    trained: Annotated[dict[str, Annotated[list[str], AtLeastOne]], AtLeastOne]
    left_out: list[LeftOut] = Field(default_factory=list)

    def mistakes(self) -> Iterator[Mistake]:
        for objective in self.objectives:
            if objective not in OBJECTIVES:
                text = f"there is no objective {objective}.{nearest(objective, OBJECTIVES)}"
                yield Mistake(("objectives", objective), text)
        unknown = [
            Mistake(place, f"there is no {axis} {name}.{nearest(name, getattr(self, AXES[axis]))}", name)
            for axis, name, place in self._names()
            if name not in getattr(self, AXES[axis])
        ]
        yield from unknown
        for architecture in self.architectures if not unknown else ():
            for objective in self.objectives:
                reasons = self._reasons(architecture, objective)
                times = len(reasons) + (objective in self.trained.get(architecture, ()))
                if times != 1:
                    problem = "said more than once" if times else "neither trained nor left out with a reason"
                    yield Mistake(("trained", architecture), f"{architecture} with {objective} is {problem}.")

    def _names(self) -> Iterator[tuple[str, str, tuple[str | int, ...]]]:
        """(axis, name, place) of every entry that `trained` and `left_out` name."""
        for architecture, objectives in self.trained.items():
            yield "architecture", architecture, ("trained", architecture)
            yield from (("objective", name, ("trained", architecture)) for name in objectives)
        for index, one in enumerate(self.left_out):
            yield from (("architecture", name, ("left_out", index, "architectures")) for name in one.architectures)
            yield from (("objective", name, ("left_out", index, "objectives")) for name in one.objectives)

    def _reasons(self, architecture: str, objective: str) -> list[str]:
        """The reasons why a pair is not trained."""
        entries = (one for one in self.left_out if architecture in one.architectures and objective in one.objectives)
        return [one.reason for one in entries]

    def left_out_pairs(self) -> list[dict[str, str]]:
        """All pairs that are not trained, as the board has them."""
        return [
            {"architecture": architecture, "objective": objective, "reason": reason}
            for architecture in self.architectures
            for objective in self.objectives
            for reason in self._reasons(architecture, objective)
        ]

    def cells(self) -> list[dict[str, str]]:
        """All that is trained, vocabulary by vocabulary: the name of an entry of each axis, and the task."""
        return [
            {
                "architecture": architecture,
                "objective": objective,
                "vocabulary": vocabulary,
                "task": task_name(self.dataset, objective, self.task_ending(vocabulary)),
            }
            for vocabulary in self.vocabularies
            for architecture in self.architectures
            for objective in self.objectives
            if objective in self.trained.get(architecture, ())
        ]

    def task_ending(self, vocabulary: str) -> str:
        """The ending of the names of tasks with a vocabulary; "" for bytes."""
        train = self.vocabularies[vocabulary].train
        return "" if train is None else task_name(self.dataset, train.name)

    def vocabulary_command(self, vocabulary: str) -> str | None:
        """The command that makes a vocabulary; None for bytes."""
        train = self.vocabularies[vocabulary].train
        if train is None:
            return None
        words = ["make", "vocab", f"DATASET={self.dataset}", f"SIZE={train.settings.size}"]
        for name, default in vars(VocabularySettings()).items():
            value = getattr(train.settings, name)
            if name != "size" and value != default:
                words.append(f"{name.upper()}={1 if value is True else value}")
        return " ".join([*words, *([f"VOCAB={train.name}"] if train.name != train.settings.name else [])])
