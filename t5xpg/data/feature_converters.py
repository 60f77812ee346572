"""The feature converters by name. Imports TensorFlow."""

from __future__ import annotations

import seqio

from t5xpg.batch import PREFIX_LM
from t5xpg.data.masked_lm_converter import MaskedLMFeatureConverter
from t5xpg.data.spec import DatasetConfig
from t5xpg.errors import UserError

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
    """Make a feature converter of your own known under its class's name; see `t5xpg.batch.add_layout`.

    Raises UserError where another one has the name.
    """
    name = converter.__name__
    if _CONVERTERS.setdefault(name, converter) is not converter:
        raise UserError(f"There is a feature converter named {name!r} already.")


def feature_converter(config: DatasetConfig) -> seqio.FeatureConverter:
    """The feature converter of a stream."""
    if config.converter not in _CONVERTERS:
        raise UserError(
            f"{config.converter} has a layout of batches and no class: the module of MODULE_IMPORT that defines it "
            "calls t5xpg.data.feature_converters.add_feature_converter."
        )
    arguments = {"loss_on_targets_only": config.loss_on_targets_only} if config.converter == PREFIX_LM else {}
    return _CONVERTERS[config.converter](pack=config.pack, **arguments)
