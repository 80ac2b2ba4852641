"""Rebuilding what was published: thinned and adopted wheels, changed checkouts, forged provenance.

A compiled wheel is rebuilt for real in `tests/e2e/test_rebuild.py`.
"""

import json
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner
from google.protobuf import json_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement

import builder
from builder.audit import audit_wheel
from builder.bill import bill_of_materials, embed_bill
from builder.build import adopt
from builder.cache import InputCache, file_sha256
from builder.cli import main
from builder.commands.publish import publish_product
from builder.commands.rebuild import deliver
from builder.files import write_bytes, write_json
from builder.inputs import Input, write_lock
from builder.jobs import Jobs
from builder.layout import Checkout
from builder.product import RECORD, SBOM, Product
from builder.rebuild.changes import checkout_changes
from builder.rebuild.making import How, Rebuilt, rebuild
from builder.rebuild.published import read_published
from builder.rebuild.verdict import NOT_IDENTICAL, PREDICATE_TYPE
from builder.record import make_record, wheel_facts
from builder.sources import builder_digest
from builder.thin import build_thin
from kvreg.errors import ContractError, KvregError, NotFoundError, VerificationError
from kvreg.model.oci import MEDIA_TYPE_PROVENANCE
from kvreg.model.profile import load_profile
from kvreg.model.signature import envelope_message, parse_statement
from registry.attach import attach
from registry.describe import MEDIA_TYPE_VERDICT, describe
from registry.layout import Layout
from registry.privatekey import generate_key, write_key_pair
from registry.publish import Layer, publish
from registry.signatures import signed_messages
from registry.signing import attest, sign
from registry.verify import verify
from tests.builder.test_thin import THIN, UPSTREAM, module, upstream
from tests.kvreg.profiles import write_profile
from tests.support import workflows

__all__ = ["module"]

HOW = How(Jobs(1, "requested"))
PROFILE = "demo"


@dataclass(frozen=True)
class Site:
    """A checkout with an input cache, a store, and what was built and published there."""

    checkout: Checkout
    cache: InputCache
    store: Layout
    root: Path

    def make(self) -> Product:
        """Build and describe the profile, as `builder build` does for a recipe without compile."""
        folder = self.checkout.profile(PROFILE)
        profile, out = load_profile(folder), self.checkout.build_folder(PROFILE)
        how = build_thin if profile.build.recipe == "thin" else adopt
        built = how(profile, folder, cache=self.cache, out=out)
        record = make_record(profile, built)
        embed_bill(built.wheel, profile, folder, record)
        product = Product(profile, out, built.wheel, record)
        return self.describe(product)

    def describe(self, product: Product) -> Product:
        """Record, audit and SBOM of the wheel as it now is."""
        profile, out = product.profile, product.folder
        record = {**product.record, "wheel": wheel_facts(product.wheel)}
        record["audit"] = audit_wheel(product.wheel, profile).to_dict()
        write_json(out / RECORD, record)
        folder = self.checkout.profile(PROFILE)
        write_bytes(out / SBOM, bill_of_materials(profile, folder, record, embedded=False))
        return Product(profile, out, product.wheel, record)

    def tamper(self, product: Product) -> Product:
        """Other bytes in the module, described as truly as the right ones."""
        with zipfile.ZipFile(product.wheel) as archive:
            members = {i: archive.read(i) for i in archive.infolist()}
        with zipfile.ZipFile(product.wheel, "w") as archive:
            for info, data in members.items():
                if info.filename.endswith(".so"):
                    assert data.count(b"unwound") == 1
                    data = data.replace(b"unwound", b"hacked!")
                archive.writestr(info, data)
        return self.describe(product)

    def publish(self, product: Product) -> str:
        return publish_product(product, self.store, dated=False)["digest"]

    def rebuild(self, target: str = PROFILE, how: How = HOW, **options) -> Rebuilt:
        """Rebuild in another checkout of the same files."""
        elsewhere = self.root / "far away"
        if not elsewhere.exists():
            shutil.copytree(self.checkout.root / "profiles", elsewhere / "profiles")
            (elsewhere / "dockerfiles").mkdir()
        published = read_published(self.store, target, options.pop("keys", ()))
        out = self.root / "rebuilt"
        shutil.rmtree(out, ignore_errors=True)
        checkout = Checkout(elsewhere)
        return rebuild(published, self.store, checkout, self.cache, out, how, say=lambda text: None)


