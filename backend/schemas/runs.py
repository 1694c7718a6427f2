"""The shapes of all answers. What a field means is written here once and shown at ``/docs``.

Words and formulas are those of the design: a *ribbon* is the path of one token, one tuple of module ids a step
(slot 0 = largest weight); a *share* lies in [0, 1]; losses and entropies are in nats.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Ribbon = Annotated[
    list[list[int]],
    Field(description="Module ids, steps × slots; slot 0 has the largest weight", examples=[[[3], [1]]]),
]
Share = Annotated[float, Field(description="Share in [0, 1]")]
Compute = Annotated[
    float | None, Field(description="Active (non-identity) slots / (steps × slots); 1 = nothing was skipped")
]
Reuse = Annotated[
    float | None, Field(description="1 − distinct active modules / active visits; 0 = no module was visited twice")
]
Cdf = Annotated[float, Field(description="Share of tokens on paths of this rank or a more frequent one")]
Rank = Annotated[int, Field(description="Rank of the path by frequency, 1 = most frequent")]
Next = Annotated[str | None, Field(description="Give this as `next` for the following page; null on the last page")]
Count = Annotated[int, Field(description="Number of tokens")]


class Shape(BaseModel):
    """Base of all answers: what the store adds later passes through, what is documented is checked."""

    model_config = ConfigDict(extra="allow")


class Card(Shape):
    """What a list of runs shows of one run."""

    run: str = Field(description="Name of the run, its address under /runs")
    model: str | None = Field(None, description="Name of the model that was traced")
    family: str | None = Field(None, description="Family of the model, for example `dna`")
    modality: str | None = Field(None, description="`vision` or `text`")
    dataset: str | None = None
    split: str | None = None
    num_samples: int | None = Field(None, description="Images or texts")
    num_tokens: int | None = Field(None, description="Tokens or patches of all samples")
    num_steps: int | None = Field(None, description="Routing decisions in the life of a token")
    num_modules: int | None = Field(None, description="Modules that a router chooses from")
    top_k: int | None = Field(None, description="Modules chosen at each step")
    num_paths: int | None = Field(None, description="Different paths taken by at least one token")
    accuracy: float | None = Field(None, description="Share of samples whose prediction is their label")
    loss: float | None = Field(None, description="Mean cross-entropy, nats")
    created_at: str | None = Field(None, description="When the run was sealed, UTC, ISO 8601")
    samples_are: str | None = Field(
        None,
        description="Where several samples were cut from one picture: how many from how many, in words; intervals "
        "take samples as independent, and these are not",
    )
    status: Literal["sealed", "being_read", "unreadable"] = Field(
        description="`being_read`: it came from elsewhere and is read for the first time, so that the rest of the card "
        "is not known yet; `unreadable`: it cannot be read, see `problem`"
    )
    problem: str | None = Field(None, description="What is wrong with the file, and what to do")


class RunList(Shape):
    """The runs of the data folder, newest first."""

    runs: list[Card]
    next: Next


class Label(Shape):
    """A class, domain or language of the data set."""

    label: str | None
    num_samples: int
    num_tokens: int


class Module(Shape):
    """One thing that a router can pick."""

    step: int | None = Field(description="The only step that can pick it; null = any step")
    module: int = Field(description="Id of the module, as in ribbons")
    name: str
    kind: str = Field(description="transformer, attention, mlp, identity, expert, block …")
    num_params: int
    flops_per_token: int = Field(description="Floating-point operations for one token, attention over others apart")


class TopShare(Shape):
    """How much the most frequent paths hold."""

    n: int
    share: Share


class RunSummary(Shape):
    """The run in a few numbers."""

    num_paths: int
    effective_paths: float = Field(description="exp of the entropy of the path frequencies")
    top_shares: list[TopShare] = Field(description="Share of tokens on the n most frequent paths")
    mean_compute: Compute
    mean_reuse: Reuse


class Association(Shape):
    """Do paths know an attribute? Normalised mutual information beside its permutation null."""

    attribute: str = Field(description="`label`, `region` or `token_id`")
    nmi: float | None = Field(description="NMI(path; attribute)")
    null_mean: float | None = Field(description="Mean NMI over shuffles of the attribute")
    null_std: float | None
    p_value: float | None = Field(description="Share of shuffles with at least this NMI, (k+1)/(n+1)")
    shuffles: int
    num_tokens: int = Field(description="Size of the hash sample of tokens it was computed on")
    shuffled: Literal["samples", "sequences", "tokens"] = Field(
        description="What was shuffled: whole samples, sequences of samples as in `/paths/knowledge`, or, in files "
        "before schema version 4, single tokens; then the p-value is too small: take that of `/paths/knowledge`"
    )
    untrained_nmi: float | None = Field(description="The same of the untrained twin's paths; null without a twin")
    untrained_null_mean: float | None
    untrained_null_std: float | None
    untrained_p_value: float | None


class RunDetails(Card):
    """All about one run."""

    config: dict[str, Any] = Field(description="Configuration of the model")
    weight_semantics: dict[str, Any] = Field(description="What the weights of a ribbon mean in this model")
    checkpoint_sha256: str
    engine_version: str
    schema_version: int
    labels: list[Label]
    modules: list[Module]
    summary: RunSummary
    associations: list[Association]
    measures: list[str] = Field(description="Measures that /distributions knows for this run")
    soft: list[str] = Field(description="Which of edges, gates and blocks the run holds; empty: its decisions are hard")
    findings: dict[str, Any] = Field(description="What only this family has, worked out when the run was sealed")


class FlowNode(Shape):
    """One module at one step."""

    step: int
    module: int
    name: str
    kind: str
    count: float = Field(description="Tokens that chose it, in any of their K slots")
    share: Share
    num_modules: int | None = Field(
        None, description="Of module −1, “other (n experts)”: how many small modules of the step are merged in it"
    )
    low: float | None = Field(None, description="Of a sampled answer: lower end of the 95 % interval of `share`")
    high: float | None = Field(None, description="Upper end of it")


class FlowLink(Shape):
    """Tokens from a module at ``step`` to a module at ``step`` + 1."""

    step: int
    source: int
    target: int
    count: float = Field(description="Tokens; with top-K each of the K² pairs counts 1/K²")
    weight: float | None = Field(description="The same weighted by the product of the weights, normalised per token")
    share: Share
    low: float | None = Field(None, description="Of a sampled answer: lower end of the 95 % interval of `share`")
    high: float | None = Field(None, description="Upper end of it")


class OtherFlow(Shape):
    """Links of a step that were too small or too many to list."""

    step: int
    num_links: int
    count: float


class SampledOn(Shape):
    """How many tokens of the hash sample of a run passed the filters."""

    num_tokens: Count
    of_tokens: int = Field(description="Tokens of the sample")
    exact: bool = Field(description="Whether the sample is the whole run")


class Flow(Shape):
    """Where tokens go: nodes and links between consecutive steps, largest first."""

    run: str
    filters: dict[str, Any] = Field(description="The filters that were applied")
    num_tokens: Count = Field(description="Tokens that passed the filters; shares are of these")
    steps: list[int]
    own_modules: bool = Field(description="Modules belong to their step: equal ids at two steps are different modules")
    nodes: list[FlowNode]
    links: list[FlowLink]
    other: list[OtherFlow]
    counted: SampledOn | None = Field(None, description="Of a sampled answer; counts are scaled to the run")


class Path(Shape):
    """One path and who takes it."""

    rank: Rank
    ribbon: Ribbon
    count: Count
    share: Share
    cdf: Cdf
    compute: Compute
    reuse: Reuse
    top_label: str | None = Field(None, description="Most frequent label among the tokens on this path")
    top_label_share: float | None = Field(None, description="Share of the path's tokens that have it")


class PathList(Shape):
    """Paths, most frequent first unless ordered otherwise."""

    run: str
    num_paths: int
    num_tokens: int
    paths: list[Path]
    next: Next


class FitPoint(Shape):
    """One point of the rank–frequency curve."""

    rank: Rank
    count: int
    share: Share
    cdf: float | None = Field(
        None, description="Share of tokens on paths of this rank or a more frequent one; of the run's own paths only"
    )


class Fit(Shape):
    """A rank–frequency curve and its straight line on log–log axes."""

    num_paths: int
    num_tokens: int
    effective_paths: float | None
    slope: float | None = Field(description="Least-squares slope of log frequency on log rank")
    r2: float | None = Field(description="Share of variance that the line explains")
    points: list[FitPoint] = Field(description="At most 200, evenly spaced in log rank")


class PathFit(Shape):
    """The run's paths beside two nulls."""

    run: str
    observed: Fit
    untrained: Fit | None = Field(description="The same architecture untrained; null where it was not traced")
    independent: Fit | None = Field(description="Each step's choices shuffled over tokens")


