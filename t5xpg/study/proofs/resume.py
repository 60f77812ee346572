"""Proof by command that a run is the same run however often it is killed: `make prove-resume EXP=… KILLS=20`.

The experiment is trained once without interruption, into `<folder>/unbroken`, and again into `<folder>/killed`, where
SIGKILL ends it in each of the phases of `t5xpg.base.phases` and the same command is called again. Every
killed run that comes to its end is compared with the unbroken one; the receipt is kept beside them.
"""

from __future__ import annotations

import math
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from t5xpg.base import environment, locks
from t5xpg.base.errors import UserError
from t5xpg.base.files import last_lines
from t5xpg.base.paths import shown
from t5xpg.base.phases import PHASES
from t5xpg.base.progress import duration
from t5xpg.experiment import config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.run.directory import RunDirectory
from t5xpg.study.proofs.comparison import Comparison, PositionComparison, compare, kept
from t5xpg.study.proofs.kills import Course, Deck, Kill, WatchedRun, kill_in, kill_once_saved
from t5xpg.study.proofs.receipt import JSON_NAME, TEXT_NAME, Receipt

_UNBROKEN, _KILLED, _LOG, _LOCK = "unbroken", "killed", "output.log", ".lock"
# Starts in a row whose kill served no share, after which something is wrong with the run or with its marks.
_FRUITLESS = 8
_OUTPUT_LINES = 15


def prove_resume(experiment: str, overrides: Sequence[str], *, kills: int, seed: int, path: Path) -> int:
    """Prove the exact resume of an experiment; prints a receipt and keeps it in the folder `path`.

    overrides: "--gin.X=Y" and "--gin_file=…", handed to the training. kills: how many at least, in equal shares of the
    phases. seed: of the moments. Returns the exit code: 0 where every killed run equals the unbroken one bit for bit,
    1 where not. Raises UserError for what the user can mend. What an earlier proof left in `path` is replaced.
    """
    loaded = config.load(experiment, *config.split_overrides(" ".join(overrides)))
    _check(loaded, kills)
    jax.config.update("jax_platforms", "cpu")  # this process only reads arrays: accelerators are the training's
    folder = path.absolute()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is no folder. Name another one with RUN=…")
    with locks.hold(
        folder / _LOCK,
        doing=f"proving a resume in {shown(folder)}",
        instead="Wait for it, or name another folder with RUN=…",
    ):
        _clear(folder)
        return _Proof(loaded, experiment, overrides, kills, seed, folder).run()


def _check(loaded: LoadedConfig, kills: int) -> None:
    if kills < 1:
        raise UserError(f"KILLS={kills}: it must be at least 1.")
    period, steps = loaded.experiment.checkpoints.period, loaded.experiment.total_steps
    if period >= steps:
        raise UserError(
            f"{loaded.name} has no checkpoint before its end (CHECKPOINT_PERIOD {period:,}, TRAIN_STEPS {steps:,}), so "
            f'that no start continues another. Save more often: GIN="--gin.CHECKPOINT_PERIOD={max(1, steps // 10)}".'
        )


def _clear(folder: Path) -> None:
    """Remove an earlier proof; raise UserError where `folder` holds anything else."""
    own = {_UNBROKEN, _KILLED, _LOG, _LOCK, JSON_NAME, TEXT_NAME}
    strangers = sorted(entry.name for entry in folder.iterdir() if entry.name not in own)
    if strangers:
        raise UserError(
            f"{folder} holds something else than a proof: {', '.join(strangers[:5])}"
            f"{' and more' if len(strangers) > 5 else ''}. Name another folder with RUN=…, or delete it."
        )
    for name in sorted(own - {_LOCK}):
        entry = folder / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


