"""Right values of the averaging and compressing hooks, in float64 numpy, and what may differ from them.

Written from the clauses: nothing here imports torch or the reference. Arrays hold one row per rank, shape (W, n).
Types go by name; a bfloat16 array travels as float32 and the name "bfloat16".

* ``mean``: the mean over the ranks, and the distance of a result from it.
* ``bounds``: how large that distance may be, proved; and whether a result keeps to it. This is the MUST.
* ``exact``: for up to four ranks all right results, bit for bit. This is the SHOULD.
* ``nonfinite``: what infinities and NaN must become.
* ``witnesses``: small gradients on which a certain fault shows.
* ``rounding``: the four floating types, and rounding into them.
"""

from .bounds import compressed_mean_bound, may_overflow, mean_bound, within_compressed_bound, within_mean_bound
from .exact import exact_set, in_exact_set
from .mean import deviation, mean
from .nonfinite import classify, compressed_mean_class, ieee_mean_class
from .rounding import (
    FLOAT_TYPES,
    BoolArray,
    Float64Array,
    FloatArray,
    FloatType,
    casts,
    float_type,
    is_representable,
    round_to,
    same_value,
)
from .witnesses import WITNESSES, Witness, witnesses_for

__all__ = [
    "FLOAT_TYPES",
    "WITNESSES",
    "BoolArray",
    "Float64Array",
    "FloatArray",
    "FloatType",
    "Witness",
    "casts",
    "classify",
    "compressed_mean_bound",
    "compressed_mean_class",
    "deviation",
    "exact_set",
    "float_type",
    "ieee_mean_class",
    "in_exact_set",
    "is_representable",
    "may_overflow",
    "mean",
    "mean_bound",
    "round_to",
    "same_value",
    "within_compressed_bound",
    "within_mean_bound",
    "witnesses_for",
]
