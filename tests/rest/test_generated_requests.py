"""Requests made from the OpenAPI description are answered as it says."""

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings

from klamm.testing import broker

from .conftest import running_proxy

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
EXAMPLES = 8
GENERATED = settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def generated():
    """A proxy over a broker of its own: requests change settings of brokers."""
    import schemathesis  # takes seconds, and every worker collects this file

    options = {"request_timeout_ms": 50, "instance_timeout_ms": 2000}
    with broker() as running, running_proxy(running.bootstrap, **options) as proxy:
        topic = running.topic("generated")
        proxy.produce(topic, 1, 2)
        yield proxy, topic, schemathesis.openapi.from_dict(proxy.get("/openapi.json").json())


def name_what_exists(case, proxy, topic):
    """A random cluster, topic or group is refused at once: most cases are to get further."""
    names = {"cluster_id": proxy.service.cluster_id, "topic_name": topic, "topic": topic, "group": topic}
    if case.method != "DELETE":
        case.path_parameters = {name: names.get(name, value) for name, value in (case.path_parameters or {}).items()}
    # Reads would wait, and a topic of a billion partitions is the broker's matter.
    if "timeout" in (case.query or {}):
        case.query["timeout"] = "20"
    if case.path.endswith("/topics") and isinstance(case.body, dict):
        case.body["validate_only"] = True


def test_generated_requests_are_answered_as_described(generated):
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

    checks = [not_a_server_error, response_schema_conformance, status_code_conformance]
    proxy, topic, schema = generated
    answered = []
    with requests.Session() as session:
        for result in schema.get_all_operations():
            operation = result.ok()
            if operation.method.upper() == "PATCH":  # adds partitions
                continue

            @GENERATED
            @given(case=operation.as_strategy())
            def check(case):
                name_what_exists(case, proxy, topic)
                response = case.call(base_url=proxy.url, session=session, timeout=60)
                case.validate_response(response, checks=checks)
                answered.append((operation.label, response.status_code))  # noqa: B023 - called in this turn

            check()
    assert len({label for label, _ in answered}) > 40
    assert {status // 100 for _, status in answered} == {2, 4}
