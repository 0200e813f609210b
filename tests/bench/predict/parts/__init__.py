"""The parts of the evaluation, one for each protocol. A part is run(data) → list of Section."""
