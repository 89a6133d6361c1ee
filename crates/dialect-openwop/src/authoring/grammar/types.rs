//! The node types and the members of their `config`.
//!
//! The file is long because it is one table: each node type has a row, and each row its members.

use wopr_kernel::{MAX_SET, NodeTypes};

use crate::node::{
    BINDINGS, CANCEL_TASK, CONVERSATION, CONVERSE, COUNTERS, DISCOVER, FAN_OUTS, GET_TASK,
    HTTP_MAX_TIMEOUT_MS, ISOLATIONS, JOIN_MODES, MAX_ACTIVITY_MS, MAX_CONVERSATION, MAX_CRITERIA,
    MAX_CRITERION, MAX_KEPT, MAX_MEMORY_TTL_MS, MAX_MESSAGES, MAX_MODES, MAX_NAMES, MAX_PIECES,
    MAX_QUESTIONS, MAX_READ, MAX_REPAIRS, MAX_REVISIONS, MAX_RULES, MAX_SCOPE, MAX_SCRIPTED, MAX_TAGS,
    MAX_TOOL_ROUNDS, MAX_TOOLS, MAX_TRANSCRIPT, MAX_TURNS, MAX_TURNS_LIMIT, MAX_WINDOW, MAX_WORKERS,
    MEMORY_COMPACT, MEMORY_READ, MEMORY_WRITE, MIN_TRANSCRIPT, MOCK_AGENT, MODEL_MAX_TIMEOUT_MS, MOST_TOKENS,
    ON_CHILD_FAILURE, ON_TIMEOUT, PROFILES, RESTRICTIONS, ROUTINGS, SEND, STREAM_MAX_INTERVAL_MS, TOOL_CALL,
    TOOL_MAX_TIMEOUT_MS, VERSIONS, known_keys,
};

use crate::decide::MAX_CALLS;

use super::{COUNT, MAX, Member, Members, NONEMPTY, OBJECT, Shape, TEXT, Tagged, closed, may, open};

/// All node types.
pub(crate) static TYPES: &[Type] = &[
    node("core.noop", "Its inputs become its outputs.", &OPEN),
    node("core.identity", "Its inputs become its outputs.", &OPEN),
    node("core.start", "Its inputs become its outputs.", &OPEN),
    node("core.end", "Its inputs become its outputs.", &OPEN),
    node("core.merge", "Its inputs become its outputs.", &OPEN),
    node("core.conditional", "Its inputs become its outputs.", &OPEN),
    node("core.delay", "Waits, durably.", &DELAY),
    node("core.fail", "Fails.", &FAIL),
    node(
        "core.a2a.reject",
        "Fails with the code `rejected`; over A2A the task is rejected.",
        &REJECT,
    ),
    node("core.stream", "Says a text piece by piece.", &STREAM),
    node("core.template", "Renders text: the output `text`.", &TEMPLATE),
    node("core.setVariable", "Sets a variable.", &SET_VARIABLE),
    node("core.channelWrite", "Writes to a channel.", &CHANNEL_WRITE),
    node("core.approvalGate", "Asks for a decision.", &APPROVAL),
    node("core.clarificationGate", "Asks questions.", &CLARIFICATION),
    node(
        CONVERSATION,
        "Talks with people, turn by turn, until somebody closes the conversation.",
        &TALK,
    ),
    Type {
        config: Shape::Tagged(&INTERRUPT),
        ..node("core.interrupt", "Waits for any answer.", &OPEN)
    },
    node(
        "core.subWorkflow",
        "Runs a child workflow and waits for it.",
        &SUB_WORKFLOW,
    ),
    node(
        MEMORY_WRITE,
        "Remembers a text beyond the run: the output `written`.",
        &MEMORY_ENTRY,
    ),
    node(
        MEMORY_READ,
        "Reads what is remembered, the newest first: the output `entries`.",
        &MEMORY_QUERY,
    ),
    node(
        MEMORY_COMPACT,
        "Remembers one text in the place of those that the input `sourceIds` names.",
        &MEMORY_ENTRY,
    ),
    node(
        "core.orchestrator.supervisor",
        "Decides who works next, what a person is asked, or that the run is done.",
        &SUPERVISOR,
    ),
    node(
        "core.dispatch",
        "Follows the supervisor's decision: runs workers as child runs, asks a person, or ends the run.",
        &DISPATCH,
    ),
    node("core.http.request", "Calls out through the egress gate.", &HTTP),
    node(
        "core.activity",
        "Waits for a worker, which reports the outcome over REST.",
        &ACTIVITY,
    ),
    node(
        "core.a2a.invoke",
        "Asks another agent, and waits for its answer.",
        &AGENT,
    ),
    node(DISCOVER, "Reads another agent's card.", &DISCOVER_AGENT),
    node(
        SEND,
        "Sends another agent a message, and does not wait for the end of its task.",
        &SEND_MESSAGE,
    ),
    node(GET_TASK, "Looks once at a task of another agent.", &TASK),
    node(CANCEL_TASK, "Cancels a task of another agent.", &TASK),
    node(
        CONVERSE,
        "Asks another agent, and lets it ask back a bounded number of times.",
        &COORDINATOR,
    ),
    node("core.ai.callPrompt", "Asks a model for a text.", &CALL_PROMPT),
    node(TOOL_CALL, "Calls a tool of an MCP server.", &TOOL_CALLED),
    node(
        "core.ai.structuredOutput",
        "Asks a model for a JSON document.",
        &STRUCTURED_OUTPUT,
    ),
    conformance("conformance.start"),
    Type {
        config: Shape::Object(&MOCKED),
        ..conformance(MOCK_AGENT)
    },
    conformance("core.conformance.side-effect"),
    conformance("conformance.artifact.emit"),
    conformance("conformance.requiresMissing"),
];

