"""The site: its pages hang together, fetch nothing, and show the numbers of the records."""

import html
import json
import os
import re
import statistics
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from t5xpg.base import paths
from t5xpg.base.curves import COMPARED
from t5xpg.base.files import read_json, sha256_of_file, write_json
from t5xpg.base.markdown import cell
from t5xpg.data.vocab.record import RECORD, folder_of
from t5xpg.run.report import publish
from t5xpg.run.results import read_results
from t5xpg.site import lineage
from t5xpg.site.build import PARTS, Site, build, chart_data, csv_of, recipe
from t5xpg.site.lineage import ABSENT, SAME, STALE
from t5xpg.site.markup import compared, html_of
from t5xpg.site.records import changes_since, experiments, headline, local_runs
from tests.refusals import assert_named, refused
from tests.run.test_report import added_by, make_run


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the checkout and of two experiments of a user: a gin file alone, and a sweep that is under way."""
    own = tmp_path_factory.mktemp("experiments")
    for name in ("begun", "just_gin"):
        (own / name).mkdir()
        (own / name / f"{name}.gin").touch()
    board = read_json(paths.EXPERIMENTS / "optimizers_tiny" / "leaderboard.json")
    board["final"][0]["curves"] = {}
    write_json(own / "begun" / "leaderboard.json", board)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "EXPERIMENTS", own)
        patch.setenv("T5XPG_RUNS_DIR", str(runs := tmp_path_factory.mktemp("runs")))
        make_run(runs / "alone", experiment="of_no_folder")
        return build(tmp_path_factory.mktemp("built") / "site").parent


def test_links_lead_somewhere_and_nothing_is_fetched(site: Path) -> None:
    pages = {path: path.read_text() for path in site.glob("**/*.html")}
    anchors = {path: set(re.findall(r'\sid="([^"]*)"', text)) for path, text in pages.items()}
    assert {site / "experiments" / name / "index.html" for name in ("nb_nn", "begun", "just_gin")} <= pages.keys()
    wrong = []
    for page, text in pages.items():
        for tag, address in re.findall(r'<(\w+)[^>]*?\s(?:href|src)="([^"]*)"', text):
            parts = urlsplit(html.unescape(address))
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            found = tag == "a" or "//" not in address
            if parts.scheme in ("", "file"):
                found = target.is_file() and parts.fragment in anchors.get(target, {parts.fragment}) | {""}
            if not found:
                wrong.append(f"{page.relative_to(site)}: {address}")
    assert not wrong, "\n".join(wrong)


def test_answers_on_cards_have_no_markup(site: Path) -> None:
    (answer,) = re.findall('class="answer">(So far .*)</p>', (site / "index.html").read_text())
    assert "the demo&#39;s recipe" in answer


def test_a_package_without_documents_links_to_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "REPOSITORY", tmp_path / "shipped")
    Site(tmp_path, [], []).write()
    assert not [page for page in tmp_path.glob("*.html") if re.search('href="[^"]*docs/', page.read_text())]


def test_numbers_are_those_of_the_records(site: Path) -> None:
    results = read_results(paths.EXPERIMENTS / "nb_nn" / "results.json")
    found = headline(results)
    assert found is not None
    of_seeds = [one["other_splits"]["test"]["metrics"] for one in (results, *results["seeds"])]
    mean = statistics.fmean(metrics["bleu"] for (metrics,) in map(dict.values, of_seeds))
    assert (found.measure, found.value) == ("bleu", pytest.approx(mean))
    assert ("NorT5-x-small, pretrained", 82.1) in found.others
    assert f"<strong>{cell(mean)}</strong> bleu, {found.measured_on}" in (site / "index.html").read_text()
    data = added_by((site / "data" / "nb_nn.js").read_text())
    curve = results["curves"]["validation"]
    assert data["curves"]["validation: nats per target byte"] == [curve["step"], curve["nats_per_byte"]]
    assert json.loads((site / "data" / "nb_nn.json").read_text()) == results
    last = (site / "data" / "nb_nn.csv").read_text().splitlines()[len(curve["step"])]
    assert last == f"validation: nats per target byte,{curve['step'][-1]},{curve['nats_per_byte'][-1]}"
    # a run of no experiment is compared, and a recipe that is not trained yet is not
    page = (site / "compare.html").read_text()
    assert all(name in page for name in ('value="runs-alone"', "optimizers_tiny-adafactor", "begun-adamw"))
    assert "begun-adafactor" not in page


def test_reproductions_of_other_results_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path))
    for name, of in (("new", sha256_of_file(paths.EXPERIMENTS / "demo" / "results.json")), ("old", "0" * 64)):
        write_json(tmp_path / name / "reproduction.json", {"experiment": "demo", "of": of, "same": name == "new"})
    (shown,) = [one for one in experiments([]) if one.name == "demo"]
    assert [kind for kind, _ in shown.state if kind != "old"] == ["good"]


def test_what_is_the_number_of_an_experiment() -> None:
    """Words filled in, where nothing is published; a reference of a mixture is of one of its tasks."""
    results = read_results(paths.EXPERIMENTS / "demo" / "results.json")
    words = [one["evaluation"]["blanks"]["word"] for one in (results, *results["seeds"])]
    found = headline(results)
    assert found is not None
    assert found.value == pytest.approx(statistics.mean(one["exact_match"] for one in words))
    assert dict(found.others)["most frequent word"] == words[0]["unigram"]
    results = read_results(paths.EXPERIMENTS / "nb_nn" / "results.json")
    (task,) = results["other_splits"]["test"]["metrics"]
    named = [{**one, "metric": f"{task}/{one['metric']}"} for one in results["references"]]
    assert headline({**results, "references": named}) == headline(results)


def test_what_is_the_users_comes_first_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the last start or writing; a published run and its directory are one, one that went on stays beside."""
    monkeypatch.setenv("T5XPG_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(paths, "EXPERIMENTS", tmp_path / "own")
    for name in ("tiny", "written"):
        (tmp_path / "own" / name).mkdir(parents=True)
        (tmp_path / "own" / name / f"{name}.gin").touch()
    os.utime(tmp_path / "own" / "written" / "written.gin", (10, 10))
    publish(make_run(tmp_path / "runs" / "tiny"), tmp_path / "own" / "tiny", allow_changed=True)
    make_run(tmp_path / "runs" / "longer", steps=800)
    make_run(tmp_path / "runs" / "mine", experiment="nb_nn")
    shown = experiments(list(local_runs()))
    assert [one.name for one in shown[:3]] == ["nb_nn", "tiny", "written"]
    assert [one.name for one in shown[3:]] == sorted(one.name for one in shown[3:])
    assert [run.id for run in shown[1].runs] == ["tiny", "runs-longer"]


def test_colours_of_a_sweep_are_those_of_its_picture() -> None:
    """The first lines of a chart are those of the picture, in its order, and so are the first colours."""
    (shown,) = [one for one in experiments([]) if one.name == "optimizers_tiny"]
    assert shown.board
    picture = (shown.folder / "steps.svg").read_text()
    best = sorted(shown.board["final"], key=lambda entry: entry["mean_loss"])[: len(COMPARED)]
    charted = [run["id"] for run in chart_data([shown], [])]
    assert charted[: len(best)] == [f"optimizers_tiny-{entry['recipe']}" for entry in best]
    (colours,) = re.findall(r"COLOURS = \[(.*)\]", (PARTS / "static" / "site.js").read_text())
    of_picture = [re.findall(rf"\.{kind} {{ stroke: (#\w+); stroke-width", picture)[0] for kind in COMPARED]
    assert json.loads(f"[{colours}]")[: len(COMPARED)] == of_picture


def test_seeds_of_a_sweep_are_a_band() -> None:
    curves = {
        "0": {"step": [0, 1, 2], "nats_per_byte": [4.0, 2.0, 1.0]},
        "1": {"step": [0, 2], "nats_per_byte": [6.0, None]},
    }
    entry = {"recipe": "muon", "steps": 2, "seeds": [0, 1], "curves": curves, "target_tokens_per_step": 10.5}
    found = recipe("sweep", entry)
    assert found["curves"] == {"validation: nats per target byte": [[0, 2], [5.0, None], [4.0, None], [6.0, None]]}
    assert found["totals"]["tokens"] == 21.0
    assert [line.split(",")[1:] for line in csv_of(found["curves"]).splitlines()[1:]] == [["0", "5.0"], ["2", ""]]


def test_a_vocabulary_is_compared_with_that_of_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "data_directory", lambda: tmp_path)
    for name in ("unigram_9", "bpe_9"):
        (folder := folder_of(tmp_path, "mine", name)).mkdir(parents=True)
        (folder / RECORD).write_text("{}")
        (folder / "sentencepiece.model").write_text(name)
    digest = sha256_of_file(folder / "sentencepiece.model")
    for name, state in (("bpe_9", SAME), ("unigram_9", STALE), ("bpe_7", ABSENT)):
        identity = {"data": {"task": f"mine_lm_mine_{name}"}, "vocabulary": {"model_sha256": digest}}
        assert [link.state for link in lineage._vocabulary({"identity": identity})] == [state]


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years")
    with refused(str(tmp_path), "OUTPUT="):
        build(tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["years"]


HOSTILE = "<img src=x onerror=alert(1)>\"'&</script>"


def hostile_site(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """A site in `folder` of experiments and runs that want to leave it, or to run a script in it."""
    own, secret = folder / "experiments", folder / "secret.txt"
    secret.write_text("the secret")
    board = read_json(paths.EXPERIMENTS / "optimizers_tiny" / "leaderboard.json")
    board["final"][0]["recipe"], board["final"][1]["recipe"] = "/../../../../escaped", HOSTILE
    for name in ("plain", "linked_page", "x" + HOSTILE.replace("/", "_")):
        (own / name).mkdir(parents=True)
        (own / name / "a.gin").touch()
    write_json(own / "plain" / "leaderboard.json", board)
    links = "[a](../../.git/config) [b](../../../secret.txt) [c](/etc/passwd) ![d](other.svg) [e](../../Makefile)"
    (own / "plain" / "README.md").write_text(f"# {HOSTILE}\n\n**Question.** {HOSTILE}\n\n{links}\n")
    for name in ("curve.svg", "other.svg", "results.json"):
        (own / "plain" / name).symlink_to(secret)
    (own / "linked_page" / "README.md").symlink_to(secret)
    patch.setattr(paths, "EXPERIMENTS", own)
    patch.setenv("T5XPG_RUNS_DIR", str(runs := folder / "runs"))
    for name in ("a run#1%2e", HOSTILE.replace("/", "_")):
        make_run(runs / name, experiment=HOSTILE)
    return build(folder / "site").parent


def test_nothing_leaves_the_site_and_nothing_else_enters_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = hostile_site(tmp_path, monkeypatch)
    assert {path.name for path in tmp_path.iterdir()} == {"experiments", "runs", "secret.txt", "site"}
    for path in site.rglob("*"):
        assert not path.is_symlink()
        if path.is_file() and path.suffix not in (".woff2", ".ico", ".png"):
            text = path.read_text()
            assert "the secret" not in text
            assert "[core]" not in text, "git's configuration"
            assert "<img src=x" not in text or path.suffix in (".json", ".js"), path
    assert "escaped" in "".join(path.name for path in (site / "data").iterdir())
    assert (site / "source" / "Makefile.html").exists(), "which git tracks"
    assert not (site / "experiments" / "linked_page").exists()


def test_what_is_no_commit_is_not_given_to_git(tmp_path: Path) -> None:
    for commit in (f"--output={tmp_path / 'written'}", "HEAD", "", "0" * 39):
        assert changes_since(commit, tmp_path) is None
    assert not any(tmp_path.iterdir())


def test_a_link_to_a_folder_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Site, "write", lambda self: (self.folder / "index.html").write_text("new"))
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "root")
    build(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "root" / "index.html").read_text() == "new"


def test_markdown_becomes_html_with_links_of_the_site() -> None:
    html = html_of("<!-- no -->\n[x](y.md) <i>\n\n| a |\n|---|\n| ![p](c.svg) |", lambda link: f"../{link}")
    assert_named(html, ['<a href="../y.md">x</a> &lt;i&gt;', '<td><img src="../c.svg" alt="p"'])
    assert "no" not in html
    assert compared("a red <b>", "a green <b> too") == "a <del>red</del><ins>green</ins> &lt;b&gt;<ins> too</ins>"
    assert compared("Ein Hund, groß.", "A dog, <b>.") == "A dog, &lt;b&gt;."