@pytest.fixture(params=["thin", "adopt"])
def recipe(request) -> str:
    return request.param


@pytest.fixture
def site(recipe, module, tmp_path) -> Site:
    root = tmp_path / "checkout"
    version = THIN if recipe == "thin" else UPSTREAM
    folder = write_profile(
        root / "profiles",
        recipe=f'recipe = "{recipe}"',
        version=f'version = "{version}"',
        modules='modules = ["demo_pkg", "demo_pkg._C"]',
    )
    (root / "dockerfiles").mkdir()
    wheel = upstream(tmp_path / "up", module)
    sha256 = file_sha256(wheel)
    entry = Input("demo-pkg", UPSTREAM, "wheel", wheel.name, wheel.stat().st_size, sha256)
    write_lock(folder / "source.lock", [entry], "for tests")
    cache = InputCache(tmp_path / "cache")
    cache.put(wheel, sha256)
    return Site(Checkout(root), cache, Layout(tmp_path / "store"), tmp_path)


only_thin = pytest.mark.parametrize("recipe", ["thin"], indirect=True)


def test_the_same_comes_out_and_the_verdict_refers_to_it(site):
    product = site.make()
    digest = site.publish(product)
    done = site.rebuild()
    assert done.comparison.verdict == "identical"
    assert done.changes == ()
    result = deliver(done, site.store, site.root / "rebuilt")
    assert result["verdict"] == "identical"
    page = describe(site.store, PROFILE).text()
    assert "rebuild verdict: identical" in page
    assert verify(site.store, PROFILE).ok
    (referrer,) = site.store.referrers(digest, MEDIA_TYPE_VERDICT)
    assert referrer.digest == result["referrers"][0]
    raw = Path(result["statement"]).read_bytes()
    # Valid by the published model, and about the artifact and its wheel.
    statement = json_format.Parse(raw, statement_pb2.Statement())
    Statement.copy_from_pb(statement).validate()
    wheel = "sha256:" + product.record["wheel"]["sha256"]
    assert parse_statement(raw) == (PREDICATE_TYPE, {digest, wheel})
    predicate = json.loads(raw)["predicate"]
    assert predicate["verdict"] == "identical"
    assert predicate["published"] == predicate["rebuilt"]
    assert predicate["from"]["builder"] == {"digest": builder_digest(), "named": builder_digest()}
    assert predicate["environment"]["kernel"]
    assert "jobs" not in predicate["environment"]  # nothing was compiled


@only_thin
def test_other_bytes_under_a_true_manifest_are_found_in_their_section(site):
    """Whoever publishes can publish anything, described consistently."""
    site.publish(site.tamper(site.make()))
    done = site.rebuild()
    assert done.comparison.verdict == "different"
    (changed,) = done.comparison.members
    assert (changed.path, changed.kind) == ("demo_pkg/_C.abi3.so", "elf")
    (part,) = changed.parts
    assert part.where.startswith(".rodata")
    assert part.reasons == ()
    assert any("hacked!" in line for line in part.lines)
    result = deliver(done, site.store, site.root / "rebuilt", attach=False)
    assert (result["verdict"], result["referrers"]) == ("different", [])
    assert "rebuild verdict" not in describe(site.store, PROFILE).text()