class Lognormal(Shape):
    """The lognormal of the same tail, and which of the two fits better (Vuong's test)."""

    mu: float
    sigma: float
    ratio: float = Field(description="Log likelihood ratio over its standard deviation; positive: power law better")
    p_value: float = Field(description="How likely so large a ratio is when both fit equally well")


class LawPoint(Shape):
    """A point of the law drawn as a rank–frequency curve."""

    rank: float = Field(description="Expected number of paths that are taken at least as often")
    share: Share


class Law(Shape):
    """p(count = x) ∝ x^−α for x ≥ x_min, by discrete maximum likelihood; or the reason why there is none."""

    num_paths: int
    alpha: float | None = None
    alpha_error: float | None = Field(None, description="Standard error, (α − 1)/√num_tail")
    x_min: int | None = Field(None, description="Fewest tokens of a path that belongs to the law; makes `ks` smallest")
    num_tail: int | None = Field(None, description="Paths with at least `x_min` tokens")
    ks: float | None = Field(None, description="Kolmogorov–Smirnov distance of tail and law")
    p_value: float | None = Field(
        None,
        description="(1 + data sets drawn from the law that lie at least as far from their fit) / (1 + draws); at most "
        "0.1: refused",
    )
    lognormal: Lognormal | None = None
    curve: list[LawPoint] = Field((), description="From `x_min` to the most frequent path, at most 40 points")
    reason: str | None = Field(None, description="Why there is no law")


