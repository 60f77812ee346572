"""The options of decoding: what is refused, what each method reads, and that `decode` gives it to the method."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5xpg.models.decoding import DecodingConfig, beam_search, decode, greedy, sample
from tests.models.decoding.automaton import END, Automaton, rows, table
from tests.refusals import refused


def test_what_cannot_be_is_refused() -> None:
    beam, sampling, theirs = {"method": "beam"}, {"method": "sample"}, {"length_penalty": "transformers"}
    for options, *named in (
        ({"method": "bean"}, "method", "Did you mean beam"),
        ({**beam, "length_penalty": "transformer"}, "length_penalty", "Did you mean transformers"),
        ({**beam, "num_decodes": 0}, "num_decodes is 0", "at least 1"),
        ({**beam, "num_decodes": True}, "num_decodes is True"),
        ({"max_decode_length": -1}, "max_decode_length is -1"),
        ({"extra_length": 1.5}, "extra_length is 1.5", "at least 0"),
        ({**beam, "alpha": float("nan")}, "alpha is nan"),
        ({**beam, **theirs, "early_stopping": "always"}, "early_stopping is 'always'"),
        ({**beam, "early_stopping": True}, "early_stopping is True", "length_penalty="),
        ({**sampling, "temperature": -1.0}, "temperature is -1.0"),
        ({**sampling, "topk": 2.5}, "topk is 2.5"),
        ({**sampling, "topp": 1.5}, "topp is 1.5"),
        ({**sampling, "seed": -1}, "DecodingConfig.seed is -1"),
        ({"temperature": 0.7}, "temperature is 0.7", "'sample'"),
        ({"num_decodes": 2}, "num_decodes is 2", "'beam' and 'sample'"),
    ):
        with refused(*named):
            DecodingConfig(**options)  # type: ignore[arg-type]


def test_settings_are_what_the_method_reads() -> None:
    assert DecodingConfig().settings() == {"method": "greedy", "max_decode_length": None}
    beam = DecodingConfig("beam", alpha=1)
    assert (beam.decodes, beam.returned) == (4, 4)
    assert set(beam.settings()) == {
        "method", "max_decode_length", "num_decodes", "return_all_decodes", "length_penalty", "alpha", "early_stopping",
    }  # fmt: skip
    assert beam.settings()["num_decodes"] == 4
    one = DecodingConfig("sample", num_decodes=5, return_all_decodes=False)
    assert (one.decodes, one.returned) == (5, 1)
    assert {"temperature", "topk", "topp", "seed", "rescale_log_probs"} < set(one.settings())
    assert DecodingConfig("sample").decodes == 1
    assert DecodingConfig(extra_length=5).settings()["extra_length"] == 5


@pytest.mark.parametrize(
    "options",
    [
        {"method": "greedy"},
        {"method": "sample", "num_decodes": 3},
        {"method": "beam", "alpha": 2.0},
        {"method": "beam", "length_penalty": "transformers", "alpha": 1.5, "early_stopping": "never"},
    ],
    ids=str,
)
def test_a_limit_of_each_row_is_that_of_the_row_alone(options: dict[str, Any]) -> None:
    model, params, inputs = Automaton(), jnp.asarray(table(2, end=-1.0)), rows(6)

    @functools.cache
    def decoding(length: int, **more: Any) -> Any:
        config = DecodingConfig(**options, **more)
        return jax.jit(lambda inputs, numbers: decode(model, params, inputs, config, length, numbers))

    found = decoding(8, extra_length=2)(inputs, np.arange(len(inputs)))
    lengths = np.minimum(np.count_nonzero(inputs, axis=1) + 2, 8)
    assert len(set(lengths)) > 2
    for row, length in enumerate(lengths):
        alone = decoding(int(length))(inputs[row : row + 1], np.asarray([row]))
        np.testing.assert_array_equal(found.tokens[row, :, :length], alone.tokens[0])
        assert not found.tokens[row, :, length:].any()
        if alone.scores is not None:
            np.testing.assert_array_equal(found.scores[row], alone.scores[0])


def test_decode_is_the_method_with_its_options() -> None:
    model, params, inputs, numbers = Automaton(), jnp.asarray(table(0)), jnp.asarray(rows(4)), jnp.asarray([5, 6, 7, 8])
    rule = {"length_penalty": "transformers", "alpha": 1.0, "early_stopping": True}
    beams = DecodingConfig("beam", 5, num_decodes=3, return_all_decodes=False, **rule)
    draws = DecodingConfig("sample", num_decodes=2, temperature=0.5, topk=4, topp=0.9, seed=3, rescale_log_probs=False)

    @jax.jit
    def of_methods() -> Any:
        decoded = functools.partial(decode, model, params, inputs)
        answers = [decoded(DecodingConfig(), 6, eos_id=END), decoded(beams, 6), decoded(draws, 6, numbers)]
        by_beams = beam_search(model, params, inputs, 5, beams)
        return answers, greedy(model, params, inputs, 6), by_beams, sample(model, params, inputs, 6, draws, numbers)

    (answer, of_beams, drawn), expected, by_beams, sampled = of_methods()
    np.testing.assert_array_equal(answer.tokens[:, 0], expected)
    assert answer.scores is None
    np.testing.assert_array_equal(of_beams.tokens, by_beams.tokens[:, :1])
    np.testing.assert_array_equal(of_beams.scores, by_beams.scores[:, :1])
    np.testing.assert_array_equal(drawn.tokens, sampled.tokens)
