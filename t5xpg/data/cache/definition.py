"""The definition of a task as JSON, all that determines its cache: its source, its settings and features, and the code
of its steps, for `record.differences`. Imports SeqIO inside its functions."""

import functools
import importlib.metadata
import inspect
import itertools
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.paths import PACKAGE
from t5xpg.data.cache.record import FORMAT, PACKAGES, MissingTextError

Digest = Callable[[Path], str]  # the SHA-256 of a file by its path
# The files of this package that define the tasks of the table, and those among them that do not change a cache.
_DEFINING = ("data/objectives/*.py", "data/tasks/*.py", "data/vocab/*.py", "data/preprocessors.py")
_NOT_DEFINING = ("feature_converters.py", "files.py", "making.py", "providers.py", "token_listing.py", "training.py")
_PYTHON, _PACKAGES = (
    tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in names)
    for names in (("stdlib", "platstdlib"), ("purelib", "platlib"))
)
_FULLY_CACHED = "seqio.experimental.add_fully_cached_task.<locals>.wrapped_prep"


def definition_of(task: Any, digest: Digest, modules: Sequence[str] = ()) -> dict[str, Any]:
    """The definition of a task, as JSON. modules: those of MODULE_IMPORT. Raises UserError if files of the source
    are missing: MissingTextError if an export would make them."""
    definition = {
        "format": FORMAT,
        "task": task.name,
        "source": {
            "kind": type(task.source).__name__,
            "splits": {split: _source(task, split, digest) for split in sorted(task.splits)},
        },
        "preprocessors": [describe(step) for step in _steps_before_cache(task)],
        "features": {key: _feature(feature) for key, feature in sorted(task.output_features.items())},
        "code": _users_code(task, digest, modules),
    }
    value: dict[str, Any] = json.loads(json.dumps(definition))
    return value


def package_code(task: Any, digest: Digest) -> dict[str, str]:
    """The SHA-256 of the files of this package that define tasks, by name; empty if no step of `task` is from it."""
    modules = (str(function.__module__) for function in _functions_of(task))
    is_own = _is_of_table(task) or any(name.startswith(f"{PACKAGE.name}.") for name in modules)
    return package_digests(digest) if is_own else {}


def package_digests(digest: Digest) -> dict[str, str]:
    """The SHA-256 of the files of this package that define the tasks of the table, by their names."""
    paths = sorted(path for pattern in _DEFINING for path in PACKAGE.glob(pattern) if path.name not in _NOT_DEFINING)
    return {f"{PACKAGE.name}/{path.relative_to(PACKAGE).as_posix()}": digest(path) for path in paths}


