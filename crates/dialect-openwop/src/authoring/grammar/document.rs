//! The members of a definition: document, nodes, ports, edges, conditions, triggers, variables and channels.

use crate::{
    channel::MAX_TTL_MS,
    definition::{MAX_EDGES, MAX_NODES, TRIGGER_TYPES},
    plan::MAX_RETRIES,
};

use super::{COUNT, MAX, Member, Members, NONEMPTY, OBJECT, Shape, TEXT, Tagged, closed, may, open};

pub(crate) static ROOT: Members = closed(&[
    may(
        "$schema",
        TEXT,
        "The JSON Schema of this document, for editors; it has no effect on runs.",
    ),
    may(
        "id",
        Shape::WorkflowId,
        "The workflow's id: 1 to 128 of a-z, 0-9, _ and -, a letter first.",
    )
    .must(),
    may("name", Shape::Text(1, 256), "A name for people.").must(),
    may(
        "version",
        NONEMPTY,
        "The author's label; the host tells versions apart by content.",
    )
    .must(),
    may("description", TEXT, "What the workflow is for."),
    may("nodes", Shape::List(&Shape::Node, 1, MAX_NODES), "The steps.").must(),
    may(
        "edges",
        Shape::List(&Shape::Object(&EDGE), 0, MAX_EDGES),
        "What follows what, and when.",
    )
    .must(),
    may(
        "triggers",
        Shape::List(&Shape::Object(&TRIGGER), 0, MAX),
        "Checked and kept; nothing is started by them.",
    )
    .must(),
    may(
        "variables",
        Shape::List(&Shape::Object(&VARIABLE), 0, MAX_NODES),
        "Variables and inputs.",
    )
    .must(),
    may(
        "channels",
        Shape::Map(&Shape::Object(&CHANNEL)),
        "Channels by name, for core.channelWrite.",
    ),
    may(
        "metadata",
        Shape::Object(&METADATA),
        "Anything; some members are for the A2A card.",
    )
    .must(),
    may(
        "settings",
        Shape::Object(&SETTINGS),
        "Settings of the whole workflow.",
    )
    .must(),
    may(
        "configurableSchema",
        Shape::Schema,
        "A JSON Schema for `configurable` of a run.",
    ),
    may(
        "isActive",
        Shape::Flag,
        "false: it cannot be started, and is no skill.",
    ),
    may(
        "status",
        Shape::Choice(&["active", "inactive", "draft", "archived"]),
        "Only an active workflow can be started.",
    ),
    may("type", TEXT, "Kept; no effect.").or_null(),
    may(
        "tenantId",
        TEXT,
        "The tenant it is registered for; the caller's own.",
    )
    .or_null(),
    may("scopeId", TEXT, "Kept; no effect.").or_null(),
    may("slug", Shape::Slug, "Kept; no effect.").or_null(),
    may(
        "groups",
        Shape::List(&Shape::Object(&GROUP), 0, MAX_NODES),
        "For editors; no effect.",
    ),
    may("defaults", Shape::Object(&DEFAULTS), "Kept; no effect.").or_null(),
    may(
        "acceptsInheritedArtifacts",
        Shape::List(&OBJECT, 0, MAX),
        "Kept; no effect.",
    ),
    may("createdAt", TEXT, "Kept; no effect.").or_null(),
    may("updatedAt", TEXT, "Kept; no effect.").or_null(),
]);

static GROUP: Members = closed(&[
    may("id", NONEMPTY, "Names the group.").must(),
    may("name", NONEMPTY, "A name for people.").must(),
    may("nodeIds", Shape::List(&TEXT, 0, MAX), "The nodes in it.").must(),
    may("position", Shape::Object(&POSITION), "Where editors show it.").must(),
    may("size", Shape::Object(&SIZE), "How large editors show it.").must(),
    may("color", TEXT, "For editors; no effect.").or_null(),
    may("collapsed", Shape::Flag, "For editors; no effect."),
]);

static SIZE: Members = open(&[
    may("width", Shape::Number, "In the unit of positions.").must(),
    may("height", Shape::Number, "In the unit of positions.").must(),
]);

static DEFAULTS: Members = closed(&[may("promptRefs", Shape::Object(&PROMPT_REFS), "Kept; no effect.")]);

