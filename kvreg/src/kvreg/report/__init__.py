"""Reports of sweeps: tables, figures and one page, drawn from an analysis and nothing else.

No statistic is computed here: every number is one of `kvreg.analysis.Analysis.to_dict`, of
`kvreg.nccl.fit.analyse`, or a raw value of a cell.
"""