#[derive(Debug)]
pub(crate) struct Type {
    pub(crate) id: &'static str,
    pub(crate) about: &'static str,
    pub(crate) config: Shape,
    is_conformance: bool,
}

const fn node(id: &'static str, about: &'static str, config: &'static Members) -> Type {
    Type {
        id,
        about,
        config: Shape::Object(config),
        is_conformance: false,
    }
}

const fn conformance(id: &'static str) -> Type {
    Type {
        is_conformance: true,
        ..node(id, "A type of the conformance suite.", &OPEN)
    }
}

/// The node types that a host offers.
pub(crate) fn types(node_types: NodeTypes) -> impl Iterator<Item = &'static Type> {
    TYPES
        .iter()
        .filter(move |kind| node_types.conformance || !kind.is_conformance)
}

/// Members of a type's `config` that the decoder accepts but these tables do not describe.
pub(crate) fn undescribed(kind: &Type) -> impl Iterator<Item = &'static str> + use<> {
    let mut members: &[Member] = &[];
    if let Shape::Object(fixed) = kind.config {
        members = fixed.list;
    } else if let Shape::Tagged(tagged) = kind.config
        && let Some((_, first)) = tagged.variants.first()
    {
        members = first.list;
    }
    let keys = known_keys(kind.id).unwrap_or_default().iter().copied();
    keys.filter(move |key| members.iter().all(|member| member.name != *key))
}

pub(crate) static OPEN: Members = open(&[]);

const PROVIDER: Member = may(
    "provider",
    NONEMPTY,
    "A provider of the host's configuration; default where absent.",
)
.or_null();
const MODEL: Member = may(
    "model",
    NONEMPTY,
    "The model; the provider's configured one where absent.",
)
.or_null();
const SYSTEM_PROMPT: Member = may(
    "systemPrompt",
    Shape::Template,
    "What the model is told first; an input systemPrompt wins.",
)
.or_null();
const PROMPT: Member = may(
    "prompt",
    Shape::Template,
    "What it is asked; an input prompt wins, and the run's prompt is asked where there is none.",
)
.or_null();
const TURNS: Member = may(
    "messages",
    Shape::List(&TURN_SHAPE, 0, MAX_MESSAGES),
    "A conversation before the prompt; an input messages wins.",
)
.or_null();
const TEMPERATURE: Member = may("temperature", Shape::Number, "0 to 2.").or_null();
const MAX_TOKENS: Member = may(
    "maxTokens",
    Shape::Whole(1, MOST_TOKENS),
    "The most tokens of an answer.",
)
.or_null();
const MODEL_TIMEOUT: Member = may(
    "timeoutMs",
    Shape::Whole(1, MODEL_MAX_TIMEOUT_MS),
    "Time limit of an attempt in milliseconds.",
)
.or_null();

static TURN_SHAPE: Shape = Shape::Object(&TURN);

static TURN: Members = open(&[
    may(
        "role",
        Shape::Choice(&["system", "developer", "user", "assistant"]),
        "Who says it.",
    )
    .must(),
    may("content", Shape::Template, "The words, as a template.").must(),
]);

static CALL_PROMPT: Members = closed(&[
    PROVIDER,
    MODEL,
    SYSTEM_PROMPT,
    PROMPT,
    may("promptId", TEXT, "A prompt of the conformance suite.").or_null(),
    TURNS,
    TEMPERATURE,
    MAX_TOKENS,
    MODEL_TIMEOUT,
    may(
        "stream",
        Shape::Flag,
        "Whether the text is shown while it is written; true where absent.",
    )
    .or_null(),
    may("expectsStreaming", Shape::Flag, "The same as stream.").or_null(),
    TOOLS,
    TOOL_ROUNDS,
    may(
        "mcp",
        Shape::Object(&TOOL_CALLED),
        "A tool that is called in place of a model, as by core.mcp.toolCall; no other member then.",
    ),
]);

static STRUCTURED_OUTPUT: Members = closed(&[
    PROVIDER,
    MODEL,
    SYSTEM_PROMPT,
    PROMPT,
    TURNS,
    may("outputSchema", Shape::Schema, "The JSON Schema of the answer.").must(),
    TEMPERATURE,
    MAX_TOKENS,
    MODEL_TIMEOUT,
    may(
        "retryOnInvalidJson",
        Shape::Whole(0, MAX_REPAIRS),
        "How often it is asked again for a valid answer; at least 3 times.",
    )
    .or_null(),
    TOOLS,
    TOOL_ROUNDS,
]);

