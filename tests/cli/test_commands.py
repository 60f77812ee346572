"""The table of commands: what the program, `make help` and the Makefile make of it."""

import re

import pytest

from t5xpg import cli, commands
from t5xpg.commands import COMMANDS, from_make
from t5xpg.help_page import help_page
from tests.refusals import assert_named, program_refused, refused
from tests.workplace import REPOSITORY

MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
VARIABLES = {option.variable for command in COMMANDS.values() for option in command.options} - {""}


def test_the_makefile_has_the_targets_of_the_table() -> None:
    (listed,) = re.findall(r"^COMMANDS := (.*)$", MAKEFILE, re.MULTILINE)
    assert listed.split() == [name for name, one in COMMANDS.items() if one.in_program]
    targets = set(re.findall(r"^([a-z-]+):(?!=)", MAKEFILE, re.MULTILINE))
    assert targets == {name for name, one in COMMANDS.items() if not one.in_program}
    phony = " ".join(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)).split()
    assert set(phony) == targets | {"$(COMMANDS)", "$(HELP_ON)"}


def test_a_shell_completes_commands_and_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--print-completion=bash"])
    assert_named(capsys.readouterr().out, ["tune-decoding", "_t5xpg_experiments"])


def test_variables_of_make_are_options_of_the_program() -> None:
    for name, values, arguments in (
        ("vocab", "DATASET=mine|SIZE=500|EXTRA_IDS=0|MODEL=bpe|SAMPLE=20 MB|SEED=3|BYTE_FALLBACK=1|VOCAB=small",
         ["mine", "--size=500", "--extra-ids=0", "--model=bpe", "--sample=20 MB", "--seed=3", "--byte-fallback",
          "--name=small"]),
        ("vocab", "TOKENIZER=a b/tokenizer.json|EOS_TOKEN=</s>|BYTE_FALLBACK=0|FORCE=1",
         ["wikitext", "--tokenizer=a b/tokenizer.json", "--eos-token=</s>", "--force"]),
        ("tokens", "TASK=a_task|TEXT=a <extra_id_0>", ["a_task", "--text=a <extra_id_0>"]),
        ("sweep", "EXP=many|JOBS=2|CELLS=*,a b,*|TIMES=no", ["many", "--jobs=2", "--cells=*,a b,*"]),
        ("data", "FILES=|LIMIT=|FORCE=", ["wikitext"]),
        ("data", "DATASET=mine|FILES=a* 'b c/*'|FORCE=yes", ["mine", "--files=a* 'b c/*'", "--force"]),
        ("data", "FORCE=False|VERIFY= Off ", ["wikitext"]),
        ("data", "FORCE=n|VERIFY=None", ["wikitext"]),
        ("cache", "EXP=not of it", ["wikitext_span_corruption"]),
        ("import", "CHECKPOINT=a b/c|NAME=mine|OPTIMIZER=1", ["a b/c", "--name=mine", "--optimizer"]),
        ("train", "SKIP_NONFINITE=3|ENGINE=t5x|VERIFY=1",
         ["demo", "--gin.SKIP_NONFINITE=3", "--engine=t5x", "--verify"]),
        ("train", "EXP=-h|RUN=mine", ["--run=mine", "--", "-h"]),
        ("runs", "REMOVE=mine_* b|JSON=0", ["--remove=mine_* b"]),
    ):  # fmt: skip
        given = dict(value.split("=", 1) for value in values.split("|") if value)
        assert from_make(name, given) == [name, *arguments]
        known = [argument for argument in arguments if not argument.startswith("--gin.")]
        assert commands.parser().parse_args([name, *known]).command == name


def test_a_variable_that_a_command_has_not_is_refused() -> None:
    typed = {"EXP": "demo", "RUNN": "mine", "MACHINE": "cpu"}
    with refused("Did you mean RUN?", "GIN=--gin.RUNN=mine"):
        from_make("train", {**typed, "TYPED_VARIABLES": "MACHINE EXP RUNN"})
    assert from_make("train", {**typed, "TYPED_VARIABLES": "MACHINE EXP"}) == ["train", "demo"]
    with refused("COST", "COST='$5 a day' make data"):
        from_make("data", {"COST": "$5 a day", "TYPED_VARIABLES": "COST"})
    chain = {"TASK": "a", "EXP": "demo", "TYPED_VARIABLES": "TASK EXP", "TYPED_TARGETS": "cache train"}
    assert from_make("train", chain) == ["train", "demo"]


def test_what_a_command_is_about_has_to_be_given() -> None:
    for command, variable in (("convert-gin", "FILE=FILE"), ("significance", "OTHER=FOLDER")):
        with refused(variable):
            from_make(command, {})


def test_options_that_are_none_or_would_be_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    """Options are typed whole: a run's record, from which it is reproduced, knows no others."""
    for typed, named in (
        ("train byt5_tiny --gin=--gin.TRAIN_STEPS=1", "--gin=--gin.TRAIN_STEPS=1"),
        ("train byt5_tiny --ru=mine", "--ru=mine"),
        ("runs --gin.TRAIN_STEPS=1", "--gin.TRAIN_STEPS"),
    ):
        program_refused(capsys, typed.split(), named, code=2)
    for typed, named in (
        ("vocab mine --tokenizer=x --name=y --seed=0", "SEED="),
        ("verify-claim --receipt=x --steps=9", "STEPS="),
        ("sweep optimizers_tiny --times --launcher=slurm", "TIMES=1"),
        ("report optimizers_tiny --gin.RANDOM_SEED=1", "sweep.toml"),
        ("reproduce optimizers_tiny", "sweep.toml"),
        ("verify-claim --experiment=matrix_tiny", "matrix.toml"),
    ):
        program_refused(capsys, typed.split(), named)


def test_help_lists_every_command_and_its_variables() -> None:
    lines = help_page().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("  make ")] == list(COMMANDS)
    assert_named(help_page(["record", "vocab"]), ["make record: ", "  SIZE=N", "(default: 32000)"])
    with pytest.raises(LookupError, match="Did you mean train"):
        help_page(["train", "trian"])
