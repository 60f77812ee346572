"""The plan of a sweep: sweep.toml in an experiment's folder, beside the gin file that all of its runs share.

metric = "validation/accuracy"    # optional: what decides, as BEST_METRIC; else "validation/nats_per_byte"
mode = "max"                      # of the metric of a task: whether "min" or "max" is better

[search]                          # optional: every candidate of a recipe with several, once
steps = 500                       # optional: else those of [final]
seed = 0                          # optional

[final]                           # the best candidate of each recipe
steps = 2000
seeds = [0, 1, 2]                 # optional: else [0]
reference = "adafactor"           # optional: the recipe whose last value the others are to reach; else the first

[short]                           # optional: one recipe with a shorter schedule of its own
recipe = "muon"
steps = 800
seeds = [0, 1, 2]

[judged]                          # optional: what the long runs are measured on, besides their own validation
tasks = ["pydocs_span_corruption", "pydocs_prefix_lm"]

[fit]                             # optional: the loss of a size from those of others, by a scaling law
recipes = ["width_64", "width_96", "width_128", "width_192"]
held_out = "width_256"

[recipes.muon]
title = "Muon"                                               # optional: else the recipe's name
gin_file = "gin/optimizers/muon.gin"                         # optional: of recipes that differ in bindings alone
candidates = ["LEARNING_RATE=0.01", "LEARNING_RATE=0.02"]    # bindings, separated by spaces
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from t5xpg.base.errors import UserError, nearest
from t5xpg.run.best import BestMetric
from t5xpg.study.plan_file import AtLeastOne, GinFile, Mistake, Name, Plan, Seed, Steps, Table, Text, binding


def _bindings(text: str) -> str:
    return " ".join(map(binding, text.split()))


def _unique(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise ValueError(f"each is needed once, and it is {values!r}.")
    return values


class Search(Table):
    """The short runs that choose a candidate of each recipe. steps: None for those of the long runs."""

    steps: Steps | None = None
    seed: Seed = 0


class Final(Table):
    """The long runs of every recipe. reference: None for the first recipe."""

    steps: Steps
    seeds: Annotated[list[Seed], AfterValidator(_unique)] = Field([0], min_length=1)
    reference: str | None = None


class Short(Table):
    """Runs of one recipe with another length."""

    recipe: str
    steps: Steps
    seeds: Annotated[list[Seed], AfterValidator(_unique)] = Field([0], min_length=1)


class Judged(Table):
    """The tasks that the long runs are measured on."""

    tasks: Annotated[list[Text], AtLeastOne, AfterValidator(_unique)]


class Fit(Table):
    """A scaling law through the losses of recipes that differ in the size of the model, and one that it predicts."""

    recipes: Annotated[list[str], Field(min_length=3), AfterValidator(_unique)]
    held_out: str


class SweepRecipe(Table):
    """The part in which runs differ: an optimiser with its settings, a task.

    gin_file: laid over the experiment's. candidates: bindings that are tried on top of it, such as
    "LEARNING_RATE=0.02", separated by single spaces.
    """

    title: str | None = None
    gin_file: GinFile | None = None
    candidates: Annotated[list[Annotated[str, AfterValidator(_bindings)]], AtLeastOne, AfterValidator(_unique)]


class SweepPlan(Plan):
    """The contents of sweep.toml."""

    metric: str = "validation/nats_per_byte"
    mode: Literal["min", "max"] | None = None
    search: Search = Search()
    final: Final
    short: Short | None = None
    judged: Judged | None = None
    fit: Fit | None = None
    recipes: Annotated[dict[Name, SweepRecipe], AtLeastOne]

    @property
    def decides(self) -> BestMetric:
        """The metric that runs are compared by. Raises UserError for an unknown one."""
        return BestMetric(self.metric, self.mode)

    @property
    def reference(self) -> str:
        """The recipe that the others are compared with."""
        return self.final.reference or next(iter(self.recipes))

    def mistakes(self) -> Iterator[Mistake]:
        try:
            BestMetric(self.metric, self.mode)
        except UserError as error:
            yield Mistake(("metric",), str(error).replace("BEST_METRIC", "metric").replace("BEST_MODE", "mode"))
        names = [("final", "reference", self.reference)]
        if self.short is not None:
            names.append(("short", "recipe", self.short.recipe))
            if self.short.steps == self.final.steps:
                yield Mistake(("short", "steps"), f"[short] steps = {self.short.steps} is what [final] has, too.")
        if self.fit is not None:
            names += [("fit", "recipes", name) for name in self.fit.recipes] + [("fit", "held_out", self.fit.held_out)]
            if self.fit.held_out in self.fit.recipes:
                yield Mistake(("fit", "held_out"), f"[fit] held_out = {self.fit.held_out!r} is one of its recipes.")
        for table, key, name in names:
            if name not in self.recipes:
                text = f"[{table}] {key} = {name!r} is no recipe.{nearest(name, self.recipes)}"
                yield Mistake((table, key), text)
