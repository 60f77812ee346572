"""`make verify-claim` on a small repository whose Makefile only says that it installs and trains."""

from pathlib import Path

import pytest

from t5xpg.base import paths
from t5xpg.base.files import read_json, sha256_of_file, write_json
from t5xpg.run.provenance import commit_of
from t5xpg.study.reproduce import claim
from t5xpg.study.reproduce.comparison import DIFFERENT, NOT_COMPARED, SAME, WITHIN
from tests.refusals import assert_named, refused
from tests.study.reproduce.test_comparison import Results, results
from tests.workplace import git

MAKEFILE = """
install:
	@mkdir -p .venv
reproduce: .venv
	@mkdir -p "$(RUN)" && cp run.json metrics.jsonl "$(RUN)"
	@of=$$(sha256sum < experiments/$(EXP)/results.json | cut -c 1-64); \\
		sed "s/OF/$$of/; s/: 12/: $${STEPS:-12}/" outcome.json > "$(RUN)/reproduction.json"
	@grep -q different outcome.json && exit 1 || exit 0
"""


def outcome(verdict: str = SAME) -> Results:
    rows = [{"what": "validation loss", "published": "1", "here": "1", "verdict": verdict}]
    return {"experiment": "tiny", "of": "OF", "steps": 12, "same": verdict != DIFFERENT, "numbers": rows}


def receipt(of: str = "ab" * 32) -> Results:
    return {
        "format": claim.FORMAT, "experiment": "tiny", "verdict": SAME, "reproduction": {**outcome(), "of": of},
        "claim": {"results": of, "commit": "cd" * 20, "repository": None}, "ended": "now", "by": "Ada <é>",
    }  # fmt: skip


def test_the_verdict_is_the_worst_of_the_numbers() -> None:
    for verdicts in ([SAME, WITHIN, NOT_COMPARED, DIFFERENT], [SAME, WITHIN], [NOT_COMPARED, SAME], []):
        worst = verdicts[-1] if verdicts else NOT_COMPARED
        assert claim.verdict({"numbers": [{"verdict": one} for one in verdicts]}) == worst


def test_only_one_commit_without_changes_can_be_cloned() -> None:
    commit = {"commit": "ab" * 20, "clean": True}
    later = {"sources": {"training": [{**commit, "commit": "cd" * 20}], "evaluation": []}}
    assert commit_of({"sources": {"training": [commit], "evaluation": []}, "seeds": [later]}) == "ab" * 20
    changed, other, option = ({**commit, **one} for one in ({"clean": False}, {"commit": "cd" * 20}, {"commit": "-x"}))
    for training in ([changed], [commit, other], [option], [None]):
        assert commit_of({"sources": {"training": training, "evaluation": []}}) is None


