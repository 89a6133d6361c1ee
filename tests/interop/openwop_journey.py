"""A host of OpenWOP v1 as openwop-client sees it: usage openwop_journey.py BASE_URL API_KEY.

The workflows are those of crates/cli/tests/workflows. Ends with status 0 and the line "ok" if everything held.
"""

import json
import sys
import urllib.request

from openwop_client import (
    BulkCancelRunsRequest,
    CancelRunRequest,
    CreateRunRequest,
    OpenwopClient,
    PauseRunRequest,
    ResolveInterruptRequest,
    ResumeRunRequest,
    WopError,
)

BASE_URL, API_KEY = sys.argv[1:3]
client = OpenwopClient(base_url=BASE_URL, api_key=API_KEY)

# What the default stream mode shows.
UPDATES = {
    "run.started", "run.completed", "run.failed", "run.cancelled", "run.paused", "run.resumed", "node.completed",
    "node.failed", "node.skipped", "node.suspended", "node.dispatched", "approval.requested", "approval.received",
    "clarification.requested", "clarification.resolved", "interrupt.requested", "interrupt.resolved",
    "artifact.created",
}


def create(workflow, key=None, **inputs):
    created = client.runs_create(CreateRunRequest(workflowId=workflow, inputs=inputs), idempotency_key=key)
    # The status at acceptance is never a terminal one.
    assert created.status not in ("completed", "failed", "cancelled"), created
    assert created.eventsUrl.startswith(BASE_URL) and created.runId in created.eventsUrl, created
    return created.runId


