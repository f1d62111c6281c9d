"""A mapped task as a heat grid: one square an index, coloured by state, and by progress while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from markupsafe import Markup, escape

from ..outlast_shapes import TaskShape
from .progress import Progress
from .rendering import plain

__all__ = ["SQUARES", "Part", "parts", "squares"]

#: Squares of one page.
SQUARES: Final = 2000


class Part(msgspec.Struct, frozen=True):
    """A stretch of indexes that has a page of its own: its number, its first and last index, and how many failed."""

    number: int
    first: int
    last: int
    failed: int


def parts(instances: Sequence[TaskShape]) -> list[Part]:
    """Return the stretches, none where one page has room for all."""
    if len(instances) <= SQUARES:
        return []
    pages = [instances[start : start + SQUARES] for start in range(0, len(instances), SQUARES)]
    return [
        Part(number, page[0].map_index, page[-1].map_index, sum(one.state == "failed" for one in page))
        for number, page in enumerate(pages)
    ]


def squares(instances: Sequence[TaskShape], progress: Mapping[int, Progress], stalled: set[int], base: str) -> Markup:
    """Return links to instances; `base` is the address of their task. A template would take three times as long."""
    base, made = str(escape(base)), []
    for number, one in enumerate(instances):
        index, known = one.map_index, progress.get(one.map_index)
        kinds = f"square s-{one.state}"
        if one.state == "running" and known is not None and known.percent is not None:
            kinds += f" p{known.percent // 10}"
        if index in stalled:
            kinds += " stalled"
        said = escape(_said(one, known, index in stalled))
        passed = ' tabindex="-1"' if number else ""
        made.append(f'<a class="{kinds}" href="{base}/{index}" title="{said}"{passed}></a>')
    return Markup("".join(made))


def _said(one: TaskShape, known: Progress | None, is_stalled: bool) -> str:
    text = str(one.map_index) if one.item is None else f"{one.map_index} ({plain(one.item)})"
    text += f": {one.state.replace('_', ' ')}"
    if one.attempt > 1:
        text += f", try {one.attempt}"
    if known is not None and known.percent is not None:
        text += f", {known.percent} %"
    return text + (", stalled" if is_stalled else "")
