"""FLA refuses its gated backward pass on Hopper GPUs with Triton 3.4.0 to 3.7.0, where its gradients are wrong."""


def lift() -> str:
    """For timing alone. What to say about it: empty when there was nothing to lift."""
    from fla.ops.common import chunk_o

    if not (chunk_o.IS_NVIDIA_HOPPER and chunk_o.TRITON_ABOVE_3_4_0 and not chunk_o.TRITON_ABOVE_3_7_1):
        return ""
    import triton

    chunk_o.TRITON_ABOVE_3_7_1 = True
    return (
        f"FLA calls its gated gradients wrong with Triton {triton.__version__} on this GPU: they are timed all the same"
    )
