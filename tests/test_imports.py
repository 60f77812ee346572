"""Who may import whom, read from the source, and what a fresh process loads."""

import ast
import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import t5xpg
from tests.workplace import run_python

PACKAGE = Path(t5xpg.__file__).parent

# One way: a subpackage imports those of lower layers, and its own modules without a circle. Subpackages of one layer
# do not import each other.
LAYERS: list[set[str]] = [
    {"base"},
    {"commands", "data", "models"},
    {"help_page", "optim", "tasks"},
    {"distributed"},
    {"run"},
    {"experiment"},
    {"evaluate"},
    {"train", "exchange"},
    {"check"},
    {"study"},
    {"site"},
    {"api", "arguments"},
    {"handlers"},
    {"cli", "lm_eval"},
    {"__main__"},
]
LAYER_OF = {subpackage: layer for layer, subpackages in enumerate(LAYERS) for subpackage in subpackages}
# What the layers alone do not say: these import nothing but the lowest layer.
ONLY_BASE = {"data", "models"}

TENSORFLOW = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "t5", "tfds"}
# Modules that import TensorFlow with them, or that reach it through others. All other modules do without, at module
# level and inside their functions.
WITH_TENSORFLOW = {
    *("t5xpg.tasks", "t5xpg.exchange.t5x.engine_tasks", "t5xpg.data.preprocessors"),
    "t5xpg.data.vocab.seqio_vocabularies",
    *(f"t5xpg.data.cache.{name}" for name in ("beam", "byte_examples", "local", "worker")),
    *(f"t5xpg.data.stream.{name}" for name in ("evaluator", "pipeline", "source_files", "worker")),
    *(f"t5xpg.data.tasks.{name}" for name in ("feature_converters", "labelled", "providers", "registered", "steps")),
    *(f"t5xpg.data.tasks.{name}" for name in ("shared_cache", "sources", "table")),
}
# Inside a function: what loads the libraries; what a cache is of; texts among the numbers of a metric, which the
# evaluator asks for; the reader of TensorFlow's checkpoints, which only `make import` calls; steps of objectives.
LATE_TENSORFLOW = {
    f"t5xpg.data.{name}" for name in ("late_imports", "cache.definition", "metrics", "tensorflow_checkpoint")
}
# They import TensorFlow (the first three), are of the goldens only, or belong to another framework.
FORBIDDEN = ("clu", "flax.training", "tensorboard", "keras", "torch", "transformers")
# A program for another environment: transformers' outputs for an export.
ELSEWHERE = "t5xpg.exchange.huggingface.transformers_outputs"
# Needs an optional package, which may bring others along.
OPTIONAL = "t5xpg.lm_eval"
WITHOUT_JAX = ("base", "data", "tasks")
RUN_WITH_JAX = {f"t5xpg.run.checkpoint.{name}" for name in ("checkpointer", "initial_checkpoint", "checkpoint_items")}


@dataclass(frozen=True)
class Import:
    name: str  # the module, or a name in it
    line: int
    at_module_level: bool


