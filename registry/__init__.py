"""The artifact side: stores (layouts and registries), publishing, referrers, copying, verification.

A store is opened from a reference and then treated alike, wherever it is::

    from registry.store import open_store

    with open_store("oci-layout:dist/t4-probe") as store:
        descriptor = store.resolve("t4-probe")
"""

__version__ = "0.1.0"
