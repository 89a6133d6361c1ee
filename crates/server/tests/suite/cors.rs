//! Calls from web pages: allowed origins and the CORS headers they get.

use crate::{
    client::{Call, Reply},
    server::Server,
};

const PAGE: &str = "https://app.example.com";

async fn preflight(server: &Server, path: &str, origin: &str) -> Reply {
    server
        .call("OPTIONS", path)
        .header("origin", origin)
        .header("access-control-request-method", "POST")
        .header(
            "access-control-request-headers",
            "authorization,content-type,a2a-version",
        )
        .send()
        .await
}

#[tokio::test]
async fn a_listed_origin_may_call_every_face() {
    let server = Server::start_with(|config| {
        config.server.cors_origins = vec![PAGE.parse().unwrap(), "http://localhost:5173".parse().unwrap()];
    })
    .await;
    for path in ["/v1/runs", "/a2a", "/a2a/message:send", "/v1/message:send"] {
        for origin in [PAGE, "http://localhost:5173"] {
            let asked = preflight(&server, path, origin).await;
            assert_eq!(asked.status, 200, "{path}");
            assert_eq!(
                asked.header("access-control-allow-origin"),
                Some(origin),
                "{path}"
            );
            let methods = asked.header("access-control-allow-methods").unwrap();
            assert!(
                methods.contains("POST") && methods.contains("DELETE"),
                "{methods}"
            );
            let headers = asked.header("access-control-allow-headers").unwrap();
            assert!(
                headers.contains("authorization") && headers.contains("a2a-version"),
                "{headers}"
            );
            assert_eq!(asked.header("access-control-allow-credentials"), None);
        }
        let other = preflight(&server, path, "https://app.example.com.evil.test").await;
        assert_eq!(other.header("access-control-allow-origin"), None, "{path}");
    }
    // Pages may read responses, errors included.
    for (call, wanted) in [
        (server.get("/v1/runs"), 200),
        (Call::new(server.address, "GET", "/v1/runs"), 401),
    ] {
        let reply = call.header("origin", PAGE).send().await;
        assert_eq!(reply.status, wanted);
        assert_eq!(reply.header("access-control-allow-origin"), Some(PAGE));
        let exposed = reply.header("access-control-expose-headers").unwrap();
        assert!(exposed.contains("www-authenticate"), "{exposed}");
    }
    server.stop().await;
}

#[tokio::test]
async fn wildcard_allows_every_origin() {
    let server = Server::start_with(|config| config.server.cors_origins = vec!["*".parse().unwrap()]).await;
    let asked = preflight(&server, "/a2a", "https://whoever.test").await;
    assert_eq!(asked.header("access-control-allow-origin"), Some("*"));
    server.stop().await;
}

#[tokio::test]
async fn no_page_may_call_by_default() {
    let server = Server::start().await;
    let asked = preflight(&server, "/v1/runs", PAGE).await;
    assert_eq!(asked.header("access-control-allow-origin"), None);
    server.stop().await;
}

#[test]
fn origins_are_normalized_as_browsers_do() {
    use wopr_server::config::WebOrigin;
    for text in [
        "*",
        PAGE,
        "http://localhost:5173",
        "http://[::1]:8080",
        "https://xn--bcher-kva.example",
    ] {
        assert_eq!(text.parse::<WebOrigin>().unwrap().to_string(), text);
    }
    assert_eq!(
        "https://app.example.com/"
            .parse::<WebOrigin>()
            .unwrap()
            .to_string(),
        PAGE
    );
    for text in [
        "",
        "app.example.com",
        "https://",
        "https://app.example.com/path",
        "https://user@app.example.com",
        "https://app.example.com?x",
        "https://app.example.com#x",
        "null",
        "file:///x",
        "https://*.example.com",
    ] {
        assert!(text.parse::<WebOrigin>().is_err(), "{text}");
    }
}
