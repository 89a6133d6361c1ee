//! The effect of the allow-list. `tests/suite/hostile.rs` tests hostile URLs through the whole gate.

use super::*;

/// Checks text from a client, including the parser.
fn register(policy: &Policy, text: &str) -> Result<(), Refusal> {
    policy.check_registration(&Url::parse(text).map_err(|_| Refusal::Malformed)?)
}

fn check(allow: &str, rows: &[(&str, Result<(), Refusal>)]) {
    let policy: Policy = allow.parse().unwrap();
    for (text, expected) in rows {
        assert_eq!(
            register(&policy, text),
            *expected,
            "{text} with {allow:?} allowed"
        );
    }
}

const LINK_LOCAL: Result<(), Refusal> = Err(Refusal::Address(Reason::LinkLocal));
const PRIVATE: Result<(), Refusal> = Err(Refusal::Address(Reason::Private));
const SCHEME: Result<(), Refusal> = Err(Refusal::Scheme);
const LOCAL_NAME: Result<(), Refusal> = Err(Refusal::LocalName);
const USER_INFO: Result<(), Refusal> = Err(Refusal::UserInfo);

#[test]
fn plain_http_requires_the_allow_list() {
    let plain = Err(Refusal::PlainHttp);
    check(
        "",
        &[
            ("http://example.com/", plain),
            ("http://example.com:443/", plain),
            ("http://8.8.8.8/", plain),
            ("http://[2606:4700::1]/", plain),
        ],
    );
    check(
        "127.0.0.0/8, ::1, 203.0.113.9",
        &[
            ("http://127.0.0.1:9999/hook", Ok(())),
            ("https://127.0.0.1/", Ok(())),
            ("http://0x7f.1/", Ok(())),
            ("http://[::1]:80/", Ok(())),
            ("http://[::ffff:127.0.0.1]/", Ok(())),
            ("http://203.0.113.9/", Ok(())),
            (
                "http://203.0.113.8/",
                Err(Refusal::Address(Reason::Documentation)),
            ),
            ("http://localhost:9999/", Ok(())),
            ("https://a.localhost/", Ok(())),
            ("http://metadata/", LOCAL_NAME),
            ("http://8.8.8.8/", plain),
            ("http://example.com/", plain),
            ("https://example.com/", Ok(())),
            ("http://10.0.0.1/", PRIVATE),
            ("https://169.254.169.254/", LINK_LOCAL),
            ("http://user@127.0.0.1/", USER_INFO),
            ("ftp://127.0.0.1/", SCHEME),
        ],
    );
    // `localhost` may resolve to either loopback address, so the allow-list must contain both.
    check(
        "127.0.0.0/8",
        &[("http://localhost/", LOCAL_NAME), ("http://127.0.0.1/", Ok(()))],
    );
}

#[test]
fn all_resolved_addresses_are_checked() {
    fn check(allow: &str, transport: Transport, name: &str, answers: &[&str], expected: Result<(), Refusal>) {
        let policy: Policy = allow.parse().unwrap();
        let addresses: Vec<IpAddr> = answers.iter().map(|a| a.parse().unwrap()).collect();
        assert_eq!(
            policy.check_resolved(transport, name, &addresses),
            expected,
            "{name} {answers:?} {allow:?}"
        );
    }
    use Transport::{Plain, Tls};
    let plain = Err(Refusal::PlainHttp);

    check("", Tls, "a.test", &["8.8.8.8"], Ok(()));
    check("", Tls, "a.test", &["8.8.8.8", "2606:4700::1", "1.1.1.1"], Ok(()));
    check("", Tls, "a.test", &[], Err(Refusal::NoAddress));
    check("0.0.0.0/0,::/0", Tls, "a.test", &[], Err(Refusal::NoAddress));
    check("", Tls, "a.test", &["8.8.8.8", "10.0.0.1"], PRIVATE);
    check("", Tls, "a.test", &["10.0.0.1", "8.8.8.8"], PRIVATE);
    check(
        "",
        Tls,
        "a.test",
        &["8.8.8.8", "::ffff:169.254.169.254"],
        LINK_LOCAL,
    );
    check("", Tls, "a.test", &["64:ff9b::8.8.8.8"], Ok(()));
    check("", Tls, "a.test", &["64:ff9b::a00:1"], PRIVATE);
    check("", Tls, "localhost", &["8.8.8.8"], LOCAL_NAME);
    check("", Plain, "a.test", &["8.8.8.8"], plain);

    check("10.0.0.0/8", Tls, "a.test", &["10.0.0.1"], Ok(()));
    check("10.0.0.0/8", Plain, "a.test", &["10.0.0.1", "10.9.9.9"], Ok(()));
    check("10.0.0.0/8", Plain, "a.test", &["10.0.0.1", "8.8.8.8"], plain);
    check("10.0.0.0/8", Tls, "a.test", &["10.0.0.1", "8.8.8.8"], PRIVATE);
    check("10.0.0.0/8", Tls, "a.test", &["10.0.0.1", "127.0.0.1"], PRIVATE);
    check(
        "127.0.0.0/8,::1",
        Plain,
        "localhost",
        &["127.0.0.1", "::1"],
        Ok(()),
    );
    check(
        "127.0.0.0/8",
        Plain,
        "localhost",
        &["127.0.0.1", "::1"],
        LOCAL_NAME,
    );
    check(
        "169.254.0.0/16",
        Plain,
        "metadata.google.internal",
        &["169.254.169.254"],
        Ok(()),
    );
}

#[test]
fn spaces_and_empty_items_are_ignored() {
    assert_eq!("".parse::<Policy>(), Ok(Policy::default()));
    assert_eq!(" , ,".parse::<Policy>(), Ok(Policy::default()));
    let policy: Policy = " 127.0.0.0/8 ,::1,, 10.1.2.3 ".parse().unwrap();
    assert_eq!(
        format!("{:?}", policy.allow),
        "[127.0.0.0/8, ::1/128, 10.1.2.3/32]"
    );
    assert!("127.0.0.0/8;::1".parse::<Policy>().is_err());
    assert!("all".parse::<Policy>().is_err());
}