const TOOLS: Member = may(
    "tools",
    Shape::List(&TOOL_SHAPE, 0, MAX_TOOLS),
    "What the model may ask for while it works on its answer.",
)
.or_null();
const TOOL_ROUNDS: Member = may(
    "maxToolRounds",
    Shape::Whole(1, MAX_TOOL_ROUNDS),
    "How often it may ask for tools; 8 times where absent.",
)
.or_null();

static TOOL_SHAPE: Shape = Shape::Object(&TOOL);

static TOOL: Members = closed(&[
    may(
        "workflow",
        TEXT,
        "The workflow that the tool runs, with the arguments as its inputs.",
    )
    .or_null(),
    may(
        "agent",
        TEXT,
        "The configured agent, or AGENT/SKILL, to which the tool sends its argument message.",
    )
    .or_null(),
    may(
        "server",
        NONEMPTY,
        "The MCP server of the host's configuration whose tool this is, or, without tool, all of whose tools are offered.",
    )
    .or_null(),
    may(
        "tool",
        NONEMPTY,
        "The tool of the server, which is default where absent.",
    )
    .or_null(),
    may(
        "only",
        Shape::List(&NONEMPTY, 1, MAX_TOOLS),
        "Which tools of the server are offered; all where absent.",
    )
    .or_null(),
    may(
        "name",
        TEXT,
        "What the model calls it: letters, digits, underscores and hyphens.",
    )
    .or_null(),
    may(
        "description",
        TEXT,
        "What the model is told of it; of a server's tool, what the server says where absent.",
    )
    .or_null(),
    may(
        "inputSchema",
        Shape::Schema,
        "The JSON Schema of the arguments, whose type is object; of a server's tool, the server's where absent.",
    )
    .or_null(),
    may(
        "retrySafe",
        Shape::Flag,
        "Of a server's tool: whether wopr may repeat a call whose outcome it does not know.",
    )
    .or_null(),
    may(
        "timeoutMs",
        Shape::Whole(1, TOOL_MAX_TIMEOUT_MS),
        "Of a server's tool: milliseconds of one attempt; the server's where absent.",
    )
    .or_null(),
]);

static DELAY: Members = closed(&[
    may("delayMs", COUNT, "Milliseconds to wait; an input delayMs wins.").or_null(),
    may("durationMs", COUNT, "The same as delayMs.").or_null(),
    may("ms", COUNT, "The same as delayMs.").or_null(),
    may("delaySeconds", COUNT, "Seconds to wait.").or_null(),
]);

static FAIL: Members = closed(&[
    may("code", TEXT, "The error code.").or_null(),
    may("message", TEXT, "The error text.").or_null(),
    may("retryable", Shape::Flag, "Whether retries apply.").or_null(),
]);

static REJECT: Members = closed(&[may("message", Shape::Template, "Why, as a template.").or_null()]);

static STREAM: Members = closed(&[
    may(
        "chunks",
        Shape::List(&Shape::Template, 1, MAX_PIECES),
        "The pieces: templates, each rendered when its turn comes.",
    ),
    may(
        "expression",
        Shape::Expression,
        "A list of pieces, in the place of chunks.",
    )
    .or_null(),
    may(
        "intervalMs",
        Shape::Whole(0, STREAM_MAX_INTERVAL_MS),
        "Milliseconds between two pieces.",
    )
    .or_null(),
])
.with_one_of(&["chunks", "expression"]);

static TEMPLATE: Members =
    closed(&[may("template", Shape::Template, "The text; {{ … }} is an expression.").must()]);

static SET_VARIABLE: Members = closed(&[
    may("name", Shape::Settable, "The variable.").or_null(),
    may("variableName", Shape::Settable, "The same as name.").or_null(),
    may("variable", Shape::Settable, "The same as name.").or_null(),
    may(
        "value",
        Shape::MaybeTemplate,
        "What it becomes; an input value wins.",
    ),
    may(
        "expression",
        Shape::Expression,
        "What it becomes, in the place of value.",
    )
    .or_null(),
])
.with_one_of(&["name", "variableName", "variable"]);

static CHANNEL_WRITE: Members = closed(&[
    may("channelName", TEXT, "The channel.").or_null(),
    may("channel", TEXT, "The same as channelName.").or_null(),
    may("value", Shape::Any, "What is written; an input value wins."),
    may(
        "reducer",
        Shape::Reducer,
        "How it is folded in; the channel's declaration wins.",
    )
    .or_null(),
    may("ttlMs", COUNT, "Milliseconds that the entry is kept.").or_null(),
    may("maxSize", COUNT, "Entries that are kept.").or_null(),
])
.with_one_of(&["channelName", "channel"]);

const ACTIONS: Shape = Shape::List(
    &Shape::Choice(&[
        "accept",
        "approve",
        "reject",
        "refine",
        "edit-accept",
        "edit",
        "ask",
    ]),
    1,
    MAX,
);

