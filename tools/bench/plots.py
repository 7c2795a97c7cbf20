"""Plots as inline SVG: dots with intervals, lines, stacked bars. No script, no outside file.

In: named values. Out: an `<svg>` element. Drawn 420 units wide, so that its text is still readable
on a phone, where a unit is a little less than a pixel; colours come from the page's style sheet.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from .axes import Axis, format_tick, make_linear, make_logarithmic

WIDTH = 420
COLOURS = 8
_LEFT, _RIGHT = 8, 14
_LINE = 17
_PLOT_HEIGHT = 220


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A value on a line of its own, with what it lies between; `colour` counts from 0."""

    label: str
    value: float
    low: float
    high: float
    text: str
    colour: int = 0


def draw_dots(
    groups: Mapping[str, Sequence[Dot]], *, title: str, unit: str, mark: float | None = None
) -> str:
    """Return dots with intervals on a logarithmic axis.

    Args:
        groups: dots by heading; an empty heading is not shown.
        title: read out in place of the picture.
        unit: below the axis.
        mark: a value at which a line is drawn, such as 1 for a ratio.
    """
    dots = [dot for group in groups.values() for dot in group]
    values = [value for dot in dots for value in (dot.low, dot.high)]
    axis = make_logarithmic(
        values + ([mark] if mark else []), start=_LEFT + 4, end=WIDTH - _RIGHT - 4
    )
    y, body = 6.0, []
    for heading, group in groups.items():
        if heading:
            y += _LINE
            body.append(_text(_LEFT, y, heading, kind="heading"))
        for dot in group:
            y += _LINE
            body.append(_text(_LEFT, y, dot.label))
            body.append(_text(WIDTH - _RIGHT, y, dot.text, anchor="end"))
            y += 12
            body += _draw_dot(axis, dot, y)
            y += 4
    bottom = y + 8
    lines = _draw_grid(axis, 8, bottom, mark=mark)
    return _wrap([*lines, *body], bottom + 34, title, _unit(bottom, unit))


def draw_lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    x_unit: str,
    y_unit: str,
    colours: Mapping[str, int] | None = None,
    is_joined: bool = True,
) -> str:
    """Return lines through points, or the points alone, with their names below.

    Args:
        series: points by name.
        title: read out in place of the picture.
        x_unit: below the axis, which is logarithmic.
        y_unit: above the axis, which begins at zero.
        colours: of the names; by default in their order.
        is_joined: whether lines join the points.
    """
    colours = colours or {name: i for i, name in enumerate(series)}
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    x_axis = make_logarithmic(xs, start=44, end=WIDTH - _RIGHT)
    top, bottom = 22.0, 22.0 + _PLOT_HEIGHT
    y_axis = make_linear(ys, start=bottom, end=top)
    body = [_text(_LEFT, 12, y_unit, kind="unit")]
    for tick in y_axis.ticks:
        y = y_axis.place(tick)
        body.append(f'<line class="grid" x1="44" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(_text(38, y + 4, format_tick(tick), anchor="end", kind="tick"))
    for value in sorted(set(xs)) if len(set(xs)) <= 10 else x_axis.ticks:
        x = x_axis.place(value)
        body.append(_text(x, bottom + 16, format_tick(value), anchor="middle", kind="tick"))
    for name, points in series.items():
        body += _draw_series(points, x_axis, y_axis, colours[name], is_joined=is_joined)
    legend, end = _draw_legend({name: colours[name] for name in series}, bottom + 48)
    return _wrap(body + legend, end, title, _unit(bottom, x_unit))


def draw_bars(
    bars: Mapping[str, Mapping[str, float]], *, title: str, unit: str, texts: Mapping[str, str]
) -> str:
    """Return one stacked bar a name, parts by their names, with its text beside the name."""
    parts = list(dict.fromkeys(part for bar in bars.values() for part in bar))
    totals = [sum(bar.values()) for bar in bars.values()]
    axis = make_linear(totals, start=_LEFT, end=WIDTH - _RIGHT)
    y, body = 6.0, []
    for name, bar in bars.items():
        y += _LINE
        body.append(_text(_LEFT, y, name))
        body.append(_text(WIDTH - _RIGHT, y, texts.get(name, ""), anchor="end"))
        y += 5
        reached = 0.0
        for part, size in bar.items():
            x, end = axis.place(reached), axis.place(reached + size)
            reached += size
            colour = parts.index(part) % COLOURS
            body.append(
                f'<rect class="fill{colour}" x="{x:.1f}" y="{y:.1f}" width="{end - x:.1f}" '
                f'height="11"><title>{escape(f"{name}: {part}")}</title></rect>'
            )
        y += 15
    bottom = y + 4
    lines = _draw_grid(axis, 8, bottom)
    names = {part: i for i, part in enumerate(parts)}
    legend, end = _draw_legend(names, bottom + 48) if len(parts) > 1 else ([], bottom + 34)
    return _wrap([*lines, *body, *legend], end, title, _unit(bottom, unit))


def _draw_dot(axis: Axis, dot: Dot, y: float) -> list[str]:
    low, value, high = (axis.place(x) for x in (dot.low, dot.value, dot.high))
    line = _name_line(dot.colour)
    return [
        f'<line class="{line}" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>',
        _circle(value, y, 4.5, dot.colour),
    ]


def _draw_series(
    points: Sequence[tuple[float, float]],
    x_axis: Axis,
    y_axis: Axis,
    colour: int,
    *,
    is_joined: bool,
) -> list[str]:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in sorted(points)]
    drawn = [_circle(x, y, 3.5, colour) for x, y in places]
    if is_joined:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.insert(0, f'<polyline class="{_name_line(colour)}" points="{path}"/>')
    return drawn


def _draw_grid(axis: Axis, top: float, bottom: float, *, mark: float | None = None) -> list[str]:
    lines = []
    for tick in axis.ticks:
        x = axis.place(tick)
        lines.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom:.1f}"/>')
        lines.append(_text(x, bottom + 14, format_tick(tick), anchor="middle", kind="tick"))
    if mark is not None:
        x = axis.place(mark)
        lines.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom:.1f}"/>')
    return lines


def _draw_legend(colours: Mapping[str, int], y: float) -> tuple[list[str], float]:
    drawn = []
    for name, colour in colours.items():
        drawn.append(_circle(_LEFT + 6, y - 4, 4.5, colour))
        drawn.append(_text(_LEFT + 18, y, name))
        y += _LINE
    return drawn, y


def _circle(x: float, y: float, radius: float, colour: int) -> str:
    """Return a dot; it is hollow where the colours begin anew."""
    kind = "fill" if colour < COLOURS else "hollow line"
    return f'<circle class="{kind}{colour % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>'


def _name_line(colour: int) -> str:
    """Return the class of a line; it is dashed where the colours begin anew."""
    return f"line{colour % COLOURS}{' dashed' if colour >= COLOURS else ''}"


def _unit(bottom: float, unit: str) -> str:
    return _text(WIDTH - _RIGHT, bottom + 29, unit, anchor="end", kind="unit")


def _text(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "label") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _wrap(body: Iterable[str], height: float, title: str, *more: str) -> str:
    inside = "\n".join([*body, *more])
    name = escape(title, quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{name}">\n{inside}\n</svg>'
    )
