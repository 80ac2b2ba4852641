"""Verified, side-by-side vLLM runtimes for managed GPU notebooks: the client.

Importing this package imports nothing else, so that ``import kvreg`` costs next to nothing.
"""

__version__ = "0.1.0"