def test_a_changed_lock_is_refused_with_both_digests_or_told(site, tmp_path):
    site.publish(site.make())
    site.rebuild()
    lock = site.root / "far away/profiles/demo/source.lock"
    before = file_sha256(lock)
    lock.write_text(lock.read_text() + "# changed\n")
    with pytest.raises(ContractError, match="source lock") as caught:
        site.rebuild()
    (problem,) = caught.value.problems
    assert problem.expected == f"sha256:{before}"
    assert problem.found == f"sha256:{file_sha256(lock)}"
    assert not list((site.root / "rebuilt").glob("*.whl"))
    done = site.rebuild(how=How(Jobs(1, "requested"), despite=True))
    assert [c.what for c in done.changes] == ["source lock"]
    statement = json.loads(
        Path(deliver(done, site.store, site.root / "rebuilt")["statement"]).read_text()
    )
    assert statement["predicate"]["verdict"] == "identical"  # a comment builds nothing
    assert statement["predicate"]["despite"] == [done.changes[0].to_dict()]
    # The lock is found by its digest, whatever profile has it.
    shutil.copytree(site.checkout.profile(PROFILE), lock.parents[1] / "renamed")
    assert site.rebuild().changes == ()


@only_thin
def test_an_input_that_changed_in_the_cache_is_refused_with_both_digests(site):
    site.publish(site.make())
    (wheel,) = (site.cache.root / "sha256").glob("*/*")
    wheel.chmod(0o644)
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(ContractError, match="damaged") as caught:
        site.rebuild()
    assert (caught.value.expected, caught.value.found) == (wheel.name, file_sha256(wheel))


@only_thin
def test_a_provenance_that_does_not_belong_is_not_believed(site):
    product = site.make()
    digest = site.publish(product)
    subject = site.store.resolve(digest)
    right = json.loads((product.folder / "provenance.json").read_text())

    def forge(change) -> bytes:
        statement = json.loads(json.dumps(right))
        change(statement)
        return json.dumps(statement).encode()

    def other_wheel(s):
        s["subject"][1]["digest"]["sha256"] = "0" * 64

    def newer_other_profile(s):
        s["predicate"]["runDetails"]["metadata"]["startedOn"] = "2999-01-01T00:00:00Z"
        s["predicate"]["buildDefinition"]["externalParameters"]["profile"]["digest"] = "sha256:0"

    def odd(s):
        s["predicate"]["runDetails"] = []

    for change in (other_wheel, newer_other_profile, odd):
        attach(site.store, subject, MEDIA_TYPE_PROVENANCE, forge(change), "provenance.json")
    attach(site.store, subject, MEDIA_TYPE_PROVENANCE, b"not JSON", "provenance.json")
    assert site.rebuild().identical  # what others put beside it hides nothing

    def other_inputs(s):
        s["predicate"]["runDetails"]["metadata"]["startedOn"] = "2999-01-01T00:00:00Z"
        s["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["sha256"] = "0" * 64

    attach(site.store, subject, MEDIA_TYPE_PROVENANCE, forge(other_inputs), "provenance.json")
    with pytest.raises(VerificationError, match="other inputs than its profile") as caught:
        site.rebuild()
    assert caught.value.problems[0].found == "0" * 64


@pytest.fixture
def product(site) -> Product:
    made = site.make()
    site.publish(made)
    return made


@only_thin
@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_mutilated_provenance_is_an_error_that_is_reported(site, product, data):
    statement = json.loads((product.folder / "provenance.json").read_text())
    node = statement["predicate"]
    while True:
        key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else [0]))
        if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.booleans()):
            node[key] = data.draw(st.sampled_from([None, 5, "text", [], {}, [None], [[]]]))
            break
        node = node[key]
    store = Layout(site.root / f"store-{uuid4()}")
    publish(store, product.profile, [Layer(product.wheel, role="native")], dated=False)
    subject = store.resolve(PROFILE)
    statement["subject"][0]["digest"]["sha256"] = subject.digest.removeprefix("sha256:")
    raw = json.dumps(statement).encode()
    attach(store, subject, MEDIA_TYPE_PROVENANCE, raw, "provenance.json")
    try:
        published = read_published(store, PROFILE)
    except KvregError:
        return
    checkout_changes(published, site.checkout)


