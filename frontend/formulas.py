"""Formulas of all metrics as text: help texts of charts (``HELP``) and of table columns (``COLUMNS``)."""

from __future__ import annotations

HELP = {
    "flow": (
        "Circle area ∝ tokens of the module at the step. Ribbon width ∝ flow (step, module) → (step+1, module): the "
        "number of tokens that go that way; with K > 1 each of the K² pairs counts 1/K², so that a step's links "
        "always sum to the number of tokens."
    ),
    "contrast": (
        "Δ of a module at a step = f(A) − f(B), f = share of the tokens of a label that visit it. Of a link likewise: "
        "the share of tokens that go that way. 0 = both alike."
    ),
    "paths": (
        "Path of a token: the modules it took, step by step. Rank 1 is the most frequent path of the run, ties in "
        "the order of their module ids. CDF of a rank = share of tokens on paths of rank ≤ it. Slope: least "
        "squares of log frequency on log rank."
    ),
    "nulls": (
        "Untrained twin: the same architecture with fresh weights on the same data. Independent steps: each step's "
        "choices shuffled over tokens. A slope near −1 is found in random models too, so look at the distance "
        "from the nulls."
    ),
    "slopes": (
        "Slope: least squares of log frequency on log rank, over all ranks or over ranks 10 to 1,000. A run is "
        "thinned by keeping each token with the same probability; means and standard deviations over 5 such draws."
    ),
    "law": (
        "p(count = x) ∝ x^−α for x ≥ x_min, fitted to the counts of the paths by discrete maximum likelihood; x_min "
        "makes the Kolmogorov–Smirnov distance smallest. p: (1 + those of 100 data sets drawn from the law that lie "
        "at least as far from their own fit) / 101; at most 0.1 refuses it. Lognormal: Vuong’s test on the same tail, "
        "positive ratio = power law better. (Clauset, Shalizi, Newman 2009.) A rank–frequency slope s goes with "
        "α = 1 + 1/|s|."
    ),
    "compute": (
        "compute of a token = active (non-identity) slots / (S·K); 1 = never skipped. "
        "Of a sample: the mean over its tokens."
    ),
    "reuse": ("reuse of a token = 1 − distinct active modules / active visits. Of a sample: the mean over its tokens."),
    "cdf": (
        "CDF of a path = share of the run's tokens on paths up to its rank, which puts equal counts in some order. "
        "Near 0 % = one of the most frequent. Colour of a path: the share of tokens on strictly more frequent paths "
        "plus half of that on paths of equal count, so that equal counts have equal colours; a path that one token of "
        "the run takes is “only here”. An upload is ranked by a run of the same model over a data set."
    ),
    "topk": (
        "effective top-k of a step = (Σ c²)^α / Σ c^(2α), α = 1.5, c = tokens per module; "
        "range 1 … M^(α−1). The paper's 1/IPR."
    ),
    "load": (
        "utilisation of a module = its tokens · M / all choices at the step (1 = fair share, 0 = dead). "
        "MaxVio = highest utilisation − 1. Load entropy = H(c/Σc)/ln M. Importance CV² = (std / mean)² of the modules’ "
        "summed weights Σ w: 0 = even, M − 1 = all at one module."
    ),
    "outcomes": (
        "Samples (or tokens) in the order of the measure, cut into ten groups of one size; those of one value share "
        "their groups. Right: the prediction is the label, or the next token. Modules visited: different modules at "
        "their steps that any token of the sample visited. 95 % intervals by sample."
    ),
    "kind_means": (
        "Mean of the measure over the tokens of a kind, less the mean over all tokens that could be of one, with a "
        "95 % interval by sample."
    ),
    "likeness": (
        "Likeness = 1 − d/D: d the mean squared distance (of mean colours; of kinds of word 0 if equal, else 1) of two "
        "tokens on one path but of different samples, D that of any two of different samples."
    ),
    "phases": (
        "Perplexity = e^loss over documents held back for stopping (at most 64 sequences for each path there is), each "
        "read by the path that it was routed to; losses of paths are weighted by their predictions, or by the sizes of "
        "their shards where the checkpoint does not keep how many those are."
    ),
    "module_kinds": "Choices of modules of a kind / all choices of the step.",
    "nmi": (
        "NMI(path; attribute), 0 … 1: how much the path tells about the attribute, beside 200 shuffles of the "
        "attribute, a label over whole samples, regions as whole maps of images (their place stays), all else as "
        "sequences of samples. p = share of shuffles as high. "
        "Untrained twin: the paths of the same architecture with fresh weights, of the same tokens, beside the same "
        "shuffles."
    ),
    "loss": "Cross-entropy of the right next token (or of the label), in nats.",
    "gate_entropy": "Entropy of the router's probabilities over all modules, in nats, mean over steps.",
    "margin": "Margin ρ_(K) − ρ_(K+1): the score of the last module that was chosen less that of the next one, the "
    "runner-up, in probability. Near 0 the router could as well have chosen the other.",
}
"""formulas of the project's metrics for help texts"""

COLUMNS = {
    "rank": "Of the path by frequency over the run: 1 = most frequent; ties in the order of module ids.",
    "cdf": HELP["cdf"],
    "compute": HELP["compute"],
    "reuse": HELP["reuse"],
    "loss": HELP["loss"],
    "gate_entropy": HELP["gate_entropy"],
    "ribbon": "The modules of a path, step by step; with several slots the one of the largest weight first.",
    "weights": "The K multipliers that were really used, in the order of the slots.",
    "weight": "Sum of the multipliers that were really used.",
    "utilisation": "u = tokens of the module · M / all choices at the step: 1 = fair share, 0 = dead.",
    "max_violation": "MaxVio = highest utilisation of the step − 1.",
    "load_entropy": "H(c/Σc)/ln M of the step, c = tokens of each module: 1 = even, 0 = all at one module.",
    "importance_cv2": "(std / mean)² over the modules of the step of Σ w, the weights of their tokens: 0 = even.",
    "effective_top_k": HELP["topk"],
    "untrained_effective_top_k": "effective top-k of the same architecture with fresh weights on the same data.",
    "confidence": "The probability that the model gave its prediction.",
    "prediction": "The class that the model found likeliest.",
    "flops": "Cost of the modules that the token visited, attention over the tokens that each module really received.",
    "flops_per_token": "Cost of one visit without attention, whose cost depends on the tokens that came along.",
    "num_params": "Trained numbers of the module.",
    "num_distinct_paths": "Different paths among the tokens of the sample.",
    "top_label": "The label that has most tokens on the path.",
    "top_label_share": "Part of the path’s tokens that are of this label.",
    "change": "After − before; 0 = nothing changed.",
    "kl": "Kullback–Leibler divergence of the answers, after from before, in nats; mean over the outputs.",
    "loss_change": "Loss with the edit − loss without, on the same inputs, in nats.",
    "loss_error": "One standard error of the change over samples, whose predictions rise and fall together.",
    "paths_changed_after": "Part of the tokens whose path differs at a step behind the edited one.",
    "lift": "Share among the tokens found / share among all tokens: 1 = no preference.",
    "nmi": HELP["nmi"],
    "p_value": "Share of the shuffles whose value is at least as high, the observed one counted among them.",
}
"""formulas by column name, for names that mean the same in every table"""
OF_TOKENS = {"share": {"help": "Part of all tokens that are counted here, those that the filters keep."}}
"""settings of tables whose ``share`` is of tokens; elsewhere it is of decisions, blocks, heads, documents …"""
