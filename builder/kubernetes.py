"""The same matrix as Kubernetes Jobs, for sites that outgrow one machine.

Each Job is one `builder build` and `builder publish`. Builds run in containers of their own, so a
Job brings an engine beside the builder, which needs a privileged container; nothing else does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from builder.matrix import Job

NAME_LENGTH = 52
"""A Job's name ends up in those of its pods, which add eleven characters to at most 63."""


@dataclass(frozen=True)
class Site:
    """What a cluster brings.

    image: with this checkout at /work and the builder on its path. engine_image: a container engine
    that serves its socket. registry: where artifacts and compile caches go. cache_claim: a volume
    claim for the input cache, None for an empty one that goes with the pod. registry_secret: of
    type kubernetes.io/dockerconfigjson. namespace: None for the current one.
    """

    image: str
    engine_image: str
    registry: str
    cache_claim: str | None = None
    registry_secret: str | None = None
    namespace: str | None = None


def manifests(jobs: Iterable[Job], site: Site) -> dict[str, Any]:
    """A List of Jobs, as JSON-ready data that `kubectl apply -f -` takes."""
    return {"apiVersion": "v1", "kind": "List", "items": [_job(job, site) for job in jobs]}


def _job(job: Job, site: Site) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": job_name(job),
        "labels": {
            "app.kubernetes.io/name": "kvreg-builder",
            "app.kubernetes.io/component": "build",
            "kvreg/profile": job.profile[:63],
        },
        "annotations": {"kvreg/profile-digest": job.digest, "kvreg/build-key": job.key},
    }
    if site.namespace:
        metadata["namespace"] = site.namespace
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            # A build that was evicted goes on from the objects in the compile cache.
            "backoffLimit": 2,
            "activeDeadlineSeconds": job.minutes * 60,
            "ttlSecondsAfterFinished": 86400,
            "template": {"metadata": {"labels": metadata["labels"]}, "spec": _pod(job, site)},
        },
    }


def job_name(job: Job) -> str:
    """A DNS label that says what is built; the end of the profile's digest keeps names apart."""
    plain = re.sub(r"[^a-z0-9-]+", "-", f"build-{job.profile}").strip("-")
    return f"{plain[: NAME_LENGTH - 9].strip('-')}-{job.digest[-8:]}"


def _pod(job: Job, site: Site) -> dict[str, Any]:
    cache = (
        {"persistentVolumeClaim": {"claimName": site.cache_claim}}
        if site.cache_claim
        else {"emptyDir": {"sizeLimit": f"{job.disk_gib}Gi"}}
    )
    volumes: list[dict[str, Any]] = [
        {"name": "cache", **cache},
        {"name": "engine", "emptyDir": {"sizeLimit": f"{job.disk_gib}Gi"}},
        {"name": "socket", "emptyDir": {}},
    ]
    mounts = [
        {"name": "cache", "mountPath": "/cache"},
        {"name": "socket", "mountPath": "/var/run"},
    ]
    if site.registry_secret:
        secret = {
            "secretName": site.registry_secret,
            "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
        }
        volumes.append({"name": "credentials", "secret": secret})
        mounts.append({"name": "credentials", "mountPath": "/credentials", "readOnly": True})
    environment = [
        {"name": "KVREG_BUILD_CACHE", "value": "/cache"},
        {"name": "DOCKER_HOST", "value": "unix:///var/run/docker.sock"},
        *([{"name": "DOCKER_CONFIG", "value": "/credentials"}] if site.registry_secret else []),
    ]
    engine = {
        "name": "engine",
        "image": site.engine_image,
        # An init container that restarts is a sidecar: it is up before the build and ends after it.
        "restartPolicy": "Always",
        "securityContext": {"privileged": True},
        "args": ["dockerd", "--host=unix:///var/run/docker.sock", "--bridge=none"],
        "startupProbe": {
            "exec": {"command": ["test", "-S", "/var/run/docker.sock"]},
            "periodSeconds": 2,
            "failureThreshold": 60,
        },
        # The engine binds folders of the builder into containers: both see them at one place.
        "volumeMounts": [*mounts[:2], {"name": "engine", "mountPath": "/var/lib/docker"}],
    }
    build = {
        "name": "build",
        "image": site.image,
        "workingDir": "/work",
        "command": ["builder", "ci", "build"],
        "args": [
            *("--profile", job.profile, "--registry", site.registry),
            *(("--toolchain", job.toolchain) if job.toolchain else ()),
        ],
        "env": environment,
        "resources": {
            "requests": {"cpu": str(job.cores), "memory": f"{job.memory_gib}Gi"},
            "limits": {"memory": f"{job.memory_gib}Gi"},
        },
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "initContainers": [engine],
        "containers": [build],
        "volumes": volumes,
    }
