"""What determines a task's cache, as JSON: its source, the code and arguments before the placeholder, its features.

Imports SeqIO inside its functions. A definition is compared with the one that a cache was made from; see
`cache_record`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
import re
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5xpg.base.errors import UserError
from t5xpg.base.paths import PACKAGE, data_directory

# The sha256 of a file by its path.
Digest = Callable[[Path], str]
_CONTAINERS = (list, tuple, set, frozenset, dict)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def definition_of(task: Any, digest: Digest) -> dict[str, Any]:
    """The definition of a task, as it will be read from a file. Raises UserError where files are not there:
    MissingTextError where an export would bring them."""
    definition = {
        "task": task.name,
        "source": {
            "kind": type(task.source).__name__,
            "splits": {split: _files(task, split, digest) for split in sorted(task.splits)},
        },
        "preprocessors": [describe(step) for step in _steps_before_cache(task)],
        "features": {key: _feature(feature) for key, feature in sorted(task.output_features.items())},
    }
    value: dict[str, Any] = json.loads(json.dumps(definition))
    return value


def code_of(task: Any) -> dict[str, str]:
    """Digests of the code that makes a task's examples up to the placeholder, by name.

    Of functions outside of installed libraries: of their source, of what they use of their modules and of what they
    hold (defaults, closures), and so on. A library's version stands for its code.
    """
    import seqio

    source = task.source
    reads = [source._reader] if isinstance(source, seqio.FileDataSource) else []
    reads += [source._dataset_fn] if isinstance(source, seqio.FunctionDataSource) else []
    found: dict[str, str] = {}
    seen: dict[int, Any] = {}
    waiting = [*reads, *_steps_before_cache(task)]
    while waiting:
        value = waiting.pop()
        if id(value) not in seen:
            seen[id(value)] = value
            waiting += _used_by(value, found)
    return dict(sorted(found.items()))


def patterns_of(task: Any) -> list[str]:
    """The patterns of the files that a task's source reads, as far as they lie on this machine."""
    import seqio

    if not isinstance(task.source, seqio.FileDataSource):
        return []
    given = task.source._split_to_filepattern.values()
    return sorted({str(one) for pattern in given for one in ([pattern] if isinstance(pattern, str) else pattern)})


def vocabulary_files(task: Any) -> list[Path]:
    """The model files of the vocabularies of a task, and the records of those of the table."""
    from t5xpg.data.tasks.seqio_vocabularies import model_file_of
    from t5xpg.data.vocab.record import RECORD

    found = {model_file_of(feature.vocabulary) for feature in task.output_features.values()}
    models = [model for model in found if model is not None]
    records = {model.with_name(RECORD) for model in models}
    return sorted([*models, *(record for record in records if record.is_file())])


def _steps_before_cache(task: Any) -> list[Any]:
    import seqio

    steps = list(task.preprocessors)
    place = next(i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder))
    return steps[:place]


def _files(task: Any, split: str, digest: Digest) -> list[Any] | str:
    """Digests of the files of a split, or what else says what the source reads."""
    import seqio

    from t5xpg.data.cache.record import MissingTextError
    from t5xpg.data.tasks.registered import TASKS
    from t5xpg.data.tasks.task_names import possible_dataset, vocabularies

    source = task.source
    if isinstance(source, seqio.TfdsDataSource):
        read = source.tfds_dataset
        return f"{read.name} {split}={(read._split_map or {}).get(split, split)}"
    if isinstance(source, seqio.FunctionDataSource):
        return [describe(source._dataset_fn)]
    if not isinstance(source, seqio.FileDataSource):
        return _without_addresses(str(source))
    paths = [Path(name) for name in source.list_shards(split)]
    if not paths or not all(path.is_file() for path in paths):
        message = f"The text of {task.name}, split {split}, is not there ({source._split_to_filepattern[split]})."
        dataset = possible_dataset(task.name, vocabularies(data_directory())) if task.name in TASKS else None
        if dataset is None:
            raise UserError(message)
        raise MissingTextError(f"{message} Type: make data DATASET={dataset}", [dataset])
    return [{"bytes": path.stat().st_size, "sha256": digest(path)} for path in paths]


def describe(step: Any) -> Any:
    """A preprocessor as JSON: its name, the digest of its source, its arguments."""
    if isinstance(step, functools.partial):
        inner = describe(step.func)
        return inner | {"arguments": [_describe_value(v) for v in step.args] + [_describe_value(dict(step.keywords))]}
    source = _source(inspect.unwrap(step) if callable(step) else type(step))
    name = _name(step)
    return {"function": name} | ({"source_sha256": _sha256(source)} if source is not None else {}) | _wrapped(step)


def _wrapped(step: Any) -> dict[str, Any]:
    """What `seqio.experimental.add_fully_cached_task` makes of a step: the step itself, and the lengths for it."""
    if _name(step) != "seqio.experimental.add_fully_cached_task.<locals>.wrapped_prep":
        return {}
    lengths = inspect.getclosurevars(step).nonlocals["fixed_sequence_length"]
    return {"wraps": [describe(one) for one in step.__defaults__], "sequence_length": _describe_value(dict(lengths))}


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"


