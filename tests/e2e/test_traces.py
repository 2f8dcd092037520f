"""One trace over proxy and node: each tells its own part of a request, and nobody a part twice."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.collector import Span, collector
from tests.e2e import deployment as deployments
from tests.e2e.deployment import MODEL

pytestmark = pytest.mark.xdist_group("e2e")


def test_proxy_and_nodes_tell_one_trace(tmp_path: Path) -> None:
    with collector() as received:
        running = deployments.start(tmp_path, more=f"traces_to: {received.url}")
        try:
            question = [{"role": "user", "content": "a-secret-prompt"}]
            body = {"model": MODEL, "messages": question, "max_tokens": 4}
            answer = httpx.post(f"{running.base_url}/chat/completions", json=body, timeout=60)
            assert answer.status_code == 200
            assert "traceresponse" not in answer.headers
        finally:
            deployments.stop(running)
        spans = received.spans
    (root,) = [span for span in spans if span.name == f"chat {MODEL}"]
    (node,) = [span for span in spans if span.name == f"generate {MODEL}"]
    assert (root.service, node.service) == ("edgeproxy", "edgeproxy-node")
    assert (node.trace, node.parent, root.parent) == (root.trace, root.span, 0)

    def below(parent: Span) -> set[str]:
        return {span.name for span in spans if span.parent == parent.span}

    assert below(node) == {"parse", "queue", "prefill", "decode"}
    assert {"edge", node.name} <= below(root)
    assert not below(root) & {"parse", "queue", "prefill", "first"}
    loads = [span for span in spans if span.name == f"load {MODEL}"]
    assert len(loads) == 2 and all(span.trace != root.trace for span in loads)
    assert all(b"a-secret-prompt" not in body for body in received.raw)
