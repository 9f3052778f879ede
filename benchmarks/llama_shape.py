"""Command-line options for the shape of a Llama model, and the corresponding configuration of transformers."""

from transformers import LlamaConfig


def add_shape(parser):
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument(
        "--inner", type=int, help="inner width of SwiGLU; default: width x 8/3, rounded up to a multiple of 256"
    )
    parser.add_argument("--vocab", type=int, default=32000)


def llama_config(a, length, **more):
    inner = a.inner or (a.width * 8 // 3 + 255) // 256 * 256
    return LlamaConfig(
        vocab_size=a.vocab,
        hidden_size=a.width,
        intermediate_size=inner,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        num_key_value_heads=a.heads,
        max_position_embeddings=length,
        use_cache=False,
        **more,
    )