class PathLaw(Shape):
    """Power laws of path counts: of the run and of its two nulls."""

    run: str
    draws: int
    seed: int
    observed: Law
    untrained: Law | None = Field(description="The same architecture untrained; null where it was not traced")
    independent: Law | None = Field(description="Each step's choices shuffled over tokens")


class Example(Shape):
    """One token on a path: a patch of an image, or a token between its neighbours."""

    sample: int
    token: int
    token_id: int | None = Field(None, description="Vocabulary id")
    label: str | None = None
    row: int | None = None
    col: int | None = None
    patch: str | None = Field(None, description="PNG of the patch as a data: URL")
    before: str | None = Field(None, description="Text before the token")
    text: str | None = Field(None, description="The token itself")
    after: str | None = Field(None, description="Text after the token")


class PathExamples(Shape):
    """Tokens on one path, drawn by a seed."""

    run: str
    rank: Rank
    ribbon: Ribbon
    count: Count
    share: Share
    cdf: Cdf
    examples: list[Example]


class StepUsage(Shape):
    """How one step uses its modules."""

    step: int
    effective_top_k: float | None = Field(description="(Σc²)^α / Σc^{2α}, α = 1.5: modules that carry the load")
    untrained_effective_top_k: float | None = None
    load_entropy: float | None = Field(description="Entropy of the load / ln(modules); 1 = even")
    max_violation: float | None = Field(description="Largest utilisation − 1")
    importance_cv2: float | None = Field(
        description="(std / mean)² of the modules' summed weights Σ_t w_ti; 0 = even; null where nothing was weighted"
    )
    gate_entropy: float | None = Field(description="Mean entropy of the routing probabilities, nats")
    dead: list[int] = Field(description="Modules that no token chose")


class ModuleUsage(Shape):
    """How much one module is used at one step."""

    step: int
    module: int
    name: str
    kind: str
    count: Count
    share: Share
    utilisation: float | None = Field(description="count × modules / all choices of the step; 1 = fair, 0 = dead")
    weight: float | None = Field(description="Sum of its weights")


class Usage(Shape):
    """Load of every module at every step."""

    run: str
    steps: list[StepUsage]
    usage: list[ModuleUsage]


