"""Defines the steps of a recipe of `lazy lab`, and reads their results.

OUTPUT/SCALE/
  corpus-KEY/        the corpus, prepared from --text; only at tiny scale without --corpus
  runs/STEP/         run folders of `lazy train`
  measured/STEP.json JSON output of the measurements
  steps/             records, configurations and logs of the steps

The name of a step ends in a key, a digest of everything that determines the step's result. If two recipes have a step
of the same name, the step runs only once and both recipes use its result.
"""

import hashlib
import json
from pathlib import Path

from .configurations import text_of
from .errors import UserError
from .recipes import SCALES, Measurement, Model
from .steps import Step, read_object, write_atomic

TINY_VOCABULARY = 2048
DOMAIN_SAMPLES = 32
MAX_DOMAIN_BYTES = 16 << 20
# Task of `lazy eval` -> beginning of the file names of its data set in --data.
TASK_FILES = {"wikitext": "wiki", "lambada_openai": "lambada", "arc_easy": "arc", "social_iqa": "s"}
TASK_FILES |= {name: name for name in ("piqa", "hellaswag", "winogrande", "boolq")}


def digest(*parts):
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]


def demo_text():
    """Returns the folder of Perl's manual, as a list, or [] if Perl is not installed. The manual is the default text of
    the scale tiny, because most Linux systems have it."""
    return sorted(str(file.parent) for file in Path("/usr/share/perl").glob("5*/pod/perlfunc.pod"))[:1]


def folder_state(folder):
    """Returns names, sizes and modification times of the files of a model folder."""
    files = sorted(Path(folder).iterdir())
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]


def seeded(name, seed):
    return name if seed == 1 else f"{name}.seed{seed}"


def merge(values, more):
    """Adds the nested dictionary `more`, the parts of a measurement, to `values`, the parts that are already known."""
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(values.get(key), dict):
            merge(values[key], value)
        else:
            values[key] = value
    return values


