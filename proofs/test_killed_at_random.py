"""A run that is killed again and again, at any moment, ends with the numbers of the run that nothing interrupted.

KILLS=8 says how often, KILL_SEED=0 which moments. A kill leaves no time to tidy up, as a crash or a lost machine.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from tests.workplace import Workplace, assert_same_run

KILLS = int(os.environ.get("KILLS") or 8)
SEED = int(os.environ.get("KILL_SEED") or 0)
STEPS = 60
# Saves and evaluations are a large part of it, so that many moments lie in them.
SETTINGS = [f"--gin.TRAIN_STEPS={STEPS}", "--gin.CHECKPOINT_PERIOD=3", "--gin.EVAL_PERIOD=6"]


def checkpoints(run: Path) -> list[int]:
    """The steps of the checkpoints that are whole."""
    return sorted(int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdecimal())


def what_is_there(run: Path) -> str:
    """The traces of the moment: unfinished checkpoints and temporary files too."""
    names = sorted(path.name for path in run.glob("checkpoints/*"))
    lines = (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").exists() else 0
    return f"{lines} records, checkpoints {' '.join(names) or 'none'}"


def begin(workplace: Workplace) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        workplace.command("train", str(workplace.experiment), *SETTINGS, "--run=killed"),
        env=workplace.environment,
        cwd=workplace.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_after(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()


def kill_at_first_change(process: subprocess.Popen[bytes], run: Path, count: int, seconds: float) -> None:
    """Kill `seconds` after the run has written `count` more checkpoints or begun to."""
    before = {path.name for path in run.glob("checkpoints/*")}
    while process.poll() is None:
        # a folder of another name than a number is a checkpoint that is being written
        new = {path.name.split(".")[0] for path in run.glob("checkpoints/*") if path.name not in before}
        if len(new) >= count:
            break
        time.sleep(0.001)
    kill_after(process, seconds)


def test_a_run_killed_at_random_moments_ends_with_the_same_numbers(workplace: Workplace) -> None:
    draw = random.Random(SEED)
    unbroken, killed = (workplace.folder / "runs" / name for name in ("unbroken", "killed"))
    began = time.monotonic()
    workplace.run("train", str(workplace.experiment), *SETTINGS, "--run=unbroken")
    whole = time.monotonic() - began
    deaths = 0
    for number in range(KILLS):
        process = begin(workplace)
        try:
            if number % 2:
                # among the steps, evaluations and saves, wherever this start has got to
                kill_at_first_change(process, killed, draw.randrange(1, 4), draw.random() * 0.3)
                when = "while it trained"
            else:
                # in start-up, restore and compilation; a kill in the first moments would hit nothing but imports
                seconds = whole * (0.15 + 0.7 * (number / 2 + draw.random()) / (KILLS / 2))
                kill_after(process, seconds)
                when = f"after {seconds:.1f} s"
        finally:
            process.kill()
            process.wait()
        deaths += process.returncode == -signal.SIGKILL
        print(f"kill {number + 1} {when}: {what_is_there(killed)}", flush=True)
        assert process.returncode in (0, -signal.SIGKILL)
    assert deaths >= (KILLS + 1) // 2, "it ended before it was killed too often: these moments prove little"
    workplace.run("train", str(workplace.experiment), *SETTINGS, "--run=killed")
    assert checkpoints(killed)[-1] == STEPS
    assert_same_run(killed, unbroken, STEPS)
    unfinished = [path.name for path in (killed / "checkpoints").iterdir() if not path.name.isdecimal()]
    assert unfinished == []