class _Proof:
    """The runs of one proof, and what has been counted and compared so far."""

    def __init__(
        self, loaded: LoadedConfig, experiment: str, overrides: Sequence[str], kills: int, seed: int, folder: Path
    ) -> None:
        self._loaded, self._experiment, self._overrides = loaded, experiment, tuple(overrides)
        self._asked, self._seed, self._folder = kills, seed, folder
        self._steps = loaded.experiment.total_steps
        self._draw = random.Random(seed)
        self._deck = Deck(kills, self._draw)
        self._kills: list[Kill] = []
        self._rounds = 1
        self._starts = 0
        self._fruitless = 0
        self._began = time.monotonic()
        self._source = environment.git_state()

    def run(self) -> int:
        """Train, kill, compare; returns the exit code."""
        _say(f"training {self._steps:,} steps without interruption, into {shown(self._folder / _UNBROKEN)}")
        self._train_unbroken()
        with PositionComparison(self._loaded) as positions:
            while True:
                whole = self._deal_until_the_end()
                if not whole:
                    self._finish()
                comparison = compare(self._folder / _UNBROKEN, self._folder / _KILLED, self._steps, positions)
                _say(f"round {self._rounds}: {'equal' if not comparison.differences else 'DIFFERENT'}")
                if comparison.differences or not self._deck.left:
                    break
                shutil.rmtree(self._folder / _KILLED)
                self._rounds += 1
        return self._close(comparison)

    def _train_unbroken(self) -> None:
        with self._start(_UNBROKEN) as run:
            while not run.ended:
                run.listen(1.0)
            self._check_exit(run)
            self._whole_seconds = run.seconds
        self._steps = self._saved(_UNBROKEN) or self._steps  # it may end early
        self._course = Course(run.steps, run.durations)
        silent = [name for name in PHASES if name != "restore" and not run.steps[name]]
        if silent:
            raise UserError(
                f"The training of {self._loaded.name} said nothing of these phases, so that it cannot be killed in "
                f"them: {', '.join(silent)}. Is {self._folder / _UNBROKEN} a run of {self._steps:,} steps?"
            )
        _say(f"that took {duration(self._whole_seconds)}; now killing, {self._asked} times or more")

    def _deal_until_the_end(self) -> bool:
        """Start and kill, until every phase has its share; returns whether the run came to its end before that."""
        while left := self._deck.left:
            at_end = self._start_and_kill()
            self._fruitless = self._fruitless + 1 if self._deck.left == left else 0
            if self._fruitless >= _FRUITLESS:
                raise UserError(
                    f"{_FRUITLESS} starts in a row ended in none of the phases that the run still has to be killed in. "
                    "Longer phases are easier to hit (a larger model, more EVAL_STEPS); or try another KILL_SEED."
                )
            if at_end:
                return True
        return False

    def _start_and_kill(self) -> bool:
        """One start of the killed run; returns whether it came to its end."""
        saved = self._saved(_KILLED)
        aim, occurrence = self._aim(saved)
        with self._start(_KILLED) as run:
            limit = 600 + 10 * self._whole_seconds
            if occurrence:
                died_in = kill_in(run, aim, occurrence, self._course, self._draw, limit_seconds=limit)
            else:
                died_in = kill_once_saved(run, limit_seconds=limit)
            self._course.learn(run)
            if died_in is None:
                self._check_exit(run)
                return True
            reached = max((step for step in run.steps["step"] if step), default=saved or 0)
            kill = Kill(self._rounds, aim, tuple(died_in), reached, run.seconds)
        self._deck.count(kill.phase)
        self._kills.append(kill)
        where = kill.phase or "between"
        _say(
            f"kill {len(self._kills):>3}  {where:<8}  at step {kill.step:,}, {kill.seconds:.1f} s after the start; "
            f"{self._deck.left} to come{'' if where == aim else f'  (meant for {aim})'}"
        )
        return False

    def _aim(self, saved: int | None) -> tuple[str, int]:
        """A phase, and which of those that come in a start from the checkpoint `saved`.

        ("save", 0) where no share is left but that of restoring, and nothing is saved yet: the run has to get on.
        """
        coming = self._course.occurrences(saved)
        aim = self._deck.deal(coming)
        if aim is None:
            return "save", 0
        # Far enough on average that the kills reach over the whole run; not the last one, which may be missed.
        reach = max(math.ceil(coming[aim] / 5), round(2 * coming[aim] / self._deck.left))
        return aim, self._draw.randint(1, max(1, min(reach, coming[aim] - 1)))

    def _finish(self) -> None:
        _say("every phase has its share; the killed run goes on to its end")
        with self._start(_KILLED) as run:
            while not run.ended:
                run.listen(1.0)
            self._check_exit(run)

    def _start(self, name: str) -> WatchedRun:
        if name == _KILLED:
            self._starts += 1
        directory = RunDirectory(self._folder / name)
        command = [
            sys.executable,
            "-m",
            "t5xpg",
            "train",
            self._experiment,
            *self._overrides,
            f"--run={directory.path}",
        ]
        return WatchedRun(command, directory.checkpoints, self._folder / _LOG)

    def _check_exit(self, run: WatchedRun) -> None:
        """Raise UserError where a start that was not killed came to another end than its own."""
        if run.exit_code == 0:
            return
        log = self._folder / _LOG
        raise UserError(
            f"A start of the run ended by itself with exit code {run.exit_code}; its output lies in {log} and ends:\n"
            + "\n".join(f"  {line}" for line in last_lines(log, _OUTPUT_LINES))
        )

    def _saved(self, name: str) -> int | None:
        """The last whole checkpoint of a run."""
        return max(kept(RunDirectory(self._folder / name).checkpoints), default=None)

    def _close(self, comparison: Comparison) -> int:
        starts = RunDirectory(self._folder / _UNBROKEN).read()["starts"]
        receipt = Receipt(
            experiment=self._experiment,
            overrides=self._overrides,
            steps=self._steps,
            asked=self._asked,
            seed=self._seed,
            kills=self._kills,
            rounds=self._rounds,
            starts=self._starts,
            comparison=comparison,
            seconds=time.monotonic() - self._began,
            devices=starts[0]["devices"],
            versions=environment.versions(),
            host=environment.host(),
            source=self._source,
            source_changed=environment.git_state() != self._source,
        )
        receipt.write(self._folder)
        print(f"\n{receipt.text()}receipt  {shown(self._folder / JSON_NAME)}", flush=True)
        return 0 if receipt.proven else 1


def _say(text: str) -> None:
    print(text, flush=True)
