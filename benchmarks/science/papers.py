"""The papers, what their networks here were trained on, and what our measurements cannot say."""

from __future__ import annotations

from typing import Any

from benchmarks.science import (
    dipaco_claims,
    directional_claims,
    dna_image_claims,
    dna_rows,
    dna_text_claims,
    hmodel_claims,
    raytracing_claims,
)
from benchmarks.science.claims import Paper, Table


def _texts(results: dict[str, Any]) -> str:
    tokens = results["models"]["hmodel-languages"]["count"]
    return f"1 network each; {results['held_out_texts']} texts, {tokens:,} predictions"


def _paths(results: dict[str, Any]) -> str:
    return f"1 network each; {results['dipaco-2x2']['count']:,} predictions" if results else ""


def _induction(results: dict[str, Any]) -> str:
    return f"{len(results['sequence']['normal']['seeds'])} networks each"


def _states(*names: str) -> str:
    listed = ", ".join(f"`{name}`" for name in names)
    return (
        "It trains nothing: `--work` is the folder where `tokenpaths train NAME --data <data folder> --work <work "
        f"folder>` left its states of {listed}."
    )


_CARDS = " Losses of several trainings are those of the cards that `tokenpaths train` wrote, with {} (`--trainings`)."
_OF_DNA = (("Rows of slopes", "checkpoints"), ("Rows of dreams", "dream_tests"))


def _said_by_row(results: dict[str, Any]) -> str:
    return ""


