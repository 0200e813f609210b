"""What readers outside get: metrics for people and Prometheus, and the stream of records for
programs. One table says which metrics: metrics.py."""