static PROMPT_REFS: Members = closed(&[
    may("system", Shape::Any, "Kept; no effect."),
    may("user", Shape::Any, "Kept; no effect."),
    may("few-shot", Shape::Any, "Kept; no effect."),
    may("schema-hint", Shape::Any, "Kept; no effect."),
]);

static METADATA: Members = open(&[
    may(
        "public",
        Shape::Any,
        "false keeps the workflow from being a skill of the A2A agent.",
    ),
    may(
        "tags",
        Shape::List(&Shape::Text(1, 256), 0, 100),
        "Tags of the skill.",
    )
    .or_null(),
    may("examples", Shape::Any, "Example prompts of the skill."),
    may(
        "a2a",
        Shape::Any,
        "inputModes, outputModes and reply (task, status or message).",
    ),
    may("createdBy", TEXT, "Kept; no effect.").or_null(),
    may("createdAt", TEXT, "Kept; no effect.").or_null(),
    may("updatedBy", TEXT, "Kept; no effect.").or_null(),
    may("updatedAt", TEXT, "Kept; no effect.").or_null(),
    may("category", TEXT, "Kept; no effect.").or_null(),
    may("author", TEXT, "Kept; no effect.").or_null(),
    may("codeVersion", TEXT, "Kept; no effect.").or_null(),
    may("customizedAt", TEXT, "Kept; no effect.").or_null(),
    may("customizedBy", TEXT, "Kept; no effect.").or_null(),
    may("forkedFrom", TEXT, "Kept; no effect.").or_null(),
    may("clonedFrom", TEXT, "Kept; no effect.").or_null(),
    may("clonedAt", TEXT, "Kept; no effect.").or_null(),
    may("customProperties", OBJECT, "Kept; no effect.").or_null(),
    may(
        "complianceClass",
        Shape::Choice(&["public", "pii", "phi", "pci", "regulated"]),
        "Kept; no effect.",
    )
    .or_null(),
    may("complianceConfig", Shape::Object(&COMPLIANCE), "Kept; no effect.").or_null(),
]);

static COMPLIANCE: Members = open(&[may(
    "maskingMode",
    Shape::Choice(&["mask", "omit", "hash", "passthrough"]),
    "Kept; no effect: sensitive values are always masked.",
)]);

static SETTINGS: Members = open(&[
    may(
        "timeout",
        COUNT,
        "Milliseconds that a run may take; 0 is no bound.",
    ),
    may("maxRetries", RETRIES, "How often a retryable failure is retried."),
    may(
        "retryDelayMs",
        COUNT,
        "Milliseconds before the first retry; each later one waits twice as long.",
    )
    .or_null(),
    may(
        "budget",
        Shape::Object(&BUDGET),
        "What the models of a run may take.",
    )
    .or_null(),
    may(
        "logLevel",
        Shape::Choice(&["debug", "info", "warn", "error"]),
        "Kept; no effect.",
    )
    .or_null(),
    may(
        "maxLoopbackIterations",
        Shape::Whole(1, u64::MAX),
        "Kept; no effect: the limit of node executions ends loops.",
    )
    .or_null(),
]);

static BUDGET: Members = closed(&[
    may(
        "maxTokens",
        Shape::Whole(1, u64::MAX >> 12),
        "Tokens of all answers and questions.",
    )
    .or_null(),
    may(
        "maxCostUsd",
        Shape::Number,
        "US dollars, by the prices of the host.",
    )
    .or_null(),
    may(
        "maxDurationMs",
        Shape::Whole(1, u64::MAX >> 12),
        "Milliseconds, waits for people not counted.",
    )
    .or_null(),
    may(
        "onBreach",
        Shape::Choice(&["ask", "fail"]),
        "ask (default): somebody is asked for as much again; fail: the run fails.",
    ),
])
.with_one_of(&["maxTokens", "maxCostUsd", "maxDurationMs"]);

const RETRIES: Shape = Shape::Whole(0, MAX_RETRIES as u64);

/// Settings that a node can override.
static NODE_SETTINGS: Members = open(&[
    may(
        "maxRetries",
        RETRIES,
        "How often a retryable failure of this node is retried.",
    ),
    may(
        "retryDelayMs",
        COUNT,
        "Milliseconds before the first retry of this node.",
    ),
]);

