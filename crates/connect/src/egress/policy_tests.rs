//! The hostile-url tables.

use super::*;

/// What a client-supplied text comes to: parsing is part of the judgement.
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

const LOOPBACK: Result<(), Refusal> = Err(Refusal::Address(Reason::Loopback));
const LINK_LOCAL: Result<(), Refusal> = Err(Refusal::Address(Reason::LinkLocal));
const PRIVATE: Result<(), Refusal> = Err(Refusal::Address(Reason::Private));
const UNSPECIFIED: Result<(), Refusal> = Err(Refusal::Address(Reason::Unspecified));
const MALFORMED: Result<(), Refusal> = Err(Refusal::Malformed);
const SCHEME: Result<(), Refusal> = Err(Refusal::Scheme);
const LOCAL_NAME: Result<(), Refusal> = Err(Refusal::LocalName);
const USER_INFO: Result<(), Refusal> = Err(Refusal::UserInfo);
const HOST: Result<(), Refusal> = Err(Refusal::Host);

#[test]
fn public_https_urls_register_offline() {
    for text in [
        "https://example.com",
        "https://example.com/hook?x=1#f",
        "https://EXAMPLE.com./",
        "https://example.com:8443/",
        "https://example.com:443",
        "https://xn--bcher-kva.example/",
        "https://bücher.example/",
        "https://fcbank.com/",
        "https://fd00.example/",
        "https://fe80.example/",
        "https://127.0.0.1.nip.io/",
        "https://localhost.example.com/",
        "https://notlocalhost/",
        "https://metadata.example.com/",
        "https://8.8.8.8/",
        "https://[2606:4700:4700::1111]/",
        "https://134744072/",
        "https://[::ffff:8.8.8.8]/",
        "https:example.com",
        "https:\\\\example.com\\hook",
        " https://example.com ",
    ] {
        assert_eq!(register(&Policy::default(), text), Ok(()), "{text}");
    }
}

