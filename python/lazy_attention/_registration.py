"""Registers fake kernels (output shapes), autograd formulas and autocast rules for the operators of liblazy_ops.so.

The library registers its kernels through LibTorch's stable ABI, which supports none of these. The program `lazy`
registers autograd formulas for the same kernels in C++ (src/ops/*_autograd.cc). Every backward pass is a separate
operator, so that the Python and the C++ formulas call the same kernel.
"""

from __future__ import annotations

import ctypes
import functools
from types import SimpleNamespace

import torch
from torch import Tensor
from torch import library as torch_library
from torch.autograd import forward_ad

ops = torch.ops.lazy
SIXTEEN_BITS = {torch.float16: b"float16", torch.bfloat16: b"bfloat16"}
# The operators that have both a CPU and a CUDA kernel.
KERNELS = (
    "attention",
    "attention_forward",
    "attention_backward",
    "decode",
    "rms_norm",
    "add_rms_norm",
    "rms_norm_backward",
    "swiglu",
    "swiglu_backward",
    "swiglu_halves_backward",
    "rope",
    "linear_cross_entropy",
    "linear_cross_entropy_and_gradients",
)

# The operators that support neither forward-mode nor reverse-mode differentiation.
NO_GRADIENT = (
    "add_product",
    "attention_backward",
    "decode",
    "linear_cross_entropy_backward",
    "rms_norm_backward",
    "swiglu_backward",
    "swiglu_halves_backward",
)

_library: torch_library.Library  # kept alive: destroying a Library removes its registrations
_keeps_alive_sum = None  # the C function lazy_keeps_alive_sum of liblazy_ops.so, set by register()


def register(library: ctypes.CDLL, without_cuda: str) -> None:
    """Registers everything in this module. Must be called once per process. `without_cuda` is the reason why there are
    no CUDA kernels; it is empty if the CUDA kernels are loaded."""
    global _library, _keeps_alive_sum
    _library = _ReverseModeLibrary("lazy", "FRAGMENT")
    _keeps_alive_sum = library.lazy_keeps_alive_sum
    _keeps_alive_sum.argtypes = [
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64),
        *(ctypes.c_int64, ctypes.c_int, ctypes.c_double, ctypes.c_int),
    ]
    _library.define("add_product(Tensor(a!) sum, Tensor a, Tensor b) -> Tensor(a!)")
    for device in ("CPU", "CUDA"):
        _library.impl("add_product", _add_product, device)
    _register_fakes()
    _register_autograd()
    for device in ("cpu", "cuda"):
        _register_autocast(device)
    if without_cuda:
        for name in KERNELS:
            _library.impl(name, _refusal(name, without_cuda), "CUDA")


class _ReverseModeLibrary(torch_library.Library):
    """A library that adds a check to every Autograd kernel: forward-mode tangents and the gradients of torch.func raise
    an error. The check also applies to kernels that are registered by PyTorch's helper functions."""

    def impl(self, op_name, fn, dispatch_key="", **options):
        kernel = _reverse_mode_only(op_name, fn) if dispatch_key == "Autograd" else fn
        return super().impl(op_name, kernel, dispatch_key, **options)


def _reverse_mode_only(name: str, kernel):
    """Wraps the Autograd kernel `kernel` in checks that no input has a forward-mode tangent, and that no input requires
    a gradient of torch.func.grad, vjp or jacrev.

    Without the first check, the kernels would drop tangents silently: PyTorch raises an error only in
    torch.autograd.Function.apply, which is called only if an input requires a gradient. The inputs of torch.func.jvp
    are dual tensors as well, so the check also detects them. Without the second check, Function.apply raises an error
    that does not name the operator.
    """

    def checked(*arguments, **options):  # `arguments` includes the dispatch key set
        if forward_ad._current_level >= 0:  # skips the slow check (microseconds) outside of dual levels
            has_tangent = lambda t: forward_ad.unpack_dual(t, level=0).tangent is not None
            if any(map(has_tangent, _tensors(arguments, options))):
                raise _not_implemented(name, "forward-mode derivatives are not implemented")
        if torch._C._are_functorch_transforms_active() and _wants_gradient(*_tensors(arguments, options)):
            raise _not_implemented(name, "torch.func.grad, vjp, jacrev and hessian are not implemented")
        return kernel(*arguments, **options)

    return checked


def _tensors(arguments: tuple, options: dict) -> list[Tensor]:
    """Returns the tensors among the arguments of a call and in lists of tensors."""
    found = []
    for argument in (*arguments, *options.values()):
        for t in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(t, Tensor):
                found.append(t)
    return found


def _not_implemented(name: str, what: str) -> NotImplementedError:
    instead = "" if name in NO_GRADIENT else "; use torch.autograd.grad or backward()"
    return NotImplementedError(f"lazy::{name}: {what}{instead}")


