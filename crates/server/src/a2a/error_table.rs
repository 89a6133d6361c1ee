//! The A2A error table, checked against the answers of every binding in both error profiles.

use http::StatusCode;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use wopr_wire::a2a::{
    error::{A2aError, Kind},
    method::Version,
    protobuf::status_reason,
    rpc::{self, Id},
};

use super::{error::Error, grpc::status, transport};
use crate::{
    Host,
    config::{Config, ErrorProfile, Key, Secret, StoreUrl},
};

/// The error, its JSON-RPC code, its reason, and for each profile (1.0.1, then 1.0.0) the HTTP status with
/// its name and the gRPC code.
type Row = (A2aError, i64, &'static str, [(u16, &'static str, i32); 2]);

fn rows() -> Vec<Row> {
    let id = || "run_0123456789abcdef".to_owned();
    let detail = || "why".to_owned();
    let same = |row: (u16, &'static str, i32)| [row, row];
    let precondition = || same((400, "FAILED_PRECONDITION", 9));
    let argument = || same((400, "INVALID_ARGUMENT", 3));
    // 1.0.0 used `UNIMPLEMENTED` where 1.0.1 uses `FAILED_PRECONDITION`.
    let unimplemented = || [(400, "FAILED_PRECONDITION", 9), (400, "UNIMPLEMENTED", 12)];
    vec![
        (
            A2aError::TaskNotFound { task_id: id() },
            -32001,
            "TASK_NOT_FOUND",
            same((404, "NOT_FOUND", 5)),
        ),
        (
            A2aError::TaskNotCancelable { task_id: id() },
            -32002,
            "TASK_NOT_CANCELABLE",
            [(400, "FAILED_PRECONDITION", 9), (409, "FAILED_PRECONDITION", 9)],
        ),
        (
            A2aError::PushNotificationNotSupported,
            -32003,
            "PUSH_NOTIFICATION_NOT_SUPPORTED",
            unimplemented(),
        ),
        (
            A2aError::UnsupportedOperation { detail: detail() },
            -32004,
            "UNSUPPORTED_OPERATION",
            unimplemented(),
        ),
        (
            A2aError::ContentTypeNotSupported { detail: detail() },
            -32005,
            "CONTENT_TYPE_NOT_SUPPORTED",
            [(400, "INVALID_ARGUMENT", 3), (415, "INVALID_ARGUMENT", 3)],
        ),
        (
            A2aError::InvalidAgentResponse { detail: detail() },
            -32006,
            "INVALID_AGENT_RESPONSE",
            [(500, "INTERNAL", 13), (502, "INTERNAL", 13)],
        ),
        (
            A2aError::ExtendedAgentCardNotConfigured,
            -32007,
            "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
            precondition(),
        ),
        (
            A2aError::ExtensionSupportRequired {
                uri: "urn:x".to_owned(),
            },
            -32008,
            "EXTENSION_SUPPORT_REQUIRED",
            precondition(),
        ),
        (
            A2aError::VersionNotSupported {
                requested: "2.0".to_owned(),
                supported: vec!["0.3".to_owned(), "1.0".to_owned()],
            },
            -32009,
            "VERSION_NOT_SUPPORTED",
            unimplemented(),
        ),
        (A2aError::Parse, -32700, "PARSE_ERROR", argument()),
        (
            A2aError::InvalidRequest { detail: detail() },
            -32600,
            "INVALID_REQUEST",
            argument(),
        ),
        (
            A2aError::MethodNotFound {
                method: "x".to_owned(),
            },
            -32601,
            "METHOD_NOT_FOUND",
            same((404, "UNIMPLEMENTED", 12)),
        ),
        (
            A2aError::invalid_param("message.parts", "are empty"),
            -32602,
            "INVALID_PARAMS",
            argument(),
        ),
        (
            A2aError::Internal,
            -32603,
            "INTERNAL_ERROR",
            same((500, "INTERNAL", 13)),
        ),
    ]
}

async fn host(profile: ErrorProfile) -> std::sync::Arc<Host> {
    let mut config = Config {
        store: StoreUrl::Memory,
        ..Config::default()
    };
    config.auth.keys = vec![Key {
        id: "k".to_owned(),
        secret: Some(Secret::new("secret-0123456789")),
        secret_sha256: None,
        tenant: serde_json::from_value(json!("default")).unwrap(),
        principal: None,
        scopes: serde_json::from_value(json!(["*"])).unwrap(),
        roles: Vec::new(),
        groups: Vec::new(),
    }];
    config.a2a.error_profile = profile;
    Host::open(config).await.unwrap()
}

/// Checks details in which a reason comes first.
fn check_reason(details: &Value, reason: &str) {
    let info = &details[0];
    assert_eq!(
        info["@type"], "type.googleapis.com/google.rpc.ErrorInfo",
        "{details}"
    );
    assert_eq!(
        (&info["reason"], &info["domain"]),
        (&json!(reason), &json!("a2a-protocol.org"))
    );
    let metadata = info.get("metadata").and_then(Value::as_object);
    let metadata = metadata.into_iter().flat_map(|metadata| metadata.values());
    assert!(metadata.into_iter().all(Value::is_string), "{details}");
}

/// Checks the violated field of an invalid request.
fn check_violation(detail: &Value) {
    assert_eq!(detail["@type"], "type.googleapis.com/google.rpc.BadRequest");
    assert_eq!(detail["fieldViolations"][0]["field"], "message.parts");
}

#[test]
fn table_covers_every_kind() {
    for kind in Kind::ALL {
        let n = rows().iter().filter(|(error, ..)| error.kind() == *kind).count();
        assert_eq!(n, 1, "{kind:?}");
    }
}

#[tokio::test]
async fn every_binding_encodes_every_error_by_profile() {
    for (index, profile) in [ErrorProfile::V1_0_1, ErrorProfile::V1_0_0]
        .into_iter()
        .enumerate()
    {
        let host = host(profile).await;
        for (error, code, reason, statuses) in rows() {
            let (http, name, grpc) = statuses[index];
            let about = format!("{reason} {profile:?}");

            let response = transport::error_response(&host, &error, Version::V1_0);
            assert_eq!(response.status(), StatusCode::from_u16(http).unwrap(), "{about}");
            assert_eq!(response.headers()["content-type"], "application/json");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            let shown = &body["error"];
            assert_eq!(
                (&shown["code"], &shown["status"]),
                (&json!(http), &json!(name)),
                "{about}"
            );
            assert_eq!(shown["message"], error.to_string());
            check_reason(&shown["details"], reason);
            if error.kind() == Kind::InvalidParams {
                check_violation(&shown["details"][1]);
            }

            // In 0.3 the code is the same, and the text begins with the error's 0.3 name.
            let old = status::of(&host, &Error::A2a(error.clone()), Version::V0_3);
            assert_eq!(old.code() as i32, grpc, "{about}");
            assert_eq!(old.message(), format!("{}: {error}", error.old_name()));
            let status = status::of(&host, &Error::A2a(error.clone()), Version::V1_0);
            assert_eq!(status.code() as i32, grpc, "{about}");
            assert_eq!(status.message(), error.to_string());
            assert_eq!(
                status_reason(status.details()).as_deref(),
                Some(reason),
                "{about}"
            );

            for version in [Version::V1_0, Version::V0_3] {
                let envelope = rpc::encode_error(&Id::Int(7), &error, version);
                let envelope: Value = serde_json::from_slice(&envelope).unwrap();
                assert_eq!(
                    (&envelope["jsonrpc"], &envelope["id"]),
                    (&json!("2.0"), &json!(7))
                );
                // 0.3 does not define the last two A2A error codes.
                let told = match (version, code) {
                    (Version::V0_3, -32008 | -32009) => error.code_in(Version::V0_3),
                    _ => code,
                };
                assert_eq!(envelope["error"]["code"], told, "{about}");
                assert!((-32007..=-32001).contains(&told) || told <= -32600 || version == Version::V1_0);
                // The code of JSON-RPC says what a reason would.
                if version == Version::V1_0 {
                    let data = &envelope["error"]["data"];
                    match error.kind() {
                        Kind::InvalidParams => check_violation(&data[0]),
                        _ if (-32009..=-32001).contains(&code) => check_reason(data, reason),
                        _ => assert!(data.is_null(), "{data}"),
                    }
                }
            }
        }
        host.close().await;
    }
}
