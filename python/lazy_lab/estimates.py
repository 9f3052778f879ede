"""Estimates how long the steps of `lazy uptrain` take. The estimate of a step is its fixed time plus the product of its
work (a number of tokens) and the time of one token in a forward pass."""


def shown(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


class Forecast:
    """The finished steps and the estimates for the other steps. `records` are the records of finished steps by name.
    rate: seconds per token, which is used until a step with work is finished."""

    def __init__(self, steps, records, rate=None):
        self.steps = steps
        self.seconds = {step.name: records[step.name]["seconds"] for step in steps if step.name in records}
        measured = [(step, self.seconds[step.name]) for step in steps if step.work and step.name in self.seconds]
        if measured:
            # The fixed times are only estimates and may exceed the measured time of a step. At least a tenth of the
            # measured time is therefore attributed to the work.
            seconds = sum(max(seconds - step.fixed_seconds, 0.1 * seconds) for step, seconds in measured)
            rate = seconds / sum(step.work for step, _ in measured)
        self.rate = rate
        # A step takes as long per unit of work as the first finished step of the same kind.
        per_work = {step.kind: seconds / step.work for step, seconds in reversed(measured)}
        self.left = {
            step.name: per_work[step.kind] * step.work
            if step.kind in per_work
            else step.fixed_seconds + step.work * (rate or 0)
            for step in steps
            if step.name not in self.seconds
        }

    def seconds_left(self):
        """Returns the estimated time of all steps that are not finished, or None if no speed is known yet."""
        return sum(self.left.values()) if self.rate else None

    def table(self):
        lines = []
        for number, step in enumerate(self.steps, 1):
            done = step.name in self.seconds
            time = f"finished in {shown(self.seconds[step.name])}" if done else f"about {shown(self.left[step.name])}"
            lines.append(f"{number:4}  {time:22}  {step.title}")
        return "\n".join(lines)
