"""Renders a chat template as transformers does. Each line of standard input and of standard output is a JSON object.

The first input line has the template and the variables of all requests. Each further line has the variables of one
request.
"""

import datetime
import json
import sys


def answer(**fields):
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


def main():
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        answer(error=f"Python's jinja2 is missing ({error})", missing=True)
        return

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

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
            answer(text=template.render(**{**first["variables"], **json.loads(line)}))
        except Exception as error:  # a template may raise any exception
            answer(error=str(error) or type(error).__name__)


main()
