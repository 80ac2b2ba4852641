"""Finding the artifact of a profile digest, and reading what it says it holds."""

from dataclasses import dataclass

from kvreg.errors import ContractError, NotFoundError, UsageError, VerificationError
from kvreg.model.oci import (
    MEDIA_TYPE_PROFILE,
    MEDIA_TYPE_RUNTIME,
    MEDIA_TYPE_WHEEL,
    WHEEL_ROLES,
    Descriptor,
    Manifest,
)
from kvreg.model.profile import Profile, profile_from_canonical
from kvreg.model.tag import digest_tag
from kvreg.reference import Reference
from kvreg.sources import RawManifest, Source
from kvreg.wheel.tags import WheelName, check_tags, parse_wheel_name, same_name, same_version


@dataclass(frozen=True)
class Artifact:
    """A runtime artifact of a known profile digest. `digest` is that of the manifest's bytes."""

    reference: Reference
    digest: str
    manifest: Manifest


@dataclass(frozen=True)
class WheelLayer:
    """A wheel layer whose name and role make sense for the profile."""

    descriptor: Descriptor
    name: WheelName
    role: str


def find_artifact(source: Source, profile_digest: str, profile_name: str | None = None) -> Artifact:
    """The artifact of a profile in a store.

    A tag or digest in the source's reference decides; else the profile's digest tag; else, in a
    layout, the one manifest whose config is the profile. Whatever is found must have the profile
    as its config. `profile_name`, where it is known, serves a better error: its moving tag may hold
    an artifact of another state of the profile. Raises `NotFoundError`, `UsageError` when a layout
    has several, `VerificationError` when the artifact is another one than it is called.
    """
    target = source.reference.target or digest_tag(profile_digest)
    found = source.manifest(target)
    if found is None and source.reference.target is None:
        found = _scan(source, profile_digest)
    if found is None:
        raise NotFoundError(
            f"{source.reference} has no artifact of this profile",
            expected=f"{target}, for profile digest {profile_digest}",
            found=_other_state(source, profile_name),
            remedy="publish the runtime there, or pull the digest that it was published with:"
            " a profile or lock file that was changed has another one",
        )
    manifest = Manifest.parse(found.raw)
    _check_manifest(manifest, target, profile_digest)
    return Artifact(source.reference, found.digest, manifest)


def find_by_digest(source: Source, digest: str, profile_name: str) -> Artifact:
    """The artifact of the profile `digest`, else the one whose manifest has that digest.

    Its profile must bear the name. Raises as `find_artifact` does.
    """
    try:
        artifact = find_artifact(source, digest)
    except NotFoundError as error:
        found = source.manifest(digest)
        if found is None:
            raise NotFoundError(
                f"{source.reference} has nothing of this digest",
                expected=f"a profile or an artifact {digest}",
                remedy=error.remedy,
            ) from None
        manifest = Manifest.parse(found.raw)
        _check_manifest(manifest, digest, manifest.config.digest)
        artifact = Artifact(source.reference, found.digest, manifest)
    profile = profile_from_canonical(source.read_small(artifact.manifest.config))
    if profile.name != profile_name:
        raise VerificationError(
            f"{digest} is of another profile", expected=profile_name, found=profile.name
        )
    return artifact


def wheel_layers(artifact: Artifact, profile: Profile) -> tuple[WheelLayer, ...]:
    """The wheels of the artifact, checked against its profile.

    Exactly one has the role of the profile's runtime, with its name and version, and the host
    can load all of them. Raises `VerificationError` and `ContractError`.
    """
    layers = tuple(
        _layer(descriptor)
        for descriptor in artifact.manifest.layers
        if descriptor.media_type == MEDIA_TYPE_WHEEL
    )
    names = [layer.name.filename for layer in layers]
    if len(set(names)) != len(names):
        raise VerificationError("the artifact has two wheels of one name", found=", ".join(names))
    _check_runtime(layers, profile)
    for layer in layers:
        check_tags(layer.name, profile)
    return layers


def _scan(source: Source, profile_digest: str) -> RawManifest | None:
    """The one manifest that a layout lists with this profile as its config."""
    found = []
    for digest in source.manifest_digests():
        raw = source.manifest(digest)
        if raw is None:
            continue
        try:
            manifest = Manifest.parse(raw.raw)
        except VerificationError:
            # A layout may hold what is none of ours, such as an index.
            continue
        if manifest.config.digest == profile_digest:
            found.append(raw)
    if len(found) > 1:
        raise UsageError(
            f"{source.reference} has {len(found)} artifacts of this profile, none tagged",
            expected="one",
            found=", ".join(raw.digest for raw in found),
            remedy="add @sha256:... to the reference",
        )
    return found[0] if found else None


def _other_state(source: Source, profile_name: str | None) -> str | None:
    """What the moving tag of the profile's name holds instead."""
    raw = source.manifest(profile_name) if profile_name else None
    if raw is None:
        return None
    return f"{profile_name} there is of profile digest {Manifest.parse(raw.raw).config.digest}"


def _check_manifest(manifest: Manifest, target: str, profile_digest: str) -> None:
    if manifest.artifact_type != MEDIA_TYPE_RUNTIME:
        raise VerificationError(
            f"{target} is not a runtime artifact",
            expected=MEDIA_TYPE_RUNTIME,
            found=str(manifest.artifact_type),
        )
    if manifest.config.media_type != MEDIA_TYPE_PROFILE:
        raise VerificationError(
            f"the config of {target} is not a profile",
            expected=MEDIA_TYPE_PROFILE,
            found=manifest.config.media_type,
        )
    if manifest.config.digest != profile_digest:
        raise VerificationError(
            f"{target} is the artifact of another profile",
            expected=f"config {profile_digest}",
            found=f"config {manifest.config.digest}",
            remedy="check the reference; a moving tag may be older or newer than your profiles",
        )


def _layer(descriptor: Descriptor) -> WheelLayer:
    if descriptor.title is None:
        raise VerificationError("a wheel layer has no file name", found=descriptor.digest)
    name = parse_wheel_name(descriptor.title)
    if descriptor.role not in WHEEL_ROLES:
        raise VerificationError(
            f"the wheel {name.filename} has an unknown role",
            expected="one of " + ", ".join(WHEEL_ROLES),
            found=repr(descriptor.role),
        )
    return WheelLayer(descriptor, name, str(descriptor.role))


def _check_runtime(layers: tuple[WheelLayer, ...], profile: Profile) -> None:
    runtime = profile.runtime
    main = [layer for layer in layers if layer.role != "overlay"]
    described = ", ".join(f"{layer.name.filename} ({layer.role})" for layer in layers) or "none"
    if len(main) != 1 or main[0].role != runtime.role:
        raise VerificationError(
            "the artifact does not hold the one wheel that it is for",
            expected=f"one wheel of role {runtime.role}, others of role overlay",
            found=described,
        )
    name = main[0].name
    if not same_name(name.name, runtime.package) or not same_version(name.version, runtime.version):
        raise ContractError(
            f"the artifact's wheel is not the runtime of profile {profile.name}",
            expected=f"{runtime.package} {runtime.version}",
            found=f"{name.name} {name.version}",
            remedy="build and publish the runtime again",
        )
