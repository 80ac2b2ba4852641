"""`builder publish`"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.commands.options import cache_option, open_cache, profile_option
from builder.files import write_bytes
from kvreg.console import emit, handled, human_bytes, json_option, progress

if TYPE_CHECKING:
    from builder.product import Product
    from registry.privatekey import PrivateKey
    from registry.publish import Layer
    from registry.store import Store


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
@click.option(
    "--key",
    "key_path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Sign the artifact and its provenance with this private key (registry keygen).",
)
@click.option(
    "--builder-id",
    metavar="URI",
    envvar="KVREG_BUILDER_ID",
    help="Who runs this builder, for the provenance. Default: $KVREG_BUILDER_ID, else nobody.",
)
@cache_option
@json_option
@handled
def publish(
    profile_name: str,
    destination: str | None,
    dated: bool,
    key_path: Path | None,
    builder_id: str | None,
    cache_root: Path | None,
    as_json: bool,
) -> None:
    """Publish the finished build of a profile as an OCI artifact.

    The wheel is the first layer, the overlay's lock and wheels (fetched by hash into the input
    cache) are the others, and the canonical profile is the config; the SBOM, the provenance and the
    build record are attached as referrers. With a key the artifact and its provenance are signed
    as cosign does, without a transparency log. The reference is checked, and the build is that of
    the profile as it is now, before anything is sent; what the store has already is not sent
    again.

    \b
    Examples:
      builder publish --profile t4-probe
      builder publish --profile t4x2-cu128 --to localhost:5000/runtimes/vllm --key kvreg.key
    """
    from builder.layout import find_checkout
    from builder.overlay_lock import overlay_layers
    from builder.product import read_product
    from builder.provenance import check_builder_id
    from registry.commands.signing import ask_password
    from registry.privatekey import read_private_key
    from registry.store import open_store

    checkout = find_checkout()
    if destination is None:
        destination = f"oci-layout:{checkout.dist / 'registry'}"
    check_builder_id(builder_id)
    cache = open_cache(cache_root)
    # A password is asked for, and a wrong one refused, before anything is sent.
    key = read_private_key(key_path, ask_password) if key_path else None
    with open_store(destination) as store:
        product = read_product(checkout, profile_name)
        overlay = overlay_layers(product.profile, checkout.profile(profile_name), cache)
        result = publish_product(
            product, store, overlay=overlay, dated=dated, key=key, builder_id=builder_id
        )
    emit(
        {"store": destination, **result},
        as_json,
        lambda r: (
            f"{r['digest']} in {r['store']}\n"
            f"  tags {', '.join(r['tags'])}\n"
            f"  referrers {', '.join(r['referrers'])}\n"
            f"  signed {'by ' + r['signed_by'] if r['signed_by'] else 'no'}\n"
            f"  {human_bytes(r['uploaded_bytes'])} sent\n"
            f"next: kvreg pull {product.profile.name} --registry {r['store']}"
        ),
    )


def publish_product(
    product: Product,
    store: Store,
    *,
    overlay: Sequence[Layer] = (),
    dated: bool = True,
    key: PrivateKey | None = None,
    builder_id: str | None = None,
) -> dict[str, Any]:
    """Publish a finished build into an open store, with SBOM, provenance and record as referrers.

    `overlay` are the layers of the profile's overlay, from `overlay_layers`. With a `key`,
    artifact and provenance are signed. Raises what the steps raise.
    """
    from builder.capabilities import compute_capabilities
    from builder.key import key_tag
    from builder.product import PROVENANCE, RECORD, SBOM
    from builder.provenance import MEDIA_TYPE_RECORD, build_provenance
    from kvreg.model.oci import (
        ANNOTATION_COMPUTE_CAPABILITIES,
        MEDIA_TYPE_PROVENANCE,
        MEDIA_TYPE_SBOM,
    )
    from registry.attach import attach
    from registry.publish import Layer, ToolchainUse, publish
    from registry.signing import attest, sign

    used = product.record.get("toolchain")
    toolchain = (
        ToolchainUse(used["name"], used["image_digest"], used["cuda_version"]) if used else None
    )
    profile = product.profile
    capabilities = compute_capabilities(product.record["audit"], profile)
    annotations = {ANNOTATION_COMPUTE_CAPABILITIES: " ".join(capabilities)} if capabilities else {}
    layers = [Layer(product.wheel, role=profile.runtime.role), *overlay]
    total = sum(layer.path.stat().st_size for layer in layers)
    with progress(total, "publishing") as bar:
        published = publish(
            store,
            profile,
            layers,
            annotations,
            toolchain=toolchain,
            dated=dated,
            progress=bar.update,
        )
    subject = published.descriptor
    tags = list(published.tags)
    provenance = build_provenance(
        product.record,
        manifest_digest=subject.digest,
        artifact_name=profile.name,
        record_bytes=(product.folder / RECORD).read_bytes(),
        sbom_bytes=(product.folder / SBOM).read_bytes(),
        builder_id=builder_id,
    )
    write_bytes(product.folder / PROVENANCE, provenance)
    referrers = [
        attach(store, subject, MEDIA_TYPE_SBOM, product.folder / SBOM, SBOM),
        attach(store, subject, MEDIA_TYPE_PROVENANCE, provenance, PROVENANCE),
        attach(store, subject, MEDIA_TYPE_RECORD, product.folder / RECORD, RECORD),
    ]
    if built := (product.record.get("key") or {}).get("digest"):
        # After the record that it leads to: `builder build --from` reads both.
        store.tag(subject, key_tag(built))
        tags.append(key_tag(built))
    if key is not None:
        referrers.append(attest(store, subject.digest, provenance, key))
        sign(store, subject.digest, key)
    return {
        "digest": subject.digest,
        "tags": tags,
        "referrers": [f"{r.digest[:19]}" for r in referrers],
        "signed_by": key.public.fingerprint if key else None,
        "uploaded_bytes": published.uploaded_bytes,
    }
