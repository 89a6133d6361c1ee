//! The shape of a definition as data: its members, what each may be, and a line about it.
//!
//! The JSON Schema for editors is printed from these tables, and [`super::walk`] holds new documents to them, so the
//! two cannot disagree. What a shape cannot say (an id used twice, a name that does not exist) is the decoder's.

use crate::{
    channel::{MAX_TTL_MS, REDUCERS},
    definition::{MAX_EDGES, MAX_NODES, TRIGGER_TYPES},
    node::{
        HTTP_MAX_TIMEOUT_MS, MAX_NAMES, MAX_PIECES, MAX_QUESTIONS, ON_TIMEOUT, Offer, PROFILES,
        STREAM_MAX_INTERVAL_MS, known_keys,
    },
    plan::MAX_RETRIES,
};

/// What a value may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    Any,
    /// A string with at least and at most so many characters.
    Text(usize, usize),
    WorkflowId,
    NodeId,
    /// A string that does not begin with an underscore.
    Settable,
    Template,
    /// Anything; a string with template marks is a template.
    MaybeTemplate,
    /// A string that people read; with template marks it is a template.
    Words,
    /// A string that people read as it stands.
    Literal,
    /// Any JSON whose strings with template marks are templates.
    Body,
    Expression,
    /// A regular expression.
    Pattern,
    Flag,
    /// `true` alone, and why.
    True(&'static str),
    Number,
    Whole(u64, u64),
    Choice(&'static [&'static str]),
    /// A choice whose case does not count.
    AnyCase(&'static [&'static str]),
    /// The name of a reducer of channels.
    Reducer,
    /// `access` of a channel; the admission of channels reads it.
    Access,
    /// A JSON Schema.
    Schema,
    List(&'static Shape, usize, usize),
    /// An object with members of any name.
    Map(&'static Shape),
    /// A map whose names may not begin with an underscore.
    SettableMap(&'static Shape),
    Object(&'static Members),
    /// One of several objects, told apart by the text of a member.
    Tagged(&'static Tagged),
    /// A node: its `config` depends on its type.
    Node,
}

/// What an object has.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) list: &'static [Member],
    /// Whether it may have others.
    pub(crate) is_open: bool,
    /// One of these must be there.
    pub(crate) one_of: &'static [&'static str],
    /// Members that are refused for a reason of their own.
    pub(crate) refused: &'static [(&'static str, &'static str)],
}

/// A member of an object.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) is_required: bool,
    /// Whether `null` counts as absent.
    pub(crate) may_be_null: bool,
    pub(crate) about: &'static str,
}

/// Objects told apart by the text of a member.
#[derive(Debug)]
pub(crate) struct Tagged {
    pub(crate) tag: &'static str,
    /// Which it is where the tag is absent.
    pub(crate) default: Option<&'static str>,
    pub(crate) variants: &'static [(&'static str, Members)],
}

impl Members {
    pub(crate) fn find(&self, name: &str) -> Option<&'static Member> {
        self.list.iter().find(|member| member.name == name)
    }
}

const fn may(name: &'static str, shape: Shape, about: &'static str) -> Member {
    Member {
        name,
        shape,
        is_required: false,
        may_be_null: false,
        about,
    }
}

impl Member {
    const fn must(self) -> Self {
        Self {
            is_required: true,
            ..self
        }
    }

    const fn or_null(self) -> Self {
        Self {
            may_be_null: true,
            ..self
        }
    }
}

const fn closed(list: &'static [Member]) -> Members {
    Members {
        list,
        is_open: false,
        one_of: &[],
        refused: &[],
    }
}

const fn open(list: &'static [Member]) -> Members {
    Members {
        is_open: true,
        ..closed(list)
    }
}

impl Members {
    const fn with_one_of(self, one_of: &'static [&'static str]) -> Self {
        Self { one_of, ..self }
    }

    const fn refusing(self, refused: &'static [(&'static str, &'static str)]) -> Self {
        Self { refused, ..self }
    }
}

const MAX: usize = usize::MAX;
const TEXT: Shape = Shape::Text(0, MAX);
const NONEMPTY: Shape = Shape::Text(1, MAX);
const COUNT: Shape = Shape::Whole(0, u64::MAX);
const OBJECT: Shape = Shape::Map(&Shape::Any);

/// The document.
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
    may("type", Shape::Any, "Kept; no effect."),
    may(
        "tenantId",
        Shape::Any,
        "The tenant it is registered for; the caller's own.",
    ),
    may("scopeId", Shape::Any, "Kept; no effect."),
    may("slug", Shape::Any, "Kept; no effect."),
    may("groups", Shape::Any, "For editors; no effect."),
    may("defaults", Shape::Any, "Kept; no effect."),
    may("acceptsInheritedArtifacts", Shape::Any, "Kept; no effect."),
    may("createdAt", Shape::Any, "Kept; no effect."),
    may("updatedAt", Shape::Any, "Kept; no effect."),
]);

