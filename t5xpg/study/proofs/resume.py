"""Proof by command that a run is the same run however often it is killed: `make prove-resume EXP=… KILLS=20`.

The experiment is trained once without interruption, into `<folder>/unbroken`, and again into `<folder>/killed`, where
SIGKILL ends it in each of the phases of `t5xpg.base.phases` and the same command is called again. Every
killed run that comes to its end is compared with the unbroken one; the receipt is kept beside them.
"""

import random
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from t5xpg.base import environment
from t5xpg.base.errors import UserError
from t5xpg.base.files import write_json
from t5xpg.base.pages import render
from t5xpg.base.paths import shown
from t5xpg.base.phases import PHASES
from t5xpg.base.progress import duration
from t5xpg.experiment import config
from t5xpg.experiment.config import LoadedConfig
from t5xpg.run.checkpoint.folders import saved_steps
from t5xpg.run.directory import RunDirectory
from t5xpg.study.proofs.comparison import RunComparison, compare
from t5xpg.study.proofs.folder import proof_folder, say
from t5xpg.study.proofs.kills import WatchedRun, kill_in
from t5xpg.study.runs import ended_message, train_command

_UNBROKEN, _KILLED, _LOG, _RECEIPT = "unbroken", "killed", "output.log", "receipt.json"
# After so many starts in a row without a kill that was still needed, the run or its marks must be wrong.
_FRUITLESS = 8
# How long a phase is taken to last before one was seen: short, so that the kill falls into it.
_UNKNOWN_SECONDS = 0.1
_FORMAT = 1


@dataclass(frozen=True)
class Kill:
    """One kill: the phase it was meant for, and the phases that were open when the process died."""

    round: int
    aimed_at: str
    open: tuple[str, ...]
    step: int  # the update that had begun, or the one that was restored
    seconds: float  # since the start of the process

    @property
    def phase(self) -> str | None:
        """The phase that it counts for: the one it was meant for if that was open, or another that was."""
        if self.aimed_at in self.open:
            return self.aimed_at
        # steps overlap with saves, which go on in the background; the rarer phase says more
        return min(self.open, key=("save", "evaluate", "restore", "compile", "step").index, default=None)


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
    more = [] if recorded is None else [f"--recorded={recorded.absolute()}"]
    with proof_folder(path, {_UNBROKEN, _KILLED, _LOG, _RECEIPT}) as folder:
        proof = _Proof(loaded, [experiment, *overrides], more, folder, random.Random(seed))
        began, source = time.monotonic(), environment.git_state()
        comparison = proof.run(kills)
        counts = Counter(kill.phase or "between" for kill in proof.kills)
        receipt = {
            "format": _FORMAT,
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "proven": not comparison.differences,
            "experiment": experiment,
            "overrides": list(overrides),
            "steps": proof.steps,
            "kills": {
                "asked": kills,
                "seed": seed,
                "dealt": len(proof.kills),
                "by_phase": {name: counts[name] for name in (*PHASES, "between") if counts[name]},
            },
            "rounds": proof.rounds,
            "starts": proof.starts,
            "seconds": round(time.monotonic() - began, 1),
            "equal": comparison.equal,
            "differences": comparison.differences,
            "versions": environment.versions(),
            "source": source,
            "source_changed": environment.git_state() != source,
            "host": environment.host(),
            "devices": RunDirectory(folder / _UNBROKEN).read()["starts"][0]["devices"],
            "list_of_kills": [
                {**asdict(kill), "phase": kill.phase, "seconds": round(kill.seconds, 3)} for kill in proof.kills
            ],
        }
        write_json(folder / _RECEIPT, receipt)
        command, file = shlex.join([experiment, *overrides]), shown(folder / _RECEIPT)
        say(f"\n{render('receipt.txt.j2', receipt=receipt, command=command, file=file)}")
    return 0 if receipt["proven"] else 1