static APPROVAL: Members = closed(APPROVAL_MEMBERS);

/// The `data` of an interrupt of kind approval.
static APPROVAL_DATA: Members = closed(APPROVAL_MEMBERS);

const APPROVAL_MEMBERS: &[Member] = &[
    may(
        "title",
        Shape::Words,
        "The question; the node's name where absent.",
    )
    .or_null(),
    may("description", Shape::MaybeTemplate, "More about it."),
    may("prompt", Shape::MaybeTemplate, "More about it."),
    may(
        "actions",
        ACTIONS,
        "What may be answered; accept and reject where absent.",
    ),
    may(
        "requiredApprovals",
        Shape::Whole(1, 1_000),
        "How many accepts it takes.",
    )
    .or_null(),
    may(
        "rejectionPolicy",
        Shape::Choice(&["single-veto", "majority"]),
        "Whether one reject is enough, which is the default.",
    )
    .or_null(),
    may(
        "approversList",
        Shape::List(&TEXT, 0, MAX_NAMES),
        "Principals who may answer; everybody allowed to where absent.",
    )
    .or_null(),
    may(
        "approverRefs",
        Shape::List(&TEXT, 0, MAX_NAMES),
        "Principals who are asked, beside approverRoleRefs and approverGroupRefs.",
    )
    .or_null(),
    may(
        "approverRoleRefs",
        Shape::List(&TEXT, 0, MAX_NAMES),
        "Roles who are asked.",
    )
    .or_null(),
    may(
        "approverGroupRefs",
        Shape::List(&TEXT, 0, MAX_NAMES),
        "Groups who are asked.",
    )
    .or_null(),
    may(
        "onTimeout",
        Shape::Choice(&ON_TIMEOUT),
        "Whatever it says, a gate whose time is up is rejected.",
    )
    .or_null(),
    may("optionLabels", Shape::Any, "Kept; no effect."),
    may(
        "overrideScopes",
        Shape::Any,
        "No effect: nobody overrides a gate.",
    ),
    may("timeoutMs", COUNT, "Milliseconds it stays open.").or_null(),
    may("artifactId", Shape::Words, "The artifact it is about.").or_null(),
    may("artifactType", TEXT, "That artifact's type.").or_null(),
    may(
        "artifactData",
        Shape::Any,
        "What it is about, if that is no artifact.",
    ),
    may(
        "profile",
        Shape::Choice(&PROFILES),
        "openwop-interrupt-auth-required: a token alone does not answer it.",
    )
    .or_null(),
];

const TIMEOUT: Member = may("timeoutMs", COUNT, "Milliseconds it stays open.").or_null();

static CLARIFICATION: Members = closed(&[
    QUESTIONS,
    TIMEOUT,
    may("title", Shape::MaybeTemplate, "What it is about."),
    may("description", Shape::MaybeTemplate, "More about it."),
    may("prompt", Shape::MaybeTemplate, "More about it."),
]);

static CLARIFICATION_DATA: Members = closed(&[
    QUESTIONS,
    TIMEOUT,
    may("title", Shape::Any, "What it is about."),
    may("description", Shape::Any, "More about it."),
    may("prompt", Shape::Any, "More about it."),
    may("artifactId", Shape::Any, "The artifact they are about."),
    may("contextType", Shape::Any, "Kept; no effect."),
]);

const QUESTIONS: Member = may(
    "questions",
    Shape::List(&QUESTION_SHAPE, 1, MAX_QUESTIONS),
    "The questions.",
)
.must();

static QUESTION_SHAPE: Shape = Shape::Object(&QUESTION);

static QUESTION: Members = closed(&[
    may("id", NONEMPTY, "The name of its answer.").must(),
    may("question", Shape::Literal, "The question.").must(),
    may("schema", Shape::Schema, "A JSON Schema that the answer matches."),
]);

const INTERRUPT_KIND: Member = may("kind", TEXT, "What it waits for.").must();
const INTERRUPT_TITLE: Member = may("title", Shape::MaybeTemplate, "What it is about.");
const INTERRUPT_DESCRIPTION: Member = may("description", Shape::MaybeTemplate, "More about it.");
const INTERRUPT_PROMPT: Member = may("prompt", Shape::MaybeTemplate, "More about it.");
const INTERRUPT_ARTIFACT: Member = may("artifactId", Shape::MaybeTemplate, "The artifact it is about.");
const RESUME_SCHEMA: Member = may(
    "resumeSchema",
    Shape::Schema,
    "A JSON Schema that the answer matches.",
);

const fn data(shape: Shape) -> Member {
    may("data", shape, "What is asked.")
}

