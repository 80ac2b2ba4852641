"""Toolchain images in the engine: found by their inputs, built, and asked what they are."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
from docker.errors import APIError, DockerException, ImageNotFound

from builder.engine import Engine
from builder.errors import BuildError
from builder.toolchain_archive import stream_context
from builder.toolchain_definition import BaseImage, Toolchain
from kvreg.errors import KvregError, NetworkError

INPUTS_LABEL = "vnd.kvreg.inputs"
TOOLCHAIN_LABEL = "vnd.kvreg.toolchain"
MANIFEST = "/usr/local/share/kvreg/toolchain.json"

# Asks every tool for its version and compiles a kernel: what nvcc says is not yet what it does.
_PROBE = r"""
set -eu
cd "$(mktemp -d)"
echo "nvcc=$(nvcc --version | sed -n 's/.*, V\([0-9.]*\)$/\1/p')"
echo "gcc=$(gcc -dumpfullversion)"
echo "glibc=$(ldd --version | sed -n '1s/.* //p')"
echo "binutils=$(ld --version | sed -n '1s/.* //p')"
echo "python=$(/opt/python3.12/bin/python3.12 -V | sed 's/.* //')"
echo "ccache=$(ccache --version 2>/dev/null | sed -n '1s/.* //p')"
echo '__global__ void twice(float *x) { x[threadIdx.x] *= 2; }' > probe.cu
nvcc -gencode arch=compute_75,code=sm_75 -c -o probe.o probe.cu
echo "cubin=$(cuobjdump --list-elf probe.o | sed -n 's/.*\(sm_[0-9]*\).*/\1/p' | head -n 1)"
"""


@dataclass(frozen=True)
class Versions:
    """What the tools of an image say of themselves; ccache is "" where there is none."""

    nvcc: str
    gcc: str
    glibc: str
    binutils: str
    python: str
    ccache: str


def find_image(engine: Engine, inputs: str) -> str | None:
    """The id of the newest image with this inputs digest, or None."""
    images = engine.client.api.images(filters={"label": f"{INPUTS_LABEL}={inputs}"})
    newest = max(images, key=lambda image: image["Created"], default=None)
    return None if newest is None else str(newest["Id"])


def image_layers(engine: Engine, image_id: str) -> tuple[tuple[str, ...], int]:
    """The digests of an image's unpacked layers, and its size in bytes."""
    attributes = engine.client.api.inspect_image(image_id)
    return tuple(attributes["RootFS"].get("Layers") or ()), int(attributes["Size"])


def build_image(
    engine: Engine,
    toolchain: Toolchain,
    archives: Mapping[str, Path],
    *,
    target: str | None = None,
    labels: Mapping[str, str] | None = None,
    arguments: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] = lambda line: None,
) -> str:
    """Build the toolchain's Dockerfile (or one stage of it) without network; returns the id.

    archives: the files that it adds, by name. Only the last stage is tagged. Raises BuildError
    with the engine's own words.
    """
    context = stream_context((toolchain.folder / "Dockerfile").read_bytes(), archives)
    image_id = ""
    try:
        answers = engine.client.api.build(
            fileobj=context,
            custom_context=True,
            tag=None if target else toolchain.tag,
            target=target,
            rm=True,
            forcerm=True,
            network_mode="none",
            use_config_proxy=False,
            labels=dict(labels or {}),
            buildargs=dict(arguments or {}),
            decode=True,
        )
        for answer in answers:
            if "error" in answer:
                raise BuildError(
                    f"the engine could not build {toolchain.name}", found=answer["error"].strip()
                )
            image_id = (answer.get("aux") or {}).get("ID", image_id)
            for line in answer.get("stream", "").splitlines():
                if line.startswith("Successfully built ") and not image_id:
                    image_id = line.split()[-1]
                on_line(line)
    except (DockerException, requests.RequestException) as error:
        raise BuildError(
            f"the engine could not build {toolchain.name}", found=str(error)
        ) from error
    if not image_id:
        raise BuildError(f"the engine named no image after building {toolchain.name}")
    return str(engine.client.api.inspect_image(image_id)["Id"])


def pull_base(engine: Engine, toolchain: Toolchain, others: tuple[str, ...]) -> str:
    """Have the base image, by any of its digests; returns ``repository@digest``.

    An image that the engine already has is not pulled again. others: the names of toolchains to
    offer instead. Raises NetworkError when no digest can be had.
    """
    base = toolchain.base_image
    assert base is not None
    references = [f"{base.repository}@{digest}" for digest in base.digests]
    for reference in references:
        with suppress(ImageNotFound):
            engine.client.api.inspect_image(reference)
            return reference
    answers = []
    for reference in references:
        try:
            engine.client.images.pull(base.repository, tag=reference.split("@")[1])
            _require_digest(engine, base, reference)
            return reference
        except (DockerException, requests.RequestException) as error:
            answers.append(str(getattr(error, "explanation", None) or error))
    raise NetworkError(
        f"image {base.repository}:{base.tag} cannot be pulled",
        expected=" or ".join(base.digests),
        found="; ".join(dict.fromkeys(answers)),
        remedy="load it into the engine by that digest, or use another toolchain: "
        + ", ".join(f"--toolchain {name}" for name in others),
    )


def _require_digest(engine: Engine, base: BaseImage, reference: str) -> None:
    reported = engine.client.api.inspect_image(reference).get("RepoDigests") or []
    digests = {entry.rpartition("@")[2] for entry in reported}
    if digests and not digests & set(base.digests):
        raise DockerException(
            f"the engine reports {', '.join(sorted(digests))} for what was pulled by {reference}"
        )


def read_manifest(engine: Engine, image_id: str) -> dict[str, Any]:
    """The manifest that lies in an image: what it was made of. Nothing of the image runs."""
    container = engine.client.containers.create(image_id, ["/bin/true"], network_mode="none")
    try:
        stream, _ = container.get_archive(MANIFEST)
        with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
            member = archive.extractfile(archive.next())  # type: ignore[arg-type]
            assert member is not None
            return dict(json.loads(member.read()))
    except APIError as error:
        raise BuildError(f"image {image_id} has no {MANIFEST}", found=str(error)) from error
    finally:
        container.remove(force=True)


def ask_versions(engine: Engine, image_id: str) -> Versions:
    """Run the image's tools, without network and not as root, and compile a kernel for sm_75.

    Raises BuildError when one fails.
    """
    lines: list[str] = []
    result = engine.run(
        image_id,
        ["/bin/bash", "-c", _PROBE],
        user="1000:1000",
        environment={"HOME": "/tmp"},
        on_line=lines.append,
    )
    facts = dict(line.split("=", 1) for line in lines if "=" in line)
    if result.exit_code != 0 or facts.pop("cubin", None) != "sm_75":
        raise BuildError(
            "the toolchain image cannot compile a kernel for sm_75",
            expected="a cubin for sm_75",
            found="\n    ".join(lines[-10:]) or f"exit status {result.exit_code}",
        )
    return Versions(**facts)


def remove_image(engine: Engine, image_id: str) -> None:
    """Remove an image that failed its checks; other images keep their layers."""
    with suppress(KvregError, DockerException):
        engine.client.api.remove_image(image_id, force=True)
