"""Defines the steps of a recipe of `lazy lab`, and reads their results.

OUTPUT/SCALE/
  corpus-KEY/        the corpus, prepared from --text; only at tiny scale without --corpus
  runs/STEP/         run folders of `lazy train`
  measured/STEP.json JSON output of the measurements
  steps/             records, configurations and logs of the steps

The name of a step ends in a key, a digest of everything that determines the step's result. If two recipes have a step
of the same name, the step runs only once and both recipes use its result.
"""

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path

from .errors import UserError
from .plan import toml
from .recipes.scales import SCALES, configurations
from .steps import Step, read_object, write_atomic

TINY_VOCABULARY = 2048
DOMAIN_SAMPLES = 32
MAX_DOMAIN_BYTES = 16 << 20


def digest(*parts):
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def demo_text():
    """Returns the folder of Perl's manual, as a list, or [] if Perl is not installed. The manual is the default text of
    the scale tiny, because most Linux systems have it."""
    return sorted(str(file.parent) for file in Path("/usr/share/perl").glob("5*/pod/perlfunc.pod"))[:1]


def folder_state(folder):
    """Returns names, sizes and modification times of the files of a model folder."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]


def merge(values, more):
    """Adds the nested dictionary `more`, the parts of a measurement, to `values`, the parts that are already known."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = value


def configuration_text(files, overrides):
    """Returns a configuration that extends `files` in configs/ and sets `overrides`, {"section.key": value}."""
    sections = {}
    for key, value in overrides.items():
        section, name = key.split(".", 1)
        sections.setdefault(section, {})[name] = value
    return f"extends = {json.dumps([str(configurations() / file) for file in files])}\n\n{toml(sections)}"


def task_values(found):
    """Converts results of `lazy eval` to {task: {metric: value}}."""
    return {
        task: {metric.removesuffix(",none"): value for metric, value in metrics.items()}
        for task, metrics in found["results"].items()
    }


