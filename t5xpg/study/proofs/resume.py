"""Proof by command that a run is the same run however often it is killed: `make prove-resume EXP=… KILLS=20`.

The experiment is trained once without interruption, into `<folder>/unbroken`, and again into `<folder>/killed`, where
SIGKILL ends it in each of the phases of `t5xpg.base.phases` and the same command is called again. Every
killed run that comes to its end is compared with the unbroken one; the receipt is kept beside them.
"""

import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import jax

from t5xpg.base import environment
from t5xpg.base.errors import UserError
from t5xpg.base.paths import shown
from t5xpg.base.phases import PHASES
from t5xpg.base.progress import duration
from t5xpg.experiment import config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.directory import RunDirectory
from t5xpg.study.proofs import receipt
from t5xpg.study.proofs.comparison import Comparison, compare
from t5xpg.study.proofs.folder import proof_folder
from t5xpg.study.proofs.kills import Kill, PhaseShares, PhaseTimes, WatchedRun, kill_in
from t5xpg.study.runs import ended_message, train_command

_UNBROKEN, _KILLED, _LOG = "unbroken", "killed", "output.log"
# After so many starts in a row without a kill that was still needed, the run or its marks must be wrong.
_FRUITLESS = 8
_FORMAT = 1


def prove_resume(
    experiment: str, overrides: Sequence[str], *, kills: int, seed: int, path: Path, recorded: Path | None = None
) -> int:
    """Prove the exact resume of an experiment; prints a receipt and keeps it in the folder `path`.

    overrides: "--gin.X=Y" and "--gin_file=…", handed to the training. kills: how many at least, in equal shares for all
    phases. seed: for phases and moments. recorded: a recording from which all runs take their batches. Returns the exit
    code: 0 where every killed run equals the unbroken one bit for bit, 1 where not. Raises UserError for what the user
    can mend. What an earlier proof left in `path` is replaced.
    """
    loaded = config.load(experiment, *config.split_overrides(" ".join(overrides)))
    period, steps = loaded.experiment.checkpoints.period, loaded.experiment.total_steps
    if period >= steps:
        raise UserError(
            f"{loaded.name} has no checkpoint before its end (CHECKPOINT_PERIOD {period:,}, TRAIN_STEPS {steps:,}), so "
            f'that no start continues another. Save more often: GIN="--gin.CHECKPOINT_PERIOD={max(1, steps // 10)}".'
        )
    jax.config.update("jax_platforms", "cpu")  # this process only reads arrays: accelerators are the training's
    own_names = {_UNBROKEN, _KILLED, _LOG, receipt.JSON_NAME, receipt.TEXT_NAME}
    with proof_folder(path, lambda entry: entry.name in own_names) as folder:
        return _Proof(loaded, experiment, overrides, kills, seed, folder, recorded).run()


