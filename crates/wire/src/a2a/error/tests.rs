//! The error table, and the error representation in each version.

use super::*;

#[test]
fn profiles_differ_where_the_revisions_differ() {
    let differing: Vec<_> = Kind::ALL
        .iter()
        .map(|kind| {
            let [new, old] = [ErrorProfile::V1_0_1, ErrorProfile::V1_0_0]
                .map(|profile| (kind.http_status(profile), kind.grpc_status(profile).name()));
            (kind.code(), new, old)
        })
        .filter(|(_, new, old)| new != old)
        .collect();
    let precondition = (400, "FAILED_PRECONDITION");
    let unimplemented = (400, "UNIMPLEMENTED");
    assert_eq!(
        differing,
        [
            (-32002, precondition, (409, "FAILED_PRECONDITION")),
            (-32003, precondition, unimplemented),
            (-32004, precondition, unimplemented),
            (-32005, (400, "INVALID_ARGUMENT"), (415, "INVALID_ARGUMENT")),
            (-32006, (500, "INTERNAL"), (502, "INTERNAL")),
            (-32009, precondition, unimplemented),
        ]
    );
}

#[test]
fn codes_and_reasons_resolve_to_their_row() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_code(kind.code()), Some(*kind));
        assert_eq!(Kind::from_reason(kind.reason()), Some(*kind));
    }
    assert_eq!(Kind::from_code(-32010), None);
}

#[test]
fn details_are_an_array_of_typed_objects() {
    assert_eq!(
        A2aError::task_not_found("t-1").data().unwrap(),
        json!([{
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "TASK_NOT_FOUND",
            "domain": "a2a-protocol.org",
            "metadata": { "taskId": "t-1" },
        }])
    );
    assert_eq!(
        A2aError::invalid_param("message.role", "is required")
            .data()
            .unwrap(),
        json!([{
            "@type": "type.googleapis.com/google.rpc.BadRequest",
            "fieldViolations": [{ "field": "message.role", "description": "is required" }],
        }])
    );
    assert_eq!(A2aError::Internal.data(), None);
}

#[test]
fn http_body_is_a_status() {
    assert_eq!(
        A2aError::unsupported("the task has ended").rest_body(Version::V1_0, ErrorProfile::V1_0_0),
        json!({ "error": {
            "code": 400,
            "status": "UNIMPLEMENTED",
            "message": "unsupported operation: the task has ended",
            "details": [{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "UNSUPPORTED_OPERATION",
                "domain": "a2a-protocol.org",
            }],
        }})
    );
    // Errors that JSON-RPC tells by their code alone have a reason here.
    let parse = A2aError::Parse.rest_body(Version::V1_0, ErrorProfile::V1_0_1);
    assert_eq!(parse["error"]["details"][0]["reason"], A2aError::Parse.reason());
    let invalid = A2aError::invalid_param("x", "is wrong").rest_body(Version::V1_0, ErrorProfile::V1_0_1);
    assert_eq!(invalid["error"]["details"][0]["reason"], "INVALID_PARAMS");
    assert_eq!(invalid["error"]["details"][1]["fieldViolations"][0]["field"], "x");
}

#[test]
fn http_body_for_0_3_contains_the_json_rpc_code() {
    let error = A2aError::unsupported("the task has ended");
    let new = error.rest_body(Version::V1_0, ErrorProfile::V1_0_1);
    let old = error.rest_body(Version::V0_3, ErrorProfile::V1_0_1);
    assert_eq!(old["error"], new["error"]);
    assert_eq!(
        (&old["code"], &old["message"]),
        (&json!(-32004), &old["error"]["message"])
    );
    assert_eq!(old["type"], "UnsupportedOperationError");
    assert_eq!(new.as_object().unwrap().len(), 1);
}

#[test]
fn grpc_message_for_0_3_starts_with_the_name() {
    let error = A2aError::task_not_found("t");
    assert_eq!(error.grpc_message(Version::V1_0), "task not found");
    assert_eq!(
        error.grpc_message(Version::V0_3),
        "TaskNotFoundError: task not found"
    );
}

#[test]
fn clients_of_0_3_get_only_codes_of_0_3() {
    let required = A2aError::ExtensionSupportRequired { uri: "urn:x".into() };
    assert_eq!(required.code_in(Version::V1_0), -32008);
    assert_eq!(required.code_in(Version::V0_3), -32004);
    assert_eq!(
        A2aError::version_not_supported("9.9").code_in(Version::V0_3),
        -32004
    );
    assert_eq!(A2aError::Parse.code_in(Version::V0_3), -32700);
}
