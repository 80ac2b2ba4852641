"""Profiles: reading, all problems at once, the canonical form and its digest."""

import hashlib
import json
from datetime import date

import pytest
import rfc8785

from kvreg.errors import ContractError, NotFoundError, UsageError, VerificationError
from kvreg.model.profile import load_profile, profile_from_canonical
from tests.kvreg.profiles import make_profile, profile_tree, write_profile


def test_canonical_form_is_the_tree_with_the_locks_hashed(tmp_path):
    profile = make_profile(tmp_path)
    tree = profile_tree()
    lock = (tmp_path / "demo/source.lock").read_bytes()
    sha256 = hashlib.sha256(lock).hexdigest()
    tree["locks"] = {"source": {"file": "source.lock", "sha256": sha256}}
    assert profile.canonical() == rfc8785.dumps(tree)
    assert profile.digest == "sha256:" + hashlib.sha256(rfc8785.dumps(tree)).hexdigest()


def test_the_config_blob_reads_back_as_the_same_profile(tmp_path):
    profile = make_profile(tmp_path)
    assert profile_from_canonical(profile.canonical()) == profile


def test_defaults_are_not_left_to_the_reader(tmp_path):
    """A profile without optional tables has them, empty, in its canonical form."""
    folder = write_profile(tmp_path)
    text = (folder / "profile.toml").read_text()
    for table in ("[build.environment]", "[[build.omission]]", "[locks]"):
        start = text.index(table)
        end = text.find("\n[", start + 1)
        text = text[:start] + (text[end + 1 :] if end > 0 else "")
    (folder / "profile.toml").write_text(text)
    tree = json.loads(load_profile(folder).canonical())
    assert tree["build"]["environment"] == {}
    assert tree["build"]["omission"] == []
    assert tree["locks"] == {}


def test_a_changed_lock_changes_the_digest(tmp_path):
    before = make_profile(tmp_path).digest
    (tmp_path / "demo/source.lock").write_text("version = 2\n")
    assert load_profile(tmp_path / "demo").digest != before


def test_order_and_comments_do_not_change_the_digest(tmp_path):
    before = make_profile(tmp_path).digest
    path = tmp_path / "demo/profile.toml"
    head, separator, tail = path.read_text().partition("[build.limits]")
    limits, locks_separator, locks = tail.partition("[locks]")
    path.write_text(f"# reordered\n{head}{locks_separator}{locks}\n{separator}{limits}")
    assert load_profile(tmp_path / "demo").digest == before


@pytest.mark.parametrize(
    ("key", "line", "where", "found"),
    [
        ("schema", "schema = 2", "schema", "too old"),
        ("id", 'id = "Not Valid"', "id", "Not Valid"),
        ("summary", 'summary = ""', "summary", "''"),
        ("glibc", 'glibc = { require = ">=3", validated = "2.35" }', "host.glibc", None),
        ("torch", 'torch = "2.10.0"', "host.torch", "2.10.0"),
        ("torch", 'torch = { require = "2.10.0" }', "host.torch.validated", None),
        ("count", "count = { require = 2, validated = 2 }", "host.gpu.count.require", "2"),
        ("nccl", 'ncll = { require = "*", validated = "1" }', "host.ncll", None),
        ("role", 'role = "main"', "runtime.role", "main"),
        ("upstream_commit", 'upstream_commit = "a26e8dc"', "runtime.upstream_commit", "a26e8dc"),
        ("modules", 'modules = ["a-b"]', "runtime.modules", "a-b"),
        ("modules", "modules = []", "runtime.modules", "[]"),
        ("version", 'version = "v1"', "runtime.version", "v1"),
        ("ptx", 'ptx = "no"', "build.ptx", "no"),
        ("toolchains", 'toolchains = ["a", "a"]', "build.toolchains", "a"),
        ("source_date_epoch", "source_date_epoch = 5", "build.source_date_epoch", "5"),
        ("VLLM_TARGET_DEVICE", "A_NUMBER = 3", "build.environment.A_NUMBER", "3"),
        ("reason", "", "build.omission[0].reason", None),
        ("source", 'source = "../source.lock"', "locks.source", "../source.lock"),
    ],
)
def test_a_fault_is_named_by_file_and_key(tmp_path, key, line, where, found):
    folder = write_profile(tmp_path, **{key: line})
    with pytest.raises(ContractError) as caught:
        load_profile(folder)
    named = {problem.where: problem for problem in caught.value.problems}
    problem = named[f"{folder / 'profile.toml'}: {where}"]
    assert found is None or found in str(problem.found)


