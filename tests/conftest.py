"""What all tests share: XLA that compiles fast, and a workplace."""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from t5xpg.base import locks
from t5xpg.base.xla_flags import set_xla_flags
from t5xpg.data.text.wheels import DOCUMENTATION_WHEELS, download, wheels_directory
from tests.workplace import EXPERIMENT, FAST_COMPILATION, Workplace, make_workplace

pytest_plugins = ["tests.tiers"]
PROGRAMS, REVISION = "JAX_COMPILATION_CACHE_DIR", "T5XPG_REVISION"
# What tests train is as if of a commit: only that is published, and a checkout that is worked in has changes.
os.environ[REVISION] = "0123456789" * 4
# A test that compares with transformers says in which Python.
os.environ["T5XPG_TORCH_PYTHON"] = "0"
# Before any import of jax.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST_COMPILATION}".strip()
set_xla_flags()
# JAX makes many objects that live on: looked through as often as by default, they take a twentieth of the time.
gc.set_threshold(100_000, 20, 50)
# The same examples in every run, however slow the machine.
settings.register_profile(
    "tests", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tests")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as processors; one more where tests start programs and wait for them. Each has 5 GB of memory."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    waiting = config.getoption("--tier") != "units"
    return max(1, min(processors + waiting, memory // 5_000_000_000))


def pytest_configure(config: pytest.Config) -> None:
    """One folder for what the programs of this run of the tests compile: many train the same small model. And the
    packages whose text the tests read, which unit tests cannot download."""
    if not hasattr(config, "workerinput"):  # workers of xdist are given their environment
        programs = tempfile.TemporaryDirectory(prefix="t5xpg-programs-", ignore_cleanup_errors=True)
        config.add_cleanup(programs.cleanup)
        os.environ[PROGRAMS] = programs.name
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
        download(DOCUMENTATION_WHEELS.values(), wheels_directory())


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the common experiment, small.gin, in which data, caches and runs of this test alone would lie."""
    for name in ("data", "cache", "runs"):
        monkeypatch.setenv(f"T5XPG_{name.upper()}_DIR", str(tmp_path / name))
    (tmp_path / "small.gin").write_text(EXPERIMENT)
    return tmp_path


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A workplace in a folder with a space, away from the checkout's own. Tests use run folders of their own."""
    return make_workplace(tmp_path_factory.mktemp("work place"))


@pytest.fixture(scope="session")
def pretrained(workplace: Workplace) -> Path:
    """A run of the common experiment, for tests that change nothing of it: 12 steps, checkpoints of 4, 8 and 12. The
    first worker trains it; the others copy it."""
    run, common = workplace.folder / "runs" / "pretrained", Path(os.environ[PROGRAMS], "pretrained")
    with locks.hold(common.with_suffix(".lock"), doing="training", instead="", wait=print):
        if not common.exists():
            workplace.run("train", str(workplace.experiment), "--run=pretrained")
            shutil.copytree(run, common)
    if not run.exists():
        shutil.copytree(common, run)
    return run


@pytest.fixture(scope="session")
def evaluated(workplace: Workplace, pretrained: Path) -> tuple[Path, str]:
    """A copy of that run as it was trained, evaluated on its validation split, and what the evaluation printed."""
    run = shutil.copytree(Path(os.environ[PROGRAMS], "pretrained"), pretrained.with_name("evaluated"))
    return run, workplace.run("eval", str(workplace.experiment), "--run=evaluated")
