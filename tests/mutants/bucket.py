"""Faults of the bucket."""

from . import Mutant

VIEWS = "            views.append(_view_like(part, parameter))\n"
COMMON = "bucket.py"


def bucket(name: str, clauses: tuple[str, ...], *changes: tuple[str, str], kinds: tuple[str, ...] = ()) -> Mutant:
    """A fault in GradBucket."""
    return Mutant(name, clauses, {COMMON: list(changes)}, kinds)


MUTANTS = [
    bucket(
        "index_counts_from_one", ("BUCKET-INDEX",), ("        return self._index\n", "        return self._index + 1\n")
    ),
    bucket("index_is_text", ("BUCKET-INDEX",), ("        return self._index\n", "        return str(self._index)\n")),
    bucket(
        "first_is_last", ("BUCKET-IS-LAST",), ("        return self._is_last\n", "        return self._index == 0\n")
    ),
    bucket(
        "last_is_a_number",
        ("BUCKET-IS-LAST",),
        ("        return self._is_last\n", "        return int(self._is_last)\n"),
    ),
    bucket(
        "buffer_is_a_copy",
        ("BUCKET-BUFFER", "BUCKET-GRADIENT-VIEWS"),
        ("        return self._buffer\n", "        return self._buffer.clone()\n"),
    ),
    bucket(
        "buffer_has_two_dimensions",
        ("BUCKET-BUFFER",),
        ("        return self._buffer\n", "        return self._buffer[None]\n"),
        kinds=("shape",),
    ),
    bucket(
        "gradients_are_flat", ("BUCKET-GRADIENT-SHAPES",), (VIEWS, "            views.append(part)\n"), kinds=("shape",)
    ),
    bucket(
        "gradients_are_reversed",
        ("BUCKET-GRADIENT-SHAPES",),
        (
            "            start += parameter.numel()\n        return views\n",
            ("            start += parameter.numel()\n        return views[::-1]\n"),
        ),
        kinds=("shape",),
    ),
    bucket(
        "gradients_are_copies",
        ("BUCKET-GRADIENT-VIEWS",),
        (VIEWS, "            views.append(_view_like(part.clone(), parameter))\n"),
        kinds=("value",),
    ),
    bucket(
        "empty_parameters_are_left_out",
        ("BUCKET-GRADIENT-SHAPES",),
        (VIEWS, "            if parameter.numel():\n                views.append(_view_like(part, parameter))\n"),
    ),
    bucket(
        "gradients_are_padded",
        ("BUCKET-GRADIENT-COVER",),
        (
            "            start += parameter.numel()\n",
            ("            start = min(start + parameter.numel() // 2 * 2, self._buffer.numel() - parameter.numel())\n"),
        ),
    ),
    bucket(
        "gradients_are_backwards",
        ("BUCKET-GRADIENT-COVER",),
        (
            "            part = self._buffer[start : start + parameter.numel()]\n",
            (
                "            end = self._buffer.numel() - start\n"
                "            part = self._buffer[end - parameter.numel() : end]\n"
            ),
        ),
    ),
    bucket(
        "row_major_always",
        ("BUCKET-LAYOUT",),
        (VIEWS, "            views.append(part.view(parameter.shape))\n"),
        kinds=("strides",),
    ),
    bucket(
        "parameters_are_copies",
        ("BUCKET-PARAMETERS",),
        ("        return list(self._parameters)\n", "        return [one.detach() for one in self._parameters]\n"),
    ),
    bucket(
        "parameters_are_reversed",
        ("BUCKET-PARAMETERS",),
        ("        return list(self._parameters)\n", "        return self._parameters[::-1]\n"),
    ),
    bucket(
        "set_buffer_copies_into_the_old_one",
        ("BUCKET-SET-BUFFER",),
        ("            )\n        self._buffer = buffer\n", "            )\n        self._buffer.copy_(buffer)\n"),
    ),
    bucket(
        "set_buffer_keeps_a_copy",
        ("BUCKET-SET-BUFFER",),
        ("            )\n        self._buffer = buffer\n", "            )\n        self._buffer = buffer.clone()\n"),
    ),
    bucket(
        "set_buffer_overwrites_the_old_one",
        ("BUCKET-SET-BUFFER",),
        (
            "            )\n        self._buffer = buffer\n",
            ("            )\n        self._buffer.zero_()\n        self._buffer = buffer\n"),
        ),
    ),
    bucket(
        "gradients_stay_with_the_old_buffer",
        ("BUCKET-SET-GRADIENTS",),
        (
            "        self._parameters = _as_parameters(parameters, buffer)\n",
            ("        self._parameters = _as_parameters(parameters, buffer)\n        self._first = buffer\n"),
        ),
        (
            "            part = self._buffer[start : start + parameter.numel()]\n",
            ("            part = self._first[start : start + parameter.numel()]\n"),
        ),
    ),
    bucket("anything_is_an_index", ("BUCKET-ARGUMENTS",), ("        if index < 0:\n", "        if False:\n")),
    bucket("any_shape_is_a_buffer", ("BUCKET-ARGUMENTS",), ("    if tensor.dim() != 1:\n", "    if False:\n")),
    bucket(
        "lengths_are_not_compared",
        ("BUCKET-ARGUMENTS",),
        ("        if numel != buffer.numel():\n", "        if False:\n"),
    ),
    bucket(
        "errors_do_not_name_the_argument",
        ("BUCKET-ARGUMENTS",),
        ('f"index must be 0 or more, got {index}"', '"bad value"'),
        kinds=("message",),
    ),
]
