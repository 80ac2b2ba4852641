"""`builder publish`"""

from __future__ import annotations

from typing import Any

import click

from builder.commands.options import profile_option
from kvreg.console import emit, handled, human_bytes, json_option, progress


@click.command()
@profile_option
@click.option(
    "--to",
    "destination",
    help="Store: oci-layout:PATH or HOST[:PORT]/REPOSITORY  [default: oci-layout:dist/registry]",
)
@click.option(
    "--dated/--no-dated",
    default=True,
    show_default=True,
    help="Also set <profile>-v<version>-<date>, a tag that is never moved to other bytes.",
)
@json_option
@handled
def publish(profile_name: str, destination: str | None, dated: bool, as_json: bool) -> None:
    """Publish the finished build of a profile as an OCI artifact.

    The wheel is the layer, the canonical profile is the config, the SBOM and the build record
    are attached as referrers. The reference is checked, and the build is that of the profile as
    it is now, before anything is sent; what the store has already is not sent again.

    \b
    Examples:
      builder publish --profile t4-probe
      builder publish --profile t4x2-cu128 --to localhost:5000/runtimes/vllm
    """
    from builder.layout import find_checkout
    from builder.product import read_product
    from registry.store import open_store

    checkout = find_checkout()
    if destination is None:
        destination = f"oci-layout:{checkout.dist / 'registry'}"
    with open_store(destination) as store:
        product = read_product(checkout, profile_name)
        result = publish_product(product, store, dated=dated)
    emit(
        {"store": destination, **result},
        as_json,
        lambda r: (
            f"{r['digest']} in {r['store']}\n"
            f"  tags {', '.join(r['tags'])}\n"
            f"  referrers {', '.join(r['referrers'])}\n"
            f"  {human_bytes(r['uploaded_bytes'])} sent\n"
            f"next: kvreg pull {product.profile.name} --registry {r['store']}"
        ),
    )


def publish_product(product: Any, store: Any, *, dated: bool = True) -> dict[str, Any]:
    """Publish a finished build into an open store, with its SBOM and record as referrers."""
    from builder.product import RECORD, SBOM
    from kvreg.model.oci import MEDIA_TYPE_SBOM
    from registry.attach import attach
    from registry.publish import Layer, ToolchainUse, publish

    used = product.record.get("toolchain")
    toolchain = (
        ToolchainUse(used["name"], used["image_digest"], used["cuda_version"]) if used else None
    )
    profile = product.profile
    with progress(product.wheel.stat().st_size, "publishing") as bar:
        published = publish(
            store,
            profile,
            [Layer(product.wheel, role=profile.runtime.role)],
            toolchain=toolchain,
            dated=dated,
            progress=bar.update,
        )
    referrers = [
        attach(store, published.descriptor, MEDIA_TYPE_SBOM, product.folder / SBOM, SBOM),
        attach(store, published.descriptor, MEDIA_TYPE_RECORD, product.folder / RECORD, RECORD),
    ]
    return {
        "digest": published.descriptor.digest,
        "tags": list(published.tags),
        "referrers": [f"{r.digest[:19]}" for r in referrers],
        "uploaded_bytes": published.uploaded_bytes,
    }


MEDIA_TYPE_RECORD = "application/vnd.kvreg.build-record.v1+json"
"""The build record as a referrer."""