class SampleRow(Shape):
    """One image or text in a list."""

    sample: int
    label: str | None = None
    prediction: str | None = None
    confidence: float | None = Field(None, description="Probability of the prediction")
    loss: float | None = Field(None, description="Cross-entropy, nats, mean over the tokens that have a target")
    num_tokens: int
    compute: Compute = None
    reuse: Reuse = None
    num_distinct_paths: int | None = None
    snippet: str | None = Field(None, description="The beginning of the text")
    has_image: bool = Field(False, description="Whether /samples/{sample}/image has a picture")
    source: str | None = Field(None, description="File name or row that the sample came from")


class SampleList(Shape):
    """Samples in the chosen order."""

    run: str
    total: int = Field(description="Samples that passed the filters, on all pages together")
    samples: list[SampleRow]
    next: Next


class Grid(Shape):
    """The patch grid of an image."""

    rows: int
    cols: int


class Token(Shape):
    """One token or patch and its ribbon. Text tokens have characters, patches a row and a column."""

    token: int = Field(description="Its position in the sample")
    token_id: int | None = Field(None, description="Vocabulary id")
    text: str | None = None
    char_start: int | None = Field(None, description="Its first character in the text")
    char_end: int | None = Field(None, description="One past its last character")
    row: int | None = None
    col: int | None = None
    loss: float | None = Field(None, description="nats; null where the token has no target")
    ribbon: Ribbon
    weights: list[list[float]] = Field(description="The multipliers really used, steps × slots")
    rank: Rank
    cdf: Cdf
    compute: Compute
    reuse: Reuse
    gate_entropy: float | None = Field(None, description="Mean over steps of the routing entropy, nats")
    flops: float | None = Field(None, description="Floating-point operations of the modules it visited")
    region: str | None = Field(None, description="For example object, background or boundary")


class SampleDetails(SampleRow):
    """One sample with every token."""

    run: str | None = None
    text: str | None = None
    grid: Grid | None = None
    tokens: list[Token]


class Bin(Shape):
    """One bar of a histogram, lo ≤ value < hi (the last one includes hi)."""

    lo: float
    hi: float
    count: int


class LabelMean(Shape):
    """The measure over one label."""

    label: str | None
    num: int
    mean: float | None


class Distribution(Shape):
    """How a measure is distributed over samples or tokens."""

    run: str
    measure: str
    per: str
    num: int = Field(description="Values counted; those without one are left out")
    mean: float | None
    std: float | None
    min: float | None
    q01: float | None
    median: float | None
    q99: float | None
    max: float | None
    bins: list[Bin]
    by_label: list[LabelMean]


class SoftAxis(Shape):
    """One axis of nested values."""

    axis: str = Field(description="iteration, source, target, layer, head, direction, threshold_step or block")
    names: list[str] = Field(description="What stands at each position")


class SoftValues(Shape):
    """What a soft, gated or threshold router said, nested along `axes`."""

    run: str
    kind: Literal["edges", "gates", "blocks"]
    sample: int | None = Field(description="The sample it is of; null: mean over samples")
    label: str | None = Field(description="The label whose samples were averaged; null: all")
    num_samples: int
    axes: list[SoftAxis]
    values: list[Any] = Field(description="Weights or firing rates, nested lists in the order of `axes`")
    std: list[Any] | None = Field(description="Standard deviation over samples, nested alike; null for one sample")


class Counted(Shape):
    """How many tokens an answer was counted on: all of them, or those of a seeded draw of whole samples."""

    num_tokens: Count
    of_tokens: int
    num_samples: int
    of_samples: int
    exact: bool = Field(description="Whether every token was counted")


class Domain(Shape):
    """One label of the data set."""

    label: str
    num_tokens: Count


class Preference(Shape):
    """How much of one label, or of one token id, a module gets."""

    label: str | None = None
    token_id: int | None = Field(None, description="Vocabulary id")
    text: str | None = Field(None, description="Its readable form, where the run has one")
    count: int = Field(description="N_{i,D} or N_{x,i}: tokens of it that chose the module")
    of: int = Field(description="N_D or N_x: tokens of it in all")
    share: Share


class Specialised(Shape):
    """One module and what it prefers."""

    step: int
    module: int
    name: str
    kind: str
    count: int = Field(description="Tokens that chose it, of those that were counted")
    prefers: list[Preference] = Field(description="Every listed label, or the token ids with the largest shares")


