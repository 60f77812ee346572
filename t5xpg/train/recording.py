"""`make record`: writes the exact batches of a run into a folder, to train from without TensorFlow."""

import dataclasses
import itertools
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from t5xpg.base import digests, environment, paths
from t5xpg.base.errors import UserError
from t5xpg.base.files import directory_atomically, remove_abandoned, room_for, size_text
from t5xpg.base.progress import Progress
from t5xpg.data.recording.format import StreamWriter, require_one_shape
from t5xpg.data.recording.manifest import (
    MANIFEST,
    STREAMS,
    Recording,
    StreamRecord,
    files_of,
    model_path,
    read_recording,
    task_stream,
    write_recording,
)
from t5xpg.data.recording.reader import RecordedData
from t5xpg.data.spec import DatasetConfig
from t5xpg.data.stream.client import DataService, Stream, TaskDescription
from t5xpg.evaluate.validation import task_configs
from t5xpg.experiment.config import LoadedConfig
from t5xpg.experiment.experiment import Experiment
from t5xpg.experiment.identity import data_config
from t5xpg.experiment.recipe import make_all
from t5xpg.run.directory import differing
from t5xpg.run.records import to_json

# The libraries that decide what the batches are.
_DATA_LIBRARIES = ("seqio", "t5", "tensorflow", "sentencepiece")
_MAX_STEPS = 10**9
_MORE_ROOM = "Make room, record fewer STEPS, or name a folder on another disk with OUTPUT=…"


def record(loaded: LoadedConfig, *, steps: int, output: Path, force: bool = False, gin: str = "") -> None:
    """Write the batches of the first `steps` updates, and those of the validation, into the folder `output`.

    Data and caches that are missing are made first. An existing recording is replaced only with `force`; without it,
    one of the same batches is left as it is, and another one is refused. Nothing but a recording is ever replaced.
    gin: the overrides as they were typed. Raises UserError for what the user can mend.
    """
    if not 1 <= steps <= _MAX_STEPS:
        raise UserError(f"STEPS={steps}: a recording holds the batches of 1 to {_MAX_STEPS:,} steps.")
    output = output.resolve()  # a link to a roomier disk stays one
    _refuse_other_things(output)
    remove_abandoned(output.parent)
    experiment = loaded.experiment
    require_one_shape(experiment.train_dataset)
    data = make_all([experiment.train_dataset, experiment.eval_dataset], experiment.needs)
    with DataService() as service:
        streams: dict[str, Stream] = {}
        records: dict[str, StreamRecord] = {}
        for name, config, description in _datasets(experiment, service):
            streams[name] = service.open(config)
            records[name] = StreamRecord(
                identity=streams[name].identity,
                limit=steps if name == "train" else config.max_batches,
                batches=0,
                ended=False,
                description=to_json(dataclasses.asdict(description) | {"vocabulary": description.vocabulary.to_json()}),
            )
        recording = Recording(
            loaded.name_or_file, records, to_json(dataclasses.asdict(data)), environment.versions(), {}, gin
        )
        if (output / MANIFEST).exists() and not force:
            _refuse_another(output, recording)
            print(f"{paths.shown(output)} holds these batches already")
        else:
            with room_for("the recording", output.parent, _MORE_ROOM):
                _write(output, recording, streams)
    _print_result(output, loaded, " ".join([*([gin] if gin else []), *_to_train(experiment, steps)]))


def _to_train(experiment: Experiment, steps: int) -> Iterator[str]:
    """The further overrides of a training from the recording: at most its steps, and no metrics of tasks."""
    if steps < experiment.total_steps:
        yield f"--gin.TRAIN_STEPS={steps}"
    if experiment.infer_eval_period is not None:
        yield "--gin.INFER_EVAL_PERIOD=None"
    if experiment.selection is not None and not experiment.selection.of_validation:
        yield "--gin.BEST_METRIC=validation/loss --gin.BEST_MODE=None"


