"""Power laws of path counts in words and as a small table: the run, its untrained twin, independent steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers

WHO = {"observed": "this run", "untrained": "untrained twin", "independent": "independent steps"}


def law_words(law: Mapping[str, Any]) -> str:
    """The law of the run's path counts, whether they follow it, and whether a lognormal does better."""
    if law.get("alpha") is None:
        return f"No power law is fitted: {law.get('reason') or 'it was not asked for'}."
    alpha = f"α = {numbers.number(law['alpha'])} ± {numbers.number(law['alpha_error'], 2)}"
    words = (
        f"Power law by maximum likelihood: {alpha}, for the {numbers.count(law['num_tail'])} of "
        f"{numbers.plural(law['num_paths'], 'path')} taken by at least {numbers.plural(law['x_min'], 'token')}."
    )
    if (p := law.get("p_value")) is not None:
        told = "the counts are not a pure power law" if p <= 0.1 else "a power law is plausible"
        words += f" Goodness of fit p = {numbers.number(p, 2)}: {told}."
    return words + _beside_words(law.get("lognormal"))


def _beside_words(beside: Mapping[str, Any] | None) -> str:
    if not beside:
        return ""
    p = "p < 0.001" if beside["p_value"] < 0.001 else f"p = {numbers.number(beside['p_value'], 2)}"
    ratio = f"likelihood ratio {numbers.number(beside['ratio']).replace('-', '−')}, {p}"
    if beside["p_value"] > 0.1:
        return f" A lognormal fits about as well ({ratio})."
    return f" A lognormal fits {'worse' if beside['ratio'] > 0 else 'better'} ({ratio})."


def verdict_words(law: Mapping[str, Any]) -> str:
    """The honest sentence: “A pure power law is refused (p = 0.0099); a lognormal fits better.”"""
    if law.get("alpha") is None:
        return f"No power law is fitted: {law.get('reason') or 'it was not asked for'}."
    p, beside = law.get("p_value"), law.get("lognormal")
    if p is None:
        told = "A power law is fitted; whether it holds is still being worked out"
    else:
        told = f"A pure power law is {'refused' if p <= 0.1 else 'plausible'} (p = {numbers.number(p, 2)})"
    if not beside:
        return told + "."
    if beside["p_value"] > 0.1:
        return f"{told}; a lognormal fits about as well."
    if p is not None and p > 0.1 and beside["ratio"] < 0:
        return f"{told}, but a lognormal fits better."
    return f"{told}; a lognormal fits {'worse' if beside['ratio'] > 0 else 'better'}."


def law_rows(fit: Mapping[str, Any], laws: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row each for the run, its twin and the null: slope, exponent, where the law starts, how well it does."""
    found = []
    for key, who in WHO.items():
        curve, law = fit.get(key), laws.get(key)
        if not curve:
            continue
        law = law or {}
        beside, p = law.get("lognormal"), law.get("p_value")
        fitted = law.get("alpha") is not None
        error = numbers.number(law["alpha_error"], 2) if fitted else ""
        found.append(
            {
                "whose": who,
                "paths": numbers.count(curve["num_paths"]),
                "slope": _signed(curve.get("slope")),
                "α": f"{numbers.number(law['alpha'])} ± {error}" if fitted else "–",
                "p": "–" if p is None else numbers.number(p, 2),
                "lognormal": _signed(beside["ratio"]) if beside else "–",
                "x_min": numbers.count(law.get("x_min")),
                "tail": numbers.count(law.get("num_tail")),
                "verdict": verdict_words(law),
            }
        )
    return found


def _signed(value: float | None) -> str:
    return numbers.number(value).replace("-", "−")
