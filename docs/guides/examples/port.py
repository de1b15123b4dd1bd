import torch
import torch.distributed as dist

commhooks_capabilities = ["allreduce_hook", "fp16_compress_hook", "float32", "float64", "subgroups"]


def _summed(tensor, group):
    work = dist.all_reduce(tensor, group=group, async_op=True)
    return work.get_future().then(lambda reduced: reduced.value()[0])


def allreduce_hook(process_group, bucket):
    return _summed(bucket.buffer().div_(dist.get_world_size(process_group)), process_group)


def fp16_compress_hook(process_group, bucket):
    buffer = bucket.buffer()
    size = dist.get_world_size(process_group)
    summed = _summed(buffer.to(torch.float16), process_group)
    return summed.then(lambda half: buffer.copy_(half.value()).div_(size))