static INTERRUPT: Tagged = Tagged {
    tag: "kind",
    default: None,
    variants: &[
        (
            "approval",
            closed(&[
                INTERRUPT_KIND,
                data(Shape::Object(&APPROVAL_DATA)),
                TIMEOUT,
                INTERRUPT_TITLE,
                INTERRUPT_DESCRIPTION,
                INTERRUPT_PROMPT,
                INTERRUPT_ARTIFACT,
            ]),
        ),
        (
            "clarification",
            closed(&[
                INTERRUPT_KIND,
                data(Shape::Object(&CLARIFICATION_DATA)).must(),
                TIMEOUT,
                INTERRUPT_TITLE,
                INTERRUPT_DESCRIPTION,
                INTERRUPT_PROMPT,
                INTERRUPT_ARTIFACT,
            ]),
        ),
        (
            "external-event",
            closed(&[
                INTERRUPT_KIND,
                data(Shape::Object(&EXTERNAL_EVENT)).must(),
                TIMEOUT,
                RESUME_SCHEMA,
                INTERRUPT_TITLE,
                INTERRUPT_DESCRIPTION,
                INTERRUPT_PROMPT,
                INTERRUPT_ARTIFACT,
            ]),
        ),
        (
            "custom",
            closed(&[
                INTERRUPT_KIND,
                data(Shape::Object(&CUSTOM)).must(),
                TIMEOUT,
                RESUME_SCHEMA,
                INTERRUPT_TITLE,
                INTERRUPT_DESCRIPTION,
                INTERRUPT_PROMPT,
                INTERRUPT_ARTIFACT,
            ]),
        ),
    ],
};

/// Members that only approvals have: they say who may answer, how often and until when.
const RESTRICTIONS_REFUSED: [(&str, &str); 10] = {
    let mut refused = [(
        "",
        "restricts approvals only; this kind of interrupt has no such rule",
    ); 10];
    let mut n = 0;
    while n < refused.len() {
        refused[n].0 = RESTRICTIONS[n];
        n += 1;
    }
    refused
};

static EXTERNAL_EVENT: Members = closed(&[
    may("eventType", NONEMPTY, "The type of the event.").must(),
    may("correlation", OBJECT, "What an event must match.").must(),
    INTERRUPT_TITLE,
    INTERRUPT_DESCRIPTION,
    INTERRUPT_PROMPT,
    INTERRUPT_ARTIFACT,
])
.refusing(&RESTRICTIONS_REFUSED);

static CUSTOM: Members = closed(&[
    may("customKind", NONEMPTY, "The kind, for whoever answers.").must(),
    may("payload", Shape::Any, "Anything, for whoever answers."),
    INTERRUPT_TITLE,
    INTERRUPT_DESCRIPTION,
    INTERRUPT_PROMPT,
    INTERRUPT_ARTIFACT,
])
.refusing(&RESTRICTIONS_REFUSED);

static SUB_WORKFLOW: Members = closed(&[
    may("workflowId", Shape::WorkflowId, "What is run.").must(),
    may(
        "inputMapping",
        Shape::Map(&TEXT),
        "The child's variables by name, each from a variable here.",
    )
    .or_null(),
    may(
        "outputMapping",
        Shape::SettableMap(&TEXT),
        "Variables here by name, each from a variable of the child.",
    )
    .or_null(),
    may("inputs", OBJECT, "Given to the child as they are."),
    may(
        "onChildFailure",
        Shape::Choice(&["fail-parent", "absorb", "continue"]),
        "What a failure of the child does; fail-parent where absent.",
    )
    .or_null(),
    may(
        "propagateCancellation",
        Shape::Flag,
        "Whether a cancel reaches the child; true where absent.",
    )
    .or_null(),
    may(
        "memoryScopeIsolation",
        Shape::Choice(&["isolated"]),
        "isolated: the child's agents remember in a scope of their own.",
    )
    .or_null(),
    may(
        "waitForCompletion",
        Shape::True("must be true: this host runs children synchronously"),
        "true alone.",
    )
    .or_null(),
    may(
        "outputAttestation",
        Shape::Object(&ATTESTATION),
        "How what the child gives back is vouched for.",
    )
    .or_null(),
]);

static ATTESTATION: Members = closed(&[
    may(
        "checksum",
        Shape::Any,
        "A flag or an expected checksum; the host computes one in any case.",
    ),
    may("algorithm", Shape::Choice(&["sha256"]), "sha256 alone.").or_null(),
    may(
        "requireApproval",
        Shape::Flag,
        "Whether somebody has to approve before it counts.",
    )
    .or_null(),
    may(
        "principalScope",
        Shape::List(&TEXT, 0, MAX_NAMES),
        "Who may approve; anybody who may answer where absent.",
    )
    .or_null(),
]);

