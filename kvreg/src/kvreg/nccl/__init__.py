"""What communication costs: all-reduce between ranks, measured, kept and fitted.

`kvreg.nccl.design` says what is measured, `kvreg.nccl.worker` is the program of one rank,
`kvreg.nccl.measurement` runs the ranks, `kvreg.nccl.record` keeps what they saw and
`kvreg.nccl.fit` turns it into latency and bandwidth.
"""