#[test]
fn spellings_of_refused_addresses_do_not_hide_them() {
    check(
        "",
        &[
            ("https://127.0.0.1/", LOOPBACK),
            ("https://127.0.0.1:8443/", LOOPBACK),
            ("http://127.0.0.1/", LOOPBACK),
            ("http://2130706433/", LOOPBACK),
            ("https://2130706433", LOOPBACK),
            ("https://017700000001/", LOOPBACK),
            ("https://0177.0.0.1/", LOOPBACK),
            ("https://0177.0.0.01/", LOOPBACK),
            ("https://0x7f.1/", LOOPBACK),
            ("https://0x7f000001/", LOOPBACK),
            ("https://0X7F.0x0.0x0.0x1/", LOOPBACK),
            ("https://127.0.0.0x/", LOOPBACK),
            ("https://127.0.0.0x1/", LOOPBACK),
            ("https://127.1/", LOOPBACK),
            ("https://127.0.1/", LOOPBACK),
            ("https://127.0.0.1./", LOOPBACK),
            ("https://127.1./", LOOPBACK),
            ("https://%31%32%37.0.0.1/", LOOPBACK),
            ("https://127%2e0%2e0%2e1/", LOOPBACK),
            ("https://１２７.0.0.1/", LOOPBACK),
            ("https://127。0。0。1/", LOOPBACK),
            ("https://①②⑦.0.0.1/", LOOPBACK),
            ("https:127.0.0.1", LOOPBACK),
            ("https:/127.0.0.1/", LOOPBACK),
            ("https:\\\\127.0.0.1\\", LOOPBACK),
            ("https:////127.0.0.1/", LOOPBACK),
            ("ht\ntps://127.0.\t0.1/", LOOPBACK),
            ("HTTPS://127.0.0.1/", LOOPBACK),
            ("https://0/", UNSPECIFIED),
            ("https://0.0.0.0/", UNSPECIFIED),
            ("https://0x0/", UNSPECIFIED),
            ("https://10.1.2.3/", PRIVATE),
            ("https://012.1.2.3/", PRIVATE),
            ("https://167772161/", PRIVATE),
            ("https://172.16.0.1/", PRIVATE),
            ("https://172.31.255.254/", PRIVATE),
            ("https://192.168.0.1/", PRIVATE),
            ("https://3232235521/", PRIVATE),
            ("https://169.254.169.254/latest/meta-data/", LINK_LOCAL),
            ("https://2852039166/latest/meta-data/", LINK_LOCAL),
            ("https://0xa9fea9fe/", LINK_LOCAL),
            ("https://0251.0376.0251.0376/", LINK_LOCAL),
            ("https://169.254.43518/", LINK_LOCAL),
            ("https://100.64.0.1/", Err(Refusal::Address(Reason::CarrierGrade))),
            ("https://192.0.0.192/", Err(Refusal::Address(Reason::Protocol))),
            ("https://198.18.0.1/", Err(Refusal::Address(Reason::Benchmarking))),
            (
                "https://203.0.113.1/",
                Err(Refusal::Address(Reason::Documentation)),
            ),
            ("https://224.0.0.1/", Err(Refusal::Address(Reason::Multicast))),
            (
                "https://255.255.255.255/",
                Err(Refusal::Address(Reason::Broadcast)),
            ),
            ("https://4294967295/", Err(Refusal::Address(Reason::Broadcast))),
            ("https://[::1]/", LOOPBACK),
            ("https://[::1]:8443/", LOOPBACK),
            ("https://[0:0:0:0:0:0:0:1]/", LOOPBACK),
            ("https://[0000::0001]/", LOOPBACK),
            ("https://[::]/", UNSPECIFIED),
            ("https://[::ffff:127.0.0.1]/", LOOPBACK),
            ("https://[::ffff:7f00:1]/", LOOPBACK),
            ("https://[::FFFF:A00:5]/", PRIVATE),
            ("https://[0:0:0:0:0:ffff:a9fe:a9fe]/", LINK_LOCAL),
            (
                "https://[::127.0.0.1]/",
                Err(Refusal::Address(Reason::Ipv4Compatible)),
            ),
            ("https://[64:ff9b::7f00:1]/", LOOPBACK),
            ("https://[64:ff9b::169.254.169.254]/", LINK_LOCAL),
            (
                "https://[64:ff9b:1::7f00:1]/",
                Err(Refusal::Address(Reason::LocalNat64)),
            ),
            (
                "https://[2002:7f00:1::]/",
                Err(Refusal::Address(Reason::SixToFour)),
            ),
            (
                "https://[2001:0:0:0:0:0:80ff:fffe]/",
                Err(Refusal::Address(Reason::Teredo)),
            ),
            (
                "https://[2001:db8::1]/",
                Err(Refusal::Address(Reason::Documentation)),
            ),
            ("https://[fc00::1]/", Err(Refusal::Address(Reason::UniqueLocal))),
            (
                "https://[fd00:ec2::254]/",
                Err(Refusal::Address(Reason::UniqueLocal)),
            ),
            ("https://[fe80::1]/", LINK_LOCAL),
            ("https://[febf::1]/", LINK_LOCAL),
            ("https://[ff02::1]/", Err(Refusal::Address(Reason::Multicast))),
        ],
    );
}

#[test]
fn names_of_this_machine_and_its_cloud_are_refused() {
    check(
        "",
        &[
            ("https://localhost/", LOCAL_NAME),
            ("http://localhost/", LOCAL_NAME),
            ("https://localhost:8443/", LOCAL_NAME),
            ("https://LOCALHOST/", LOCAL_NAME),
            ("https://localhost./", LOCAL_NAME),
            ("https://lo%63alhost/", LOCAL_NAME),
            ("https://ｌｏｃａｌｈｏｓｔ/", LOCAL_NAME),
            ("https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", LOCAL_NAME),
            ("https://a.localhost/", LOCAL_NAME),
            ("https://a.b.localhost./", LOCAL_NAME),
            ("https://localhost.localdomain/", LOCAL_NAME),
            ("https://ip6-localhost/", LOCAL_NAME),
            ("https://ip6-loopback/", LOCAL_NAME),
            ("https://metadata/", LOCAL_NAME),
            ("https://Metadata./computeMetadata/v1/", LOCAL_NAME),
            ("https://metadata.google.internal/computeMetadata/v1/", LOCAL_NAME),
            ("https://metadata.google.internal./", LOCAL_NAME),
            ("https://metadata.goog/", LOCAL_NAME),
            ("https://instance-data/", LOCAL_NAME),
        ],
    );
}

