//! Tests of the kernel's behavior, by feature.
#![expect(
    clippy::panic,
    clippy::print_stdout,
    clippy::needless_pass_by_value,
    reason = "tests fail by panicking, hand over JSON literals and say when they had nothing to check"
)]

#[path = "suite/activities.rs"]
mod activities;
#[path = "suite/agent_acts.rs"]
mod agent_acts;
#[path = "suite/agents.rs"]
mod agents;
#[path = "suite/approvers.rs"]
mod approvers;
#[path = "suite/asking.rs"]
mod asking;
#[path = "suite/authoring.rs"]
mod authoring;
#[path = "suite/awp.rs"]
mod awp;
#[path = "suite/awp_fixtures.rs"]
mod awp_fixtures;
#[path = "suite/awp_history.rs"]
mod awp_history;
#[path = "suite/awp_import.rs"]
mod awp_import;
#[path = "suite/awp_import_branches.rs"]
mod awp_import_branches;
#[path = "suite/awp_import_children.rs"]
mod awp_import_children;
#[path = "suite/awp_import_hostile.rs"]
mod awp_import_hostile;
#[path = "suite/awp_in_process.rs"]
mod awp_in_process;
#[path = "suite/awp_names.rs"]
mod awp_names;
#[path = "suite/awp_parallel.rs"]
mod awp_parallel;
#[path = "suite/bounds.rs"]
mod bounds;
#[path = "suite/calls.rs"]
mod calls;
#[path = "suite/child_sets.rs"]
mod child_sets;
#[path = "suite/children.rs"]
mod children;
#[path = "suite/context_budgets.rs"]
mod context_budgets;
#[path = "suite/conversations.rs"]
mod conversations;
#[path = "suite/definitions.rs"]
mod definitions;
#[path = "suite/ending.rs"]
mod ending;
#[path = "suite/fixtures.rs"]
mod fixtures;
#[path = "suite/flow.rs"]
mod flow;
#[path = "suite/gates.rs"]
mod gates;
#[path = "suite/generated.rs"]
mod generated;
#[path = "suite/injections.rs"]
mod injections;
#[path = "suite/interrupts.rs"]
mod interrupts;
#[path = "suite/leads.rs"]
mod leads;
#[path = "suite/led_injections.rs"]
mod led_injections;
#[path = "suite/loops.rs"]
mod loops;
#[path = "suite/memory.rs"]
mod memory;
#[path = "suite/models.rs"]
mod models;
#[path = "suite/nodes.rs"]
mod nodes;
#[path = "suite/orchestration.rs"]
mod orchestration;
#[path = "suite/pausing.rs"]
mod pausing;
#[path = "suite/properties.rs"]
mod properties;
#[path = "suite/server_tools.rs"]
mod server_tools;
#[path = "suite/shared_budgets.rs"]
mod shared_budgets;
#[path = "suite/stored.rs"]
mod stored;
#[path = "suite/streaming.rs"]
mod streaming;
#[path = "suite/tool_calls.rs"]
mod tool_calls;
#[path = "suite/tools.rs"]
mod tools;
#[path = "suite/trust.rs"]
mod trust;
#[path = "suite/verifiers.rs"]
mod verifiers;
#[path = "suite/warnings.rs"]
mod warnings;
