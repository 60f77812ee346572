"""Who may import whom, read from the source, and what a fresh process loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import t5xpg

PACKAGE = Path(t5xpg.__file__).parent

# One way: a part imports parts of earlier layers, or of its own without a circle. A part is a module of t5xpg, or a
# package of it as a whole; a new one is placed here.
LAYERS: list[tuple[str, set[str]]] = [
    (
        "ground",
        {
            "errors",
            "files",
            "paths",
            "seeds",
            "signals",
            "filling",
            "named_tokens",
            "metrics",
            "progress",
            "environment",
            "locks",
            "phases",
            "digests",
            "metric_values",
            "metrics_of_tasks",
            "markdown",
            "selection",
            "tables",
        },
    ),
    (
        "records",
        {
            "writers",
            "loggers",
            "rundir",
            "curves",
            "marked_blocks",
            "results",
            "results_block",
            "results_tasks",
            "report",
        },
    ),
    (
        "pieces",
        {
            "batch",
            "batch_rows",
            "token_models",
            "vocabularies",
            "vocabulary_files",
            "rng",
            "losses",
            "schedules",
            "hardware",
            "hosts",
        },
    ),
    ("models", {"models"}),
    ("optimizers and what uses a model", {"optimizers", "layerwise", "decoding", "interop"}),
    ("state", {"state"}),
    ("step", {"step", "partitioning"}),
    (
        "loop",
        {
            "loop",
            "checkpoints",
            "checkpoint_digests",
            "checkpoint_items",
            "checkpoint_layers",
            "checkpoint_retention",
            "initial_checkpoint",
        },
    ),
    ("data", {"data", "tasks"}),
    ("experiment", {"experiment", "config"}),
    (
        "parts put together",
        {
            "assembly",
            "preparation",
            "validation",
            "infer_eval",
            "predicting",
            "measurements",
            "observer",
            "memory",
            "batch_trail",
            "background",
            "baselines",
            "compile_cache",
            "first_update",
            "heap",
            "initial_state",
            "nonfinite",
            "profiling",
            "run_agreement",
            "run_header",
            "run_identity",
            "trained",
        },
    ),
    (
        "what a user asks for",
        {
            "training",
            "training_run",
            "inference",
            "evaluation",
            "checking",
            "demo",
            "recording",
            "reproduction",
            "proving",
            "estimate",
            "planning",
            "sweeps",
            "matrix",
            "vocabulary_commands",
            "exporting",
            "importing",
            "exchange_commands",
            "command_line",
            "engines",
        },
    ),
    ("root", {"cli", "__main__"}),
]
LAYER_OF = {part: index for index, (_, parts) in enumerate(LAYERS) for part in parts}

# What the layers alone do not say: these parts import nothing else of t5xpg.
ONLY: dict[str, set[str]] = {
    "batch": {"errors"},
    "losses": {"errors"},
    "models": {"errors"},
    "schedules": {"errors"},
    "optimizers": {"errors", "layerwise", "schedules", "models"},
    "layerwise": set(),
    "decoding": {"errors", "losses", "models", "rng", "seeds"},
    "metrics_of_tasks": set(),
    "interop": {"errors", "files", "models", "token_models", "vocabularies"},
    "state": {"errors", "rng", "models", "optimizers"},
    "step": {"batch", "errors", "losses", "rng", "models", "optimizers", "state"},
    "partitioning": {"errors", "models", "optimizers", "state"},
    "loop": {"metrics"},
    "checkpoints": {
        "checkpoint_digests", "checkpoint_items", "checkpoint_layers", "checkpoint_retention", "digests", "errors",
        "files", "hosts", "models", "partitioning", "phases", "state",
    },
    "data": {
        "batch", "digests", "environment", "errors", "files", "locks", "metric_values", "metrics_of_tasks",
        "named_tokens", "paths", "progress", "seeds", "signals", "tasks", "token_models", "vocabularies",
        "vocabulary_files",
    },
    "tasks": {"data", "errors", "paths"},
}  # fmt: skip

TENSORFLOW = {"tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "t5", "tfds"}
# Modules that import TensorFlow with them, or that reach it through others; all other modules do without.
MAY_LOAD_TENSORFLOW = {"t5xpg.tasks", "t5xpg.engines.t5x_tasks"}  # and these modules of t5xpg.data
TENSORFLOW_DATA = {
    "beam_dask", "cache_beam", "cache_sample", "cache_worker", "evaluator", "feature_converters", "function_sources",
    "hugging_face_source", "line_steps", "local_cache", "local_cache_lines", "masked_lm_converter", "objective_steps",
    "pipeline", "preprocessors", "providers", "seqio_vocabularies", "shared_cache", "source_files", "steady_paths",
    "supervised_tasks", "task_definition", "task_table", "tfds_sources", "worker",
}  # fmt: skip
# Inside a function: texts among the numbers of a metric, which the evaluator asks for; what loads the libraries.
LATE_TENSORFLOW = {"t5xpg.data.late_imports", "t5xpg.metrics_of_tasks.translation"}
# They import TensorFlow (the first three), are of the goldens only, or belong to another framework.
FORBIDDEN = ("clu", "flax.training", "tensorboard", "keras", "torch", "transformers")
# A program of the other environment, which asks transformers what it makes of an export.
ELSEWHERE = "t5xpg.exporting.transformers_answers"
WITHOUT_JAX = {
    "batch", "batch_rows", "batch_trail", "curves", "data", "digests", "environment", "errors", "files", "filling",
    "locks", "loggers", "loop",
    "markdown", "marked_blocks", "metric_values", "metrics", "metrics_of_tasks", "named_tokens", "paths", "phases",
    "progress", "report", "results", "results_block", "results_tasks", "rundir", "seeds", "selection", "signals",
    "tables", "tasks", "token_models", "vocabularies", "vocabulary_files", "writers",
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    name: str  # the module, or a name in it
    line: int
    at_module_level: bool


def modules() -> dict[str, ast.Module]:
    """{"t5xpg.data.client": its syntax tree, …}; a package by its own name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(("t5xpg", *parts)).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    return found


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


