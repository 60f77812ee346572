"""The feature converters by name. Imports TensorFlow."""

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

from t5xpg.base.errors import UserError
from t5xpg.data.batch import PREFIX_LM
from t5xpg.data.objectives.masked_lm import CHOSEN_VALUE
from t5xpg.data.objectives.objective import CHOSEN
from t5xpg.data.spec import DatasetConfig


class MaskedLMFeatureConverter(seqio.EncoderFeatureConverter):
    """For encoders that are trained as BERT is: the loss counts at every position whose token was chosen.

    `seqio.EncoderFeatureConverter` counts the positions that hold `mask_id` alone, and leaves out the chosen ones that
    hold a random token or their own. Here the feature `chosen` of the task (`masked_lm`) says which they are;
    mask_id need not be given. `task_feature_lengths` are of "inputs" and "targets" alone.

    The model's features are encoder_input_tokens ([CLS], the text masked, the end), encoder_target_tokens (the same,
    not masked), encoder_loss_weights (1 where chosen, else 0), and, packed, encoder_segment_ids and encoder_positions.
    """

    def __init__(self, mask_id: int = -1, **arguments: Any) -> None:
        super().__init__(mask_id=mask_id, **arguments)

    def _convert_features(self, ds: tf.data.Dataset, input_lengths: Mapping[str, int]) -> tf.data.Dataset:
        if CHOSEN not in ds.element_spec:
            raise ValueError(
                f"The examples have no feature {CHOSEN!r}, which says where the loss counts: they are not those of "
                "t5xpg.data.objectives.masked_lm. seqio.EncoderFeatureConverter does without it."
            )
        ds = self._pack_or_pad(ds, {**input_lengths, CHOSEN: input_lengths["inputs"]})

        @seqio.map_over_dataset
        def convert_example(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            converted = {
                "encoder_input_tokens": features["inputs"],
                "encoder_target_tokens": features["targets"],
                "encoder_loss_weights": tf.cast(tf.equal(features[CHOSEN], CHOSEN_VALUE), tf.int32),
            }
            if self.pack:
                converted["encoder_segment_ids"] = features["inputs_segment_ids"]
                converted["encoder_positions"] = features["inputs_positions"]
            return converted

        return convert_example(ds)


_CONVERTERS: dict[str, type[seqio.FeatureConverter]] = {
    one.__name__: one
    for one in (
        seqio.EncDecFeatureConverter,
        seqio.LMFeatureConverter,
        seqio.PrefixLMFeatureConverter,
        MaskedLMFeatureConverter,
    )
}


def add_feature_converter(converter: type[seqio.FeatureConverter]) -> None:
    """Make a feature converter of your own known under its class's name (see `t5xpg.data.batch.add_layout`). Raises
    UserError where another one has the name."""
    name = converter.__name__
    if _CONVERTERS.setdefault(name, converter) is not converter:
        raise UserError(f"There is a feature converter named {name!r} already.")


def feature_converter(config: DatasetConfig) -> seqio.FeatureConverter:
    """The feature converter of a stream."""
    if config.converter not in _CONVERTERS:
        raise UserError(
            f"{config.converter} has a layout of batches and no class: the module of MODULE_IMPORT that defines it "
            "calls t5xpg.data.tasks.feature_converters.add_feature_converter."
        )
    arguments = {"loss_on_targets_only": config.loss_on_targets_only} if config.converter == PREFIX_LM else {}
    return _CONVERTERS[config.converter](pack=config.pack, **arguments)
