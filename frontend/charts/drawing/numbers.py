"""Number formats (three significant digits, thousands separators), quantiles, and Pearson's correlation."""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Sequence

from tokenpaths.frontend.charts.drawing.slots import named


def count(value: float | None) -> str:
    """An exact count: 12,345."""
    return "–" if value is None or not math.isfinite(value) else f"{round(value):,}"


def number(value: float | None, digits: int = 3) -> str:
    """Three significant digits without an exponent, and a minus sign that is as wide as digits are.

    >>> number(0.0123), number(1.5), number(12345), number(-0.44)
    ('0.0123', '1.50', '12,300', '−0.440')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, decimals)
    text = f"{value:.{digits - 1}e}" if decimals > 8 else f"{rounded:,.{max(0, decimals)}f}"
    return text.replace("-", "−")


def apart(values: Sequence[float], most: int = 6) -> list[str]:
    """Format numbers shown together with as few digits (at least 3) as distinguish different values."""
    texts: list[str] = []
    for digits in range(3, most + 1):
        texts = [number(value, digits) for value in values]
        if len(set(texts)) == len({number(value, most) for value in values}):
            break
    return texts


def percent(value: float | None, digits: int = 3) -> str:
    """A share in [0, 1] as a percentage: 12.3 %; 0 and 100 without decimals, and 100 for all alone.

    >>> percent(0.123), percent(0.9996), percent(0.996, 2), percent(1, 2), percent(-0.0496)
    ('12.3 %', '> 99.9 %', '> 99 %', '100 %', '−4.96 %')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value in (0, 1):
        return f"{value:.0%}".replace("%", " %")
    if value < 1 and round(100 * value, digits - 2) >= 100:
        return f"> {100 - 10 ** (2 - digits):g} %"
    return number(100 * value, digits) + " %"


def short(value: float | None) -> str:
    """A large count in compact form: 950, 12.3 k, 4.56 M."""
    if value is None or not math.isfinite(value):
        return "–"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{number(value / (1e3 if letter == 'k' else size))} {letter}"
    return count(value)


def plural(value: float | None, singular: str, plural_form: str | None = None) -> str:
    """“1 token”, “2,000 tokens”."""
    return f"{count(value)} {singular if value == 1 else plural_form or singular + 's'}"


