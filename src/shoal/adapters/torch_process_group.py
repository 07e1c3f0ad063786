"""The torch.distributed backend "shoal": torch's collectives over the bounded-loss transport.

`torch.distributed.init_process_group("shoal")` is all a user writes: an entry point registers the
backend when torch is imported. Owns the translation of torch's arguments; every collective becomes
one or more transfers of a `TransportGroup`. Sums of float32, float64 and integers are made by the
transport; floats of 16 bits travel as they are, or all floats as the wire type that was asked for,
and are summed in float32. Every other type and reduction is gathered, shard by shard, and reduced
by torch; sparse sums are gathered. Tensors of a GPU go by copies in host memory.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from shoal.adapters import sparse_sums
from shoal.adapters.torch_arguments import check_length, check_list, check_member
from shoal.adapters.torch_described_group import DescribedGroup
from shoal.adapters.torch_future import Order, current_order
from shoal.adapters.torch_host_copies import receive_through_host, through_host
from shoal.adapters.torch_overloads import takes_one_output, takes_reduction, takes_root
from shoal.adapters.torch_profile import with_profiled_collectives
from shoal.adapters.torch_reductions import (
    check_reduction,
    factor_of,
    is_made_in_sums,
    is_sum,
    operations_of,
    reduce_rows,
    reduction_of,
)
from shoal.adapters.torch_scratch import assign, assign_bytes, contiguous
from shoal.adapters.torch_shards import check_shards, row_bytes
from shoal.adapters.torch_work import TransportWork, afterwards, then
from shoal.carriers import (
    HOST,
    AnySource,
    HostCopy,
    Summand,
    Wanted,
    bytes_of,
    flat_copy,
    form_of,
    lies_in_form,
    memory_of,
    needs_host_copy,
    scatter_back,
    with_untraced_methods,
)
from shoal.errors import DeadlineExceeded, UsageError
from shoal.transport import RAW
from shoal.wire import EXACT, MonitoredBarrier, SumOptions, TransportGroup

if TYPE_CHECKING:
    from shoal.wire import Carrier

ReduceOp = dist.ReduceOp


@with_untraced_methods
@with_profiled_collectives
class ShoalProcessGroup(DescribedGroup):
    """One group of ranks, as torch.distributed wants to see it, over the engine that carries it.

    `sums` says how sums are made; only contributions to a sum of floats may get lost.
    """

    engine: Carrier

    def __init__(self, me: int, size: int, *, sums: SumOptions = EXACT) -> None:
        super().__init__(me, size)
        self.sums = sums

    @classmethod
    def over(cls, group: TransportGroup, *, sums: SumOptions = EXACT) -> Self:
        """Return the process group of the members of `group`."""
        made = cls(group.me, group.size, sums=sums)
        made.stand_on(group)
        return made

    def stand_on(self, group: TransportGroup) -> None:
        """Let operations from now on be those of `group`, and be numbered anew."""
        self.engine = group.engine
        self._order = Order(group, group)
        self._from_anyone = AnySource(group)
        self._monitored_barrier = MonitoredBarrier(group)

    @property
    def group(self) -> TransportGroup:
        """What numbers and carries the operations that this thread starts."""
        return self._here().group

    def _here(self) -> Order:
        """Return the order of this group's callback in this thread, else the group's own."""
        order = current_order()
        return order if order is not None and order.home is self._order.home else self._order

    def _operation(
        self, result: Sequence[Tensor], finish: Callable[[], None] | None = None
    ) -> TransportWork:
        """Return the work of the next operation that all members start, here, in the same order."""
        return TransportWork(result, finish, self.next_order())

    def next_order(self) -> Order:
        """Return what numbers callbacks of the next operation that all members start, here."""
        return self._here().of_operation()

    def order_at(self, iteration: int) -> Order:
        """Return what numbers operations that were reserved here, from `iteration` on."""
        return Order(self._order.home, self.group.resumed_at(iteration))

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Bound later operations by `timeout`, as torch's own groups let it be set."""
        self.engine.deadline_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """Leave; other users of this process's transport go on."""
        self.engine.close()

    def abort(self) -> None:
        """Make every operation under way fail, and leave."""
        self.engine.abort(UsageError("The process group was aborted."))
        self.shutdown()

    # ---- sums and other reductions --------------------------------------------------------------

    @takes_reduction
    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> TransportWork:
        """Reduce over all members, in place."""
        reduction = reduction_of(opts)
        return self._each(tensors, lambda tensor: self._reduce_whole(tensor, reduction))

    @takes_reduction
    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> TransportWork:
        """Reduce several tensors over all members, in place."""
        return self.allreduce(tensors, opts)

    def average(self, tensor: Tensor, options: SumOptions) -> TransportWork:
        """Replace `tensor` by its mean over all members, made as `options` say but for the scale.

        Types that the transport cannot add up are averaged exactly, whatever the options.
        """
        options = replace(options, scale=1 / self.group.size)
        return self._reduce_whole(tensor, ReduceOp.AVG, options)

    @takes_root(dist.ReduceOptions)
    def reduce(self, tensors: list[Tensor], opts: Any) -> TransportWork:
        """Reduce over all members into the root's tensor."""
        check_member(opts.rootRank, self.group.size, "reduce")
        # A sum to everyone costs the root's link no more, and serves every type and reduction.
        scratch = [
            tensor if opts.rootRank == self.group.me else tensor.clone() for tensor in tensors
        ]
        return self.allreduce(scratch, opts)

    def _reduce_whole(
        self, tensor: Tensor, reduction: Any, options: SumOptions | None = None
    ) -> TransportWork:
        if self.group.size == 1:
            return self._operation([tensor]).seal()
        if tensor.is_sparse:
            return self._reduce_sparse(tensor, reduction)
        return self._reduce_dense(tensor, reduction, options or self._options(tensor, reduction))

    @through_host(operations=lambda tensor, reduction, _: operations_of(reduction, tensor))
    def _reduce_dense(self, tensor: Tensor, reduction: Any, options: SumOptions) -> TransportWork:
        flat, finish = contiguous(tensor)
        if reduction == ReduceOp.PREMUL_SUM:
            flat, reduction = flat.mul_(factor_of(reduction, flat)), ReduceOp.SUM
        if is_made_in_sums(reduction, tensor):
            summand = Summand.of(flat, options.wire)
            work = self._operation([tensor], _bring_back(summand, finish))
            then(self.group.all_reduce(summand.memory, options), work)
            return work.seal()
        return self._reduce_by_gathering(flat, [tensor], reduction, finish)

    @through_host(operations=lambda *_: sparse_sums.OPERATIONS)
    def _reduce_sparse(self, tensor: Tensor, reduction: Any) -> TransportWork:
        if not is_sum(reduction, tensor):
            raise UsageError("Sparse tensors can be reduced by SUM only, and by AVG if of floats.")
        work = self._operation([tensor])
        sparse_sums.sum_sparse(self.group, tensor, mean=reduction == ReduceOp.AVG, tell=work.part())
        return work.seal()

    def _reduce_by_gathering(
        self, flat: Tensor, result: list[Tensor], reduction: Any, finish: Callable[[], None]
    ) -> TransportWork:
        """Reduce shards with torch: everyone's parts of a shard meet at one member."""
        check_reduction(flat, reduction)
        group = self.group
        size, me = group.size, group.me
        shard = -(-flat.numel() // size)
        with torch.inference_mode(False):  # else they could not be written to in another thread
            padded = torch.cat([flat.reshape(-1), flat.new_zeros(shard * size - flat.numel())])
            parts, whole = torch.empty_like(padded), torch.empty_like(padded)

        def copy_back() -> None:
            flat.copy_(whole[: flat.numel()].view(flat.shape))
            finish()

        work = self._operation(result, copy_back)
        counts = [shard * flat.element_size()] * size
        second = work.part()

        def reduce_shard() -> None:
            mine = slice(me * shard, (me + 1) * shard)
            parts[mine] = padded[mine]
            whole[mine] = reduce_rows(parts.view(size, shard), reduction)
            transfer = group.all_gather(bytes_of(whole), counts, iteration=gathering)
            transfer.tell(second)

        gathering = group.reserve()
        first = group.all_to_all(bytes_of(padded), bytes_of(parts), counts, counts)
        reduce_it = afterwards(reduce_shard, result, second)
        first.tell(reduce_it) if first else reduce_it(None)
        return work.seal()

    @takes_one_output(dist.ReduceScatterOptions)
    def reduce_scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None
    ) -> TransportWork:
        """Reduce one of `size` tensors to each member."""
        check_list(inputs[0], self.group.size, "reduce_scatter")
        me = self.group.me
        check_length(inputs[0][me], outputs[0].numel(), me, "reduce_scatter")
        if len({part.numel() for part in inputs[0]}) > 1:
            return self._reduce_to_uneven(outputs[0], inputs[0], reduction_of(opts))
        return self._reduce_scatter_base(outputs[0], flat_copy(inputs[0]), opts)

    @through_host(
        overwrites=True,
        operations=lambda _, parts, reduction: sum(
            operations_of(reduction, part) for part in parts
        ),
    )
    def _reduce_to_uneven(
        self, output: Tensor, parts: list[Tensor], reduction: Any
    ) -> TransportWork:
        """Reduce tensors of different sizes, one to each member."""
        scratch = [part.clone() for part in parts]
        work = self._operation([output], lambda: assign(output, scratch[self.group.me]))
        for each in scratch:
            self._reduce_whole(each, reduction).tell(work.part())
        return work.seal()

    def _reduce_scatter_base(
        self, output: Tensor, source: Tensor, opts: Any = None
    ) -> TransportWork:
        """Reduce the shard of `source` that is this member's into `output`."""
        reduction = reduction_of(opts)
        return self._reduce_to_shards(output, source, reduction, self._options(output, reduction))

    @through_host(
        overwrites=True,
        operations=lambda output, _, reduction, __: operations_of(reduction, output),
    )
    def _reduce_to_shards(
        self, output: Tensor, source: Tensor, reduction: Any, options: SumOptions
    ) -> TransportWork:
        size, me = self.group.size, self.group.me
        check_shards(output, source, size)
        whole = source.reshape(size, -1)
        if reduction == ReduceOp.PREMUL_SUM:
            whole, reduction = whole * factor_of(reduction, whole), ReduceOp.SUM
        if not (self._sums_in_place(output) and is_sum(reduction, output)) or size == 1:
            scratch = whole.clone()
            inner = self._reduce_whole(scratch, reduction)
            work = self._operation([output], lambda: assign(output, scratch[me]))
            inner.tell(work.part())
            return work.seal()
        whole, form = whole.contiguous(), form_of(output.dtype, options.wire)
        from_memory = memory_of(whole, form)
        summed = self.group.shards_summed_here(from_memory, options)
        if len(summed) > 1:
            target = whole[summed.start :: summed.step].clone()
            finish = functools.partial(assign, output, target[summed.index(me)])
        else:
            target, finish = contiguous(output, copy=False)
            target.copy_(whole[me].view(target.shape))
        work = self._operation([output], finish)
        then(self.group.reduce_scatter(from_memory, memory_of(target, form), options), work)
        return work.seal()

    def reduce_scatter_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TransportWork:
        """Reduce the shards of several tensors."""
        pairs = list(zip(outputs, inputs, strict=True))
        return self._each(pairs, lambda pair: self._reduce_scatter_base(pair[0], pair[1], opts))

    # ---- copies ---------------------------------------------------------------------------------

    @takes_root(dist.BroadcastOptions)
    def broadcast(self, tensors: list[Tensor], opts: Any) -> TransportWork:
        """Overwrite every member's tensors with the root's."""
        check_member(opts.rootRank, self.group.size, "broadcast")
        return self._each(tensors, lambda tensor: self._broadcast_one(tensor, opts.rootRank))

    @through_host()
    def _broadcast_one(self, tensor: Tensor, root: int) -> TransportWork:
        flat, finish = contiguous(tensor)
        work = self._operation([tensor], finish)
        then(self.group.broadcast(bytes_of(flat), root), work)
        return work.seal()

    @takes_one_output(None)
    @through_host(overwrites=True)
    def allgather(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> TransportWork:
        """Collect every member's tensor, of the size that it has in `outputs`, on every member."""
        check_list(outputs[0], self.group.size, "all_gather")
        source, lengths = inputs[0], [out.numel() for out in outputs[0]]
        if lengths[self.group.me] != source.numel():
            message = (
                f"all_gather of {source.numel()} elements got a place of"
                f" {lengths[self.group.me]} for them."
            )
            raise UsageError(message)
        whole = source.new_empty(sum(lengths))
        rows = whole.split(lengths)
        rows[self.group.me].copy_(source.reshape(-1))

        def finish() -> None:
            for out, row in zip(outputs[0], rows, strict=True):
                assign(out, row)

        work = self._operation(outputs[0], finish)
        counts = [length * source.element_size() for length in lengths]
        then(self.group.all_gather(bytes_of(whole), counts), work)
        return work.seal()

    @through_host(overwrites=True)
    def _allgather_base(self, output: Tensor, source: Tensor, opts: Any = None) -> TransportWork:
        """Collect every member's tensor, one behind the other."""
        size, me = self.group.size, self.group.me
        check_shards(source, output, size)
        flat, finish = contiguous(output, copy=False)
        flat.view(size, -1)[me] = source.reshape(-1)
        work = self._operation([output], finish)
        counts = [source.numel() * source.element_size()] * size
        then(self.group.all_gather(bytes_of(flat), counts), work)
        return work.seal()

    def allgather_into_tensor_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TransportWork:
        """Collect several tensors."""
        pairs = list(zip(outputs, inputs, strict=True))
        return self._each(pairs, lambda pair: self._allgather_base(pair[0], pair[1]))

    def allgather_coalesced(
        self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None
    ) -> TransportWork:
        """Collect several tensors of every member."""
        numbers = range(len(inputs))

        def one(number: int) -> TransportWork:
            return self.allgather([[row[number] for row in outputs]], [inputs[number]])

        return self._each(numbers, one)

    @takes_one_output(dist.GatherOptions)
    @through_host(overwrites=True)
    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> TransportWork:
        """Collect every member's tensor on the root."""
        size, me, root = self.group.size, self.group.me, opts.rootRank
        check_member(root, size, "gather")
        source = inputs[0].contiguous()
        length = source.numel() * source.element_size()
        at_root = me == root
        if at_root:
            check_list(outputs[0], size, "gather", length=source.numel())
        whole = source.new_empty((size if at_root else 0, source.numel()))
        if at_root:
            whole[me] = source.reshape(-1)

        def finish() -> None:
            for out, row in zip(outputs[0] if at_root else [], whole, strict=True):
                assign(out, row)

        work = self._operation(outputs[0] if at_root else [], finish)
        sent = [0 if at_root or peer != root else length for peer in range(size)]
        received = [length if at_root else 0] * size
        then(self._exchange(source, whole, sent, received, "gather"), work)
        return work.seal()

    @takes_one_output(dist.ScatterOptions)
    @through_host(overwrites=True)
    def scatter(
        self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any
    ) -> TransportWork:
        """Give every member one of the root's tensors."""
        size, me, root = self.group.size, self.group.me, opts.rootRank
        target, copy = contiguous(outputs[0], copy=False)
        length = target.numel() * target.element_size()
        check_member(root, size, "scatter")
        at_root = me == root
        if at_root:
            check_list(inputs[0], size, "scatter", length=target.numel())
        source = flat_copy(inputs[0]) if at_root else target.new_empty(0)
        if at_root:
            assign(target, source.view(size, -1)[me])
        work = self._operation(outputs, copy)
        sent = [length if at_root else 0] * size
        received = [0 if at_root or peer != root else length for peer in range(size)]
        then(self._exchange(source, target, sent, received, "scatter"), work)
        return work.seal()

    @through_host(overwrites=True)
    def alltoall_base(
        self,
        output: Tensor,
        source: Tensor,
        output_splits: list[int],
        input_splits: list[int],
        opts: Any = None,
    ) -> TransportWork:
        """Exchange rows of one tensor for rows of another."""
        size, me = self.group.size, self.group.me
        target, finish = contiguous(output, copy=False)
        source = source.contiguous()
        sent = row_bytes(source, input_splits, size)
        received = row_bytes(target, output_splits, size)
        flat_source, flat_target = source.view(-1).view(torch.uint8), target.view(-1)
        flat_target = flat_target.view(torch.uint8)
        mine_from, mine_to = sum(sent[:me]), sum(received[:me])
        flat_target[mine_to : mine_to + received[me]] = flat_source[
            mine_from : mine_from + sent[me]
        ]
        work = self._operation([output], finish)
        then(self._exchange(source, target, sent, received, "all-to-all"), work)
        return work.seal()

    @through_host(overwrites=True)
    def alltoall(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> TransportWork:
        """Exchange one tensor with every member."""
        me = self.group.me
        for tensors in (outputs, inputs):
            check_list(tensors, self.group.size, "all_to_all")
        source = flat_copy(inputs)
        target = source.new_empty(sum(out.numel() for out in outputs))
        width = source.element_size()
        sent = [tensor.numel() * width for tensor in inputs]
        received = [tensor.numel() * width for tensor in outputs]
        start = sum(received[:me]) // width
        target[start : start + outputs[me].numel()] = inputs[me].reshape(-1)
        work = self._operation(outputs, lambda: scatter_back(target, outputs))
        then(self._exchange(source, target, sent, received, "all-to-all"), work)
        return work.seal()

    def send(self, tensors: list[Tensor], destination: int, tag: int) -> TransportWork:
        """Send a tensor to one member."""
        check_member(destination, self.group.size, "send")
        work = TransportWork(tensors)
        source = tensors[0].contiguous()
        if needs_host_copy(source):
            copy = HostCopy(source)
            copy.await_values()  # here, as messages to one member follow each other
            source = copy.values
        then(self._order.home.send(bytes_of(source), destination, tag=tag), work)
        return work.seal()

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> TransportWork:
        """Receive a tensor from one member."""
        check_member(source, self.group.size, "recv")
        if needs_host_copy(tensors[0]):
            return receive_through_host(tensors, lambda host: self.recv(host, source, tag))
        flat, finish = contiguous(tensors[0], copy=False)
        memory = bytes_of(flat)
        standing = self._from_anyone.claim(source, memory.count, tag)
        if standing is None:
            work = TransportWork(tensors, finish)
            then(self._order.home.receive(memory, source, tag=tag), work)
        else:
            place = standing.place

            def copy() -> None:
                assign_bytes(flat, place)
                finish()

            work = TransportWork(tensors, copy)
            then(standing.transfer, work)
        work.source = source
        return work.seal()

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> TransportWork:
        """Receive a tensor from the rank that sends first; `source_rank()` of the work names it.

        What is received in this way with one tag is of one size; see `AnySource`.
        """
        if needs_host_copy(tensors[0]):
            return receive_through_host(tensors, lambda host: self.recv_anysource(host, tag))
        flat, finish = contiguous(tensors[0], copy=False)
        work = TransportWork(tensors, finish)
        part = work.part()

        def deliver(member: int, place: Tensor | None, error: BaseException | None) -> None:
            timer.cancel()
            work.source = member
            if place is not None:
                assign_bytes(flat, place)
            part(error)

        deadline_s = self._order.home.deadline_s or self.engine.deadline_s

        def expire() -> None:
            message = f"No rank sent with tag {tag} within the timeout of {deadline_s:g} s."
            self._from_anyone.give_up(wanted, tag, DeadlineExceeded(message))

        wanted = Wanted(bytes_of(flat).count, deliver)
        timer = threading.Timer(deadline_s, expire)
        timer.daemon = True
        timer.start()
        try:
            self._from_anyone.receive(wanted, tag)
        except BaseException:
            timer.cancel()
            raise
        return work.seal()

    def barrier(self, opts: Any = None) -> TransportWork:
        """Finish once every member has called it."""
        here = torch.zeros(self.group.size, dtype=torch.uint8, device=HOST)
        work = self._operation([])
        seconds = opts.timeout.total_seconds() if opts is not None else 0  # negative: none given
        deadline_s = seconds if seconds > 0 else None
        then(self.group.barrier(bytes_of(here), deadline_s=deadline_s), work)
        return work.seal()

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Return once every member has called it; rank 0's error names the members that are late.

        `timeout` is the group's where none is given. See `MonitoredBarrier`.
        `dist.monitored_barrier` refuses every backend that is not called gloo, so call this one.
        """
        deadline_s = self.group.deadline_s or self.engine.deadline_s
        timeout_s = deadline_s if timeout is None else timeout.total_seconds()
        self._monitored_barrier(timeout_s, wait_all_ranks=wait_all_ranks)

    # Newer releases of torch call some of these by other names as well.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ---- helpers --------------------------------------------------------------------------------

    def _exchange(
        self, source: Tensor, target: Tensor, sent: list[int], received: list[int], called: str
    ) -> Any:
        return self.group.all_to_all(bytes_of(source), bytes_of(target), sent, received, called)

    def _options(self, tensor: Tensor, reduction: Any) -> SumOptions:
        scale = 1 / self.group.size if reduction == ReduceOp.AVG else 1.0
        bound = self.sums.loss_bound if tensor.dtype.is_floating_point else 0.0
        name = (tensor.data_ptr(), tensor.numel()) if bound else None
        return replace(self.sums, scale=scale, loss_bound=bound, tensor=name)

    def _sums_in_place(self, tensor: Tensor) -> bool:
        """Return whether the transport sums such tensors, and without a copy in another type."""
        form = form_of(tensor.dtype, self.sums.wire)
        return form != RAW and lies_in_form(tensor.dtype, form)

    def _each(self, items: Sequence[Any], start: Callable[[Any], TransportWork]) -> TransportWork:
        """Start one operation for each item; done when all are."""
        works = [start(item) for item in items]
        if len(works) == 1:
            return works[0]
        work = self._operation(functools.reduce(operator.iadd, (w.result() for w in works), []))
        for inner in works:
            inner.tell(work.part())
        return work.seal()


def _bring_back(summand: Summand, finish: Callable[[], None]) -> Callable[[], None]:
    def copy() -> None:
        summand.bring_back()
        finish()

    return copy
