"""Make tests/goldens/t5x_gin_values.json: what gin itself says that T5X's examples mean.

    .venv/bin/python -m tests.goldens.make_t5x_gin_values path/to/a/checkout/of/t5x

gin reads the files, and needs the functions and classes that they bind by their names alone: the modules are stood in
for, so that T5X need not work. For each example that includes a run: what it says itself, in its order, and the
effective value of every parameter, macros replaced. For each file of a model: its sizes.
"""

import importlib.abc
import importlib.machinery
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import gin
from t5xpg.experiment.gin_statements import Import, Include, statements

FILE = Path(__file__).with_name("t5x_gin_values.json")
RUN = re.compile(r"include\s+['\"]t5x/configs/runs/(pretrain|finetune)\.gin")
MODEL = re.compile(r"^(t5|scalable_t5)/(t5_1_1|byt5)/\w+\.gin$")
STOOD_IN = ("t5x", "seqio", "t5", "optax", "jax", "flax")


class _Anything(type):
    """A class that has every method, as gin binds predict_batch_with_aux of a model."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def method(self: Any = None, **given: Any) -> None:
            pass

        method.__name__, method.__qualname__, method.__module__ = name, f"{cls.__name__}.{name}", cls.__module__
        setattr(cls, name, method)
        return method


class _StandIn(types.ModuleType):
    """A module that has every function and class."""

    def __getattr__(self, name: str) -> Any:
        if not name or name.startswith("__"):
            raise AttributeError(name)
        if name[0].islower():

            def found(**given: Any) -> None:
                pass

            found.__name__ = found.__qualname__ = name
        else:
            found = _Anything(name, (), {"__init__": lambda self, **given: None, "__qualname__": name})
        found.__module__ = self.__name__
        setattr(self, name, found)
        return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in STOOD_IN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _StandIn(spec.name)
        module.__path__, module.__file__ = [], f"{spec.name}.py"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def plain(value: Any) -> Any:
    """As JSON; a reference is its text, tuples are marked."""
    if isinstance(value, tuple):
        return {"tuple": [plain(one) for one in value]}
    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {"dict": {key: plain(one) for key, one in value.items()}}
    return value if value is None or isinstance(value, (bool, int, float, str)) else {"reference": repr(value)}


def key_of(scope: str, selector: str, parameter: str) -> str:
    """Without modules: train/DatasetConfig.batch_size; a method keeps its class; of a macro its name."""
    if selector == "gin.macro":
        return scope
    parts = selector.split(".")
    first = next((place for place, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
    name = ".".join([*parts[first:], parameter])
    return f"{scope}/{name}" if scope else name


def effective(file: Path) -> dict[str, Any]:
    gin.clear_config(clear_constants=True)
    gin.parse_config_file(str(file), skip_unknown=False)
    values = {
        key_of(scope, selector, parameter): value
        for (scope, selector), bound in gin.config._CONFIG.items()
        for parameter, value in bound.items()
    }

    def resolved(value: Any) -> Any:
        text = repr(value)
        while re.fullmatch(r"%\w+", text) and text[1:] in values:
            value = values[text[1:]]
            text = repr(value)
        return value

    return {key: plain(resolved(value)) for key, value in sorted(values.items())}


def said(file: Path, root: Path) -> list[Any]:
    """What an example says, in its order: {"include": a file of T5X's models or runs}, {"import": a module}, and
    [parameter or macro, value]. Other files that it includes are read."""

    def found(name: str, _: Path) -> Path | None:
        return None if re.search(r"/(configs/runs|t5_1_1)/\w+\.gin$", name) else root / name

    lines: list[Any] = []
    for one in statements(file, found):
        if isinstance(one, Include):
            lines.append({"include": one.file})
        elif isinstance(one, Import):
            lines.append({"import": one.module})
        else:
            name = ".".join(filter(None, [one.selector, one.parameter]))
            lines.append([f"{one.scope}/{name}" if one.scope else name, plain(one.value)])
    return lines


def of_one(root: Path, name: str) -> dict[str, Any]:
    """What an example, or a file of a model, says and means."""
    file = root / "t5x" / "examples" / name
    lines = said(file, root)
    os.chdir(root)  # gin looks there before it looks into packages
    sys.meta_path.insert(0, _Finder())
    sys.modules["__main__"] = _StandIn("__main__")
    values = effective(file)
    if not RUN.search(file.read_text(encoding="utf-8")):
        return {key.rpartition(".")[2]: value for key, value in values.items() if key.startswith("T5Config.")}
    return {"says": lines, "effective": {key: value for key, value in values.items() if "." in key}}


def main() -> None:
    root, names = Path(sys.argv[1]).resolve(), sys.argv[2:]
    if names:
        print(json.dumps(of_one(root, names[0])))
        return
    found: dict[str, dict[str, Any]] = {"examples": {}, "models": {}}
    for file in sorted((root / "t5x" / "examples").rglob("*.gin")):
        name = str(file.relative_to(root / "t5x" / "examples"))
        is_run = RUN.search(file.read_text(encoding="utf-8"))
        if is_run or MODEL.search(name):  # each in a process of its own, as gin knows a class by its module's last name
            order = [sys.executable, "-m", "tests.goldens.make_t5x_gin_values", str(root), name]
            printed = subprocess.run(order, check=True, capture_output=True, text=True).stdout
            found["examples" if is_run else "models"][name] = json.loads(printed)
    lines = [
        f' "{kind}": {{\n'
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in each.items())
        + "\n }"
        for kind, each in found.items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{FILE.name}: {', '.join([*found['examples'], *found['models']])}")


if __name__ == "__main__":
    main()