# {"t5xpg.data.stream.client": its file, …}; a package by its own name
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def imports(tree: ast.AST, at_module_level: bool = True) -> Iterator[Import]:
    """Every import but those for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_module_level)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name"
            assert node.module is not None
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", node.lineno, at_module_level)
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        else:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, at_module_level and not inside)


@functools.cache
def imports_of(module: str) -> list[Import]:
    return list(imports(ast.parse(MODULES[module].read_text(encoding="utf-8"), str(MODULES[module]))))


def subpackage_of(module: str) -> str:
    return module.removeprefix("t5xpg.").split(".")[0]


def imported_module(name: str) -> str:
    """The module of t5xpg behind an imported name: itself, or the one that holds it."""
    if name in MODULES:
        return name
    parent = name.rpartition(".")[0]
    # a module that is not there fails when it is imported; here only its place counts
    return parent if parent in MODULES and parent != "t5xpg" else name


def internal(module: str) -> Iterator[tuple[Import, str]]:
    for one in imports_of(module):
        if one.name.split(".")[0] == "t5xpg":
            target = imported_module(one.name)
            if target not in ("t5xpg", module):
                yield one, target


def matches(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def test_imports_go_one_way() -> None:
    subpackages = {subpackage_of(name) for name in MODULES if name != "t5xpg"}
    assert subpackages == set(LAYER_OF), f"place in LAYERS: {sorted(subpackages ^ set(LAYER_OF))}"
    wrong = []
    for module in MODULES.keys() - {"t5xpg"}:  # which imports `api` when it is asked for it
        subpackage = subpackage_of(module)
        for one, target in internal(module):
            other = subpackage_of(target)
            upwards = other != subpackage and LAYER_OF[other] >= LAYER_OF[subpackage]
            if upwards or (subpackage in ONLY_BASE and other not in (subpackage, "base")):
                wrong.append(f"{module}, line {one.line}, imports {target}")
        for one in imports_of(module):
            if matches(one.name, "experiments"):
                wrong.append(f"{module}, line {one.line}, imports an experiment")
    assert not wrong, "\n".join(wrong)


def test_there_are_no_circles() -> None:
    edges = {
        module: {target for one, target in internal(module) if one.at_module_level and target in MODULES}
        for module in MODULES
    }
    TopologicalSorter(edges).prepare()  # raises CycleError with the modules of a circle


def test_libraries_stay_where_they_are() -> None:
    """gin in the modules that read gin files; JAX out of data and records; some libraries nowhere."""
    wrong = []
    for module in MODULES:
        forbidden = [] if module == ELSEWHERE else [*FORBIDDEN]
        if not matches(module, "t5xpg.experiment") or not module.rpartition(".")[2].startswith(("gin_", "config")):
            forbidden.append("gin")
        if subpackage_of(module) in WITHOUT_JAX or (subpackage_of(module) == "run" and module not in RUN_WITH_JAX):
            forbidden += ["jax", "flax", "optax", "orbax"]
        for one in imports_of(module):
            if any(matches(one.name, name) for name in forbidden):
                wrong.append(f"{module}, line {one.line}, imports {one.name}")
    assert not wrong, "\n".join(wrong)


def test_tensorflow_stays_where_it_is() -> None:
    """No import of it, nor at module level of a module that imports it; inside functions of a few only."""
    wrong = []
    for module in sorted(set(MODULES) - WITH_TENSORFLOW):
        for one in imports_of(module):
            late = (module in LATE_TENSORFLOW or matches(module, "t5xpg.data.objectives")) and not one.at_module_level
            if one.name.split(".")[0] in TENSORFLOW and not late:
                wrong.append(f"{module}, line {one.line}, imports {one.name}")
        for one, target in internal(module):
            if one.at_module_level and target in WITH_TENSORFLOW:
                wrong.append(f"{module}, line {one.line}, imports {target}")
    assert not wrong, "\n".join(wrong)


LOADED = """
import importlib, json, sys
for names, unwanted in json.loads(sys.argv[1]):
    for name in names:
        importlib.import_module(name)
        if found := sorted({*unwanted} & set(sys.modules)):
            sys.exit(f"{name} loads {found}")
"""
TRAINS = sorted(set(MODULES) - WITH_TENSORFLOW - {"t5xpg.__main__", OPTIONAL})
NO_JAX = {name for name in MODULES if subpackage_of(name) in (*WITHOUT_JAX, "run")} - WITH_TENSORFLOW - RUN_WITH_JAX


@pytest.mark.process
def test_what_a_fresh_process_loads() -> None:
    """Modules are imported one after another, those of the fewest libraries first; the first is named with which
    something unwanted comes."""
    groups = [
        # help and mistakes need no library
        (["t5xpg.cli"], ("numpy", "jax", "gin", "tensorflow", "seqio", "tensorboardX", "google.protobuf")),
        (["t5xpg.experiment.recipe"], ("jax", "flax", "optax", "orbax", "tensorflow")),
        (sorted(NO_JAX), (*TENSORFLOW, "jax", "flax", "optax", "orbax")),
        (TRAINS, (*TENSORFLOW, "keras", "torch", "clu", "flax.training.checkpoints", "apache_beam", "matplotlib")),
    ]
    assert NO_JAX
    assert TRAINS
    run_python(LOADED, json.dumps(groups))
