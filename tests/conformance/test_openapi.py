"""schemathesis against /openapi.json: what it makes of the document, valid or not, is answered as the document says."""

from __future__ import annotations

import pytest

from tests.e2e.deployment import NODE_TOKEN, Deployment

schemathesis = pytest.importorskip("schemathesis", reason="not installed: scripts/conformance installs and runs it")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("e2e")]
EXAMPLES = 60
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("program", ["proxy", "node"])
def test_answers_are_as_documented(deployment: Deployment, program: str, mode: str) -> None:
    """`negative`: what is against the document, which may be refused, but is never a failure of ours."""
    port = deployment.http if program == "proxy" else deployment.near
    base, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {NODE_TOKEN}"}
    schema = schemathesis.openapi.from_url(f"{base}/openapi.json", headers=headers)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert {operation.path for operation in operations} >= {"/v1/chat/completions", "/v1/completions"}
    for operation in operations:
        if mode == "negative" and not operation.body:
            continue  # nothing of it can be wrong

        @settings(max_examples=EXAMPLES, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=GenerationMode(mode)))
        def conforms(case) -> None:  # type: ignore[no-untyped-def]
            if isinstance(case.body, dict):
                case.body |= {"max_tokens": 4, "max_completion_tokens": None}
            case.call_and_validate(base_url=base, headers=headers, checks=CHECKS, timeout=60)

        conforms()
