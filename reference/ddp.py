"""A small readable DistributedDataParallel: where communication hooks run.

Every rank holds the same model and computes the gradients of its own part of the batch. The gradients are averaged
over the ranks while the backward pass is still under way: parameters are grouped into buckets, and as soon as all
gradients of a bucket are there, its communication starts. A communication hook replaces that averaging.

This file has what a user sees. ``reducer.py`` follows one backward pass, ``bucketing.py`` groups the parameters and
keeps the memory of a bucket, ``registration.py`` says what is asked of a hook.
"""

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.futures import Future

from .bucketing import sparse_parameters
from .reducer import Reducer, broadcast_from_first
from .registration import check_hook, hook_name

State = TypeVar("State")


class DistributedDataParallel(nn.Module):
    """Wraps a model so that each backward pass leaves the same averaged gradients on every rank.

    Steps:
        1. At construction, broadcast the parameters and buffers of rank 0.
        2. Group the parameters into buckets, in reverse order: about the order in which gradients become ready.
        3. In backward, copy each gradient into its bucket when it is ready.
        4. When all gradients of a bucket are there, and those of all buckets before it, call the hook.
        5. At the end of backward, wait for the hooks' results and copy them to ``.grad``.
        6. After the first synchronised backward pass, group once more: in the order in which the gradients of rank 0
           became ready.

    The order of the buckets is the same on every rank, so the collectives match, whichever gradient a rank
    computes first.

    After a failure within a backward pass (of a hook, of its result, of a collective) the ranks may have
    issued different collectives, and a later one could pair with an earlier one of another rank. So the model refuses
    to go on.

    Args:
        module: The model, the same on every rank, on any device. Parameters of any shape, layout, floating-point or
            complex dtype.
        process_group: The ranks that train together; None means the world group.
        bucket_cap_mb: A bucket is closed when it has this many MiB (2^20 bytes). None means 25, and 1 for the
            first bucket of each dtype and device, whose communication starts earliest.
        find_unused_parameters: Whether some parameters may get no gradient in a pass. Such a parameter takes part with
            its ``.grad`` as it is, or zeros for None.
        gradient_as_bucket_view: Whether ``.grad`` of each parameter is a view of its bucket instead of a copy.
        broadcast_buffers: Whether each synchronised forward pass starts with the buffers of rank 0.
        static_graph: Not supported.
        hook_timeout: How many seconds to wait at the end of backward for each bucket's result. The process group's own
            time limit is what ends other waits: in collectives that a hook waits for itself, and in broadcasts.

    Attributes:
        module: The model.

    Raises:
        ValueError: There is no process group, or this rank is not in it, or ``bucket_cap_mb`` or ``hook_timeout`` is
            not positive.
        RuntimeError: No parameter requires a gradient, or the ranks' parameters or buffers differ in name, shape,
            stride, dtype or whether they require a gradient.
        NotImplementedError: ``static_graph`` is asked for.

    Clauses:
        DDP-BROADCAST (MUST, 1.11): After construction the parameters and buffers of every rank are those of the
            group's rank 0, bit for bit, also frozen ones.
        DDP-BROADCAST-BUFFERS (MUST, 1.11): A synchronised forward pass computes with the buffers of rank 0, unless
            broadcast_buffers is false.
        DDP-SAME-MODEL (SHOULD, 1.11): A model whose parameters differ between the ranks in number, shape or dtype is
            an error at construction, on every rank.
        DDP-NO-PARAMETERS (MUST, 1.11): A model of which no parameter requires a gradient is a RuntimeError at
            construction.
        DDP-MEAN (MUST, 1.11): Without a hook each gradient is the mean over the ranks of the local gradients, within
            the rounding of one division and of a sum in any order, for parameters of any shape, layout and dtype.
        DDP-AGREE (MUST, 1.11): Without a hook the gradients of all ranks are the same, bit for bit.
        DDP-GROUP (MUST, 1.11): With a subgroup as process_group the mean is taken over its members alone, and the
            divisor is its size; without process_group it is taken over the world.
        DDP-BUCKET-ONCE (MUST, 1.11): In each synchronised pass each parameter that required a gradient at construction
            is in one bucket, once, and no other is in any.
        DDP-BUCKET-CONTENTS (MUST, 1.11): buffer() holds the rank's own gradients of this pass when the hook is called,
            in the order of parameters(), not divided by anything.
        DDP-BUCKET-PARAMETERS (MUST, 1.11): parameters() has the very parameters of the model.
        DDP-BUCKET-GRADIENTS (MUST, 1.11): gradients() has the rank's own gradient of each of parameters(), element by
            element, whatever its layout and dtype.
        DDP-BUCKET-ORDER (MUST, 1.11): In each synchronised pass the hook is called once for each bucket, with the
            indices 0, 1, 2 and so on.
        DDP-BUCKET-LAST (MUST, 1.11): is_last() is true for the last bucket of a pass and for no other.
        DDP-BUCKET-SAME-ORDER (MUST, 1.11): In each pass all ranks have the same parameters in the same buckets, also
            if their gradients become ready in different orders.
        DDP-BUCKET-KINDS (MUST, 1.11): All parameters of a bucket have its dtype and its device.
        DDP-BUCKET-CAP (MUST, 1.11): From the second synchronised pass on a bucket without its last parameter has less
            than bucket_cap_mb MiB.
        DDP-BUCKET-SIZES (SHOULD, 1.11): From the second synchronised pass on each bucket except the last is filled
            until it has its cap: bucket_cap_mb, or 1 MiB for the first and 25 MiB for the others.
        DDP-FIRST-PASS (MAY, 1.11): The buckets of the first synchronised pass may be others than those of later ones.
        DDP-REBUILD-ORDER (SHOULD, 1.11): From the second synchronised pass on the parameters are in the order in which
            their gradients became ready on rank 0 in the first.
        DDP-REBUILD-ONCE (MUST, 1.11): From the second synchronised pass on the buckets are the same in every pass.
        DDP-REBUILD-UNUSED (SHOULD, 1.11): With find_unused_parameters the buckets are the same in every pass.
        DDP-BUCKET-FRESH (MUST, 1.11): What a hook does to a bucket with set_buffer() has no effect on later passes.
        DDP-OVERLAP (SHOULD, 1.11): A bucket is handed to the hook as soon as its gradients, and those of all buckets
            before it, are there, while the rest of the backward pass is still to come.
        DDP-UNUSED-LOCALLY (MUST, 1.11): With find_unused_parameters a parameter used on other ranks only contributes
            zeros, and gets the hook's result.
        DDP-UNUSED-EVERYWHERE (MUST, 1.11): With find_unused_parameters a parameter used on no rank keeps .grad None.
        DDP-UNUSED-ACCUMULATED (SHOULD, 1.11): With find_unused_parameters a parameter not used in this pass, but with
            a gradient from no_sync, contributes that gradient.
        DDP-UNUSED-REFUSED (MUST, 1.11): Without find_unused_parameters a parameter that got no gradient is a
            RuntimeError in the next forward pass.
        DDP-VIEW (MUST, 1.11): With gradient_as_bucket_view .grad shares the memory of the bucket, from the first
            pass on.
        DDP-VIEW-SAME (MUST, 1.11): The gradients with and without gradient_as_bucket_view are the same, bit for bit.
        DDP-GRAD-KEPT (SHOULD, 1.11): Without gradient_as_bucket_view a gradient that somebody keeps when .grad is set
            to None stays as it is.
        DDP-GRAD-LAYOUT (MUST, 1.11): The gradient of a parameter that is dense in memory has the parameter's strides,
            channels_last for one.
        DDP-SPARSE (MUST, 1.11): A sparse gradient is alone in its bucket, buffer() is sparse, and the result is a
            sparse tensor: the sum of what the ranks have at each index, divided by their number.
        DDP-TWO-FORWARDS (MUST, 1.11): After two forward passes one backward pass through both calls the hook once
            for each bucket, with the sum of the gradients.
        DDP-SECOND-BACKWARD (SHOULD, 1.11): A second backward pass without a forward pass in between does not call the
            hook and adds the local gradient.
        DDP-TWO-MODELS (MUST, 1.11): Two models whose passes are interleaved get the gradients that each gets alone.
        DDP-MODES (MUST, 1.11): In any two of these modes together the gradients are the mean of what each rank has
            accumulated: views, small buckets, unused and frozen parameters, several dtypes, channels_last, buffers, two
            models, no_sync, two forward passes, a second backward pass, a forward pass under no_grad, gradients kept
            from the step before, a subgroup.
        DDP-NO-GRAD (SHOULD, 1.11): A forward pass under torch.no_grad() has no effect on the next backward pass.
        DDP-COMPILED (SHOULD, 2.0): A model that torch.compile has compiled, alone or with the wrapper, gets the
            gradients of the plain one through the hook, which gets each parameter once in a pass.
        DDP-AUTOCAST (MUST, 1.11): If the forward pass ran under torch.autocast, buckets and gradients have the dtypes
            of the parameters all the same, and the gradients are the mean.
        DDP-MIXED-PRECISION (MAY, 2.1): With mixed_precision, where there is such an argument, a hook is refused, or the
            gradients are what it gives.
        DDP-LOSS-SCALE (SHOULD, 1.11): With the loss multiplied by a power of two the gradients are multiplied by it,
            bit for bit, with each of the hooks here, as long as no number leaves the normal range.
        DDP-MEMORY (SHOULD, 1.11): After a step nothing of a bucket's size is in memory but parameters, gradients, the
            bucket's buffer, and with error feedback the error that powerSGD_hook and batched_powerSGD_hook keep.
        DDP-LIFETIME (MUST, 1.11): When the wrapper is dropped, it, the hook and its state are freed.
        DDP-UNWRAPPED (SHOULD, 1.11): When the wrapper is dropped, the model's gradients are local ones again.
        DDP-STATE-DICT (MUST, 1.11): state_dict() has the model's entries with the prefix "module.", and nothing of
            the hook.
        DDP-LOAD-STATE-DICT (MUST, 1.11): load_state_dict() sets parameters and buffers to what state_dict() gave, and
            the next gradients are right.
        DDP-ARGUMENTS (MUST, 1.11): The model gets all arguments of the wrapper's call, and what it returns is returned.
        DDP-EVAL (SHOULD, 1.11): train() and eval() reach the model, and passes in eval mode are synchronised too.
        DDP-STATIC-GRAPH (MAY, 1.11): static_graph is refused at construction, or gives the same gradients.

    Example:
        With one rank the mean is the gradient itself.

        >>> model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        >>> model(torch.tensor([[1.0, 3.0]])).sum().backward()
        >>> model.module.weight.grad
        tensor([[1., 3.]])

    Source:
        https://docs.pytorch.org/docs/1.11/generated/torch.nn.parallel.DistributedDataParallel.html;
        Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training (arXiv 2006.15704),
        sections 3.2.2 (bucketing), 3.2.3 (overlap, unused parameters), 3.2.4 (gradient accumulation) and 4.1
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        broadcast_buffers: bool = True,
        static_graph: bool = False,
        hook_timeout: float = 1800.0,
    ) -> None:
        super().__init__()
        if static_graph:
            raise NotImplementedError("static_graph is not supported; leave it out")
        for name, value in (("bucket_cap_mb", bucket_cap_mb), ("hook_timeout", hook_timeout)):
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be more than 0, got {value}")
        group = process_group if process_group is not None else dist.group.WORLD
        if group is None:
            raise ValueError("process_group must be given, or torch.distributed.init_process_group() called before")
        if dist.get_rank(group) < 0:
            raise ValueError("process_group must be one that this rank is a member of")
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        if not trained:
            raise RuntimeError("module must have a parameter that requires a gradient, found none")

        self.module = module
        self.process_group = group
        self.broadcast_buffers = broadcast_buffers
        self._synchronise = True
        _check_same_model(module, group)
        broadcast_from_first(module.parameters(), group)
        broadcast_from_first(module.buffers(), group)
        self._reducer = Reducer(
            trained,
            sparse_parameters(module, list(trained.values())),
            group,
            caps_mb=(1.0, 25.0) if bucket_cap_mb is None else (bucket_cap_mb, bucket_cap_mb),
            find_unused_parameters=find_unused_parameters,
            gradient_as_bucket_view=gradient_as_bucket_view,
            hook_timeout=hook_timeout,
        )

    def forward(self, *inputs: object, **kwargs: object) -> Any:
        """Runs the model, and prepares the backward pass that follows.

        Returns:
            What the model returns.

        Raises:
            RuntimeError: The backward pass before failed, or left some parameters without a gradient.
        """
        if not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)
        self._reducer.check_finished()
        if not self._synchronise:
            self._reducer.expect_no_backward()
            return self.module(*inputs, **kwargs)
        self._reducer.rebuild_buckets_once()
        if self.broadcast_buffers:
            broadcast_from_first(self.module.buffers(), self.process_group)
        outputs = self.module(*inputs, **kwargs)
        self._reducer.expect_backward(outputs)
        return outputs

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets the gradients of forward passes inside accumulate on each rank, without communication.

        The next backward pass whose forward pass was outside synchronises the accumulated gradients.

        Clauses:
            DDP-NO-SYNC (MUST, 1.11): If the forward pass was inside no_sync(), the backward pass does not call the
                hook, and .grad gets the local gradient added.
            DDP-NO-SYNC-FORWARD (MUST, 1.11): If the forward pass was outside no_sync(), the hook is called, even if the
                backward pass is inside.
            DDP-NO-SYNC-ACCUMULATED (MUST, 1.11): The next synchronised pass hands the hook the sum of the accumulated
                gradients and its own.

        Source:
            https://docs.pytorch.org/docs/1.11/generated/torch.nn.parallel.DistributedDataParallel.html (no_sync)
        """
        before = self._synchronise
        self._synchronise = False
        try:
            yield
        finally:
            self._synchronise = before

    def join(self, *args: object, **kwargs: object) -> None:
        """Not supported: every rank needs the same number of synchronised passes.

        Raises:
            NotImplementedError: Always.

        Clauses:
            DDP-JOIN (MAY, 1.11): join() is refused with an error, or a rank that ran out of inputs contributes zeros,
                and the divisor stays the number of ranks.
        """
        raise NotImplementedError("join is not supported; give every rank the same number of inputs")

    def register_comm_hook(self, state: State, hook: Callable[[State, Any], Future[torch.Tensor]]) -> None:
        """Replaces the averaging by ``hook(state, bucket)``, once for the life of this model.

        The hook is called in the backward pass, without gradients being recorded, with a bucket of this
        rank's own gradients. It returns a future of one tensor, which becomes the new content of the bucket. Whatever
        scaling is wanted is up to the hook: nothing is divided before or after it.

        Args:
            state: Handed to each call of the hook as it is.
            hook: Anything callable with two positional arguments, whatever their names. Annotations are optional.

        Warns:
            UserWarning: ``state`` is None and the model has a process group other than the world.

        Raises:
            TypeError: ``hook`` is not callable with two positional arguments.
            ValueError: The bucket is annotated with something else than ``dist.GradBucket`` or the reference's
                ``GradBucket``, or the return value with something else than ``torch.futures.Future[torch.Tensor]``.
            RuntimeError: A hook is registered already (it stays), or a backward pass is under way.

        Clauses:
            DDP-REGISTER-CALLABLE (MUST, 1.11): A hook that is not callable is a TypeError.
            DDP-REGISTER-BUCKET-TYPE (MUST, 1.11): A bucket annotated with another type than dist.GradBucket is a
                ValueError.
            DDP-REGISTER-RETURN-TYPE (MUST, 1.11): A return value annotated with another type than
                torch.futures.Future[torch.Tensor] is a ValueError.
            DDP-REGISTER-ONCE (MUST, 1.11): A second registration is a RuntimeError, and the first hook stays active.
            DDP-REGISTER-FAILED (SHOULD, 1.11): A registration that failed has no effect: another one is accepted.
            DDP-REGISTER-UNANNOTATED (MUST, 1.11): A function without annotations, a lambda and a bound method are
                accepted.
            DDP-REGISTER-CALLABLES (SHOULD, 1.11): A functools.partial and an object with __call__ are accepted.
            DDP-REGISTER-STRINGS (SHOULD, 1.11): Annotations that are strings, as from __future__ import annotations
                makes them, are looked up: the right ones are accepted, and wrong ones are a ValueError.
            DDP-REGISTER-NAMES (SHOULD, 1.11): The hook and its two parameters may have any names.
            DDP-REGISTER-LATE (MAY, 1.11): A hook registered after a backward pass is refused, or used from the next
                one on.
            DDP-GROUP-NONE (SHOULD, 1.11): On a model with a subgroup the state None, which stands for the world in
                the averaging hooks, is warned of or refused, unless the mean is then taken over the subgroup.
            DDP-BUILT-IN (SHOULD, 1.11): Where there is _register_builtin_comm_hook, ALLREDUCE and FP16_COMPRESS give
                what allreduce_hook and fp16_compress_hook give, bit for bit.
            DDP-BUILT-IN-ONCE (SHOULD, 1.11): After a built-in hook a registration is a RuntimeError, and so is a
                built-in hook after a registration; the first hook stays active.
            DDP-HOOK-STATE (MUST, 1.11): The hook gets the very state object that was registered.
            DDP-HOOK-NO-GRAD (SHOULD, 1.11): The hook is called with the recording of gradients off.
            DDP-HOOK-RESULT (MUST, 1.11): The gradients after backward are the value of the hook's future, bit for bit,
                divided by nothing.
            DDP-HOOK-AWAITED (MUST, 1.11): backward() returns when the results of all buckets are in .grad, however late
                they come.
            DDP-RESULT-NOT-A-FUTURE (SHOULD, 1.11): A hook that returns None, a tensor, a number or anything else that
                is no future is a RuntimeError in that backward pass.
            DDP-RESULT-NOT-A-TENSOR (SHOULD, 1.11): A future of something else than one tensor, such as a list of
                tensors, is a RuntimeError in that backward pass that says so.
            DDP-RESULT-LENGTH (SHOULD, 1.11): A result with another number of elements than the bucket's buffer is a
                RuntimeError in that backward pass.
            DDP-RESULT-DTYPE (MAY, 1.11): A result of another dtype than the bucket's buffer is a RuntimeError in
                that backward pass, or is cast.
            DDP-RESULT-LAYOUT (SHOULD, 1.11): A result that has two dimensions, is not contiguous or does not start
                where its storage starts is a RuntimeError in that backward pass, or its values become the gradients.
            DDP-HOOK-RAISES (MUST, 1.11): An exception raised in the hook comes out of that backward pass as it is.
            DDP-FUTURE-FAILS (SHOULD, 1.11): An exception in the hook's future, or in a callback added to it with
                then(), comes out of that backward pass with its text.
            DDP-FUTURE-NEVER (SHOULD, 1.11): A future that never completes is an error in that backward pass, after a
                time that can be set.
            DDP-FAILED (SHOULD, 1.11): After such a failure the next pass works or is a RuntimeError that says
                what failed.
            DDP-ONE-RANK-FAILS (SHOULD, 1.11): If the hook raises on one rank, no other rank waits for ever: its
                backward pass is an error at the latest when the process group's time limit is over.

        Example:
            >>> model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
            >>> model.register_comm_hook(None, noop_hook)
            >>> model(torch.tensor([[1.0, 3.0]])).sum().backward()
            >>> model.module.weight.grad
            tensor([[1., 3.]])

        Source:
            https://docs.pytorch.org/docs/1.11/ddp_comm_hooks.html and
            https://docs.pytorch.org/docs/1.11/generated/torch.nn.parallel.DistributedDataParallel.html
            (register_comm_hook)
        """
        check_hook(hook)
        self._reducer.register(state, hook)
        if state is None and self.process_group is not dist.group.WORLD:
            warnings.warn(
                f"{hook_name(hook)} got the state None, which the averaging hooks take for the world group, but this "
                "model has a process_group of its own; register the hook with that group as its state",
                stacklevel=2,
            )


def _check_same_model(module: nn.Module, group: dist.ProcessGroup) -> None:
    """Refuses models that differ between the ranks: their collectives would not match."""
    own = [(name, p.shape, p.stride(), p.dtype, p.requires_grad) for name, p in module.named_parameters()]
    own += [(name, b.shape, b.stride(), b.dtype, b.requires_grad) for name, b in module.named_buffers()]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    for rank, theirs in enumerate(everyone):
        for here, there in itertools.zip_longest(everyone[0], theirs):
            if here != there:
                raise RuntimeError(
                    "module must have the same parameters and buffers on every rank (name, shape, stride, dtype, "
                    f"requires_grad); rank 0 has {here}, rank {rank} has {there}"
                )
