"""The predictor's HTTP side: /forecast, /models and /running, beside the handlers that every port
of ours has."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from dwsr_probe.export import handlers
from dwsr_probe.serve.question import (
    QUANTILE,
    answer_all,
    bytes_of,
    inputs_from_text,
    names_of,
    params_from_text,
    parse_question,
)

if TYPE_CHECKING:
    from dwsr_probe.predict.group import Group
    from dwsr_probe.serve.service import Predictor

BODY_BYTES_MOST = 1 << 20
# of one request; after PIECE of them other clients have their turn
QUESTIONS_MOST, PIECE = 1_000, 16
MODELS_DEFAULT, MODELS_MOST = 1_000, 10_000
RUNNING_DEFAULT, RUNNING_MOST, RUNNING_BYTES_MOST = 1_000, 10_000, 4 << 20  # names may be long


class _JsonHandler(handlers.BaseHandler):
    source: Predictor

    def send_json(self, found: Any) -> None:
        self.set_header("Content-Type", "application/json")
        self.finish(json.dumps(found) + "\n")

    def refuse(self, error: Exception) -> None:
        """HTTP status 400 with the error's text in the body, where it may be long."""
        self.set_status(400)
        self.send_json({"error": str(error)})


class ForecastHandler(_JsonHandler):
    """GET: one question in the query. POST: one as JSON, or a list of them."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST")

    async def get(self) -> None:
        given: dict[str, Any] = {
            name: self.get_query_argument(name, None)
            for name in ("task", "kind", "q", "limit", "above")
        }
        try:
            given["inputs"] = inputs_from_text(
                self.get_query_arguments("shape"),
                self.get_query_arguments("dtype"),
                self.get_query_arguments("nbytes"),
            )
            given["params"] = params_from_text(self.get_query_arguments("param"))
            self.send_json(self.answer_questions([given])[0])
        except ValueError as error:
            self.refuse(error)

    async def post(self) -> None:
        try:
            asked = json.loads(self.request.body)
            many = asked if isinstance(asked, list) else [asked]
            if len(many) > QUESTIONS_MOST:
                raise ValueError(f"at most {QUESTIONS_MOST} questions at once")
            found: list[dict[str, Any]] = []
            for first in range(0, len(many), PIECE):
                found += self.answer_questions(many[first : first + PIECE])
                await asyncio.sleep(0)
            self.send_json(found if isinstance(asked, list) else found[0])
        except (ValueError, RecursionError) as error:
            self.refuse(error)

    def answer_questions(self, asked: list[Any]) -> list[dict[str, Any]]:
        questions = [parse_question(given) for given in asked]
        with self.source.locked():
            return [answer_all(self.source.model, question) for question in questions]


class ModelsHandler(_JsonHandler):
    """What is known of each group of tasks, for the largest inputs seen of it; in the order of
    their texts, those behind `after`."""

    async def get(self) -> None:
        limit = self.int_argument("limit", MODELS_DEFAULT, 1, MODELS_MOST)
        after = self.get_query_argument("after", "")
        with self.source.locked():
            groups = [group for group in self.source.model.groups() if group.text > after]
        groups.sort(key=lambda group: group.text)
        found: list[dict[str, Any]] = []
        for first in range(0, min(limit, len(groups)), PIECE):
            with self.source.locked():
                for group in groups[first : min(first + PIECE, limit)]:
                    found += [self.describe(group, kind) for kind in self.source.model.kinds(group)]
            await asyncio.sleep(0)
        self.send_json({"models": found, "more": len(groups) > limit})

    def describe(self, group: Group, kind: str) -> dict[str, Any]:
        model, ledger, text = self.source.model, self.source.ledger, group.text
        largest, account = ledger.largest(text, model, kind), ledger.account(text, kind)
        forecast = model.predict(largest.inputs, group, kind=kind, params=largest.params)
        return {
            "task": text,
            **names_of(model, group),
            "task_names": model.task_names(group),
            "kind": kind,
            "n": forecast.n,
            "trust": forecast.trust,
            "notes": list(forecast.notes),
            "inputs": largest.inputs,
            "params": largest.params or {},
            **bytes_of(forecast, QUANTILE),
            "error": account and account.error,
            "scored": account.scored if account else 0,
            "exceeded": account.exceeded if account else 0,
            "reward": account and account.reward,
        }


class RunningHandler(_JsonHandler):
    """The running tasks of all targets: how probable it is that each one exceeds its room. The
    most probable first, and no more of them than RUNNING_BYTES_MOST."""

    async def get(self) -> None:
        limit = self.int_argument("limit", RUNNING_DEFAULT, 1, RUNNING_MOST)
        with self.source.locked():
            overruns = self.source.overruns.most_probable(limit + 1)
        found, bytes_ = [], 0
        for overrun in overruns[:limit]:
            line = {
                **dict(zip(overrun.task._fields, overrun.task, strict=True)),
                "target": overrun.target,
                "pid": overrun.pid,
                "task_name": overrun.task_name,
                "operation": overrun.operation,
                "chain": overrun.chain,
                "room_bytes": overrun.room_bytes,
                "overrun_ratio": overrun.probability,
                "overrun_seconds": overrun.seconds,
            }
            bytes_ += len(json.dumps(line))
            if bytes_ > RUNNING_BYTES_MOST:
                break
            found.append(line)
        self.send_json({"running": found, "more": len(overruns) > len(found)})


class PredictorIndexHandler(handlers.BaseHandler):
    TEXT = """dwsr-probe predict: how much memory will a task need?

/forecast?task=NAME&shape=512,512,512&dtype=float32[&param=sigma=3]
                    [&kind=alloc][&q=0.99][&limit=8GiB]
                    NAME: a task name, an operation, a function of a chain, or a group
                    several shapes: several inputs; nbytes=N for one without a shape
POST /forecast      {"task": ..., "inputs": [{"dtype": ..., "shape": [...]}], "params": {...},
                    "kind", "q", "limit", "above"}, or a list of such
/models             what is known, by operation or task name, and chain
/running            tasks that run: probability of exceeding the room that is left
/metrics            for Prometheus
/-/healthy
"""

    async def get(self) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(self.TEXT)


ROUTES = (
    ("/", PredictorIndexHandler),
    ("/forecast", ForecastHandler),
    ("/models", ModelsHandler),
    ("/running", RunningHandler),
    ("/metrics", handlers.MetricsHandler),
    ("/-/healthy", handlers.HealthyHandler),
)
