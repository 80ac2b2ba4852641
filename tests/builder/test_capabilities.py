"""What an artifact says that its device code runs on."""

import pytest

from builder.capabilities import compute_capabilities
from tests.kvreg.profiles import make_profile


def audit(**modules):
    found = []
    for name, (sass, ptx) in modules.items():
        found.append({"path": f"demo_pkg/{name}.abi3.so", "sass": sass, "ptx": ptx})
    return {"modules": found}


@pytest.fixture
def profile(tmp_path):
    return make_profile(tmp_path, modules='modules = ["demo_pkg", "demo_pkg._C", "demo_pkg._D"]')


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ({"_C": ({"sm_75": 43}, {}), "_D": ({"sm_75": 15}, {})}, ("7.5",)),
        ({"_C": ({"sm_75": 43}, {}), "_D": ({}, {})}, ("7.5",)),
        ({"_C": ({"sm_75": 1, "sm_52": 1}, {}), "_D": ({"sm_75": 1}, {})}, ("7.5",)),
        ({"_C": ({"sm_75": 1}, {}), "_other": ({"sm_90a": 1}, {})}, ("7.5",)),
        (
            {"_C": ({"sm_120": 1, "sm_90a": 1, "sm_75": 1}, {"compute_80": 1})},
            ("7.5", "9.0a", "12.0", "8.0+PTX"),
        ),
        ({"_C": ({}, {})}, ()),
        ({}, ()),
    ],
)
def test_what_every_imported_module_has_code_for(profile, modules, expected):
    assert compute_capabilities(audit(**modules), profile) == expected
