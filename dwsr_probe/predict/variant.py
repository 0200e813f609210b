"""What tasks of one group may differ in, so that they need different memory: the number of axes of
their largest input, and the kind of what they return. variants.py looks for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from dwsr_probe.predict.sizes import parse_row, short_text

_KNOWN_MOST = 64  # that are counted apart
_COMMON_MOST = 7  # that are told apart


class Variant(NamedTuple):
    """axes: of the largest input; None: its shape is not known. output_kind: "" where unknown."""

    axes: int | None
    output_kind: str


UNKNOWN_VARIANT = Variant(None, "")
OTHERS = Variant(None, "others")  # those that are not common


def output_kind_of(output: Any) -> str:
    """Of a record's output: its type, number of axes, and whether it is a view; "": unknown."""
    if not isinstance(output, dict):
        return ""
    shape = output.get("shape")
    axes = f" {len(shape)}" if isinstance(shape, (list, tuple)) else ""
    view = " view" if output.get("view") else ""
    return f"{short_text(output.get('type')) or ''}{axes}{view}"


class VariantCounts(dict[Variant, float]):
    """How many tasks of each variant were learned."""

    def add(self, variant: Variant, count: float = 1.0) -> None:
        if variant not in self and len(self) >= _KNOWN_MOST:
            variant = OTHERS
        self[variant] = self.get(variant, 0.0) + count

    def merge(self, other: VariantCounts) -> None:
        for variant, count in other.items():
            self.add(variant, count)

    def discount(self, factor: float) -> None:
        for variant in self:
            self[variant] *= factor

    def common(self) -> set[Variant]:
        """The most frequent ones. All others are one variant."""
        if len(self) <= _COMMON_MOST + 1:
            return {*self}
        ranked = sorted(self, key=lambda one: (-self[one], one.axes or 0, one.output_kind))
        return {*ranked[:_COMMON_MOST]}

    def tasks(self, variant: Variant, common: set[Variant]) -> float:
        """Of a common one, or of all others."""
        if variant != OTHERS:
            return self.get(variant, 0.0)
        return sum(count for one, count in self.items() if one == OTHERS or one not in common)

    def to_list(self) -> list[list[Any]]:
        return [[*variant, count] for variant, count in self.items()]

    @classmethod
    def parse(cls, saved: Any) -> VariantCounts:
        """From a file."""
        self = cls()
        for axes, output_kind, count in saved[: _KNOWN_MOST + 1]:
            axes = None if axes is None else int(axes)
            self.add(
                Variant(axes, short_text(output_kind) or ""),
                parse_row([count], 1, "variants")[0],
            )
        return self
