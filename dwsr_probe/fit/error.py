"""The error of fitting: one text for the user that says what failed, why, and what to do."""


class FitError(ValueError):
    """No block can be named. The text says what is needed."""
