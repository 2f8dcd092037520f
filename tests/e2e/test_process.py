"""The proxy leaves nothing behind: not on Ctrl-C, not when it is killed outright."""

from __future__ import annotations

import signal
from pathlib import Path
from time import monotonic

import pytest

from tests.e2e import deployment as deployments
from tests.e2e.deployment import Deployment, wait_until

pytestmark = pytest.mark.xdist_group("e2e")


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(deployment: Deployment) -> list[int]:
    found = deployment.children("engine serve") + deployment.children("edgeproxy.sim.relay")
    assert len(found) == 3, "two nodes and a relay"
    return found


def test_ctrl_c_ends_everything_within_three_seconds(own_deployment: Deployment) -> None:
    left = descendants(own_deployment)
    started = monotonic()
    own_deployment.process.send_signal(signal.SIGINT)
    assert own_deployment.process.wait(3.0) == 0
    assert monotonic() - started < 3.0
    assert not [pid for pid in left if alive(pid)]


def test_killing_the_proxy_takes_its_nodes_with_it(own_deployment: Deployment) -> None:
    left = descendants(own_deployment)
    own_deployment.process.kill()
    own_deployment.process.wait(5)
    wait_until(lambda: not any(alive(pid) for pid in left), 5)


def test_a_port_in_use_is_named_with_a_remedy(deployment: Deployment, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=rf"port {deployment.near} .* is in use.*stop what listens there"):
        deployments.start(tmp_path, near=deployment.near)
