import torch.distributed as dist


def average(group, bucket):
    buffer = bucket.buffer().div_(dist.get_world_size(group))
    work = dist.all_reduce(buffer, group=group, async_op=True)
    return work.get_future().then(lambda reduced: reduced.value()[0])


average.commhooks_claims = {"mean"}
