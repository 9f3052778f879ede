"""Writes the tensors of PyTorch checkpoint files as safetensors files, with the packages torch and safetensors.

The script reads the files with torch.load(weights_only=True), so that a file can only call functions that rebuild
tensors. The first line of standard input is {"files": [[checkpoint file, names of its tensors or null for all], ...]},
which the script answers with {"ready": true}. It answers the line {"open": true} with {"tensors": sorted names of all
tensors}. For each further line {"write": name of a tensor, "to": file}, it writes a safetensors file that has only this
tensor, and answers {"name": ...}.
"""

import json
import os
import pickle
import re
import sys
import warnings

OLDEST = (2, 6)  # minimum version of torch: in older versions, weights_only=True can be bypassed (CVE-2025-32434)


class Refused(Exception):
    pass


def answer(**fields):
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def one_line(error):
    """Returns the first sentence of the error message."""
    lines = str(error).strip().splitlines()
    return lines[0].split(". ")[0].rstrip(".") if lines else type(error).__name__


def load(torch, file):
    shown = os.path.basename(file)
    with open(file, "rb") as content:
        # PyTorch 1.6 and newer write ZIP archives. Files in the older format cannot be memory-mapped.
        archive = content.read(4) == b"PK\x03\x04"
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=archive)
    except pickle.UnpicklingError as error:
        found = re.search(
            r"(?:GLOBAL|class|function|Trying to call reduce for unrecognized function) (\S+)", str(error)
        )
        if "global" in str(error).lower() or "reduce" in str(error):
            name = f" ({found[1]})" if found else ""
            raise Refused(
                f"{shown}: contains Python code{name} in addition to tensors; torch.load(weights_only=True) refuses "
                "it, and it was not run"
            ) from error
        raise Refused(
            f"{shown}: expected a checkpoint written by torch.save, but the file is damaged or has another format"
        ) from error
    except (RuntimeError, OSError) as error:
        raise Refused(f"{shown}: expected a checkpoint written by torch.save: {one_line(error)}") from error
    except (EOFError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise Refused(
            f"{shown}: expected a checkpoint written by torch.save, but the file is damaged or has another format"
        ) from error


def tensors_of(torch, file, wanted):
    found, shown = load(torch, file), os.path.basename(file)
    if not isinstance(found, dict):
        raise Refused(f"{shown}: expected a dictionary of tensors, found {type(found).__name__}")
    for name in found if wanted is None else wanted:
        if name not in found:
            raise Refused(f"{shown}: expected the tensor {name}, which the index assigns to this file")
        tensor = found[name]
        if not isinstance(name, str) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise Refused(f"{shown}: {name}: expected a tensor, found {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise Refused(f"{shown}: {name}: expected a dense tensor with values")
        yield name, (shown, tensor.detach())


def main():
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        answer(error=f"Python's packages `torch` and `safetensors` are needed ({error})", missing=True)
        return
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < OLDEST:
        answer(error=f"expected torch 2.6 or newer, found {torch.__version__}", missing=True)
        return
    warnings.simplefilter("ignore")
    lines = sys.stdin.buffer
    files = json.loads(lines.readline())["files"]
    answer(ready=True)
    lines.readline()
    tensors = {}
    try:
        for file, wanted in files:
            tensors.update(tensors_of(torch, file, wanted))
    except (Refused, OSError) as error:
        answer(error=str(error))
        return
    answer(tensors=sorted(tensors))
    for line in lines:
        question = json.loads(line)
        name = question["write"]
        file, tensor = tensors[name]
        try:
            if tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
                bad = tensor.numel() - int(torch.isfinite(tensor).sum())
                if bad:
                    raise ValueError(f"{bad} of {tensor.numel()} values are not finite")
            save_file({name: tensor.contiguous()}, question["to"])
        except Exception as error:
            answer(error=f"{file}: tensor {name}: {one_line(error)}")
            return
        answer(name=name)


main()
