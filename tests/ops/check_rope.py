"""Compares the scaling methods of lazy::rope with the implementation in transformers. Usage: check_rope.py LIBRARY"""

import sys

import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

torch.ops.load_library(sys.argv[1])

SHORT, LONG = [1 + 0.1 * n for n in range(32)], [1 + 2.0 * n for n in range(32)]
LONGROPE = {"factor": 32.0, "original_max_position_embeddings": 4096, "short_factor": SHORT, "long_factor": LONG}
CASES = [  # (type of scaling, parameters in transformers, arguments of the operator, sequence length)
    ("linear", {"factor": 4.0}, {}, None),
    ("longrope", LONGROPE, {"original_length": 4096, "pair_factors": SHORT}, 4096),
    ("longrope", LONGROPE, {"original_length": 4096, "pair_factors": LONG}, 4097),
    (
        "llama3",
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        {"original_length": 8192},
        None,
    ),
    (
        "yarn",
        {
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
        },
        {"original_length": 4096, "truncate": False},
        None,
    ),
]


def main():
    for kind, theirs, ours, length in CASES:
        config = transformers.LlamaConfig(
            head_dim=64, hidden_size=256, num_attention_heads=4, max_position_embeddings=131072
        )
        config.rope_parameters = {"rope_type": kind, "rope_theta": 150000.0, **theirs}
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
        places = torch.tensor([0, 1, 77, 4095, 100000])
        angles = places.double()[:, None] * frequencies.double()
        # The rotation of a unit vector along the first dimension of a pair is (cos, sin).
        x = torch.zeros(1, 5, 1, 64)
        x[..., :32] = 1
        y = torch.ops.lazy.rope(x, 150000.0, positions=places, scaling=kind, factor=theirs["factor"], **ours)[0, :, 0]
        expected = torch.cat([angles.cos(), angles.sin()], -1) * factor
        # The frequencies in transformers are rounded to fp32, so the error of an angle is proportional to its position.
        bound = 4e-7 + places.double()[:, None] * frequencies.double() * 2**-22
        error = (y.double() - expected).abs()
        assert (error <= torch.cat([bound, bound], -1) * factor).all(), (kind, error.max())
        print(f"{kind}: largest difference from transformers {transformers.__version__}: {error.max():.1e}")


main()
