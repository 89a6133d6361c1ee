//! The schemas of the OpenAPI document. Tests validate the host's responses against them.
//!
//! The file is long because it is one table: each schema that a route names has an entry.

use serde_json::{Map, Value, json};
use wopr_app::MAX_DIFFERENCES;

pub(super) fn all() -> Value {
    let mut schemas = Map::new();
    for part in [
        workflows(),
        runs(),
        events(),
        control(),
        interrupts(),
        activities(),
        host(),
        loops(),
        registrations(),
    ] {
        if let Value::Object(part) = part {
            schemas.extend(part);
        }
    }
    Value::Object(schemas)
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn instant() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

fn object() -> Value {
    json!({ "type": "object" })
}

fn count() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn to(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn list_of(schema: &str) -> Value {
    json!({ "type": "array", "items": to(schema) })
}

/// An object schema. A closed one allows no other members.
fn shape(required: &[&str], properties: Value, is_closed: bool) -> Value {
    let mut schema = object();
    schema["properties"] = properties;
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    if is_closed {
        schema["additionalProperties"] = json!(false);
    }
    schema
}

fn workflows() -> Value {
    json!({
        "WorkflowDefinition": shape(
            &["id", "name", "version", "nodes", "edges", "triggers", "variables", "metadata", "settings"],
            json!({
                "id": { "type": "string", "pattern": "^[a-z][a-z0-9_-]*$", "maxLength": 128 },
                "name": { "type": "string", "minLength": 1, "maxLength": 256 },
                "version": { "type": "string", "minLength": 1 },
                "description": text(),
                "isActive": { "type": "boolean" },
                "nodes": { "type": "array", "items": object(), "minItems": 1 },
                "edges": { "type": "array", "items": object() },
                "triggers": { "type": "array", "items": object() },
                "variables": { "type": "array", "items": object() },
                "channels": object(),
                "untrusted": object(),
                "configurableSchema": object(),
                "metadata": object(),
                "settings": object(),
            }),
            false,
        ),
        "RegisteredWorkflow": shape(
            &["workflowId", "name", "version", "contentVersion", "isActive"],
            json!({
                "workflowId": text(),
                "name": text(),
                "description": text(),
                "version": { "type": "string", "description": "The author's label." },
                "contentVersion": { "type": "string", "description": "The content's hash; runs are pinned to it." },
                "isActive": { "type": "boolean" },
                "warnings": { "type": "array", "items": to("DefinitionWarning"),
                    "description": "At registration: what the definition says and hardly means." },
            }),
            true,
        ),
        "DefinitionWarning": shape(
            &["code", "place", "rule", "pointer"],
            json!({
                "code": { "type": "string", "description": "The kind of warning; never changes its meaning." },
                "place": { "type": "string", "description": "The node, edge or variable." },
                "rule": text(),
                "pointer": { "type": "string", "format": "json-pointer" },
                "hint": { "type": "string", "description": "What to do." },
            }),
            true,
        ),
        "WorkflowList": shape(&["workflows"], json!({ "workflows": list_of("RegisteredWorkflow") }), true),
    })
}

fn runs() -> Value {
    json!({
        "RunStatus": { "type": "string", "enum": [
            "pending", "running", "paused", "waiting-approval", "waiting-input", "waiting-external",
            "completed", "failed", "cancelling", "cancelled",
        ] },
        "CreateRunRequest": shape(
            &["workflowId"],
            json!({
                "workflowId": { "type": "string", "minLength": 1, "maxLength": 128 },
                "inputs": object(),
                "tenantId": { "type": "string", "description": "Must be the credential's tenant." },
                "scopeId": text(),
                "callbackUrl": { "type": "string", "format": "uri", "description": "Not provided: 501." },
                "residency": { "type": "object", "description": "No choice of region: 400." },
                "mode": { "type": "string", "description": "Evaluation is not provided: 501." },
                "evalSuiteRef": text(),
                "agentId": text(),
                "configurable": object(),
                "tags": { "type": "array", "items": { "type": "string", "minLength": 1, "maxLength": 256 }, "maxItems": 100 },
                "metadata": object(),
            }),
            true,
        ),
        "CreateRunResponse": shape(
            &["runId", "status", "eventsUrl", "statusUrl"],
            json!({
                "runId": text(),
                "status": to("RunStatus"),
                "eventsUrl": { "type": "string", "format": "uri" },
                "statusUrl": { "type": "string", "format": "uri" },
            }),
            true,
        ),
        "RunListItem": shape(
            &["runId", "workflowId", "workflowVersion", "status", "principal", "createdAt", "updatedAt", "eventCount"],
            json!({
                "runId": text(),
                "workflowId": text(),
                "workflowVersion": text(),
                "status": to("RunStatus"),
                "principal": text(),
                "createdAt": instant(),
                "updatedAt": instant(),
                "eventCount": count(),
                "parentRunId": text(),
                "parentNodeId": text(),
            }),
            true,
        ),
        "RunList": shape(&["runs"], json!({ "runs": list_of("RunListItem"), "nextCursor": text() }), true),
        "RunAncestry": shape(
            &["runId", "hostId", "parent"],
            json!({
                "runId": text(),
                "hostId": text(),
                "parent": { "anyOf": [
                    { "type": "null" },
                    shape(
                        &["runId", "hostId", "cause"],
                        json!({ "runId": text(), "hostId": text(), "wellKnownUrl": text(), "cause": text() }),
                        false,
                    ),
                ] },
            }),
            false,
        ),
        "RunSnapshot": shape(
            &["runId", "workflowId", "status", "inputs", "variables"],
            json!({
                "runId": text(),
                "workflowId": text(),
                "status": to("RunStatus"),
                "owner": object(),
                "parentRunId": text(),
                "parentNodeId": text(),
                "childRuns": { "type": "array", "items": shape(
                    &["runId", "status"],
                    json!({ "runId": text(), "workflowId": text(), "status": to("RunStatus") }),
                    true,
                ) },
                "forkedFrom": shape(
                    &["sourceRunId", "mode", "fromSeq"],
                    json!({
                        "sourceRunId": text(),
                        "mode": { "enum": ["replay", "branch"] },
                        "fromSeq": count(),
                        "divergedAtSeq": count(),
                    }),
                    true,
                ),
                "currentNodeId": text(),
                "startedAt": instant(),
                "completedAt": instant(),
                "inputs": object(),
                "variables": object(),
                "nodeStates": object(),
                "channels": object(),
                "interrupt": to("InterruptView"),
                "interrupts": list_of("InterruptView"),
                "activities": list_of("Activity"),
                "untrusted": object(),
                "error": shape(
                    &["code", "message"],
                    json!({ "code": text(), "message": { "type": "string", "minLength": 1 }, "details": object() }),
                    true,
                ),
                "eventLogSchemaVersion": count(),
                "tags": { "type": "array", "items": text() },
                "metadata": object(),
                "configurable": object(),
            }),
            false,
        ),
    })
}

fn events() -> Value {
    json!({
        "RunEvent": shape(
            &["eventId", "runId", "type", "payload", "timestamp", "sequence"],
            json!({
                "eventId": text(),
                "runId": text(),
                "nodeId": text(),
                "type": text(),
                "payload": true,
                "timestamp": instant(),
                "sequence": count(),
                "schemaVersion": count(),
                "engineVersion": text(),
                "causationId": text(),
            }),
            true,
        ),
        "PollResponse": shape(
            &["runId", "events", "isComplete", "runStatus", "isTerminal"],
            json!({
                "runId": text(),
                "events": list_of("RunEvent"),
                "isComplete": { "type": "boolean" },
                "lastEventSeq": count(),
                "runStatus": to("RunStatus"),
                "isTerminal": { "type": "boolean" },
            }),
            true,
        ),
    })
}

fn control() -> Value {
    let reason = || json!({ "reason": text() });
    let changed = |at: &str| {
        shape(
            &["runId", "status"],
            json!({ "runId": text(), "status": to("RunStatus"), at: instant() }),
            true,
        )
    };
    json!({
        "CancelRequest": shape(&[], reason(), false),
        "CancelResponse": shape(&["runId", "status"], json!({ "runId": text(), "status": to("RunStatus") }), true),
        "BulkCancelRequest": shape(
            &["runIds"],
            json!({
                "runIds": {
                    "type": "array",
                    "items": { "type": "string", "minLength": 1, "maxLength": 128 },
                    "minItems": 1,
                    "maxItems": 100,
                },
                "reason": { "type": "string", "maxLength": 512 },
            }),
            true,
        ),
        "BulkCancelResponse": shape(
            &["results"],
            json!({ "results": { "type": "array", "items": shape(
                &["runId", "ok"],
                json!({
                    "runId": text(),
                    "ok": { "type": "boolean" },
                    "status": to("RunStatus"),
                    "error": to("ErrorEnvelope"),
                }),
                true,
            ) } }),
            true,
        ),
        "PauseRequest": shape(
            &[],
            json!({ "reason": text(), "drainPolicy": { "enum": ["immediate", "drain-current-node"] } }),
            true,
        ),
        "PauseResponse": changed("pausedAt"),
        "ResumeRequest": shape(&[], reason(), true),
        "ResumeResponse": changed("resumedAt"),
        "ForkRequest": shape(
            &["mode"],
            json!({
                "mode": { "enum": ["replay", "branch"] },
                "fromSeq": count(),
                "runOptionsOverlay": shape(
                    &[],
                    json!({
                        "configurable": object(),
                        "tags": { "type": "array", "items": { "type": "string" } },
                        "metadata": object(),
                    }),
                    true,
                ),
            }),
            true,
        ),
        "ForkResponse": shape(
            &["runId", "sourceRunId", "fromSeq", "mode", "status", "eventsUrl"],
            json!({
                "runId": text(),
                "sourceRunId": text(),
                "fromSeq": count(),
                "mode": { "enum": ["replay", "branch"] },
                "status": to("RunStatus"),
                "eventsUrl": text(),
            }),
            true,
        ),
        "RetryRequest": shape(&[], json!({ "asItWas": { "type": "boolean" } }), true),
        "RunDiffResponse": shape(
            &["a", "b", "eventDiffs", "stateDiff"],
            json!({
                "a": text(),
                "b": text(),
                "divergedAtSeq": { "type": ["integer", "null"], "minimum": 0 },
                "eventDiffs": { "type": "array", "maxItems": MAX_DIFFERENCES, "items": shape(
                    &["seq", "op"],
                    json!({
                        "seq": count(),
                        "op": { "enum": ["added", "removed", "changed"] },
                        "aEvent": to("RunEvent"),
                        "bEvent": to("RunEvent"),
                    }),
                    true,
                ) },
                "stateDiff": object(),
                "truncated": { "type": "boolean" },
            }),
            true,
        ),
    })
}

fn interrupts() -> Value {
    let view = json!({
        "interruptId": text(),
        "nodeId": text(),
        "kind": text(),
        "key": text(),
        "data": true,
        "metadata": object(),
        "resumeSchema": object(),
        "requestedAt": instant(),
        "expiresAt": instant(),
        "interruptToken": text(),
        "callbackUrl": { "type": "string", "format": "uri" },
    });
    let required = ["interruptId", "nodeId", "kind", "key", "data"];
    let mut item = view.clone();
    item["runId"] = text();
    item["workflowId"] = text();
    json!({
        "InterruptView": shape(&required, view, true),
        "InterruptList": shape(
            &["interrupts"],
            json!({
                "interrupts": { "type": "array", "items": shape(&required, item, true) },
                "nextCursor": text(),
            }),
            true,
        ),
        "ResolveInterruptRequest": shape(
            &["resumeValue"],
            json!({ "resumeValue": true, "interruptId": text() }),
            true,
        ),
        "MintInterruptTokenRequest": shape(
            &["runId", "nodeId"],
            json!({
                "runId": text(),
                "nodeId": text(),
                "interruptId": text(),
                "principal": text(),
                "roles": { "type": "array", "items": text() },
                "groups": { "type": "array", "items": text() },
                "intent": { "enum": ["resolve", "inspect"] },
            }),
            true,
        ),
        "MintedInterruptToken": shape(
            &["runId", "nodeId", "interruptId", "principal", "intent", "interruptToken", "callbackUrl", "expiresAt"],
            json!({
                "runId": text(),
                "nodeId": text(),
                "interruptId": text(),
                "principal": text(),
                "intent": { "enum": ["resolve", "inspect"] },
                "interruptToken": text(),
                "callbackUrl": { "type": "string", "format": "uri" },
                "expiresAt": instant(),
            }),
            true,
        ),
        "ResumeValue": { "type": "object", "description": "For an approval: action, and what the action needs." },
        "ResolveInterruptResponse": shape(
            &["runId", "nodeId", "status"],
            json!({ "runId": text(), "nodeId": text(), "status": to("RunStatus") }),
            true,
        ),
    })
}

fn activities() -> Value {
    let outcome = json!({
        "oneOf": [
            shape(&["ok"], json!({ "ok": { "const": true }, "result": true }), true),
            shape(
                &["ok", "error"],
                json!({ "ok": { "const": false }, "error": shape(
                    &["code"],
                    json!({
                        "code": { "type": "string", "minLength": 1, "maxLength": 128 },
                        "message": { "type": "string", "maxLength": 8192 },
                        "retryable": { "type": "boolean", "default": false },
                    }),
                    true,
                ) }),
                true,
            ),
        ],
    });
    json!({
        "Activity": shape(
            &["token", "nodeId", "ordinal", "queue", "input"],
            json!({ "token": text(), "nodeId": text(), "ordinal": count(), "queue": text(), "input": true }),
            true,
        ),
        "LeaseActivitiesRequest": shape(
            &["queue"],
            json!({
                "queue": { "type": "string", "minLength": 1, "maxLength": 128 },
                "worker": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 128,
                    "description": "The name of the worker; the caller's principal where absent.",
                },
                "max": { "type": "integer", "minimum": 1, "maximum": 256, "default": 1 },
                "waitMs": { "type": "integer", "minimum": 0, "maximum": 60_000, "default": 0 },
            }),
            true,
        ),
        "LeasedActivity": shape(
            &[
                "token", "runId", "nodeId", "ordinal", "attempt", "queue", "input", "idempotencyKey", "leaseMs",
                "availableAt",
            ],
            json!({
                "token": text(),
                "runId": text(),
                "nodeId": text(),
                "ordinal": count(),
                "attempt": count(),
                "queue": text(),
                "input": true,
                "idempotencyKey": { "type": "string", "description": "The same for every attempt of the step." },
                "leaseMs": { "type": "integer", "description": "How long the lease lasts without a heartbeat." },
                "availableAt": instant(),
                "timeoutMs": { "type": "integer" },
                "heartbeatMs": { "type": "integer" },
                "traceparent": text(),
                "tracestate": text(),
            }),
            true,
        ),
        "LeasedActivities": shape(&["activities"], json!({ "activities": list_of("LeasedActivity") }), true),
        "WorkerQueue": shape(
            &["queue", "waiting", "leased"],
            json!({ "queue": text(), "waiting": count(), "leased": count(), "oldestAt": instant() }),
            true,
        ),
        "SeenWorker": shape(
            &["queue", "worker", "waiting", "working", "seenAt"],
            json!({
                "queue": text(),
                "worker": text(),
                "waiting": { "type": "integer", "description": "Its calls that wait for activities." },
                "working": { "type": "integer", "description": "Activities that it leased from this process and has not ended, as long as the leases last." },
                "seenAt": instant(),
            }),
            true,
        ),
        "WorkerQueues": shape(
            &["queues", "workers"],
            json!({ "queues": list_of("WorkerQueue"), "workers": list_of("SeenWorker") }),
            true,
        ),
        "SubmitActivitiesRequest": shape(
            &["outcomes"],
            json!({ "outcomes": { "type": "array", "minItems": 1, "maxItems": 256, "items": shape(
                &["token", "outcome"],
                json!({ "token": text(), "outcome": outcome }),
                true,
            ) } }),
            true,
        ),
        "SubmitActivitiesResponse": shape(
            &["results"],
            json!({ "results": { "type": "array", "items": shape(
                &["token", "ok"],
                json!({
                    "token": text(),
                    "ok": { "type": "boolean" },
                    "runId": text(),
                    "status": to("RunStatus"),
                    "error": to("ErrorEnvelope"),
                }),
                true,
            ) } }),
            true,
        ),
        "SubmitActivityRequest": shape(&["outcome"], json!({ "outcome": outcome }), true),
        "SubmitActivityResponse": shape(
            &["runId", "status"],
            json!({ "runId": text(), "status": to("RunStatus") }),
            true,
        ),
        "HeartbeatActivityRequest": shape(&[], json!({ "details": true }), true),
        "HeartbeatActivityResponse": shape(
            &["cancelRequested"],
            json!({ "cancelRequested": { "type": "boolean" } }),
            true,
        ),
    })
}

fn host() -> Value {
    let artifact = |with_content: bool| {
        let mut properties = json!({
            "artifactId": text(),
            "artifactType": text(),
            "name": text(),
            "runId": text(),
            "nodeId": text(),
            "createdAt": instant(),
        });
        let mut required = vec![
            "artifactId",
            "artifactType",
            "name",
            "runId",
            "nodeId",
            "createdAt",
        ];
        if with_content {
            properties["content"] = json!(true);
            required.push("content");
        }
        shape(&required, properties, true)
    };
    let key = json!({
        "id": text(),
        "tenant": text(),
        "principal": text(),
        "scopes": { "type": "array", "items": text() },
        "roles": { "type": "array", "items": text() },
        "groups": { "type": "array", "items": text() },
        "createdAt": instant(),
        "revokedAt": instant(),
    });
    let required = ["id", "tenant", "principal", "scopes", "createdAt"];
    let mut created = key.clone();
    let secret = json!({ "name": text(), "fingerprint": text(), "setAt": instant() });
    created["secret"] = json!({ "type": "string", "description": "Shown once; only its hash is kept." });
    json!({
        "ErrorEnvelope": shape(
            &["error", "message"],
            json!({
                "error": { "type": "string", "description": "A stable code." },
                "message": text(),
                "details": object(),
            }),
            true,
        ),
        "Capabilities": shape(
            &["protocolVersion", "supportedEnvelopes", "schemaVersions", "limits"],
            json!({
                "protocolVersion": text(),
                "supportedEnvelopes": { "type": "array", "items": text() },
                "schemaVersions": object(),
                "limits": object(),
            }),
            false,
        ),
        "Health": shape(&["status"], json!({ "status": text() }), true),
        "Artifact": artifact(true),
        "ArtifactList": shape(
            &["artifacts"],
            json!({ "artifacts": { "type": "array", "items": artifact(false) } }),
            true,
        ),
        "CreateKeyRequest": shape(
            &["scopes"],
            json!({
                "id": text(),
                "principal": text(),
                "scopes": { "type": "array", "items": text() },
                "roles": { "type": "array", "items": text() },
                "groups": { "type": "array", "items": text() },
            }),
            true,
        ),
        "CreatedKey": shape(&required, created, true),
        "KeyList": shape(
            &["keys"],
            json!({
                "keys": { "type": "array", "items": shape(&required, key, true) },
                "nextCursor": text(),
            }),
            true,
        ),
        "SetSecretRequest": shape(&["name", "value"], json!({ "name": text(), "value": text() }), true),
        "Secret": shape(&["name", "fingerprint", "setAt"], secret.clone(), true),
        "SecretList": shape(
            &["secrets"],
            json!({ "secrets": { "type": "array", "items": shape(&["name", "fingerprint", "setAt"], secret, true) } }),
            true,
        ),
        "BudgetList": shape(
            &["budgets"],
            json!({
                "budgets": { "type": "array", "items": shape(
                    &["tenant", "per", "since", "until", "tokens", "costUsd", "timeMs", "onBreach"],
                    json!({
                        "tenant": text(),
                        "workflow": { "type": "string", "description": "All runs of the tenant where absent." },
                        "per": { "type": "string", "enum": ["hour", "day", "month"] },
                        "since": instant(),
                        "until": instant(),
                        "tokens": { "type": "integer" },
                        "maxTokens": { "type": "integer" },
                        "costUsd": { "type": "number" },
                        "maxCostUsd": { "type": "number" },
                        "timeMs": { "type": "integer", "description": "How long the host waited for answers of models." },
                        "maxTimeMs": { "type": "integer" },
                        "onBreach": { "type": "string", "enum": ["ask", "fail"] },
                    }),
                    true,
                ) },
            }),
            true,
        ),
        "DeliveryList": shape(
            &["deliveries"],
            json!({
                "deliveries": { "type": "array", "items": shape(
                    &["runId", "kind", "state", "attempts", "enqueuedAt"],
                    json!({
                        "runId": text(),
                        "kind": { "type": "string", "enum": ["push", "cancel", "answer", "recall"] },
                        "configId": text(),
                        "sequence": count(),
                        "nodeId": text(),
                        "interruptId": text(),
                        "peer": text(),
                        "taskId": text(),
                        "state": { "type": "string", "enum": ["waiting", "given-up"] },
                        "attempts": count(),
                        "enqueuedAt": instant(),
                        "error": text(),
                        "nextTryAt": instant(),
                        "givenUpAt": instant(),
                    }),
                    true,
                ) },
                "nextCursor": text(),
            }),
            true,
        ),
        "RetryDeliveriesRequest": shape(
            &["runId"],
            json!({ "runId": text(), "configId": text(), "sequence": count() }),
            true,
        ),
        "RetriedDeliveries": shape(&["retried"], json!({ "retried": count() }), true),
        "StartSampleA2ATaskRequest": shape(&["scenario"], json!({ "scenario": text() }), false),
        "StartedSampleA2ATask": shape(&["taskId"], json!({ "taskId": text() }), true),
        "InvokeSampleA2AAgentRequest": shape(
            &["peerUrl"],
            json!({
                "peerUrl": text(),
                "authenticated": { "type": "boolean" },
                "peerOffersOnly": text(),
                "requestVersion": text(),
                "scenario": { "enum": ["peer-asserts-authority"] },
                "skill": text(),
                "message": text(),
            }),
            false,
        ),
        "InvokedSampleA2AAgent": shape(
            &["negotiatedVersion", "contentTrust"],
            json!({
                "negotiatedVersion": { "enum": ["1.0", "0.3"] },
                "contentTrust": { "enum": ["untrusted"] },
                "taskId": text(),
                "state": text(),
                "runStatus": text(),
                "peerAuthority": shape(
                    &["approvalAdvanced", "scopesWidened", "referencedTaskDereferenced"],
                    json!({
                        "approvalAdvanced": { "type": "boolean" },
                        "scopesWidened": { "type": "boolean" },
                        "referencedTaskDereferenced": { "type": "boolean" },
                    }),
                    true,
                ),
            }),
            true,
        ),
        "SampleA2APushConfigRequest": shape(
            &["taskId", "url"],
            json!({ "taskId": text(), "url": text() }),
            false,
        ),
        "SampleModelProgram": shape(
            &["nodeId", "program"],
            json!({
                "nodeId": text(),
                "program": { "type": "array", "maxItems": 100, "items": {
                    "type": "object",
                    "properties": {
                        "content": { "type": "string" },
                        "stopReason": { "enum": [
                            "end_turn", "max_tokens", "length", "stop_sequence", "safety",
                        ] },
                        "refusalText": { "type": "string" },
                        "inputTokens": { "type": "integer", "minimum": 0 },
                        "outputTokens": { "type": "integer", "minimum": 0 },
                    },
                } },
            }),
            true,
        ),
        "ProgrammedSampleModel": shape(
            &["nodeId", "programmed"],
            json!({ "nodeId": text(), "programmed": { "type": "integer", "minimum": 0 } }),
            true,
        ),
        "SampleModelBudget": shape(
            &["maxTokens"],
            json!({ "maxTokens": { "type": ["integer", "null"], "minimum": 1 } }),
            true,
        ),
        "SampleLlmCall": shape(
            &["provider", "model"],
            json!({ "provider": text(), "model": text(), "messages": { "type": "array" } }),
            false,
        ),
        "SampleLlmCacheKey": shape(&["cacheKey"], json!({ "cacheKey": text() }), true),
        "SampleRunVariables": shape(&["variables"], json!({ "variables": { "type": "object" } }), false),
        "A2ATaskState": shape(
            &["taskId", "runId", "state", "updatedAt"],
            json!({
                "taskId": text(),
                "runId": text(),
                "contextId": text(),
                "state": { "enum": [
                    "submitted", "working", "input-required", "auth-required",
                    "completed", "failed", "canceled", "rejected",
                ] },
                "interruptKind": { "enum": ["approval", "clarification"] },
                "updatedAt": instant(),
                "pushConfig": shape(&["url"], json!({ "url": text(), "tokenFingerprint": text() }), true),
            }),
            true,
        ),
    })
}

/// Of the hooks for supervisors and workers, in conformance mode.
fn loops() -> Value {
    json!({
        "SampleFanOutRequest": shape(
            &["nextWorkerIds"],
            json!({
                "nextWorkerIds": { "type": "array", "items": text(), "minItems": 1 },
                "config": { "type": "object" },
            }),
            false,
        ),
        "SampleFanOut": shape(
            &["runId", "status"],
            json!({
                "runId": text(),
                "status": text(),
                "joinOutcome": { "enum": ["satisfied", "partial", "failed"] },
                "mergeOrder": { "type": "array", "items": text() },
                "children": { "type": "array", "items": { "type": "object" } },
                "error": { "type": "object" },
            }),
            true,
        ),
        "SampleAttestRequest": shape(
            &["childOutputs", "outputAttestation"],
            json!({
                "childOutputs": { "type": "object" },
                "outputAttestation": { "type": "object" },
                "approvalAction": text(),
            }),
            false,
        ),
        "SampleAttest": shape(
            &["runId", "status", "merged"],
            json!({
                "runId": text(),
                "status": text(),
                "merged": { "type": "boolean" },
                "mergedValues": { "type": "object" },
                "attestation": { "type": "object" },
                "harvestedEvent": { "type": "object" },
            }),
            true,
        ),
        "SampleAgentLoopRequest": shape(
            &["turns"],
            json!({
                "turns": { "type": "integer", "minimum": 1, "maximum": 64 },
                "maxLoopIterations": { "type": "integer", "minimum": 1 },
                "suspendAtTurn": { "type": "integer", "minimum": 1 },
                "resume": { "type": "boolean" },
            }),
            false,
        ),
        "SampleAgentLoop": shape(
            &["runId", "status", "decisions", "iterations"],
            json!({
                "runId": text(),
                "status": text(),
                "decisions": { "type": "array", "items": { "type": "object" } },
                "iterations": { "type": "array", "items": { "type": "integer", "minimum": 1 } },
                "resumedIteration": { "type": "integer", "minimum": 1 },
                "error": { "type": "object" },
            }),
            true,
        ),
    })
}

/// Of the hooks around the registration of workflows, in conformance mode.
fn registrations() -> Value {
    json!({
        "SampleWorkflow": shape(
            &["workflowId", "nodes"],
            json!({
                "workflowId": text(),
                "nodes": { "type": "array", "items": { "type": "object" } },
                "variables": { "type": ["array", "null"] },
            }),
            true,
        ),
        "RegisteredSampleWorkflow": shape(
            &["workflowId", "contentVersion"],
            json!({ "workflowId": text(), "contentVersion": text() }),
            true,
        ),
        "SampleCapabilityToggle": shape(
            &[],
            json!({
                "name": text(),
                "value": { "type": ["boolean", "null"] },
                "reset": { "type": "boolean" },
            }),
            true,
        ),
        "SampleCapabilityOverlay": shape(&["overlay"], json!({ "overlay": { "type": "object" } }), true),
    })
}