def _users_modules(task: Any, modules: Sequence[str]) -> dict[str, ModuleType]:
    """The user's modules that define a task, by name: those of MODULE_IMPORT, of its steps and of its source's reader,
    and what these import, as far as importer and imported are not installed packages. Empty for a task of the table."""
    if _is_of_table(task):
        return {}
    modules_by_name: dict[str, ModuleType] = {}
    pending = [*modules, *(function.__module__ for function in _functions_of(task))]
    while pending:
        name = pending.pop()
        module = sys.modules.get(name)
        if module is None or name in modules_by_name or not _may_be_users(module):
            continue
        modules_by_name[name] = module
        if not _is_installed(module):
            values = list(vars(module).values())
            names = {one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", "") for one in values}
            pending += [one for one in names if isinstance(one, str) and not _is_installed(sys.modules.get(one))]
    return dict(sorted(modules_by_name.items()))


def _is_of_table(task: Any) -> bool:
    from t5xpg.data.tasks.table import ROWS

    return task.name in ROWS


def _users_code(task: Any, digest: Digest, modules: Sequence[str]) -> dict[str, str]:
    """The SHA-256 of the files of the user's modules, and the versions of installed ones, by their names."""
    users = _users_modules(task, modules)
    files = {name: Path(str(module.__file__)) for name, module in users.items() if not _is_installed(module)}
    installed = {name.partition(".")[0] for name in users.keys() - files.keys()}
    packages = importlib.metadata.packages_distributions() if installed else {}
    versions = {one: importlib.metadata.version(one) for name in installed for one in packages.get(name, ())}
    return {name: digest(file) for name, file in files.items()} | versions


def _functions_of(task: Any) -> Iterator[Any]:
    """The functions, or types of callable objects, that make a task's examples up to the placeholder."""
    readers = (getattr(task.source, name, None) for name in ("_dataset_fn", "_reader"))
    pending = [*_steps_before_cache(task), *(reader for reader in readers if reader is not None)]
    while pending:
        step = pending.pop()
        while isinstance(step, functools.partial):
            step = step.func
        if _name(step) == _FULLY_CACHED:
            pending += step.__defaults__
        step = inspect.unwrap(step)
        yield step if hasattr(step, "__qualname__") else type(step)


def _may_be_users(module: ModuleType) -> bool:
    """True if a module has a file outside Python's library, this package and the packages of `record.PACKAGES`."""
    file = getattr(module, "__file__", None)
    if not file or Path(file).is_relative_to(PACKAGE) or module.__name__.partition(".")[0] in PACKAGES:
        return False
    return _is_installed(module) or not os.path.realpath(file).startswith(_PYTHON)


def _is_installed(module: ModuleType | None) -> bool:
    """True if a module belongs to an installed package, whose version then stands for its code."""
    file = getattr(module, "__file__", None)
    return bool(file) and os.path.realpath(str(file)).startswith(_PACKAGES)


def _steps_before_cache(task: Any) -> list[Any]:
    import seqio

    return list(
        itertools.takewhile(lambda step: not isinstance(step, seqio.CacheDatasetPlaceholder), task.preprocessors)
    )


def _source(task: Any, split: str, digest: Digest) -> list[Any] | str:
    """The sizes and digests of the files of a split; for a source without files, another description."""
    import seqio

    from t5xpg.data.tasks.table import ROWS

    source = task.source
    if isinstance(source, seqio.TfdsDataSource):
        dataset = source.tfds_dataset
        return f"{dataset.name} {split}={(dataset._split_map or {}).get(split, split)}"
    if isinstance(source, seqio.FunctionDataSource):
        return [describe(source._dataset_fn)]
    if not isinstance(source, seqio.FileDataSource):
        return _without_addresses(str(source))
    files = [_file(name, digest) for name in source.list_shards(split)]
    if not files or None in files:
        message = f"The text of {task.name}, split {split}, is not there ({source._split_to_filepattern[split]})."
        export = ROWS[task.name].dataset if task.name in ROWS else None
        if export is None:
            raise UserError(message)
        raise MissingTextError(f"{message} Type: make data DATASET={export}", [export])
    return files


def _file(name: str, digest: Digest) -> dict[str, Any] | None:
    """The size and digest of a file, or the size and time of one in a bucket; None if it is missing."""
    from t5xpg.data.tasks.sources import stat_of

    if (stat := stat_of(name)) is None:
        return None
    identity = {"modified": stat.modified} if "://" in name else {"sha256": digest(Path(name))}
    return {"bytes": stat.size, **identity}


def describe(step: Any) -> Any:
    """A preprocessor as JSON: its name and its arguments."""
    if isinstance(step, functools.partial):
        inner = describe(step.func)
        return inner | {"arguments": [_describe_value(v) for v in step.args] + [_describe_value(dict(step.keywords))]}
    described: dict[str, Any] = {"function": _name(step)}
    if described["function"] == _FULLY_CACHED:  # the step itself, and the lengths that it is given
        described["wraps"] = [describe(inner) for inner in step.__defaults__]
        lengths = inspect.getclosurevars(step).nonlocals["fixed_sequence_length"]
        described["sequence_length"] = _describe_value(dict(lengths))
    return described


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _describe_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _describe_value(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, set | frozenset):  # their order differs from process to process
        return sorted((_describe_value(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, list | tuple):
        return [_describe_value(item) for item in value]
    if callable(value):
        return describe(value)
    return _without_addresses(repr(value))


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _feature(feature: Any) -> dict[str, Any]:
    from t5xpg.data.vocab.seqio_vocabularies import from_seqio

    try:
        vocabulary: Any = from_seqio(feature.vocabulary).to_json()
        vocabulary.pop("model_file", None)  # its digest identifies it, not its path
    except UserError:
        vocabulary = _without_addresses(str(feature.vocabulary))
    return {"vocabulary": vocabulary, "add_eos": feature.add_eos, "dtype": str(feature.dtype), "rank": feature.rank}
