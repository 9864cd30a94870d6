"""The report of an audit: figures and verdict in, one self-contained HTML file out.

``collect_figures`` asks Spark (``spark.figures``) and gives plain, bounded, JSON-able values;
``render`` needs no Spark. Nothing here judges: the verdict is made elsewhere and only shown.
"""

from __future__ import annotations

from spark.report.collect import COLUMNS, Limits, collect_figures
from spark.report.page import render

__all__ = ["COLUMNS", "Limits", "collect_figures", "render"]
