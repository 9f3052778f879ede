"""Parallel layouts of lazy_attention.torchtitan against one process and against transformers. torchtitan's trainer runs
on CPUs with gloo."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("transformers")


@pytest.fixture(scope="module", autouse=True)
def titan():
    return pytest.importorskip("torchtitan", reason="torchtitan is not installed: scripts/setup.sh test installs it")


STEPS, SEQ_LEN, BATCH = 4, 64, 4
SELECTIVE = ("--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=op")
# name: (number of ranks, data-parallel ranks, options). The options without dashes belong to [parallelism].
LAYOUTS = {
    "fsdp2": (2, 2, ["data_parallel_shard_degree=2", "--checkpoint.interval=2"]),
    "tp2": (2, 1, ["tensor_parallel_degree=2"]),
    "cp2": (2, 1, ["context_parallel_degree=2"]),
    "cp2_contiguous": (2, 1, ["context_parallel_degree=2", "context_parallel_load_balancer=None", *SELECTIVE]),
    "pp2": (2, 1, ["pipeline_parallel_degree=2", "pipeline_parallel_microbatch_size=2"]),
    "fsdp2_tp2": (4, 2, ["data_parallel_shard_degree=2", "tensor_parallel_degree=2"]),
    "tp2_cp2": (4, 1, ["tensor_parallel_degree=2", "context_parallel_degree=2"]),
    "selective": (1, 1, [*SELECTIVE]),
    "full": (1, 1, ["--activation_checkpoint.mode=full"]),
    "compiled": (2, 2, ["data_parallel_shard_degree=2", "--compile.enable", "--compile.backend=aot_eager", *SELECTIVE]),
}
LLAMA_LAYOUTS = ("tp2", "cp2")


def arguments(folder, corpus, data_ranks, options):
    parallelism = [option if option.startswith("--") else f"--parallelism.{option}" for option in options]
    if not any("activation_checkpoint.mode" in option for option in options):
        parallelism.append("--activation_checkpoint.mode=none")
    return [
        "--job.custom_config_module=lazy_attention.torchtitan.job_config",
        "--experimental.custom_import=lazy_attention.torchtitan",
        "--model.name=lazy",
        "--model.flavor=folder",
        f"--model.hf_assets_path={folder}",
        "--checkpoint.enable",
        "--checkpoint.initial_load_in_hf",
        "--checkpoint.no-last_save_model_only",
        f"--training.dataset_path={corpus}",
        f"--training.seq_len={SEQ_LEN}",
        f"--training.global_batch_size={BATCH}",
        f"--training.local_batch_size={BATCH // data_ranks}",
        f"--training.steps={STEPS}",
        "--training.max_norm=1e9",  # torchtitan clips other norms with pipeline parallelism
        "--training.mixed_precision_param=float32",
        "--lr_scheduler.warmup_steps=0",
        "--optimizer.implementation=for-loop",
        "--optimizer.lr=3e-3",
        "--metrics.log_freq=1",
        *parallelism,
    ]


@pytest.fixture(scope="module")
def results(run_titan, titan_corpus, lazy_folder, llama_folder):
    layouts = {"one": (1, 1, [])} | LAYOUTS
    cases = {
        name: (ranks, arguments(lazy_folder, titan_corpus, data_ranks, options))
        for name, (ranks, data_ranks, options) in layouts.items()
    }
    # FSDP2 with bf16: run_cases.py checks that the operator receives fp32 per-head parameters.
    mixed = arguments(lazy_folder, titan_corpus, 2, layouts["fsdp2"][2])
    cases["fsdp2_bf16"] = (2, [option.replace("param=float32", "param=bfloat16") for option in mixed])
    # The checkpoint that two FSDP2 ranks write after step 2, read by two tensor-parallel ranks.
    resumed = [option for option in cases["tp2"][1] if "initial_load_in_hf" not in option]
    resumed += ["--checkpoint.initial_load_path=WORK/fsdp2/dump/checkpoint/step-2"]
    cases["resumed"] = (2, [*resumed, "--checkpoint.no-initial_load_model_only"])
    for name in ("one", *LLAMA_LAYOUTS):
        ranks, data_ranks, options = layouts[name]
        cases[f"llama_{name}"] = (ranks, arguments(llama_folder, titan_corpus, data_ranks, options))
    work, metrics = run_titan(cases)
    return SimpleNamespace(work=work, metrics=metrics)


def losses(results, name, first=1):
    steps = results.metrics[name]
    assert [step["step"] for step in steps] == list(range(first, STEPS + 1))
    return [step["loss"] for step in steps]


def batch_loss(model_class, folder, corpus, step):
    """Returns the loss of the model in the folder on the sequences of a step, computed by transformers."""
    import torch
    from lazy_attention.torchtitan.job_config import Data
    from lazy_attention.torchtitan.packing import Sequences

    sequences = Sequences(corpus, "train", SEQ_LEN, Data())
    ids = torch.stack([torch.from_numpy(sequences.read((step - 1) * BATCH + row)) for row in range(BATCH)])
    with torch.no_grad():
        return model_class.from_pretrained(folder, dtype=torch.float32)(input_ids=ids, labels=ids).loss.item()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_equals_one_process(results, layout):
    reference = losses(results, "one")
    assert abs(reference[-1] - reference[0]) > 0.05  # the weights change
    assert losses(results, layout) == pytest.approx(reference, rel=1e-5)
    if layout != "pp2":  # torchtitan reports an unscaled norm with pipeline parallelism
        norms, expected = ([step["grad_norm"] for step in results.metrics[name]] for name in (layout, "one"))
        assert norms == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("layout", LLAMA_LAYOUTS)
def test_softmax_layout_equals_one_process(results, layout):
    assert losses(results, f"llama_{layout}") == pytest.approx(losses(results, "llama_one"), rel=1e-5)


def test_first_step_equals_transformers(results, titan_corpus, lazy_folder, llama_folder):
    from lazy_attention.hf import LazyForCausalLM
    from transformers import LlamaForCausalLM

    expected = batch_loss(LazyForCausalLM, lazy_folder, titan_corpus, 1)
    assert losses(results, "one")[0] == pytest.approx(expected, rel=1e-5)
    expected = batch_loss(LlamaForCausalLM, llama_folder, titan_corpus, 1)
    assert losses(results, "llama_one")[0] == pytest.approx(expected, rel=1e-5)


def test_bf16_is_close_to_fp32(results):
    expected = losses(results, "one")
    assert losses(results, "fsdp2_bf16") != expected
    assert losses(results, "fsdp2_bf16") == pytest.approx(expected, rel=2e-2)


def test_checkpoint_of_fsdp_resumes_with_tensor_parallelism(results):
    assert losses(results, "resumed", first=3) == pytest.approx(losses(results, "one")[2:], rel=1e-5)


def test_exported_checkpoint_is_a_model_folder(results, titan_corpus, lazy_binary, tmp_path):
    """The model after step 2, exported from two FSDP2 ranks, has the loss of step 3 on the sequences of step 3."""
    from lazy_attention.hf import LazyForCausalLM
    from lazy_attention.torchtitan.export import export

    export(results.work / "fsdp2" / "dump" / "checkpoint" / "step-2", tmp_path / "model")
    loss = batch_loss(LazyForCausalLM, tmp_path / "model", titan_corpus, 3)
    assert loss == pytest.approx(losses(results, "one")[2], rel=1e-5)
    text = [lazy_binary, "generate", tmp_path / "model", "--prompt", "abc", "--max-tokens", "4", "--temperature", "0"]
    assert subprocess.run(text, capture_output=True).returncode == 0


def test_selective_checkpointing_does_not_repeat_attention(titan_corpus, lazy_folder, tmp_path):
    import torch
    from lazy_attention.torchtitan import LazyModelArgs, LazyTransformer, parallelize_lazy
    from torch.utils._python_dispatch import TorchDispatchMode
    from torchtitan.config import ConfigManager
    from torchtitan.distributed import ParallelDims

    class Count(TorchDispatchMode):
        forwards = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.forwards += function is torch.ops.lazy.attention_forward.default
            return function(*args, **(kwargs or {}))

    counts = {}
    for name in ("selective", "full"):
        options = arguments(lazy_folder, titan_corpus, 1, LAYOUTS[name][2]) + [f"--job.dump_folder={tmp_path}"]
        config = ConfigManager().parse_args(options)
        args = LazyModelArgs(from_folder=True)
        args.update_from_config(config)
        dims = ParallelDims(dp_replicate=1, dp_shard=1, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=1)
        model = parallelize_lazy(LazyTransformer(args), dims, config)
        model.init_weights()
        with Count() as count:
            model(torch.arange(SEQ_LEN)[None]).sum().backward()
        counts[name] = count.forwards
    layers = json.loads((lazy_folder / "config.json").read_text())["num_hidden_layers"]
    assert counts == {"selective": layers, "full": 2 * layers}


@pytest.mark.parametrize(
    "key, value",
    [("tie_word_embeddings", True), ("positions", "alibi"), ("model_type", "mamba2"), ("rope_interleaved", True)],
)
def test_unsupported_configuration_is_refused(lazy_folder, tmp_path, key, value):
    from lazy_attention.torchtitan import LazyModelArgs

    found = json.loads((lazy_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(found | {key: value}))
    with pytest.raises(ValueError, match=key):
        LazyModelArgs().read_json(tmp_path / "config.json")


def test_versions_are_checked(monkeypatch):
    from lazy_attention.torchtitan import versions

    versions.check_versions()
    for found in ({"torchtitan": "0.2.1"}, {"torch": "2.10.1"}, {"torch": "2.16.0"}):
        monkeypatch.setattr(versions, "version", ({"torchtitan": "0.2.2", "torch": "2.11.0+cpu"} | found).get)
        with pytest.raises(ImportError, match=next(iter(found.values()))):
            versions.check_versions()


def test_lazy_attention_does_not_import_torchtitan():
    code = "import lazy_attention, sys; sys.exit('torchtitan' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
