"""Small gradients on which a faulty compressing hook gives a result that no right one can give.

The bounds of `bounds` are wide enough for every right hook, and so for some wrong ones. Each witness here was chosen
so that one fault shows in `exact_set`, with few ranks and one element.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Witness:
    """One input, and what a hook with one fault makes of it.

    Attributes:
        fault: What the faulty hook does.
        wire: Name of the half type: "float16" or "bfloat16".
        gradients: One number for each rank, all of them float32 numbers.
        faulty: The result of the hook with the fault.
        why: How the input brings the fault out, with the right result.
    """

    fault: str
    wire: str
    gradients: tuple[float, ...]
    faulty: float
    why: str

    @property
    def x(self) -> npt.NDArray[np.float32]:
        """The gradients as float32, shape (W, 1): row i is what rank i holds."""
        return np.array(self.gradients, dtype=np.float32)[:, None]


DIVIDE_BEFORE_CAST = "divides in float32, then casts"
ROUND_ONCE = "averages in float32, then casts"
NO_COMPRESSION = "averages in float32 and does not cast"
TRUNCATE = "casts by cutting bits off"
ROUND_HALF_UP = "casts with ties rounded away from zero"

# float16 holds the even integers from 2048 to 4096, the multiples of 2^-24 below 2^-14, and nothing above 65504.
# bfloat16 holds the even integers from 256 to 512, the multiples of 2^-133 below 2^-126, and nothing from 2^128 on.
WITNESSES = (
    # For two and four ranks the division is exact on normal numbers, so its place shows for three.
    Witness(
        DIVIDE_BEFORE_CAST, "float16", (3665.0, 2871.0, 2529.0), 3024.0, "shares are rounded once; right: 3020, 3022"
    ),
    Witness(DIVIDE_BEFORE_CAST, "bfloat16", (439.0, 368.0, 447.0), 416.0, "shares are rounded once; right: 418, 420"),
    # At the ends of the range it shows for two.
    Witness(DIVIDE_BEFORE_CAST, "float16", (65536.0, 0.0), 32768.0, "65536 does not fit, its half does; right: inf"),
    Witness(DIVIDE_BEFORE_CAST, "bfloat16", (3.4e38, 0.0), 1.7014118346046923e38, "the cast gives 2^128; right: inf"),
    Witness(
        DIVIDE_BEFORE_CAST,
        "float16",
        (2.6 * 2**-24, 2.6 * 2**-24),
        2.0 * 2**-24,
        "1.3 goes down to 1, but 2.6 up to 3 and its half to 2 (units of 2^-24); right: 4, or 3 with a wide sum",
    ),
    Witness(
        DIVIDE_BEFORE_CAST,
        "bfloat16",
        (2.625 * 2**-133, 2.625 * 2**-133),
        2.0 * 2**-133,
        "1.3125 goes down to 1, but 2.625 up to 3 and its half to 2 (units of 2^-133); right: 4, or 3 with a wide sum",
    ),
    # One odd gradient is rounded by the cast to a multiple of 4, and moves the mean past where one rounding puts it.
    Witness(ROUND_ONCE, "float16", (2601.0, 4021.0), 3312.0, "the casts give 2600 and 4020; right: 3310"),
    Witness(ROUND_ONCE, "bfloat16", (279.0, 318.0), 298.0, "the casts give 280 and 318, the tie 299; right: 300"),
    Witness(ROUND_ONCE, "float16", (3050.0, 3757.0, 2785.0), 3198.0, "the casts give 3756 and 2784; right: 3196"),
    Witness(ROUND_ONCE, "bfloat16", (410.0, 291.0, 382.0), 360.0, "the cast gives 292; right: 362"),
    Witness(ROUND_ONCE, "float16", (3981.0, 2461.0, 2273.0, 3405.0), 3030.0, "all casts go down; right: 3028"),
    Witness(ROUND_ONCE, "bfloat16", (286.0, 359.0, 318.0, 376.0), 334.0, "the cast gives 360; right: 336"),
    # An odd mean is no number of the half type.
    Witness(NO_COMPRESSION, "float16", (2601.0, 4021.0), 3311.0, "odd; right: 3310"),
    Witness(NO_COMPRESSION, "bfloat16", (279.0, 319.0), 299.0, "odd; right: 300"),
    Witness(NO_COMPRESSION, "float16", (3050.0, 3757.0, 2786.0), 3197.666748046875, "a fraction"),
    Witness(NO_COMPRESSION, "bfloat16", (286.0, 359.0, 318.0, 376.0), 334.75, "a fraction; right: 336"),
    # Three quarters of the way to the next number up.
    Witness(TRUNCATE, "float16", (2049.5, 2049.5), 2048.0, "nearer to 2050; right: 2050"),
    Witness(TRUNCATE, "bfloat16", (257.5, 257.5), 256.0, "nearer to 258; right: 258"),
    Witness(TRUNCATE, "bfloat16", (-257.5, -257.5, -257.5, -257.5), -256.0, "nearer to -258; right: -258"),
    # Half way, with an even last bit below. A stochastic cast gives this result too, some of the time.
    Witness(ROUND_HALF_UP, "float16", (2049.0, 2049.0), 2050.0, "a tie, even is down; right: 2048"),
    Witness(ROUND_HALF_UP, "bfloat16", (257.0, 257.0), 258.0, "a tie, even is down; right: 256"),
    Witness(ROUND_HALF_UP, "float16", (-2049.0, -2049.0), -2050.0, "a tie, even is towards 0; right: -2048"),
    Witness(ROUND_HALF_UP, "bfloat16", (257.0, 257.0, 257.0, 257.0), 258.0, "a tie, even is down; right: 256"),
)


def witnesses_for(wire: str, world_size: int) -> list[Witness]:
    """Picks the witnesses for one half type and one number of ranks.

    Example:
        >>> [witness.faulty for witness in witnesses_for("bfloat16", 3)]
        [416.0, 360.0]
    """
    return [witness for witness in WITNESSES if witness.wire == wire and len(witness.gradients) == world_size]
