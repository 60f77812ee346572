"""What a sweep trains: sweep.toml in an experiment's folder, beside the gin file that all of its runs share.

[search]                          # every candidate of every recipe, once
steps = 500
seed = 0

[final]                           # the best candidate of each recipe
steps = 2000
seeds = [0, 1, 2]
reference = "adafactor"           # the recipe whose last loss the others are to reach

[short]                           # optional: one recipe with a shorter schedule of its own
recipe = "muon"
steps = 800
seeds = [0, 1, 2]

[judged]                          # optional: what the long runs are measured on, besides their own validation
tasks = ["pydocs_span_corruption", "pydocs_prefix_lm"]

[recipes.muon]
title = "Muon"
gin_file = "gin/optimizers/muon.gin"                         # optional: of recipes that differ in bindings alone
candidates = ["LEARNING_RATE=0.01", "LEARNING_RATE=0.02"]    # bindings, separated by spaces
"""

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator

from t5xpg.base.errors import nearest
from t5xpg.study.plan import AtLeastOne, GinFile, Mistake, Name, Plan, Seed, Steps, Table, Text


class Search(Table):
    """The short runs that choose a candidate of each recipe."""

    steps: Steps
    seed: Seed


class Final(Table):
    """The long runs of every recipe."""

    steps: Steps
    seeds: Annotated[list[Seed], AtLeastOne]
    reference: str


class Short(Table):
    """Runs of one recipe with another length."""

    recipe: str
    steps: Steps
    seeds: Annotated[list[Seed], AtLeastOne]


def _each_once(names: list[str]) -> list[str]:
    if len(set(names)) != len(names):
        raise ValueError(f"each name is needed once, and it is {names!r}.")
    return names


class Judged(Table):
    """The tasks that the long runs are measured on."""

    tasks: Annotated[list[Text], AtLeastOne, AfterValidator(_each_once)]


class Recipe(Table):
    """What runs differ in: an optimiser with its settings, a task.

    gin_file: laid over the experiment's. candidates: bindings that are tried on top of it, such as
    "LEARNING_RATE=0.02", separated by single spaces.
    """

    title: str
    gin_file: GinFile | None = None
    candidates: Annotated[list[Annotated[str, AfterValidator(lambda text: " ".join(text.split()))]], AtLeastOne]


class SweepPlan(Plan):
    """What sweep.toml holds."""

    search: Search
    final: Final
    short: Short | None = None
    judged: Judged | None = None
    recipes: Annotated[dict[Name, Recipe], AtLeastOne]

    def mistakes(self) -> Iterator[Mistake]:
        named = {("final", "reference"): self.final.reference}
        if self.short is not None:
            named["short", "recipe"] = self.short.recipe
        for (table, key), name in named.items():
            if name not in self.recipes:
                text = f"[{table}] {key} = {name!r} is no recipe.{nearest(name, self.recipes)}"
                yield Mistake((table, key), text)
