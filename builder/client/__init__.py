"""The client as a single file: ``kvreg.pyz``, for hosts where even ``pip install`` is unwelcome."""
