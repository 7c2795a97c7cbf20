"""Settings of every test: the same generated examples in each run, and no stopwatch on them."""

import pytest
from hypothesis import settings

# A busy machine is not a failure, and a failure is never a matter of luck.
settings.register_profile("forerun", deadline=None, derandomize=True, database=None)
settings.load_profile("forerun")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes an hour unless it is asked for: `-m slow`."""
    if "slow" not in config.getoption("-m"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(autouse=True)
def _keeps_cost_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep cost tables however busy the machine is that the tests run on."""
    monkeypatch.setattr("runtime.kept_costs.KEPT_FROM", 0.0)