def test_all_problems_are_reported_at_once(tmp_path):
    folder = write_profile(tmp_path, id="id = 5", ptx="ptx = 1", role='role = "x"', arch="")
    with pytest.raises(ContractError) as caught:
        load_profile(folder)
    assert len(caught.value.problems) == 4


def test_a_missing_lock_is_an_error_of_its_own(tmp_path):
    folder = write_profile(tmp_path)
    (folder / "source.lock").unlink()
    with pytest.raises(ContractError, match="lock file is missing"):
        load_profile(folder)
    profile = load_profile(folder, allow_missing_locks=True)
    with pytest.raises(ContractError, match="no digest yet"):
        _ = profile.digest


def test_what_is_no_profile(tmp_path):
    with pytest.raises(NotFoundError):
        load_profile(tmp_path)
    (tmp_path / "profile.toml").write_text("= no toml")
    with pytest.raises(ContractError, match="not valid TOML"):
        load_profile(tmp_path)


def test_a_config_that_is_not_canonical_is_refused(tmp_path):
    tree = json.loads(make_profile(tmp_path).canonical())
    with pytest.raises(VerificationError, match="canonical"):
        profile_from_canonical(json.dumps(tree).encode())
    tree["extra"] = 1
    with pytest.raises(VerificationError, match="extra"):
        profile_from_canonical(rfc8785.dumps(tree))


def test_tags(tmp_path):
    profile = make_profile(tmp_path)
    tags = profile.tags(profile.runtime.version, date(2026, 3, 31))
    assert tags == ("demo", "demo-v1.2-20260331", "p-" + profile.digest[7:39])
    assert profile.tags("v1.2", "2026-03-31") == tags
    with pytest.raises(UsageError):
        profile.tags("1.2", "yesterday")


SETTINGS = """
[runtime.environment]
set = { VARIABLE = "a" }
[[runtime.environment.deny]]
name = "OTHER"
values = ["*"]
reason = "crashes"
[runtime.engine]
set = { dtype = "float16" }
"""
OVERLAY = """
[overlay]
extras = ["bench"]
exclude_newer = "2026-05-23"
[[overlay.omission]]
name = "jit"
reason = "no kernels"
"""


def with_settings(folder, settings=SETTINGS, overlay=OVERLAY):
    path = write_profile(folder) / "profile.toml"
    text = path.read_text().replace("[build]", f"{settings}\n[build]", 1)
    path.write_text(text.replace("[locks]", f"{overlay}\n[locks]"))
    return path.parent


def test_settings_and_overlay_read_back_and_leave_other_profiles_as_they_were(tmp_path):
    plain = make_profile(tmp_path / "plain")
    assert plain.overlay is None
    assert not {"environment", "engine"} & plain.to_dict()["runtime"].keys()
    assert plain.build_digest == plain.digest
    profile = load_profile(with_settings(tmp_path))
    assert profile.runtime.environment.set == {"VARIABLE": "a"}
    assert profile.runtime.engine.set == {"dtype": "float16"}
    assert profile.overlay.omissions[0].name == "jit"
    assert profile_from_canonical(profile.canonical()) == profile
    assert profile.build_digest == plain.digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "OTHER"', 'name = "VARIABLE"', "VARIABLE is set to a value that is denied"),
        ('name = "OTHER"', 'name = "NOT-ONE"', "environment.deny[0].name"),
        ('values = ["*"]', "values = []", "environment.deny[0].values"),
        ("dtype =", "--dtype =", "engine.set"),
        ('reason = "crashes"', "", "environment.deny[0].reason"),
        ("set = { VARIABLE", "sett = { VARIABLE", "environment.sett"),
        ('"2026-05-23"', '"yesterday"', "overlay.exclude_newer"),
        ('name = "jit"', 'name = "J_I_T"', "overlay.omission[0].name"),
    ],
)
def test_a_fault_in_settings_is_named(tmp_path, old, new, said):
    folder = with_settings(tmp_path, SETTINGS.replace(old, new), OVERLAY.replace(old, new))
    with pytest.raises(ContractError) as caught:
        load_profile(folder)
    assert said in str(caught.value)
