"""A learner spread over ranks by FSDP2: one unit per layer, one for the rest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from draftc.runtime.train.learner import DraftLearner


class ShardedLearner(DraftLearner):
    """What `shard` makes of a learner."""

    set_requires_gradient_sync: Callable[[bool], None]  # FSDPModule's, which becomes a base in `shard`

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Add up gradients on every rank without exchanging them, under the name that accelerate asks for."""
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            self.set_requires_gradient_sync(True)


def shard(learner: DraftLearner, dtype: torch.dtype | None = None) -> DraftLearner:
    """Shard `learner` over all ranks of the default process group, in place and where it is, and return it.

    Weights stay float32; with `dtype` they are gathered, and computed with, in that. Gradients are reduced in float32.
    Inputs of units are not cast: rotations stay as fine as they are while decoding.
    """
    # FSDP2 would take the card of a host that has one, also for a learner on the host.
    mesh = init_device_mesh(next(learner.parameters()).device.type, (distributed.get_world_size(),))
    reduced = None if dtype is None else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced, cast_forward_inputs=False)
    learner.compute_dtype = None
    learner.__class__ = ShardedLearner
    for layer in learner.draft.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(learner, mesh=mesh, mp_policy=policy)
    return learner


def is_sharded(learner: torch.nn.Module) -> bool:
    """Whether `shard` has been here."""
    return isinstance(learner, FSDPModule)
