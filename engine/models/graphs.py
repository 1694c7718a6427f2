"""A routed model's forward pass as a captured CUDA graph: one launch instead of thousands, for shapes that come again.

``model.execution = "graph"`` switches it on for traces (``trace_batches.run_model``); "device" is the same step
launched operation by operation. It never ran on a GPU; all but ``capture_on_gpu`` is tested on a CPU.

Rules: "CUDA Graphs" in PyTorch's CUDA semantics (https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs).
Warm up on a side stream, capture there, keep inputs and outputs in place, never wait for the device inside. A replay
runs no Python: hooks do not see it, and what the pass reads besides inputs and weights is what it was at the capture.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tokenpaths.engine.models.bank.device_step import HOPPER

MOST = 8
"""shapes that are remembered: each captured one keeps the memory of a whole forward pass"""
Capture = Callable[[Callable[[], Any], torch.device], tuple[Callable[[], object], Any]]
"""runs a function on a device; returns what replays it, and the outputs that each replay overwrites"""


class GraphRefused(UserWarning):
    """A shape could not be captured: it runs operation by operation from now on."""


class Captured(NamedTuple):
    """One shape's pass; ``weights``: where the model's tensors lay, of what type and shape."""

    inputs: tuple[Tensor | None, ...]
    replay: Callable[[], object]
    outputs: Any
    weights: tuple


def has_graphs(device: torch.device) -> bool:
    """Whether a routed pass can be captured there: a GPU on which grouped products do not wait for the host."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER


def capture_on_gpu(run: Callable[[], Any], device: torch.device) -> tuple[Callable[[], object], Any]:
    """Warm up and capture; raises RuntimeError where ``run`` waits for the device."""
    with torch.cuda.device(device):
        graph, side, here = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            run()  # handles of libraries and kept constants are made here
            _check_never_waits(run)
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                outputs = run()
        here.wait_stream(side)
    return graph.replay, outputs


def _check_never_waits(run: Callable[[], Any]) -> None:
    # A capture that breaks off leaves disorder. The mode is the whole process's: an error would strike other threads.
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    if any("synchroniz" in str(warning.message) for warning in heard):
        raise RuntimeError("the forward pass waits for the device")


class Graphs:
    """``model.<method>(*inputs)`` by replay from a shape's second call on; outputs (tensors in dataclasses and lists)
    are copied each time. Plain: with gradients, in training, on devices that do not fit, after a capture that failed,
    and once after the model's tensors moved; then the shape is captured anew.
    """

    def __init__(
        self,
        model: nn.Module,
        method: str = "forward",
        *,
        most: int = MOST,
        capture: Capture = capture_on_gpu,
        fits: Callable = has_graphs,
    ) -> None:
        self._model, self._method, self._most = weakref.ref(model), method, most
        self._capture, self._fits = capture, fits
        self.met: OrderedDict[tuple, Captured | None] = OrderedDict()  # the latest shape last; None: met once
        self._refused: set[tuple] = set()
        self._lock = threading.Lock()

    def __call__(self, first: Tensor, *others: Tensor | None) -> Any:
        model = self._model()
        assert model is not None, "graphs are kept no longer than their model"
        run, inputs, device = getattr(model, self._method), (first, *others), first.device
        if torch.is_grad_enabled() or model.training or not self._fits(device):
            return run(*inputs)
        cast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        key = (cast, *(None if x is None else (x.shape, x.dtype, x.device) for x in inputs))
        weights = tuple((t.data_ptr(), t.dtype, t.shape) for t in chain(model.parameters(), model.buffers()))
        with self._lock:
            if one := self._ready(key, run, inputs, weights):
                for kept, fresh in zip(one.inputs, inputs, strict=True):
                    if kept is not None and fresh is not None:
                        kept.copy_(fresh)
                one.replay()
                return copied(one.outputs)
        return run(*inputs)

    def _ready(self, key: tuple, run: Callable[..., Any], inputs: tuple, weights: tuple) -> Captured | None:
        if key in self._refused:
            return None
        again, one = key in self.met, self.met.pop(key, None)
        if one is not None and one.weights != weights:
            one = None
        elif again and one is None:
            try:
                one = self._captured(key[0], run, inputs, weights)
            except RuntimeError as error:
                self._refused.add(key)
                warnings.warn(f"{tuple(inputs[0].shape)} goes without a graph: {error}", GraphRefused, stacklevel=3)
                return None
        self.met[key] = one
        if len(self.met) > self._most:
            self.met.popitem(last=False)
        return one

    def _captured(self, cast: torch.dtype | None, run: Callable[..., Any], inputs: tuple, weights: tuple) -> Captured:
        with torch.inference_mode(False), torch.no_grad():  # inputs that any later call may write into
            kept = tuple(None if x is None else torch.empty_like(x).copy_(x) for x in inputs)

        def once() -> Any:
            # Casts that autocast keeps are freed with its context, and a replay would read them: keep none.
            with nullcontext() if cast is None else torch.autocast(inputs[0].device.type, cast, cache_enabled=False):
                return run(*kept)

        return Captured(kept, *self._capture(once, inputs[0].device), weights)


def copied(value: Any) -> Any:
    """The same with every tensor copied: the next replay overwrites its outputs, not what a caller holds."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, (list, tuple)):
        return type(value)(copied(x) for x in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: copied(getattr(value, f.name)) for f in fields(value)})
    return value
