"""The sequences of lazy_attention.torchtitan against `lazy train`, and the state of its data loader."""

import json
import shutil
import subprocess

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("transformers")
np = pytest.importorskip("numpy")


@pytest.fixture(scope="module", autouse=True)
def titan():
    return pytest.importorskip("torchtitan", reason="torchtitan is not installed: scripts/setup.sh test installs it")


LENGTH, BATCH, STEPS = 48, 16, 45


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"packing": "windows", "seed": 7},
        {"packing": "windows", "bos_per_document": False},
        {"packing": "windows", "eos_per_document": True, "bos_per_document": False, "bos_per_sequence": True},
        {"seed": 2**40 + 3, "eos_per_document": True, "bos_per_document": False},
        {"bos_per_document": False, "mask_position": 5},
    ],
    ids=["groups", "windows", "windows_joined", "windows_eos", "groups_eos", "groups_mask"],
)
def test_order_equals_lazy_train(titan_corpus, lazy_folder, lazy_binary, tmp_path, options):
    """Trains with a learning rate of almost 0, so that the loss of a step shows which sequences it has read. The
    steps extend beyond the first epoch."""
    import torch
    from lazy_attention.hf import LazyForCausalLM
    from lazy_attention.torchtitan.job_config import Data
    from lazy_attention.torchtitan.packing import Sequences

    model_folder = shutil.copytree(lazy_folder, tmp_path / "model")
    shutil.copytree(titan_corpus / "tokenizer", model_folder, dirs_exist_ok=True)
    data = dict(options)
    settings = {
        "model.from": str(model_folder),
        "data.corpus": str(titan_corpus),
        "training.output": str(tmp_path / "run"),
        "training.seed": data.pop("seed", 42),
        "training.steps": STEPS,
        "training.batch_size": BATCH,
        "training.seq_len": LENGTH,
        "optimizer.lr": 1e-12,
        "lr_scheduler.warmup_steps": 0,
        "metrics.log_every": 1,
    } | {f"data.{key}": value for key, value in data.items()}
    (tmp_path / "empty.toml").write_text("")
    command = [lazy_binary, "train", "empty.toml", "--threads", "1"]
    for key, value in settings.items():
        command += ["--set", f"{key}={json.dumps(value) if isinstance(value, bool) else value}"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    logged = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").open()]
    expected = [line["loss_metrics/global_avg_loss"] for line in logged if "loss_metrics/global_avg_loss" in line]
    assert len(expected) == STEPS

    sequences = Sequences(titan_corpus, "train", LENGTH, Data(**options))
    assert sequences.size < STEPS * BATCH
    model = LazyForCausalLM.from_pretrained(lazy_folder, dtype=torch.float32)
    found = []
    with torch.no_grad():
        for step in range(STEPS):
            ids = torch.stack([torch.from_numpy(sequences.read(step * BATCH + row)) for row in range(BATCH)])
            found.append(model(input_ids=ids, labels=ids).loss.item())
    assert found == pytest.approx(expected, rel=2e-6)


def test_steps_and_state_do_not_depend_on_the_number_of_ranks(titan_corpus):
    import torch
    from lazy_attention.torchtitan.job_config import Data
    from lazy_attention.torchtitan.loader import CorpusLoader
    from lazy_attention.torchtitan.packing import Sequences

    sequences = Sequences(titan_corpus, "train", LENGTH, Data())

    def step(loaders):
        """Returns the ids of a step of 8 sequences, in the order of micro-batches and ranks, and the common state."""
        micro_batches = 8 // (len(loaders) * loaders[0].batch_size)
        batches = [[next(iterator) for iterator in map(iter, loaders)] for _ in range(micro_batches)]
        (state,) = {json.dumps(loader.state_dict()) for loader in loaders}
        for ranks in batches:
            for inputs, labels in ranks:
                assert torch.equal(labels[:, :-1], inputs["input"][:, 1:]) and (labels[:, -1] == -100).all()
        return torch.cat([inputs["input"] for ranks in batches for inputs, _ in ranks]), json.loads(state)

    def loaders(ranks, batch_size, state=None):
        made = [CorpusLoader(sequences, batch_size, rank, ranks) for rank in range(ranks)]
        for loader in made if state else ():
            loader.load_state_dict(state)
        return made

    (reference,) = loaders(1, 8)
    first, second = step([reference])[0], step([reference])[0]
    two, state = step(loaders(2, 2))
    assert torch.equal(two, first)
    four, state = step(loaders(4, 1, state))
    assert torch.equal(four, second)
    assert state == {"next_sequence": 16}


def test_random_numbers_follow_the_definition():
    """Compares the vectorized generator with SplitMix64 and Lemire's method in Python's integers, also for the seed
    whose first value, 0, is in the biased range."""
    from lazy_attention.torchtitan.packing import GAMMA, WORD, Random

    def reference(seed, bounds):
        state, out = seed, []

        def value():
            nonlocal state
            state = (state + GAMMA) & WORD
            z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
            return z ^ (z >> 31)

        for bound in bounds:
            product = value() * bound
            while product & WORD < (1 << 64) % bound:
                product = value() * bound
            out.append(product >> 64)
        return out

    for seed in (0, 42, WORD, WORD + 1 - GAMMA):
        bounds = [3, 7, 2**32 - 1, 1000003, *range(2, 60)]
        assert Random(seed).below(np.array(bounds)).tolist() == reference(seed, bounds)


@pytest.mark.parametrize("damage", ["magic", "size", "missing"])
def test_damaged_shard_is_reported(titan_corpus, tmp_path, damage):
    from lazy_attention.torchtitan.job_config import Data
    from lazy_attention.torchtitan.packing import Sequences

    corpus = shutil.copytree(titan_corpus, tmp_path / "corpus")
    shard = corpus / "train-00000.bin"
    content = shard.read_bytes()
    shard.unlink()
    if damage != "missing":
        shard.write_bytes(b"X" + content[1:] if damage == "magic" else content[:-8])
    with pytest.raises(ValueError, match="train-00000.bin"):
        Sequences(corpus, "train", LENGTH, Data())
