"""Tensor-parallel sweeps: a frozen plan, fresh servers, an append-only ledger.

======================  ========================================================================
`kvreg.sweep.plan`      the plan: what is measured, in which order, under which rules
`kvreg.sweep.ledger`    what has happened: attempts, terminal states, metrics
`kvreg.sweep.runner`    cells, one after the other
`kvreg.sweep.gate`      does a model load and answer at all
======================  ========================================================================

Compatibility, capacity, performance and quality are four questions: a gate, a memory boundary, a
measurement, and none of the three says anything about quality.
"""
