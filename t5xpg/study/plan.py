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

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError, nearest

FILE_NAME = "sweep.toml"
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_SCHEMA: dict[str, dict[str, type]] = {
    "search": {"steps": int, "seed": int},
    "final": {"steps": int, "seeds": list, "reference": str},
    "short": {"recipe": str, "steps": int, "seeds": list},
    "judged": {"tasks": list},
}
_OPTIONAL = {"short", "judged", "gin_file"}
_RECIPE: dict[str, type] = {"title": str, "gin_file": str, "candidates": list}


@dataclass(frozen=True)
class Recipe:
    """What the runs of a sweep differ in: an optimiser with its settings, a task.

    gin_file: laid over the experiment's; None for nothing. candidates: bindings that are tried on top of it, such as
    "LEARNING_RATE=0.02".
    """

    name: str
    title: str
    gin_file: str | None
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One training run. stage: "search", "final" or "short"."""

    stage: str
    recipe: Recipe
    candidate: str
    steps: int
    seed: int

    @property
    def overrides(self) -> list[str]:
        """What is laid over the experiment's gin file, as `t5xpg train` takes it."""
        bindings = [*self.candidate.split(), f"TRAIN_STEPS={self.steps}", f"RANDOM_SEED={self.seed}"]
        files = [] if self.recipe.gin_file is None else [f"--gin_file={self.recipe.gin_file}"]
        return [*files, *(f"--gin.{binding}" for binding in bindings)]

    @property
    def folder(self) -> str:
        """Its folder in the sweep's: one name for one run, whatever else the plan holds."""
        settings = re.sub(r"[^A-Za-z0-9_.=+-]+", ",", self.candidate)
        return f"{self.recipe.name},{settings},steps={self.steps},seed={self.seed}"


@dataclass(frozen=True)
class Plan:
    """A whole sweep. The best candidates are known when the search is done, so its later runs are made from them."""

    recipes: tuple[Recipe, ...]
    search_steps: int
    search_seed: int
    final_steps: int
    final_seeds: tuple[int, ...]
    reference: str
    short_recipe: str | None
    short_steps: int
    short_seeds: tuple[int, ...]
    judged: tuple[str, ...] = ()

    def search(self) -> list[Run]:
        """Every candidate of every recipe; a recipe with one candidate has nothing to be searched for."""
        return [
            Run("search", recipe, candidate, self.search_steps, self.search_seed)
            for recipe in self.recipes
            if len(recipe.candidates) > 1
            for candidate in recipe.candidates
        ]

    def final(self, best: Mapping[str, str]) -> list[Run]:
        """The long runs, seed by seed. best: a candidate of each recipe that they are made with."""
        runs = [
            Run("final", recipe, best[recipe.name], self.final_steps, seed)
            for recipe in self.recipes
            for seed in self.final_seeds
        ]
        runs += [
            Run("short", recipe, best[recipe.name], self.short_steps, seed)
            for recipe in self.recipes
            if recipe.name == self.short_recipe
            for seed in self.short_seeds
        ]
        return sorted(runs, key=lambda run: run.seed)


def read(file: Path) -> Plan:
    """The plan in a sweep.toml. Raises UserError that names the file and every mistake in it."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{file.parent} is no sweep: it has no {FILE_NAME}. One experiment is trained with make train EXP=…"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}") from None
    mistakes = _mistakes(values)
    if mistakes:
        raise UserError("\n  ".join([f"{file} is no plan of a sweep:", *mistakes]))
    recipes = tuple(
        Recipe(
            name, recipe["title"], recipe.get("gin_file"), tuple(" ".join(one.split()) for one in recipe["candidates"])
        )
        for name, recipe in values["recipes"].items()
    )
    search, final, short = values["search"], values["final"], values.get("short", {})
    return Plan(
        recipes=recipes,
        search_steps=search["steps"],
        search_seed=search["seed"],
        final_steps=final["steps"],
        final_seeds=tuple(final["seeds"]),
        reference=final["reference"],
        short_recipe=short.get("recipe"),
        short_steps=short.get("steps", 0),
        short_seeds=tuple(short.get("seeds", ())),
        judged=tuple(values.get("judged", {}).get("tasks", ())),
    )


def _mistakes(values: Mapping[str, Any]) -> list[str]:
    known = [*_SCHEMA, "recipes"]
    found = [f"[{name}] is not known.{nearest(name, known)}" for name in values.keys() - set(known)]
    recipes = values.get("recipes")
    if not isinstance(recipes, dict) or not recipes:
        return [*found, "[recipes.NAME] is missing: at least one recipe is needed."]
    for name, recipe in recipes.items():
        if not _NAME.fullmatch(name):
            found.append(f"[recipes.{name}]: a name of small letters, digits and _ is needed.")
        found += _table(f"recipes.{name}", recipe, _RECIPE)
        candidates = recipe.get("candidates") if isinstance(recipe, dict) else None
        if isinstance(candidates, list) and not (candidates and all(isinstance(one, str) for one in candidates)):
            found.append(f'[recipes.{name}] candidates: a list of texts such as "LEARNING_RATE=0.02" is needed.')
    for name, schema in _SCHEMA.items():
        if name in values or name not in _OPTIONAL:
            found += _table(name, values.get(name), schema)
    for table, key in (("final", "reference"), ("short", "recipe")):
        named = values.get(table, {}).get(key) if isinstance(values.get(table), dict) else None
        if isinstance(named, str) and named not in recipes:
            found.append(f"[{table}] {key} = {named!r} is no recipe.{nearest(named, list(recipes))}")
    return found


def _table(name: str, value: Any, schema: Mapping[str, type]) -> list[str]:
    if not isinstance(value, dict):
        return [f"[{name}] is missing."]
    found = [f"[{name}] {key} is not known.{nearest(key, list(schema))}" for key in value.keys() - schema.keys()]
    for key, kind in schema.items():
        one = value.get(key)
        if one is None and key in _OPTIONAL:
            continue
        if type(one) is not kind:
            found.append(f"[{name}] {key}: {_EXPECTED[kind]} is needed, and it is {one!r}.")
        elif isinstance(one, int) and one < _LEAST[key]:
            found.append(f"[{name}] {key} = {one} is too small.")
        elif key == "seeds" and not _whole_numbers(one):
            found.append(f"[{name}] seeds: a list of whole numbers is needed, and it is {one!r}.")
        elif key == "tasks" and not _different_names(one):
            found.append(f"[{name}] tasks: a list of names of tasks, each once, is needed, and it is {one!r}.")
    return found


def _whole_numbers(values: Any) -> bool:
    return bool(values) and all(type(one) is int and one >= 0 for one in values)


def _different_names(values: Any) -> bool:
    return bool(values) and all(isinstance(one, str) and one for one in values) and len(set(values)) == len(values)


_EXPECTED = {int: "a whole number", str: "a text", list: "a list"}
_LEAST = {"steps": 1, "seed": 0}
