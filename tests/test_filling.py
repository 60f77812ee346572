"""Blanks and what fills them."""

from __future__ import annotations

from t5xpg.filling import blanks_of, fill, fillings


def test_fill() -> None:
    text = "The <extra_id_0> ruined my <extra_id_1>."
    assert blanks_of(text) == [0, 1]
    assert fill(text, "<extra_id_0>dog<extra_id_1> sleep") == "The dog ruined my  sleep."
    assert fill(text, "<extra_id_0>dog<extra_id_1>sleep", "[", "]") == "The [dog] ruined my [sleep]."


def test_blanks_that_a_prediction_leaves_out_stay() -> None:
    assert fill("a <extra_id_0> b <extra_id_1>", "<extra_id_1>x") == "a <extra_id_0> b x"
    assert fill("a <extra_id_0>", "no sentinel") == "a <extra_id_0>"


def test_the_first_mention_counts() -> None:
    assert fillings("before<extra_id_0>one<extra_id_0>two<extra_id_2>") == {0: "one", 2: ""}
