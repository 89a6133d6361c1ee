//! What this host offers of supervisors and workers.

use serde_json::{Value, json};
use wopr_core::openwop::{MAX_FAN_OUT, MAX_TRANSCRIPT, MAX_TRANSCRIPT_WINDOW, TOKEN_COUNTER};

/// The level of the execution model that holds, with all below it.
const EXECUTION_MODEL: u8 = 6;
/// The highest level that clients know that look for families in `capabilities`.
const OLD_EXECUTION_MODEL: u8 = 4;

/// The families, as they are at the root of the document. `has_models` says whether a model can lead.
pub(super) fn families(host_id: &str, has_models: bool) -> Value {
    let mut families = json!({
        "agents": {
            "supported": true,
            "orchestrator": true,
            "dispatch": true,
            "dispatchMapping": true,
            "subRunAttestation": true,
            "memoryBackends": ["long-term"],
            "reasoning": { "verbosity": "summary", "streaming": true },
        },
        "orchestrator": {
            "supported": true,
            "workerIdInterpretation": "either",
            "fanOutSupported": true,
        },
        "dispatch": {
            "supported": true,
            "models": ["child-run"],
            "fanOutSupported": true,
            "fanOutPolicies": ["sequential", "reject", "parallel"],
            "joinModes": ["wait-all", "quorum", "first", "race"],
            "onChildFailureModes": ["collect", "absorb", "fail-fast"],
            "maxFanOut": MAX_FAN_OUT,
            "perItemInput": true,
            "askUserRoutings": ["auto", "clarification", "conversation"],
        },
        "multiAgent": { "executionModel": {
            "supported": true,
            "version": EXECUTION_MODEL,
            "confidenceEscalationFloor": 0.5,
            "confidenceEscalationInterruptKind": "approval",
            "statefulResume": true,
            // Each write is whole, and of two with the same id the later one counts, by the times in the log. Children of
            // one parent do not wait for each other.
            "crossChildMemoryConcurrency": "advisory",
            "transcriptWindow": MAX_TRANSCRIPT_WINDOW,
            "verifier": { "supported": true, "gating": true },
            "crossHostCausation": {
                "supported": true,
                "hostId": host_id,
                "ancestryEndpointSupported": true,
            },
            // A replay takes every reply from its source. Only the scripted model of conformance mode is asked again, so
            // elsewhere no reply can be another one.
            "replayDeterminism": {
                "supported": true,
                "llmCacheKeyRecipe": "spec-rfc-0041",
                "refusalDivergenceEmission": true,
            },
        } },
    });
    // A supervisor that only follows a plan reads no transcript.
    if has_models {
        families["multiAgent"]["executionModel"]["contextBudget"] = json!({
            "transcriptTokenBudget": MAX_TRANSCRIPT,
            "tokenCounter": TOKEN_COUNTER,
            "summarization": { "supported": true, "strategy": "recursive", "keepLastTurns": 1 },
        });
    }
    families
}

/// Changes the families for clients that look for them in `capabilities`.
pub(super) fn mirror(families: &mut Value) {
    families["multiAgent"]["executionModel"]["version"] = EXECUTION_MODEL.min(OLD_EXECUTION_MODEL).into();
}
