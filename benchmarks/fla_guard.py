"""Disables an error check of flash-linear-attention (FLA), so that FLA's gated backward pass can be timed.

On Hopper GPUs with Triton 3.4.0 to 3.7.0, the gradients of this backward pass are wrong, so FLA raises an error.
"""


def lift() -> str:
    """Disables the check. Use this function only for timing. Returns a warning, or an empty string if FLA does not need
    the check on this machine."""
    from fla.ops.common import chunk_o

    if not (chunk_o.IS_NVIDIA_HOPPER and chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1):
        return ""
    import triton

    chunk_o.TRITON_ABOVE_3_7_1 = True
    return (
        f"FLA's gated gradients are wrong with Triton {triton.__version__} on this GPU; only the times are meaningful"
    )
