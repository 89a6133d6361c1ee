//! The table of routes, which the router matches and the OpenAPI document describes.
//!
//! A single table keeps router and document consistent. Each route defines its access, input and responses;
//! no other module of this API decides any of these.

use super::{
    activities, ancestry, artifacts, budgets,
    call::Handler,
    calls, control, deliveries, events, forks, interrupts, keys, operations, poll,
    route::{Access, Exists, Input, Param, Route, Success, Verb},
    runs, sample, secrets, tasks, workers, workflows,
};
use crate::auth::Scope;

const JSON: &str = "application/json";

const fn get(path: &'static str, id: &'static str, handler: Handler) -> Route {
    Route {
        verb: Verb::Get,
        path,
        id,
        summary: "",
        access: Access::Public,
        input: Input::None,
        exists: Exists::Always,
        is_page: false,
        params: &[],
        success: Success {
            status: 200,
            or: None,
            media: JSON,
            schema: None,
        },
        errors: &[],
        handler,
    }
}

const fn post(path: &'static str, id: &'static str, handler: Handler) -> Route {
    Route {
        verb: Verb::Post,
        ..get(path, id, handler)
    }
}

const fn delete(path: &'static str, id: &'static str, handler: Handler) -> Route {
    Route {
        verb: Verb::Delete,
        ..get(path, id, handler)
    }
}

impl Route {
    const fn about(self, summary: &'static str) -> Self {
        Self { summary, ..self }
    }

    /// Requires the interrupt token in the path.
    const fn by_token(self) -> Self {
        Self {
            access: Access::Token,
            ..self
        }
    }

    const fn needs(self, scopes: &'static [Scope]) -> Self {
        Self {
            access: Access::Scopes(scopes),
            ..self
        }
    }

    const fn reads(self, input: Input) -> Self {
        Self { input, ..self }
    }

    const fn with(self, params: &'static [Param]) -> Self {
        Self { params, ..self }
    }

    const fn answers(self, status: u16, schema: &'static str) -> Self {
        Self {
            success: Success {
                status,
                or: None,
                media: JSON,
                schema: Some(schema),
            },
            ..self
        }
    }

    /// Adds another status with the same body.
    const fn or_answers(self, status: u16) -> Self {
        let success = Success {
            or: Some(status),
            ..self.success
        };
        Self { success, ..self }
    }

    const fn answers_as(self, status: u16, media: &'static str) -> Self {
        Self {
            success: Success {
                status,
                or: None,
                media,
                schema: None,
            },
            ..self
        }
    }

    const fn fails(self, errors: &'static [u16]) -> Self {
        Self { errors, ..self }
    }

    const fn is_also_a_page(self) -> Self {
        Self {
            is_page: true,
            ..self
        }
    }

    const fn only_in_conformance(self) -> Self {
        Self {
            exists: Exists::Conformance,
            ..self
        }
    }
}

const fn query(name: &'static str, about: &'static str) -> Param {
    Param {
        name,
        place: "query",
        about,
    }
}

const fn field(name: &'static str, about: &'static str) -> Param {
    Param {
        name,
        place: "header",
        about,
    }
}

const IDEMPOTENT: Param = field(
    "Idempotency-Key",
    "Makes the request take effect once; a repeat gets the first answer with openwop-Idempotent-Replay: true.",
);
const ONCE: &[Param] = &[IDEMPOTENT];
const LIMIT: Param = query("limit", "The most items of a page, 1 to 100; 50 where absent.");
const CURSOR: Param = query("cursor", "nextCursor of the page before.");
const MODE: Param = query(
    "streamMode",
    "updates (default), values, messages, debug; several joined by commas, values only alone.",
);

const KNOWN: &[Param] = &[field("If-None-Match", "ETag of the document known already.")];
const PAGE: &[Param] = &[LIMIT, CURSOR];
const LISTING: &[Param] = &[
    query("status", "Only these statuses; several joined by commas."),
    query("workflowId", "Only runs of this workflow."),
    query("parentRunId", "Only children of this run."),
    LIMIT,
    CURSOR,
];
const DELIVERIES: &[Param] = &[
    query("runId", "Only those of this run."),
    query("givenUp", "Only those that were given up."),
    LIMIT,
    CURSOR,
];
const STREAM: &[Param] = &[
    MODE,
    query(
        "bufferMs",
        "Collects events for so long, 0 to 5000, into batches.",
    ),
    field("Last-Event-ID", "The sequence or id of the last event seen."),
];
const POLL: &[Param] = &[
    query(
        "lastSequence",
        "Only events after this sequence; from the start where absent.",
    ),
    query("since", "The same as lastSequence."),
    query("timeout", "Seconds to wait, 1 to 60; 30 where absent."),
    query("streamMode", "Accepted; a poll is never filtered."),
];