class _Proof:
    """The runs of one proof, and what has been counted and compared so far."""

    def __init__(
        self,
        loaded: LoadedConfig,
        experiment: str,
        overrides: Sequence[str],
        kills: int,
        seed: int,
        folder: Path,
        recorded: Path | None,
    ) -> None:
        self._loaded, self._experiment, self._overrides = loaded, experiment, tuple(overrides)
        self._least_kills, self._seed, self._folder = kills, seed, folder
        self._options = [] if recorded is None else [f"--recorded={recorded.absolute()}"]
        self._draw = random.Random(seed)
        self._shares = PhaseShares(kills, self._draw)
        self._kills: list[Kill] = []
        self._rounds = 1
        self._starts = 0
        self._fruitless = 0
        self._start_time = time.monotonic()
        self._source = environment.git_state()
        say(f"training {loaded.experiment.total_steps:,} steps without interruption, into {shown(folder / _UNBROKEN)}")
        with self._start(_UNBROKEN) as run:
            self._await_end(run)
            self._times, self._whole_seconds = PhaseTimes(run.steps, run.durations), run.seconds
        self._steps = self._last_step(_UNBROKEN) or loaded.experiment.total_steps  # it may end early
        silent = [name for name in PHASES if name != "restore" and not run.steps[name]]
        if silent:
            raise UserError(
                f"The training of {loaded.name} said nothing of these phases, so that it cannot be killed in them: "
                f"{', '.join(silent)}. Is {folder / _UNBROKEN} a run of {self._steps:,} steps?"
            )
        say(f"that took {duration(self._whole_seconds)}; now killing, {kills} times or more")

    def run(self) -> int:
        """Kill and compare; returns the exit code."""
        while True:
            if not self._kill_until_the_end():
                say("every phase has its share; the killed run goes on to its end")
                with self._start(_KILLED) as run:
                    self._await_end(run)
            unbroken, killed = self._folder / _UNBROKEN, self._folder / _KILLED
            comparison = compare(self._loaded, unbroken, killed, self._steps)
            say(f"round {self._rounds}: {'equal' if not comparison.differences else 'DIFFERENT'}")
            if comparison.differences or not self._shares.left:
                return self._finish(comparison)
            shutil.rmtree(killed)
            self._rounds += 1

    def _kill_until_the_end(self) -> bool:
        """Start and kill until every phase has its share; returns whether the run came to its end before that."""
        while left := self._shares.left:
            at_end = self._start_and_kill()
            self._fruitless = self._fruitless + 1 if self._shares.left == left else 0
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
        saved = self._last_step(_KILLED)
        target, occurrence = self._draw_target(saved)
        with self._start(_KILLED) as run:
            limit = 600 + 10 * self._whole_seconds
            died_in = kill_in(run, target, occurrence, self._times, self._draw, limit_seconds=limit)
            self._times.learn(run)
            if died_in is None:
                self._await_end(run)
                return True
            reached = max((step for step in run.steps["step"] if step), default=saved or 0)
            kill = Kill(self._rounds, target, tuple(died_in), reached, run.seconds)
        self._shares.count(kill.phase)
        self._kills.append(kill)
        phase = kill.phase or "between"
        say(
            f"kill {len(self._kills):>3}  {phase:<8}  at step {kill.step:,}, {kill.seconds:.1f} s after the start; "
            f"{self._shares.left} to come{'' if phase == target else f'  (meant for {target})'}"
        )
        return False

    def _draw_target(self, saved: int | None) -> tuple[str, int]:
        """(phase, n): the n-th such phase of a start from `saved`; ("save", 0) where the run has to get on first."""
        counts = self._times.occurrences(saved)
        phase = self._shares.draw_phase(counts)
        if phase is None:
            return "save", 0
        # Far enough on average that the kills spread over the whole run; not the last such phase: it may be missed.
        farthest = max(math.ceil(counts[phase] / 5), round(2 * counts[phase] / self._shares.left))
        return phase, self._draw.randint(1, max(1, min(farthest, counts[phase] - 1)))

    def _start(self, name: str) -> WatchedRun:
        self._starts += name == _KILLED
        directory = RunDirectory(self._folder / name)
        command = train_command(self._experiment, self._overrides, directory.path, *self._options)
        return WatchedRun(command, self._folder / _LOG)

    def _await_end(self, run: WatchedRun) -> None:
        """Let a run end by itself; raise UserError where it fails."""
        while not run.ended:
            run.listen(1.0)
        if run.exit_code:
            raise UserError(ended_message("A start of the run", run.exit_code, self._folder / _LOG))

    def _last_step(self, name: str) -> int | None:
        """The last whole checkpoint of a run."""
        return max(saved_steps(RunDirectory(self._folder / name).checkpoints), default=None)

    def _finish(self, comparison: Comparison) -> int:
        counts = Counter(kill.phase or "between" for kill in self._kills)
        records = [{**asdict(kill), "phase": kill.phase, "seconds": round(kill.seconds, 3)} for kill in self._kills]
        content = {
            "format": _FORMAT,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "proven": not comparison.differences,
            "experiment": self._experiment,
            "overrides": list(self._overrides),
            "steps": self._steps,
            "kills": {
                "asked": self._least_kills,
                "seed": self._seed,
                "dealt": len(self._kills),
                "by_phase": {name: counts[name] for name in (*PHASES, "between") if counts[name]},
            },
            "rounds": self._rounds,
            "starts": self._starts,
            "seconds": round(time.monotonic() - self._start_time, 1),
            "equal": comparison.equal,
            "differences": comparison.differences,
            "versions": environment.versions(),
            "source": self._source,
            "source_changed": environment.git_state() != self._source,
            "host": environment.host(),
            "devices": RunDirectory(self._folder / _UNBROKEN).read()["starts"][0]["devices"],
            "list_of_kills": records,
        }
        print(f"\n{receipt.write(self._folder, content)}receipt  {shown(self._folder / receipt.JSON_NAME)}", flush=True)
        return 0 if content["proven"] else 1


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)
