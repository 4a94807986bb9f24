"""Every row of `work.py` with pytest-benchmark: the package and each alternative in one group.

python -m pytest bench                     # all rows
python -m pytest bench --quick             # without the rows whose alternative takes long
python -m pytest bench -k "evaluate"       # some
"""

from __future__ import annotations

import time

import pytest
from work import work_items

ROUND = 0.01
"""A round of quick calls takes about so many seconds."""
ITEMS = work_items()
CASES = [(item, name) for item in ITEMS for name in ("opo_fast", *item.others)]


@pytest.mark.parametrize(("item", "contender"), CASES, ids=[f"{item.name}: {name}" for item, name in CASES])
def test_work(benchmark, item, contender, request):
    if item.slow and request.config.getoption("--quick"):
        pytest.skip("left out of a quick run")
    try:
        run, per = (item.ours if contender == "opo_fast" else item.others[contender])()
    except ModuleNotFoundError as error:
        pytest.skip(f"{error}: the extra `bench` installs it")
    benchmark.group = f"{item.group}: {item.name}"
    benchmark.extra_info.update(contender=contender, per=per, target=item.target, within=item.within, item=item.name)
    if contender.startswith("literal"):
        benchmark.pedantic(run, rounds=1, warmup_rounds=0)
        return
    run()
    # The time of a single call of some microseconds is mostly clock overhead and cache misses.
    began = time.perf_counter()
    run()
    iterations = max(1, min(1000, int(ROUND / (time.perf_counter() - began))))
    benchmark.pedantic(run, rounds=item.rounds, iterations=iterations)
