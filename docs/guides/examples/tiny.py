"""A framework of its own, as small as can be: arrays with a dtype, and ranks that meet in a folder."""

import time
from pathlib import Path

import numpy as np


class Tensor:
    def __init__(self, array):
        self.array = np.asarray(array, order="C")


class Future:
    def __init__(self, value):
        self._value = value

    def result(self):
        return self._value


class Group:
    def __init__(self, folder, ranks, rank):
        self.folder, self.ranks, self.rank, self.calls = Path(folder), list(ranks), rank, 0
        self.folder.mkdir(parents=True, exist_ok=True)

    def all_gather(self, array):
        self.calls += 1
        own = self.folder / f"{self.calls}-{self.rank}.npy"
        unfinished = own.with_suffix(".part.npy")
        np.save(unfinished, array)
        unfinished.rename(own)
        return [self._read(self.folder / f"{self.calls}-{rank}.npy") for rank in self.ranks]

    def all_reduce(self, array):
        first, *others = self.all_gather(array)
        for other in others:
            first = first + other
        return first

    def _read(self, path):
        while not path.exists():
            time.sleep(0.0002)
        return np.load(path)


class GradBucket:
    def __init__(self, index, buffer, parameters, is_last):
        self._index, self._buffer, self._parameters, self._is_last = index, buffer, parameters, is_last

    def index(self):
        return self._index

    def is_last(self):
        return self._is_last

    def buffer(self):
        return self._buffer

    def set_buffer(self, buffer):
        self._buffer = buffer

    def parameters(self):
        return self._parameters

    def gradients(self):
        views, start = [], 0
        for parameter in self._parameters:
            stop = start + parameter.array.size
            view = Tensor.__new__(Tensor)
            view.array = self._buffer.array[start:stop].reshape(parameter.array.shape)
            views.append(view)
            start = stop
        return views


def allreduce_hook(group, bucket):
    group = group or WORLD
    buffer = bucket.buffer().array
    buffer[:] = group.all_reduce(buffer / len(group.ranks))
    return Future(bucket.buffer())


def fp16_compress_hook(group, bucket):
    group = group or WORLD
    buffer = bucket.buffer().array
    buffer[:] = group.all_reduce(buffer.astype(np.float16) / len(group.ranks))
    return Future(bucket.buffer())


WORLD = None
