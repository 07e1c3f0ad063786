"""Gradient averaging overlapped with backward: the machinery of the all-reduce strategy.

Owns the hooks on the parameters, the buckets' memory and the order in which buckets are reduced.
Every worker starts the same reductions in the same order, whatever order its gradients become ready
in: a bucket waits for the one before it, and the end of backward starts what is left. So parameters
that got no gradient on some workers (unused in this step) cannot make the workers disagree.

A trailer on the last bucket carries, summed like a gradient: how many workers contributed, and per
parameter how many had a gradient for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.autograd import Variable

from shoal.collectives.buckets import BUCKET_BYTES, layout_buckets
from shoal.errors import UsageError
from shoal.trace import SpanKind

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.comm import Communicator, Work
    from shoal.train.replica import Stopwatch


class GradientBuckets:
    """Buckets of one replica's gradients, reduced while backward is still running.

    After `backward()` returns, every parameter's `grad` is the mean over the contributing workers.
    A parameter that no worker used keeps its local `grad`, usually None.
    """

    def __init__(
        self,
        parameters: list[Tensor],
        extra: list[Tensor],
        communicator: Communicator,
        stopwatch: Stopwatch,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        """`extra` are flat tensors (batch-norm statistics) averaged along with the gradients."""
        self._parameters = [p for p in parameters if p.requires_grad]
        if not self._parameters:
            raise UsageError("The model has no parameters that require gradients.")
        first = self._parameters[0]
        if any(p.dtype != first.dtype or p.device != first.device for p in self._parameters):
            raise UsageError(
                "all-reduce needs all trainable parameters in one data type on one device;"
                " cast the model before making DistributedOptimizer."
            )
        self._communicator = communicator
        self._stopwatch = stopwatch
        self._extra = extra
        self.enabled = True
        """Set False while gradients only accumulate locally."""
        self._layout = layout_buckets(
            [p.numel() for p in self._parameters],
            first.element_size(),
            bucket_bytes=bucket_bytes,
        )
        self._allocate(first)
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._make_hook(index))
            for index, p in enumerate(self._parameters)
        ]
        self._reset()

    def _allocate(self, like: Tensor) -> None:
        """Make the buckets' memory and the views of parameters, extras and trailer in it."""
        self._views: dict[int, Tensor] = {}
        self._place: dict[int, int] = {}
        self._memory: list[Tensor] = []
        tail = sum(t.numel() for t in self._extra) + 1 + len(self._parameters)
        for number, bucket in enumerate(self._layout):
            is_last = number == len(self._layout) - 1
            memory = like.new_zeros(bucket.num_elements + (tail if is_last else 0))
            self._memory.append(memory)
            for index, offset in zip(bucket.parameters, bucket.offsets, strict=True):
                parameter = self._parameters[index]
                end = offset + parameter.numel()
                self._views[index] = memory[offset:end].as_strided(
                    parameter.size(), parameter.stride(), offset
                )
                self._place[index] = number
        start = self._layout[-1].num_elements
        self._extra_views: list[Tensor] = []
        for tensor in self._extra:
            self._extra_views.append(self._memory[-1][start : start + tensor.numel()])
            start += tensor.numel()
        self._contributors = self._memory[-1][start : start + 1]
        self._used = self._memory[-1][start + 1 :]

    def _reset(self) -> None:
        self._missing = [len(bucket.parameters) for bucket in self._layout]
        self._ready: set[int] = set()
        self._started: list[Work] = []
        self._is_callback_queued = False

    def _make_hook(self, index: int) -> _Hook:
        return _Hook(self, index)

    def on_gradient(self, index: int) -> None:
        """Take the gradient of parameter `index`, which backward has just accumulated."""
        if not self.enabled:
            return
        if not self._is_callback_queued:
            self._is_callback_queued = True
            Variable._execution_engine.queue_callback(self._finish_backward)  # noqa: SLF001 - the only way to run at the end of backward; DDP's Python hooks use it too
        if index in self._ready:
            raise UsageError(
                "A parameter got its gradient twice in one backward pass (activation"
                " checkpointing with reentrant=True does that); use use_reentrant=False."
            )
        self._load(index)
        self._ready.add(index)
        self._missing[self._place[index]] -= 1
        self._start_ready()

    def _load(self, index: int) -> None:
        """Copy a gradient into its bucket, already divided by the number of workers."""
        parameter, view = self._parameters[index], self._views[index]
        assert parameter.grad is not None
        torch.mul(parameter.grad, 1.0 / self._communicator.world_size, out=view)
        parameter.grad = view

    def _start_ready(self) -> None:
        """Start the next buckets that are complete, in order; the last one waits for the end."""
        while len(self._started) < len(self._layout) - 1:
            if self._missing[len(self._started)]:
                return
            self._start_next()

    def _start_next(self) -> None:
        memory = self._memory[len(self._started)]
        self._started.append(self._communicator.all_reduce(memory))

    def _finish_backward(self) -> None:
        """Reduce what is left and wait: runs when backward has gone through the whole graph."""
        self._reduce(contributes=True)

    def shadow(self) -> bool:
        """Take part in one reduction with nothing to give, for workers that still train.

        Returns whether any worker contributed.
        """
        self._ready = set()
        with torch.no_grad():
            self._reduce(contributes=False)
        return bool(self._contributors.item())

    def _reduce(self, *, contributes: bool) -> None:
        for index in range(len(self._parameters)):
            if index not in self._ready:
                self._views[index].zero_()
        scale = 1.0 / self._communicator.world_size if contributes else 0.0
        for tensor, view in zip(self._extra, self._extra_views, strict=True):
            torch.mul(tensor, scale, out=view)
        self._contributors.fill_(1.0 if contributes else 0.0)
        self._used.zero_()
        if self._ready:
            self._used[list(self._ready)] = 1.0
        while len(self._started) < len(self._layout):
            self._start_next()
        everyone = tuple(range(self._communicator.world_size))
        with self._stopwatch.span(SpanKind.EXCHANGE, everyone, "every worker, every step"):
            for work in self._started:
                work.wait()
        self._scale_and_publish()
        self._reset()

    def _scale_and_publish(self) -> None:
        """Correct for workers that had nothing to give, and hand out what was unused here."""
        contributors = float(self._contributors.item())
        if contributors and contributors != self._communicator.world_size:
            factor = self._communicator.world_size / contributors
            for memory, bucket in zip(self._memory, self._layout, strict=True):
                memory[: bucket.num_elements].mul_(factor)
            for view in self._extra_views:
                view.mul_(factor)
        if contributors:
            for tensor, view in zip(self._extra, self._extra_views, strict=True):
                tensor.copy_(view)
        if len(self._ready) < len(self._parameters):
            used = self._used.tolist()
            for index, parameter in enumerate(self._parameters):
                if index not in self._ready and used[index]:
                    parameter.grad = self._views[index]

    def remove(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()


class _Hook:
    """Tells the buckets that one parameter's gradient is ready."""

    def __init__(self, buckets: GradientBuckets, index: int) -> None:
        self._buckets = buckets
        self._index = index

    def __call__(self, _parameter: Tensor) -> None:
        self._buckets.on_gradient(self._index)