def test_what_is_no_receipt_of_an_experiment_here_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_json(file, receipt())
    assert claim.read(file) == receipt()
    text = file.read_text()
    for changed in (
        text.replace('"verdict": "same",\n  "repro', '"verdict": "different",\n  "repro'),
        text.replace('"by"', '"verdict": "same",\n  "by"'),
        text.replace("\n", ""),
        text.replace('"of": "ab', '"of": "cd'),
        text.replace('"now"', "NaN"),
        "[" * 100_000,
    ):
        file.write_text(changed)
        with refused("a.json", "make verify-claim"):
            claim.read(file)
    write_json(file, {**receipt(), "experiment": "demmo"})
    with refused("'demmo'", "Did you mean demo"):
        claim.check(file)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One commit that trains, and one with its results, which are of the first."""
    folder = tmp_path / "a repository"
    (folder / "t5xpg").mkdir(parents=True)
    (folder / "experiments" / "tiny").mkdir(parents=True)
    versions = {"python": "3.11.7", "t5xpg": "0.1.0"}
    host = {"platform": "Linux x86_64", "cpu": "mine"}
    start = {"step": 0, "host": host, "devices": {"platform": "cpu"}, "versions": versions}
    write_json(folder / "run.json", {"format": 1, "experiment": "tiny", "identity": {"data": None}, "starts": [start]})
    write_json(folder / "outcome.json", outcome())
    empty = dict.fromkeys(("metrics.jsonl", "t5xpg/__init__.py", "experiments/tiny/tiny.gin"), "")
    for name, text in {"Makefile": MAKEFILE, ".gitignore": "/runs\n.venv\n", **empty}.items():
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    commit_all(folder)
    publish(folder)
    (folder / ".gitignore").write_text("/runs\n.venv\n/mine/\n")
    commit_all(folder)
    for name, value in (("REPOSITORY", folder), ("EXPERIMENTS", folder / "experiments")):
        monkeypatch.setattr(paths, name, value)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "none"))
    git(folder, "config", "user.name", "Ada")
    git(folder, "config", "user.email", "ada@example.org")
    git(folder, "remote", "add", "origin", "https://me:secret@example.org/t5xpg.git")
    return folder


def publish(folder: Path) -> Path:
    """Results of the last commit."""
    commit = {"commit": git(folder, "rev-parse", "HEAD"), "clean": True}
    file = folder / "experiments" / "tiny" / "results.json"
    write_json(file, {**results(12), "sources": {"training": [commit], "evaluation": []}})
    return file


def commit_all(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A commit")


@pytest.mark.process
def test_a_claim_is_verified_and_its_receipt_checked(
    repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAKEFLAGS", "-n")  # of an outer make
    folder, published = tmp_path / "claim", repository / "experiments" / "tiny" / "results.json"
    assert claim.verify("tiny", folder) == 0
    assert "same; receipt: " in capfd.readouterr().out
    file = folder / "receipt.json"
    found = read_json(file)
    first = git(repository, "rev-parse", "HEAD~1")
    assert git(folder / "checkout", "rev-parse", "HEAD") == first
    address = "https://example.org/t5xpg.git"
    assert found["claim"] == {"results": sha256_of_file(published), "commit": first, "repository": address}
    assert (found["by"], found["hardware"]["cpu"]) == ("Ada <ada@example.org>", "mine")
    assert claim.check(file) == 0
    for changed in (
        {"reproduction": {**found["reproduction"], "steps": 0}},
        {"reproduction": {**found["reproduction"], "steps": 10**9}},
        {"reproduction": {**found["reproduction"], "numbers": []}, "verdict": "not compared"},
    ):
        write_json(tmp_path / "empty.json", {**found, **changed})
        with refused("empty.json", "shows nothing"):
            claim.check(tmp_path / "empty.json")
    capfd.readouterr()
    assert claim.check(file) == 0
    assert_named(capfd.readouterr().out, ["same: tiny, 12 of 12 steps"])
    write_json(published, {**read_json(published), "steps": 13})
    with refused("published here"):
        claim.check(file)


@pytest.mark.process
def test_numbers_that_differ_are_a_receipt_too(
    repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert claim.verify("tiny", tmp_path / "claim") == 0
    checkout = tmp_path / "claim" / "checkout"
    (checkout / "mine").mkdir()
    (checkout / "mine" / "train.txt").touch()  # a file of the user's own, which the experiment needs
    assert claim.verify("tiny", tmp_path / "claim") == 0
    (checkout / "json.py").touch()  # it would be imported
    with refused("OUTPUT"):
        claim.verify("tiny", tmp_path / "claim")
    write_json(repository / "outcome.json", outcome(DIFFERENT))
    commit_all(repository)
    publish(repository)
    with refused("OUTPUT"):
        claim.verify("tiny", tmp_path / "claim")
    assert claim.verify("tiny", tmp_path / "another", steps=5) == 1
    capfd.readouterr()
    assert claim.check(tmp_path / "another" / "receipt.json") == 1
    assert_named(capfd.readouterr().out, ["different", "5 of 12 steps"])


@pytest.mark.process
def test_what_cannot_be_verified_is_said(repository: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (repository / "Makefile").write_text("install:\n\t@exit 3\n")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{repository}", str(shallow))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "REPOSITORY", shallow)
        with refused("git fetch --unshallow"):
            claim.verify("tiny", tmp_path / "claim")
    assert list((tmp_path / "claim").iterdir()) == []
    commit_all(repository)
    publish(repository)
    assert claim.verify("tiny", tmp_path / "claim") == 1
    assert "no receipt" in capfd.readouterr().out