def _datasets(experiment: Experiment, service: DataService) -> Iterator[tuple[str, DatasetConfig, TaskDescription]]:
    """The name, dataset and task of each stream that a run reads; with a mixture, also one for each of its tasks."""
    train, validation = (
        data_config(dataset, experiment.random_seed) for dataset in (experiment.train_dataset, experiment.eval_dataset)
    )
    yield STREAMS[0], train, service.describe(train)
    whole = service.describe(validation)
    yield STREAMS[1], validation, whole
    for number, config in enumerate(task_configs(validation, whole)):
        yield task_stream(number), config, service.describe(config)


def _print_result(output: Path, loaded: LoadedConfig, gin: str) -> None:
    size = sum(path.stat().st_size for path in output.iterdir())
    train, validation = (read_recording(output).streams[name].batches for name in STREAMS)
    print(
        f"{paths.shown(output)}: {train:,} batches to train, {validation:,} to validate, {size_text(size)}\n"
        f"train from them: make train EXP={shlex.quote(loaded.name_or_file)} "
        f"RECORDED={shlex.quote(paths.shown(output))}" + (f" GIN={shlex.quote(gin)}" if gin else "")
    )


def _write(output: Path, recording: Recording, streams: Mapping[str, Stream]) -> None:
    """Write the recording to a temporary folder, which takes the place of `output` when it is complete."""
    written: dict[str, StreamRecord] = {}
    with directory_atomically(output) as folder:
        for name, stream in streams.items():
            planned = recording.streams[name]
            with (
                StreamWriter(folder, name, stream.spec) as writer,
                Progress(f"record {name}", planned.limit, "batches") as progress,
            ):
                for batch in itertools.islice(stream, planned.limit):
                    writer.write(batch)
                    progress.advance()
            ended = planned.limit is None or writer.count < planned.limit
            written[name] = dataclasses.replace(planned, batches=writer.count, ended=ended)
            model = planned.description["vocabulary"].get("model_file")
            if model is not None:
                shutil.copyfile(model, model_path(folder, name))
        write_recording(folder, dataclasses.replace(recording, streams=written, files=files_of(folder)))


def _refuse_other_things(output: Path) -> None:
    """Raise UserError if `output` must not be replaced: it is a file, or holds other files than a recording's."""
    if output.is_file():
        raise UserError(f"{output} is a file: name a folder with OUTPUT=…")
    names = {path.name for path in output.iterdir()} if output.exists() else set()
    own = {MANIFEST, digests.MEMORY, *read_recording(output).files} if MANIFEST in names else set()
    if strangers := sorted(names - own):
        raise UserError(
            f"{output} holds {', '.join(strangers[:5])}{' and more' if len(strangers) > 5 else ''}, which is no "
            "recording's: take that away, or name another folder with OUTPUT=…"
        )


def _refuse_another(output: Path, recording: Recording) -> None:
    """Raise UserError if `output` holds other batches than `recording`, or a damaged recording."""
    with RecordedData(output) as existing:
        differences = differing(_deciding_facts(existing.recording), _deciding_facts(recording))
    if differences:
        text = "; ".join(f"{name} was {old}, is {new}" for name, (old, new) in differences.items())
        raise UserError(
            f"{paths.shown(output)} is a recording of other batches: {text}. "
            "Replace it with FORCE=1, or name another folder with OUTPUT=…"
        )


def _deciding_facts(recording: Recording) -> dict[str, Any]:
    """The facts that decide the batches of a recording, by the names that messages use."""
    return {
        "STEPS": recording.streams["train"].limit,
        "EVAL_STEPS": recording.streams["validation"].limit,
        "text": recording.source["data"],
        "cache": recording.source["cache"],
        **{name: recording.versions.get(name) for name in _DATA_LIBRARIES},
        **{name: stream.identity for name, stream in recording.streams.items()},
    }