#[test]
fn other_schemes_credentials_and_broken_hosts_are_refused() {
    check(
        "0.0.0.0/0,::/0",
        &[
            ("ftp://example.com/", SCHEME),
            ("file:///etc/passwd", SCHEME),
            ("gopher://127.0.0.1:6379/_x", SCHEME),
            ("ws://example.com/", SCHEME),
            ("wss://example.com/", SCHEME),
            ("javascript:alert(1)", SCHEME),
            ("data:text/plain,x", SCHEME),
            ("blob:https://example.com/1", SCHEME),
            ("unix:/var/run/docker.sock", SCHEME),
            ("dict://127.0.0.1:11211/", SCHEME),
            ("ldap://127.0.0.1/", SCHEME),
            ("localhost:8080", SCHEME),
            ("view-source:https://example.com", SCHEME),
            ("https://user@example.com/", USER_INFO),
            ("https://user:pw@example.com/", USER_INFO),
            ("https://:pw@example.com/", USER_INFO),
            ("https://example.com@127.0.0.1/", USER_INFO),
            ("https://127.0.0.1:80@example.com/", USER_INFO),
            ("https://example.com%40@127.0.0.1/", USER_INFO),
            ("https://example.com:0/", Err(Refusal::Port)),
            ("https://example.com:00/", Err(Refusal::Port)),
            ("https://example..com/", HOST),
            ("https://.example.com/", HOST),
            ("https://example.com../", HOST),
            ("https://127.0.0.1../", HOST),
            ("https://./", HOST),
            ("", MALFORMED),
            ("/hook", MALFORMED),
            ("//example.com/hook", MALFORMED),
            ("example.com", MALFORMED),
            ("127.0.0.1", MALFORMED),
            ("https://", MALFORMED),
            ("https:///", MALFORMED),
            ("https://:443/", MALFORMED),
            ("https://example.com:99999/", MALFORMED),
            ("https://example.com:-1/", MALFORMED),
            ("https://exa mple.com/", MALFORMED),
            ("https://exam%00ple.com/", MALFORMED),
            ("https://example.com%2f@evil/x y", USER_INFO),
            ("https://a<b/", MALFORMED),
            ("https://a|b/", MALFORMED),
            ("https://a^b/", MALFORMED),
            ("https://[::1/", MALFORMED),
            ("https://::1/", MALFORMED),
            ("https://[::1%25lo]/", MALFORMED),
            ("https://[::1%lo]/", MALFORMED),
            ("https://[fe80::1%25eth0]/", MALFORMED),
            ("https://[fe80::1%eth0]/", MALFORMED),
            ("https://[v1.fe80::a]/", MALFORMED),
            ("https://256.256.256.256/", MALFORMED),
            ("https://1.2.3.4.5/", MALFORMED),
            ("https://4294967296/", MALFORMED),
            ("https://0x1ffffffff/", MALFORMED),
            ("https://08.0.0.1/", MALFORMED),
        ],
    );
    let long = format!("https://{}example.com/", "a.".repeat(130));
    assert_eq!(register(&Policy::default(), &long), HOST);
}

#[test]
fn plain_http_needs_the_allow_list() {
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
    // `localhost` may lead to either loopback, so both have to be allowed.
    check(
        "127.0.0.0/8",
        &[("http://localhost/", LOCAL_NAME), ("http://127.0.0.1/", Ok(()))],
    );
}

#[test]
fn every_answer_of_a_resolver_counts() {
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
fn lists_are_read_with_spaces_and_empty_items() {
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