class _Proof:
    """The runs of one proof, and what has been counted so far."""

    def __init__(
        self, loaded: LoadedConfig, arguments: Sequence[str], options: Sequence[str], folder: Path, draw: random.Random
    ) -> None:
        self._loaded, self._arguments, self._options, self._folder = loaded, arguments, options, folder
        self._draw, self._fruitless = draw, 0
        self.kills: list[Kill] = []
        self.rounds, self.starts, self.steps = 1, 0, loaded.experiment.total_steps

    def run(self, kills: int) -> RunComparison:
        """Train without interruption, then kill and compare until every phase has its share of kills."""
        say(f"training {self.steps:,} steps without interruption, into {shown(self._folder / _UNBROKEN)}")
        with self._start(_UNBROKEN) as run:
            self._await_end(run)
            self._begins, self._durations, self._whole_seconds = run.steps, run.durations, run.seconds
        self.steps = self._last_step(_UNBROKEN) or self.steps  # it may end early
        if silent := [name for name in PHASES if name != "restore" and not self._begins[name]]:
            raise UserError(
                f"The training of {self._loaded.name} said nothing of these phases, so that it cannot be killed in "
                f"them: {', '.join(silent)}. Is {self._folder / _UNBROKEN} a run of {self.steps:,} steps?"
            )
        say(f"that took {duration(self._whole_seconds)}; now killing, {kills} times or more")
        self._left = Counter({name: kills // len(PHASES) for name in PHASES})
        self._left.update(self._draw.sample(PHASES, kills % len(PHASES)))
        while True:
            if not self._kill_until_the_end():
                say("every phase has its share; the killed run goes on to its end")
                with self._start(_KILLED) as run:
                    self._await_end(run)
            unbroken, killed = self._folder / _UNBROKEN, self._folder / _KILLED
            comparison = compare(self._loaded, unbroken, killed, self.steps)
            say(f"round {self.rounds}: {'equal' if not comparison.differences else 'DIFFERENT'}")
            if comparison.differences or not self._left.total():
                return comparison
            shutil.rmtree(killed)
            self.rounds += 1

    def _kill_until_the_end(self) -> bool:
        """Start and kill until every phase has its share; returns whether the run came to its end before that."""
        while left := self._left.total():
            at_end = self._start_and_kill()
            self._fruitless = self._fruitless + 1 if self._left.total() == left else 0
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
        phase, occurrence = self._target(saved)
        seconds = self._draw.random() * self._draw.choice(self._durations[phase] or [_UNKNOWN_SECONDS])
        with self._start(_KILLED) as run:
            died_in = kill_in(run, phase, occurrence, seconds, limit_seconds=600 + 10 * self._whole_seconds)
            for name, found in run.durations.items():  # only a start that continues a run has a restore
                self._durations[name].extend(found)
            if died_in is None:
                self._await_end(run)
                return True
            reached = max((step for step in run.steps["step"] if step), default=saved or 0)
            kill = Kill(self.rounds, phase, tuple(died_in), reached, run.seconds)
        self.kills.append(kill)
        if kill.phase is not None and self._left[kill.phase]:
            self._left[kill.phase] -= 1
        say(
            f"kill {len(self.kills):>3}  {kill.phase or 'between':<8}  at step {kill.step:,}, {kill.seconds:.1f} s "
            f"after the start; {self._left.total()} to come{'' if kill.phase == phase else f'  (meant for {phase})'}"
        )
        return False

    def _target(self, saved: int | None) -> tuple[str, int]:
        """(phase, n): the n-th such phase of a start from the checkpoint `saved`, or from nothing (None)."""
        last = -1 if saved is None else saved
        counts = {name: sum(step is None or step > last for step in self._begins[name]) for name in PHASES}
        counts["restore"] = 0 if saved is None else 1
        possible = [name for name in PHASES for _ in range(self._left[name]) if counts[name]]
        if not possible:
            return "save", 2  # once the first save has ended, so that the run gets on
        phase = self._draw.choice(possible)
        # Far enough on average that the kills spread over the whole run.
        farthest = max(counts[phase] // 5, round(2 * counts[phase] / self._left.total()), 1)
        return phase, self._draw.randint(1, min(farthest, counts[phase]))

    def _start(self, name: str) -> WatchedRun:
        self.starts += name == _KILLED
        experiment, *overrides = self._arguments
        command = train_command(experiment, overrides, self._folder / name, *self._options)
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
