"""Renders a chat template as transformers does. Each line of standard input and of standard output is a JSON object.

The first input line has the template and the variables of all requests. Each further line has the variables of one
request.
"""

import datetime
import json
import sys
import traceback


def answer(**fields):
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def with_argument_objects(messages):
    """Parses the arguments of tool calls, which are JSON texts in OpenAI's API, to objects. Arguments that are not the
    text of a JSON object remain unchanged."""

    def converted(call):
        try:
            arguments = json.loads(call["function"]["arguments"])
        except (KeyError, TypeError, ValueError):
            return call
        is_object = isinstance(arguments, dict)
        return {**call, "function": {**call["function"], "arguments": arguments}} if is_object else call

    def calls(message):
        return isinstance(message.get("tool_calls"), list)

    return [{**m, "tool_calls": [converted(c) for c in m["tool_calls"]]} if calls(m) else m for m in messages]


def with_empty_contents(messages):
    """Replaces null and missing contents by an empty text."""
    return [{**m, "content": ""} if m.get("content") is None else m for m in messages]


def render(template, variables):
    """Renders the messages in a form that the template supports. First, the arguments of tool calls are converted to
    objects. If the template fails with objects, the arguments are passed as sent. Each form is rendered with null
    contents and with empty texts in their place."""
    sent = variables["messages"]
    objects = with_argument_objects(sent)
    failure = None
    for messages in [objects] if objects == sent else [objects, sent]:
        texts = []
        empty = with_empty_contents(messages)
        for form in [messages] if empty == messages else [messages, empty]:
            try:
                texts.append(template.render(**{**variables, "messages": form}))
            except Exception as error:  # a template may raise any exception
                failure = failure or error
        if texts:
            return min(texts, key=lambda text: text.count("None"))  # a printed null is "None"
    raise failure


def location(error):
    """Returns "line N: " for the line of the template that raised the error, or "" if it is unknown."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == "<template>"]
    return f"line {lines[-1]}: " if lines else ""


def main():
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        answer(error=f"Python's jinja2 is missing ({error})", missing=True)
        return

    class RejectedError(jinja2.exceptions.TemplateError):
        """The template itself rejects the messages."""

    def raise_exception(message):
        raise RejectedError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    class Generation(jinja2.ext.Extension):
        """Renders the body of {% generation %}, a block that marks the assistant's text for training."""

        tags = {"generation"}

        def parse(self, parser):
            next(parser.stream)
            return parser.parse_statements(["name:endgeneration"], drop_needle=True)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)

    lines = sys.stdin.buffer
    first = json.loads(lines.readline())
    try:
        template = environment.from_string(first["template"])
    except jinja2.exceptions.TemplateSyntaxError as error:
        answer(error=f"line {error.lineno}: {error.message}")
        return
    answer(ready=True)
    for line in lines:
        try:
            answer(text=render(template, {**first["variables"], **json.loads(line)}))
        except RejectedError as error:
            answer(error=str(error))
        except Exception as error:  # a template may raise any exception
            reason = str(error) or type(error).__name__
            answer(error=f"the template cannot render these messages: {location(error)}{reason}")


main()