def _source(value: Any) -> str | None:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def _describe_value(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _describe_value(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, set | frozenset):  # their order is another one in every process
        return sorted((_describe_value(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, list | tuple):
        return [_describe_value(item) for item in value]
    if callable(value):
        return describe(value)
    return _without_addresses(repr(value))


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _feature(feature: Any) -> dict[str, Any]:
    from t5xpg.data.tasks.seqio_vocabularies import from_seqio

    try:
        vocabulary: Any = from_seqio(feature.vocabulary).to_json()
        vocabulary.pop("model_file", None)  # where it lies is no part of what it is
    except UserError:
        vocabulary = _without_addresses(str(feature.vocabulary))
    return {"vocabulary": vocabulary, "add_eos": feature.add_eos, "dtype": str(feature.dtype), "rank": feature.rank}


def _used_by(value: Any, found: dict[str, str]) -> list[Any]:
    """Add the digests of a piece of code to `found`; the pieces that it uses."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, _CONTAINERS):
        members = value.values() if isinstance(value, dict) else value
        return [one for one in members if callable(one) or isinstance(one, _CONTAINERS)]
    if isinstance(value, types.MethodType):
        return [value.__func__, type(value.__self__)]
    if isinstance(value, type):
        if _is_of_a_library(value) or (source := _source(value)) is None:
            return []
        found[_name(value)] = _sha256(source)
        return [*value.__bases__, *(part for part in vars(value).values() if isinstance(part, types.FunctionType))]
    if not isinstance(value, types.FunctionType):
        return [type(value)] if callable(value) else []
    held = dict(zip(value.__code__.co_freevars, (_content(cell) for cell in value.__closure__ or ()), strict=True))
    if _is_of_a_library(value):
        # a wrapper, such as seqio.map_over_dataset makes: what it wraps
        return [one for one in (*held.values(), *(value.__defaults__ or ())) if callable(one)]
    name = _name(value)
    found[name] = _sha256(_source(value) or value.__code__.co_code.hex())
    defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    used = [*held.values(), *defaults]
    for label, content in [*held.items(), *((f"default {number}", one) for number, one in enumerate(defaults))]:
        if not callable(content):
            found[f"{name}.{label}"] = _value_digest(content)
    for label, content in _globals_of(value):
        used.append(content)
        if not callable(content):
            found[f"{value.__module__}.{label}"] = _value_digest(content)
    return used


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _globals_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function uses of its module, and through it of other modules that are no library."""
    names = _names_in(function.__code__)
    for name in sorted(names & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType):
            yield name, value
        elif not _is_of_a_library(value):
            yield from (
                (f"{name}.{part}", vars(value)[part])
                for part in sorted(names & vars(value).keys())
                if not isinstance(vars(value)[part], types.ModuleType)
            )


def _names_in(code: types.CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return {*code.co_names}.union(*map(_names_in, inner))


def _value_digest(value: Any) -> str:
    return _sha256(json.dumps(_constant(value), sort_keys=True))


def _constant(value: Any) -> Any:
    """What code holds, as JSON. Of objects that are not plain data only the kind: their texts may differ each time."""
    if isinstance(value, re.Pattern):
        return [_constant(value.pattern), value.flags]
    if isinstance(value, bytes | bytearray):
        return value.hex()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): _constant(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, set | frozenset):
        return sorted((_constant(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    if isinstance(value, list | tuple):
        return [_constant(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return _name(value) if callable(value) else _name(type(value))


def _is_of_a_library(value: Any) -> bool:
    """Whether a function, class or module was installed with a version, or comes with Python."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    module = sys.modules.get(name or "")
    file = getattr(module, "__file__", None)
    if name == "__main__":
        return False
    if module is None or file is None:
        return True  # built in
    if Path(file).is_relative_to(PACKAGE):
        return False
    return any(os.path.realpath(file).startswith(os.path.realpath(folder) + os.sep) for folder in _LIBRARIES)


_PASSING = ("/proc/", "/dev/", "/sys/")
_active: list[Watched] = []
_hooked: list[bool] = []


@dataclass
class Watched:
    """The files that were opened or imported, and the variables of the environment that were asked for."""

    files: set[Path] = field(default_factory=set)
    variables: dict[str, str | None] = field(default_factory=dict)


@contextmanager
def watching() -> Iterator[Watched]:
    """Note what the code of the block reads through Python."""
    watched = Watched()
    if not _hooked:  # it cannot be taken away again
        sys.addaudithook(_note)
        _hooked.append(True)
    before = set(sys.modules)
    environment = type(os.environ)
    get = environment.__getitem__

    def noted_get(self: Any, name: Any) -> Any:
        watched.variables[str(name)] = None
        value = get(self, name)
        watched.variables[str(name)] = value
        return value

    environment.__getitem__ = noted_get  # type: ignore[method-assign]
    _active.append(watched)
    try:
        yield watched
    finally:
        _active.pop()
        environment.__getitem__ = get  # type: ignore[method-assign]
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file:
                watched.files.add(Path(file))
        watched.files = {path for path in watched.files if path.is_file() and path.suffix != ".pyc"}


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _active:
        return
    path, mode = arguments[:2]
    if isinstance(mode, str) and set(mode) & set("wax"):
        return
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if isinstance(path, str | os.PathLike):
        name = os.path.abspath(path)
        if not name.startswith(_PASSING):
            _active[-1].files.add(Path(name))
