"""Charts: plain tables in, ``altair`` charts out. No web, no state; notebooks and prints use the same ones.

>>> from frontend.charts import flow_chart
>>> flow = {"num_tokens": 4, "steps": [0, 1], "other": [],
...         "nodes": [{"step": s, "module": 0, "name": "m0", "kind": "mlp", "count": 4, "share": 1.0} for s in (0, 1)],
...         "links": [{"step": 0, "source": 0, "target": 0, "count": 4, "weight": 4.0, "share": 1.0}]}
>>> flow_chart(flow, theme="print").to_dict()["title"]["text"]
'Where do tokens go?'
"""

from frontend.charts.distributions import histogram_chart, label_chart, skip_reuse_chart
from frontend.charts.flow import flow_chart, flow_thumbnail
from frontend.charts.palette import THEMES, cdf_colour, cdf_scale
from frontend.charts.patches import patch_chart
from frontend.charts.paths import rank_frequency_chart
from frontend.charts.running_text import text_pieces
from frontend.charts.token_flow import token_flow_chart
from frontend.charts.usage import load_chart, top_k_chart

__all__ = [
    "THEMES",
    "cdf_colour",
    "cdf_scale",
    "flow_chart",
    "flow_thumbnail",
    "histogram_chart",
    "label_chart",
    "load_chart",
    "patch_chart",
    "rank_frequency_chart",
    "skip_reuse_chart",
    "text_pieces",
    "token_flow_chart",
    "top_k_chart",
]
