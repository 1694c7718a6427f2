"""Draw the pictures of docs/concepts.md: ``python packaging/drawings.py`` writes docs/drawings/*.svg.

Columns are steps, circles are modules, lines are tokens on their way, as on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "drawings"
WIDTH, HEIGHT, TOP, ROW = 640, 230, 48, 40
INK, FAINT, ACCENT, SECOND = "#3b4a66", "#c3cbd9", "#c2410c", "#0f766e"
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#5b6577}.s{font-size:12px}.b{font-weight:600;fill:#3b4a66}"
    "@media (prefers-color-scheme:dark){text{fill:#a9b3c4}.b{fill:#dbe2ee}}</style>"
)


def x_of(step: float, steps: int) -> float:
    """Middle of a column."""
    return 125 + step * (WIDTH - 190) / max(1, steps - 1)


def y_of(module: float) -> float:
    """Middle of a row."""
    return TOP + module * ROW


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" class="{kind}">{words}</text>'


def circle(x: float, y: float, radius: float = 9, colour: str = INK) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{colour}"/>'


def curve(a: tuple[float, float], b: tuple[float, float], colour: str = FAINT, width: float = 3, dash: str = "") -> str:
    middle = (a[0] + b[0]) / 2
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="M{a[0]:.1f} {a[1]:.1f} C{middle:.1f} {a[1]:.1f} {middle:.1f} {b[1]:.1f} {b[0]:.1f} {b[1]:.1f}" '
        f'fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
    )


def grid(steps: int, modules: int) -> list[str]:
    """Rows with their numbers, columns with theirs."""
    parts = [text(x_of(s, steps), 20, f"step {s}", "s") for s in range(steps)]
    for m in range(modules):
        parts.append(text(28, y_of(m) + 4, f"module {m}", "s", "start"))
        parts += [circle(x_of(s, steps), y_of(m), 6, FAINT) for s in range(steps)]
    return parts


def way(modules: Sequence[float], steps: int, colour: str, width: float = 4, dash: str = "") -> list[str]:
    """The line of one token over the modules that it visits."""
    points = [(x_of(s, steps), y_of(m)) for s, m in enumerate(modules)]
    lines = [curve(a, b, colour, width, dash) for a, b in zip(points, points[1:], strict=False)]
    return lines + [circle(x, y, 9, colour) for x, y in points]


def bars(values: Sequence[float], x: float, y: float, colour: str) -> list[str]:
    """Bars of shares, 70 pixels for one half."""
    parts = []
    for i, value in enumerate(values):
        parts.append(
            f'<rect x="{x + 34 * i}" y="{y - 140 * value:.1f}" width="22" height="{140 * value:.1f}" fill="{colour}"/>'
        )
        parts.append(text(x + 34 * i + 11, y + 16, str(i), "s"))
    return parts


def routing() -> list[str]:
    scores = (0.12, 0.46, 0.30, 0.12)
    parts = [circle(60, 110, 12, ACCENT), text(60, 145, "a token", "s"), curve((78, 110), (170, 110), INK, 2)]
    parts += [f'<rect x="170" y="85" width="90" height="50" rx="8" fill="none" stroke="{INK}" stroke-width="2"/>']
    parts += [text(215, 115, "router", "b"), *bars(scores, 300, 150, FAINT)]
    parts += bars((0, scores[1]), 300, 150, ACCENT)[2:3]
    parts += [
        text(368, 195, "probs of four modules"),
        curve((450, 100), (530, 100), ACCENT, 4),
        circle(550, 100, 14, ACCENT),
    ]
    return [*parts, text(550, 140, "module 1", "b"), text(550, 160, "weight 0.46", "s")]


def ribbon() -> list[str]:
    return [
        *grid(4, 4),
        *way((0, 2, 1, 3), 4, ACCENT),
        *way((1, 3, 2, 0), 4, SECOND, 3, "6 5"),
        text(WIDTH / 2, 215, "top-2: slot 0 drawn through, slot 1 dashed; the ribbon is {0,1} {2,3} {1,2} {3,0}"),
    ]


def path() -> list[str]:
    parts = grid(4, 4)
    for offset in (-4, 0, 4):
        points = [(x_of(s, 4), y_of(m) + offset) for s, m in enumerate((0, 2, 1, 3))]
        parts += [curve(a, b, ACCENT, 3) for a, b in zip(points, points[1:], strict=False)]
    parts += [circle(x_of(s, 4), y_of(m), 11, ACCENT) for s, m in enumerate((0, 2, 1, 3))]
    parts += way((2, 0, 3, 1), 4, SECOND, 3)
    return [*parts, text(WIDTH / 2, 215, "three tokens on path 0 › 2 › 1 › 3 (rank 1), one on 2 › 0 › 3 › 1 (rank 2)")]


def flow() -> list[str]:
    parts = [text(x_of(s, 3), 20, f"step {s}", "s") for s in range(3)]
    links = (((0, 1), 6, 0), ((0, 3), 2, 0), ((2, 1), 3, 0), ((1, 0), 5, 1), ((1, 2), 4, 1), ((3, 2), 2, 1))
    for (a, b), count, step in links:
        parts.append(curve((x_of(step, 3), y_of(a)), (x_of(step + 1, 3), y_of(b)), FAINT, 2.2 * count))
        parts.append(
            text((2 * x_of(step, 3) + x_of(step + 1, 3)) / 3, (3 * y_of(a) + y_of(b)) / 4 - 6, str(count), "s")
        )
    for step, loads in enumerate(({0: 8, 2: 3}, {1: 9, 3: 2}, {0: 5, 2: 6})):
        parts += [circle(x_of(step, 3), y_of(m), 5 * load**0.5) for m, load in loads.items()]
    return [
        *parts,
        text(
            WIDTH / 2, 215, "eleven tokens; circle area: tokens that a module received; width: tokens that go that way"
        ),
    ]


def compute() -> list[str]:
    parts = grid(4, 4)
    parts += way((0, 2, 3, 1), 4, ACCENT)
    parts += [
        circle(x_of(2, 4), y_of(3), 10, "white"),
        f'<circle cx="{x_of(2, 4)}" cy="{y_of(3)}" r="9" fill="none" stroke="{ACCENT}" stroke-width="2"/>',
    ]
    return [
        *parts,
        text(WIDTH / 2, 215, "module 3 is the identity: three of four visits compute something, compute = 0.75"),
    ]


def reuse() -> list[str]:
    return [
        *grid(4, 4),
        *way((1, 1, 3, 1), 4, ACCENT),
        text(WIDTH / 2, 215, "four visits, two different modules: reuse = 1 − 2/4 = 0.5"),
    ]


def effective_top_k() -> list[str]:
    parts = [*bars((0.25, 0.25, 0.25, 0.25), 80, 150, SECOND), *bars((0.85, 0.05, 0.05, 0.05), 380, 150, ACCENT)]
    return [
        *parts,
        text(148, 195, "all modules share the tokens:"),
        text(148, 213, "effective top-k = √4 = 2", "b"),
        text(448, 195, "one takes nearly all:"),
        text(448, 213, "effective top-k near 1", "b"),
    ]


def resolution() -> list[str]:
    parts = [*grid(5, 4), *way((0, 2, 1, 3, 0), 5, FAINT, 3), *way((3, 2, 1, 0, 2), 5, FAINT, 3)]
    for s in (1, 2):
        parts.append(circle(x_of(s, 5), y_of((2, 1)[s - 1]), 9, ACCENT))
    parts.append(curve((x_of(1, 5), y_of(2)), (x_of(2, 5), y_of(1)), ACCENT, 5))
    box = f'<rect x="{x_of(0.62, 5):.0f}" y="30" width="{x_of(2.38, 5) - x_of(0.62, 5):.0f}" height="158" rx="8"'
    parts.append(f'{box} fill="none" stroke="{INK}" stroke-dasharray="5 4"/>')
    return [*parts, text(WIDTH / 2, 215, "two ribbons that differ share 2 › 1 in the window of steps 1 and 2")]


DRAWINGS = (routing, ribbon, path, flow, compute, reuse, effective_top_k, resolution)


def main() -> None:
    """Write all of them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for draw in DRAWINGS:
        body = "\n".join([STYLE, *draw()])
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        (FOLDER / f"{draw.__name__}.svg").write_text(f"{head}\n{body}\n</svg>\n", encoding="utf-8")


if __name__ == "__main__":
    main()
