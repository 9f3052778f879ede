"""Section [data] of torchtitan's configuration: ``--job.custom_config_module lazy_attention.torchtitan.job_config``.
The keys and defaults are the same as for `lazy train` (docs/reference/configuration.md), where ``seed`` is
``training.seed``."""

from dataclasses import dataclass, field


@dataclass
class Data:
    packing: str = "groups"
    """ "groups": documents are shuffled, concatenated in groups and cut; "windows": for corpora larger than memory."""

    seed: int = 42
    """Seed of the order of documents and sequences."""

    bos_per_document: bool = True
    """Insert BOS before each document."""

    eos_per_document: bool = False
    """Insert EOS instead of BOS before each document."""

    bos_per_sequence: bool = False
    """Insert BOS at the start of each sequence."""

    mask_position: int = 0
    """1-based position at which BOS replaces the token; 0 disables this."""


@dataclass
class JobConfig:
    data: Data = field(default_factory=Data)