static SUPERVISOR: Members = closed(&[
    may(
        "agentId",
        Shape::Text(3, 256),
        "The agent that decides; by default that of the node's agent.",
    )
    .or_null(),
    may(
        "decision",
        Shape::Body,
        "A decision whose texts may be templates, taken where no rule holds; a text that is one expression in braces has its value.",
    ),
    may(
        "rules",
        Shape::List(&Shape::Object(&RULE), 1, MAX_RULES),
        "The first rule that holds decides, anew at each turn.",
    ),
    may(
        "model",
        Shape::Object(&LEAD),
        "The model that decides, in the place of rules.",
    ),
    may(
        "workers",
        Shape::List(&WORKER_SHAPE, 1, MAX_WORKERS),
        "The workers that the model may name.",
    ),
    may(
        "transcriptWindow",
        Shape::Whole(1, MAX_WINDOW as u64),
        "How many of the latest decisions, and of what followed from them, the model is told again; 32 where absent.",
    )
    .or_null(),
    may(
        "contextBudget",
        Shape::Object(&CONTEXT_BUDGET),
        "Limits the transcript that the model reads in each turn.",
    )
    .or_null(),
    may(
        "verifier",
        Shape::Object(&VERIFIER),
        "Who judges the work before a decision to terminate is followed.",
    ),
    may(
        "maxLoopIterations",
        Shape::Whole(1, MAX_TURNS_LIMIT),
        "The most decisions of one run; with one more the run fails.",
    )
    .or_null(),
    may(
        "iterationCap",
        Shape::Whole(1, MAX_TURNS_LIMIT),
        "The same as maxLoopIterations; the smaller one counts.",
    )
    .or_null(),
    may(
        "mockDispatchPlan",
        Shape::List(&Shape::Any, 0, MAX),
        "Decisions to take one after the other; only in conformance mode.",
    ),
    may(
        "mockDecisions",
        Shape::List(&Shape::Any, 0, MAX),
        "The same as mockDispatchPlan.",
    ),
    may(
        "mockConfidence",
        Shape::Number,
        "The confidence of the pending decision; only in conformance mode.",
    ),
    may(
        "mockPendingDecision",
        OBJECT,
        "A decision to take, or to hold; only in conformance mode.",
    ),
]);

static CONTEXT_BUDGET: Members = closed(&[
    may(
        "transcriptTokenBudget",
        Shape::Whole(MIN_TRANSCRIPT as u64, MAX_TRANSCRIPT as u64),
        "The most characters; with summarization at least 11,000 for each kept turn, and 5,500 for the summary.",
    )
    .or_null(),
    may("tokenCounter", Shape::Choice(&COUNTERS), "Only `chars`.").or_null(),
    may(
        "summarization",
        Shape::Object(&SUMMARIZATION),
        "Has the model summarize older turns. Without it, the oldest are dropped.",
    )
    .or_null(),
]);

static SUMMARIZATION: Members = closed(&[may(
    "keepLastTurns",
    Shape::Whole(1, MAX_KEPT as u64),
    "How many of the latest turns are told as they are; 2 where absent.",
)
.or_null()]);

static VERIFIER: Members = closed(&[
    may(
        "worker",
        Shape::Text(1, 256),
        "The workflow that judges, or agent:PEER or agent:PEER/SKILL. Its outputs, or the document `data` among them, have `verdict`.",
    )
    .must(),
    may(
        "agentId",
        Shape::Text(3, 256),
        "The agent as which it judges; by default the worker.",
    )
    .or_null(),
    may(
        "inputs",
        Shape::Map(&Shape::Body),
        "What it is given beside `decision` and `criteria`; a text that is one expression in braces has its value.",
    ),
    may(
        "criteria",
        Shape::List(&CRITERION, 1, MAX_CRITERIA),
        "The names of what it judges by.",
    ),
    may(
        "gating",
        Shape::Flag,
        "Whether its verdict decides what follows; true where absent.",
    ),
    may(
        "maxRevisions",
        Shape::Whole(0, MAX_REVISIONS),
        "How often it may send the work of one run back; 3 where absent.",
    )
    .or_null(),
]);

static CRITERION: Shape = Shape::Text(1, MAX_CRITERION);

static LEAD: Members = closed(&[
    PROVIDER,
    MODEL,
    SYSTEM_PROMPT,
    PROMPT,
    TEMPERATURE,
    MAX_TOKENS,
    MODEL_TIMEOUT,
    may(
        "retryOnInvalidJson",
        Shape::Whole(0, MAX_REPAIRS),
        "How often it is asked again for a valid decision; at least 3 times.",
    )
    .or_null(),
]);

static WORKER_SHAPE: Shape = Shape::Object(&WORKER);

static WORKER: Members = closed(&[
    may(
        "id",
        Shape::Text(1, 256),
        "A workflow, or agent:PEER or agent:PEER/SKILL.",
    )
    .must(),
    may("description", TEXT, "What the model is told of it.").or_null(),
]);

static RULE: Members = closed(&[
    may(
        "when",
        Shape::Expression,
        "Whether the rule holds; always where absent.",
    ),
    may(
        "decision",
        Shape::Body,
        "A decision whose texts may be templates; a text that is one expression in braces has its value.",
    )
    .must(),
]);