class Plan:
    """The steps of one recipe. `recorded` (lab_records.Recorded) has results that are not computed again, or is None.
    The steps of the first seed precede the steps of the second seed."""

    def __init__(self, options, recipe, recorded=None):
        self.options, self.recipe, self.recorded = options, recipe, recorded
        self.scale = SCALES[options.scale]
        self.folder = options.output / options.scale
        self.steps = {}  # name -> Step
        self.configurations = {}  # name of a training step -> text of its configuration
        self.files = []  # ((model, seed), kind of measurement, file of its result, function that reads the JSON object)
        self.known = {}  # (model, seed) -> {kind of measurement: recorded values}
        self.skipped = []  # (step, reason)
        self.corpus, self.corpus_key = self._corpus()
        given = dict(options.model)
        for seed in range(1, options.seeds + 1):
            # Name of a model -> (its folder, names of the steps that create it).
            trained = {
                model.name: (given[model.name], []) if model.name in given else self._train(model, seed)
                for model in recipe.models
            }
            for model in recipe.models:
                for measurement in recipe.measurements:
                    if not measurement.given and model.name in (measurement.models or [model.name]):
                        self._measure(measurement, model, seed, trained)
        for measurement in recipe.measurements:
            if measurement.given and not given:
                self.skipped.append((measurement.kind, "no --model NAME=DIR was given"))
            elif measurement.given:
                for name, folder in given.items():
                    self._add_measurement(measurement, (name, 1), folder, [])
        self.models = [model.name for model in recipe.models]
        self.models += [name for name in given if any(measurement.given for measurement in recipe.measurements)]

    def add(self, name, title, group, inputs, output, needs=(), **more):
        """Adds a step without its command and returns it. The character * in the path `output` is replaced by the full
        name of the step, including its key."""
        name = f"{name}-{digest(inputs, sorted(needs))}"
        output = self.folder / output.replace("*", name)
        return self.steps.setdefault(name, Step(name, title, group, inputs, [output], needs=list(needs), **more))

    def _corpus(self):
        """Returns the folder of the corpus, and its name or digest for the keys of the steps."""
        options = self.options
        if not self.recipe.models:
            return options.corpus, ""
        if options.corpus:
            if not (options.corpus / "corpus.json").is_file():
                raise UserError(f"--corpus {options.corpus}: expected a corpus of `lazy data prepare`, found none")
            return options.corpus, digest((options.corpus / "corpus.json").read_text(encoding="utf-8"))
        if self.recorded:
            return None, ""
        if options.scale != "tiny":
            raise UserError(
                f"--scale {options.scale}: expected --corpus DIR, a corpus of `lazy data prepare`, found none"
            )
        text = options.text or demo_text()
        if not text:
            raise UserError("expected --corpus DIR or --text FILES (Perl's manual is not installed), found neither")
        step = self.add("corpus", "prepare the text", "corpus", {"text": text}, "*")
        step.command = ["data", "prepare", *text, "--output", str(step.outputs[0])]
        step.command += ["--train-tokenizer", str(TINY_VOCABULARY), "--max-document", "16kb", "--train-bytes", "4mb"]
        step.command += ["--validation", "0.05", "--force"]
        return step.outputs[0], step.name

    def _train(self, model, seed):
        """Adds the training of a model. Returns (model folder, names of the steps that create it)."""
        device = self.options.device
        files, overrides = model.configuration(self.scale, seed)
        config = {"files": files, "overrides": overrides, "device": device}
        inputs = {"config": config, "corpus": self.corpus_key}
        name = seeded(model.name, seed)
        needs = [self.corpus_key] if self.corpus_key in self.steps else []
        step = self.add(name, f"train {name}", "train", inputs, "runs/*/model", needs, continues=True)
        step.command = ["train", str(self.folder / "steps" / f"{step.name}.toml"), "--resume"]
        run = {"data.corpus": str(self.corpus), "training.output": str(step.outputs[0].parent), "training.name": name}
        self.configurations[step.name] = configuration_text(files, overrides | run | {"training.device": device})
        return step.outputs[0], [step.name]

    def _measure(self, measurement, model, seed, trained):
        """Adds the steps of a measurement for its parts that are not recorded. `trained` maps the name of a model to
        (its folder, names of the steps that create it)."""
        key = (model.name, seed)
        if measurement.kind == "model" and not model.attends:
            # For models without attention layers, only the losses are measured.
            parts = [part for part in measurement.settings["parts"] if part in ("heldout", "lengths")]
            measurement = replace(measurement, settings=measurement.settings | {"parts": parts})
        if self.recorded:
            found, measurement = self.recorded.take(self.scale, model, seed, measurement)
            if found:
                merge(self.known.setdefault(key, {}), found)
            if measurement is None:
                return
        if measurement.needs_data and not self.options.data:
            self.skipped.append((f"{seeded(*key)}.{measurement.kind}", "no --data DIR was given"))
        elif measurement.kind == "domains":
            self._add_domains(key, *trained[model.name])
        else:
            baselines = {name: trained[name] for name in measurement.baselines}
            self._add_measurement(measurement, key, *trained[model.name], baselines)

    def _add_measurement(self, measurement, key, folder, needs, baselines=None):
        """Adds a step that measures the model in `folder`. The model is created by the steps `needs`."""
        options, kind, settings = self.options, measurement.kind, measurement.settings
        inputs, data = {"kind": kind, "settings": settings, "device": options.device}, []
        if not needs:
            inputs["model"] = folder_state(folder)
        if measurement.needs_data:
            inputs["data"] = str(options.data)
            data = ["--data", inputs["data"]]
        if kind == "tasks":
            length = max(512, self.scale.context)  # some answers of PIQA have more than 256 tokens
            command = ["eval", str(folder), *data, "--max-length", str(length), "--device", options.device, "--output"]
            read = task_values
        else:
            read = lambda found: found["values"]
            command = ["measure", kind, str(folder), "--device", options.device]
            for name, value in settings.items():
                text = ",".join(map(str, value)) if isinstance(value, list) else json.dumps(value).strip('"')
                command += ["--set", f"{name}={text}"]
            for name, (place, more) in (baselines or {}).items():
                command += ["--baseline", f"{name}={place}"]
                needs = needs + more
            command += data
            if measurement.reads == "text" and (options.text or not options.corpus):
                command += ["--text", *(options.text or demo_text())]
            elif measurement.reads:
                command += ["--corpus", str(self.corpus)]
            command.append("--json")
        self._add_output(key, kind, kind, kind, inputs, needs, command, read)

    def _add_domains(self, key, folder, needs):
        """Adds the steps that measure the loss and the attention sink on the text folders of --domain."""
        if not self.options.domain:
            self.skipped.append((f"{seeded(*key)}.domains", "no --domain NAME=DIR was given"))
        length, device = str(self.scale.context), ["--device", self.options.device]
        sinks = ["--length", length, "--bos", "--maps", "none", "--samples", str(DOMAIN_SAMPLES), *device, "--json"]
        loss = ["--max-length", length, "--bos-every-window", *device, "--output"]
        for domain, source in self.options.domain:
            text = self.domain_text(domain, source)
            inputs = {"text": digest(text.read_text(encoding="utf-8")), "device": self.options.device}
            for what, command, words, read in (
                ("loss", "eval", loss, lambda found: {"loss": found["results"]["heldout"]["loss,none"]}),
                ("sinks", "sinks", sinks, lambda found: {"sink_ratio": found["overall"]["sink_ratio"]}),
            ):
                self._add_output(
                    key,
                    "domains",
                    f"{domain}-{what}",
                    f"{what} on {domain}",
                    {"what": what} | inputs,
                    needs,
                    [command, str(folder), "--text", str(text), *words],
                    lambda found, domain=domain, read=read: {domain: read(found)},
                )

    def _add_output(self, key, kind, what, title, inputs, needs, command, read):
        """Adds a measurement step. `command` lacks its last argument, the output file. `read` converts the JSON object
        in this file to the values of the measurement `kind`."""
        name = seeded(*key)
        step = self.add(f"{name}.{what}", f"measure {name}: {title}", "measure", inputs, "measured/*.json", needs)
        step.command = [*command, str(step.outputs[0])]
        self.files.append((key, kind, step.outputs[0], read))

    def domain_text(self, domain, source):
        """Concatenates the text files of a folder to one file."""
        if not source.is_dir():
            raise UserError(
                f"--domain {domain}={source}: expected a folder, found {'a file' if source.exists() else 'none'}"
            )
        target = self.folder / "domains" / f"{domain}.txt"
        parts, size = [], 0
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            data = file.read_bytes()[: MAX_DOMAIN_BYTES - size]
            if data and b"\0" not in data[:4096]:
                parts.append(data.decode(errors="ignore"))
                size += len(data)
        if not parts:
            raise UserError(f"--domain {domain}={source}: expected text files, found none")
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, "\n\n".join(parts))
        return target

    def results(self):
        """Returns {(model, seed): {kind of measurement: values}} of all finished and all recorded measurements."""
        found = copy.deepcopy(self.known)
        for key, kind, file, read in self.files:
            if file.is_file():
                merge(found.setdefault(key, {}), {kind: read(read_object(file))})
        return found


def seeded(name, seed):
    return name if seed == 1 else f"{name}.seed{seed}"
