"""The search for paths and secrets, and the policy that it follows."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.audit import scan
from builder.audit.policy import default_policy, parse_policy
from builder.audit.scan import find_paths, find_secrets
from tests.builder.audit_material import under

POLICY = default_policy()
PATH = under("work", "src/a.cu")
TOKEN = b"ghp" + b"_" + b"a1B2" * 9


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    """Chunks of 256 bytes, so that their borders are met."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_CHUNK", 256)
        patch.setattr(scan, "_OVERLAP", 512)
        yield


@settings(deadline=None)
@given(st.integers(0, 1200), st.integers(0, 600), st.sampled_from([b" ", b"\0", b'"', b"="]))
def test_a_path_is_found_once_wherever_it_lies(before, after, separator):
    data = b"." * before + separator + PATH.encode() + separator + b"." * after
    assert [(f.offset, f.text) for f in find_paths(data, POLICY)] == [(before + 1, PATH)]


@settings(deadline=None)
@given(st.integers(0, 1200), st.integers(0, 600))
def test_a_secret_is_found_once_wherever_it_lies(before, after):
    data = b"." * before + b" " + TOKEN + b" " + b"." * after
    assert [f.offset for f in find_secrets(data, POLICY)] == [before + 1]


def test_an_allowed_path_does_not_hide_the_next_one():
    allowed, other = under("home", "user/bin"), under("root", "bin")
    data = f"PATH={allowed}:{other}".encode()
    assert [f.text for f in find_paths(data, POLICY)] == [other]


def test_every_provider_names_symbols_of_its_own():
    """A symbol must not be taken for another library's: cublasLt's for cublas, for instance."""
    samples = {
        "libcuda.so.1": "cuMemMap",
        "libcudart.so.12": "cudaMalloc",
        "libcublas.so.12": "cublasGemmEx",
        "libcublasLt.so.12": "cublasLtMatmul",
        "libcusparse.so.12": "cusparseSpMM",
        "libcusparseLt.so.0": "cusparseLtInit",
        "libcusolver.so.11": "cusolverDnCreate",
        "libcufft.so.11": "cufftExecC2C",
        "libcurand.so.10": "curandGenerate",
        "libcudnn.so.9": "cudnnCreate",
        "libcufile.so.0": "cuFileRead",
        "libnccl.so.2": "ncclAllReduce",
        "libnvrtc.so.12": "nvrtcCompileProgram",
    }
    for soname, symbol in samples.items():
        matching = [
            provider.soname
            for provider in POLICY.providers
            if provider.cuda in (None, 12) and provider.symbols.fullmatch(symbol)
        ]
        assert matching == [soname], symbol


def test_a_provider_is_for_one_major_version_of_cuda():
    assert POLICY.provider("libcudart.so.12", 12).distribution == "nvidia-cuda-runtime-cu12"
    assert POLICY.provider("libcudart.so.12", 13) is None
    assert POLICY.provider("libnccl.so.2", 13).distribution == "nvidia-nccl-cu13"
    assert POLICY.provider("libcuda.so.1", 13).is_driver


def test_a_forbidden_path_must_be_absolute():
    text = re.sub(r'"/work/"', '"work/"', scan_policy_text())
    with pytest.raises(ValueError, match="absolute"):
        parse_policy(text)


def scan_policy_text():
    from importlib import resources

    return resources.files("builder.audit").joinpath("policy.toml").read_text()