static DISPATCH: Members = closed(&[
    may(
        "askUserRouting",
        Shape::Choice(&ROUTINGS),
        "How a person is asked; auto where absent.",
    )
    .or_null(),
    may(
        "workerDispatchModel",
        Shape::Choice(&["child-run"]),
        "Workers are child runs.",
    )
    .or_null(),
    may(
        "fanOutPolicy",
        Shape::Choice(&FAN_OUTS),
        "How several workers work; sequential where absent.",
    )
    .or_null(),
    may(
        "iterationCap",
        Shape::Whole(1, MAX_TURNS_LIMIT),
        "The most executions that dispatch in one run; with one more the run fails.",
    )
    .or_null(),
    may(
        "inputMapping",
        Shape::Map(&TEXT),
        "The worker's variables by name, each from a variable here.",
    )
    .or_null(),
    may(
        "outputMapping",
        Shape::SettableMap(&TEXT),
        "Variables here by name, each from a variable of the worker.",
    )
    .or_null(),
    may(
        "perWorkerInputMappings",
        Shape::Map(&Shape::Map(&TEXT)),
        "Mappings by worker, each in the place of inputMapping.",
    )
    .or_null(),
    may(
        "perWorkerOutputMappings",
        Shape::Map(&Shape::SettableMap(&TEXT)),
        "Mappings by worker, each in the place of outputMapping.",
    )
    .or_null(),
    may(
        "maxConcurrency",
        Shape::Whole(1, u64::MAX),
        "The most workers at the same time; only for parallel.",
    )
    .or_null(),
    may(
        "joinPolicy",
        Shape::Object(&JOIN_POLICY),
        "When workers at the same time are done; only for parallel.",
    ),
    may(
        "memoryScopeIsolation",
        Shape::Choice(&ISOLATIONS),
        "isolated: each worker's agents remember in a scope of their own.",
    )
    .or_null(),
]);

static JOIN_POLICY: Members = closed(&[
    may(
        "mode",
        Shape::Choice(&JOIN_MODES),
        "How many have to complete; wait-all where absent.",
    )
    .or_null(),
    may(
        "quorum",
        Shape::Whole(1, MAX_SET as u64),
        "How many have to complete; only for quorum.",
    )
    .or_null(),
    may(
        "onChildFailure",
        Shape::Choice(&ON_CHILD_FAILURE),
        "What a worker that fails means; collect where absent.",
    )
    .or_null(),
]);

static ACTIVITY: Members = closed(&[
    may("queue", NONEMPTY, "The queue that workers ask for.").must(),
    may(
        "input",
        Shape::Body,
        "JSON whose texts may be templates; an input port input wins.",
    ),
    may(
        "timeoutMs",
        Shape::Whole(1, MAX_ACTIVITY_MS),
        "Milliseconds of one attempt.",
    )
    .or_null(),
    may(
        "heartbeatMs",
        Shape::Whole(1, MAX_ACTIVITY_MS),
        "Milliseconds that a worker may be silent.",
    )
    .or_null(),
]);

const PEER: Member = may(
    "peer",
    NONEMPTY,
    "The agent's name in the host's configuration; default where absent.",
)
.or_null();

const BASE_URL: Member = may(
    "baseUrl",
    NONEMPTY,
    "The agent's address in the host's configuration, in the place of peer.",
)
.or_null();

const SKILL: Member = may("skill", NONEMPTY, "The agent's skill.").or_null();

const MESSAGE: Member = may(
    "message",
    Shape::Template,
    "The text to send, as a template; an input message wins.",
)
.or_null();

const DATA: Member = may(
    "data",
    Shape::Body,
    "JSON to send, whose texts may be templates; an input data wins.",
);

const TASK_ID: Member = may(
    "taskId",
    Shape::Template,
    "The task, as a template; an input taskId wins.",
)
.or_null();

const AGENT_TIMEOUT: Member = may(
    "timeoutMs",
    Shape::Whole(1, MAX_ACTIVITY_MS),
    "Milliseconds from the first attempt to the agent's answer.",
)
.or_null();

const VERSION: Member = may(
    "protocolVersion",
    Shape::Choice(&VERSIONS),
    "The version to speak, instead of the newest that both know.",
)
.or_null();

const BINDING: Member = may(
    "binding",
    Shape::Choice(&BINDINGS),
    "The binding to use, instead of the one that the peer's configuration or card prefers.",
)
.or_null();

const OUTPUT_MODES: Member = may(
    "acceptedOutputModes",
    Shape::List(&TEXT, 0, MAX_MODES),
    "Media types that the answer may have.",
)
.or_null();

static AGENT: Members = closed(&[
    PEER,
    SKILL,
    MESSAGE,
    DATA,
    AGENT_TIMEOUT,
    VERSION,
    BINDING,
    OUTPUT_MODES,
]);

static SEND_MESSAGE: Members = closed(&[
    PEER,
    BASE_URL,
    SKILL,
    MESSAGE,
    DATA,
    AGENT_TIMEOUT,
    VERSION,
    BINDING,
    OUTPUT_MODES,
]);

static COORDINATOR: Members = closed(&[
    PEER,
    BASE_URL,
    SKILL,
    MESSAGE,
    DATA,
    may(
        "maxTurns",
        Shape::Whole(1, MAX_TURNS),
        "The most questions that the agent may ask; 16 where absent.",
    )
    .or_null(),
    AGENT_TIMEOUT,
    VERSION,
    BINDING,
    OUTPUT_MODES,
]);

static TASK: Members = closed(&[PEER, BASE_URL, TASK_ID, AGENT_TIMEOUT, VERSION, BINDING]);

