"""`make site`: a static site of the experiments, their runs and the documentation, made of records alone.

It opens from file://, fetches nothing, and can be read without JavaScript, which adds interactive charts and
comparisons. The charts are uPlot's (in `static/`, with its licence): 50 kB, no dependencies; other libraries need D3.
"""

import ast
import csv
import inspect
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import t5xpg
from t5xpg.base import digests, environment, paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import directory_atomically, room_for, write_text
from t5xpg.base.markdown import cell
from t5xpg.run.numbers import MEASURES
from t5xpg.run.report import README_FILE
from t5xpg.run.results_page import CURVE_FILE, METRIC_FILE
from t5xpg.site import lineage
from t5xpg.site.markup import compared, html_of
from t5xpg.site.records import SiteExperiment, SiteRun, experiments, has_link, local_runs
from t5xpg.study.sweep.page import SECONDS_FILE, STEPS_FILE, over_seeds, ranked

PARTS = Path(__file__).parent
MARK = ".t5xpg-site"  # a folder with this file is a site, which another one may replace
_PICTURES = (CURVE_FILE, METRIC_FILE, STEPS_FILE, SECONDS_FILE)  # that this program writes beside a README
_MAX_ID = 100  # characters of the name of a recipe
_DOCUMENTS = ("*.md", "docs/*.md", "experiments/*/README.md")


def build(folder: Path) -> Path:
    """Write the site beside a folder, then move it there in place of an earlier one; returns its first page.

    Raises UserError for a folder that holds anything else than a site.
    """
    folder = folder.resolve()  # a link stays one
    if folder.exists() and not (folder / MARK).exists():
        if not folder.is_dir() or any(folder.iterdir()):
            raise UserError(f"{folder} holds other things than a site. Name another folder with OUTPUT=…")
        folder.rmdir()
    runs = list(local_runs(left_out=print))
    with room_for("the site", folder.parent, "Free some."), directory_atomically(folder) as new:
        (new / MARK).touch()
        shutil.copytree(PARTS / "static", new / "static")
        Site(new, experiments(runs), runs).write()
    return folder / "index.html"