def snapshot(run):
    """With the members that the client's dataclass leaves out, such as the interrupt."""
    request = urllib.request.Request(f"{BASE_URL}/v1/runs/{run}", headers={"Authorization": f"Bearer {API_KEY}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def log(run):
    """The whole log, once the run has ended."""
    events, complete = [], False
    while not complete:
        last = events[-1].sequence if events else None
        page = client.runs_poll_events(run, last_sequence=last, timeout_seconds=20)
        assert page.events or page.isComplete, f"run {run} does not go on after {events[-1:]}"
        events += page.events
        complete = page.isComplete
    assert [event.sequence for event in events] == list(range(len(events))), events
    terminal = [event.type for event in events if event.type in ("run.completed", "run.failed", "run.cancelled")]
    assert terminal == [events[-1].type], events
    return events


def types(events):
    return [event.type for event in events]


def accept(action="accept"):
    return ResolveInterruptRequest(resumeValue={"action": action})


def refused(status, code, call):
    try:
        answer = call()
    except WopError as error:
        assert error.status == status, (error.status, error.raw_text)
        assert error.envelope is not None, error.raw_text
        codes = code if isinstance(code, tuple) else (code,)
        assert error.envelope.error in codes, error.raw_text
        assert error.trace_id, "an error without a trace"
        return error.envelope
    raise AssertionError(f"expected {status} {code}, got {answer}")


def discovery():
    capabilities = client.discovery_capabilities()
    assert capabilities.protocolVersion.startswith("1"), capabilities
    assert capabilities.limits.envelopesPerTurn >= 0, capabilities
    document = client.discovery_openapi()
    for path in ("/v1/runs", "/v1/runs/{runId}", "/v1/runs/{runId}/events", "/v1/runs/{runId}/cancel"):
        assert path in document["paths"], path
    workflow = client.workflows_get("approval")
    assert workflow["id"] == "approval" and len(workflow["nodes"]) == 3, workflow


def pure_run():
    run = create("pure", marker="hello")
    events = log(run)
    assert types(events)[0] == "run.started" and types(events)[-1] == "run.completed", types(events)
    done = client.runs_get(run)
    assert done.status == "completed" and done.workflowId == "pure", done
    assert done.variables["marker"] == "hello", done
    artifacts = [event.payload["artifactId"] for event in events if event.type == "artifact.created"]
    assert len(artifacts) == 1, types(events)
    assert "hello" in json.dumps(client.runs_get_artifact(run, artifacts[0]))
    assert client.runs_get_artifact(run, "nothing") is None

    streamed = list(client.runs_events(run))
    assert types(streamed) == [kind for kind in types(events) if kind in UPDATES], types(streamed)
    whole = list(client.runs_events(run, stream_mode="debug"))
    assert [event.eventId for event in whole] == [event.eventId for event in events]
    rest = list(client.runs_events(run, stream_mode="debug", last_event_id="1"))
    assert [event.sequence for event in rest] == list(range(2, len(events)))
    buffered = list(client.runs_events(run, stream_mode="debug", buffer_ms=50))
    assert [event.eventId for event in buffered] == [event.eventId for event in events]


def live_stream():
    run = create("delay", delayMs=300)
    streamed = list(client.runs_events(run))
    assert types(streamed)[-1] == "run.completed", types(streamed)


def approval_by_run():
    run = create("approval", marker="a")
    waiting = client.runs_get(run)
    assert waiting.status == "waiting-approval" and waiting.currentNodeId == "gate", waiting
    refused(404, "interrupt_not_found", lambda: client.interrupts_resolve_by_run(run, "draft", accept()))
    refused(400, "validation_error", lambda: client.interrupts_resolve_by_run(run, "gate", accept("refine")))
    resolved = client.interrupts_resolve_by_run(run, "gate", accept())
    assert resolved.runId == run and resolved.nodeId == "gate", resolved
    kinds = types(log(run))
    for kind in ("interrupt.requested", "interrupt.resolved", "approval.received"):
        assert kind in kinds, kinds
    assert client.runs_get(run).status == "completed"
    refused(409, "interrupt_already_resolved", lambda: client.interrupts_resolve_by_run(run, "gate", accept()))


def approval_by_token():
    run = create("approval", marker="b")
    token = snapshot(run)["interrupt"]["interruptToken"]
    seen = client.interrupts_inspect_by_token(token)
    assert seen.kind == "approval" and seen.data["title"] == "Go on?", seen
    client.interrupts_resolve_by_token(token, accept("reject"))
    assert types(log(run))[-1] == "run.failed"
    failed = client.runs_get(run)
    assert failed.status == "failed" and failed.error.code and failed.error.message, failed
    refused(409, "interrupt_already_resolved", lambda: client.interrupts_resolve_by_token(token, accept()))
    refused(404, "interrupt_not_found", lambda: client.interrupts_inspect_by_token("tok_unknown.unknown"))


def clarification():
    run = create("clarify")
    assert client.runs_get(run).status == "waiting-input"
    answer = ResolveInterruptRequest(resumeValue={"answers": [{"id": "colour", "answer": "blue"}]})
    client.interrupts_resolve_by_run(run, "ask", answer)
    assert types(log(run))[-1] == "run.completed"


def children():
    run = create("parent", marker="c", delayMs=50)
    events = log(run)
    assert types(events)[-1] == "run.completed", types(events)
    parent = snapshot(run)
    children = [child["runId"] for child in parent["childRuns"]]
    assert len(children) == 2, parent
    for child in children:
        assert snapshot(child)["parentRunId"] == run
        log(child)


def cancel():
    run = create("delay", delayMs=600_000)
    assert client.runs_cancel(run, CancelRunRequest(reason="test")).status in ("cancelling", "cancelled")
    events = log(run)
    assert events[-1].type == "run.cancelled" and events[-1].payload["reason"] == "test", events[-1]
    assert client.runs_cancel(run).status == "cancelled"

    waiting, done = create("approval"), create("pure")
    log(done)
    ids = [waiting, done, "run-that-is-not-there", run]
    results = client.runs_bulk_cancel(BulkCancelRunsRequest(runIds=ids)).results
    assert [result.runId for result in results] == ids, results
    assert [result.ok for result in results] == [True, False, False, True], results
    assert results[1].error["error"] == "run_terminal" and results[2].error["error"] == "not_found", results
    assert types(log(waiting))[-1] == "run.cancelled"
    refused(400, "validation_error", lambda: client.runs_bulk_cancel(BulkCancelRunsRequest(runIds=[])))


def pause():
    run = create("delay", delayMs=100)
    try:
        paused = client.runs_pause(run, PauseRunRequest(reason="test", drainPolicy="immediate"))
    except WopError as error:
        # A machine that slow had the run end first.
        assert error.status == 409, error.raw_text
        return
    assert paused.status == "paused", paused
    assert client.runs_get(run).status == "paused"
    refused(409, ("run_not_pausable", "conflict", "run_already_paused"), lambda: client.runs_pause(run))
    assert client.runs_resume(run, ResumeRunRequest(reason="test")).status == "running"
    kinds = types(log(run))
    assert kinds.index("run.paused") + 1 == kinds.index("run.resumed"), kinds


def idempotency():
    first = create("pure", key="journey-1", marker="d")
    assert create("pure", key="journey-1", marker="d") == first
    assert create("pure", key="journey-2", marker="d") != first
    body = CreateRunRequest(workflowId="pure", inputs={"marker": "other"})
    refused(409, "idempotency_key_mismatch", lambda: client.runs_create(body, idempotency_key="journey-1"))


def errors():
    refused(404, "not_found", lambda: client.runs_create(CreateRunRequest(workflowId="nothing")))
    refused(404, ("run_not_found", "not_found"), lambda: client.runs_get("run-that-is-not-there"))
    refused(404, ("workflow_not_found", "not_found"), lambda: client.workflows_get("nothing"))
    stranger = OpenwopClient(base_url=BASE_URL, api_key="wrong")
    refused(401, "unauthenticated", lambda: stranger.runs_get("run-that-is-not-there"))
    body = CreateRunRequest(workflowId="pure", tenantId="somebody-else")
    refused(403, "forbidden", lambda: client.runs_create(body))
    bad = CreateRunRequest(workflowId="pure", configurable={"recursionLimit": -1})
    refused(400, "validation_error", lambda: client.runs_create(bad))


for step in (
    discovery, pure_run, live_stream, approval_by_run, approval_by_token, clarification, children, cancel, pause,
    idempotency, errors,
):
    print(step.__name__, flush=True)
    step()
print("ok")
