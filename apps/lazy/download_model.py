"""Downloads a model folder from the Hugging Face Hub with huggingface_hub (`--download`).

The first line of standard input is a JSON object with the model's name and the patterns of its files. The script
answers whether huggingface_hub is installed. It answers the second line with the folder of the downloaded model.
"""

import json
import os
import sys
import threading


def answer(**fields):
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def end_with_the_program():
    while sys.stdin.buffer.readline():
        pass
    os._exit(1)


def problem(error, name, hub):
    """Converts an exception to a pair: a one-line message, and whether the Hub could not be reached."""
    errors = hub.errors
    if isinstance(error, errors.GatedRepoError):
        return "accept the terms on the page of the model, and provide a token with HF_TOKEN or `hf auth login`", False
    if isinstance(error, errors.RepositoryNotFoundError):
        return "the Hub does not have this model, or it is private and HF_TOKEN does not give access", False
    if isinstance(error, errors.LocalEntryNotFoundError):
        if hub.constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE is set, and the cache does not have the model", False
        return f"{hub.constants.ENDPOINT} cannot be reached, and the cache does not have the model", True
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__, True


def main():
    lines = sys.stdin.buffer
    first = json.loads(lines.readline())
    try:
        import huggingface_hub as hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        answer(error=f"--download needs huggingface_hub ({error}): pip install huggingface_hub", missing=True)
        return
    answer(ready=True)
    lines.readline()
    threading.Thread(target=end_with_the_program, daemon=True).start()
    try:
        folder = hub.snapshot_download(
            first["name"], allow_patterns=first["patterns"], ignore_patterns=first["ignored"]
        )
    except Exception as error:  # snapshot_download() reports errors of the network, the Hub and the disk
        text, unreachable = problem(error, first["name"], hub)
        answer(error=text, unreachable=unreachable)
        return
    answer(folder=os.path.abspath(folder))


main()
