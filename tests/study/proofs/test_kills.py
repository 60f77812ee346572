"""How kills are dealt, aimed and counted, on a trainer that only seems to train."""

import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from t5xpg.base import locks
from t5xpg.base.files import read_json
from t5xpg.base.phases import PHASES
from t5xpg.study.proofs import resume
from t5xpg.study.proofs.comparison import RunComparison
from t5xpg.study.proofs.kills import WatchedRun, kill_in
from tests.refusals import refused

pytestmark = pytest.mark.process

INTERPRETER = os.path.realpath(sys.executable)

# A trainer that only seems to train: it tells its phases, makes folders for checkpoints, and goes on after the last.
TRAINER = """\
import json, os, pathlib, sys, time

def tell(*words):
    os.write(int(os.environ["T5XPG_PHASES"]), (" ".join(map(str, words)) + "\\n").encode())

def phase(name, *step, seconds={seconds}):
    tell("begin", name, *step)
    time.sleep(seconds)
    tell("end", name, *step)

run = pathlib.Path(next(word for word in sys.argv if word.startswith("--run=")).removeprefix("--run="))
checkpoints = run / "checkpoints"
checkpoints.mkdir(parents=True, exist_ok=True)
record = {{"format": 1, "experiment": "small", "identity": {{}}, "starts": [{{"devices": None}}]}}
(run / "run.json").write_text(json.dumps(record))
saved = max((int(folder.name) for folder in checkpoints.iterdir()), default=0)
if saved == 12:
    sys.exit()
phase("compile")
if saved:
    phase("restore", saved)
else:
    phase("evaluate", 0)
{extra}
for step in range(saved + 1, 13):
    phase("step", step)
    if step % 6 == 0:
        phase("evaluate", step)
    if step % 3 == 0:
        tell("begin", "save", step)
        time.sleep({seconds})
        (checkpoints / str(step)).mkdir()
        tell("end", "save", step)
"""


@pytest.fixture
def trainer(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The made-up trainer in the place of the interpreter that `python -m t5xpg train` is started with."""
    file = own_place / "trainer"
    write_trainer(file)
    monkeypatch.setattr(sys, "executable", str(file))
    monkeypatch.setattr(resume, "compare", lambda *arguments: RunComparison())
    return file


def write_trainer(file: Path, extra: str = "", seconds: float = 0.03) -> None:
    file.write_text(f"#!{INTERPRETER}\n{TRAINER.format(extra=extra, seconds=seconds)}")
    file.chmod(0o755)


def prove(folder: Path, *overrides: str, kills: int = 5) -> int:
    return resume.prove_resume(str(folder.with_name("small.gin")), overrides, kills=kills, seed=0, path=folder)


def test_every_phase_gets_its_share(trainer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "_FRUITLESS", 10_000)  # on a slow machine many kills come too late
    folder = tmp_path / "proof"
    assert prove(folder, kills=23) == 0
    receipt = read_json(folder / "receipt.json")
    kills, counts = receipt["list_of_kills"], receipt["kills"]["by_phase"]
    assert all(counts[name] >= 4 for name in PHASES)
    assert receipt["starts"] > receipt["kills"]["dealt"] >= 23
    assert Counter(kill["phase"] or "between" for kill in kills) == counts
    # none restores where nothing was saved, and each counts for a phase that was open
    assert all(kill["step"] >= 3 for kill in kills if kill["phase"] == "restore")
    assert all(kill["phase"] in kill["open"] for kill in kills if kill["phase"])
    # a later proof takes the place of this one
    (folder / "killed" / "of the first").touch()
    assert prove(folder, kills=1) == 0
    assert not (folder / "killed" / "of the first").exists()


def test_a_proof_fails_where_the_runs_differ(trainer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "_FRUITLESS", 10_000)  # on a slow machine many kills come too late
    monkeypatch.setattr(resume, "compare", lambda _, *given: RunComparison(differences=[" ".join(map(str, given))]))
    folder = tmp_path / "proof"
    assert prove(folder, kills=1) == 1
    receipt = read_json(folder / "receipt.json")
    difference = f"{folder / 'unbroken'} {folder / 'killed'} 12"
    assert (receipt["proven"], receipt["differences"]) == (False, [difference])


def test_starts_that_fail_and_kills_that_never_hit_come_to_an_end(trainer: Path, tmp_path: Path) -> None:
    write_trainer(trainer, extra="sys.exit('no room for it')")
    with refused("exit code 1", "output.log", "no room for it"):
        prove(tmp_path / "proof")
    write_trainer(trainer, seconds=0.0)  # a restore that is told and over at once cannot be hit
    trainer.write_text(trainer.read_text().replace('phase("restore", saved)', "pass"))
    with refused("8 starts in a row"):
        prove(tmp_path / "proof")


def test_what_is_refused(trainer: Path, tmp_path: Path) -> None:
    folder, file, other = tmp_path / "proof", tmp_path / "file", tmp_path / "other"
    with refused("--gin.CHECKPOINT_PERIOD=1"):
        prove(folder, "--gin.CHECKPOINT_PERIOD=12")
    assert not folder.exists()
    (folder / "photographs").mkdir(parents=True)
    file.touch()
    with locks.hold(other / ".lock", doing="proving", instead=""):
        for place, named in ((folder, "photographs"), (file, "no folder"), (other, f"Process {os.getpid()}")):
            with refused(named):
                prove(place)


def start(tmp_path: Path, program: str) -> WatchedRun:
    tell = "import os, sys, time\ndef tell(text): os.write(int(os.environ['T5XPG_PHASES']), text.encode())\n"
    return WatchedRun([sys.executable, "-c", tell + program], tmp_path / "log")


def test_updates_overlap(tmp_path: Path) -> None:
    told = "begin save 4\\nend save 4\\nbegin step 5\\nbegin step 6\\nend step 5\\nbegin evaluate 0\\n"
    with start(tmp_path, f"tell('{told}'); time.sleep(600)") as run:
        while not run.steps["evaluate"]:
            assert not run.ended
            run.listen(1.0)
        assert run.steps["step"] == [5, 6]
        assert [len(run.durations[name]) for name in ("save", "step")] == [1, 1]
        assert run.kill() == ["step", "evaluate"]
        assert run.exit_code == -signal.SIGKILL
    with pytest.raises(KeyboardInterrupt), start(tmp_path, "time.sleep(600)") as run:
        raise KeyboardInterrupt
    assert run.exit_code == -signal.SIGKILL, "an interrupted proof leaves no process"


def test_a_start_that_hangs(tmp_path: Path) -> None:
    with start(tmp_path, "time.sleep(600)") as run, refused("compile"):
        kill_in(run, "compile", 1, 0.0, limit_seconds=0.1)