class Specialisation(Shape):
    """Domain specialisation N_{i,D}/N_D or vocabulary specialisation N_{x,i}/N_x of one step's modules."""

    run: str
    of: Literal["label", "input", "next", "predicted"]
    step: int
    label: str | None = Field(description="Only tokens with this label; null: all")
    baseline: Share = Field(description="K/M, the share under even routing")
    num_modules: int = Field(description="Modules that the step offers")
    least: int = Field(description="Token ids seen less often are left out")
    counted: Counted
    domains: list[Domain] | None = Field(None, description="The labels, largest first; with `of=label`")
    more_labels: int | None = Field(None, description="Labels that are not compared; with `of=label`")
    num_words: int | None = Field(None, description="Token ids seen often enough; with `of=input` and `of=next`")
    modules: list[Specialised] = Field(description="The most specialised first")
    more: int = Field(description="Modules that are not listed")


class SharedModule(Shape):
    """One module of a co-activation table."""

    step: int
    module: int
    name: str
    kind: str
    count: int = Field(description="N_i: tokens that chose it")


class Pair(Shape):
    """Two modules that are chosen together."""

    module: int
    other: int
    count: int = Field(description="N_ij: tokens that chose both")
    share: Share = Field(description="N_ij / N_i of `module`")
    back: Share = Field(description="N_ij / N_j of `other`")


class CoActivation(Shape):
    """N_ij / N_i over all pairs of modules that a token chooses at one step."""

    run: str
    step: int
    label: str | None
    baseline: Share = Field(description="(K − 1)/(M − 1): all pairs equally likely")
    num_modules: int
    counted: Counted
    modules: list[SharedModule] = Field(description="Those of the strongest pairs, partners side by side")
    values: list[list[float]] = Field(description="N_ij / N_i, row i, column j, in the order of `modules`")
    pairs: list[Pair] = Field(description="The strongest pairs")
    more: int = Field(description="Modules with tokens that are not in the table")


class StepRepetition(Shape):
    """How often neighbours agree at one step."""

    step: int
    first: Share | None = Field(description="P(top1_t = top1_{t+1}); null where no weights were recorded")
    any: Share = Field(description="P(S_t ∩ S_{t+1} ≠ ∅)")
    baseline_first: Share = Field(description="1/M")
    baseline_any: Share = Field(description="1 − C(M−K, K)/C(M, K)")


class Repetition(Shape):
    """Consecutive repetition: how often a token and the next one choose the same."""

    run: str
    label: str | None
    top_k: int
    num_pairs: int = Field(description="Pairs of neighbouring tokens")
    first_missing: str | None = Field(None, description="Why there is no first choice")
    counted: Counted
    steps: list[StepRepetition]


class SlicedToken(Shape):
    """What one token chose at one step."""

    token: int
    token_id: int | None = None
    text: str | None = None
    row: int | None = None
    col: int | None = None
    modules: list[int] = Field(description="Slot 0 = largest weight")
    weights: list[float]


class TokenSlice(Shape):
    """Token × module of one sample at one step."""

    run: str
    sample: int
    step: int
    first: int = Field(description="The first token listed")
    num_tokens: int = Field(description="Tokens of the sample")
    num_modules: int
    weights_recorded: bool = Field(True, description="False: the source gave ids only, 1/K stands for each weight")
    tokens: list[SlicedToken]


class SaturationPoint(Shape):
    """One checkpoint beside the last one."""

    run: str
    iteration: int
    saturation: Share = Field(description="mean |S^ckpt ∩ S^final| / K over tokens and steps")
    error: float | None = Field(
        None, description="Half its 95 % interval; 0 where every token was counted, null where one sample was drawn"
    )
    by_step: list[float] = Field(description="The same for each step")


class LeftOut(Shape):
    """A run of the series that cannot be compared."""

    run: str
    reason: str


class Saturation(Shape):
    """Router saturation over the checkpoints of one training, against the last one."""

    run: str
    series: str
    final: str = Field(description="The run of the last checkpoint")
    baseline: Share = Field(description="K/M: what even, independent choices would share")
    counted: Counted
    compared_by: str = Field(description="What shows that tokens are the same: `token ids` or `lengths of the samples`")
    points: list[SaturationPoint] = Field(description="In the order of iterations")
    left_out: list[LeftOut]


