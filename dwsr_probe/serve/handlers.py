"""The predictor's HTTP side: /forecast, /models and /running, beside the handlers that every port
of ours has."""

import asyncio
import json

from dwsr_probe.export import handlers
from dwsr_probe.serve.question import QUANTILE, answer, inputs_of, question_of, whole_bytes

BODY_BYTES = 1 << 20
QUESTIONS_MOST, PIECE = 1_000, 16  # of one request; between two looks at other clients
MODELS_DEFAULT, MODELS_MOST = 1_000, 10_000
RUNNING_DEFAULT, RUNNING_MOST, RUNNING_BYTES = 1_000, 10_000, 4 << 20  # names may be long


class _Json(handlers.BaseHandler):
    def say(self, found):
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(found) + "\n")

    def refuse(self, error):
        """The text is for whoever asked: in the body, where it may be long."""
        self.set_status(400)
        self.say({"error": str(error)})


class Forecast(_Json):
    """GET: one question in the query. POST: one as JSON, or a list of them."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST")

    async def get(self):
        given = {
            name: self.get_query_argument(name, None)
            for name in ("task", "kind", "q", "limit", "above")
        }
        try:
            given["inputs"] = inputs_of(
                self.get_query_arguments("shape"),
                self.get_query_arguments("dtype"),
                self.get_query_arguments("nbytes"),
            )
            self.say(self.answered([given])[0])
        except ValueError as error:
            self.refuse(error)

    async def post(self):
        try:
            asked = json.loads(self.request.body)
            many = asked if isinstance(asked, list) else [asked]
            if len(many) > QUESTIONS_MOST:
                raise ValueError(f"at most {QUESTIONS_MOST} questions at once")
            found = []
            for first in range(0, len(many), PIECE):
                found += self.answered(many[first : first + PIECE])
                await asyncio.sleep(0)
            self.say(found if isinstance(asked, list) else found[0])
        except (ValueError, RecursionError) as error:
            self.refuse(error)

    def answered(self, asked):
        questions = [question_of(given) for given in asked]
        with self.source.locked():
            return [answer(self.source.model, question) for question in questions]


class Models(_Json):
    """What is known of each task name, at the largest inputs seen of it; by name, from `after`
    on."""

    async def get(self):
        limit, after = (
            self.number("limit", MODELS_DEFAULT, 1, MODELS_MOST),
            self.get_query_argument("after", ""),
        )
        with self.source.locked():
            names = [name for name in self.source.model.names() if name > after]
        found = []
        for first in range(0, min(limit, len(names)), PIECE):
            with self.source.locked():
                for name in names[first : min(first + PIECE, limit)]:
                    found += [self.described(name, kind) for kind in self.source.model.kinds(name)]
            await asyncio.sleep(0)
        self.say({"models": found, "more": len(names) > limit})

    def described(self, name, kind):
        model, ledger = self.source.model, self.source.ledger
        inputs, account = ledger.inputs_of(name, model, kind), ledger.account(name, kind)
        forecast = model.predict(inputs, name, kind=kind)
        return {
            "task": name,
            "kind": kind,
            "n": forecast.n,
            "trust": forecast.trust,
            "notes": list(forecast.notes),
            "inputs": inputs,
            "mean_bytes": whole_bytes(forecast.mean),
            "upper_bytes": whole_bytes(forecast.upper(QUANTILE)),
            "error": account and account.error,
            "scored": account.scored if account else 0,
            "exceeded": account.exceeded if account else 0,
            "reward": account and account.reward,
        }


class Running(_Json):
    """The running tasks of all targets: how probable it is that each one exceeds its room. The
    most probable first, and no more of them than RUNNING_BYTES."""

    async def get(self):
        limit = self.number("limit", RUNNING_DEFAULT, 1, RUNNING_MOST)
        with self.source.locked():
            overruns = self.source.overruns.most_probable(limit + 1)
        found, bytes_ = [], 0
        for overrun in overruns[:limit]:
            line = {
                **overrun.task._asdict(),
                "target": overrun.target,
                "pid": overrun.pid,
                "task_name": overrun.task_name,
                "room_bytes": overrun.room_bytes,
                "overrun_ratio": overrun.probability,
                "overrun_seconds": overrun.seconds,
            }
            bytes_ += len(json.dumps(line))
            if bytes_ > RUNNING_BYTES:
                break
            found.append(line)
        self.say({"running": found, "more": len(overruns) > len(found)})


class Index(handlers.BaseHandler):
    TEXT = """dwsr-probe predict: how much memory will a task need?

/forecast?task=NAME&shape=512,512,512&dtype=float32[&kind=alloc][&q=0.99][&limit=8GiB]
                    several shapes: several inputs; nbytes=N for one without a shape
POST /forecast      {"task": ..., "inputs": [{"dtype": ..., "shape": [...]}], "kind", "q", "limit",
                    "above"}, or a list of such
/models             what is known, by task name
/running            tasks that run: probability of exceeding the room that is left
/metrics            for Prometheus
/-/healthy
"""

    async def get(self):
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self.TEXT)


ROUTES = (
    ("/", Index),
    ("/forecast", Forecast),
    ("/models", Models),
    ("/running", Running),
    ("/metrics", handlers.MetricsHandler),
    ("/-/healthy", handlers.HealthyHandler),
)