def _add_product(sum, a, b):
    """Computes sum += a @ b. The C++ kernels call this operator instead of torch.addmm, because LibTorch's stable ABI
    cannot pass torch.addmm's scalar arguments alpha and beta."""
    if a.dtype == sum.dtype:
        return torch.addmm(sum, a, b, out=sum)
    return torch.addmm(sum, a, b, out_dtype=sum.dtype, out=sum)


def _refusal(name: str, reason: str):
    def refuse(*_, **__):
        raise RuntimeError(f"lazy::{name}: expected tensors on the CPU, received CUDA tensors: {reason}")

    return refuse


# Fake kernels. They return empty tensors with the shapes and types of the results. Only the real kernels validate the
# arguments.


def _outputs(q: Tensor, v: Tensor, normalizer: str, return_stats: int) -> tuple[Tensor, Tensor, Tensor]:
    rows = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1])),
        q.new_empty((0,) if normalizer == "sigmoid" else rows, dtype=wide),
        q.new_empty(((0, 3, 5)[return_stats], *(rows if return_stats else ())), dtype=wide),
    )


@functools.cache
def _defaults(operator: str) -> dict:
    """Maps the operator's argument names, in schema order, to their default values (None without a default)."""
    return {a.name: a.default_value for a in getattr(ops, operator).default._schema.arguments}


def _named(operator: str, arguments: tuple, options: dict) -> SimpleNamespace:
    """Returns the arguments of a call by name, in schema order. PyTorch omits arguments that equal their default, so
    the defaults are filled in here."""
    defaults = _defaults(operator)
    return SimpleNamespace(**{**defaults, **dict(zip(defaults, arguments)), **options})


def _fake_attention(*arguments, **options):
    a = _named("attention", arguments, options)
    return _outputs(a.q, a.v, a.normalizer, a.return_stats)


def _fake_attention_forward(*arguments):
    a = _named("attention_forward", arguments, {})
    out, lse, stats = _outputs(a.q, a.v, a.normalizer, a.return_stats)
    # Must make the same decision as empty_alive_sum in src/ops/attention.cc. The decision depends neither on the
    # sequence lengths nor on the device.
    kept = a.q.dtype in SIXTEEN_BITS and _keeps_alive_sum(
        int(a.q.shape[-1]),
        int(a.v.shape[-1]),
        SIXTEEN_BITS[a.q.dtype],
        a.normalizer.encode(),
        a.causal,
        a.window,
        0 if a.distance_bias is None else int(a.distance_bias.shape[1]),
        a.alibi_slopes is not None,
        a.softcap or 0.0,
        a.deterministic,
    )
    return out, lse, stats, torch.empty_like(out) if kept else out.new_empty((0,))


def _fake_attention_backward(*arguments):
    a = _named("attention_backward", arguments, {})
    inputs = (a.q, a.k, a.v, a.distance_bias, a.tau, a.sink, a.alibi_slopes)
    return tuple(t.new_empty(t.shape) if wanted else a.q.new_empty((0,)) for t, wanted in zip(inputs, a.output_mask))


def _fake_decode(*arguments, **options):
    a = _named("decode", arguments, options)
    return _outputs(a.q, a.v_cache, a.normalizer, a.return_stats)


