"""The training sequences of a corpus of `lazy data prepare`: the same tokens in the same order as `lazy train` reads.
docs/guides/data.md describes the files and the two kinds of packing. Checksums are not verified; `lazy data inspect
--verify` verifies them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

from .arguments import fail
from .job_config import Data

WORD = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
DOCUMENT_STREAM, WINDOW_STREAM = 0xD0C5, 0x817D
DOCUMENTS_PER_GROUP = 2048
HEADER = struct.Struct("<8sIIIIQQQQqiiQQ")  # the fields before the checksums


class Random:
    """SplitMix64, as in `lazy train`."""

    def __init__(self, seed: int):
        self.state = seed & WORD

    def next(self) -> int:
        self.state = (self.state + GAMMA) & WORD
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        return z ^ (z >> 31)

    def next_array(self, count: int) -> np.ndarray:
        """Returns the next `count` values. The generator is a counter, so they are computed at once."""
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GAMMA) + np.uint64(self.state)
        self.state = (self.state + count * GAMMA) & WORD
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    def below(self, bounds: np.ndarray) -> np.ndarray:
        """Returns one uniform integer in [0, bound) for each bound below 2^32, without bias (Lemire 2019). If the
        product of a value and the bound is in the biased range, the next value is used instead."""
        out = np.empty(len(bounds), dtype=np.uint64)
        half, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        done = 0
        while done < len(bounds):
            b = bounds[done:].astype(np.uint64)
            start = self.state
            x = self.next_array(len(b))
            high = ((x >> shift) * b + (((x & half) * b) >> shift)) >> shift  # bits 64 and above of x * b
            biased = np.flatnonzero(x * b < (np.uint64(0) - b) % b)
            used = int(biased[0]) if len(biased) else len(b)
            out[done : done + used] = high[:used]
            done += used
            if len(biased):  # continue after the rejected value
                self.state = (start + (used + 1) * GAMMA) & WORD
        return out

    def permutation(self, size: int) -> np.ndarray:
        """Fisher-Yates shuffle of 0, 1, ..., size - 1."""
        items = list(range(size))
        for i, j in zip(range(size - 1, 0, -1), self.below(np.arange(size, 1, -1)).tolist()):
            items[i], items[j] = items[j], items[i]
        return np.array(items, dtype=np.uint32)


def derive_seed(seed: int, stream: int) -> int:
    return Random(seed ^ Random(stream).next()).next()


def keyed_permutation(size: int, key: int, place: int) -> int:
    """Position `place` of a permutation of [0, size): a Feistel network of eight rounds with cycle walking."""
    bits = (size - 1).bit_length()
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    random = Random(key)
    keys = [random.next() for _ in range(8)]
    while True:
        low, high = place & low_mask, place >> low_bits
        for first, second in zip(keys[::2], keys[1::2]):
            high ^= Random(first ^ low).next() & high_mask
            low ^= Random(second ^ high).next() & low_mask
        place = high << low_bits | low
        if place < size:
            return place


class Shard:
    """A memory-mapped shard file."""

    def __init__(self, path: Path):
        try:
            with path.open("rb") as file:
                head = file.read(128)
        except OSError as error:
            fail(f"{path}: {error.strerror}")
        if len(head) != 128 or head[:8] != b"LAZYSHRD":
            fail(f"{path}: expected a shard of `lazy data prepare`")
        fields = HEADER.unpack_from(head)
        _, version, _, width, _, tokens, documents, _, self.fingerprint, _, self.bos, self.eos, at, index = fields
        expected = index + 8 * (documents + 1)
        if version != 1 or width not in (2, 4) or at != 128 or path.stat().st_size != expected:
            fail(
                f"{path}: expected version 1 and {expected} bytes, found version {version}, {path.stat().st_size} bytes"
            )
        self.documents = documents
        self.tokens = np.memmap(path, f"<u{width}", "r", at, (tokens,)) if tokens else np.empty(0, np.uint16)
        self.starts = np.memmap(path, "<u8", "r", index, (documents + 1,))


class Sequences:
    """The endless stream of training sequences of one corpus. Sequence `index` depends only on the corpus, the options,
    the length and the index."""

    def __init__(self, corpus: str | Path, split: str, length: int, options: Data):
        folder = Path(corpus)
        try:
            info = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        except OSError as error:
            fail(f"training.dataset_path: expected a corpus of `lazy data prepare`: {folder}: {error.strerror}")
        if split not in info["splits"]:
            fail(f'{folder}: the corpus has no split "{split}"')
        self.shards = [Shard(folder / name) for name in info["splits"][split]["shards"]]
        self.length, self.options = length, options
        self.payload = length - options.bos_per_sequence
        _check_options(options, self.shards[0], folder, self.payload)
        self.bos = self.shards[0].bos
        self.separator = self.shards[0].eos if options.eos_per_document else self.bos
        self.extra = int(options.bos_per_document or options.eos_per_document)  # separators per document
        self._epochs: dict[int, np.ndarray] = {}
        self._open_groups() if options.packing == "groups" else self._open_windows()
        if self.size == 0:
            fail(f'{folder}: split "{split}" has less than one sequence of {length} tokens')

    def read(self, index: int) -> np.ndarray:
        """Returns sequence `index` as int64 (length)."""
        epoch, place = divmod(index, self.size)
        parts = (
            self._group_parts(epoch, place) if self.options.packing == "groups" else self._window_parts(epoch, place)
        )
        out = np.concatenate(([[self.bos]] if self.options.bos_per_sequence else []) + parts).astype(np.int64)
        if self.options.mask_position:
            out[self.options.mask_position - 1] = self.bos
        return out

    def _open_groups(self) -> None:
        self._first_document = np.cumsum([0] + [shard.documents for shard in self.shards])
        documents = int(self._first_document[-1])
        if documents >= 1 << 32:
            fail('data.packing: expected "windows", because the corpus has more than 2^32 documents')
        self._order = Random(derive_seed(self.options.seed, DOCUMENT_STREAM)).permutation(documents)
        lengths = np.concatenate([np.diff(shard.starts.astype(np.int64)) for shard in self.shards]) + self.extra
        self._lengths = lengths[self._order]  # in shuffled order
        groups = np.add.reduceat(self._lengths, np.arange(0, documents, DOCUMENTS_PER_GROUP))
        self._first_sequence = np.cumsum(np.concatenate(([0], groups // self.payload)))
        self.size = int(self._first_sequence[-1])

    def _group_parts(self, epoch: int, place: int) -> list[np.ndarray]:
        if epoch not in self._epochs:  # an epoch's order is used until the next epoch begins
            self._epochs = {epoch: Random(derive_seed(self.options.seed, epoch)).permutation(self.size)}
        number = int(self._epochs[epoch][place])
        group = int(np.searchsorted(self._first_sequence, number, "right")) - 1
        begin = group * DOCUMENTS_PER_GROUP
        ends = np.cumsum(self._lengths[begin : begin + DOCUMENTS_PER_GROUP])
        first = (number - int(self._first_sequence[group])) * self.payload
        position = int(np.searchsorted(ends, first, "right"))
        skip, missing = first - (int(ends[position - 1]) if position else 0), self.payload
        parts = []
        while missing:
            document = int(self._order[begin + position])
            shard = int(np.searchsorted(self._first_document, document, "right")) - 1
            parts += self._document(self.shards[shard], document - int(self._first_document[shard]), skip, missing)
            missing = self.payload - sum(map(len, parts))
            skip, position = 0, position + 1
        return parts

    def _open_windows(self) -> None:
        joined = [len(shard.tokens) + self.extra * shard.documents for shard in self.shards]
        self._first_window = np.cumsum([0] + [count // self.payload for count in joined])
        self.size = int(self._first_window[-1])

    def _window_parts(self, epoch: int, place: int) -> list[np.ndarray]:
        window = keyed_permutation(self.size, derive_seed(self.options.seed ^ WINDOW_STREAM, epoch), place)
        index = int(np.searchsorted(self._first_window, window, "right")) - 1
        shard, first = self.shards[index], (window - int(self._first_window[index])) * self.payload
        low, high = 0, shard.documents  # the last document that begins at or before `first`
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if int(shard.starts[middle]) + self.extra * middle <= first else (low, middle)
        skip, missing = first - (int(shard.starts[low]) + self.extra * low), self.payload
        parts = []
        while missing:
            parts += self._document(shard, low, skip, missing)
            missing = self.payload - sum(map(len, parts))
            skip, low = 0, low + 1
        return parts

    def _document(self, shard: Shard, document: int, skip: int, count: int) -> list[np.ndarray]:
        """Returns up to `count` tokens of the document after the first `skip`; its separator is the first token."""
        parts = []
        if skip < self.extra and count:
            parts.append(np.array([self.separator]))
            skip, count = skip + 1, count - 1
        begin = int(shard.starts[document]) + skip - self.extra
        parts.append(shard.tokens[begin : min(begin + count, int(shard.starts[document + 1]))])
        return parts


def _check_options(options: Data, shard: Shard, folder: Path, payload: int) -> None:
    if options.packing not in ("groups", "windows"):
        fail(f'data.packing: expected "groups" or "windows", found "{options.packing}"')
    if options.bos_per_document and options.eos_per_document:
        fail("data: documents are separated by either BOS or EOS: set one of bos_per_document, eos_per_document")
    if payload < 1 or not 0 <= options.mask_position <= payload:
        fail(f"data.mask_position: expected 0 to training.seq_len, found {options.mask_position}")
    if options.mask_position and (options.bos_per_document or options.bos_per_sequence):
        fail("data.mask_position requires bos_per_document and bos_per_sequence to be false")
    if shard.bos < 0 and (options.bos_per_document or options.bos_per_sequence or options.mask_position):
        fail(f"{folder}: the tokenizer has no BOS; set bos_per_document and bos_per_sequence to false")
    if shard.eos < 0 and options.eos_per_document:
        fail(f"{folder}: the tokenizer has no EOS; set eos_per_document to false")