/// A node, except for the members that depend on its type.
pub(crate) static NODE: Members = closed(&[
    may(
        "id",
        Shape::NodeId,
        "Unique; an id like pay-now is nodes['pay-now'] in expressions.",
    )
    .must(),
    may("typeId", TEXT, "What the node does.").must(),
    may("name", TEXT, "A name for people; the title of its artifact.").must(),
    may("config", OBJECT, "Settings that the type defines."),
    may(
        "inputs",
        Shape::Map(&Shape::Tagged(&PORT)),
        "Values of input ports.",
    ),
    may("artifactType", TEXT, "Makes an artifact of the outputs.").or_null(),
    may(
        "settings",
        Shape::Object(&NODE_SETTINGS),
        "maxRetries and retryDelayMs of this node.",
    ),
    may("disabled", Shape::Flag, "true: it is skipped."),
    may(
        "outputSensitivity",
        Shape::Map(&Shape::Flag),
        "Outputs whose values are kept from views.",
    ),
    may(
        "agent",
        Shape::Object(&AGENT),
        "The agent that is meant to run it; for readers.",
    )
    .or_null(),
    may("position", Shape::Object(&POSITION), "Where editors show it.").or_null(),
    may("notes", TEXT, "For editors; no effect.").or_null(),
    may("groupId", TEXT, "For editors; no effect.").or_null(),
    may(
        "outputRole",
        Shape::Choice(&["primary", "secondary"]),
        "For editors; no effect.",
    )
    .or_null(),
    may("cardType", TEXT, "For editors; no effect.").or_null(),
    may("credentialsRef", TEXT, "Kept; no effect.").or_null(),
    may("envelopeContract", OBJECT, "Kept; no effect.").or_null(),
]);

static POSITION: Members = open(&[
    may("x", Shape::Number, "From the left.").must(),
    may("y", Shape::Number, "From the top.").must(),
]);

static AGENT: Members = closed(&[
    may("agentId", Shape::Text(3, 256), "The agent's id.").must(),
    may("name", Shape::Text(0, 256), "Its name."),
    may(
        "modelClass",
        Shape::Choice(&crate::admission::MODEL_CLASSES),
        "The kind of model it needs.",
    ),
    may("memoryRef", Shape::Text(1, 256), "Its memory."),
    may("version", Shape::Text(0, 64), "Its version."),
    may("sourceManifestId", Shape::Text(0, 256), "Where it is from."),
])
.refusing(&[(
    "channel",
    "needs the capability agents.deployment, which this host does not have",
)]);

static PORT: Tagged = Tagged {
    tag: "type",
    default: None,
    variants: &[
        (
            "static",
            closed(&[PORT_TYPE, may("value", Shape::Any, "The value.").must()]),
        ),
        (
            "expression",
            closed(&[
                PORT_TYPE,
                may("expression", Shape::Expression, "Evaluated when the node starts.").must(),
            ]),
        ),
        (
            "connection",
            closed(&[
                PORT_TYPE,
                may("nodeId", NONEMPTY, "The node whose output it is.").must(),
                may("outputKey", NONEMPTY, "The output's name.").must(),
                OPTIONAL,
            ]),
        ),
        (
            "variable",
            closed(&[
                PORT_TYPE,
                may("variableName", NONEMPTY, "The variable.").must(),
                OPTIONAL,
            ]),
        ),
    ],
};

const PORT_TYPE: Member = may("type", TEXT, "Where the value comes from.").must();
const OPTIONAL: Member = may("optional", Shape::Flag, "true: the node starts without it, too.");

static EDGE: Members = closed(&[
    may("id", NONEMPTY, "Unique.").must(),
    may("sourceNodeId", Shape::NodeId, "Where it starts.").must(),
    may("targetNodeId", Shape::NodeId, "Where it ends.").must(),
    may(
        "condition",
        Shape::Tagged(&CONDITION),
        "What must hold for it to be taken.",
    )
    .or_null(),
    may(
        "triggerRule",
        Shape::Choice(&[
            "all_success",
            "any_success",
            "all_complete",
            "none_failed",
            "any_failed",
        ]),
        "What the edge needs of its source. Edges that need all are judged together; of those that need any, one is \
         enough.",
    ),
    may("label", TEXT, "For editors; no effect.").or_null(),
    may("sourceOutput", TEXT, "For editors; no effect.").or_null(),
    may("targetInput", TEXT, "For editors; no effect.").or_null(),
]);