PAPERS = (
    Paper(
        "dna",
        "Distributed Neural Architectures",
        "Cowsik, He and Gromov, *Towards Distributed Neural Architectures*, 2025, "
        "[arXiv:2506.22389](https://arxiv.org/abs/2506.22389).",
        "Images: 50 classes of Tiny-ImageNet at 64×64, 64 patches each. Texts: five domains of English, next token "
        "among 8 192. Choices of all tokens of the validation files, beside untrained networks of the same "
        "architecture that route the same files. *top1* and *top2* are the two networks of a table, named by the "
        "modules that a token takes at a step; top2 may skip. Confidence is the probability of the answer that the "
        "network gives.",
        (
            Table("dna", dna_image_claims.vision, dna_rows.images, "### Images", dna_rows.images_anew),
            Table(
                "dna",
                dna_image_claims.longer,
                dna_rows.long_images,
                "### Images, trained five times as long\n\n`dna-vision-top1-long`: 60 epochs instead of 12, with MixUp "
                "and CutMix. What needs a network that skips, or two, is left out.",
                dna_rows.long_images_anew,
            ),
            Table("dna", dna_text_claims.text, dna_rows.texts, "### Texts", dna_rows.texts_anew),
            Table(
                "dna",
                dna_text_claims.longer,
                dna_rows.long_texts,
                "### Texts, trained four times as long\n\n`dna-text-top1-long`: four passes over the text instead of "
                "one, a longer warm-up, and the load-balancing loss of *Switch Transformers* with a weight of 0.01.",
                needs="Rows of networks trained anew need `--anew <folder>` as well, where they lie as `NAME-seedS`; "
                "texts after one pass were measured with `--twins 3`.",
                besides=_OF_DNA,
            ),
        ),
        (*dna_rows.VISION, dna_rows.LONG, dna_rows.DNA_N, *dna_rows.TEXT, dna_rows.LONG_TEXT),
        (
            "Intervals are over samples. What other trainings of the same recipe give stands in the tables of networks "
            "trained anew, which see the same data: of rows that they do not have, one network is all there is.",
            "Four to six routed steps (eleven half as large ones in DNA-n) instead of eleven to twenty-four, 50 "
            "classes instead of 1,000, at most four hours of one core or minutes of one GPU instead of days of "
            "accelerators: features that need depth or data cannot show.",
            "The dense network of 60 epochs was trained in float32 (in bfloat16 its gradient became nan), the routed "
            "ones trained anew in bfloat16; all are compared with this one.",
            "Regions come from boxes, not outlines: a *boundary* patch is one that the box's edge crosses.",
            "Likeness of patches is that of mean colour; patches of one image are not compared with each other. The "
            "paper names flat colours for a frequent path as well, so that colour is a weak test of its figure 3.",
            "To lie above all of n untrained networks happens by chance once in n + 1 times.",
            "Reuse depends on the number of visits, smaller here: its level is not to be compared with the paper's.",
        ),
    ),
    Paper(
        "hmodel",
        "H-Model",
        "Hospodarchuk, *H-Model: Dynamic Neural Architectures for Adaptive Processing*, 2025, "
        "[arXiv:2511.11669](https://arxiv.org/abs/2511.11669).",
        "Six languages (German, Swahili, Arabic, Chinese, English, Ukrainian), width 128, next token among 4 096; "
        "claims are of a held-out tenth of the texts, in all six languages, the table of networks is of a validation "
        "file that has five. One recipe for all, for 1,000 iterations, ten passes over the text, and for 3,000. "
        "Positions were decayed in the H-Models, not in the transformers.",
        (
            Table(
                "hmodel",
                hmodel_claims.hmodel,
                _texts,
                needs=_states(*(f"hmodel-languages{kind}" for kind in ("", "-wide", "-wide-sequence")))
                + _CARDS.format("`--seed` and `--iterations`"),
            ),
        ),
        ("hmodel-languages",),
        (
            "One network of each kind was trained for 1,000 iterations, and routing was measured in these. Those of 6 "
            "layers were trained a second time for it, on another machine.",
            "That 1,000 iterations are enough was seen on the held-out tenth, on which all losses are reported.",
            "The paper's 0.956 of next tokens is no credible target for language modelling: it can only be reached "
            "where the answer can be read off the input.",
        ),
    ),
    Paper(
        "dipaco",
        "DiPaCo",
        "Douillard et al., *DiPaCo: Distributed Path Composition*, 2024, "
        "[arXiv:2403.10616](https://arxiv.org/abs/2403.10616).",
        "English text of five domains, paths of four blocks of width 128 from one base. Perplexity behind the routing "
        "prefix of 32 tokens, on validation text.",
        (
            Table(
                "dipaco",
                dipaco_claims.dipaco,
                _paths,
                anew=dipaco_claims.anew,
                needs="It trains all of them, and with `--ship` writes the two networks that ship anew.",
            ),
            Table(
                "dipaco-again",
                dipaco_claims.dipaco,
                _paths,
                "The same recipes from a base that was trained anew, on a GPU, and what else the paper compares.",
                anew=dipaco_claims.anew,
            ),
        ),
        ("dipaco-2x2", "dipaco-4x4"),
        (
            "Intervals are over documents. Of the first base one network of each kind was trained; of the second "
            "three, whose verdicts stand below each other: they see the same base and validation text.",
            "In the first table, in rows of paths with ends of their own and in that of discriminative routing at 16 "
            "paths, differences between two routed networks take their differences from the dense path as independent; "
            "both hold the same one, so that these intervals are too wide. Elsewhere they are taken document by "
            "document.",
            "The dense path takes as many steps as each path: a quarter of the compute and the data of 2×2, a "
            "sixteenth of 4×4. Longer training of it, which the paper has, was not tried.",
            "Discriminative routing starts from k-means at 2×2 and from product k-means at 4×4; in the paper always "
            "from the second.",
        ),
    ),
    Paper(
        "directional",
        "Directional Routing",
        "Taylor, *Directional Routing in Transformers*, 2026, [arXiv:2603.14923](https://arxiv.org/abs/2603.14923).",
        "English text of five domains, four passes, six layers, 120 directions, next token among 8 192. *Whole "
        "sequence* is the paper's pooling, in which a position sees the tokens behind it; *prefix* the causal one.",
        (
            Table(
                "directional",
                directional_claims.directional,
                _said_by_row,
                needs=_states("directional-text", "directional-text-prefix", "directional-text-unrouted")
                + " Words, angles and swaps are of the shipped networks (`--shipped`)."
                + _CARDS.format("`--seed`"),
            ),
            Table(
                "induction",
                directional_claims.induction,
                _induction,
                "Induction does not form in text models of this size, so it is looked for in three layers trained on "
                "repeated random segments alone (mean, and each seed).",
            ),
        ),
        ("directional-text", "directional-text-prefix"),
        (
            "Losses and induction are of three networks each; all else is of one.",
            "A number behind ± is a standard error, over windows or directions.",
        ),
    ),
    Paper(
        "raytracing",
        "RayTracing",
        "Gallicchio and Nuti, *Ray-Tracing for Conditionally Activated Neural Networks*, 2025, "
        "[arXiv:2502.14788](https://arxiv.org/abs/2502.14788).",
        "Handwritten digits (8×8 pixels) and CIFAR-10 features of a small network of our own, beside MLPs. A parameter "
        "counts as used where a signal goes through it. Read as a signal that crosses one layer a threshold step, the "
        "paper's θ_out = 0.5 ends every sample at the first step: no weight between blocks is ever used or trained. So "
        "the other reading, in which a signal crosses all layers within a step, stands beside it. Differences of "
        "accuracy: mean over seeds and 95 % interval (Student's t).",
        (Table("raytracing", raytracing_claims.raytracing, _said_by_row),),
        ("raytracing-digits", "raytracing-digits-relaxed", "raytracing-cifar10", "raytracing-cifar10-relaxed"),
        (
            "Digits stand for MNIST, features of our own for the paper's.",
            "Networks of CIFAR-10 share one set of convolutions: intervals leave out what other features would give.",
            "Where θ_out is 0.5 every sample ends at the first threshold step; what later ones would say is asked of "
            "the same networks.",
        ),
    ),
)
