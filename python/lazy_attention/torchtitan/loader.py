"""CorpusLoader: torchtitan's data loader for a corpus of `lazy data prepare`. Its state is one number."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.config import JobConfig

from .job_config import Data
from .packing import Sequences


class CorpusLoader(BaseDataLoader):
    """Micro-batch n of rank r of R contains the sequences (n R + r) batch_size, ... of the corpus, as in `lazy train`.
    The sequences of a step therefore depend only on the seed, the step and the global batch size. The state is the
    index of the next sequence, which is the same on every rank: a checkpoint can be read by any number of ranks."""

    def __init__(self, sequences: Sequences, batch_size: int, dp_rank: int, dp_world_size: int):
        self.sequences, self.batch_size = sequences, batch_size
        self.rank, self.ranks = dp_rank, dp_world_size
        self.next_sequence = 0

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        while True:
            first = self.next_sequence + self.rank * self.batch_size
            # The trainer saves the state between two calls of next(), so the index must advance before `yield`.
            self.next_sequence += self.ranks * self.batch_size
            rows = [torch.from_numpy(self.sequences.read(first + row)) for row in range(self.batch_size)]
            ids = torch.stack(rows)
            labels = ids.roll(-1, 1)
            labels[:, -1] = IGNORE_INDEX  # the next token is not part of the sequence
            yield {"input": ids}, labels

    def state_dict(self) -> dict[str, int]:
        return {"next_sequence": self.next_sequence}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.next_sequence = state_dict["next_sequence"]


def build_loader(
    dp_world_size: int, dp_rank: int, tokenizer: None, job_config: JobConfig, infinite: bool = True
) -> CorpusLoader:
    """The function build_dataloader_fn of torchtitan's TrainSpec. ``training.dataset_path`` is the corpus folder."""
    training = job_config.training
    sequences = Sequences(training.dataset_path, "train", training.seq_len, getattr(job_config, "data", None) or Data())
    return CorpusLoader(sequences, training.local_batch_size, dp_rank, dp_world_size)
