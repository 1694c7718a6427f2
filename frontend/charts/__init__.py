"""Chart functions from responses of the API to ``altair`` charts; used by the page, notebooks, figures and reports.

>>> from tokenpaths.frontend.charts import flow_chart
>>> flow = {"num_tokens": 4, "steps": [0, 1], "other": [],
...         "nodes": [{"step": s, "module": 0, "name": "m0", "kind": "mlp", "count": 4, "share": 1.0} for s in (0, 1)],
...         "links": [{"step": 0, "source": 0, "target": 0, "count": 4, "weight": 4.0, "share": 1.0}]}
>>> flow_chart(flow, theme="print").to_dict()["title"]["text"]
'Where do tokens go?'
"""

from tokenpaths.frontend.charts.compare import pair_chart, training_chart
from tokenpaths.frontend.charts.distributions import histogram_chart, label_chart, skip_reuse_chart
from tokenpaths.frontend.charts.drawing.ink import path_ink
from tokenpaths.frontend.charts.drawing.palette import THEMES
from tokenpaths.frontend.charts.drawing.running_text import text_pieces
from tokenpaths.frontend.charts.effects import answers_chart, flow_difference_chart, importance_chart, token_loss_chart
from tokenpaths.frontend.charts.families.dipaco_rerouting import rerouting_chart, strip_chart
from tokenpaths.frontend.charts.families.dipaco_shards import label_path_chart, sharing_chart, tree_chart
from tokenpaths.frontend.charts.families.directional_gates import (
    gate_chart,
    pca_chart,
    specialist_chart,
    variance_chart,
)
from tokenpaths.frontend.charts.families.expert_load import dead_chart, load_band_chart
from tokenpaths.frontend.charts.families.expert_stability import repetition_chart, saturation_chart
from tokenpaths.frontend.charts.families.experts import co_activation_chart, domain_chart, slice_chart, word_chart
from tokenpaths.frontend.charts.families.hmodel_connections import distance_chart, graph_chart
from tokenpaths.frontend.charts.families.raytracing_costs import (
    class_block_chart,
    class_chart,
    difficulty_chart,
    sharpening_chart,
    used_chart,
)
from tokenpaths.frontend.charts.families.raytracing_network import network_chart, share_chart
from tokenpaths.frontend.charts.families.raytracing_stops import fired_chart
from tokenpaths.frontend.charts.flow.flow import flow_chart, flow_thumbnail
from tokenpaths.frontend.charts.flow.flow_contrast import flow_contrast_chart
from tokenpaths.frontend.charts.flow.token_flow import token_flow_chart
from tokenpaths.frontend.charts.knowledge import contrast_chart, knowledge_chart
from tokenpaths.frontend.charts.patches import patch_chart
from tokenpaths.frontend.charts.paths import rank_frequency_chart
from tokenpaths.frontend.charts.sample_map import sample_map_chart
from tokenpaths.frontend.charts.several_runs.agreement_charts import (
    agreement_labels_chart,
    agreement_margins_chart,
    agreement_positions_chart,
    agreement_steps_chart,
    agreement_together_chart,
)
from tokenpaths.frontend.charts.several_runs.agreement_map import sample_agreement_chart
from tokenpaths.frontend.charts.slopes import slope_growth_chart
from tokenpaths.frontend.charts.usage import load_chart, module_count_chart, top_k_chart

__all__ = [
    "THEMES",
    "agreement_labels_chart",
    "agreement_margins_chart",
    "agreement_positions_chart",
    "agreement_steps_chart",
    "agreement_together_chart",
    "answers_chart",
    "class_block_chart",
    "class_chart",
    "co_activation_chart",
    "contrast_chart",
    "dead_chart",
    "difficulty_chart",
    "distance_chart",
    "domain_chart",
    "fired_chart",
    "flow_chart",
    "flow_contrast_chart",
    "flow_difference_chart",
    "flow_thumbnail",
    "gate_chart",
    "graph_chart",
    "histogram_chart",
    "importance_chart",
    "knowledge_chart",
    "label_chart",
    "label_path_chart",
    "load_band_chart",
    "load_chart",
    "module_count_chart",
    "network_chart",
    "pair_chart",
    "patch_chart",
    "path_ink",
    "pca_chart",
    "rank_frequency_chart",
    "repetition_chart",
    "rerouting_chart",
    "sample_agreement_chart",
    "sample_map_chart",
    "saturation_chart",
    "share_chart",
    "sharing_chart",
    "sharpening_chart",
    "skip_reuse_chart",
    "slope_growth_chart",
    "slice_chart",
    "specialist_chart",
    "strip_chart",
    "text_pieces",
    "token_flow_chart",
    "token_loss_chart",
    "top_k_chart",
    "training_chart",
    "tree_chart",
    "used_chart",
    "variance_chart",
    "word_chart",
]
