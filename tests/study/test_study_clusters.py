"""Studies on Dask and Ray, each on a real local cluster that the test starts."""

from __future__ import annotations

import pytest
from study_cases import bits, left_over, small

import opo_fast as of
from opo_fast.study import run_study

pytest.importorskip("joblib", reason="joblib (extra 'study') is not installed")

AGENTS = ("opo", "greedy", "study_cases:stateless", {"name": "study_cases:broken", "options": {"at": 20}})


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Bits of the study run in this process."""
    folder = tmp_path_factory.mktemp("alone") / "s"
    run_study(small(agents=AGENTS), folder)
    return bits(folder)


@pytest.mark.parametrize("scheduler", ["dask", "ray"])
def test_a_local_cluster_gives_the_same_bits(tmp_path, alone, scheduler):
    package = {"dask": "distributed", "ray": "ray"}[scheduler]
    pytest.importorskip(package, reason=f"{package} (extra {scheduler!r}) is not installed")
    summary = run_study(small(agents=AGENTS), tmp_path / "s", workers=2, scheduler=scheduler)
    assert (summary.planned, summary.done, summary.failed) == (8, 6, 2)
    assert bits(tmp_path / "s") == alone
    assert len(alone) == 6
    assert not [name for name in left_over(tmp_path / "s") if not name.endswith(".ckpt")]


def test_a_dask_scheduler_that_is_running_is_used(tmp_path, alone):
    distributed = pytest.importorskip("distributed", reason="distributed (extra 'dask') is not installed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        assert run_study(small(agents=AGENTS), tmp_path / "s", scheduler="dask", address=cluster.scheduler_address).done == 6
        assert bits(tmp_path / "s") == alone


def test_an_address_where_nobody_answers_is_named(tmp_path):
    pytest.importorskip("distributed", reason="distributed (extra 'dask') is not installed")
    with pytest.raises(of.OpoError, match=r"address is 'nonsense://1': no Dask scheduler answers there"):
        run_study(small(), tmp_path / "s", scheduler="dask", address="nonsense://1")
    with pytest.raises(of.OpoError, match=r"address is 'tcp://127.0.0.1:1': only the schedulers 'dask' and 'ray'"):
        run_study(small(), tmp_path / "s", address="tcp://127.0.0.1:1")