MODULES = modules()
IMPORTS = {name: list(imports(tree)) for name, tree in MODULES.items()}


def part_of(module: str) -> str:
    return module.removeprefix("t5xpg.").split(".")[0]


def imported_module(name: str) -> str:
    """The module of t5xpg behind an imported name: itself, or the one that holds it."""
    if name in MODULES:
        return name
    parent = name.rpartition(".")[0]
    # a module that is not there fails when it is imported; here only its place counts
    return parent if parent in MODULES and parent != "t5xpg" else name


def internal(module: str) -> Iterator[tuple[Import, str]]:
    for one in IMPORTS[module]:
        if one.name.split(".")[0] == "t5xpg":
            target = imported_module(one.name)
            if target not in ("t5xpg", module):
                yield one, target


def matches(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def test_every_part_has_its_place() -> None:
    parts = {part_of(name) for name in MODULES if name != "t5xpg"}
    assert parts <= set(LAYER_OF), f"place in LAYERS: {sorted(parts - set(LAYER_OF))}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_one_way(module: str) -> None:
    part = part_of(module)
    for one, target in internal(module):
        other = part_of(target)
        if other == part or other not in LAYER_OF or part not in LAYER_OF:
            continue
        where = f"{module}, line {one.line}, imports {target}"
        assert LAYER_OF[other] <= LAYER_OF[part], (
            f"{where}: {LAYERS[LAYER_OF[part]][0]!r} comes before {LAYERS[LAYER_OF[other]][0]!r}"
        )
        assert part not in ONLY or other in ONLY[part], f"{where}: {part} may import {sorted(ONLY[part])}"


def test_there_are_no_circles() -> None:
    edges = {
        module: {target for one, target in internal(module) if one.at_module_level and target in MODULES}
        for module in MODULES
    }
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in finished:
            for target in sorted(edges[module]):
                visit(target, (*path, module))
            finished.add(module)

    for module in edges:
        visit(module, ())


def test_nothing_imports_the_root_or_experiments() -> None:
    for module in MODULES:
        for one in IMPORTS[module]:
            where = f"{module}, line {one.line}"
            assert not matches(one.name, "experiments"), where
            assert not matches(one.name, "t5xpg.cli") or module == "t5xpg.__main__", where
            assert not matches(one.name, "t5xpg.__main__"), where


def test_only_config_knows_gin() -> None:
    for module in MODULES:
        if not matches(module, "t5xpg.config"):
            for one in IMPORTS[module]:
                assert not matches(one.name, "gin"), f"{module}, line {one.line}, imports gin"


def test_what_nobody_may_import() -> None:
    for module in MODULES:
        for one in IMPORTS[module]:
            for forbidden in FORBIDDEN:
                if module == ELSEWHERE and not one.at_module_level:
                    continue
                assert not matches(one.name, forbidden), f"{module}, line {one.line}, imports {one.name}"


def may_load_tensorflow(module: str) -> bool:
    if part_of(module) == "data":
        return module.removeprefix("t5xpg.data").removeprefix(".") in TENSORFLOW_DATA
    return module in MAY_LOAD_TENSORFLOW


@pytest.mark.parametrize("module", sorted(module for module in MODULES if not may_load_tensorflow(module)))
def test_tensorflow_stays_where_it_is(module: str) -> None:
    """No import of it, at module level or through other modules; inside functions of metrics only."""
    seen: set[str] = set()
    waiting = [(module, module)]
    while waiting:
        current, way = waiting.pop()
        seen.add(current)
        for one in IMPORTS[current]:
            if one.name.split(".")[0] in TENSORFLOW:
                late = current in LATE_TENSORFLOW and not one.at_module_level
                if one.at_module_level or (current == module and not late):
                    pytest.fail(f"{way}, line {one.line}, imports {one.name}")
        for one, target in internal(current):
            if one.at_module_level and target in MODULES and target not in seen:
                waiting.append((target, f"{way} -> {target}"))


@pytest.mark.parametrize("module", sorted(module for module in MODULES if part_of(module) in WITHOUT_JAX))
def test_jax_stays_where_it_is(module: str) -> None:
    for one in IMPORTS[module]:
        assert one.name.split(".")[0] not in ("jax", "flax", "optax", "orbax"), f"{module}, line {one.line}"


def loaded(names: list[str], unwanted: tuple[str, ...]) -> str:
    """Import modules in a fresh process, one after another; what came with which, for those unwanted."""
    program = (
        "import importlib, sys\n"
        "names, unwanted = sys.argv[1].split(), set(sys.argv[2].split())\n"
        "for name in names:\n"
        "    importlib.import_module(name)\n"
        "    found = sorted(unwanted & set(sys.modules))\n"
        "    if found:\n"
        "        print(name, 'loads', *found); break\n"
    )
    command = [sys.executable, "-c", program, " ".join(names), " ".join(unwanted)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fresh_process_trains_without_tensorflow() -> None:
    names = [name for name in MODULES if not may_load_tensorflow(name) and name != "t5xpg.__main__"]
    assert {"t5xpg.models", "t5xpg.step", "t5xpg.loop", "t5xpg.checkpoints", "t5xpg.config"} <= set(names)
    unwanted = (*TENSORFLOW, "keras", "torch", "clu", "flax.training.checkpoints", "apache_beam", "matplotlib")
    assert loaded(names, unwanted) == ""


def test_a_fresh_process_without_jax() -> None:
    names = [name for name in MODULES if part_of(name) in WITHOUT_JAX - {"tasks"} and not may_load_tensorflow(name)]
    assert loaded(names, (*TENSORFLOW, "jax", "flax", "optax", "orbax")) == ""


def test_the_command_line_is_there_at_once() -> None:
    """Help and mistakes need no library."""
    assert (
        loaded(["t5xpg.cli"], ("numpy", "jax", "gin", "tensorflow", "seqio", "tensorboardX", "google.protobuf")) == ""
    )
