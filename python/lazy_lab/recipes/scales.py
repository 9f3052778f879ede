"""The scales of `lazy lab`: sizes of models, training data and measurements."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import UserError
from .recipe import Measurement, Model


@dataclass(frozen=True)
class Scale:
    """The size of models and training data. `files` are configuration files in configs/. `overrides` are configuration
    overrides for every model, and `attention` are overrides for models with attention layers. `settings` are the
    settings of `lazy measure model`."""

    name: str
    means: str
    files: tuple
    overrides: dict
    attention: dict
    context: int  # training length in tokens
    window: int  # number of distances with a learned bias
    settings: dict

    def lazy(self, name="lazy", overrides=()):
        """Returns a Lazy model: Elastic-Softmax with the initial offset tau = -1, a distance bias, and RoPE with base
        1.5e5. `overrides` are changes of this configuration."""
        own = {"model.normalizer": "elastic", "model.distance_bias_window": self.window, "model.rope_theta": 150000}
        return Model(name, own | dict(overrides))

    def measure(self, *parts, **options):
        """Returns the measurement `lazy measure model`, restricted to `parts`, such as "heldout" and "sinks"."""
        return Measurement("model", self.settings | {"parts": list(parts)}, **options)

    def measure_lengths(self, *factors):
        """Returns the measurement of the loss and of the collapse of hidden states at multiples of the context."""
        lengths = [factor * self.context for factor in factors]
        parts = ["heldout", "lengths", "collapse_by_length"]
        return Measurement("model", self.settings | {"lengths": lengths, "parts": parts})


def measure_settings(context, lengths, heldout, sinks, blocks, bos):
    """Returns the settings of `lazy measure model`. bos: if true, sequences begin with BOS and documents are separated
    by EOS; otherwise each document begins with BOS. context: sequence length in tokens. heldout and sinks: numbers of
    sequences for the held-out loss and for the sink measures. lengths: sequence lengths of the loss by length, as
    multiples of `context`; `blocks` becomes the setting length_blocks of this measurement."""
    settings = {"bos_per_sequence": bos, "bos_per_document": not bos, "eos_per_document": bos}
    settings |= {"heldout_tokens": heldout * context, "sink_lengths": [64, context], "sink_tokens": sinks * context}
    return settings | {"lengths": [factor * context for factor in lengths], "length_blocks": blocks}


TINY = "4 layers of width 128, context 256, 0.5M tokens per model: minutes on two CPU cores"
SMALL = "55M parameters, context 512, 200M tokens per model: minutes on one GPU"
PAPER = "340M parameters, 10B tokens at context 512; models of Table 1: 15B tokens at context 4096"
HEADS = {"model.num_heads": 8, "model.distance_bias_init_apart": True}
PAPER_FILES = ("models/{kind}-340m.toml", "recipes/10b-512.toml")
SCALES = {
    scale.name: scale
    for scale in (
        Scale("tiny", TINY, ("repro-tiny.toml",), {}, {"model.num_heads": 4}, 256, 256,
              measure_settings(256, (1, 2, 4), 192, 64, 32, True) | {"probe_samples": 8, "collapse_samples": 4}),
        Scale("small", SMALL, ("sink-55m.toml",), {"optimizer.lr": 3e-3}, HEADS, 512, 128,
              measure_settings(512, (1, 2, 4, 8), 16384, 512, 256, True)),
        Scale("paper", PAPER, PAPER_FILES, {}, {}, 512, 512, measure_settings(512, (1, 2, 4), 2048, 256, 128, False)),
    )
}  # fmt: skip


def configurations():
    """Returns the folder of the configurations: in a source tree, in an installation (share/lazy), or in a wheel."""
    package = Path(__file__).resolve().parents[1]
    candidates = (package.parents[1] / "configs", package.parent / "lazy_attention_cli" / "configs")
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise UserError(f"configurations: expected the folder {' or '.join(map(str, candidates))}, found none")