static DISCOVER_AGENT: Members = closed(&[PEER, BASE_URL, AGENT_TIMEOUT]);

static TOOL_CALLED: Members = closed(&[
    may(
        "server",
        NONEMPTY,
        "A server of the host's configuration; default where absent.",
    )
    .or_null(),
    may("tool", NONEMPTY, "The name of the tool.").must(),
    may(
        "arguments",
        Shape::Body,
        "An object whose texts may be templates; an input arguments wins, and all inputs are taken where there is neither.",
    ),
    may(
        "retrySafe",
        Shape::Flag,
        "Whether wopr may repeat a call whose outcome it does not know; where absent, the server's description of the tool decides.",
    )
    .or_null(),
    may(
        "timeoutMs",
        Shape::Whole(1, TOOL_MAX_TIMEOUT_MS),
        "Milliseconds of one attempt; the server's where absent.",
    )
    .or_null(),
]);

static HTTP: Members = closed(&[
    may(
        "method",
        Shape::AnyCase(&["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]),
        "GET where absent.",
    )
    .or_null(),
    may(
        "url",
        Shape::Template,
        "An absolute http or https URL, as a template; an input url wins.",
    )
    .or_null(),
    may(
        "headers",
        Shape::Map(&Shape::MaybeTemplate),
        "Header fields: templates, or {secret, prefix?} with the name of a secret of the host.",
    ),
    may(
        "body",
        Shape::Body,
        "JSON whose texts may be templates; an input body wins.",
    ),
    may(
        "timeoutMs",
        Shape::Whole(1, HTTP_MAX_TIMEOUT_MS),
        "Milliseconds of one attempt.",
    )
    .or_null(),
]);

static TALK: Members = closed(&[
    may("title", Shape::Words, "What it is about.").or_null(),
    may("prompt", Shape::Words, "What the gate says first.").or_null(),
    may(
        "channel",
        NONEMPTY,
        "The channel that gets the turns, if it is declared; conversation where absent.",
    )
    .or_null(),
    may(
        "outcomeSchema",
        Shape::Schema,
        "A JSON Schema for the outcome with which it is closed.",
    )
    .or_null(),
    may(
        "maxTurns",
        Shape::Whole(1, MAX_CONVERSATION),
        "The most turns of people; 50 where absent.",
    )
    .or_null(),
    may(
        "timeoutMs",
        COUNT,
        "Milliseconds until it fails for want of an end.",
    )
    .or_null(),
    may(
        "lifecycle",
        Shape::Choice(&["open-exchange-close"]),
        "The only one.",
    )
    .or_null(),
    may(
        "mockAutoResume",
        Shape::Flag,
        "Plays a script; for hosts in conformance mode.",
    )
    .or_null(),
    may(
        "turnCount",
        Shape::Whole(1, MAX_SCRIPTED),
        "How many pairs of turns the script has.",
    )
    .or_null(),
]);

const MEMORY_SCOPE: Member = may(
    "memoryRef",
    Shape::Text(1, MAX_SCOPE),
    "The scope; that of the node's agent, or of the run, where absent.",
)
.or_null();

static MEMORY_ENTRY: Members = closed(&[
    MEMORY_SCOPE,
    may(
        "content",
        Shape::Template,
        "The text, as a template; an input content wins.",
    )
    .or_null(),
    may(
        "tags",
        Shape::List(&Shape::Template, 0, MAX_TAGS),
        "Tags by which it is found; templates.",
    )
    .or_null(),
    may(
        "ttlMs",
        Shape::Whole(1, MAX_MEMORY_TTL_MS),
        "Milliseconds that it is kept, from when it is written.",
    )
    .or_null(),
    may(
        "id",
        Shape::Template,
        "Its id, as a template: an entry that has it is replaced. An input id wins.",
    )
    .or_null(),
]);

static MEMORY_QUERY: Members = closed(&[
    MEMORY_SCOPE,
    may(
        "id",
        Shape::Template,
        "Only this entry; a template. An input id wins.",
    )
    .or_null(),
    may("tag", Shape::Template, "Only entries with this tag; a template.").or_null(),
    may(
        "limit",
        Shape::Whole(1, MAX_READ),
        "The most entries; 20 where absent.",
    )
    .or_null(),
]);

/// The settings of a scripted agent; the decoder checks what they contain.
static MOCKED: Members = closed(&[
    may(
        "agentId",
        Shape::Text(3, 256),
        "The agent's id, in the place of the node's.",
    ),
    may(
        "mockReasoning",
        Shape::Any,
        "true, or an object with summary, trace, tokenCount and streamChunks.",
    ),
    may(
        "mockToolCalls",
        Shape::List(&OBJECT, 0, MAX_CALLS),
        "Calls with toolId, arguments, result or error, and durationMs.",
    ),
    may("mockHandoff", OBJECT, "toAgentId, reason and context."),
    may("mockDecision", OBJECT, "decision, confidence and reasoning."),
    may("mockConfidence", Shape::Number, "0 to 1; without mockDecision."),
]);
