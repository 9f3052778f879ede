"""Shape of the tiny decoders in the tests, with the key names of transformers' configurations."""

TINY = dict(
    vocab_size=61,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    initializer_range=0.3,
    pad_token_id=None,
    eos_token_id=None,
)
