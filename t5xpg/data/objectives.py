"""The pretraining objectives and their settings in an experiment: a class has the arguments of the objective's step.
`docs/objectives.md` describes them; steps are in `tasks.steps`, lengths in `tasks.lengths`. Standard library only."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from t5xpg.base.errors import UserError


@dataclass(frozen=True)
class SpanCorruption:
    """The span corruption objective (Raffel et al. 2020, section 3.1.4), as `t5.data.preprocessors` takes it.

    whole_words: spans begin and end where words do, as SpanBERT's (Joshi et al. 2020, section 3.1); shares and lengths
    are those of words then.
    """

    noise_density: float = 0.15  # share of the tokens that is masked
    mean_noise_span_length: float = 3.0  # tokens in a masked span: 3 for T5, 20 for ByT5
    whole_words: bool = False

    def __post_init__(self) -> None:
        _check_density(self)
        if not _is_number(self.mean_noise_span_length) or not 1.0 <= self.mean_noise_span_length < math.inf:
            raise UserError(
                f"SpanCorruption.mean_noise_span_length is {self.mean_noise_span_length!r}: it must be a number of at "
                "least 1."
            )
        limit = self.mean_noise_span_length / (self.mean_noise_span_length + 1)
        if self.noise_density > limit or (self.whole_words and self.noise_density == limit):
            raise UserError(
                f"SpanCorruption.noise_density is {self.noise_density!r}: with a mean_noise_span_length of "
                f"{self.mean_noise_span_length!r} it must be below {limit:.3g}, so that there is text between spans."
            )


@dataclass(frozen=True)
class IidDenoising:
    """Each token is masked by itself, and runs of them become sentinels (Raffel et al. 2020, section 3.1.4)."""

    noise_density: float = 0.15  # probability that a token is masked

    def __post_init__(self) -> None:
        _check_density(self)


@dataclass(frozen=True)
class PrefixLM:
    """The rest of a text is predicted from its beginning (Raffel et al. 2020, section 3.2.3), which has at least a
    share of 1 - 2 * `noise_density` of the tokens; all its lengths are equally likely."""

    noise_density: float = 0.5  # mean share of the tokens that is predicted: 0.25 in UL2's S-denoiser

    def __post_init__(self) -> None:
        _check_density(self)
        if self.noise_density > 0.5:
            raise UserError(
                f"PrefixLM.noise_density is {self.noise_density!r}: the mean share that is predicted is at most 0.5, "
                "where the beginning may have any length."
            )


@dataclass(frozen=True)
class LanguageModel:
    """Each token of a text is predicted from those before it; there are no inputs."""


@dataclass(frozen=True)
class MaskedLM:
    """BERT's (Devlin et al. 2019, section 3.1): tokens are chosen, and predicted in their place. `mask_share` of them
    are replaced by the mask, `random_share` by random tokens of text; the rest stays."""

    noise_density: float = 0.15  # probability that a token is chosen
    mask_share: float = 0.8
    random_share: float = 0.1

    def __post_init__(self) -> None:
        _check_density(self)
        for name in ("mask_share", "random_share"):
            if not _is_number(value := getattr(self, name)) or not 0.0 <= value <= 1.0:
                raise UserError(f"MaskedLM.{name} is {value!r}: a share is from 0 to 1.")
        if self.mask_share + self.random_share > 1.0 + 1e-9:
            raise UserError(
                f"MaskedLM.mask_share and random_share are {self.mask_share!r} and {self.random_share!r}: together "
                "they are at most 1."
            )


@dataclass(frozen=True)
class NextLine:
    """A line of a document is predicted from those before it. For vocabularies with a token that ends lines."""

    lines: int = 4  # the most lines of a document that are predicted

    def __post_init__(self) -> None:
        if not isinstance(self.lines, int) or isinstance(self.lines, bool) or self.lines < 1:
            raise UserError(f"NextLine.lines is {self.lines!r}: it counts lines of a document, so it is 1 or more.")


@dataclass(frozen=True)
class Passkey:
    """A number is retrieved from a long text that has it in a line of its own (Mohtashami and Jaggi 2023, arXiv
    2305.16300). For vocabularies of bytes."""

    digits: int = 5  # of the number

    BEFORE: ClassVar[str] = "\nThe pass key is "
    BEHIND: ClassVar[str] = ". Remember it.\n"

    def __post_init__(self) -> None:
        if not isinstance(self.digits, int) or isinstance(self.digits, bool) or self.digits < 1:
            raise UserError(f"Passkey.digits is {self.digits!r}: a number has 1 digit or more.")

    @property
    def line_length(self) -> int:
        """Bytes of the line, with those of the number."""
        return len(self.BEFORE) + self.digits + len(self.BEHIND)


Objective: TypeAlias = SpanCorruption | IidDenoising | PrefixLM | LanguageModel | MaskedLM | NextLine | Passkey
KINDS: Mapping[str, type[Objective]] = {
    "span_corruption": SpanCorruption,
    "iid_denoising": IidDenoising,
    "prefix_lm": PrefixLM,
    "lm": LanguageModel,
    "mlm": MaskedLM,
    "next_line": NextLine,
    "passkey": Passkey,
}


# The feature that says of each position of a masked language model whether its token was chosen.
CHOSEN = "chosen"


def features_of(objective: Objective | None) -> tuple[str, ...]:
    """The features of a task with an objective, or of a supervised one: None."""
    if isinstance(objective, LanguageModel):
        return ("targets",)
    return ("inputs", "targets", CHOSEN) if isinstance(objective, MaskedLM) else ("inputs", "targets")


def name_of(objective: Objective) -> str:
    """The objective's name in names of tasks."""
    # not by its type: gin makes objects of a subclass
    return next(name for name, kind in KINDS.items() if isinstance(objective, kind))


def to_json(objective: Objective | None) -> dict[str, Any] | None:
    """The JSON for `from_json`."""
    return None if objective is None else {"kind": name_of(objective), **dataclasses.asdict(objective)}


def from_json(value: Mapping[str, Any] | None) -> Objective | None:
    """The inverse of `to_json`."""
    if value is None:
        return None
    numbers = dict(value)
    return KINDS[numbers.pop("kind")](**numbers)


def _check_density(objective: Any) -> None:
    if not _is_number(objective.noise_density) or not 0.0 < objective.noise_density < 1.0:
        name = type(objective).__name__
        raise UserError(f"{name}.noise_density is {objective.noise_density!r}: it must lie between 0 and 1.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