def listed(names: Sequence[str]) -> str:
    """“a”, “a and b”, “a, b and c”."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def capital(text: str) -> str:
    """The text with its first letter large and the rest as it is."""
    return text[:1].upper() + text[1:]


def most_and_least(name: str, sure: Sequence[tuple[str, float, float]], every: Sequence[float]) -> str:
    """Who surely has more and less of something than all together; empty where nobody has.

    Args:
        name: of what.
        sure: who, mean and difference from the mean of all, the largest first.
        every: differences of everybody, also of those that are not sure: one of them may be the least of all.

    >>> most_and_least("compute", [("dog", 0.8, 0.1), ("cat", 0.6, -0.1)], [0.1, 0.0, -0.1])
    'Most compute: dog (0.800), least: cat (0.600).'
    >>> most_and_least("compute", [("cat", 0.6, -0.1)], [0.1, -0.1, -0.2])
    'Surely less compute: cat (0.600).'
    """
    told = []
    if sure and sure[0][2] > 0:
        told.append(("most" if sure[0][2] >= max(every) else "surely more", sure[0]))
    if sure and sure[-1][2] < 0:
        told.append(("least" if sure[-1][2] <= min(every) else "surely less", sure[-1]))
    words = (
        f"{end}{'' if place else f' {name}'}: {who[0]} ({number(who[1])})" for place, (end, who) in enumerate(told)
    )
    return f"{capital(', '.join(words))}." if told else ""


def p_number(p: float, draws: int | None) -> str:
    """A p-value of ``draws`` draws, never below its resolution 1 / (1 + draws).

    >>> p_number(1 / 101, 100), p_number(0.5, 100)
    ('≤ 0.01', '0.50')
    """
    least = 1 / (1 + draws) if draws else 0.0
    return f"≤ {least:.1g}" if p <= least else number(p, 2)


def p_words(p: float | None, draws: int | None, what: str = "shuffles") -> str:
    """A p-value of ``draws`` draws, which cannot be below 1 / (1 + draws).

    >>> p_words(1 / 201, 200)
    'p ≤ 0.005, none of 200 shuffles'
    >>> p_words(0.5, 100, "simulations"), p_words(None, 200)
    ('p = 0.50, 100 simulations', 'p not known')
    """
    if p is None:
        return "p not known"
    text = p_number(p, draws)
    if not draws:
        return f"p = {text}"
    return f"p {text}, none of {count(draws)} {what}" if text[0] == "≤" else f"p = {text}, {count(draws)} {what}"


def ribbon_words(
    ribbon: Sequence[Sequence[int | str]], most: int = 64, *, offered: Collection[int] | None = None
) -> str:
    """A ribbon on one line: 3 → 7 → 1 for top-1, 3+5 → 7+2 for more slots; truncated after ``most`` visits.

    ``offered``: ids of the run's modules; a decision that its source lacks is said in place of its stand-ins
    (``drawing.slots``).

    >>> ribbon_words([[3], [], [1]]), ribbon_words([[3, 7], [16, 17]], offered=range(16))
    ('3 → dropped → 1', '3+7 → not recorded')
    """
    ribbon = ribbon if offered is None else named(ribbon, offered)
    steps = len(ribbon)
    if steps * max(map(len, ribbon), default=1) > most:
        steps = max(1, most // 2 // max(map(len, ribbon)))
    shown = " → ".join("+".join(str(module) for module in modules) or "dropped" for modules in ribbon[:steps])
    return shown + (f" → … ({plural(len(ribbon) - steps, 'more step')})" if steps < len(ribbon) else "")


def correlation(xs: Sequence[float], ys: Sequence[float]) -> dict[str, float] | None:
    """Pearson's r with a 95 % interval; None if undefined (fewer than four pairs, or a constant variable).

    As the engine has it for whole runs: Fisher's z with his error or that of the jackknife, whichever is larger, and
    Student's quantile, here by the first terms of its series (0.01 off from six pairs on).
    """
    num = len(xs)
    if num < 4 or num != len(ys):
        return None
    mean_x, mean_y = math.fsum(xs) / num, math.fsum(ys) / num
    off = [(x - mean_x, y - mean_y) for x, y in zip(xs, ys, strict=True)]
    xx, yy, xy = (math.fsum(of(a, b) for a, b in off) for of in (lambda a, _: a * a, lambda _, b: b * b, operator.mul))
    if xx <= 1e-18 * num or yy <= 1e-18 * num:
        return None
    r = max(-1.0, min(1.0, xy / math.sqrt(xx * yy)))
    left, squares = num / (num - 1), 0.0
    own = [(xx - left * a * a, yy - left * b * b, xy - left * a * b) for a, b in off]
    if any(own_x < 1e-12 * xx or own_y < 1e-12 * yy for own_x, own_y, _ in own):  # all that r rests on is this pair
        return {"r": r, "low": -1.0, "high": 1.0, "num": num}
    if abs(r) >= 1 - 1e-12:
        return {"r": r, "low": r, "high": r, "num": num}
    for own_x, own_y, own_xy in own:
        without = own_xy / math.sqrt(own_x * own_y)
        squares += (math.atanh(max(-1 + 1e-12, min(1 - 1e-12, without))) - math.atanh(r)) ** 2
    free, z = num - 2, 1.959964
    student = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
    student += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * free**3)
    half = student * max(1 / math.sqrt(num - 3), math.sqrt((num - 1) / num * squares))
    return {"r": r, "low": math.tanh(math.atanh(r) - half), "high": math.tanh(math.atanh(r) + half), "num": num}


def quantile(values: Sequence[float], share: float) -> float:
    """Quantile of sorted ``values`` with linear interpolation; 0 for an empty sequence."""
    if not values:
        return 0.0
    place = share * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
