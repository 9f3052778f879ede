"""Checks of the types of arguments. The operators check shapes and values."""

from __future__ import annotations

import reprlib

import torch
from torch import Tensor

from . import _library  # noqa: F401  registers torch.ops.lazy

# Shapes of tensor arguments, for error messages. Packed tensors have no batch axis.
_ATTENTION = {
    **dict.fromkeys(("q", "k", "v", "k_cache", "v_cache"), "(batch, length, heads, head_dim)"),
    **dict.fromkeys(("tau", "sink", "alibi_slopes"), "(heads)"),
    "distance_bias": "(heads, W)",
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k"), "(documents + 1) and type int32 or int64"),
    **dict.fromkeys(("cache_lengths", "visible_count"), "(batch) and type int32 or int64"),
    "block_table": "(batch, pages) and type int32 or int64",
}
_SHAPES = {
    "attention": _ATTENTION,
    "decode": _ATTENTION,
    "rms_norm": {"x": "(..., dim)", "weight": "(dim)"},
    "swiglu": dict.fromkeys(("gate", "up"), "(..., dim)"),
    "rope": {
        "x": "(batch, length, heads, head_dim)",
        "positions": "(length) or (batch, length) and type int32 or int64",
    },
    "linear_cross_entropy": {
        "hidden": "(..., dim)",
        "weight": "(vocabulary, dim)",
        "labels": "(...) and type int64",
    },
}

# Argument names of scaled_dot_product_attention and of FlashAttention, and the advice that the error message gives.
_INSTEAD = {
    "is_causal": "pass causal=",
    "softmax_scale": "pass scale=",
    "window_size": "pass window=",
    "attn_mask": "pass causal=, window= or cu_seqlens_q= and cu_seqlens_k=; other masks are not supported",
    "dropout_p": "attention dropout is not supported",
    "enable_gqa": "omit it, because k and v may always have fewer heads than q",
}


def _is_number(value) -> bool:
    """Returns whether `value` is a Python number, a NumPy scalar or a zero-dimensional tensor."""
    return (
        not isinstance(value, (bool, str)) and hasattr(value, "__float__") and tuple(getattr(value, "shape", ())) == ()
    )


def _is_flag(value) -> bool:
    """Returns whether `value` is a Python or NumPy boolean, 0 or 1."""
    return isinstance(value, torch.SymBool) or (isinstance(value, int) and value in (0, 1)) or _type(value) == "bool"


def _type(value) -> str:
    return type(value).__name__.rstrip("_")  # the name of numpy.bool is "bool_" before NumPy 2


# Type in an operator's schema -> (name of the type in error messages, class whose objects are accepted without a
# further test, function that decides whether any other object is accepted).
_KINDS = {
    "Tensor": ("a tensor", Tensor, lambda value: isinstance(value, Tensor)),
    "str": ("a string", str, lambda value: isinstance(value, str)),
    "int": ("an integer", int, lambda value: _is_number(value) and hasattr(value, "__index__")),
    "float": ("a number", float, _is_number),
    "bool": ("True or False", bool, _is_flag),
    "List[float]": (
        "a list of numbers",
        None,
        lambda value: isinstance(value, (list, tuple)) and all(map(_is_number, value)),
    ),
}
_OPTIONAL = {f"Optional[{name}]": kind for name, kind in _KINDS.items()}


def _schema(operator: str) -> dict[str, str]:
    schema = getattr(torch.ops.lazy, operator).default._schema
    return {argument.name: str(argument.type) for argument in schema.arguments}


_TYPES = {operator: _schema(operator) for operator in _SHAPES}
for _operator in ("attention", "decode"):  # their C++ schemas have one integer, return_stats, instead of these flags
    _TYPES[_operator] |= dict.fromkeys(("return_lse", "return_stats", "return_score_stats"), "bool")


def check_types(operator: str, **arguments) -> None:
    """Raises TypeError for an argument whose type differs from the operator's schema, for example a number or a list in
    place of a tensor, and for an argument that the operator does not have."""
    types = _TYPES[operator]
    for name, value in arguments.items():
        if name not in types:
            instead = f": {_INSTEAD[name]}" if name in _INSTEAD and operator in ("attention", "decode") else ""
            raise TypeError(
                f"lazy::{operator}: expected one of the arguments {', '.join(types)}, found {name}{instead}"
            )
        kind = types[name]
        optional = kind in _OPTIONAL
        if optional and value is None:
            continue
        _, usual, accepts = (_OPTIONAL if optional else _KINDS)[kind]
        if type(value) is not usual and not accepts(value):
            raise _wrong_type(f"lazy::{operator}", name, kind, value, _SHAPES[operator].get(name))


def expect_types(where: str, kinds: dict[str, str], arguments: dict) -> None:
    """Raises TypeError if an argument has the wrong type. `kinds` maps the name of each argument to its expected type
    in the notation of operator schemas ("int", "Optional[float]", ...). The error message begins with `where`."""
    for name, kind in kinds.items():
        value = arguments[name]
        if value is None and kind in _OPTIONAL:
            continue
        if not (_OPTIONAL.get(kind) or _KINDS[kind])[2](value):
            raise _wrong_type(where, name, kind, value)


def _wrong_type(where: str, name: str, kind: str, value, shape: str | None = None) -> TypeError:
    text = (_OPTIONAL.get(kind) or _KINDS[kind])[0] + (f" of shape {shape}" if shape else "")
    optional = ", or None" if kind in _OPTIONAL else ""
    sizes = getattr(value, "shape", ())
    found = f"of shape {tuple(sizes)}" if sizes else reprlib.repr(value)  # for arrays: the shape, not the values
    return TypeError(f"{where}: expected {name} to be {text}{optional}, found {type(value).__name__} {found}")
