"""Options as data, written once and read twice.

click makes help and error messages of them. The common command line of `run` is read by `read`,
without click, whose import takes longer than everything else that the command does before the job
starts. Options that set the probe are made from the table in settings.py.
"""

from __future__ import annotations

from dwsr_probe.settings import ChoiceSetting, FlagSetting, NumberSetting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

    from dwsr_probe.settings import Setting


class Value:
    """What stands behind an option."""

    def read(self, word: str) -> Any:
        """The value of a word of the command line; ValueError if it has none."""
        return word

    def for_click(self, click: ModuleType) -> Any:
        return click.STRING


class Text(Value):
    """Any text."""


class Path(Value):
    """The path of a file or a directory."""

    def for_click(self, click: ModuleType) -> Any:
        return click.Path()


class Range(Value):
    """Numbers from least to most."""

    def __init__(self, of: Callable[[Any], Any], least: float, most: float) -> None:
        self.of, self.least, self.most = of, least, most

    def read(self, word: str) -> Any:
        value = self.of(word)
        if not self.least <= value <= self.most:
            raise ValueError(word)
        return value

    def for_click(self, click: ModuleType) -> Any:
        return (click.IntRange if self.of is int else click.FloatRange)(self.least, self.most)


class Choice(Value):
    """One of some words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def read(self, word: str) -> Any:
        if word not in self.words:
            raise ValueError(word)
        return word

    def for_click(self, click: ModuleType) -> Any:
        return click.Choice(self.words)


class Option:
    """names: as click has them, the parameter's name last where it is not the long option's.

    of: what the value is; None: no value, on or (--x/--no-x) off. The others: as click has them.
    """

    def __init__(
        self,
        *names: str,
        of: Value | None = None,
        default: Any = None,
        multiple: bool = False,
        metavar: str | None = None,
        help: str | None = None,
    ) -> None:
        *words, last = names
        if last.startswith("-"):
            words.append(last)
            last = last.partition("/")[0].lstrip("-").replace("-", "_")
        self.names, self.parameter, self.of, self.multiple = words, last, of, multiple
        self.default = () if multiple else False if of is None and default is None else default
        self.metavar, self.help, self._shown = metavar, help, default is not None

    def spellings(self) -> Iterator[tuple[str, bool | None]]:
        """(a word, what it stands for): True, False, or None for the value behind it."""
        for names in self.names:
            on, _, off = names.partition("/")
            yield on, True if self.of is None else None
            if off:
                yield off, False

    def for_click(self, click: ModuleType) -> Callable[..., Any]:
        kind: dict[str, Any]
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
        option: Callable[..., Any] = click.option(
            *self.names, self.parameter, help=self.help, show_default=self._shown, **kind
        )
        return option


def option_of(setting: Setting) -> Option:
    """The option of `run` that sets the probe. Its parameter has the setting's name."""
    assert setting.option
    default: Any = setting.default
    of: Value | None = None
    if isinstance(setting, NumberSetting):
        unit = setting.unit or 1
        least, most, default = (
            setting.of(value / unit) for value in (setting.least, setting.most, default)
        )
        of = Range(setting.of, least, most)
    elif isinstance(setting, FlagSetting):
        default = default or None  # click shows the default of --x/--no-x only
    else:
        of = Choice(setting.words) if isinstance(setting, ChoiceSetting) else Text()
    return Option(
        setting.option,
        setting.name,
        of=of,
        default=default,
        metavar=setting.metavar,
        help=setting.help,
    )


def click_options(options: Sequence[Option]) -> Callable[..., Any]:
    """A decorator for click's commands."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        import click

        for option in reversed(options):
            function = option.for_click(click)(function)
        return function

    return decorate


def read(
    options: Sequence[Option], words: Sequence[str]
) -> tuple[dict[str, Any], list[str]] | None:
    """({parameter: value}, the words behind the options). None: the words are left to click.

    These are requests for help, errors, and spellings that only click knows.
    """
    spellings = {
        word: (option, meaning) for option in options for word, meaning in option.spellings()
    }
    chosen: dict[str, Any] = {option.parameter: option.default for option in options}
    words = list(words)
    while words and words[0].startswith("-"):
        if words[0] == "--":
            words.pop(0)
            break
        word, given, value = words.pop(0).partition("=")
        option, meaning = spellings.get(word, (None, None))
        if option is None or (given and (meaning is not None or not word.startswith("--"))):
            return None
        result: Any = meaning
        if option.of is not None:
            value = value if given or not words else words.pop(0)
            try:
                result = option.of.read(value)
            except ValueError:
                return None
            if not value:
                return None
            if option.multiple:
                result = (*chosen[option.parameter], result)
        chosen[option.parameter] = result
    return (chosen, words) if words else None
