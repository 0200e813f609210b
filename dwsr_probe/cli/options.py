"""Options as data, written once and read twice.

click makes help and error messages from them. `read_options` reads the common command line of `run`
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


class ValueType:
    """The type of an option's value."""

    def parse(self, word: str) -> Any:
        """The value of a word of the command line; ValueError if it has none."""
        return word

    def click_type(self, click: ModuleType) -> Any:
        return click.STRING


class Text(ValueType):
    """Any text."""


class Path(ValueType):
    """The path of a file or a directory."""

    def click_type(self, click: ModuleType) -> Any:
        return click.Path()


class Range(ValueType):
    """Numbers from least to most."""

    def __init__(self, number_type: Callable[[Any], Any], least: float, most: float) -> None:
        self.number_type, self.least, self.most = number_type, least, most

    def parse(self, word: str) -> Any:
        value = self.number_type(word)
        if not self.least <= value <= self.most:
            raise ValueError(word)
        return value

    def click_type(self, click: ModuleType) -> Any:
        number_range = click.IntRange if self.number_type is int else click.FloatRange
        return number_range(self.least, self.most)


class Choice(ValueType):
    """One of the words."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def parse(self, word: str) -> Any:
        if word not in self.words:
            raise ValueError(word)
        return word

    def click_type(self, click: ModuleType) -> Any:
        return click.Choice(self.words)


class Option:
    """names: as click has them, the parameter's name last where it is not the long option's.

    value_type: None for a flag, which is on or (--x/--no-x) off. The others: as click has them.
    """

    def __init__(
        self,
        *names: str,
        value_type: ValueType | None = None,
        default: Any = None,
        multiple: bool = False,
        metavar: str | None = None,
        help: str | None = None,
    ) -> None:
        *words, last = names
        if last.startswith("-"):
            words.append(last)
            last = last.partition("/")[0].lstrip("-").replace("-", "_")
        self.names, self.parameter = words, last
        self.value_type, self.multiple = value_type, multiple
        is_flag = value_type is None
        self.default = () if multiple else False if is_flag and default is None else default
        self.metavar, self.help, self._shows_default = metavar, help, default is not None

    def spellings(self) -> Iterator[tuple[str, bool | None]]:
        """(word, meaning). The meaning is True or False for a flag, None if a value follows."""
        for names in self.names:
            on, _, off = names.partition("/")
            yield on, True if self.value_type is None else None
            if off:
                yield off, False

    def click_option(self, click: ModuleType) -> Callable[..., Any]:
        kind: dict[str, Any]
        if self.value_type is None:
            kind = {"is_flag": True, "default": self.default}
        else:
            kind = {
                "type": self.value_type.click_type(click),
                "metavar": self.metavar,
                "multiple": self.multiple,
            }
            if self._shows_default:
                kind["default"] = self.default
        option: Callable[..., Any] = click.option(
            *self.names, self.parameter, help=self.help, show_default=self._shows_default, **kind
        )
        return option


def option_of(setting: Setting) -> Option:
    """The option of `run` that sets the probe. Its parameter has the setting's name."""
    assert setting.option
    default: Any = setting.default
    value_type: ValueType | None = None
    if isinstance(setting, NumberSetting):
        unit = setting.unit or 1
        least, most, default = (
            setting.convert(value / unit) for value in (setting.least, setting.most, default)
        )
        value_type = Range(setting.convert, least, most)
    elif isinstance(setting, FlagSetting):
        default = default or None  # click shows the default of --x/--no-x only
    else:
        value_type = Choice(setting.words) if isinstance(setting, ChoiceSetting) else Text()
    return Option(
        setting.option,
        setting.name,
        value_type=value_type,
        default=default,
        metavar=setting.metavar,
        help=setting.help,
    )


def click_options(options: Sequence[Option]) -> Callable[..., Any]:
    """A decorator for click's commands."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        import click

        for option in reversed(options):
            function = option.click_option(click)(function)
        return function

    return decorate


def read_options(
    options: Sequence[Option], words: Sequence[str]
) -> tuple[dict[str, Any], list[str]] | None:
    """({parameter: value}, the words after the options). None: click must read the words, because
    they ask for help, have an error, or have a spelling that only click knows."""
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
        if option.value_type is not None:
            value = value if given or not words else words.pop(0)
            try:
                result = option.value_type.parse(value)
            except ValueError:
                return None
            if not value:
                return None
            if option.multiple:
                result = (*chosen[option.parameter], result)
        chosen[option.parameter] = result
    return (chosen, words) if words else None
