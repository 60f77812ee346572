"""Blanks and what fills them."""

from hypothesis import given
from hypothesis import strategies as st

from t5xpg.base.markdown import one_line
from t5xpg.data.vocab.sentinels import blanks_of, excerpt, fill, predicted_spans
from t5xpg.data.vocab.vocabulary import Vocabulary


def test_fill() -> None:
    text = "The <extra_id_0> ruined my <extra_id_1>."
    assert blanks_of(text) == [0, 1]
    assert fill(text, "<extra_id_0>dog<extra_id_1> sleep") == "The dog ruined my  sleep."
    assert fill(text, "<extra_id_0>dog<extra_id_1>sleep", "[", "]") == "The [dog] ruined my [sleep]."
    # blanks that a prediction leaves out stay, and the first mention counts
    assert fill("a <extra_id_0> b <extra_id_1>", "<extra_id_1>x") == "a <extra_id_0> b x"
    assert predicted_spans("before<extra_id_0>one<extra_id_0>two<extra_id_2>") == {0: "one", 2: ""}


def test_a_sentinel_is_to_the_vocabulary_what_it_is_here() -> None:
    vocabulary = Vocabulary()
    for text in ("<extra_id_0>", "<extra_id_00>", "<extra_id_07>", "<extra_id_7>", "<extra_id_-1>", "<extra_id_>"):
        assert len(blanks_of(text)) == (len(vocabulary.encode(text)) == 1), text


# Text in which blanks, what is nearly one, and their parts are frequent.
TEXTS = st.lists(
    st.sampled_from(["<extra_id_0>", "<extra_id_1>", "<extra_id_12>", "<extra_id_00>", "<extra_id_", ">", "a", " é\n"])
    | st.text(max_size=5)
).map("".join)


@given(TEXTS, TEXTS)
def test_any_text_can_be_filled_with_any_prediction(text: str, prediction: str) -> None:
    blanks = blanks_of(text)
    if not set(blanks) & predicted_spans(prediction).keys():
        assert fill(text, prediction) == text
    words = "".join(f"<extra_id_{blank}>word" for blank in set(blanks))
    assert fill(text, words, "\x00", "\x01").count("\x00word\x01") == len(blanks)


@given(TEXTS, st.integers(0, 20))
def test_an_excerpt_keeps_every_blank(text: str, context: int) -> None:
    kept = excerpt(text, context)
    assert set(blanks_of(text)) <= set(blanks_of(kept))
    if not blanks_of(text):
        assert len(kept) <= max(2 * context + 2, 0) or kept == text


@given(st.text())
def test_one_line_is_one_line(text: str) -> None:
    shown = one_line(text)
    assert len(shown.splitlines()) <= 1
    assert shown.isprintable()
    assert one_line("a\x1b[31mb\x07c\x9b2Jd\r\ne\tg\u202eh — 漢字 🙂") == "a�[31mb�c�2Jd⏎e g�h — 漢字 🙂"
