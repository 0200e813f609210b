"""How good are the forecasts? `make bench-predict`: operators measured here by our own probe,
and UNICAMP's data, against what others do. __main__ prints the tables and writes the section of
BENCHMARKS.md."""
