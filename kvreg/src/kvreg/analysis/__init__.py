"""From measured cells to verdicts: paired differences, intervals and crossovers.

`kvreg.analysis.table` reads cells, `analyze` judges them, `Analysis.to_dict` is what every report
is drawn from.
"""

from kvreg.analysis.results import Analysis
from kvreg.analysis.study import analyze

__all__ = ["Analysis", "analyze"]
