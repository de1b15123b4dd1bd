"""Faults of data-parallel training that show with some models only: their buffers, embeddings, layouts and dtypes."""

from __future__ import annotations

from . import Mutant
from .ddp import BUCKETING, DDP, REDUCER, mutant

BROADCAST = "            broadcast_from_first(self.module.buffers(), self.process_group)\n"
SOURCE = "    source = dist.get_global_rank(group, 0)\n    tensors = list(tensors)\n"

MUTANTS = [
    mutant(
        "buffers_of_parts_are_forgotten",
        ("DDP-BROADCAST-BUFFERS",),
        DDP,
        (BROADCAST, BROADCAST.replace("buffers()", "buffers(recurse=False)")),
        kinds=("value",),
    ),
    mutant(
        "unsaved_buffers_are_forgotten",
        ("DDP-BROADCAST-BUFFERS",),
        DDP,
        (
            BROADCAST,
            "            saved = self.module.state_dict()\n"
            "            buffers = [one for name, one in self.module.named_buffers() if name in saved]\n"
            "            broadcast_from_first(buffers, self.process_group)\n",
        ),
        kinds=("value",),
    ),
    mutant(
        "buffers_in_training_only",
        ("DDP-BROADCAST-BUFFERS",),
        DDP,
        ("        if self.broadcast_buffers:\n", "        if self.broadcast_buffers and self.training:\n"),
        kinds=("value",),
    ),
    mutant(
        "no_broadcast_in_a_subgroup",
        ("DDP-BROADCAST", "DDP-BROADCAST-BUFFERS"),
        REDUCER,
        (
            SOURCE,
            f"{SOURCE}    floating = any(tensor.is_floating_point() for tensor in tensors)\n"
            "    if floating and group is not dist.group.WORLD:\n        return\n",
        ),
        kinds=("value",),
    ),
    Mutant(
        "ddp_no_sync_of_all_models",
        ("DDP-TWO-MODELS",),
        {
            DDP: [
                ("        self._synchronise = True\n", ""),
                ("    def __init__(\n", "    _synchronise = True\n\n    def __init__(\n"),
                ("        self._synchronise = False\n", "        type(self)._synchronise = False\n"),
                ("            self._synchronise = before\n", "            type(self)._synchronise = before\n"),
            ]
        },
        kinds=("value",),
    ),
    mutant(
        "bytes_of_float32_for_all",
        ("DDP-BUCKET-CAP", "DDP-BUCKET-SIZES"),
        BUCKETING,
        ("    return parameter.numel() * parameter.element_size()", "    return parameter.numel() * 4"),
        kinds=("size",),
    ),
    mutant(
        "embedding_bags_are_dense",
        ("DDP-SPARSE",),
        BUCKETING,
        ("nn.Embedding | nn.EmbeddingBag)", "nn.Embedding)"),
    ),
    mutant(
        "embeddings_share_a_bucket",
        ("DDP-SPARSE",),
        BUCKETING,
        (
            "            full.append([place])\n            continue\n",
            "            shared = next((one for one in full if one[0] in sparse), None)\n"
            "            full.append([place]) if shared is None else shared.append(place)\n            continue\n",
        ),
    ),
    mutant(
        "unused_gradients_are_row_major",
        ("DDP-GRAD-LAYOUT",),
        BUCKETING,
        (
            "            parameter.grad = view.clone()\n",
            "            parameter.grad = view.clone(memory_format=torch.contiguous_format)\n",
        ),
        kinds=("strides",),
    ),
]
