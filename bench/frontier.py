"""Draws memory held over memory live against time as SVG, a panel for each trace."""

import html
import math

WIDTH, HEIGHT, LEFT, TOP, LOW, SPAN = 300, 240, 60, 35, 200, 200


def _label(x, y, text, bold=False):
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{weight}>{html.escape(text)}</text>'


def draw(traces, path, key, unit, least=None):
    """`traces`: by trace and name a dict with `ratio` and the time `key`. Memory is drawn to the right,
    the logarithm of time upwards, from `least` (else the least there is, or what is close to it).
    """
    every = [figures for each in traces.values() for figures in each.values()]
    most_ratio = max(max(figures["ratio"] for figures in every), 1.01)
    most = max(figures[key] for figures in every)
    if least is None:
        least = max(min(figures[key] for figures in every) / 1.5, most / 1e6)
    least = max(least, 1e-9)
    most = max(most, 1.1 * least)

    def x_of(figures):
        return SPAN * (figures["ratio"] - 1) / (most_ratio - 1)

    def y_of(figures):
        up = math.log(max(figures[key], least) / least) / math.log(most / least)
        return LOW - (LOW - TOP) * up

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(traces)}" '
             f'height="{HEIGHT + 20}" font-family="sans-serif" font-size="11">',
             '<rect width="100%" height="100%" fill="white"/>']
    for number, (trace, each) in enumerate(traces.items()):
        x0 = number * WIDTH + LEFT
        parts += [
            _label(x0, 18, trace, bold=True),
            f'<path d="M{x0} 30V{LOW}H{x0 + SPAN}" fill="none" stroke="black"/>',
            _label(x0, LOW + 15, "1.00"),
            _label(x0 + 175, LOW + 15, f"{most_ratio:.2f}"),
            _label(x0 + 40, LOW + 32, "held over live"),
            _label(x0 - 55, LOW, f"{least:.3g} {unit}"),
            _label(x0 - 55, TOP + 3, f"{most:.3g} {unit}"),
        ]
        for name, figures in each.items():
            x, y = x0 + x_of(figures), y_of(figures)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
            parts.append(_label(x + 5, y - 3, name))
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*parts, "</svg>", ""]))
