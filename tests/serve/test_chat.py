"""Tests of `lazy chat` with its input from a pipe and from a terminal. Its answers must equal those that `lazy serve`
gives."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest
from serving import copy_of_model, serving

pytest.importorskip("jinja2")

# Chat template that raises an error for one specific message.
TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'refused' %}{{ raise_exception('not that word') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(model_folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "model"
    copy_of_model(model_folder, path)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    return path


@pytest.fixture(autouse=True)
def python(monkeypatch):
    monkeypatch.setenv("LAZY_PYTHON", sys.executable)


def chat(lazy, folder, *options, lines=(), context=65536):
    """Runs `lazy chat` and sends it `lines` through a pipe."""
    command = [lazy, "chat", folder, "--device", "cpu", "--max-model-len", str(context), *options]
    text = "".join(line + "\n" for line in lines)
    return subprocess.run(command, input=text.encode(), capture_output=True, timeout=120)


def served_answers(server, messages, system=None, **options):
    """Returns the answers of the server to a client that sends the whole history with each message."""
    history = [{"role": "system", "content": system}] if system else []
    answers = []
    for message in messages:
        history.append({"role": "user", "content": message})
        status, answer = server.post("/v1/chat/completions", {"messages": history, **options})
        assert status == 200, answer
        answers.append(answer["choices"][0]["message"]["content"])
        history.append({"role": "assistant", "content": answers[-1]})
    return answers


def test_answers_equal_served_answers(lazy_binary, folder):
    messages = ["Hello", "Tell me more.", "é世😀"]
    penalty = 2  # the repetition penalty; without it, the small model repeats one token
    with serving(lazy_binary, str(folder)) as server:
        for system in (None, "You are a sailor."):
            expected = served_answers(
                server, messages, system, max_tokens=20, temperature=0, repetition_penalty=penalty
            )
            options = ["--temperature", "0", "--max-tokens", "20", "--repetition-penalty", str(penalty)]
            options += ["--system", system] if system else []
            done = chat(lazy_binary, folder, *options, lines=["", messages[0], "  ", *messages[1:]])
            assert done.returncode == 0, done.stderr
            assert done.stdout.decode() == "".join(answer + "\n" for answer in expected)
        assert len(set(expected)) > 1
    # With sampling, `lazy chat` uses the seed plus one for the second answer.
    sampled = ["--temperature", "1", "--top-p", "1", "--max-tokens", "20"]
    first = chat(lazy_binary, folder, *sampled, "--seed", "3", lines=messages).stdout
    assert chat(lazy_binary, folder, *sampled, "--seed", "3", lines=messages).stdout == first
    assert chat(lazy_binary, folder, *sampled, "--seed", "4", lines=messages).stdout != first


def test_full_context_drops_the_oldest_exchanges(lazy_binary, folder):
    options = ["--temperature", "0", "--repetition-penalty", "2", "--max-tokens", "8", "--system", "S"]
    messages = [f"message number {n}" for n in range(6)]
    whole = chat(lazy_binary, folder, *options, lines=messages).stdout.decode().split("\n")
    done = chat(lazy_binary, folder, *options, lines=messages, context=150)
    assert done.returncode == 0, done.stderr
    short = done.stdout.decode().split("\n")
    assert short[0] == whole[0] and short != whole
    assert b"150" in done.stderr and b"oldest" in done.stderr
    # A message that does not fit into the context even without history is refused.
    done = chat(lazy_binary, folder, *options, lines=["x" * 300], context=150)
    assert done.returncode == 2 and done.stdout == b""
    assert b"150" in done.stderr.splitlines()[-1]


def test_user_errors_are_one_line(lazy_binary, folder, model_folder, tmp_path):
    for arguments, names in [
        ([model_folder], [model_folder, "chat template", "lazy generate"]),
        (["nothing"], ["nothing"]),
        ([folder, "--temperature", "-1"], ["chat: ", "temperature"]),
    ]:
        done = subprocess.run([lazy_binary, "chat", *arguments], input=b"hi\n", capture_output=True)
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1, done.stderr
        assert all(name.encode() in done.stderr for name in names), done.stderr
    done = chat(lazy_binary, folder, lines=["refused"])
    assert done.returncode == 2 and b"chat: chat template: not that word" in done.stderr
    broken = tmp_path / "broken"
    copy_of_model(model_folder, broken)
    (broken / "chat_template.jinja").write_text("{% if %}")
    done = chat(lazy_binary, broken, lines=["hi"])
    assert done.returncode == 2 and str(broken).encode() in done.stderr.splitlines()[-1], done.stderr


class Terminal:
    """Runs `lazy chat` on a new pseudo-terminal."""

    def __init__(self, lazy, folder, *options):
        self.fd, other = pty.openpty()
        command = [lazy, "chat", folder, "--device", "cpu", "--max-model-len", "65536", *options]
        environment = {**os.environ, "NO_COLOR": "1"}

        def own_terminal():
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=environment, preexec_fn=own_terminal
        )
        os.close(other)
        self.output = ""

    def write(self, text):
        os.write(self.fd, text.encode())

    def read(self):
        try:
            self.output += os.read(self.fd, 65536).decode(errors="replace")
        except OSError:  # the program has ended
            return False
        return True

    def wait_for(self, text, after=0):
        """Waits for `text` after position `after` of the output and returns the position after it."""
        end = time.monotonic() + 60
        while text not in self.output[after:]:
            assert time.monotonic() < end and self.read(), self.output
        return self.output.index(text, after) + len(text)

    def end(self):
        while self.read():
            pass
        os.close(self.fd)
        return self.process.wait(60)


def test_keyboard_control_on_a_terminal(lazy_binary, folder):
    terminal = Terminal(lazy_binary, folder, "--temperature", "0")
    try:
        at = terminal.wait_for("> ")
        terminal.write("Hello\n")
        at = terminal.wait_for("Hello\r\n", at) + 40  # wait for the first 40 characters of the endless answer
        while len(terminal.output) < at:
            assert terminal.read(), terminal.output
        terminal.write("\x03")
        at = terminal.wait_for("\r\n\r\n> ", at)
        terminal.write("refused\n")  # an error for one message does not end the chat
        at = terminal.wait_for("not that word", at)
        at = terminal.wait_for("> ", at)
        terminal.write("half a line\x03")  # a single interrupt at the prompt discards the line
        at = terminal.wait_for("Ctrl-D", at)
        at = terminal.wait_for("> ", at)
        terminal.write("\x04")
        assert terminal.end() == 0
    finally:
        terminal.process.kill()


def test_commands_on_a_terminal(lazy_binary, folder):
    terminal = Terminal(lazy_binary, folder, "--temperature", "1", "--max-tokens", "12", "--system", "S")

    def say(text, wanted, at):
        terminal.write(text + "\n")
        at = terminal.wait_for(text + "\r\n", at)
        end = terminal.wait_for("\r\n> ", terminal.wait_for(wanted, at))
        return terminal.output[at:end], end

    try:
        at = terminal.wait_for("/help")
        at = terminal.wait_for("> ", at)
        first, at = say("Hello", "", at)
        second, at = say("Hello", "", at)
        assert second != first
        text, at = say("/help", "/quit", at)
        assert all(name in text for name in ("/clear", "/exit", "Ctrl-C", "Ctrl-D"))
        text, at = say("/claar", "/clear", at)
        assert text.count("\n") == 1 and "/claar" in text
        text, at = say("/etc/hosts", "/help", at)
        assert text.count("\n") == 1
        _, at = say("/clear", "empty", at)
        again, at = say("Hello", "", at)
        assert again == first
        terminal.write("  \n")
        at = terminal.wait_for("> ", at)
        terminal.write("/exit\n")
        assert terminal.end() == 0
    finally:
        terminal.process.kill()


def test_commands_on_a_pipe_are_messages(lazy_binary, folder):
    done = chat(lazy_binary, folder, "--max-tokens", "4", lines=["/exit", "/help"])
    assert done.returncode == 0 and done.stdout.count(b"\n") >= 2


def test_interrupt_on_a_pipe_ends_the_program(lazy_binary, folder):
    command = [lazy_binary, "chat", folder, "--device", "cpu", "--max-model-len", "65536"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(b"Hello\nHello again\n")
        process.stdin.flush()
        assert process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGINT and b"SIGINT" in errors.splitlines()[-1]


def test_two_interrupts_or_sigterm_end_the_chat(lazy_binary, folder):
    for wanted, code in [("\x03\x03", 0), (signal.SIGTERM, 128 + signal.SIGTERM)]:
        terminal = Terminal(lazy_binary, folder)
        try:
            at = terminal.wait_for("> ")
            if isinstance(wanted, str):
                for key in wanted:
                    terminal.write(key)
                    time.sleep(0.3)  # two interrupts in quick succession would arrive as one signal
            else:
                terminal.write("Hello\n")
                at = terminal.wait_for("Hello\r\n", at)
                terminal.process.send_signal(wanted)
            assert terminal.end() == code, terminal.output
        finally:
            terminal.process.kill()
