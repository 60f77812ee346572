"""What the pages name exists, their sessions print what they say, and results pages show what was published."""

import doctest
import inspect
import json
import re
from pathlib import Path

import pytest

import t5xpg
from t5xpg.base import paths
from t5xpg.commands import COMMANDS
from t5xpg.experiment import config
from t5xpg.experiment.gin_t5x import IMPORTS, translation
from t5xpg.experiment.identity import run_identity
from t5xpg.models.adaptation import check_adaptable
from t5xpg.models.adapters import PromptTuning
from t5xpg.run import report
from t5xpg.study import kinds, references
from tests.docs.pages import DOCS, EXPERIMENTS, INDEX, README, files_of
from tests.refusals import assert_named
from tests.workplace import REPOSITORY
from tests.written_pages import wrong_files

PAGES = [README, *(REPOSITORY / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")), INDEX, *DOCS, *EXPERIMENTS]
TARGETS = set(re.findall(r"[a-z][a-z-]+", (REPOSITORY / "Makefile").read_text(encoding="utf-8")))
SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NO_MODULES = {"t5xpg.json", "t5xpg.run_id", *(f"t5xpg.{name}" for name in t5xpg.__all__)}
# Recipes that nobody has run to their end; their pages say so.
NOT_RUN = {
    "norwegian_t5",
    "byt5_small_wikitext_gpu",
    "t5_1_1_base_c4",
    "scan_length",  # not since its model is of its folder: the page has the numbers of the commits before
}


def test_every_page_is_in_the_index() -> None:
    assert sorted([*DOCS, INDEX]) == sorted(INDEX.parent.glob("*.md"))
    listed = INDEX.with_name("experiments.md").read_text(encoding="utf-8")
    assert [
        name for name in (page.parent.name for page in EXPERIMENTS) if f"../experiments/{name}/" not in listed
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)#?([^)]*)\)", text):
        file = page.parent / link if link else page
        assert file.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}, anchor
    for path in re.findall(r"(?<![\w/])(?:t5xpg|gin|tests|docker|requirements|benchmarks)/[\w./-]*\w", text):
        assert (REPOSITORY / path).exists() or list(REPOSITORY.glob(f"{path}*")), path
    for name in set(re.findall(r"\bt5xpg(?:\.\w+)+", text)) - NO_MODULES:
        parts = name.split(".")
        modules = [REPOSITORY.joinpath(*parts[:end]) for end in range(len(parts), 1, -1)]
        module = next((one for one in modules if one.with_suffix(".py").exists() or one.is_dir()), None)
        assert module is not None, name
        rest = parts[len(module.relative_to(REPOSITORY).parts) :]
        source = module.with_suffix(".py") if not module.is_dir() else module / "__init__.py"
        assert all(re.search(rf"\b{one}\b", source.read_text(encoding="utf-8")) for one in rest[:1]), name
    for target in re.findall(r"`(?:\w+=\S+ )*make ([a-z-]+)", text) + re.findall(
        r"^make ([a-z-]+)", text, re.MULTILINE
    ):
        assert target in TARGETS


def test_names_of_other_programs_are_what_the_pages_say() -> None:
    """T5X's by the table that refuses them; what stands beside those of transformers exists."""

    def rows(page: str) -> list[tuple[list[str], list[str]]]:
        table = INDEX.with_name(page).read_text(encoding="utf-8").partition("<!-- names:begin -->")[2]
        cells = [line.split(" |") for line in table.partition("<!-- names:end -->")[0].splitlines() if "`" in line]
        return [(re.findall(r"`([^`]*)`", one[0]), re.findall(r"`([^`]*)`", one[1])) for one in cells]

    for (theirs,), ours in rows("from_t5x.md"):
        scope, _, rest = theirs.rpartition("/")
        said = translation(scope, *rest.rpartition(".")[::2])
        assert f"{theirs} of T5X is" in said
        assert [name for name in ours if name not in said] == []
    gin_text = "\n".join(file.read_text(encoding="utf-8") for file in paths.GIN.rglob("*.gin"))
    variables = {option.variable for command in COMMANDS.values() for option in command.options}
    for _, ours in rows("from_transformers.md"):
        for name in (one for one in ours if not one.startswith(("gin/", "'"))):
            module, *rest = name.rpartition("/")[2].split(".")
            if rest:
                exec(IMPORTS[module], names := {})
                assert rest[1] in inspect.signature(getattr(names[module], rest[0])).parameters, name
            else:
                assert name.removesuffix("=") in variables or re.search(rf"^{name} =", gin_text, re.MULTILINE), name


@pytest.mark.parametrize(
    "page", [page for page in DOCS if SESSION.search(page.read_text("utf-8"))], ids=lambda p: p.stem
)
def test_sessions_print_what_the_page_says(page: Path) -> None:
    """All of a page one after another, as one who reads it would type them."""
    text = page.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for number, session in enumerate(SESSION.finditer(text), start=1):
        line = text[: session.start(1)].count("\n")
        parsed = doctest.DocTestParser().get_doctest(session[1], names, f"session {number}", str(page), line)
        printed: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
        runner.run(parsed, out=printed.append, clear_globs=False)
        assert runner.failures == 0, "".join(printed)
        names = parsed.globs


def test_what_starts_from_a_checkpoint_on_the_page_builds(tmp_path: Path) -> None:
    page, built = INDEX.with_name("finetuning.md"), {}
    (added,) = re.findall(r"EXP=answers RUN=answers_prompt GIN=\"(.*)\"", page.read_text(encoding="utf-8"))
    prompt = [option.removeprefix("--gin_file=") for option in added.split()]
    for name, files in (("prefix_lm", []), ("adapted", []), ("answers", prompt)):
        (tmp_path / f"{name}.gin").write_text(files_of(page)[f"{name}.gin"])
        built[name] = config.load(str(tmp_path / f"{name}.gin"), (), files).experiment
    assert isinstance(built["answers"].adapter, PromptTuning)
    assert built["prefix_lm"].train_dataset.converter == "PrefixLMFeatureConverter"
    assert built["adapted"].initial is not None
    assert built["adapted"].initial.adapt_decoder
    check_adaptable(built["adapted"].model)


@pytest.mark.parametrize("page", EXPERIMENTS, ids=lambda page: page.parent.name)
def test_the_numbers_of_an_answer_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    answer, results = text.partition("**Answer.** ")[2].partition("\n\n")[0], text.partition(":begin -->")[2]
    assert answer
    assert [number for number in re.findall(r"\d+\.\d+", answer) if number not in results] == []


# the pages of many runs: tests/study
NAMES = [page.parent.name for page in EXPERIMENTS if kinds.study_of(page.parent.name, Path()) is None]


@pytest.mark.parametrize("name", NAMES)
def test_published_results_are_what_their_records_say(name: str) -> None:
    folder = paths.EXPERIMENTS / name
    assert wrong_files(folder) == []
    if name in NOT_RUN:
        assert not (folder / report.RESULTS_FILE).exists()
        return
    results = report.read_results(folder / report.RESULTS_FILE)
    assert results["experiment"] == name
    assert results.get("references", []) == list(references.of_experiment(folder))
    experiment = config.load(name).experiment
    assert results["identity"]["seed"] == experiment.random_seed
    assert results["steps"] == results["total_steps"] == experiment.total_steps
    current = json.loads(json.dumps(run_identity(experiment, None)["settings"]))
    published = results["identity"]["settings"]
    different = {key for key in published.keys() | current.keys() if published.get(key, "?") != current.get(key, "?")}
    assert different == set(), "run it again: the gin file has changed"


def test_the_page_has_the_numbers_of_the_receipt() -> None:
    receipt = json.loads((paths.EXPERIMENTS / "demo" / "resume_receipt.json").read_text(encoding="utf-8"))
    kills = receipt["kills"]
    listed = ", ".join(f"{phase} {count}" for phase, count in kills["by_phase"].items())
    page = " ".join(INDEX.with_name("runs.md").read_text(encoding="utf-8").split())
    assert_named(page, [f"{kills['dealt']} kills", listed, f"KILLS={kills['asked']}", " ".join(receipt["overrides"])])
    assert (receipt["proven"], receipt["differences"]) == (True, [])
