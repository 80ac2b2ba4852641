"""What fits on a GPU: weights per tensor-parallel degree, KV cache per sequence, concurrency.

A capacity model is arithmetic over a model's ``config.json``; it says what must fit at least. What
an engine really uses beside it (context, activations, graphs, fragmentation) is measured, and
`kvreg.capacity.evidence` holds the two against each other.
"""
