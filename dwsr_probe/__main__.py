"""`python -m dwsr_probe` is `dwsr-probe`."""

from dwsr_probe.cli import main

main()
