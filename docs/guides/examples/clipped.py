from dataclasses import dataclass

import torch.distributed as dist


@dataclass
class Clipping:
    group: dist.ProcessGroup
    limit: float


def clip_and_average(state, bucket):
    buffer = bucket.buffer().clamp_(-state.limit, state.limit)
    buffer.div_(dist.get_world_size(state.group))
    work = dist.all_reduce(buffer, group=state.group, async_op=True)
    return work.get_future().then(lambda reduced: reduced.value()[0])


def commhooks_state(process_group):
    return Clipping(process_group, limit=1.0)


commhooks_claims = {"subgroups"}