def _kept_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which the forward pass stores the gradients for the backward pass. Must return the same type
    as kept_gradient_type in src/ops/linear_cross_entropy.cc."""
    return torch.float32 if dtype == torch.float16 else dtype


def _fake_loss_and_gradients(hidden, weight, labels, ignore_index, want_hidden, want_weight):
    def gradient(wanted: bool, t: Tensor, none: torch.dtype) -> Tensor:
        return t.new_empty(t.shape, dtype=_kept_type(t.dtype)) if wanted else t.new_empty((0,), dtype=none)

    return (
        hidden.new_empty((), dtype=torch.float32),
        hidden.new_empty(hidden.shape[:1], dtype=torch.float32),
        hidden.new_empty(hidden.shape[:1], dtype=torch.bool),
        gradient(want_hidden, hidden, hidden.dtype),
        gradient(want_weight, weight, torch.float32),
    )


def _register_fakes() -> None:
    like = lambda t: t.new_empty(t.shape)
    fakes = {
        "attention": _fake_attention,
        "attention_forward": _fake_attention_forward,
        "attention_backward": _fake_attention_backward,
        "decode": _fake_decode,
        "rms_norm": lambda x, weight, eps: like(x),
        "add_rms_norm": lambda x, residual, weight, eps: (like(x), like(x)),
        "rms_norm_backward": lambda d_y, x, weight, eps, d_sum: (like(x), like(weight)),
        "swiglu": lambda gate, up: like(gate),
        "swiglu_backward": lambda d_y, gate, up: (like(gate), like(gate)),
        "swiglu_halves_backward": lambda d_y, gate_up, recompute: (
            like(gate_up),
            like(d_y) if recompute else d_y.new_empty((0,)),
        ),
        "rope": lambda x, *_, **__: like(x),
        "linear_cross_entropy": lambda hidden, weight, labels, ignore_index=-100: _fake_loss_and_gradients(
            hidden, weight, labels, ignore_index, False, False
        )[:3],
        "linear_cross_entropy_and_gradients": _fake_loss_and_gradients,
        "linear_cross_entropy_backward": lambda d_loss, gradient, input: gradient.new_empty(
            gradient.shape, dtype=input.dtype
        ),
    }
    for name, fake in fakes.items():
        torch_library.register_fake(f"lazy::{name}", fake, lib=_library)


# Autograd kernels and formulas.


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _below_autograd(keys: torch._C.DispatchKeySet) -> torch._C.DispatchKeySet:
    return keys & torch._C._after_autograd_keyset


def _attention(keys, *tensors, **options):
    """Autograd kernel of attention. If a gradient is required, it calls attention_forward, which also returns the
    tensors that attention_backward needs."""
    options["deterministic"] = options.get("deterministic", False) or torch.are_deterministic_algorithms_enabled()
    if _wants_gradient(*tensors, options.get("alibi_slopes")):
        return ops.attention_forward(*vars(_named("attention", tensors, options)).values())[:3]
    with torch._C._AutoDispatchBelowAutograd():
        return ops.attention.default.redispatch(_below_autograd(keys), *tensors, **options)


def _save_attention(ctx, inputs, output) -> None:
    out, lse, stats, alive_sum = output
    (*tensors, normalizer, offset, sigmoid_bias, scale, softcap, causal, window, cu_q, cu_k, _, deterministic) = inputs
    ctx.save_for_backward(*tensors, cu_q, cu_k, out, lse, alive_sum)
    ctx.options = (normalizer, offset, sigmoid_bias, scale, softcap, causal, window)
    ctx.deterministic = deterministic
    ctx.mark_non_differentiable(lse, stats, alive_sum)
    ctx.set_materialize_grads(False)


def _attention_backward(ctx, d_out, *_):
    *tensors, cu_q, cu_k, out, lse, alive_sum = ctx.saved_tensors
    none = (None,) * 11  # gradients of the non-tensor and non-differentiable arguments
    if d_out is None:
        return (None,) * 7 + none
    mask = [t is not None and needed for t, needed in zip(tensors, ctx.needs_input_grad)]
    deterministic = ctx.deterministic or torch.are_deterministic_algorithms_enabled()
    gradients = ops.attention_backward(
        d_out, out, lse, *tensors, *ctx.options, cu_q, cu_k, deterministic, mask, alive_sum
    )
    return tuple(g if wanted else None for g, wanted in zip(gradients, mask)) + none


def _loss(keys, hidden, weight, labels, ignore_index=-100):
    """Autograd kernel of linear_cross_entropy. If a gradient is required, the forward pass already computes the
    gradient of the loss, chunk by chunk with the logits. The backward pass only multiplies this gradient by d_loss."""
    if _wants_gradient(hidden, weight):
        want = (hidden.requires_grad, weight.requires_grad)
        return ops.linear_cross_entropy_and_gradients(hidden, weight, labels, ignore_index, *want)[:3]
    with torch._C._AutoDispatchBelowAutograd():
        return ops.linear_cross_entropy.default.redispatch(_below_autograd(keys), hidden, weight, labels, ignore_index)


def _save_loss(ctx, inputs, output) -> None:
    hidden, weight, *_, want_hidden, want_weight = inputs
    _, log_prob, correct, d_hidden, d_weight = output
    ctx.save_for_backward(d_hidden, d_weight, hidden, weight)
    ctx.want = (want_hidden, want_weight)
    ctx.mark_non_differentiable(log_prob, correct, d_hidden, d_weight)
    ctx.set_materialize_grads(False)


def _loss_backward(ctx, d_loss, *_):
    d_hidden, d_weight, hidden, weight = ctx.saved_tensors
    scaled = [
        ops.linear_cross_entropy_backward(d_loss, gradient, input) if wanted and d_loss is not None else None
        for wanted, gradient, input in zip(ctx.want, (d_hidden, d_weight), (hidden, weight))
    ]
    return (*scaled, None, None, None, None)


def _save_norm(ctx, inputs, output) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _norm_backward(ctx, d_y):
    return (*ops.rms_norm_backward(d_y, *ctx.saved_tensors, ctx.eps, None), None)


def _save_add_norm(ctx, inputs, output) -> None:
    *_, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight)
    ctx.set_materialize_grads(False)


def _add_norm_backward(ctx, d_y, d_sum):
    if d_y is None:
        return d_sum, d_sum, None, None
    d_x, d_weight = ops.rms_norm_backward(d_y, *ctx.saved_tensors, ctx.eps, d_sum)
    return d_x, d_x, d_weight, None


def _save_swiglu(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _swiglu_backward(ctx, d_y):
    return ops.swiglu_backward(d_y, *ctx.saved_tensors)


# Operators with tensors among their keyword arguments use torch.autograd.Function, because PyTorch's register_autograd
# does not support such operators.


def _rotated(keys, x, base, offset, inverse, positions, options):
    with torch._C._AutoDispatchBelowAutograd():
        return ops.rope.default.redispatch(
            _below_autograd(keys), x, base, offset, inverse, positions=positions, **options
        )


class _Rope(torch.autograd.Function):
    """Autograd function of rope. The operator is linear in x and its transpose is the inverse rotation. The backward
    pass therefore calls rope with `inverse` negated, and derivatives of any order are available."""

    @staticmethod
    def forward(ctx, keys, x, base, offset, inverse, positions, options):
        ctx.place, ctx.options = (base, offset, not inverse), options
        ctx.save_for_backward(positions)
        return _rotated(keys, x, base, offset, inverse, positions, options)

    @staticmethod
    def backward(ctx, d_y):
        (positions,) = ctx.saved_tensors
        return None, ops.rope(d_y, *ctx.place, positions=positions, **ctx.options), None, None, None, None, None


def _rope(keys, x, base=10000.0, offset=0, inverse=False, *, positions=None, **options):
    if _wants_gradient(x):
        return _Rope.apply(keys, x, base, offset, inverse, positions, options)
    return _rotated(keys, x, base, offset, inverse, positions, options)


def _decode(keys, *tensors, **options):
    if _wants_gradient(*_tensors(tensors, options)):
        raise NotImplementedError(
            "lazy::decode: an argument requires a gradient, and the derivative is not implemented; call it under "
            "torch.no_grad(), or use lazy_attention.attention"
        )
    with torch._C._AutoDispatchBelowAutograd():
        return ops.decode.default.redispatch(_below_autograd(keys), *tensors, **options)


def _no_second_derivative(name: str):
    def refuse(ctx, *_):
        raise NotImplementedError(
            f"lazy::{name}: the second derivative is not implemented; compute the function by other PyTorch operations "
            "if you need it"
        )

    return refuse


def _register_autograd() -> None:
    def register(name, backward, save=None):
        torch_library.register_autograd(f"lazy::{name}", backward, setup_context=save, lib=_library)

    own = {
        "attention": _attention,
        "linear_cross_entropy": _loss,
        "rope": _rope,
        "decode": _decode,
        "add_product": lambda keys, *tensors: ops.add_product.default.redispatch(_below_autograd(keys), *tensors),
    }
    for name, kernel in own.items():
        _library.impl(name, kernel, "Autograd", with_keyset=True)
    register("attention_forward", _attention_backward, _save_attention)
    register("linear_cross_entropy_and_gradients", _loss_backward, _save_loss)
    register("rms_norm", _norm_backward, _save_norm)
    register("add_rms_norm", _add_norm_backward, _save_add_norm)
    register("swiglu", _swiglu_backward, _save_swiglu)
    # A second derivative raises an error when it is computed. Computing the first derivative with create_graph=True is
    # allowed.
    for name in ("attention", "rms_norm", "swiglu", "swiglu_halves", "linear_cross_entropy"):
        register(f"{name}_backward", _no_second_derivative(f"{name}_backward"))


# Autocast rules.


def _register_autocast(device: str) -> None:
    """Registers the autocast rules of one device. q, k and v are cast to the autocast type, like the inputs of
    PyTorch's scaled_dot_product_attention. The hidden states and the weight of linear_cross_entropy are cast as well,
    like the inputs of torch.nn.functional.linear. The per-head parameters stay in fp32."""
    key = "Autocast" + device.upper()
    no_autocast = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

    def cast(t: Tensor) -> Tensor:
        fits = t.device.type == device and t.is_floating_point() and t.dtype != torch.float64
        return t.to(torch.get_autocast_dtype(device)) if fits else t

    def register(name: str, operator, first: int, last: int) -> None:
        """Registers an autocast kernel that casts the arguments first, ..., last - 1."""

        def kernel(*arguments, **options):
            with torch._C._ExcludeDispatchKeyGuard(no_autocast):
                tensors = (cast(t) for t in arguments[first:last])
                return operator(*arguments[:first], *tensors, *arguments[last:], **options)

        _library.impl(name, kernel, key)

    register("attention", ops.attention, 0, 3)
    register("decode", ops.decode, 0, 3)
    register("linear_cross_entropy", ops.linear_cross_entropy, 0, 2)
