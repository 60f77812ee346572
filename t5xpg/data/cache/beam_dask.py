"""Beam's Dask runner, corrected for caching: RUNNER=DaskRunner.

It differs from Beam 2.77 in three places. Beam computes a side input (the temporary folder of a write, its results)
again in each task that reads it, by a second graph whose keys can be taken for the first's; here the task depends on
it. Beam gives all bundles of a process one list of results, read before a bundle is finished; here each has its own.
Beam assigns documents to files in turn, from a random file on; here from the first file, so that a bundle that is
repeated, because its worker was lost, goes to the same files again.
"""

import functools
import itertools
import uuid
from collections.abc import Iterable
from typing import Any
from unittest import mock

from apache_beam.io.iobase import _RoundRobinKeyFn
from apache_beam.runners.common import DoFnContext, DoFnInvoker, DoFnSignature, _OutputHandler
from apache_beam.runners.dask import transform_evaluator
from apache_beam.runners.dask.dask_runner import DaskRunner
from apache_beam.transforms.core import DoFn, ParDo
from apache_beam.transforms.sideinputs import SideInputMap
from dask import bag
from dask.highlevelgraph import HighLevelGraph


class RoundRobinFromFirstFile(_RoundRobinKeyFn):
    """Assigns a bundle's elements to files in turn, from the first file on: to the same files each time."""

    def start_bundle(self) -> None:
        self.counter = 0


def run_bundle(
    elements: Iterable[Any],
    partitions: list[list[list[Any]]],
    *,
    fn: Any,
    window_fn: Any,
    label: str,
    arguments: Any,
    views: Any,
) -> list[Any]:
    """The outputs of one bundle of a ParDo. partitions: lists of elements of each side input. arguments: of `fn`,
    positional and named, with places for side inputs. views: class, options and windows of each side input."""
    received = transform_evaluator.OneReceiver()
    handler = _OutputHandler(
        window_fn=window_fn,
        main_receivers=received[None],
        tagged_receivers=received,
        per_element_output_counter=None,
        output_batch_converter=None,
        process_yields_batches=False,
        process_batch_yields_elements=False,
    )
    side_inputs = []
    for lists, (kind, options, windows) in zip(partitions, views, strict=True):
        values = [transform_evaluator.get_windowed_value(element, windows) for element in itertools.chain(*lists)]
        side_inputs.append(SideInputMap(kind, options, values))
    positional, named = arguments
    invoker = DoFnInvoker.create_invoker(
        DoFnSignature(fn),
        handler,
        context=DoFnContext(label, state=None),
        side_inputs=side_inputs,
        input_args=positional,
        input_kwargs=named,
        user_state_context=None,
        bundle_finalizer_param=DoFn.BundleFinalizerParam(),
    )
    invoker.invoke_setup()
    invoker.invoke_start_bundle()
    for element in elements:
        invoker.invoke_process(element)
    invoker.invoke_finish_bundle()
    invoker.invoke_teardown()
    return [value.value for value in received.values]


class ParDoOnce(transform_evaluator.ParDo):
    """A ParDo that depends on its side inputs."""

    def apply(self, input_bag: Any, side_inputs: Any = None) -> Any:
        transform = self.transform
        positional, named = transform.raw_side_inputs
        main = next(iter(self.applied.main_inputs.values()))
        window_fn = main.windowing.windowfn if hasattr(main, "windowing") else None
        fn = RoundRobinFromFirstFile() if type(transform.fn) is _RoundRobinKeyFn else transform.fn
        windowed = input_bag.map(transform_evaluator.get_windowed_value, window_fn)
        bags = [side._iterable.bag for side in side_inputs or ()]
        run = functools.partial(
            run_bundle,
            fn=fn,
            window_fn=window_fn,
            label=transform.label,
            arguments=(list(positional), dict(named)),
            views=[(side._view_class, side._view_options, side._iterable.window_fn) for side in side_inputs or ()],
        )
        # sides by their keys: a bag as an argument of `map_partitions` would be optimised, and so computed, separately
        partitions = [[(side.name, number) for number in range(side.npartitions)] for side in bags]
        name = f"run_bundle-{uuid.uuid4().hex}"
        tasks: dict[Any, Any] = {
            (name, number): (run, (windowed.name, number), partitions) for number in range(windowed.npartitions)
        }
        graph = HighLevelGraph.from_collections(name, tasks, dependencies=[windowed, *bags])
        return bag.Bag(graph, name, windowed.npartitions)


class DaskRunnerForCaching(DaskRunner):
    """`apache_beam.runners.dask.dask_runner.DaskRunner` with the ParDo above."""

    def run_pipeline(self, pipeline: Any, options: Any) -> Any:
        with mock.patch.dict(transform_evaluator.TRANSLATIONS, {ParDo: ParDoOnce}):
            return super().run_pipeline(pipeline, options)