class Plan:
    """The steps of one recipe. `recorded` (lab_records.Recorded) has results that are not computed again, or is
    None."""

    def __init__(self, options, recipe, recorded=None):
        self.options, self.recipe, self.recorded = options, recipe, recorded
        self.scale = SCALES[options.scale]
        self.folder = options.output / options.scale
        self.models = self.recipe.models(self.scale)
        self.measurements = self.recipe.measurements(self.scale)
        self.given = dict(options.model)
        self.skipped = []  # (step, reason)
        self.files = {}  # (model, seed) -> [(kind of measurement, file of its result)]
        self.known = {}  # (model, seed) -> {kind of measurement: recorded values}
        self.choices = {}  # name of a model -> chosen learning rate
        self.all = {}
        self.configurations = {}  # name of a training step -> text of its configuration
        needs_corpus = bool(self.models)
        self.corpus, self.corpus_key = self._corpus() if needs_corpus else (options.corpus, "")

    def add(self, name, title, group, inputs, output, command, needs=(), **more):
        """Adds a step. `output` and `command` are functions that receive the step's full name, including its key."""
        name = f"{name}-{digest(inputs, sorted(needs))}"
        step = Step(name, title, group, inputs, [output(name)], command(name), list(needs), **more)
        return self.all.setdefault(name, step)

    def _corpus(self):
        options = self.options
        if options.corpus:
            if not (options.corpus / "corpus.json").is_file():
                raise UserError(f"--corpus {options.corpus}: expected a corpus of `lazy data prepare`, found none")
            return options.corpus, digest((options.corpus / "corpus.json").read_text(encoding="utf-8"))
        if options.scale != "tiny":
            if self.recorded:
                return None, ""
            raise UserError(
                f"--scale {options.scale}: expected --corpus DIR, a corpus of `lazy data prepare`, found none"
            )
        text = options.text or demo_text()
        if not text:
            raise UserError("expected --corpus DIR or --text FILES (Perl's manual is not installed), found neither")
        cut = ["--max-document", "16kb", "--train-bytes", "4mb", "--validation", "0.05", "--force"]
        step = self.add(
            "corpus",
            "prepare the text",
            "corpus",
            {"text": list(map(str, text))},
            lambda name: self.folder / name,
            lambda name: [
                *("data", "prepare", *map(str, text), "--output", str(self.folder / name)),
                *("--train-tokenizer", str(TINY_VOCABULARY), *cut),
            ],
        )
        return step.outputs[0], step.name

    def steps(self):
        """Returns all steps: the steps of the first seed precede the steps of the second seed."""
        for seed in range(1, self.options.seeds + 1):
            trained = {model.name: self._train(model, seed) for model in self.models}
            for model in self.models:
                for measurement in self.measurements:
                    if measurement.selects(model) and not measurement.given:
                        self._measure(measurement, model, seed, trained)
        for measurement in self.measurements:
            if measurement.given:
                self._measure_given(measurement)
        return list(self.all.values())

    def _train(self, model, seed):
        """Adds the training of a model. Returns (model folder, names of the steps that create it)."""
        if model.name in self.given:
            return self.given[model.name], []
        trials = []
        if model.rates and model.name not in self.choices:
            for rate in model.rates:
                trial = Model(f"{model.name}.rate{rate:g}", model.overrides | model.trial, model.kind, model.files)
                trial.overrides |= {"optimizer.lr": rate}
                trained = self._train(trial, 1)
                loss = Measurement("model", self.scale.settings | {"parts": ["heldout"]})
                trials.append((rate, self._measurement_step(loss, trial.name, *trained, group="trial")))
            losses = [
                (read_object(step.outputs[0])["values"]["heldout"]["loss"], rate)
                for rate, step in trials
                if step.outputs[0].is_file()
            ]
            if len(losses) == len(trials):
                self.choices[model.name] = min(losses)[1]
        files, overrides = model.configuration(self.scale, seed)
        if model.rates:
            overrides["optimizer.lr"] = self.choices.get(model.name, "chosen by the trials")
        config = {"files": files, "overrides": overrides, "device": self.options.device}
        name = seeded(model.name, seed)
        step = self.add(
            name,
            f"train {name}",
            "train",
            {"config": config, "corpus": self.corpus_key},
            lambda name: self.folder / "runs" / name / "model",
            lambda name: ["train", str(self.folder / "steps" / f"{name}.toml"), "--resume"],
            [*([self.corpus_key] if self.corpus_key in self.all else []), *(step.name for _, step in trials)],
            continues=True,
        )
        run = step.outputs[0].parent
        overrides = overrides | {"data.corpus": str(self.corpus), "training.output": str(run), "training.name": name}
        overrides |= {"training.device": self.options.device}
        self.configurations[step.name] = text_of(files, overrides)
        return step.outputs[0], [step.name]

    def _measure(self, measurement, model, seed, trained):
        key = (model.name, seed)
        if measurement.kind in ("model", "mask", "speed", "model_latency") and not model.attends:
            # For models without attention layers, only the losses are measured.
            parts = [part for part in measurement.settings.get("parts", []) if part in ("heldout", "lengths")]
            if not parts:
                return
            measurement = Measurement(measurement.kind, measurement.settings | {"parts": parts})
        if self.recorded:
            found, measurement = self.recorded.take(self.scale, model, seed, measurement)
            for kind, values in found.items():
                merge(self.known.setdefault(key, {}).setdefault(kind, {}), values)
            if measurement is None:
                return
        if measurement.needs_data and not self.options.data:
            self.skipped.append((f"{seeded(*key)}.{measurement.kind}", "no --data DIR was given"))
            return
        folder, needs = trained[model.name]
        if measurement.kind == "domains":
            return self._measure_domains(key, folder, needs)
        baselines = {name: trained[name] for name in measurement.baselines}
        step = self._measurement_step(measurement, seeded(*key), folder, needs, baselines)
        self.files.setdefault(key, []).append((measurement.kind, step.outputs[0]))

    def _measurement_step(self, measurement, name, folder, needs, baselines=None, group="measure"):
        """Adds a step that measures the model in `folder`. The model is created by the steps `needs`."""
        options, kind, settings = self.options, measurement.kind, measurement.settings
        baselines = baselines or {}
        inputs = {"kind": kind, "settings": settings, "device": options.device}
        if not needs:
            inputs["model"] = folder_state(folder) if Path(folder).is_dir() else str(folder)
        if measurement.needs_data or kind == "tasks":
            inputs["data"] = str(options.data)
        needs = [*needs, *(need for _, found in baselines.values() for need in found)]
        if kind == "tasks":
            length = max(512, self.scale.context)  # some answers of PIQA have more than 256 tokens
            command = ["eval", str(folder), "--data", str(options.data), "--max-length", str(length)]
            command += ["--device", options.device]
        else:
            command = ["measure", kind, str(folder), "--device", options.device]
            for key, value in settings.items():
                text = ",".join(map(str, value)) if isinstance(value, list) else json.dumps(value).strip('"')
                command += ["--set", f"{key}={text}"]
            command += [word for key, (place, _) in baselines.items() for word in ("--baseline", f"{key}={place}")]
            if measurement.needs_data:
                command += ["--data", str(options.data)]
            if measurement.reads == "text" and options.text:
                command += ["--text", *map(str, options.text)]
            elif measurement.reads == "text" and not options.corpus:
                command += ["--text", *demo_text()]
            elif measurement.reads:
                command += ["--corpus", str(self.corpus)]
        flag = "--output" if kind == "tasks" else "--json"
        output = lambda name: self.folder / "measured" / f"{name}.json"  # noqa: E731
        return self.add(
            f"{name}.{kind}",
            f"measure {name}: {kind}",
            group,
            inputs,
            output,
            lambda name: [*command, flag, str(output(name))],
            needs,
        )

    def _measure_domains(self, key, folder, needs):
        if not self.options.domain:
            self.skipped.append((f"{seeded(*key)}.domains", "no --domain NAME=DIR was given"))
        for domain, source in self.options.domain:
            text = self.domain_text(domain, Path(source))
            length, device = str(self.scale.context), ["--device", self.options.device]
            commands = {
                "loss": ["eval", str(folder), "--text", str(text), "--max-length", length, "--bos-every-window"],
                "sinks": ["sinks", str(folder), "--text", str(text), "--length", length, "--bos", "--maps", "none"],
            }
            commands["sinks"] += ["--samples", str(DOMAIN_SAMPLES)]
            for what, command in commands.items():
                output = lambda name: self.folder / "measured" / f"{name}.json"  # noqa: E731
                flag = "--output" if what == "loss" else "--json"
                step = self.add(
                    f"{seeded(*key)}.{domain}-{what}",
                    f"measure {seeded(*key)}: {what} on {domain}",
                    "measure",
                    {"what": what, "text": digest(text.read_text(encoding="utf-8")), "device": self.options.device},
                    output,
                    lambda name, command=command, flag=flag: [*command, *device, flag, str(output(name))],
                    needs,
                )
                self.files.setdefault(key, []).append((f"{what} of {domain}", step.outputs[0]))

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

    def _measure_given(self, measurement):
        if not self.given:
            self.skipped.append((measurement.kind, "no --model NAME=DIR was given"))
        for name, folder in self.given.items():
            step = self._measurement_step(measurement, name, folder, [])
            self.files.setdefault((name, 1), []).append((measurement.kind, step.outputs[0]))

    def names(self):
        """Returns the names of the models that have rows on the page."""
        given = [name for name in self.given if any(measurement.given for measurement in self.measurements)]
        return [model.name for model in self.models] + given

    def dataset_sizes(self):
        """Returns {task: number of lines} of the benchmarks' files in --data."""
        sizes = {}
        for file in sorted(self.options.data.rglob("*.jsonl")) if self.options.data else ():
            for task in TASK_FILES:
                if file.name.startswith(TASK_FILES[task]):
                    lines = sum(bool(line.strip()) for line in file.read_text(encoding="utf-8").splitlines())
                    sizes[task] = sizes.get(task, 0) + lines
        return sizes

    def results(self):
        """Returns {(model, seed): {kind of measurement: values}} of all finished and all recorded measurements."""
        found = {key: json.loads(json.dumps(values)) for key, values in self.known.items()}
        for key, files in self.files.items():
            for kind, file in files:
                if not file.is_file():
                    continue
                values, name = read_object(file), kind
                if kind == "tasks":
                    values = {
                        task: {metric.removesuffix(",none"): value for metric, value in metrics.items()}
                        for task, metrics in values["results"].items()
                    }
                elif " of " in kind:
                    what, domain = kind.split(" of ")
                    name = "domains"
                    if what == "loss":
                        values = {domain: {"loss": values["results"]["heldout"]["loss,none"]}}
                    else:
                        values = {domain: {"sink_ratio": values["overall"]["sink_ratio"]}}
                else:
                    values = values["values"]
                merge(found.setdefault(key, {}).setdefault(name, {}), values)
        return found