static METADATA: Members = open(&[
    may(
        "public",
        Shape::Any,
        "false keeps the workflow from being a skill of the A2A agent.",
    ),
    may("tags", Shape::Any, "Tags of the skill."),
    may("examples", Shape::Any, "Example prompts of the skill."),
    may(
        "a2a",
        Shape::Any,
        "inputModes, outputModes and reply (task, status or message).",
    ),
]);

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
]);

const RETRIES: Shape = Shape::Whole(0, MAX_RETRIES as u64);

/// Settings that a node overrides.
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

/// A node, except for what depends on its type.
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
    may("envelopeContract", Shape::Any, "Kept; no effect."),
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

static TRIGGER: Members = open(&[
    may("id", NONEMPTY, "Names the trigger.").must(),
    may(
        "type",
        Shape::Choice(&TRIGGER_TYPES),
        "What it would be started by.",
    )
    .must(),
    may("name", Shape::Any, "For people."),
    may("description", Shape::Any, "For people."),
    may("config", Shape::Any, "Kept; no effect."),
    may("enabled", Shape::Any, "Kept; no effect."),
    may("nodeId", Shape::Any, "Kept; no effect."),
    may("eventType", Shape::Any, "Kept; no effect."),
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
        "Entries of a list that are kept.",
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
    may("options", Shape::Any, "Kept; no effect."),
    may("schemaVersion", Shape::Any, "Kept; no effect."),
    may("compatibleWith", Shape::Any, "Kept; no effect."),
]);

/// Every node type: its id, what it does, and its `config`.
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
    Type {
        config: Shape::Tagged(&INTERRUPT),
        ..node("core.interrupt", "Waits for any answer.", &OPEN)
    },
    node(
        "core.subWorkflow",
        "Runs a child workflow and waits for it.",
        &SUB_WORKFLOW,
    ),
    node("core.http.request", "Calls out through the egress gate.", &HTTP),
    conformance("conformance.start"),
    conformance("core.conformance.side-effect"),
    conformance("conformance.artifact.emit"),
    conformance("conformance.requiresMissing"),
];

/// A node type.
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
pub(crate) fn types(offer: Offer) -> impl Iterator<Item = &'static Type> {
    TYPES
        .iter()
        .filter(move |kind| offer.conformance || !kind.is_conformance)
}

/// Members of a type's `config` that the decoder knows and these tables do not describe.
pub(crate) fn undescribed(kind: &Type) -> impl Iterator<Item = &'static str> + use<> {
    let members: &[Member] = match kind.config {
        Shape::Object(members) => members.list,
        Shape::Tagged(tagged) => tagged.variants.first().map_or(&[], |(_, members)| members.list),
        _ => &[],
    };
    let keys = known_keys(kind.id).unwrap_or_default().iter().copied();
    keys.filter(move |key| members.iter().all(|member| member.name != *key))
}

pub(crate) static OPEN: Members = open(&[]);

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

/// As `data` of an interrupt.
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

static QUESTION: Members = open(&[
    may("id", NONEMPTY, "The name of its answer.").must(),
    may("question", Shape::Literal, "The question.").must(),
    may("schema", Shape::Schema, "A JSON Schema that the answer matches."),
]);

const INTERRUPT_KIND: Member = may("kind", TEXT, "What it waits for.").must();
const INTERRUPT_TITLE: Member = may("title", Shape::MaybeTemplate, "What it is about.");
const INTERRUPT_DESCRIPTION: Member = may("description", Shape::MaybeTemplate, "More about it.");
const INTERRUPT_PROMPT: Member = may("prompt", Shape::MaybeTemplate, "More about it.");

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
            ]),
        ),
        (
            "external-event",
            closed(&[
                INTERRUPT_KIND,
                data(Shape::Object(&EXTERNAL_EVENT)).must(),
                TIMEOUT,
                INTERRUPT_TITLE,
                INTERRUPT_DESCRIPTION,
                INTERRUPT_PROMPT,
            ]),
        ),
        (
            "custom",
            closed(&[
                INTERRUPT_KIND,
                data(Shape::Object(&CUSTOM)).must(),
                TIMEOUT,
                INTERRUPT_TITLE,
                INTERRUPT_DESCRIPTION,
                INTERRUPT_PROMPT,
            ]),
        ),
    ],
};

static EXTERNAL_EVENT: Members = open(&[
    may("eventType", NONEMPTY, "The type of the event.").must(),
    may("correlation", OBJECT, "What an event must match.").must(),
]);

static CUSTOM: Members = open(&[may("customKind", TEXT, "The kind, for whoever answers.").must()]);

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
        "waitForCompletion",
        Shape::True("must be true: this host runs children synchronously"),
        "true alone.",
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
        Shape::Map(&Shape::Template),
        "Header fields; templates.",
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

/// Every reducer that has a name of its own.
pub(crate) const fn reducers() -> &'static [&'static str] {
    &REDUCERS
}
