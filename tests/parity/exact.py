#!/usr/bin/env python3
"""Compares the log-likelihoods of long texts in lm-evaluation-harness and in `lazy eval` with float64 results.

    python tests/parity/exact.py HARNESS_FOLDER --lazy FOLDER --model DIR [--texts 4]

The script selects the WikiText documents for which the two programs differ most, from runs without BOS. It computes the
log-likelihoods of these documents by transformers in float64 over the same windows, and prints the difference of each
program from this result. It needs torch and transformers, but no network.
"""

import argparse

import compare


def windows(ids, first, length):
    """Yields (input ids, target ids) for each forward pass. In a full window, one context token precedes the targets.
    The last window usually has fewer targets, so more context tokens precede them to fill the window."""
    yield [first] + ids[: length - 1], ids[:length]
    for begin in range(length, len(ids), length):
        end = min(begin + length, len(ids))
        yield ids[end - length - 1 : end - 1], ids[begin:end]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("harness", help="folder with lm-evaluation-harness's results and samples")
    p.add_argument("--lazy", required=True, help="folder with the output of `lazy eval`")
    p.add_argument("--model", required=True, help="model folder")
    p.add_argument("--texts", type=int, default=4, help="number of texts (default %(default)s)")
    a = p.parse_args()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    theirs, ours = (compare.load([folder])["wikitext"].documents for folder in (a.harness, a.lazy))
    worst = sorted(theirs, key=lambda i: -abs(theirs[i][1][0] - ours[i][1][0]))[: a.texts]
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    model = AutoModelForCausalLM.from_pretrained(a.model, dtype=torch.float64).eval()
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    print(f"{'document':>8} {'tokens':>7} {'log-likelihood':>15} {'harness':>10} {'lazy':>10}")
    for i in worst:
        ids = tokenizer(theirs[i][0][0][0], add_special_tokens=False).input_ids
        exact = 0.0
        with torch.no_grad():
            for tokens, targets in windows(ids, first, model.config.max_position_embeddings):
                logits = model(torch.tensor([tokens])).logits[0, -len(targets) :]
                exact += torch.log_softmax(logits, -1).gather(1, torch.tensor(targets)[:, None]).sum().item()
        print(
            f"{i:>8} {len(ids):>7} {exact:>15.4f} {theirs[i][1][0] - exact:>+10.2e} {ours[i][1][0] - exact:>+10.2e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
