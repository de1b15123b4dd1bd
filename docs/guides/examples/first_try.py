import torch
import torch.distributed as dist


def average(group, bucket):
    buffer = bucket.buffer()
    dist.all_reduce(buffer, group=group, async_op=True)
    future = torch.futures.Future()
    future.set_result(buffer / dist.get_world_size(group))
    return future


average.commhooks_claims = {"mean"}
