"""What happens in one backward pass: gradients become ready, buckets are handed to the hook, results come back."""

import contextlib
import dataclasses
import datetime
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from .bucket import GradBucket
from .bucketing import MEBIBYTE, BucketStorage, assign_to_buckets
from .default_hooks import allreduce_hook
from .registration import check_future, hook_name, wait_for_result

Hook = Callable[[Any, Any], Future[torch.Tensor]]


def average(group: dist.ProcessGroup, bucket: GradBucket) -> Future[torch.Tensor]:
    """The hook that runs where none is registered; it has a name of its own to be told from a registered one."""
    return allreduce_hook(group, bucket)  # type: ignore[arg-type]  # any bucket with the methods will do


@torch.no_grad()
def broadcast_from_first(tensors: Iterable[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Gives every rank of the group the values that the group's first rank has, in place."""
    source = dist.get_global_rank(group, 0)
    tensors = list(tensors)
    # Backends send memory as it lies; a contiguous copy lies the same way on every rank.
    sent = [tensor.detach().contiguous() for tensor in tensors]
    for work in [dist.broadcast(tensor, src=source, group=group, async_op=True) for tensor in sent]:
        work.wait()
    for tensor, received in zip(tensors, sent, strict=True):
        tensor.copy_(received)


@dataclasses.dataclass
class _Pass:
    """How far one backward pass has come. The forward pass makes it, the end of the backward pass drops it.

    Attributes:
        missing: For each bucket the places of the parameters whose gradients are not there yet.
        unreachable: Places of the parameters that will get no gradient, as far as the forward pass can tell.
        ready: Places of the parameters whose gradients are there, in the order in which they came.
        launched: For each bucket handed to the hook: the bucket, the buffer it had, the future that came back.
        end_awaited: Whether the end of the present call of backward() will be noticed.
    """

    missing: list[set[int]]
    unreachable: frozenset[int]
    ready: list[int] = dataclasses.field(default_factory=list)
    launched: list[tuple[GradBucket, torch.Tensor, Future[torch.Tensor]]] = dataclasses.field(default_factory=list)
    end_awaited: bool = False


class Reducer:
    """Watches the parameters of a model and runs the hook on their gradients.

    Args:
        parameters: The parameters that require a gradient, by name.
        sparse: Places among them of those whose gradients are sparse.
        group: The ranks that train together.
        caps_mb: Cap in MiB of the first bucket of each dtype and device, and of the others.
        find_unused_parameters: Whether some parameters may get no gradient in a pass.
        gradient_as_bucket_view: Whether ``.grad`` is a view of the bucket.
        hook_timeout: How many seconds to wait for each bucket's result.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        sparse: frozenset[int],
        group: dist.ProcessGroup,
        caps_mb: tuple[float, float],
        find_unused_parameters: bool,
        gradient_as_bucket_view: bool,
        hook_timeout: float,
    ) -> None:
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._sparse = sparse
        self._group = group
        self._caps_mb = caps_mb
        self._find_unused = find_unused_parameters
        self._as_view = gradient_as_bucket_view
        self._timeout = hook_timeout
        self._state: Any = group
        self._hook: Hook = average

        self._pass: _Pass | None = None
        self._failure: str | None = None
        self._first_order: list[int] | None = None
        # With unused parameters no single pass tells the order, so the first buckets stay.
        self._is_rebuilt = find_unused_parameters
        self._buckets = self._build_buckets(list(reversed(range(len(self._parameters)))))
        self._watch_gradients()

    def register(self, state: object, hook: Hook) -> None:
        """Sets the hook, once."""
        if self._hook is not average:
            raise RuntimeError(
                f"a communication hook can be registered only once; {hook_name(self._hook)} is registered and stays"
            )
        if self._pass is not None and self._pass.ready:
            raise RuntimeError("a communication hook cannot be registered while a backward pass is under way")
        self._state = state
        self._hook = hook

    # Before and in the forward pass.

    def _watch_gradients(self) -> None:
        """Calls ``_on_gradient`` whenever a gradient has been added to ``.grad``, as long as this reducer lives."""
        this = weakref.ref(self)  # The parameters may outlive the reducer, and must not keep it alive.

        def watch(place: int) -> Callable[[torch.Tensor], None]:
            def on_gradient(_: torch.Tensor) -> None:
                reducer = this()
                if reducer is not None:
                    reducer._on_gradient(place)

            return on_gradient

        for place, parameter in enumerate(self._parameters):
            handle = parameter.register_post_accumulate_grad_hook(watch(place))  # type: ignore[no-untyped-call]
            weakref.finalize(self, handle.remove)

    def _build_buckets(self, order: Sequence[int]) -> list[BucketStorage]:
        first_cap, cap = (megabytes * MEBIBYTE for megabytes in self._caps_mb)
        return [
            BucketStorage(
                {place: self._parameters[place] for place in members},
                [self._names[place] for place in members],
                is_sparse=members[0] in self._sparse,
                as_view=self._as_view,
            )
            for members in assign_to_buckets(self._parameters, order, self._sparse, first_cap, cap)
        ]

    def rebuild_buckets_once(self) -> None:
        """After the first pass: builds the buckets in the order in which rank 0's gradients became ready."""
        if self._is_rebuilt or self._first_order is None:
            return
        order = torch.tensor(self._first_order, device=self._parameters[0].device)
        broadcast_from_first([order], self._group)
        self._buckets = self._build_buckets(order.tolist())
        self._is_rebuilt = True

    def check_finished(self) -> None:
        """Raises a RuntimeError if the last backward pass failed, or did not reach every parameter."""
        if self._failure is not None:
            raise RuntimeError(
                f"an earlier backward pass failed ({self._failure}), so the ranks may not be in step any more; make "
                "a new process group and wrap the model again"
            )
        if self._pass is not None and self._pass.ready:
            missing = sorted(set().union(*self._pass.missing))
            raise RuntimeError(
                "the last backward pass is not finished: no gradient came for "
                f"{', '.join(self._names[place] for place in missing)}. If they are not used in every pass, set "
                "find_unused_parameters=True"
            )

    def expect_no_backward(self) -> None:
        """Lets gradients accumulate until the next ``expect_backward``."""
        self._pass = None

    def expect_backward(self, outputs: object) -> None:
        """Prepares for the backward pass that starts at the outputs of a forward pass."""
        unreachable = self._unreachable_from(outputs) if self._find_unused else frozenset()
        self._pass = _Pass([set(bucket.members) for bucket in self._buckets], unreachable)

    def _unreachable_from(self, outputs: object) -> frozenset[int]:
        """The parameters to which no path of the autograd graph leads from the outputs."""
        to_visit = [_node(tensor) for tensor in _tensors_in(outputs) if tensor.requires_grad]
        visited = set(to_visit)
        while to_visit:
            for node, _ in to_visit.pop().next_functions:
                if node is not None and node not in visited:
                    visited.add(node)
                    to_visit.append(node)
        return frozenset(place for place, parameter in enumerate(self._parameters) if _node(parameter) not in visited)

    # In the backward pass.

    def _on_gradient(self, place: int) -> None:
        current = self._pass
        if current is None:
            return
        with self._failing_for_good(), torch.no_grad():
            if not current.end_awaited:
                self._await_end(current)
            if not current.ready:
                for unreachable in sorted(current.unreachable):
                    self._mark_ready(current, unreachable)
            self._mark_ready(current, place)
            self._launch_ready_buckets(current)

    def _await_end(self, current: _Pass) -> None:
        # The one way to act after the whole backward pass and before backward() returns: hooks on tensors and modules
        # run in the middle of it. Not documented, but torch's own FSDP depends on it.
        torch.autograd.Variable._execution_engine.queue_callback(self._at_end_of_backward)
        current.end_awaited = True

    def _mark_ready(self, current: _Pass, place: int) -> None:
        for bucket, missing in zip(self._buckets, current.missing, strict=True):
            if place in missing:
                bucket.copy_in(place)
                missing.remove(place)
                current.ready.append(place)
                return
        raise RuntimeError(
            f"{self._names[place]} got a gradient when its bucket had been given one already: it is used outside of "
            "forward(), or by two calls of backward() after one forward pass"
        )

    def _launch_ready_buckets(self, current: _Pass) -> None:
        """Hands the hook each bucket that is complete, up to the first one that is not."""
        for index in range(len(current.launched), len(self._buckets)):
            if current.missing[index]:
                return
            bucket = self._buckets[index].for_hook(index, is_last=index == len(self._buckets) - 1)
            given = bucket.buffer()  # A hook may put another buffer into the bucket.
            future = check_future(self._hook, self._hook(self._state, bucket))
            current.launched.append((bucket, given, future))

    def _at_end_of_backward(self) -> None:
        current = self._pass
        if current is None:
            return
        with self._failing_for_good(), torch.no_grad():
            current.end_awaited = False
            if self._find_unused:
                # Some parameters reach an output, but not the loss.
                for place in sorted(set().union(*current.missing)):
                    self._mark_ready(current, place)
                self._launch_ready_buckets(current)
            # Else another call of backward() may follow, from another output.
            if len(current.launched) == len(self._buckets):
                self._finish(current)

    def _finish(self, current: _Pass) -> None:
        """Waits for all results before any gradient changes, so that a failure changes none."""
        results = [
            wait_for_result(self._hook, future, bucket, given, self._timeout)
            for bucket, given, future in current.launched
        ]
        unused = self._unused_everywhere() if self._find_unused else frozenset()
        for storage, result in zip(self._buckets, results, strict=True):
            storage.copy_out(result, unused)
        if self._first_order is None:
            self._first_order = current.ready
        self._pass = None

    def _unused_everywhere(self) -> frozenset[int]:
        """The parameters that have a gradient on no rank: one more allreduce tells."""
        device = self._parameters[0].device
        ranks_with_gradient = torch.tensor([int(p.grad is not None) for p in self._parameters], device=device)
        work = dist.all_reduce(ranks_with_gradient, group=self._group, async_op=True)
        work.wait(datetime.timedelta(seconds=self._timeout))
        return frozenset(place for place, ranks in enumerate(ranks_with_gradient.tolist()) if ranks == 0)

    @contextlib.contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        """Notes what went wrong in a backward pass, and ends the pass."""
        try:
            yield
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._pass = None
            raise


def _node(tensor: torch.Tensor) -> torch.autograd.graph.Node:
    """Where the gradient of a tensor enters the autograd graph; for a parameter, where it is added to ``.grad``."""
    return torch.autograd.graph.get_gradient_edge(tensor).node


def _tensors_in(outputs: object) -> Iterator[torch.Tensor]:
    """The tensors in what a model returns: in tuples, lists, mappings and dataclasses."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from _tensors_in(value)
    elif isinstance(outputs, tuple | list):
        for value in outputs:
            yield from _tensors_in(value)
    elif dataclasses.is_dataclass(outputs):
        for field in dataclasses.fields(outputs):
            yield from _tensors_in(getattr(outputs, field.name))
