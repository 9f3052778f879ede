"""Reference models (peers) of train_peer.py whose mixers learn during inference: TTT and Titans, as implemented by
other authors.

`ttt-linear`, `ttt-mlp`: ttt.py of test-time-training/ttt-lm-pytorch, in the folder given by `--ttt-lm`. Our program
loads its models, so the hidden states for equal weights are compared before anything is timed.
`titans-lmm-equal`: the same function as our model titans_lmm, built from titans-pytorch 0.5.5 of PyPI. The gates are
per token (`chunk_size=1`), and the gradients are computed at the weights before each block of 64 tokens
(`batch_size=64`). The hidden states for equal weights are compared before anything is timed. The package would store
the memory's weights after every token, so each layer is recomputed in the backward pass.
`titans-lmm`, `titans-mac`: the models in the README of titans-pytorch. They compute a different function with far less
work: the gates are per chunk of 64 tokens, and all gradients are computed at the weights before the sequence. Therefore
their results are not compared.
"""

import importlib.metadata
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from peer_decoder import Block, Decoder, HeadLoss, chunk_loss
from torch import nn
from torch.utils.checkpoint import checkpoint

CHUNK = 64  # number of tokens per chunk and per segment of Titans, equal to the constants of our implementation


def compiled(function, a):
    return function if a.no_compile else torch.compile(function)


def head_loss(a, hidden_of, weight):
    one_chunk = compiled(chunk_loss, a)
    return lambda ids, targets: HeadLoss.apply(
        hidden_of(ids).flatten(0, -2), weight, targets.flatten(), 4096, one_chunk
    )


def hidden_states_of_ours(a, save, ids):
    """Returns the hidden states (tokens, width) after the last norm in fp32. They are computed by `lazy probe` for the
    model folder that save(folder) writes."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        save(work / "model")
        (work / "ids.txt").write_text(" ".join(map(str, ids.tolist())), encoding="utf-8")
        command = [a.ours, "probe", work / "model", "--ids", work / "ids.txt", "--device", "cpu"]
        command += ["--read", "final.hidden", "--save", "final.hidden", "--output", work / "hidden.safetensors"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{a.peer[0]}: `lazy probe` failed on the peer's model: {done.stderr.strip()}")
        return load_file(work / "hidden.safetensors")["final.hidden"]


def expect_ours(a, save, hidden_states):
    """Compares hidden_states(ids), with ids of shape (1, length), with the hidden states that `lazy probe` computes for
    the model folder that save(folder) writes. Exits with an error if they differ."""
    ids = torch.randint(0, a.vocab, (100,))  # 100 tokens: not a multiple of the chunk length
    with torch.no_grad():
        theirs = hidden_states(ids[None])
    difference = (hidden_states_of_ours(a, save, ids) - theirs).abs().max().item()
    print(
        f"{a.peer[0]}: with equal weights, hidden states differ by {difference:.1e} "
        f"(maximum {theirs.abs().max().item():.1f})"
    )
    if not difference < 1e-4 * theirs.abs().max():
        sys.exit(f"{a.peer[0]}: hidden states: expected a difference below 1e-4 of the maximum, found {difference:.1e}")


def ttt(a, kind):
    if not a.ttt_lm or not a.ours:
        sys.exit(
            f"{a.peer[0]}: expected --ttt-lm FOLDER with ttt.py, and --ours to compare with; one of them is missing"
        )
    sys.path.insert(0, a.ttt_lm)
    import ttt as authors

    # transformers 5 requires a dictionary in place of a list
    authors.TTTForCausalLM._tied_weights_keys = {}
    model = authors.TTTForCausalLM(
        authors.TTTConfig(
            vocab_size=a.vocab,
            hidden_size=a.width,
            num_hidden_layers=a.layers,
            num_attention_heads=a.heads,
            intermediate_size=a.inner,
            ttt_layer_type=kind,
            ttt_base_lr=0.1 if kind == "mlp" else 1.0,
            mini_batch_size=16,
            scan_checkpoint_group_size=0,  # 0: do not recompute activations in the backward pass
            max_position_embeddings=a.length,
            pre_conv=False,
            use_gate=False,
            use_cache=False,
            tie_word_embeddings=False,
        )
    )
    expect_ours(a, model.save_pretrained, lambda ids: model.model(ids).last_hidden_state[0])
    if a.tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    body = compiled(model.model, a)
    return model, head_loss(a, lambda ids: body(ids).last_hidden_state, model.lm_head.weight)


class MemoryBlock(Block):
    """A decoder block with the neural memory of Titans instead of attention."""

    def __init__(self, width, heads, inner, eps):
        super().__init__(width, heads, inner, eps)
        del self.qkv, self.out
        from titans_pytorch import NeuralMemory

        self.memory = NeuralMemory(width, chunk_size=CHUNK, heads=heads, dim_head=width // heads)

    def forward(self, x, cos, sin):
        x = x + self.memory(self.attention_norm(x))[0]
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Part(nn.Module):
    """Selects the elements `begin` to `end - 1` of the last dimension."""

    def __init__(self, begin, end):
        super().__init__()
        self.begin, self.end = begin, end

    def forward(self, x):
        return x[..., self.begin : self.end]


class ResidualNorm(nn.Module):
    """The ResidualNorm of titans-pytorch with the epsilon of our model and without the norm's weight.

    In the package, the weight is also updated during inference. In our model, it is an ordinary parameter with the
    initial value 1, so leaving it out gives the same function.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        z = self.model(x)
        return x + F.layer_norm(z, z.shape[-1:], eps=1e-6)