class Site:
    """The pages of some experiments, below the folder `folder`. runs: of this machine, of other experiments too."""

    def __init__(self, folder: Path, shown: Sequence[SiteExperiment], runs: Sequence[SiteRun]) -> None:
        self.folder, self.shown, self.charted = folder, shown, list(chart_data(shown, runs))
        tracked = environment.git("ls-files", "-z")
        self.tracked = None if tracked is None else frozenset(tracked.split("\0"))
        self.documents = sorted(
            path.relative_to(paths.REPOSITORY)
            for pattern in _DOCUMENTS
            for path in paths.REPOSITORY.glob(pattern)
            if self._is_tracked(path) or (path.name == README_FILE and not has_link(path))
        )
        self.environment = Environment(
            loader=FileSystemLoader(PARTS / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self.environment.globals.update(
            cell=cell,
            date=date.fromtimestamp,
            compared=compared,
            docs=(paths.REPOSITORY / "docs").is_dir(),  # not where the package is installed
            git=environment.git_state(),
        )

    def write(self) -> None:
        """Write all pages and the data of the runs."""
        self._page("index.html", "index.html", shown=self.shown)
        names = {one.name for one in self.shown}
        self._page("compare.html", "compare.html", runs=self.charted, named=names)
        chains = {one.name: lineage.chain_of(one) for one in self.shown if one.published}
        self._page("lineage.html", "lineage.html", chains=chains)
        self._page("python.html", "python.html", public=public_interface(), markdown=lambda text: html_of(text, str))
        self._page("benchmarks.html", "benchmarks.html", history=lineage.benchmarks())
        for one in self.shown:
            self._experiment(one)
        for run in self.charted:
            text = json.dumps(run, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            self._text(f"data/{run['id']}.js", f"t5xpg.add({text});\n")
            self._text(f"data/{run['id']}.csv", csv_of(run["curves"]))
        for document in self.documents:
            if document.parts[0] != "experiments":
                text = (paths.REPOSITORY / document).read_text(encoding="utf-8")
                self._page("document.html", address(document), title=document.name, text=self._html(text, document))

    def _experiment(self, shown: SiteExperiment) -> None:
        document = Path("experiments") / shown.name / README_FILE
        before, _, after = shown.text.partition("\n## ")
        prose = "\n\n".join(
            part for part in before.split("\n\n")[1:] if not part.startswith(("**Question.**", "**Answer.**"))
        )
        text = f"{prose}\n\n## {after}" if after else prose
        page = PurePosixPath(address(document))
        for picture in shown.folder.glob("*.svg"):
            if not has_link(picture) and (picture.name in _PICTURES or self._is_tracked(picture)):
                self._copy(picture, page.parent / picture.name)
        for run in shown.runs:
            self._text(f"data/{run.id}.json", json.dumps(run.results, ensure_ascii=False, indent=1))
        ids = [run["id"] for run in self.charted if run["experiment"] == shown.name]
        html = self._html(text, document)
        self._page("experiment.html", str(page), title=shown.name, shown=shown, text=html, ids=ids)

    def _html(self, text: str, document: Path) -> Markup:
        return html_of(text, lambda target: self._link(target, document))

    def _link(self, target: str, document: Path) -> str:
        """The address on the site for a link in a document: a page, a copy of a file, or the link as it was."""
        if "://" in target or target.startswith(("#", "mailto:")):
            return target
        place, hash_, anchor = target.partition("#")
        try:
            file = Path(os.path.normpath(paths.REPOSITORY / document.parent / place)).relative_to(paths.REPOSITORY)
        except ValueError:
            return target
        if file not in self.documents and not self._is_tracked(paths.REPOSITORY / file):
            return target
        if file.suffix == ".svg":
            if file.parts[0] != "experiments":  # those are copied with the pages of their experiments
                self._copy(paths.REPOSITORY / file, PurePosixPath(file.as_posix()))
            return target
        if file not in self.documents:
            self._source(file)
        up = "../" * (len(PurePosixPath(address(document)).parts) - 1)
        return f"{up}{address(file)}{hash_}{anchor}"

    def _is_tracked(self, file: Path) -> bool:
        """True for a file of the repository that git tracks, which is no link; where there is no git, for one that is
        not hidden."""
        inside = file.relative_to(paths.REPOSITORY) if file.is_relative_to(paths.REPOSITORY) else Path(".outside")
        is_hidden = any(part.startswith(".") for part in inside.parts)
        is_known = not is_hidden if self.tracked is None else inside.as_posix() in self.tracked
        return is_known and file.is_file() and not has_link(file)

    def _source(self, file: Path) -> None:
        """Write the page of a file of the repository, which shows it as text."""
        if not (self.folder / address(file)).exists():
            text = (paths.REPOSITORY / file).read_text(encoding="utf-8", errors="replace")
            self._page("source.html", address(file), title=str(file), source=text)

    def _page(self, template: str, place: str, **values: Any) -> None:
        root = "../" * (len(PurePosixPath(place).parts) - 1)
        html = self.environment.get_template(template).render(root=root, **values)
        self._text(place, html)

    def _text(self, place: str, text: str) -> None:
        write_text(self._inside(place), text)

    def _copy(self, file: Path, place: PurePosixPath) -> None:
        target = self._inside(str(place))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target, follow_symlinks=False)

    def _inside(self, place: str) -> Path:
        """A place on the site. Raises UserError for one outside of its folder."""
        if not digests.is_inside(place):
            raise UserError(f"{place!r} is no place on the site.")
        return self.folder / place


def address(file: Path) -> str:
    """The address of a file of the repository on the site, from its root."""
    if file.name == README_FILE and len(file.parts) > 1:
        return (file.parent / "index.html").as_posix()
    return (file.with_suffix(".html") if file.suffix == ".md" else Path("source") / f"{file}.html").as_posix()


def chart_data(shown: Sequence[SiteExperiment], runs: Sequence[SiteRun]) -> Iterator[dict[str, Any]]:
    """The lines that one chart can show: runs, and the recipes of sweeps, whose seeds are a band."""
    for one in shown:
        entries = (one.board or {}).get("final", ())
        best = ranked(one.board) if one.board and entries else []  # first: a line's place decides its colour
        for entry in (*best, *(each for each in entries if each not in best)):
            recipe_run = recipe(one.name, entry)
            curves = recipe_run["curves"].values()
            if curves and all(steps for steps, *_ in curves):  # trained, and measured
                yield recipe_run
        for run in one.runs:
            yield run.browser_data()
    names = {one.name for one in shown}
    yield from (run.browser_data() for run in runs if run.results["experiment"] not in names)


def recipe(experiment: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe of a sweep as one run: at each step the mean over its seeds, and their band."""
    curves = {}
    for measure in dict.fromkeys(name for seed in entry["curves"].values() for name in seed if name != "step"):
        steps, means, band = over_seeds(entry, measure)
        low, high = ([edges and edges[end] for edges in band] for end in (0, 1))
        task, _, name = measure.rpartition("/")
        curves[f"{task or 'validation'}: {name if task else MEASURES.get(name, name)}"] = [steps, means, low, high]
    tokens = entry.get("target_tokens_per_step")
    totals = {"steps": entry["steps"], "tokens": tokens and tokens * entry["steps"], "flops": None, "seconds": None}
    settings = {"gin_file": entry.get("gin_file"), "candidate": entry.get("candidate"), "seeds": len(entry["seeds"])}
    facts = {"experiment": experiment, "parameters": None, "published": True}
    name = re.sub(r"[^\w.+=-]", "_", f"{experiment}-{entry['recipe']}")[:_MAX_ID]  # a file is named after it
    return {"id": name, **facts, "totals": totals, "curves": curves, "circumstances": {"gin": settings}}


def csv_of(curves: Mapping[str, Sequence[Sequence[float | None]]]) -> str:
    """Curves as CSV: a line for each point, "curve,step,value"."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["curve", "step", "value"])
    for name, (steps, values, *_) in curves.items():
        writer.writerows([name, step, value] for step, value in zip(steps, values, strict=True))
    return text.getvalue()


@dataclass(frozen=True)
class Documented:
    """A function or class, with the methods of a class. signature: as "load(name: str) -> Model"."""

    name: str
    signature: str
    text: str
    methods: tuple["Documented", ...] = ()


def public_interface() -> list[Documented]:
    """The functions, and then the classes, of `t5xpg.__all__`, read from the source of `t5xpg.api`: it loads JAX."""
    body = ast.parse((paths.PACKAGE / "api.py").read_text(encoding="utf-8")).body
    documented = [
        _documented(node)
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in t5xpg.__all__
    ]
    return sorted(documented, key=lambda one: one.name[0].isupper())


def _documented(node: ast.FunctionDef | ast.ClassDef) -> Documented:
    text = inspect.cleandoc(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        public = (one for one in node.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("_"))
        return Documented(node.name, f"class {node.name}", text, tuple(map(_documented, public)))
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
    returns = f" -> {ast.unparse(node.returns)}".replace("'", "") if node.returns else ""
    return Documented(node.name, f"{node.name}{'' if is_property else f'({arguments})'}{returns}", text)
