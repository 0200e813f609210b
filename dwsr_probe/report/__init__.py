"""Views over a run's records: summary (numbers), table (terminal). None of them inside the
probed process."""