class ModelRow(Shape):
    """One checkpoint that can be traced."""

    model: str
    family: str | None = None
    modality: str | None = Field(None, description="`vision` takes an image, `text` a text")
    num_params: int | None = None
    num_steps: int | None = None
    num_modules: int | None = None
    top_k: int | None = None
    validation: dict[str, Any] = Field(default_factory=dict, description="Numbers on the validation set")
    shipped: bool = Field(False, description="Whether it came with the source")
    problem: str | None = Field(None, description="Why it cannot be used")


class ModelList(Shape):
    """The models that the worker finds."""

    models: list[ModelRow]


class ModelDetails(ModelRow):
    """One model with its configuration and card."""

    config: dict[str, Any] | None = None
    card: str | None = Field(None, description="How it was trained and how well it does, Markdown")
    controls: dict[str, Any] | None = Field(
        None, description="JSON Schema of what `controls` of POST /traces may change; no properties: nothing"
    )


class Change(Shape):
    """One number before and after."""

    before: float
    after: float
    change: float
    error: float | None = Field(None, description="Standard error of `change`, where each output was measured")


class Likely(Shape):
    """A class of an image, or a token that could follow a text."""

    name: str
    probability: Share


class Outputs(Shape):
    """What the model says differently, measured on the same inputs while the edited run was made."""

    num_samples: int
    of_samples: int | None = Field(None, description="Of so many samples of the run that they were drawn from")
    num_outputs: int = Field(description="Images, or tokens of texts")
    num_targets: int = Field(description="Those whose right answer is known")
    edits: list[str] = Field(description="The edits in words")
    kl: float = Field(description="KL(unchanged ‖ edited) of the output distribution, nats, mean over outputs")
    top1_changed: Share
    top5_changed: float = Field(description="Share of the five likeliest answers that are others now, mean")
    loss: Change | None = Field(description="nats; null where no right answer is known")
    accuracy: Change | None
    perplexity: Change | None = Field(description="Texts only")
    top5: dict[str, list[Likely]] | None = Field(
        None, description="Of one sample: the five likeliest `before` and `after`"
    )


class MovedLink(Shape):
    """A link of the flow that gained or lost tokens."""

    step: int
    source: int
    target: int
    before: Share
    after: Share
    change: float


class MovedToken(Shape):
    """One token before and after."""

    token: int
    before: Ribbon
    after: Ribbon
    moved: list[int] = Field(description="Steps at which it visits other modules")
    loss: Change | None


class Effect(Shape):
    """What an edited run changed of the unchanged one, on the same inputs."""

    run: str
    of: str = Field(description="The unchanged run")
    sample: int | None = Field(description="Its sample, where one sample is compared")
    num_samples: int = Field(description="Samples that were compared")
    of_samples: int = Field(description="Of so many: of the run that a job drew them from, or of the unchanged run")
    num_tokens: Count
    controls: dict[str, Any] | None = Field(description="What was changed, as POST /traces takes it")
    after_step: int = Field(description="The first edited step")
    after_steps: list[int] = Field(description="The steps behind it that no edit changes by itself")
    paths_changed: Share = Field(description="Share of tokens that visit other modules at any step")
    paths_changed_after: Share | None = Field(description="… at one of `after_steps`; null where there is none")
    path_distance: float = Field(description="Mean over tokens of Σ over steps of 1 − |S ∩ S′| / K")
    flow_difference: float | None = Field(
        description="½ Σ |f′ − f| / T, mean over pairs of steps: 0 the same flow, 1 none in common; null for one step"
    )
    loss: Change | None
    accuracy: Change | None = Field(description="Images")
    perplexity: Change | None = Field(description="Texts")
    links: list[MovedLink] = Field(description="Links that gained or lost most, largest change first")
    tokens: list[MovedToken] | None = Field(description="Every token, where one sample is compared")
    outputs: Outputs | None = Field(description="Null where the run was made without measuring")


class Traced(Shape):
    """The new run of one sample."""

    run: str = Field(description="Name of the new run; `Location` has its address")
    sample: int = Field(description="Always 0")
    model: str
    modality: str
    seconds: float = Field(description="Time that the worker took, loading the model included when it was cold")
    effect: Outputs | None = Field(None, description="What `controls` changed; null without controls")


class Health(Shape):
    """Whether the API is alive."""

    status: Literal["ok"]
    version: str
    uptime_seconds: float
