"""Properties that are computed once."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from opo_fast._support.cached import cached_property


class Owner:
    def __init__(self, wait=None):
        self.wait, self.calls = wait, 0

    @cached_property
    def value(self):
        """Its documentation."""
        self.calls += 1
        if self.wait is not None:
            self.wait.wait(60)
        return [self.calls]


def test_a_property_is_computed_once_and_can_be_set_and_deleted():
    owner = Owner()
    assert owner.value is owner.value
    assert owner.calls == 1
    assert vars(owner)["value"] == [1]
    del owner.value
    assert owner.value == [2]
    owner.value = 5
    assert owner.value == 5
    assert Owner.value.__doc__ == "Its documentation."


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_that_is_forked_while_another_thread_computes_one_computes_its_own():
    """Python 3.11 holds one lock for the property of all objects, for which the child waited forever."""
    end = threading.Event()
    thread = threading.Thread(target=lambda: Owner(end).value)
    thread.start()
    time.sleep(0.05)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if Owner().value == [1] else 1)
    try:
        assert os.waitpid(child, 0)[1] == 0
    finally:
        end.set()
        thread.join()
