"""Predict the peak of a task from the shapes of its inputs, from the first observation on. See
docs/predict.md.

    model = Model()
    model.learn(record)  # finished, running, killed
    forecast = model.predict(inputs, "gaussian_filter")
    forecast.mean, forecast.upper(0.99), forecast.output, forecast.trust
"""

from dwsr_probe.predict.forecast import Forecast, Round
from dwsr_probe.predict.model import KINDS, Model

__all__ = ["KINDS", "Forecast", "Model", "Round"]
