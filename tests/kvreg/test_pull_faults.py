"""Two hundred pulls through seeded network faults: the right runtime, or a clear error."""

import random

import pytest

from kvreg.errors import KvregError
from kvreg.home import Home
from kvreg.pull import pull
from kvreg.reference import parse_reference
from kvreg.sources.remote import RegistrySource
from kvreg.sources.transport import RetryPolicy, Transport
from tests.kvreg.pulls import check_home, members, use_ranges
from tests.registry.proxy import running_proxy
from tests.registry.seeded import SeededFaults
from tests.support.distribution import push_layout

RUNS = 200
QUICK = 40
outcomes: list[str] = []
fired: list[str] = []


@pytest.fixture(scope="module")
def proxy(distribution):
    with running_proxy(distribution.host) as running:
        yield running


@pytest.fixture
def large(publish, monkeypatch, distribution):
    """An artifact whose wheel comes in about ten ranges, in the registry behind the proxy."""
    found = publish(extra=members(1_000_000))
    push_layout(f"http://{distribution.host}", "pull/faults", found.layout)
    use_ranges(monkeypatch)
    return found


def attempt(published, proxy, read_timeout):
    transport = Transport(
        policy=RetryPolicy(attempts=4), read_timeout=read_timeout, sleep=lambda delay: None
    )
    source = RegistrySource(parse_reference(f"{proxy.host}/pull/faults"), transport)
    return pull(published.profile.digest, lambda: source, None, published.home)


@pytest.mark.parametrize(
    "block",
    [
        range(0, QUICK // 2),
        range(QUICK // 2, QUICK),
        *(pytest.param(range(n, n + 40), marks=pytest.mark.slow) for n in range(QUICK, RUNS, 40)),
    ],
    ids=str,
)
def test_the_right_runtime_or_a_clear_error(block, large, proxy, tmp_path):
    for seed in block:
        chance = random.Random(f"pull {seed}")
        case = type(large)(
            large.profile, large.wheel, large.manifest, large.layout, Home(tmp_path / str(seed))
        )
        proxy.rules.clear()
        faults = SeededFaults(seed, certain=seed % 14, most=6)
        proxy.rules.append(faults)
        proxy.tokens.clear()
        proxy.token_uses = chance.randint(1, 8) if chance.random() < 0.2 else None
        try:
            pulled = attempt(case, proxy, 0.5)
        except KvregError as error:
            assert error.what and error.exit_code in (1, 3, 4), (seed, error, faults.fired)
            assert check_home(case, received=False) is None, (seed, faults.fired)
            outcomes.append(type(error).__name__)
        else:
            assert check_home(case) == pulled.runtime, (seed, faults.fired)
            outcomes.append("right")
        fired.extend(faults.fired)
        proxy.rules.clear()
        proxy.token_uses = None
        attempt(case, proxy, 20)
        assert check_home(case) is not None


def test_faults_happened_and_most_pulls_survived_them():
    if len(outcomes) < QUICK:
        pytest.skip("only some of the runs were asked for")
    kinds = {text.rpartition(": ")[2] for text in fired}
    print(f"{len(outcomes)} pulls, {len(fired)} faults of {len(kinds)} kinds:",
          {name: outcomes.count(name) for name in sorted(set(outcomes))})  # fmt: skip
    assert len(fired) >= len(outcomes)
    assert len(kinds) >= 12
    assert outcomes.count("right") >= len(outcomes) // 4
    assert len(outcomes) - outcomes.count("right") >= len(outcomes) // 20
