"""Interactive charts in a page: a Vega-Lite document that `assets/charts.js` draws with the site's own copy of Vega."""

from __future__ import annotations

import json
from typing import Any

from fedprior.report.charts import CONFIG


def embedded(spec: dict[str, Any]) -> str:
    """A chart as HTML."""
    told = json.dumps(spec | {"config": CONFIG | {"mark": {"tooltip": True}}}).replace("<", "\\u003c")
    return f'<div class="chart"><script type="application/json">{told}</script></div>'