class Convolution(nn.Module):
    """A causal depthwise convolution followed by SiLU."""

    def __init__(self, channels, taps=4):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, 1, taps).uniform_(-(taps**-0.5), taps**-0.5))

    def forward(self, x):
        taps = self.weight.shape[-1]
        return F.silu(F.conv1d(F.pad(x.mT, (taps - 1, 0)), self.weight, groups=x.shape[-1]).mT)


class TokenMemoryBlock(nn.Module):
    """A titans_lmm block that uses the memory of titans-pytorch. Its parameters have our names.

    Queries, keys, values and gates are computed for the whole text outside of the package and concatenated. The
    package's projections are replaced by `Part`, which selects the corresponding elements.
    """

    def __init__(self, width, heads, inner, eps):
        super().__init__()
        from titans_pytorch import MemoryMLP, NeuralMemory

        self.heads, self.eps, dim = heads, eps, width // heads
        self.attn_norm, self.mlp_norm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)
        self.memory = nn.ModuleDict(
            {f"{x}_proj": nn.Linear(width, width, bias=False) for x in "qkvgo"}
            | {f"{x}_conv1d": Convolution(width) for x in "qkv"}
            | {f"{x}_proj": nn.Linear(width, heads) for x in ("step", "momentum", "decay")}
            | {"norm": nn.RMSNorm(dim, eps)}
        )
        self.mlp = nn.ModuleDict(
            {f"{x}_proj": nn.Linear(width, inner, bias=False) for x in ("gate", "up")}
            | {"down_proj": nn.Linear(inner, width, bias=False)}
        )
        nn.init.zeros_(self.memory["step_proj"].bias)
        nn.init.zeros_(self.memory["momentum_proj"].bias)
        nn.init.constant_(self.memory["decay_proj"].bias, -4.6)
        package = NeuralMemory(
            width,
            model=ResidualNorm(MemoryMLP(dim, depth=2, expansion_factor=4.0)),
            chunk_size=1,
            batch_size=CHUNK,
            heads=heads,
            dim_head=dim,
            pre_rmsnorm=False,
            mem_model_norm_add_residual=False,
            store_memory_loss_fn=lambda a, b: (a - b).square().sum(-1),
            adaptive_step_transform=lambda step: step,
        )
        package.to_queries, package.to_keys, package.to_values = (Part(n * width, (n + 1) * width) for n in range(3))
        for n, gate in enumerate((package.to_adaptive_step, package.to_momentum, package.to_decay_factor)):
            gate[0] = Part(3 * width + n * heads, 3 * width + (n + 1) * heads)
        package.retrieve_gate, package.combine_heads = None, nn.Identity()
        # the trainable parameters are memory_model_parameters, which have one copy per head
        package.memory_model.requires_grad_(False)
        for weight in package.memory_model_parameters:
            weight.data = torch.randn_like(weight) * weight.shape[1] ** -0.5
        self.package = package

    def forward(self, x, cos, sin):
        m, h = self.memory, self.attn_norm(x)
        by_head = lambda y: y.unflatten(-1, (self.heads, -1))  # noqa: E731
        q, k, v = (m[f"{name}_conv1d"](m[f"{name}_proj"](h)) for name in "qkv")
        q, k = (F.normalize(by_head(y), dim=-1).flatten(-2) for y in (q, k))
        step, momentum, decay = (m[f"{name}_proj"](h) for name in ("step", "momentum", "decay"))
        step = step.sigmoid() * (-momentum).sigmoid() / max(q.shape[-1] // self.heads, CHUNK)
        tokens = torch.cat((q, k, v, step, momentum, decay), -1)
        # Use reentrant checkpointing, because torch.func.grad does not support the hooks of the non-reentrant variant.
        answers = checkpoint(lambda tokens: self.package(tokens)[0], tokens, use_reentrant=True)
        x = x + m["o_proj"](F.silu(m["g_proj"](h)) * m["norm"](by_head(answers)).flatten(-2))
        h = self.mlp_norm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


def save_as_ours(a, model, folder):
    """Saves a Decoder of TokenMemoryBlocks as a model folder of `lazy`."""
    from safetensors.torch import save_file

    tensors = {
        name.replace("blocks.", "model.layers.", 1): x
        for name, x in model.named_parameters()
        if name.startswith("blocks.") and ".package." not in name
    }
    for n, block in enumerate(model.blocks):
        memory = f"model.layers.{n}.memory."
        for start, x in enumerate(block.package.memory_model_parameters):
            tensors[f"{memory}start_{start + 1}"] = x
        tensors[f"{memory}model_norm.weight"] = torch.ones(a.heads, a.width // a.heads)
    tensors["model.embeddings.weight"] = model.embedding.weight
    tensors["model.norm.weight"] = model.norm.weight
    if not a.tied:
        tensors["lm_head.weight"] = model.head.weight
    folder.mkdir()
    save_file({name: x.detach().contiguous() for name, x in tensors.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["TitansLMMForCausalLM"],
        "model_type": "titans_lmm",
        "vocab_size": a.vocab,
        "hidden_size": a.width,
        "intermediate_size": a.inner,
        "num_hidden_layers": a.layers,
        "num_memory_heads": a.heads,
        "memory_chunk_size": CHUNK,
        "memory_depth": 2,
        "memory_expansion": 4,
        "memory_norm": True,
        "conv_size": 4,
        "use_gate": True,
        "norm_eps": model.blocks[0].eps,
        "max_position_embeddings": a.length,
        "tie_word_embeddings": a.tied,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def own_weights(model):
    """Makes all parameters contiguous. The package initializes the memories of all heads as one expanded tensor, whose
    elements share memory, so an optimizer cannot update it."""
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()


def titans(a, kind):
    print(f"{a.peer[0]}: titans-pytorch {importlib.metadata.version('titans-pytorch')}")
    if kind == "equal" and not a.ours:
        sys.exit(f"{a.peer[0]}: expected --ours to compare with; it is missing")
    if kind in ("lmm", "equal"):
        block = TokenMemoryBlock if kind == "equal" else MemoryBlock
        model = Decoder(a.layers, a.width, a.heads, a.inner, a.vocab, a.length, a.tied, block=block)
        own_weights(model)
        if kind == "equal":
            expect_ours(a, lambda folder: save_as_ours(a, model, folder), model)
        return model, head_loss(a, compiled(model, a), model.head.weight)
    from titans_pytorch import MemoryAsContextTransformer

    model = MemoryAsContextTransformer(
        num_tokens=a.vocab,
        dim=a.width,
        depth=a.layers,
        segment_len=CHUNK,
        num_persist_mem_tokens=4,
        num_longterm_mem_tokens=4,
        neural_memory_segment_len=CHUNK,
        heads=a.heads,
        dim_head=a.width // a.heads,
        ff_mult=3 * a.inner / (2 * a.width),  # the inner width of the package's GEGLU is 2/3 ff_mult dim
        use_flex_attn=a.device == "cuda",
    )
    own_weights(model)
    run = compiled(model, a)
    return model, lambda ids, targets: run(torch.cat((ids, targets[:, -1:]), 1), return_loss=True)


PEERS = {
    "ttt-linear": (ttt, "linear"),
    "ttt-mlp": (ttt, "mlp"),
    "titans-lmm": (titans, "lmm"),
    "titans-lmm-equal": (titans, "equal"),
    "titans-mac": (titans, "mac"),
}


def build(a, peer):
    function, kind = PEERS[peer]
    return function(a, kind)
