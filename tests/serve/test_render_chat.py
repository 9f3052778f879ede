"""Compares the chats that src/serve/openai/render_chat.py renders with transformers."""

import json
import subprocess
import sys

import pytest

transformers = pytest.importorskip("transformers.utils.chat_template_utils")

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES = {
    "ChatML": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "indented, with a date": "{{- bos_token }}\n{%- if messages[0]['role'] == 'system' %}\n"
    "    {%- set system = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n"
    "    {%- set system = '' %}\n{%- endif %}\n{{- 'Today: ' + strftime_now('%d %b %Y') + '\n\n' + system }}\n"
    "{% for message in messages %}\n    {{- message['role'] + ': ' + message['content'] | trim }}\n{% endfor %}\n"
    "{% if add_generation_prompt %}\n    {{- 'assistant' }}\n{% endif %}\n",
    "namespaces and refusals": "{%- set ns = namespace(last=none) %}{{ bos_token }}{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{% set ns.last = m %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% else %}"
    "{{ m['content'] + eos_token }}{% endif %}{% endfor %}{{ ns.last | tojson }}",
    "marked for training": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{{ eos_token }}{% endgeneration %}{% else %}\n  {{ m.content }}\n{% endif %}\n{% if loop.index > 3 %}{% break %}"
    "{% endif %}{% endfor %}",
}
CHATS = [
    [("user", " hé <b>\n")],
    [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v "), ("assistant", "w")],
    [("user", "u"), ("assistant", "a 'q' \"d\""), ("user", "日本")],
]


def expected(template, messages, prompt):
    try:
        texts, _ = transformers.render_jinja_template(
            [messages], chat_template=template, add_generation_prompt=prompt, **TOKENS
        )
        return {"text": texts[0]}
    except Exception as error:  # the template raises an error for these messages
        return {"error": str(error)}


@pytest.mark.parametrize("name", TEMPLATES)
def test_rendered_texts_equal_transformers(root, name):
    template = TEMPLATES[name]
    script = (root / "src/serve/openai/render_chat.py").read_text(encoding="utf-8")
    command = [sys.executable, "-I", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(question):
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        assert ask({"template": template, "variables": TOKENS}) == {"ready": True}
        for chat in CHATS:
            messages = [{"role": role, "content": content} for role, content in chat]
            for prompt in (True, False):
                answer = ask({"messages": messages, "add_generation_prompt": prompt})
                assert answer == expected(template, messages, prompt)
        process.stdin.close()