@only_thin
def test_the_command(site, product, monkeypatch):
    monkeypatch.setenv("KVREG_CHECKOUT", str(site.checkout.root))
    reference = f"oci-layout:{site.store.path}:{PROFILE}"
    command = ["rebuild", reference, "--cache", str(site.cache.root), "--offline"]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code == 0, ended.output
    assert "identical" in ended.output
    assert "verdict attached as sha256:" in ended.output
    out = site.checkout.build_folder(PROFILE) / "rebuilt"
    assert (out / "rebuild-verdict.json").is_file()
    # Only our own folder is ever emptied.
    assert CliRunner().invoke(main, [*command, "--out", str(out)]).exit_code == 2
    again = CliRunner().invoke(main, [*command, "--no-attach", "--json"])
    assert json.loads(again.stdout)["referrers"] == []
    assert CliRunner().invoke(main, [*command[:1], reference + "x", *command[2:]]).exit_code == 3


@only_thin
def test_the_workflow_fails_when_bytes_differ_and_signs_that_verdict_too(site, monkeypatch):
    """The same steps over the probe, and where they find nothing: `tests/e2e/test_rebuild.py`."""
    digest = site.publish(site.tamper(site.make()))
    root = site.checkout.root
    workflows.lay_out(root)
    monkeypatch.setenv("KVREG_CHECKOUT", str(root))
    monkeypatch.setenv("KVREG_BUILD_CACHE", str(site.cache.root))
    key = generate_key()
    secret, _ = write_key_pair(key, root / "team", b"open sesame")
    contexts = {
        "github": workflows.GITHUB,
        "inputs": {"registry": f"oci-layout:{site.store.path}"},
        "matrix": {"profile": PROFILE, "artifact": digest},
        "secrets": {"signing-key": secret.read_text(), "signing-password": "open sesame"},
    }
    runner = workflows.Runner(workflows.load("rebuild.yml"), root, contexts)
    with pytest.raises(workflows.StepFailed) as failed:
        runner.run("rebuild", skip=("set up",))
    assert failed.value.code == NOT_IDENTICAL
    assert "rebuild verdict: different" in describe(site.store, PROFILE).text()
    (statement,) = (root / "dist").rglob("rebuild-verdict.json")
    assert envelope_message(statement.read_bytes()) in signed_messages(
        site.store, digest, [key.public]
    )
    assert runner.kept("rebuild") >= {"rebuild-verdict.json", "record.json"}


@only_thin
def test_without_a_provenance_there_is_nothing_to_rebuild(site):
    product = site.make()
    publish(site.store, product.profile, [Layer(product.wheel, role="native")], dated=False)
    with pytest.raises(NotFoundError, match="has no provenance"):
        site.rebuild()
    with pytest.raises(NotFoundError, match="has no other"):
        site.rebuild("other")


@only_thin
def test_with_a_key_artifact_and_provenance_must_be_signed(site):
    product = site.make()
    digest = site.publish(product)
    key, other = generate_key(), generate_key()
    with pytest.raises(VerificationError, match="is not signed"):
        site.rebuild(keys=(key.public,))
    sign(site.store, digest, key)
    with pytest.raises(VerificationError, match="no provenance") as caught:
        site.rebuild(keys=(key.public,))
    assert "not signed by a key that is accepted" in str(caught.value)
    provenance = (product.folder / "provenance.json").read_bytes()
    attest(site.store, digest, provenance, other)
    with pytest.raises(VerificationError, match="no provenance"):
        site.rebuild(keys=(key.public,))
    attest(site.store, digest, provenance, key)
    done = site.rebuild(keys=(key.public,))
    assert done.published.signature.key == key.public.fingerprint
    result = deliver(done, site.store, site.root / "rebuilt", key=key)
    assert len(result["referrers"]) == 2
    statement = json.loads(Path(result["statement"]).read_text())
    assert statement["predicate"]["from"]["signedBy"] == key.public.fingerprint


def test_the_builders_digest_is_of_what_makes_wheels(tmp_path):
    package = Path(builder.__file__).parent
    copy = tmp_path / "builder"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    assert builder_digest(copy) == builder_digest()
    for name in ("commands/build.py", "recipes/thin.py", "rebuild/verdict.py"):
        (copy / name).write_text("# changed\n")
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__" / "x.py").write_text("")
    assert builder_digest(copy) == builder_digest()
    for name in ("wheelfile.py", "audit/wheel.py"):
        before = builder_digest(copy)
        (copy / name).write_bytes((copy / name).read_bytes() + b"# changed\n")
        assert builder_digest(copy) != before
