"""The gin file of a run, which may be a stranger's: it is read as data. It may name only modules, classes and functions
that the gin files of this checkout, or those that the user named, name too."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from t5xpg.base import paths
from t5xpg.base.errors import UserError
from t5xpg.experiment.gin_reading import find_gin_file
from t5xpg.experiment.gin_statements import BoundValue, Import, names_of, statements

_REMEDY = (
    "A run is read as data, and this would run code that no gin file of gin/ or experiments/ names. If it is yours, "
    "name what the run was made with: EXP=your.gin, GIN=--gin_file=… or GIN=--gin.MODULE_IMPORT=…"
)


@dataclass
class Names:
    """The names in gin files. imported, used: {module: place} and {(module, "Class"): place}. task_modules: the values
    of MODULE_IMPORT."""

    imported: dict[str, str] = field(default_factory=dict)
    used: dict[tuple[str, str], str] = field(default_factory=dict)
    task_modules: set[str] = field(default_factory=set)


def names_in(files: Iterable[Path]) -> Names:
    """The names in gin files and in those that they include. Raises UserError for a file that gin cannot read."""
    names = Names()
    for file in files:
        modules = dict[str, str]()  # by their names in the file
        for one in statements(file, lambda name, _: find_gin_file(name)):
            if isinstance(one, Import):
                names.imported.setdefault(one.module, one.place)
                modules[one.name] = one.module
            elif isinstance(one, BoundValue):
                classes = (each.removesuffix("()") for each in names_of(one.value, "@"))
                for text in filter(None, [one.selector, *classes]):
                    alias, _, name = text.rpartition("/")[2].partition(".")
                    names.used.setdefault((modules.get(alias, alias), name), one.place)
                if one.parameter.upper() == "MODULE_IMPORT" and isinstance(one.value, str | list | tuple):
                    names.task_modules.update([one.value] if isinstance(one.value, str) else map(str, one.value))
    return names


def require_data(file: Path, user_files: Iterable[Path]) -> set[str]:
    """Raise UserError if the gin file of a run names what no trusted gin file names, as its code would run.

    Trusted are those of gin/ and experiments/, and `user_files`, which the user named. What they name is compared
    without the inner modules of packages: a run names a class where it is defined. Returns the modules of tasks
    (MODULE_IMPORT) that a run may import.
    """
    experiments = [gin_file for folder in paths.experiments().values() for gin_file in folder.glob("*.gin")]
    trusted, names = names_in([*paths.GIN.rglob("*.gin"), *experiments, *user_files]), names_in([file])
    packages = {_package(module) for module in trusted.imported}
    used = {(_package(module), name) for module, name in trusted.used}
    others = {module: place for module, place in names.imported.items() if _package(module) not in packages}
    others |= {
        f"{module}.{name}": place
        for (module, name), place in names.used.items()
        if (_package(module), name) not in used
    }
    for name, place in others.items():
        raise UserError(f"{paths.shown(file)} names {name} ({place}). {_REMEDY}")
    return trusted.task_modules


def require_task_modules(file: Path, modules: Iterable[str], trusted: Collection[str]) -> None:
    """Raise UserError for modules of tasks that a run would import and that are not `trusted`."""
    for name in modules:
        if name not in trusted:
            raise UserError(f"{paths.shown(file)} imports {name} (MODULE_IMPORT). {_REMEDY}")


def _package(module: str) -> str:
    return module.partition(".")[0]
