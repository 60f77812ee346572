"""Reading matrix.toml: the plan, or every mistake in it with its line."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5xpg.base import paths
from t5xpg.base.errors import UserError, nearest
from t5xpg.data.tasks.task_names import OBJECTIVES
from t5xpg.data.vocab.record import NAME
from t5xpg.data.vocab.training import VocabularySettings
from t5xpg.study.matrix.places import Places
from t5xpg.study.matrix.plan import AXES, FILE_NAME, Entry, Plan, VocabularyEntry

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_LISTS = ("gin_files", "bindings")
_BINDING = re.compile(r"[\w./]+=.+")
_OPTIONS = ("name", *(field.name for field in dataclasses.fields(VocabularySettings) if field.name != "sample"))


def read(file: Path) -> Plan:
    """The plan in a matrix.toml. Raises UserError that names the file and every mistake in it, with its line."""
    try:
        text = file.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError:
        raise UserError(f"{file.parent} is no matrix: it has no {FILE_NAME}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}") from None
    reader = _Reader(file, values, Places(text))
    plan = reader.plan()
    if reader.mistakes:
        several = [f"{len(reader.mistakes)} mistakes in the plan of a matrix:", *reader.mistakes]
        raise UserError(reader.mistakes[0] if len(reader.mistakes) == 1 else "\n  ".join(several))
    return plan


class _Reader:
    """Reads a plan as far as that is possible, and notes what is wrong."""

    def __init__(self, file: Path, values: Mapping[str, Any], places: Places) -> None:
        self.file, self.values, self.places = file, values, places
        self.mistakes: list[str] = []

    def plan(self) -> Plan:
        known = ("dataset", *AXES, "trained", "left_out")
        for name in self.values:
            if name not in known:
                self._wrong(f"{name!r} is not known.{nearest(name, known)}", name)
        dataset = self.values.get("dataset")
        if not isinstance(dataset, str):
            self._wrong(f"dataset: the name of a dataset is needed, and it is {dataset!r}.", "", "dataset")
        architectures, objectives, vocabularies = (tuple(self._entries(axis)) for axis in AXES)
        for entry in objectives:
            if entry.name not in OBJECTIVES:
                said = f"there is no objective {entry.name}.{nearest(entry.name, OBJECTIVES)}"
                self._wrong(said, f"objectives.{entry.name}")
        names = {"architectures": [one.name for one in architectures], "objectives": [one.name for one in objectives]}
        trained = self._trained(names)
        left_out = tuple(self._left_out(names))
        if not self.mistakes:
            self._every_pair(names, trained, left_out)
        typed = tuple(entry for entry in vocabularies if isinstance(entry, VocabularyEntry))
        return Plan(self.file, str(dataset), architectures, objectives, typed, trained, left_out)

    def _entries(self, axis: str) -> Iterator[Entry]:
        tables = self.values.get(axis)
        if not isinstance(tables, dict) or not tables:
            self._wrong(f"[{axis}.NAME] is missing: at least one is needed.", axis)
            return
        for name, table in tables.items():
            where = f"{axis}.{name}"
            if not _NAME.fullmatch(name):
                self._wrong(f"[{where}]: a name of small letters, digits and _ is needed.", where)
            if not isinstance(table, dict):
                self._wrong(f"[{where}]: a table is needed.", axis, name)
                continue
            self._unknown_keys(where, table, ("title", *_LISTS, *(["train"] if axis == AXES[2] else [])))
            if not isinstance(table.get("title"), str):
                self._wrong(f"[{where}] title: a text is needed, and it is {table.get('title')!r}.", where, "title")
            files, bindings = (tuple(self._texts(where, table, key, optional=True)) for key in _LISTS)
            self._check_overrides(where, files, bindings)
            title = str(table.get("title"))
            if axis == AXES[2]:
                settings, trained_as = self._vocabulary(where, table.get("train"))
                yield VocabularyEntry(name, title, files, bindings, settings, trained_as)
            else:
                yield Entry(name, title, files, bindings)

    def _check_overrides(self, where: str, files: Sequence[str], bindings: Sequence[str]) -> None:
        for one in files:
            if not any((folder / one).is_file() for folder in (Path(), paths.REPOSITORY)):
                known = [str(path.relative_to(paths.REPOSITORY)) for path in paths.GIN.rglob("*.gin")]
                self._wrong(f"there is no gin file {one}.{nearest(one, known)}", where, "gin_files", one)
        for one in bindings:
            if not _BINDING.fullmatch(one):
                self._wrong(f"{one!r} binds nothing: NAME=value is needed.", where, "bindings", one)

    def _vocabulary(self, where: str, options: Any) -> tuple[VocabularySettings | None, str | None]:
        """What is trained, and what it is called in the names of tasks."""
        if options is None:
            return None, None
        if not isinstance(options, dict):
            self._wrong(f'[{where}] train: a table such as {{ model = "bpe", size = 2000 }} is needed.', where, "train")
            return None, None
        self._unknown_keys(where, options, _OPTIONS, "train")
        given = {name: value for name, value in options.items() if name in _OPTIONS and name != "name"}
        try:
            settings = VocabularySettings(**given)
        except (UserError, TypeError) as error:
            self._wrong(f"[{where}] train: {error}", where, "train")
            return None, None
        name = options.get("name", settings.name)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            self._wrong(f"[{where}] train: a name of letters, digits and _ is needed.", where, "train")
        return settings, str(name)

    def _trained(self, names: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        table = self.values.get("trained")
        if not isinstance(table, dict) or not table:
            self._wrong("[trained] is missing: architecture = [its objectives].", "trained")
            return {}
        found = {}
        for architecture in table:
            self._known(architecture, "architectures", names, "trained", architecture)
            found[architecture] = tuple(self._texts("trained", table, architecture))
            for objective in found[architecture]:
                self._known(objective, "objectives", names, "trained", architecture, objective)
        return found

    def _left_out(self, names: Mapping[str, Sequence[str]]) -> Iterator[tuple[frozenset[str], frozenset[str], str]]:
        tables = self.values.get("left_out", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._wrong("left_out: tables [[left_out]] are needed.", "left_out")
            return
        for index, table in enumerate(tables):
            self._unknown_keys("left_out", table, (*names, "reason"), index=index)
            found = {}
            for axis in names:
                found[axis] = frozenset(self._texts("left_out", table, axis, index=index))
                for name in sorted(found[axis]):
                    self._known(name, axis, names, "left_out", axis, name, index)
            if not isinstance(table.get("reason"), str) or not table["reason"].strip():
                self._wrong("[[left_out]] reason: a sentence is needed.", "left_out", "reason", index=index)
            yield found["architectures"], found["objectives"], str(table.get("reason"))

    def _every_pair(
        self,
        names: Mapping[str, Sequence[str]],
        trained: Mapping[str, Sequence[str]],
        left_out: Sequence[tuple[frozenset[str], frozenset[str], str]],
    ) -> None:
        for architecture in names["architectures"]:
            for objective in names["objectives"]:
                said = objective in trained.get(architecture, ())
                times = said + sum(architecture in some and objective in others for some, others, _ in left_out)
                if times != 1:
                    what = "neither trained nor left out with a reason" if not times else "said more than once"
                    self._wrong(f"{architecture} with {objective} is {what}.", "trained", architecture)

    def _texts(
        self, where: str, table: Mapping[str, Any], key: str, optional: bool = False, index: int = 0
    ) -> list[str]:
        value = table.get(key, [] if optional else None)
        if isinstance(value, list) and (value or optional) and all(isinstance(one, str) for one in value):
            return value
        self._wrong(f"[{where}] {key}: a list of texts is needed, and it is {value!r}.", where, key, index=index)
        return []

    def _unknown_keys(
        self, where: str, table: Mapping[str, Any], known: Sequence[str], inside: str | None = None, index: int = 0
    ) -> None:
        for key in table:
            if key not in known:
                named = f"[{where}] {f'{inside}.' if inside else ''}{key}"
                self._wrong(f"{named} is not known.{nearest(key, known)}", where, inside or key, index=index)

    def _known(
        self,
        name: str,
        axis: str,
        names: Mapping[str, Sequence[str]],
        table: str,
        key: str,
        value: str | None = None,
        index: int = 0,
    ) -> None:
        if name not in names[axis]:
            kind = axis.removesuffix("s")
            self._wrong(f"there is no {kind} {name}.{nearest(name, names[axis])}", table, key, value, index)

    def _wrong(self, what: str, table: str, key: str | None = None, value: str | None = None, index: int = 0) -> None:
        line = self.places.line(table, key, value, index)
        self.mistakes.append(f"{paths.shown(self.file)}, line {line}: {what}")
