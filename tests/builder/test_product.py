"""A finished build is known by what reached it: a new overlay needs a new description alone."""

import hashlib
import json
from dataclasses import replace

import pytest

from builder.layout import Checkout
from builder.product import read_product
from builder.record import SCHEMA, is_build_of, profile_facts
from kvreg.errors import ContractError, NotFoundError
from kvreg.model.profile import load_profile
from tests.kvreg.profiles import write_profile

DESCRIBED = ("audit.json", "sbom.cdx.json", "record.md")


@pytest.fixture
def checkout(tmp_path):
    """A checkout with a profile and its finished, audited build."""
    write_profile(tmp_path / "profiles")
    (tmp_path / "dockerfiles").mkdir()
    checkout = Checkout(tmp_path)
    out = checkout.build_folder("demo")
    out.mkdir(parents=True)
    (out / "demo.whl").write_bytes(b"wheel")
    facts = {"filename": "demo.whl", "sha256": hashlib.sha256(b"wheel").hexdigest()}
    record = {
        "schema": SCHEMA,
        # As records were before there were overlays.
        "profile": {"name": "demo", "digest": profile_of(checkout).digest},
        "wheel": facts,
        "audit": {"ok": True, "complete": True},
    }
    (out / "record.json").write_text(json.dumps(record))
    for name in DESCRIBED:
        (out / name).write_text("{}")
    return checkout


def profile_of(checkout):
    return load_profile(checkout.profile("demo"))


def give_overlay(checkout, text="# none\n"):
    folder = checkout.profile("demo")
    (folder / "overlay.lock").write_text(text)
    path = folder / "profile.toml"
    if "overlay" not in path.read_text():
        path.write_text(path.read_text() + 'overlay = "overlay.lock"\n')


def test_a_build_from_before_the_overlay_is_still_the_profiles(checkout):
    product = read_product(checkout, "demo")
    give_overlay(checkout)
    profile = profile_of(checkout)
    assert profile.digest != product.profile.digest
    assert is_build_of(product.record, profile)
    with pytest.raises(ContractError, match="described for another profile digest") as caught:
        read_product(checkout, "demo")
    assert "nothing is compiled by: builder build --profile demo --examine" in caught.value.remedy
    # What describing it anew writes.
    path = checkout.build_folder("demo") / "record.json"
    path.write_text(json.dumps({**product.record, "profile": profile_facts(profile)}))
    assert read_product(checkout, "demo").profile.digest == profile.digest
    give_overlay(checkout, "# another\n")
    with pytest.raises(ContractError, match="described for another"):
        read_product(checkout, "demo")


def test_a_change_that_reaches_the_build_needs_a_new_one(checkout):
    record = read_product(checkout, "demo").record
    profile = profile_of(checkout)
    lock = replace(profile.locks["source"], sha256="b" * 64)
    assert not is_build_of(record, replace(profile, locks={"source": lock}))
    (checkout.profile("demo") / "source.lock").write_text("version = 1\n# changed\n")
    with pytest.raises(ContractError, match="of another profile digest") as caught:
        read_product(checkout, "demo")
    assert "--examine" not in caught.value.remedy


def test_without_a_build_there_is_nothing_to_publish(checkout):
    (checkout.build_folder("demo") / "record.json").unlink()
    with pytest.raises(NotFoundError, match="no finished build"):
        read_product(checkout, "demo")


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_build_that_was_ended_before_it_was_described_is_not_finished(checkout, name):
    (checkout.build_folder("demo") / name).unlink()
    with pytest.raises(ContractError, match="before it was described") as caught:
        read_product(checkout, "demo")
    assert name in caught.value.found and "--examine" in caught.value.remedy
