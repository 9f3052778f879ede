"""Models whose mixers learn in time, as their authors run them: peers of train_peer.py.

`ttt-linear`, `ttt-mlp`: ttt.py of test-time-training/ttt-lm-pytorch, whose folder `--ttt-lm` names. Ours loads its
models, so the hidden states of equal weights are compared before anything is timed.
`titans-lmm`, `titans-mac`: titans-pytorch 0.5.5 of PyPI. A memory with gates of its own for every token, as ours has,
is its `chunk_size=1`, which keeps every token's weights and is for tests only (tests/python/test_learning_in_time.py
compares it with ours). Timed is what its README shows: gates of a chunk.
"""

import importlib.metadata
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from peer_decoder import Block, Decoder, HeadLoss, chunk_loss

CHUNK = 64  # tokens of Titans' chunk and segment, as in ours


def compiled(function, a):
    return function if a.no_compile else torch.compile(function)


def head_loss(a, hidden_of, weight):
    one_chunk = compiled(chunk_loss, a)
    return lambda ids, targets: HeadLoss.apply(
        hidden_of(ids).flatten(0, -2), weight, targets.flatten(), 4096, one_chunk
    )


def hidden_states_of_ours(a, model, ids):
    """[tokens, width] after the last norm, of `lazy probe` on the model's folder, fp32."""
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        model.save_pretrained(work / "model")
        (work / "ids.txt").write_text(" ".join(map(str, ids.tolist())), encoding="utf-8")
        command = [a.ours, "probe", work / "model", "--ids", work / "ids.txt", "--device", "cpu"]
        command += ["--read", "final.hidden", "--save", "final.hidden", "--output", work / "hidden.safetensors"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{a.peer[0]}: our program refuses the peer's folder: {done.stderr.strip()}")
        return load_file(work / "hidden.safetensors")["final.hidden"]


def ttt(a, kind):
    if not a.ttt_lm or not a.ours:
        sys.exit(
            f"{a.peer[0]}: expected --ttt-lm FOLDER with ttt.py, and --ours to compare with; one of them is missing"
        )
    sys.path.insert(0, a.ttt_lm)
    import ttt as authors

    authors.TTTForCausalLM._tied_weights_keys = {}  # transformers 5 wants a dictionary
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
            scan_checkpoint_group_size=0,  # nothing is recomputed: faster
            max_position_embeddings=a.length,
            pre_conv=False,
            use_gate=False,
            use_cache=False,
            tie_word_embeddings=False,
        )
    )
    ids = torch.randint(0, a.vocab, (100,))  # with an incomplete mini-batch
    with torch.no_grad():
        theirs = model.model(ids[None]).last_hidden_state[0]
    difference = (hidden_states_of_ours(a, model, ids) - theirs).abs().max().item()
    print(f"{a.peer[0]}: hidden states of equal weights differ by {difference:.1e} of {theirs.abs().max().item():.1f}")
    if not difference < 1e-4 * theirs.abs().max():
        sys.exit(f"{a.peer[0]}: hidden states: expected a difference below 1e-4 of the largest, found {difference:.1e}")
    if a.tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    body = compiled(model.model, a)
    return model, head_loss(a, lambda ids: body(ids).last_hidden_state, model.lm_head.weight)


class MemoryBlock(Block):
    """A decoder's block with Titans' neural memory in the place of attention."""

    def __init__(self, width, heads, inner, eps):
        super().__init__(width, heads, inner, eps)
        del self.qkv, self.out
        from titans_pytorch import NeuralMemory

        self.memory = NeuralMemory(width, chunk_size=CHUNK, heads=heads, dim_head=width // heads)

    def forward(self, x, cos, sin):
        x = x + self.memory(self.attention_norm(x))[0]
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def own_weights(model):
    """The package's memories start as one expanded tensor for all heads, which an optimizer cannot update."""
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()


def titans(a, kind):
    print(f"{a.peer[0]}: titans-pytorch {importlib.metadata.version('titans-pytorch')}")
    if kind == "lmm":
        model = Decoder(a.layers, a.width, a.heads, a.inner, a.vocab, a.length, a.tied, block=MemoryBlock)
        own_weights(model)
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
        ff_mult=3 * a.inner / (2 * a.width),  # its GEGLU has two thirds of ff_mult x width
        use_flex_attn=a.device == "cuda",
    )
    own_weights(model)
    run = compiled(model, a)
    return model, lambda ids, targets: run(torch.cat((ids, targets[:, -1:]), 1), return_loss=True)


PEERS = {
    "ttt-linear": (ttt, "linear"),
    "ttt-mlp": (ttt, "mlp"),
    "titans-lmm": (titans, "lmm"),
    "titans-mac": (titans, "mac"),
}


def build(a, peer):
    function, kind = PEERS[peer]
    return function(a, kind)
