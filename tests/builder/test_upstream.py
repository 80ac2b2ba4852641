"""Watching upstream: an index on loopback with real archives, and the real resolver."""

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from builder.cache import InputCache
from builder.cli import main
from builder.recipes.model import recipe
from builder.upstream.locked import parse_tags
from builder.upstream.policy import load_policy, variant_of
from kvreg.model.profile import load_profile
from tests.support import upstream
from tests.support.package_index import LoopbackIndex, loopback_index

RECIPE_COMPILE = Path(recipe("vllm").files["compile.py"])


@pytest.fixture
def index(monkeypatch, tmp_path):
    with loopback_index() as found:
        monkeypatch.setenv("KVREG_INDEX_URL", found.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        monkeypatch.setenv("KVREG_BUILD_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("KVREG_UPSTREAM_GIT", raising=False)
        upstream.add_torch(found, "2.10.0", "12.8.90")
        for name in ("numpy", "filelock", "newdep"):
            version = {"numpy": "2.0.2", "filelock": "3.20.0"}.get(name, "1.5")
            found.add(name, *upstream.wheel(name, version))
        upstream.add_release(found, "0.18.1")
        yield found


@pytest.fixture
def root(index, tmp_path, monkeypatch):
    made = upstream.checkout(tmp_path / "checkout", index)
    monkeypatch.setenv("KVREG_CHECKOUT", str(made))
    return made


def check(*arguments: str, code: int = 0) -> dict:
    done = CliRunner().invoke(main, ["upstream", "check", "--json", *arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def judged(*arguments: str) -> dict[str, dict]:
    return {item["tag"]: item for item in check(*arguments)["judgements"]}


def findings(item: dict, check: str) -> list[dict]:
    return [f for f in item["findings"] if f["check"] == check]


def test_a_release_for_the_same_host_is_a_rebuild(root, index: LoopbackIndex):
    upstream.add_release(index, "0.19.0", requires=["newdep>=1"], commit="b" * 40)
    found = judged()
    assert {tag: item["verdict"] for tag, item in found.items()} == {
        "v0.18.1": "current",
        "v0.19.0": "rebuild",
    }
    item = found["v0.19.0"]
    assert not item["recipe_work"]
    (moved,) = findings(item, "externals")
    assert (moved["expected"], moved["found"]) == ("a" * 40, "b" * 40)
    assert moved["evidence"] == "cmake/external_projects/flash.cmake:4"
    assert findings(item, "requirements")[0]["what"] == "+newdep>=1"
    assert findings(item, "overlay")[0]["status"] == "same"


def test_another_torch_is_another_host(root, index):
    upstream.add_torch(index, "2.11.0", "13.0.2")
    upstream.add_release(index, "0.20.0", torch="2.11.0", externals=True)
    item = judged()["v0.20.0"]
    assert item["verdict"] == "new-profile"
    assert item["recipe_work"]
    torch, cuda = findings(item, "torch")[0], findings(item, "cuda")[0]
    assert (torch["status"], torch["expected"], torch["found"]) == ("profile", "2.10.0", "2.11.0")
    assert torch["evidence"].endswith("CMakeLists.txt:4")
    assert (cuda["expected"], cuda["found"]) == ("cu128", "cu130")
    assert "set NEW_SRC_DIR" in next(
        f["what"] for f in findings(item, "externals") if f["status"] == "recipe"
    )
    assert "on a host with torch 2.11.0" in findings(item, "overlay")[0]["what"]


def test_a_torch_without_wheels_for_the_hosts_cuda_says_which_was_the_last(root, index):
    upstream.add_torch(index, "2.13.0", "13.0.3")
    upstream.add_release(index, "0.27.0", torch="2.13.0")
    cuda = findings(judged()["v0.27.0"], "cuda")[0]
    assert "no cu128 wheels (the last was 2.11)" in cuda["what"]
    assert "178665" in cuda["evidence"]


@pytest.mark.parametrize(
    ("change", "verdict", "check", "words"),
    [
        ({"old": "8.0;9.0"}, "unsupported", "architectures", "does not build 7.5"),
        ({"marlin": "8.0+PTX"}, "rebuild", "architectures", "no longer MARLIN_ARCHS"),
        ({"python": ">=3.13"}, "new-profile", "python", "outside its range"),
        ({"requires": ["absent>=2"]}, "new-profile", "overlay", "absent"),
        ({"requires": ["numpy>=2.1"]}, "new-profile", "overlay", "numpy"),
    ],
)
def test_what_ends_or_changes_a_release(root, index, change, verdict, check, words):
    upstream.add_release(index, "0.19.0", **change)
    item = judged()["v0.19.0"]
    assert item["verdict"] == verdict
    assert words in " ".join(f["what"] for f in findings(item, check) if f["status"] != "same")


def test_a_torch_that_the_index_lacks_is_unsupported(root, index):
    upstream.add_release(index, "0.19.0", torch="2.12.0")
    item = judged()["v0.19.0"]
    assert item["verdict"] == "unsupported"
    assert findings(item, "cuda")[0]["found"] == "none"


def test_since_takes_a_tag_and_old_or_early_releases_are_left_out(root, index):
    upstream.add_release(index, "0.17.0")
    upstream.add_release(index, "0.19.0")
    index.add("vllm", *upstream.sdist("0.20.0rc1", {}))
    assert list(judged("--since", "v0.19.0")) == ["v0.19.0"]
    assert list(judged("--since", "0.17.0")) == ["v0.17.0", "v0.18.1", "v0.19.0"]
    assert check("--since", "nonsense", code=2)["error"]["kind"] == "usage"


def test_a_release_is_read_from_its_beginning_and_once(root, index):
    upstream.add_release(index, "0.19.0", filler=40_000_000)
    judged()
    sent = [path for path, _ in index.requests if path == "/files/vllm-0.19.0.tar.gz"]
    assert len(sent) == 1
    index.requests.clear()
    judged()
    assert not [path for path, _ in index.requests if path.startswith("/files/vllm")]


@pytest.mark.parametrize("name", ["vllm-0.18.1.tar.gz", "wheel"])
def test_bytes_that_changed_since_they_were_locked_are_refused(root, index, name):
    upstream.add_release(index, "0.19.0")
    if name == "wheel":
        name = next(n for n in index.files if n.startswith("vllm-0.18.1-cp38"))
    before = load_profile(root / "profiles/t4x2-cu128")
    lock = (root / "profiles/t4x2-cu128/source.lock").read_text()
    index.stated[name] = "0" * 64
    error = check(code=1)["error"]
    (problem,) = error["problems"]
    assert problem["where"] == f"t4x2-cu128: {name}"
    assert problem["found"] == "sha256:" + "0" * 64
    assert problem["expected"].removeprefix("sha256:") in lock
    assert before.locks["source"].sha256 is not None


def test_a_file_that_vanished_is_refused(root, index):
    del index.files["vllm-0.18.1.tar.gz"]
    error = check(code=1)["error"]
    assert error["problems"][0]["found"] == "no such file"


@pytest.fixture
def remote(tmp_path, root):
    """A bare repository whose tag names the commit that the profile locks, and a way to move it."""
    work, bare = tmp_path / "work", tmp_path / "bare.git"

    def git(*arguments: str, folder: Path = work) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    work.mkdir()
    git("init", "-q", "-b", "main")
    git("commit", "-q", "--allow-empty", "-m", "one")
    git("tag", "-a", "v0.18.1", "-m", "release")
    git("init", "-q", "--bare", str(bare))
    git("push", "-q", str(bare), "--tags")
    path = root / "profiles/t4x2-cu128/profile.toml"
    profile = load_profile(path.parent)
    old, new = profile.runtime.upstream_commit, git("rev-parse", "HEAD")
    path.write_text(path.read_text().replace(old, new))

    def move() -> str:
        git("commit", "-q", "--allow-empty", "-m", "two")
        git("tag", "-f", "-a", "v0.18.1", "-m", "moved")
        git("push", "-q", "-f", str(bare), "--tags")
        return git("rev-parse", "HEAD")

    return bare, new, move


def test_tags_that_stay_are_compared_and_a_moved_one_is_refused(root, index, remote):
    bare, locked, move = remote
    assert check("--git", str(bare))["tags_compared"]
    moved = move()
    (problem,) = check("--git", str(bare), code=1)["error"]["problems"]
    assert (problem["expected"], problem["found"]) == (locked, moved)
    assert not check()["tags_compared"]


def test_a_remote_that_is_not_there_is_a_network_error(root, index, tmp_path):
    assert check("--git", str(tmp_path / "none"), code=4)["error"]["kind"] == "network"
    assert check("--git", "--upload-pack=x", code=2)["error"]["kind"] == "usage"


def test_annotated_tags_count_with_the_commit_they_name():
    text = f"{'a' * 40}\trefs/tags/v1\n{'b' * 40}\trefs/tags/v1^{{}}\n{'c' * 40}\trefs/tags/v2\n"
    assert parse_tags(text) == {"v1": "b" * 40, "v2": "c" * 40}


def propose(*arguments: str, code: int = 0) -> dict:
    done = CliRunner().invoke(main, ["upstream", "propose", "--json", *arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


@pytest.fixture
def lockable(index):
    """What the recipe's build requirements need of the index."""
    upstream.add_everything(index)
    return index


def test_a_rebuild_is_proposed_with_all_its_locks(root, lockable, tmp_path):
    upstream.add_release(lockable, "0.19.0", requires=["newdep>=1"], commit="b" * 40)
    summary = tmp_path / "summary.md"
    result = propose("v0.19.0", "--profile", "t4x2-cu128", "--summary", str(summary))
    folder = root / "profiles/t4x2-cu128-v0.19.0"
    assert Path(result["folder"]) == folder
    made = load_profile(folder)
    assert result["digest"] == made.digest
    assert made.runtime.version == "0.19.0+cu128.sm75"
    assert made.runtime.upstream_tag == "v0.19.0"
    assert made.host == load_profile(root / "profiles/t4x2-cu128").host
    assert "newdep==1.5" in (folder / "overlay.lock").read_text()
    assert "vllm-0.19.0.tar.gz" in (folder / "source.lock").read_text()
    # Comments are for people, and the profile is still theirs.
    assert "# The host contract." in (folder / "profile.toml").read_text()
    changed = {item["key"] for item in result["changes"]}
    assert {"name", "runtime.version", "locks.source.sha256"} <= changed
    assert not {key for key in changed if key.startswith("host.")}
    assert any("upstream_commit" in text for text in result["decisions"])
    assert any("newdep" in text for text in result["decisions"])
    text = summary.read_text()
    assert text.startswith("# t4x2-cu128-v0.19.0: vllm v0.19.0\n")
    assert "- [ ]" in text
    # What it left to a person is asked for before anything is fetched or compiled.
    arguments = ["build", "--profile", "t4x2-cu128-v0.19.0", "--dry-run", "--json"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2, (done.output, done.exception)
    assert "runtime.upstream_commit" in json.loads(done.stdout)["error"]["expected"]
    toml = folder / "profile.toml"
    toml.write_text(toml.read_text().replace('commit = ""', f'commit = "{"b" * 40}"'))
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    # The same again is refused, and nothing half-made is left.
    assert propose("v0.19.0", "--profile", "t4x2-cu128", code=2)["error"]["kind"] == "usage"
    assert sorted(p.name for p in (root / "profiles").iterdir()) == [
        "t4x2-cu128",
        "t4x2-cu128-v0.19.0",
    ]


def test_another_cuda_gets_another_profile_without_claiming_a_host(root, lockable):
    upstream.add_torch(lockable, "2.13.0", "13.0.3")
    upstream.add_release(lockable, "0.27.0", torch="2.13.0")
    hosts = upstream.ROOT / "tests/data/hosts/colab-gpu-2026-05-22"
    result = propose("v0.27.0", "--profile", "t4x2-cu128", "--hosts", str(hosts))
    assert result["profile"] == "t4x2-cu130"
    folder = root / "profiles/t4x2-cu130"
    made = load_profile(folder, allow_missing_locks=True)
    assert made.runtime.version == "0.27.0+cu130.sm75"
    assert (made.host.torch.require, made.host.torch_cuda.validated) == ("==2.13.0", "13.0")
    assert made.host.driver.require == ">=580.65.06"
    assert made.build.cuda.require == ">=13.0,<14"
    assert not (folder / "overlay.lock").exists()
    assert not (folder / "host-freeze.txt").exists()
    assert result["digest"] is None
    assert any("overlay.lock" in text for text in result["decisions"])
    assert "torch" in result["drift"]["days"][0]["violated"]


def test_a_proposal_that_cannot_be_locked_leaves_nothing(root, index):
    upstream.add_release(index, "0.19.0")
    propose("v0.19.0", "--profile", "t4x2-cu128", code=3)  # no nvidia-cutlass in this index
    assert [p.name for p in (root / "profiles").iterdir()] == ["t4x2-cu128"]


def test_only_what_can_be_proposed_is(root, index):
    upstream.add_release(index, "0.19.0", old="9.0")
    assert propose("v0.19.0", "--profile", "t4x2-cu128", code=1)["error"]["kind"] == "contract"
    assert propose("v0.18.1", "--profile", "t4x2-cu128", code=2)["error"]["kind"] == "usage"
    assert propose("v9.9.9", "--profile", "t4x2-cu128", code=3)["error"]["kind"] == "not-found"


def test_a_proposal_is_made_once(root, index, tmp_path):
    upstream.add_release(index, "0.19.0")
    upstream.add_release(index, "0.19.1")
    output = tmp_path / "output"
    check("--github", str(output))
    values = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert values["count"] == "1"
    assert json.loads(values["proposals"])["include"] == [
        {"profile": "t4x2-cu128", "tag": "v0.19.1", "verdict": "rebuild"}
    ]


def test_the_policy_is_data():
    policy = load_policy()
    assert policy.makes("cu128", "2.11.0")
    assert not policy.makes("cu128", "2.12.1")
    assert policy.makes("cu130", "99.0")
    assert policy.cuda_major("13.0.2").oldest_capability == "7.5"
    assert variant_of("13.0.88") == "cu130"


def test_the_recipe_answers_what_it_says_that_it_answers():
    text = RECIPE_COMPILE.read_text()
    assert all(f'"{name}"' in text for name in recipe("vllm").externals)
    assert text.count('_SRC_DIR": str(') == len(recipe("vllm").externals)


def test_a_kept_reading_is_of_the_same_bytes(root, index):
    upstream.add_release(index, "0.19.0")
    judged()
    kept = {p.stem for p in (InputCache().root / "upstream").iterdir()}
    digests = {f["sha256"] for f in _listed(index) if f["filename"].endswith(".tar.gz")}
    assert kept == digests


def _listed(index: LoopbackIndex) -> list[dict]:
    page = index.page("vllm")
    assert page is not None
    return [{"filename": f["filename"], "sha256": f["hashes"]["sha256"]} for f in page["files"]]
