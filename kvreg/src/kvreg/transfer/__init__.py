"""How blobs come in: parallel ranged download, a journal of what arrived, digests.

`ranges` are sets of byte positions, `journal` keeps them across processes, `blob` is a file that
is read while it is written, `schedule` and `download` bring its bytes, `checking` computes its
digest in step with them.
"""
