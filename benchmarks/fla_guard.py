"""Disables a check of flash-linear-attention (FLA), so that its gated backward pass can be timed.

On Hopper GPUs with Triton 3.4.0 to 3.7.0 the gradients of FLA's gated backward pass are wrong, and FLA raises an error.
"""


def lift() -> str:
    """Disables the check. Use it only for timing. Returns a warning, or an empty string if FLA has no such check
    here."""
    from fla.ops.common import chunk_o

    if not (chunk_o.IS_NVIDIA_HOPPER and chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1):
        return ""
    import triton

    chunk_o.TRITON_ABOVE_3_7_1 = True
    return (
        f"FLA's gated gradients are wrong with Triton {triton.__version__} on this GPU; only the times are meaningful"
    )