static CONDITION: Tagged = Tagged {
    tag: "type",
    default: Some("expression"),
    variants: &[
        (
            "expression",
            closed(&[
                CONDITION_TYPE,
                NO_LEFT,
                RIGHT,
                may("expression", Shape::Expression, "What must hold.").must(),
            ]),
        ),
        (
            "equals",
            closed(&[CONDITION_TYPE, LEFT, RIGHT.must(), EXPRESSION.or_null()]),
        ),
        (
            "notEquals",
            closed(&[CONDITION_TYPE, LEFT, RIGHT.must(), EXPRESSION.or_null()]),
        ),
        (
            "contains",
            closed(&[CONDITION_TYPE, LEFT, RIGHT.must(), EXPRESSION.or_null()]),
        ),
        (
            "regex",
            closed(&[
                CONDITION_TYPE,
                LEFT,
                may("right", Shape::Pattern, "A regular expression.").must(),
                EXPRESSION.or_null(),
            ]),
        ),
        (
            "truthy",
            closed(&[CONDITION_TYPE, LEFT, RIGHT, EXPRESSION.or_null()]),
        ),
        (
            "falsy",
            closed(&[CONDITION_TYPE, LEFT, RIGHT, EXPRESSION.or_null()]),
        ),
    ],
};

const CONDITION_TYPE: Member = may("type", TEXT, "How it compares; expression where absent.");
const LEFT: Member = may("left", Shape::Expression, "An expression, such as output.action.").must();
const NO_LEFT: Member = may("left", Shape::Expression, "No effect here.").or_null();
const RIGHT: Member = may("right", Shape::Any, "What it is compared with.");
const EXPRESSION: Member = may("expression", TEXT, "No effect here.");

static TRIGGER: Members = closed(&[
    may("id", NONEMPTY, "Names the trigger.").must(),
    may(
        "type",
        Shape::Choice(&TRIGGER_TYPES),
        "What it would be started by.",
    )
    .must(),
    may("name", TEXT, "For people.").or_null(),
    may("description", TEXT, "For people.").or_null(),
    may("config", OBJECT, "Kept; no effect.").or_null(),
    may("enabled", Shape::Flag, "Kept; no effect.").or_null(),
    may("nodeId", TEXT, "Kept; no effect.").or_null(),
    may("eventType", TEXT, "Kept; no effect.").or_null(),
]);

static VARIABLE: Members = closed(&[
    may("name", TEXT, "Its name in expressions.").must(),
    may(
        "type",
        Shape::Choice(&["string", "number", "boolean", "object", "array"]),
        "An input of another type is refused.",
    )
    .must(),
    may(
        "required",
        Shape::Flag,
        "true: a run needs it as an input, unless it has a default.",
    ),
    may(
        "defaultValue",
        Shape::Any,
        "Its value until something else sets it.",
    ),
    may(
        "sensitive",
        Shape::Flag,
        "true: views keep its value to themselves.",
    ),
    may("description", TEXT, "For people.").or_null(),
    may("format", TEXT, "For people.").or_null(),
]);

const VERSION: Shape = Shape::Whole(1, u64::MAX);

static CHANNEL: Members = closed(&[
    may("reducer", Shape::Reducer, "How writes are folded in.").must(),
    may(
        "default",
        Shape::Any,
        "Its value before the first write; `schema` holds for it.",
    ),
    may(
        "maxSize",
        Shape::Whole(1, u32::MAX as u64),
        "The most entries. append, feedback and message drop the oldest; a write that exceeds it fails otherwise.",
    ),
    may(
        "ttlMs",
        Shape::Whole(1, MAX_TTL_MS),
        "Milliseconds that entries of a list are kept.",
    ),
    may(
        "sensitive",
        Shape::Flag,
        "true: views keep its value to themselves.",
    ),
    may(
        "schema",
        Shape::Schema,
        "A JSON Schema that its value matches after each write.",
    ),
    may("access", Shape::Access, "Which nodes may write."),
    may("options", OBJECT, "Kept; no effect."),
    may("schemaVersion", VERSION, "Kept; no effect."),
    may(
        "compatibleWith",
        Shape::List(&VERSION, 0, MAX),
        "Kept; no effect.",
    ),
]);
