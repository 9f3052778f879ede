"""Runs a tokenizer.json with Hugging Face's `tokenizers`. Each line of input and output is a JSON object.

The first line is {"tokenizer": text of the file, "ids": {text of an added token: id}}. Each of the next lines is
{"encode": [texts]} or {"decode": [list of ids]}.
"""

import json
import sys


def answer(**fields):
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def main():
    try:
        import tokenizers
    except ImportError as error:
        answer(error=f"Python's package `tokenizers` is missing ({error}); pip install tokenizers", missing=True)
        return

    lines = sys.stdin.buffer
    first = json.loads(lines.readline())
    try:
        tokenizer = tokenizers.Tokenizer.from_str(first["tokenizer"])
    except Exception as error:  # the package raises plain Exception objects
        answer(error=f"`tokenizers` {tokenizers.__version__} cannot load the file: {error}")
        return
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text, wanted in first["ids"].items():
        if tokenizer.token_to_id(text) != wanted:
            answer(error=f'"{text}" has the id {wanted} in the file, but {tokenizer.token_to_id(text)} in `tokenizers`')
            return

    # Determine the ids that the post-processor adds before and after a text.
    try:
        plain = tokenizer.encode("a", add_special_tokens=False).ids
        whole = tokenizer.encode("a", add_special_tokens=True).ids
        at = next(i for i in range(len(whole)) if whole[i : i + len(plain)] == plain)
    except Exception as error:
        answer(error=f"`tokenizers` cannot encode a text with this tokenizer: {error}")
        return
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    answer(
        ready=True,
        pieces=[tokenizer.id_to_token(i) for i in range(size)],
        prefix=whole[:at],
        suffix=whole[at + len(plain) :],
    )

    for line in lines:
        request = json.loads(line)
        try:
            if "encode" in request:
                encodings = tokenizer.encode_batch_fast(request["encode"], add_special_tokens=False)
                answer(ids=[encoding.ids for encoding in encodings])
            else:
                answer(texts=[tokenizer.decode(ids, skip_special_tokens=False) for ids in request["decode"]])
        except Exception as error:
            answer(error=str(error) or type(error).__name__)


main()
