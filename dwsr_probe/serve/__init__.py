"""The predictor as a service: learns from the streams of many workers, answers over HTTP.

The model itself is in dwsr_probe/predict.
"""
