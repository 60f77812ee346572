"""The language model."""

from dataclasses import dataclass

from t5xpg.data.objectives.objective import Lengths, Objective, ObjectiveLengths, Step
from t5xpg.data.vocab.vocabulary import Vocabulary


@dataclass(frozen=True)
class LanguageModel(Objective):
    """Each token of a text is predicted from those before it; there are no inputs."""

    name = "lm"
    features = ("targets",)
    needs_ids = False

    @classmethod
    def known_steps(cls) -> tuple[Step, ...]:
        from t5.data import preprocessors as t5

        return (t5.full_lm,)

    def steps(self, mode: str | None = None) -> list[Step]:
        """t5's step, which puts ends between documents: an example begins and stops anywhere."""
        return list(self.known_steps())

    def lengths(self, lengths: Lengths, vocabulary: Vocabulary | None = None, reserved: int = 0) -> ObjectiveLengths:
        return ObjectiveLengths(lengths["targets"], lengths["targets"])
