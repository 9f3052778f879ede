"""Estimates how long the steps of `lazy uptrain` take. The estimate of a step is its fixed time plus the product of its
work (a number of tokens) and the time of one token in a forward pass."""


def shown(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def seconds_per_token(finished):
    """Returns the time of one token in a forward pass, computed from finished steps. `finished` is a list of pairs
    (step, seconds that it took). Returns None if no finished step has any work."""
    measured = [(step, seconds) for step, seconds in finished if step.work]
    if not measured:
        return None
    # The fixed times are only estimates, and a step spends at least a tenth of its time on its work.
    seconds = sum(max(seconds - step.fixed_seconds, 0.1 * seconds) for step, seconds in measured)
    return seconds / sum(step.work for step, _ in measured)


def estimated_seconds(step, finished, rate):
    """Returns the estimated time of a step in seconds. finished: pairs (step, seconds that it took). rate: result of
    seconds_per_token()."""
    for other, seconds in finished:
        if other.kind == step.kind and other.work:
            return seconds * step.work / other.work
    return step.fixed_seconds + step.work * (rate or 0)


class Forecast:
    """The finished steps and the estimates for the other steps. `records` are the records of finished steps by name.
    rate: seconds per token, which is used until a step with work is finished."""

    def __init__(self, steps, records, rate=None):
        self.steps = steps
        self.seconds = {step.name: records[step.name]["seconds"] for step in steps if step.name in records}
        finished = [(step, self.seconds[step.name]) for step in steps if step.name in self.seconds]
        self.rate = seconds_per_token(finished) or rate
        self.left = {
            step.name: estimated_seconds(step, finished, self.rate) for step in steps if step.name not in self.seconds
        }

    def seconds_left(self):
        """Returns the estimated time of all steps that are not finished, or None if no speed is known yet."""
        return sum(self.left.values()) if self.rate else None

    def table(self):
        lines = []
        for number, step in enumerate(self.steps, 1):
            time = f"finished in {shown(self.seconds[step.name])}" if step.name in self.seconds else ""
            lines.append(f"{number:4}  {time or 'about ' + shown(self.left[step.name]):22}  {step.title}")
        return "\n".join(lines)
