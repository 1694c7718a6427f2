"""The figures of *Towards Distributed Neural Architectures* (the DNA paper) from any run, and those of other families.

For ``tokenpaths figures``, the HTML report and notebooks.

>>> from tokenpaths.frontend.figures import KINDS
>>> [kind.name for kind in KINDS][:3]
['fig1cd', 'fig1e', 'fig1f']
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokenpaths.frontend.figures import compute, dreams, families, flows, paths
from tokenpaths.frontend.figures.figure import Dreams, Figure, Kind, NotHere, Source, Wishes

_TESTS = "tests/frontend/test_figures.py"

KINDS = (
    Kind(
        "fig1cd",
        ("1c", "1d"),
        "rank and frequency of paths with fit, untrained twin and independent steps",
        paths.rank_frequency,
        "view=paths",
        "/runs/{run}/paths/fit, /runs/{run}/paths/law",
        f"{_TESTS}::test_rank_frequency_is_the_answer_of_the_run",
    ),
    Kind(
        "fig1e",
        ("1e",),
        "images with patches tinted by the CDF of their path",
        paths.tinted,
        "view=samples",
        "/runs/{run}/samples/{sample}",
        f"{_TESTS}::test_patches_have_the_colour_of_their_path",
    ),
    Kind(
        "fig1f",
        ("1f", "9 right"),
        "tokens that follow the path of a rank",
        paths.tokens_of_ranks,
        "view=paths&paths=1,2,8",
        "/runs/{run}/paths/{rank}/examples",
        f"{_TESTS}::test_examples_are_on_the_path_that_is_said",
    ),
    Kind(
        "fig2",
        ("2", "8 bottom", "10"),
        "flow of tokens: circles, links, effective top-k",
        flows.flow,
        "view=routes",
        "/runs/{run}/flow, /runs/{run}/usage",
        f"{_TESTS}::test_flow_and_top_k_are_the_answers_of_the_run",
    ),
    Kind(
        "fig3",
        ("3", "17"),
        "sixty random patches of a path (17: of a run of the untrained twin)",
        paths.patches_of_ranks,
        "view=paths&paths=1,2,8",
        "/runs/{run}/paths/{rank}/examples",
        f"{_TESTS}::test_examples_are_on_the_path_that_is_said",
    ),
    Kind(
        "fig4",
        ("4", "14"),
        "dreams of the decisions up to step S, or of step S alone",
        dreams.steps,
        "view=dream",
        "/jobs?kind=dream, /jobs/{job}/artifacts/{name}",
        f"{_TESTS}::test_finished_dreams_become_figures",
    ),
    Kind(
        "fig5",
        ("5", "15"),
        "dreams of a group of patches, with and without its pixels",
        dreams.groups,
        "view=dream",
        "/jobs?kind=dream, /jobs/{job}/artifacts/{name}",
        f"{_TESTS}::test_finished_dreams_become_figures",
    ),
    Kind(
        "fig6",
        ("6", "11"),
        "compute per sample; samples of the top 1 %, 49–51 %, bottom 1 %",
        compute.compute_per_sample,
        "view=work",
        "/runs/{run}/distributions/compute, /runs/{run}/samples",
        f"{_TESTS}::test_distributions_and_bands_are_the_answers_of_the_run",
    ),
    Kind(
        "fig7",
        ("7", "12"),
        "reuse per sample, its examples, skip against reuse, reuse in two runs (--beside)",
        compute.reuse,
        "view=work&measure=reuse",
        "/runs/{run}/distributions/reuse, /runs/{run}/skip_and_reuse, /compare?measure=reuse",
        f"{_TESTS}::test_reuse_of_two_runs_is_their_comparison",
        compute.reuse_beside,
    ),
    Kind(
        "fig13",
        ("13",),
        "tokens per module, dead ones marked",
        flows.module_counts,
        "view=modules",
        "/runs/{run}/usage",
        f"{_TESTS}::test_module_counts_sum_to_all_visits",
    ),
    Kind(
        "fig16",
        ("16", "20"),
        "compute per patch or token; examples of high, middle and low",
        compute.compute_per_token,
        "view=work&per=token",
        "/runs/{run}/distributions/compute?per=token",
        f"{_TESTS}::test_distributions_and_bands_are_the_answers_of_the_run",
    ),
    Kind(
        "fig18",
        ("9 left", "18", "19"),
        "every token of one text on its way through the steps",
        flows.token_flow,
        "view=samples",
        "/runs/{run}/samples/{sample}",
        f"{_TESTS}::test_token_flow_has_every_token",
    ),
    Kind(
        "knows",
        (),
        "what paths tell of labels, words and places, beside shuffles and the untrained twin",
        families.knows,
        "view=paths",
        "/runs/{run}/paths/knowledge",
        f"{_TESTS}::test_what_paths_know_is_the_answer_of_the_run",
    ),
    Kind(
        "family",
        (),
        "what only the run’s family has: lit blocks, shards, experts, connections, gates",
        families.family,
        "view=family",
        "/runs/{run}/usage, /runs/{run}/specialisation, /runs/{run}/repetition",
        f"{_TESTS}::test_every_family_has_the_charts_of_its_view",
    ),
)
"""in the order of the paper, then figures that are not in it"""

OTHER_NAMES = {
    "fig1": ("fig1cd", "fig1e", "fig1f"),
    "fig1c": ("fig1cd",),
    "fig1d": ("fig1cd",),
    "fig8": ("fig2",),
    "fig9": ("fig1f", "fig18"),
    "fig9l": ("fig18",),
    "fig9r": ("fig1f",),
    "fig10": ("fig2",),
    "fig11": ("fig6",),
    "fig12": ("fig7",),
    "fig14": ("fig4",),
    "fig15": ("fig5",),
    "fig17": ("fig3",),
    "fig19": ("fig18",),
    "fig20": ("fig16",),
}
"""other figure numbers of the paper that the same kind draws"""


def chosen(names: Sequence[str]) -> list[Kind]:
    """The kinds with these names or figure numbers of the paper, in its order; all if ``names`` is empty.

    Raises:
        ValueError: A name is unknown; the message is a sentence.
    """
    kinds = {kind.name: kind for kind in KINDS}
    picked: set[str] = set()
    for name in names:
        plain = name.strip().lower().replace("figure", "fig").replace(" ", "")
        plain = plain if plain in kinds or plain.startswith("fig") else f"fig{plain}"
        matches = (plain,) if plain in kinds else OTHER_NAMES.get(plain)
        if matches is None:
            raise ValueError(f"there is no figure {name[:40]!r}; there are {', '.join(kinds)}")
        picked.update(matches)
    return [kind for kind in KINDS if not picked or kind.name in picked]


def draw_figures(
    source: Source, wishes: Wishes, kinds: Sequence[Kind] = KINDS, refusals: tuple[type[Exception], ...] = ()
) -> Iterator[tuple[Kind, list[Figure], str]]:
    """Each kind with its figures, and a sentence if some or all could not be drawn.

    Args:
        refusals: Exceptions whose message is such a sentence.
    """
    errors: tuple[type[Exception], ...] = (NotHere, *refusals)
    wishes = replace(wishes, refusals=refusals)
    for kind in kinds:
        figures: list[Figure] = []
        why = ""
        try:
            figures = kind.make(source, wishes)
            if kind.beside is not None and wishes.other is not None:
                figures = figures + kind.beside(source, wishes)
        except errors as error:
            why = ("Drawn without the second run: " if figures else "") + str(error)
        yield kind, figures, _sentence(why) if why else ""


def _sentence(words: str) -> str:
    words = words.strip()
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")


__all__ = ["KINDS", "Dreams", "Figure", "Kind", "NotHere", "Source", "Wishes", "chosen", "draw_figures"]