pub(super) static ROUTES: &[Route] = &[
    get("/.well-known/openwop", "getCapabilities", operations::discovery)
        .about("What this host can do.")
        .with(KNOWN)
        .answers(200, "Capabilities"),
    get("/v1/openapi.json", "getOpenApiSpec", operations::openapi)
        .about("This document.")
        .answers_as(200, JSON),
    get(
        "/v1/schemas/workflow-definition.json",
        "getWorkflowDefinitionSchema",
        workflows::schema,
    )
    .about("The JSON Schema of workflow definitions, for editors.")
    .with(KNOWN)
    .answers_as(200, workflows::SCHEMA_TYPE),
    get("/healthz", "getHealth", operations::health)
        .about("Whether the process serves.")
        .answers(200, "Health"),
    get("/readyz", "getReadiness", operations::ready)
        .about("Whether the store answers and the host is not stopping.")
        .answers(200, "Health")
        .fails(&[503]),
    get("/metrics", "getMetrics", operations::metrics)
        .about("Counters as Prometheus text.")
        .answers_as(200, "text/plain"),
    post("/v1/workflows", "registerWorkflow", workflows::register)
        .about("Registers a workflow for the caller's tenant and makes it the current version; 200 if it has this version already.")
        .needs(&[Scope::WorkflowsWrite])
        .with(ONCE)
        .reads(Input::Required("WorkflowDefinition"))
        .answers(201, "RegisteredWorkflow")
        .or_answers(200)
        .fails(&[400, 403, 409, 413, 415, 503]),
    get("/v1/workflows", "listWorkflows", workflows::list)
        .about("The tenant's workflows and the shared ones, by id.")
        .needs(&[Scope::ManifestRead])
        .answers(200, "WorkflowList"),
    get("/v1/workflows/{workflowId}", "getWorkflow", workflows::show)
        .about("The current definition; its version is the ETag.")
        .needs(&[Scope::ManifestRead])
        .with(KNOWN)
        .answers(200, "WorkflowDefinition")
        .fails(&[404]),
    post("/v1/runs", "createRun", runs::create)
        .about("Starts a run.")
        .needs(&[Scope::RunsCreate])
        .with(ONCE)
        .reads(Input::Required("CreateRunRequest"))
        .answers(201, "CreateRunResponse")
        .fails(&[400, 403, 404, 409, 413, 415, 501, 503]),
    get("/v1/runs", "listRuns", runs::list)
        .about("The tenant's runs, newest first.")
        .needs(&[Scope::RunsRead])
        .with(LISTING)
        .answers(200, "RunList")
        .fails(&[400, 503]),
    post("/v1/runs:bulk-cancel", "bulkCancelRuns", control::bulk)
        .about("Cancels up to 100 runs, each on its own.")
        .needs(&[Scope::RunsCancel])
        .with(ONCE)
        .reads(Input::Required("BulkCancelRequest"))
        .answers(200, "BulkCancelResponse")
        .fails(&[400, 409, 413, 415, 503]),
    get("/v1/runs/{runId}", "getRun", runs::show)
        .about("A run as it is now.")
        .needs(&[Scope::RunsRead])
        .with(KNOWN)
        .answers(200, "RunSnapshot")
        .fails(&[404, 503]),
    get("/v1/runs/{runId}/ancestry", "getRunAncestry", ancestry::show)
        .about("The run that it comes from, here or on another host.")
        .needs(&[Scope::RunsRead])
        .answers(200, "RunAncestry")
        .fails(&[404, 503]),
    post("/v1/runs/{runId}/cancel", "cancelRun", control::one)
        .about("Cancels a run; a run that has ended stays as it is.")
        .needs(&[Scope::RunsCancel])
        .with(ONCE)
        .reads(Input::Optional("CancelRequest"))
        .answers(200, "CancelResponse")
        .fails(&[400, 404, 409, 413, 415, 503]),
    post("/v1/runs/{runId}:cancel", "cancelRunByVerb", control::one)
        .about("The same as /cancel.")
        .needs(&[Scope::RunsCancel])
        .with(ONCE)
        .reads(Input::Optional("CancelRequest"))
        .answers(200, "CancelResponse")
        .fails(&[400, 404, 409, 413, 415, 503]),
    post("/v1/runs/{runId}:pause", "pauseRun", control::pause)
        .about("Lets nothing new start until the run is resumed.")
        .needs(&[Scope::RunsCancel])
        .with(ONCE)
        .reads(Input::Optional("PauseRequest"))
        .answers(202, "PauseResponse")
        .fails(&[400, 404, 409, 413, 415, 503]),
    post("/v1/runs/{runId}:resume", "resumeRun", control::resume)
        .about("Lets a paused run go on.")
        .needs(&[Scope::RunsCancel])
        .with(ONCE)
        .reads(Input::Optional("ResumeRequest"))
        .answers(202, "ResumeResponse")
        .fails(&[400, 404, 409, 413, 415, 503]),
    post("/v1/runs/{runId}:fork", "forkRun", forks::fork)
        .about("Starts a run that begins as this one did: a replay repeats it, a branch goes on from there.")
        .needs(&[Scope::RunsCreate, Scope::RunsRead])
        .with(ONCE)
        .reads(Input::Required("ForkRequest"))
        .answers(201, "ForkResponse")
        .fails(&[400, 403, 404, 409, 413, 415, 422, 503]),
    get("/v1/runs/{runId}:diff", "diffRuns", forks::diff)
        .about("The events and the state in which this run and another one differ.")
        .needs(&[Scope::RunsRead])
        .with(&[query("against", "The run to compare with.")])
        .answers(200, "RunDiffResponse")
        .fails(&[400, 404, 503]),
    get("/v1/runs/{runId}/events", "streamRunEvents", events::stream)
        .about("The run's events as server-sent events, or as JSON where Accept names application/json.")
        .needs(&[Scope::RunsRead])
        .with(STREAM)
        .answers_as(200, "text/event-stream")
        .fails(&[400, 404, 503]),
    get("/v1/runs/{runId}/events/poll", "pollRunEvents", poll::poll)
        .about("Every event after a sequence; waits for one if there is none.")
        .needs(&[Scope::RunsRead])
        .with(POLL)
        .answers(200, "PollResponse")
        .fails(&[400, 404, 503]),
    post(
        "/v1/runs/{runId}/interrupts/{nodeId}",
        "resolveInterruptByRun",
        interrupts::resolve,
    )
    .about("Answers the interrupt a node waits for.")
    .needs(&[Scope::ApprovalsRespond])
    .with(ONCE)
    .reads(Input::Required("ResolveInterruptRequest"))
    .answers(200, "ResolveInterruptResponse")
    .fails(&[400, 403, 404, 409, 410, 413, 415, 422, 503]),
    post(
        "/v1/runs/{runId}/approvals/{nodeId}",
        "resolveApprovalByRun",
        interrupts::approve,
    )
    .about("The same, where the body is the answer itself; 409 also if the run was cancelled.")
    .needs(&[Scope::ApprovalsRespond])
    .with(ONCE)
    .reads(Input::Required("ResumeValue"))
    .answers(200, "ResolveInterruptResponse")
    .fails(&[400, 403, 404, 409, 410, 413, 415, 422, 503]),
    get("/v1/interrupts", "listInterrupts", interrupts::list)
        .about("What the tenant's runs wait for, the newest run first.")
        .needs(&[Scope::ApprovalsRespond])
        .with(PAGE)
        .answers(200, "InterruptList")
        .fails(&[400, 503]),
    get(
        "/v1/interrupts/{token}",
        "inspectInterruptByToken",
        interrupts::inspect,
    )
    .about("The interrupt a token is for; a page where Accept prefers text/html. The token is the credential.")
    .by_token()
    .is_also_a_page()
    .answers(200, "InterruptView")
    .fails(&[404, 409, 410, 503]),
    post(
        "/v1/interrupts/{token}",
        "resolveInterruptByToken",
        interrupts::resolve_by_token,
    )
    .about("Answers the interrupt a token is for, also by the form of its page. The token is the credential.")
    .by_token()
    .is_also_a_page()
    .with(ONCE)
    .reads(Input::Required("ResolveInterruptRequest"))
    .answers(200, "ResolveInterruptResponse")
    .fails(&[400, 401, 403, 404, 409, 410, 413, 415, 422, 503]),
    post("/v1/activities:lease", "leaseActivities", workers::lease)
        .about("Leases activities of a queue for a worker. Waits up to waitMs for the first one.")
        .needs(&[Scope::ActivitiesWork])
        .reads(Input::Required("LeaseActivitiesRequest"))
        .answers(200, "LeasedActivities")
        .fails(&[400, 413, 415, 503]),
    post("/v1/activities:submit", "submitActivities", activities::submit_many)
        .about("Ends up to 256 steps that wait for workers, each by itself. Results are in the order of the outcomes.")
        .needs(&[Scope::ActivitiesWork])
        .reads(Input::Required("SubmitActivitiesRequest"))
        .answers(200, "SubmitActivitiesResponse")
        .fails(&[400, 413, 415, 503]),
    post("/v1/activities/{activityToken}", "submitActivity", activities::submit)
        .about("Ends a step that waits for a worker with its outcome. The same outcome again gets the same answer.")
        .needs(&[Scope::ActivitiesWork])
        .reads(Input::Required("SubmitActivityRequest"))
        .answers(200, "SubmitActivityResponse")
        .fails(&[400, 404, 409, 413, 415, 503]),
    post(
        "/v1/activities/{activityToken}:heartbeat",
        "heartbeatActivity",
        activities::heartbeat,
    )
        .about("Says that the worker of a step is alive, and how far it is. Renews its lease.")
        .needs(&[Scope::ActivitiesWork])
        .reads(Input::Optional("HeartbeatActivityRequest"))
        .answers(200, "HeartbeatActivityResponse")
        .fails(&[400, 404, 409, 413, 415, 503]),
    get("/v1/runs/{runId}/artifacts", "listArtifacts", artifacts::list)
        .about("The run's artifacts, oldest first, without content.")
        .needs(&[Scope::ArtifactsRead])
        .answers(200, "ArtifactList")
        .fails(&[404, 503]),
    get(
        "/v1/runs/{runId}/artifacts/{artifactId}",
        "getArtifact",
        artifacts::show,
    )
    .about("An artifact with its content.")
    .needs(&[Scope::ArtifactsRead])
    .answers(200, "Artifact")
    .fails(&[404, 503]),
    post("/v1/host/wopr/runs/{runId}:retry", "retryRun", forks::retry)
        .about("Branches off a failed run where the node began that failed it.")
        .needs(&[Scope::RunsCreate, Scope::RunsRead])
        .with(ONCE)
        .reads(Input::Optional("RetryRequest"))
        .answers(201, "ForkResponse")
        .fails(&[400, 403, 404, 409, 413, 415, 422, 503]),
    post("/v1/host/wopr/keys", "createKey", keys::create)
        .about("Makes an API key of the caller's tenant. The secret is shown once.")
        .needs(&[Scope::KeysManage])
        .reads(Input::Required("CreateKeyRequest"))
        .answers(201, "CreatedKey")
        .fails(&[400, 403, 409, 413, 415, 503]),
    get("/v1/host/wopr/keys", "listKeys", keys::list)
        .about("The stored API keys of the caller's tenant, without secrets.")
        .needs(&[Scope::KeysManage])
        .with(PAGE)
        .answers(200, "KeyList")
        .fails(&[400, 503]),
    delete("/v1/host/wopr/keys/{keyId}", "revokeKey", keys::revoke)
        .about("Revokes an API key of the caller's tenant.")
        .needs(&[Scope::KeysManage])
        .answers_as(204, "")
        .fails(&[404, 503]),
    post("/v1/host/wopr/secrets", "setSecret", secrets::set)
        .about("Sets a secret of the caller's tenant. Nobody can read its value back.")
        .needs(&[Scope::SecretsManage])
        .reads(Input::Required("SetSecretRequest"))
        .answers(200, "Secret")
        .fails(&[400, 403, 409, 413, 415, 503]),
    get("/v1/host/wopr/secrets", "listSecrets", secrets::list)
        .about("The secrets of the caller's tenant, without their values.")
        .needs(&[Scope::SecretsManage])
        .answers(200, "SecretList")
        .fails(&[503]),
    get("/v1/host/wopr/budgets", "listBudgets", budgets::list)
        .about("The budgets of the caller's tenant, with what their current windows have taken.")
        .needs(&[Scope::AuditRead])
        .answers(200, "BudgetList")
        .fails(&[503]),
    get("/v1/host/wopr/workers", "listWorkers", workers::list)
        .about("The worker queues of the caller's tenant that hold activities, and the workers that called this process.")
        .needs(&[Scope::ActivitiesWork])
        .answers(200, "WorkerQueues")
        .fails(&[503]),
    delete("/v1/host/wopr/secrets/{name}", "removeSecret", secrets::remove)
        .about("Removes a secret of the caller's tenant.")
        .needs(&[Scope::SecretsManage])
        .answers_as(204, "")
        .fails(&[404, 503]),
    delete(
        "/v1/host/wopr/workflows/{workflowId}",
        "removeWorkflow",
        workflows::remove,
    )
    .about("Removes a workflow of the caller's tenant. Its runs go on; no run is started from it any more.")
    .needs(&[Scope::WorkflowsWrite])
    .answers_as(204, "")
    .fails(&[403, 404, 503]),
    post(
        "/v1/host/wopr/interrupt-tokens",
        "mintInterruptToken",
        interrupts::mint,
    )
    .about("Makes a token for an open interrupt whose answers count as those of a named approver.")
    .needs(&[Scope::ApprovalsRespond])
    .reads(Input::Required("MintInterruptTokenRequest"))
    .answers(201, "MintedInterruptToken")
    .fails(&[400, 403, 404, 413, 415, 503]),
    post("/v1/host/wopr/calls/{call}", "pushCall", calls::push)
        .about("Takes the push of an agent that a run has called. The token of the registration is its credential.")
        .answers_as(200, JSON)
        .fails(&[404, 503]),
    get("/v1/host/wopr/deliveries", "listDeliveries", deliveries::list)
        .about("Push notifications of the caller's tenant that wait for their receiver, or were given up.")
        .needs(&[Scope::WebhooksManage])
        .with(DELIVERIES)
        .answers(200, "DeliveryList")
        .fails(&[400, 503]),
    post("/v1/host/wopr/deliveries:retry", "retryDeliveries", deliveries::retry)
        .about("Tries push notifications again that were given up.")
        .needs(&[Scope::WebhooksManage])
        .reads(Input::Required("RetryDeliveriesRequest"))
        .answers(200, "RetriedDeliveries")
        .fails(&[400, 413, 415, 503]),
    get("/v1/a2a/tasks/{taskId}", "getA2aTaskState", tasks::show)
        .about("The stored state of the A2A task that a run is.")
        .needs(&[Scope::RunsRead])
        .answers(200, "A2ATaskState")
        .fails(&[404, 503]),
    get(
        "/v1/host/sample/a2a/tasks/{taskId}",
        "getSampleA2aTaskState",
        tasks::show,
    )
    .about("The same, where the conformance suite looks for it.")
    .needs(&[Scope::RunsRead])
    .only_in_conformance()
    .answers(200, "A2ATaskState")
    .fails(&[404, 503]),
    post(
        "/v1/host/sample/a2a/tasks/start",
        "startSampleA2aTask",
        sample::start_task,
    )
    .about("Begins a task in a state that the conformance suite wants to look at.")
    .needs(&[Scope::RunsCreate])
    .only_in_conformance()
    .reads(Input::Required("StartSampleA2ATaskRequest"))
    .answers(201, "StartedSampleA2ATask")
    .fails(&[400, 413, 415, 422, 503]),
    post(
        "/v1/host/sample/a2a/invoke",
        "invokeSampleA2aAgent",
        sample::invoke,
    )
    .about("Sends a message to another agent as workflows do, and tells what was negotiated.")
    .needs(&[Scope::RunsCreate, Scope::RunsRead, Scope::RunsCancel])
    .only_in_conformance()
    .reads(Input::Required("InvokeSampleA2AAgentRequest"))
    .answers(200, "InvokedSampleA2AAgent")
    .fails(&[400, 413, 415, 422, 502, 503]),
    post(
        "/v1/host/sample/a2a/tasks/push-config",
        "setSampleA2aPushConfig",
        sample::register_push,
    )
    .about("Registers where a task's changes are pushed to; the address is judged before the task is looked for.")
    .needs(&[Scope::RunsRead])
    .only_in_conformance()
    .reads(Input::Required("SampleA2APushConfigRequest"))
    .answers(201, "A2ATaskState")
    .fails(&[400, 404, 413, 415, 503]),
    post(
        "/v1/host/sample/test/llm-cache-key",
        "sampleLlmCacheKey",
        sample::llm_cache_key,
    )
    .about("The key of a model call, by what it asks for.")
    .needs(&[Scope::RunsRead])
    .only_in_conformance()
    .reads(Input::Required("SampleLlmCall"))
    .answers(200, "SampleLlmCacheKey")
    .fails(&[400, 413, 415, 503]),
    post(
        "/v1/host/sample/dispatch/fanout",
        "sampleDispatchFanout",
        sample::fan_out,
    )
    .about("Runs workers at the same time, and tells how their join ended.")
    .needs(&[Scope::WorkflowsWrite, Scope::RunsCreate, Scope::RunsRead])
    .only_in_conformance()
    .reads(Input::Required("SampleFanOutRequest"))
    .answers(200, "SampleFanOut")
    .fails(&[400, 413, 415, 422, 503]),
    post(
        "/v1/host/sample/subrun/attest",
        "sampleSubrunAttest",
        sample::attest,
    )
    .about("Runs a child whose outputs somebody vouches for, and tells whether they were merged.")
    .needs(&[
        Scope::WorkflowsWrite,
        Scope::RunsCreate,
        Scope::RunsRead,
        Scope::RunsCancel,
        Scope::ApprovalsRespond,
    ])
    .only_in_conformance()
    .reads(Input::Required("SampleAttestRequest"))
    .answers(200, "SampleAttest")
    .fails(&[400, 413, 415, 422, 503]),
    post(
        "/v1/host/sample/agentloop/run",
        "sampleAgentLoop",
        sample::agent_loop,
    )
    .about("Runs a supervisor for some turns, and tells which iteration each decision had.")
    .needs(&[
        Scope::WorkflowsWrite,
        Scope::RunsCreate,
        Scope::RunsRead,
        Scope::ApprovalsRespond,
    ])
    .only_in_conformance()
    .reads(Input::Required("SampleAgentLoopRequest"))
    .answers(200, "SampleAgentLoop")
    .fails(&[400, 413, 415, 422, 503]),
    post(
        "/v1/host/sample/test/runs/{runId}/variables",
        "setSampleRunVariables",
        sample::set_variables,
    )
    .about("Sets variables of a run that has not ended; those not named stay as they are.")
    .needs(&[Scope::RunsCancel])
    .only_in_conformance()
    .reads(Input::Required("SampleRunVariables"))
    .answers(200, "SampleRunVariables")
    .fails(&[400, 404, 409, 413, 415, 503]),
    post(
        "/v1/host/sample/workflows",
        "registerSampleWorkflow",
        sample::register_short,
    )
    .about("Registers a workflow whose nodes run in the order in which they are listed.")
    .needs(&[Scope::WorkflowsWrite])
    .only_in_conformance()
    .reads(Input::Required("SampleWorkflow"))
    .answers(201, "RegisteredSampleWorkflow")
    .fails(&[400, 409, 413, 415, 503]),
    post(
        "/v1/host/sample/test/capability-toggle",
        "toggleSampleCapability",
        sample::toggle_capability,
    )
    .about("Switches a capability off or on, in the discovery document and for registrations; null takes the switch back.")
    .needs(&[Scope::WorkflowsWrite])
    .only_in_conformance()
    .reads(Input::Required("SampleCapabilityToggle"))
    .answers(200, "SampleCapabilityOverlay")
    .fails(&[400, 413, 415]),
    post(
        "/v1/host/sample/test/mock-ai/program",
        "programSampleModel",
        sample::program_mock,
    )
    .about("Programs the replies that a node gets from the scripted model.")
    .needs(&[Scope::RunsCreate])
    .only_in_conformance()
    .reads(Input::Required("SampleModelProgram"))
    .answers(200, "ProgrammedSampleModel")
    .fails(&[400, 413, 415]),
    get(
        "/v1/host/sample/test/mock-ai/last-dispatch-budget",
        "getSampleModelBudget",
        sample::last_budget,
    )
    .about("The limit of tokens of a node's last call of the scripted model.")
    .needs(&[Scope::RunsRead])
    .only_in_conformance()
    .answers(200, "SampleModelBudget")
    .fails(&[400]),
];

/// Parts of the protocol that this host does not support and must answer with 501 (section 5.4). `*` matches
/// one segment, and a final `/**` anything below.
pub(super) const NOT_PROVIDED: &[(&str, &str)] = &[
    ("/v1/runs/*/annotations", "annotations are not provided"),
    ("/v1/webhooks", "webhooks are not provided"),
    ("/v1/webhooks/**", "webhooks are not provided"),
    ("/v1/host/workspace/**", "workspaces are not provided"),
    ("/v1/prompts", "prompts are not provided"),
    ("/v1/prompts/**", "prompts are not provided"),
    ("/v1/prompts:render", "prompts are not provided"),
    ("/v1/content/**", "content is not provided"),
    (
        "/v1/trigger-subscriptions",
        "trigger subscriptions are not provided",
    ),
];
