"""What the model makes of a run: forecasts along the size of a task's inputs. For the page's
curves and the verdict's advice.

Needs the predict extra; without it there is no outlook, and the views say less.
"""

from dwsr_probe.dataclass import dataclass, field
from dwsr_probe.report.words import inputs_text

# of a name: more would change the line by less than its width, and each takes a millisecond
LEARNED_MOST = 60
_SCALES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0)


@dataclass
class Examples:
    """Some records of one name, chosen in one pass: the one of the largest inputs, those that
    ended early, and evenly of the rest.

    The largest may be one that was killed: that is the block which people ask about."""

    seen: int = 0
    kept: list = field(default_factory=list)
    early: list = field(default_factory=list)
    largest: object = None
    _stride: int = 1

    def add(self, record):
        if record.state in ("ok", "running", "killed") and (
            self.largest is None
            or (record.known_input_bytes or 0) > (self.largest.known_input_bytes or 0)
        ):
            self.largest = record
        if record.state not in ("ok", "running"):
            if len(self.early) < LEARNED_MOST // 4:
                self.early.append(record)
            return
        if self.seen % self._stride == 0:
            self.kept.append(record)
            # thinned to every second: at the end between 60 and 120, evenly over the run
            if len(self.kept) >= 2 * LEARNED_MOST:
                self.kept, self._stride = self.kept[::2], 2 * self._stride
        self.seen += 1

    def chosen(self):
        step = max(1, -(-len(self.kept) // LEARNED_MOST))
        found = self.kept[::step] + self.early
        return (
            [self.largest] if self.largest is not None and self.largest not in found else []
        ) + found


@dataclass
class Curve:
    """Forecast along the size: input bytes, mean, and the quantiles 1 % and 99 % at each."""

    input_bytes: list
    mean: list
    low: list
    high: list
    trust: str
    learned: int


class Outlook:
    """A model of some names of one run. `Outlook.of` gives None where there is no model to be
    had."""

    def __init__(self, model, base):
        self._model, self._base = model, base  # name → inputs of its largest task

    @classmethod
    def of(cls, examples, step=lambda: None):
        """examples: {task name: Examples}. step: called after each name."""
        try:
            from dwsr_probe.predict import Model
        except ImportError:
            return None
        model, base = Model(), {}
        for name, some in examples.items():
            for record in some.chosen():
                # Without the resident sizes: another kind to learn, which no view shows.
                fields = (
                    "task_name",
                    "state",
                    "inputs",
                    "inputs_omitted",
                    "input_bytes",
                    "output",
                    "output_bytes",
                    "alloc_peak_bytes",
                    "gpu",
                    "oom",
                    "attribution",
                    "process",
                    "thread",
                    "start",
                )
                try:
                    model.learn(
                        {field: getattr(record, field) for field in fields} | {"overlap": 1}
                    )
                except ValueError:
                    continue  # figures that cannot be; the others may be good
            largest = some.largest or (some.early[-1] if some.early else None)
            if largest is not None and largest.inputs and largest.known_input_bytes:
                base[name] = largest.inputs
            step()
        return cls(model, base)

    def at(self, name, scale, kind="alloc"):
        """Forecast for inputs of so many times the largest volume seen; None for a name without
        sized inputs, or not learned."""
        inputs = self._base.get(name)
        return self._forecast(name, _scaled(inputs, scale), kind) if inputs else None

    def of_task(self, record, kind="alloc"):
        """What the task of this record needs, or would have needed; None as above."""
        return (
            self._forecast(record.task_name, record.inputs, kind)
            if record.known_input_bytes
            else None
        )

    def _forecast(self, name, inputs, kind):
        if not inputs or kind not in self._model.kinds(name):
            return None
        forecast = self._model.predict(inputs, name, kind)
        return forecast if forecast.n else None

    def inputs_text(self, name, scale):
        """The largest inputs at another scale, as people write them."""
        return inputs_text(_scaled(self._base[name], scale))

    def curve(self, name, kind="alloc"):
        if self.at(name, 1.0, kind) is None:
            return None
        total = sum(one.get("nbytes") or 0 for one in self._base[name])
        forecasts = [self.at(name, scale, kind) for scale in _SCALES]
        here = forecasts[_SCALES.index(1.0)]
        return Curve(
            [total * scale for scale in _SCALES],
            [f.mean for f in forecasts],
            [f.upper(0.01) for f in forecasts],
            [f.upper(0.99) for f in forecasts],
            here.trust,
            here.n,
        )

    def largest_scale(self, name, room_bytes, kind="alloc", most=8.0):
        """How many times the volume still fits into so many bytes with 99 %; None if that cannot
        be said. On the host the inputs take their part of it."""
        here = self.at(name, 1.0, kind)
        if here is None or here.trust not in ("fair", "good") or room_bytes <= 0:
            return None

        def fits(scale):
            inputs = _scaled(self._base[name], scale)
            given = sum(one.get("nbytes") or 0 for one in inputs) if kind == "alloc" else 0
            return given + self._forecast(name, inputs, kind).upper(0.99) <= room_bytes

        low, high = 0.0, most
        for _ in range(10):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low or None


def _scaled(inputs, scale):
    """The first axis is where blocks grow; what has none grows in bytes."""
    scaled = []
    for one in inputs:
        shape, nbytes = one.get("shape"), one.get("nbytes")
        if shape and shape[0]:
            length = max(1, round(shape[0] * scale))
            one = {
                **one,
                "shape": [length, *shape[1:]],
                "nbytes": None if nbytes is None else round(nbytes * length / shape[0]),
            }
        elif nbytes is not None and not shape:
            one = {**one, "nbytes": round(nbytes * scale)}
        scaled.append(one)
    return scaled
