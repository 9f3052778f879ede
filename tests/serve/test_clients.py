"""Tests of `lazy serve` with clients of other projects: the openai package and lm-evaluation-harness."""

import asyncio
import random

import pytest
from serving import serving

pytestmark = pytest.mark.data


def test_openai_client(lazy_binary, model_folder, tmp_path):
    openai = pytest.importorskip("openai")
    key_file = tmp_path / "keys"
    key_file.write_text("right\n")
    with serving(lazy_binary, model_folder, "--api-key-file", str(key_file)) as server:
        connect = {"base_url": f"{server.address}/v1", "api_key": "right", "max_retries": 0}
        client = openai.OpenAI(**connect)
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("tiny").id == "tiny"
        whole = client.completions.create(model="tiny", prompt="Once", max_tokens=12, temperature=0, n=2, logprobs=3)
        assert len(whole.choices) == 2 and whole.choices[0].text == whole.choices[1].text
        assert whole.usage.completion_tokens == 24, whole.usage
        logprobs = whole.choices[0].logprobs
        assert "".join(logprobs.tokens) == whole.choices[0].text
        for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs):
            assert top[token] == value and 3 <= len(top) <= 4

        text, usage = "", None
        options = {"model": "tiny", "prompt": "Once", "max_tokens": 12, "temperature": 0}
        for chunk in client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            text += "".join(choice.text for choice in chunk.choices)
        assert text == whole.choices[0].text and usage.completion_tokens == 12

        seeded = [client.completions.create(model="tiny", prompt="a", seed=5, max_tokens=20) for _ in range(2)]
        assert seeded[0].choices[0].text == seeded[1].choices[0].text

        for call, kind, code in [
            (lambda: client.completions.create(model="other", prompt="a"), openai.NotFoundError, "model_not_found"),
            (lambda: client.completions.create(model="tiny", prompt="a", n=0), openai.BadRequestError, "invalid_value"),
            (
                lambda: client.chat.completions.create(model="tiny", messages=[]),
                openai.BadRequestError,
                "invalid_value",
            ),
            (
                lambda: client.with_options(api_key="wrong").models.list(),
                openai.AuthenticationError,
                "invalid_api_key",
            ),
        ]:
            with pytest.raises(kind) as caught:
                call()
            assert caught.value.code == code

        async def many():
            async with openai.AsyncOpenAI(**connect) as concurrent:
                answers = await asyncio.gather(*(concurrent.completions.create(**options) for _ in range(64)))
                assert {answer.choices[0].text for answer in answers} == {whole.choices[0].text}

        asyncio.run(many())


def test_lm_eval_client(lazy_binary, model_folder):
    pytest.importorskip("lm_eval")
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    words = "the a of time water house and runs every little is to light .".split()
    rng = random.Random(1)
    pairs = [
        (" ".join(rng.choices(words, k=rng.randint(1, 4))), " " + " ".join(rng.choices(words, k=rng.randint(1, 2))))
        for _ in range(40)
    ]
    with serving(lazy_binary, model_folder) as server:

        def harness(**options):
            if options["tokenizer_backend"] != "remote":
                options["tokenizer"] = model_folder
            url = f"{server.address}/v1/completions"
            model = LocalCompletionsAPI(model="tiny", base_url=url, max_length=128, **options)
            requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
            return model, model.loglikelihood(requests)

        def direct(model):
            """Computes the same results with one request per pair of token-id sequences."""
            out = []
            for context, continuation in pairs:
                ids = model.tok_encode(context + continuation)
                begin = len(model.tok_encode(context))
                body = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
                logprobs = server.complete(**body)["choices"][0]["logprobs"]
                assert len(logprobs["tokens"]) == len(ids) + 1 and logprobs["token_logprobs"][0] is None
                values = logprobs["token_logprobs"][begin:-1]
                greedy = all(v == max(t.values()) for v, t in zip(values, logprobs["top_logprobs"][begin:-1]))
                out.append((sum(values), greedy))
            return out

        model, found = harness(tokenizer_backend="huggingface", batch_size=1)
        expected = direct(model)
        runs = [found]
        for options in (
            {"tokenizer_backend": "huggingface", "batch_size": 16},
            {"tokenizer_backend": "huggingface", "batch_size": 1, "tokenized_requests": False},
            {"tokenizer_backend": "huggingface", "batch_size": 16, "tokenized_requests": False},
            {"tokenizer_backend": "huggingface", "batch_size": 4, "num_concurrent": 8},
            {"tokenizer_backend": "remote", "batch_size": 16},
        ):
            runs.append(harness(**options)[1])
        for run in runs:
            assert len(run) == len(expected)
            for (value, greedy), (wanted, wanted_greedy) in zip(run, expected):
                assert abs(value - wanted) < 1e-3 and greedy == wanted_greedy, (value, wanted, greedy)
        settings = {"until": ["\n\n"], "max_gen_toks": 12}
        request = Instance("generate_until", {}, ("the house", dict(settings)), 0)
        texts = model.generate_until([request])
        assert len(texts) == 1 and isinstance(texts[0], str) and texts[0], texts
