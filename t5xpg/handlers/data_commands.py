"""From texts to examples: the functions of commands on data, vocabularies and caches."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path

from t5xpg import arguments
from t5xpg.base import paths
from t5xpg.base.errors import UserError


def _data(options: Namespace) -> None:
    from t5xpg.data.text import labelled, local_files
    from t5xpg.data.text.sources import HuggingFace
    from t5xpg.experiment import making

    if options.hub is None and (options.config or options.revision):
        raise UserError("CONFIG=… and REVISION=… are of the dataset that HUB=… names.")
    making.export_dataset(
        options.dataset,
        files=local_files.parse_files(options.files) if options.files else None,
        fields=labelled.parse_fields(options.fields) if options.fields else None,
        hub=None if options.hub is None else HuggingFace(options.hub, options.config, options.revision, streamed=True),
        max_bytes=options.max_mb,
        **arguments.values(options, "limit", "force", "on_bad_line", "min_characters"),
    )


def _vocab(options: Namespace) -> None:
    from t5xpg.data.tasks import task_names
    from t5xpg.data.text import labelled
    from t5xpg.data.text.manifest import read_manifest
    from t5xpg.data.vocab.training import SampleSize, VocabularySettings
    from t5xpg.experiment import making

    names = "size", "model", "character_coverage", "byte_fallback", "normalization", "seed", "sample"
    trained_with = arguments.given_values(options, *names)
    if options.tokenizer:
        if trained_with:
            raise UserError(f"{next(iter(trained_with)).upper()}=… is for training: TOKENIZER=… is copied.")
        if not options.name:
            raise UserError("TOKENIZER=… needs a VOCAB=…: what the vocabulary is called in the names of tasks.")
        copied = arguments.values(options, "name", "extra_ids", "eos_token", "pad_token", "force")
        record = making.make_vocabulary(options.dataset, Path(options.tokenizer), **copied)
    else:
        if options.eos_token or options.pad_token:
            raise UserError("EOS_TOKEN and PAD_TOKEN are of a tokenizer that is copied: name its file with TOKENIZER=…")
        if options.sample:
            trained_with["sample"] = SampleSize.parse(options.sample)
        settings = VocabularySettings(**trained_with, **arguments.given_values(options, "extra_ids"))
        record = making.make_vocabulary(options.dataset, settings, **arguments.values(options, "name", "force"))
    fields = read_manifest(paths.data_directory() / record.dataset).fields
    kinds = [*labelled.supervised_tasks(fields), task_names.SPAN_CORRUPTION]
    task = task_names.task_name(record.dataset, kinds[0], f"{record.dataset}_{record.name}")
    print(f"in an experiment:\n  MIXTURE_OR_TASK_NAME = '{task}'\n  VOCAB_SIZE = {record.vocabulary['size']}")


def _tokens(options: Namespace) -> None:
    from t5xpg.data.vocab.token_listing import listing
    from t5xpg.experiment.known_tasks import vocabulary_of

    if options.text is not None and options.ids is not None:
        raise UserError("Give one of TEXT='The <extra_id_0> sat' and IDS=383,105,1.")
    vocabulary = vocabulary_of(options.tokenizer or options.vocabulary)
    print("\n".join(listing(vocabulary, options.text, options.ids)))


def _cache(options: Namespace) -> None:
    from t5xpg.experiment import making

    making.cache(
        options.task,
        runner=options.runner,
        beam_options=arguments.words(options.beam_options, "BEAM_OPTIONS"),
        staging=options.staging,
        module_import=tuple(options.module_import.replace(",", " ").split()),
        force=options.force,
    )


def _examples(options: Namespace) -> None:
    from t5xpg.check import examples
    from t5xpg.experiment.identity import data_config

    if options.experiment:
        loaded = arguments.load_experiment(options)
        config = data_config(loaded.experiment.train_dataset, loaded.experiment.random_seed)
        needs = loaded.experiment.needs
    elif options.task:
        arguments.without_overrides(options, "GIN changes an experiment: name one with EXP.")
        config, needs = examples.dataset_of_task(options.task), ()
    else:
        raise UserError("Name what to show: TASK=wikitext_span_corruption, or EXP=byt5_tiny for its task.")
    examples.show(config, options.count, task=options.task, module_import=options.module_import, needs=needs)


HANDLERS: Mapping[str, Callable[[Namespace], int | None]] = {
    "data": _data,
    "vocab": _vocab,
    "tokens": _tokens,
    "cache": _cache,
    "examples": _examples,
}
