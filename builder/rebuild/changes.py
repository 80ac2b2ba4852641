"""What this checkout does not have as the provenance names it: recipe, builder, locks, toolchain.

A rebuild with other parts would say nothing of the published wheel, so each one is named with both
digests; whoever goes on despite them has them in the verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from builder.build import locked_inputs
from builder.cache import file_sha256
from builder.inputs import Input, tree_input, write_lock
from builder.key import recipe_digest
from builder.layout import Checkout
from builder.rebuild.published import Published
from builder.recipes.model import recipe
from builder.sources import builder_digest
from builder.toolchain import ToolchainImage, inputs_digest
from builder.toolchain_definition import load_toolchain
from kvreg.errors import ContractError, NotFoundError, Problem, VerificationError

OPTION = "--despite-changes"


@dataclass(frozen=True)
class Change:
    """One part that is not the published one; digests ``sha256:<hex>``, None for what is absent."""

    what: str
    published: str
    here: str | None

    def to_dict(self) -> dict[str, str | None]:
        return {"what": self.what, "published": self.published, "here": self.here}


def refuse(published: Published, changes: tuple[Change, ...]) -> None:
    """Raises ContractError with both digests of everything that changed."""
    if not changes:
        return
    raise ContractError(
        f"this checkout would not build {published.profile.name} as it was published: "
        + ", ".join(change.what for change in changes),
        problems=[
            Problem(c.what, "differs from what the provenance names", c.published, c.here or "none")
            for c in changes
        ],
        remedy="use the checkout and toolchain that it was built with, or build with what is here"
        f" and have that in the verdict: {OPTION}",
    )


def checkout_changes(published: Published, checkout: Checkout) -> tuple[Change, ...]:
    """Everything that can be told before anything is fetched or started."""
    provenance, profile = published.provenance, published.profile
    made = recipe(profile.build.recipe)
    found = []
    if published.recipe and (here := recipe_digest(made)) != published.recipe:
        found.append(Change(f"recipe {made.name}", published.recipe, here))
    if provenance.builder and (here := builder_digest()) != provenance.builder:
        found.append(Change("builder", provenance.builder, here))
    for role, lock in profile.locks.items():
        if role in ("source", "build") and _lock_file(published, checkout, role) is None:
            path = _own_folder(published, checkout) / lock.file
            here = f"sha256:{file_sha256(path)}" if path.is_file() else None
            found.append(Change(f"{role} lock", f"sha256:{lock.sha256}", here))
    for name, (_, tree) in made_trees(published).items():
        locked = provenance.inputs.get(name)
        if locked and tree.sha256 != locked:
            found.append(
                Change(f"sources of {tree.name}", f"sha256:{locked}", f"sha256:{tree.sha256}")
            )
    if provenance.toolchain is not None and provenance.definition is not None:
        try:
            here = inputs_digest(load_toolchain(provenance.toolchain, checkout.dockerfiles))
        except NotFoundError:
            here = None
        if here != provenance.definition:
            what = f"definition of toolchain {provenance.toolchain}"
            found.append(Change(what, provenance.definition, here))
    return tuple(found)


def image_changes(published: Published, image: ToolchainImage) -> tuple[Change, ...]:
    """Whether the engine's image is the one that was used.

    Images compare by their layers: an image's own digest also covers when it was made.
    """
    provenance = published.provenance
    if provenance.image is None or image.layers == provenance.layers:
        return ()
    what = f"image of toolchain {image.name}"
    if image.layers[:-1] == provenance.layers[:-1]:
        what += " (the layer with CPython alone)"
    return (Change(what, provenance.image, image.image_digest),)


def lay_out_locks(published: Published, checkout: Checkout, folder: Path) -> dict[str, str]:
    """Write the locks to build from into `folder`; says by role where each came from.

    A lock is found by its digest, whatever profile of the checkout has it; where there is none,
    the profile's own takes its place, which `checkout_changes` has told. Raises NotFoundError when
    there is none at all, VerificationError when lock and provenance disagree.
    """
    trees = made_trees(published)
    origins = {}
    for role, lock in published.profile.locks.items():
        if role not in ("source", "build"):
            continue
        path = _lock_file(published, checkout, role)
        origins[role] = "published" if path else "this checkout"
        path = path or _own_folder(published, checkout) / lock.file
        if not path.is_file():
            raise NotFoundError(
                f"no profile of this checkout has the {role} lock of {published.profile.name}",
                expected=f"{lock.file} with sha256:{lock.sha256}",
                remedy="use the checkout that it was built from",
            )
        (folder / lock.file).write_bytes(path.read_bytes())
    locked = locked_inputs(published.profile, folder)
    if set(origins.values()) == {"published"}:
        _compare(published, locked)
    for role, items in locked.items():
        current = tuple(trees[i.filename][1] if i.filename in trees else i for i in items)
        if current != items:  # told by `checkout_changes` and gone on despite
            write_lock(folder / published.profile.locks[role].file, current, "as it is here")
    return origins


def made_trees(published: Published) -> Mapping[str, tuple[Path, Input]]:
    """The source trees of this checkout that the recipe takes, as locked inputs by file name."""
    made = recipe(published.profile.build.recipe)
    return {
        filename: (path, tree_input(name, version, filename, path))
        for name, version, filename, path in made.sources(published.profile).trees
    }


def _compare(published: Published, locked: Mapping[str, tuple[Input, ...]]) -> None:
    """Every locked input is in the provenance by its digest, and nothing else is."""
    ours = {
        name: sha256
        for items in locked.values()
        for item in items
        for name, sha256 in (
            [(m.path, m.sha256) for m in item.members]
            if item.members
            else [(item.filename, item.sha256)]
        )
    }
    theirs = published.provenance.inputs
    problems = [
        Problem(name, "is not what the profile locks", ours.get(name), theirs.get(name))
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]
    if problems:
        raise VerificationError(
            f"the provenance of {published.descriptor.digest} names other inputs than its profile",
            problems=problems[:20],
            remedy="do not use the artifact, and ask who published it",
        )


def _own_folder(published: Published, checkout: Checkout) -> Path:
    return checkout.profiles / published.profile.name


def _lock_file(published: Published, checkout: Checkout, role: str) -> Path | None:
    """A lock of this checkout with the digest that the profile names."""
    lock = published.profile.locks[role]
    folders = [_own_folder(published, checkout), *sorted(checkout.profiles.glob("*"))]
    for path in (folder / lock.file for folder in folders):
        if path.is_file() and file_sha256(path) == lock.sha256:
            return path
    return None
