"""Options as data, written once and read twice.

click makes help and error messages of them. The common command line of `run` is read without click,
whose import takes longer than all else that the command does before the job starts.
"""


class Range:
    """Numbers from least to most."""

    def __init__(self, kind, least, most):
        self.kind, self.least, self.most = kind, least, most

    def read(self, word):
        value = self.kind(word)
        if not self.least <= value <= self.most:
            raise ValueError(word)
        return value

    def for_click(self, click):
        return (click.IntRange if self.kind is int else click.FloatRange)(self.least, self.most)


class Choice:
    """One of some words."""

    def __init__(self, words):
        self.words = words

    def read(self, word):
        if word not in self.words:
            raise ValueError(word)
        return word

    def for_click(self, click):
        return click.Choice(self.words)


class Text:
    def read(self, word):
        return word

    def for_click(self, click):
        return click.STRING


class Path(Text):
    def for_click(self, click):
        return click.Path()


class Option:
    """names: as click has them, the parameter's name last where it is not the long option's.

    of: what the value is; None: no value, on or (--x/--no-x) off. The others: as click has them.
    """

    def __init__(self, *names, of=None, default=None, multiple=False, metavar=None, help=None):
        *names, last = names
        if last.startswith("-"):
            names.append(last)
            last = last.partition("/")[0].lstrip("-").replace("-", "_")
        self.names, self.parameter, self.of, self.multiple = names, last, of, multiple
        self.default = () if multiple else False if of is None and default is None else default
        self.metavar, self.help, self._shown = metavar, help, default is not None

    def spellings(self):
        """(a word, what it stands for): True, False, or None for the value behind it."""
        for names in self.names:
            on, _, off = names.partition("/")
            yield on, True if self.of is None else None
            if off:
                yield off, False

    def for_click(self, click):
        if self.of is None:
            kind = {"is_flag": True, "default": self.default}
        else:
            kind = {
                "type": self.of.for_click(click),
                "metavar": self.metavar,
                "multiple": self.multiple,
            }
            if self._shown:
                kind["default"] = self.default
        return click.option(
            *self.names, self.parameter, help=self.help, show_default=self._shown, **kind
        )


def click_options(options):
    """A decorator for click's commands."""

    def decorate(function):
        import click

        for option in reversed(options):
            function = option.for_click(click)(function)
        return function

    return decorate


def read(options, words):
    """({parameter: value}, the words behind the options). None where click must look.

    That is where help is asked for, where something is wrong, and for spellings that only click
    knows.
    """
    spellings = {
        word: (option, meaning) for option in options for word, meaning in option.spellings()
    }
    chosen = {option.parameter: option.default for option in options}
    words = list(words)
    while words and words[0].startswith("-"):
        if words[0] == "--":
            words.pop(0)
            break
        word, given, value = words.pop(0).partition("=")
        option, meaning = spellings.get(word, (None, None))
        if option is None or (given and (meaning is not None or not word.startswith("--"))):
            return None
        if meaning is None:
            value = value if given or not words else words.pop(0)
            try:
                meaning = option.of.read(value)
            except ValueError:
                return None
            if not value:
                return None
            if option.multiple:
                meaning = (*chosen[option.parameter], meaning)
        chosen[option.parameter] = meaning
    return (chosen, words) if words else None
