#!/usr/bin/env bash
# The libraries of the Python package take nothing from LibTorch but C functions of its stable interface, aoti_torch_*
# and torch_*: one binary then serves every PyTorch from 2.11 on. Usage: stable_abi.sh LIBRARY...
set -euo pipefail
for library; do
  symbols=$(nm -DC --undefined-only "$library")
  # Types of C++ in the arguments count too, in whatever namespace the function is.
  if grep -E '\b(at|c10|caffe2|torch)::' <<< "$symbols" | grep -v 'lazy::ops::' | head -n 5 | grep .; then
    echo "$library: expected C functions of LibTorch's stable interface alone, found those above"
    exit 1
  fi
  if ! grep -qE ' U torch_call_dispatcher$' <<< "$symbols"; then
    echo "$library: expected calls of torch_call_dispatcher, found none: is it a library of the Python package?"
    exit 1
  fi
done
