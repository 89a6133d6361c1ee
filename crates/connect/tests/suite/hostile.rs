//! Hostile URLs: the result of registering each one, and the addresses that a delivery to it dials.
//!
//! Every row goes through the whole gate, with a fake resolver and a dialer that records addresses without
//! connecting. Each row is checked at registration and at delivery, because a URL may have been registered
//! under another policy, or its name may resolve to another address later.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use http::Method;
use url::Url;
use wopr_connect::egress::{
    Channel, Class, Dial, EgressError, Gate, Limits, Network, Policy, Reason, Refusal, Request, Resolver,
    Seam, classify,
};

use crate::peer::{Answers, limits, trusting_nobody};

/// Resolves every name to the same addresses.
#[derive(Debug)]
struct Always(Vec<IpAddr>);

#[async_trait]
impl Resolver for Always {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Ok(self.0.clone())
    }
}

/// Records the addresses to dial without connecting.
#[derive(Debug, Default)]
pub(crate) struct Notes(Mutex<Vec<SocketAddr>>);

impl Notes {
    pub(crate) fn take(&self) -> Vec<String> {
        let taken = std::mem::take(&mut *self.0.lock().unwrap());
        taken.iter().map(ToString::to_string).collect()
    }
}

#[async_trait]
impl Dial for Notes {
    async fn dial(&self, address: SocketAddr) -> io::Result<Box<dyn Channel>> {
        self.0.lock().unwrap().push(address);
        Err(io::ErrorKind::ConnectionRefused.into())
    }
}

/// The expected result of a delivery.
#[derive(Debug, Clone, Copy)]
enum Use {
    /// Dials these addresses, in this order.
    Dials(&'static [&'static str]),
    /// Refused before anything is dialed.
    Refused(Refusal),
    /// The text is not a URL.
    Unreadable,
}
use Use::{Dials, Unreadable};

/// The URL, the expected result of registering it, and of delivering to it.
type Row = (&'static str, Result<(), Refusal>, Use);

const fn refused(text: &'static str, refusal: Refusal) -> Row {
    (text, Err(refusal), Use::Refused(refusal))
}

const fn at(text: &'static str, reason: Reason) -> Row {
    refused(text, Refusal::Address(reason))
}

const fn unreadable(text: &'static str) -> Row {
    (text, Err(Refusal::Malformed), Unreadable)
}

/// Refused both as a malformed text and as the URL that a lenient parser makes of it.
const fn repaired(text: &'static str, refusal: Refusal) -> Row {
    (text, Err(Refusal::Malformed), Use::Refused(refusal))
}

/// Checks every row and returns the number of rows.
async fn check(allow: &str, answers: &[&str], rows: &[Row]) -> usize {
    let policy: Policy = allow.parse().unwrap();
    let answers: Vec<IpAddr> = answers.iter().map(|text| text.parse().unwrap()).collect();
    for (text, registered, used) in rows {
        let notes = Arc::new(Notes::default());
        let network = Network {
            resolver: Arc::new(Always(answers.clone())),
            dial: notes.clone(),
            tls: Ok(trusting_nobody()),
        };
        let gate = Gate::over(policy.clone(), limits(), network);
        let shown: String = text.chars().take(80).collect();
        let context = format!("{shown:?} with {allow:?} allowed, resolving to {answers:?}");

        let found = gate.register(text).await.map(|_| ());
        assert_eq!(found, *registered, "registering {context}");
        assert_eq!(notes.take(), [""; 0], "registering connected: {context}");

        let Ok(url) = Url::parse(text) else {
            assert!(matches!(used, Unreadable), "a url after all: {context}");
            continue;
        };
        let error = gate
            .request(Seam::Push, Request::new(Method::POST, url))
            .await
            .unwrap_err();
        let dialed = notes.take();
        match used {
            Unreadable => panic!("a url after all: {context}"),
            Dials(wanted) => {
                assert!(matches!(error, EgressError::Connect(_)), "{error:?}: {context}");
                assert_eq!(dialed, *wanted, "delivering to {context}");
            }
            Use::Refused(wanted) => {
                assert!(
                    matches!(error, EgressError::Refused(found) if found == *wanted),
                    "{error:?} instead of {wanted:?}: {context}"
                );
                assert_eq!(dialed, [""; 0], "refused, and connected: {context}");
            }
        }
        // In every case, only public or allowed addresses may be dialed.
        for address in dialed {
            let address = address.parse::<SocketAddr>().unwrap().ip();
            let is_allowed = policy.allow.iter().any(|block| block.contains(address));
            assert!(
                is_allowed || classify(address) == Class::Public,
                "{address}: {context}"
            );
        }
    }
    rows.len()
}

#[tokio::test]
async fn table_holds_at_registration_and_delivery() {
    let n_rows = check("", &["8.8.8.8"], SCHEMES).await
        + check("", &["8.8.8.8"], SPELLINGS_OF_IPV4).await
        + check("", &["8.8.8.8"], RANGES_OF_IPV4).await
        + check("", &["8.8.8.8"], RANGES_OF_IPV6).await
        + check("", &["8.8.8.8"], NAMES_OF_THIS_MACHINE).await
        + check("", &["8.8.8.8"], AUTHORITIES).await
        + check("", &["8.8.8.8"], REPAIRS).await
        + check("", &["8.8.8.8"], PUBLIC).await
        + check("0.0.0.0/0,::/0", &["10.0.0.1"], NEVER_ALLOWED).await
        + check("127.0.0.0/8,::1", &["127.0.0.1"], LOOPBACK_ALLOWED).await;
    assert!(n_rows >= 150, "{n_rows} rows");
}

const LOCAL: Refusal = Refusal::LocalName;
const PLAIN: Refusal = Refusal::PlainHttp;
const SCHEME: Refusal = Refusal::Scheme;

const SCHEMES: &[Row] = &[
    refused("http://example.test/", PLAIN),
    refused("http://example.test:443/", PLAIN),
    refused("HTTP://example.test/", PLAIN),
    refused("http://8.8.8.8/", PLAIN),
    refused("http://[2606:4700::1]/", PLAIN),
    refused("http://example.test/?next=https://example.test/", PLAIN),
    refused("ftp://example.test/", SCHEME),
    refused("ws://example.test/", SCHEME),
    refused("wss://example.test/", SCHEME),
    refused("gopher://127.0.0.1:6379/_FLUSHALL", SCHEME),
    refused("dict://127.0.0.1:11211/stats", SCHEME),
    refused("ldap://127.0.0.1/", SCHEME),
    refused("smb://127.0.0.1/share", SCHEME),
    refused("jar:https://example.test/a.jar!/b", SCHEME),
    refused("file:///etc/passwd", SCHEME),
    refused("file://localhost/etc/passwd", SCHEME),
    refused("unix:/var/run/docker.sock", SCHEME),
    refused("data:text/plain,x", SCHEME),
    refused("javascript:alert(1)", SCHEME),
    refused("mailto:a@example.test", SCHEME),
    refused("blob:https://example.test/1", SCHEME),
    refused("view-source:https://example.test/", SCHEME),
    refused("https+unix://example.test/", SCHEME),
    refused("localhost:8080", SCHEME),
];

const SPELLINGS_OF_IPV4: &[Row] = &[
    at("https://127.0.0.1/", Reason::Loopback),
    at("http://127.0.0.1/", Reason::Loopback),
    at("https://127.0.0.1:8443/", Reason::Loopback),
    at("https://127.0.0.1./", Reason::Loopback),
    at("https://127.1/", Reason::Loopback),
    at("https://127.1./", Reason::Loopback),
    at("https://127.0.1/", Reason::Loopback),
    at("https://127.255.255.254/", Reason::Loopback),
    at("https://2130706433/", Reason::Loopback),
    at("https://2130706433./", Reason::Loopback),
    at("https://017700000001/", Reason::Loopback),
    at(
        "https://00000000000000000000000000000017700000001/",
        Reason::Loopback,
    ),
    at("https://0177.0.0.1/", Reason::Loopback),
    at("https://0177.0.0.01/", Reason::Loopback),
    at("https://0x7f000001/", Reason::Loopback),
    at("https://0x7f.1/", Reason::Loopback),
    at("https://0X7F.0x0.0x0.0x1/", Reason::Loopback),
    at("https://0x7f.0.0.01/", Reason::Loopback),
    at("https://127.0.0.0x1/", Reason::Loopback),
    at("https://%31%32%37.0.0.1/", Reason::Loopback),
    at("https://127%2e0%2e0%2e1/", Reason::Loopback),
    at("https://１２７.0.0.1/", Reason::Loopback),
    at("https://127。0。0。1/", Reason::Loopback),
    at("https://127．0．0．1/", Reason::Loopback),
    at("https://①②⑦.0.0.1/", Reason::Loopback),
    at("https://０ｘ７ｆ.1/", Reason::Loopback),
    at("https://0/", Reason::Unspecified),
    at("https://0.0.0.0/", Reason::Unspecified),
    at("https://0x0/", Reason::Unspecified),
    at("https://00/", Reason::Unspecified),
    at("https://167772161/", Reason::Private),
    at("https://012.1.2.3/", Reason::Private),
    at("https://10.66051/", Reason::Private),
    at("https://3232235521/", Reason::Private),
    at("https://0xc0a80001/", Reason::Private),
    at("https://2852039166/latest/meta-data/", Reason::LinkLocal),
    at("https://0xa9fea9fe/", Reason::LinkLocal),
    at("https://0251.0376.0251.0376/", Reason::LinkLocal),
    at("https://169.254.43518/", Reason::LinkLocal),
    at("https://4294967295/", Reason::Broadcast),
    unreadable("https://4294967296/"),
    unreadable("https://0x1ffffffff/"),
    unreadable("https://256.256.256.256/"),
    unreadable("https://1.2.3.4.5/"),
    unreadable("https://08.0.0.1/"),
    unreadable("https://1.2.3.-4.5/"),
];

const RANGES_OF_IPV4: &[Row] = &[
    at("https://0.1.2.3/", Reason::Unspecified),
    at("https://10.0.0.0/", Reason::Private),
    at("https://10.255.255.255/", Reason::Private),
    at("https://100.64.0.1/", Reason::CarrierGrade),
    at("https://100.100.100.200/latest/meta-data/", Reason::CarrierGrade),
    at("https://100.127.255.255/", Reason::CarrierGrade),
    at("https://169.254.169.254/latest/meta-data/", Reason::LinkLocal),
    at("https://169.254.170.2/v2/credentials", Reason::LinkLocal),
    at("https://172.16.0.1/", Reason::Private),
    at("https://172.17.0.1:2375/containers/json", Reason::Private),
    at("https://172.31.255.254/", Reason::Private),
    at("https://192.0.0.192/", Reason::Protocol),
    at("https://192.0.2.1/", Reason::Documentation),
    at("https://192.88.99.1/", Reason::Protocol),
    at("https://192.168.0.1/", Reason::Private),
    at("https://198.18.0.1/", Reason::Benchmarking),
    at("https://198.19.255.255/", Reason::Benchmarking),
    at("https://198.51.100.1/", Reason::Documentation),
    at("https://203.0.113.1/", Reason::Documentation),
    at("https://224.0.0.1/", Reason::Multicast),
    at("https://239.255.255.250/", Reason::Multicast),
    at("https://240.0.0.1/", Reason::Reserved),
    at("https://255.255.255.255/", Reason::Broadcast),
];

const RANGES_OF_IPV6: &[Row] = &[
    at("https://[::]/", Reason::Unspecified),
    at("https://[::1]/", Reason::Loopback),
    at("http://[::1]:8080/", Reason::Loopback),
    at("https://[0:0:0:0:0:0:0:1]/", Reason::Loopback),
    at("https://[0000::0001]/", Reason::Loopback),
    at("https://[::2]/", Reason::Ipv4Compatible),
    at("https://[::127.0.0.1]/", Reason::Ipv4Compatible),
    at("https://[::8.8.8.8]/", Reason::Ipv4Compatible),
    at("https://[::ffff:127.0.0.1]/", Reason::Loopback),
    at("https://[::ffff:7f00:1]/", Reason::Loopback),
    at("https://[::FFFF:A00:5]/", Reason::Private),
    at("https://[0:0:0:0:0:ffff:a9fe:a9fe]/", Reason::LinkLocal),
    at("https://[::ffff:0.0.0.0]/", Reason::Unspecified),
    at("https://[::ffff:0:127.0.0.1]/", Reason::Reserved),
    at("https://[64:ff9b::7f00:1]/", Reason::Loopback),
    at("https://[64:ff9b::10.0.0.1]/", Reason::Private),
    at("https://[64:ff9b::169.254.169.254]/", Reason::LinkLocal),
    at("https://[64:ff9b:1::7f00:1]/", Reason::LocalNat64),
    at("https://[64:ff9b:1::8.8.8.8]/", Reason::LocalNat64),
    at("https://[100::1]/", Reason::Reserved),
    at("https://[2001::1]/", Reason::Teredo),
    at("https://[2001:0:4136:e378:8000:63bf:3fff:fdd2]/", Reason::Teredo),
    at("https://[2001:2::1]/", Reason::Benchmarking),
    at("https://[2001:10::1]/", Reason::Protocol),
    at("https://[2001:20::1]/", Reason::Protocol),
    at("https://[2001:db8::1]/", Reason::Documentation),
    at("https://[2002:7f00:1::]/", Reason::SixToFour),
    at("https://[2002:a9fe:a9fe::1]/", Reason::SixToFour),
    at("https://[2002:808:808::1]/", Reason::SixToFour),
    at("https://[3fff::1]/", Reason::Documentation),
    at("https://[5f00::1]/", Reason::Reserved),
    at("https://[fc00::1]/", Reason::UniqueLocal),
    at("https://[fd00:ec2::254]/", Reason::UniqueLocal),
    at("https://[fe80::1]/", Reason::LinkLocal),
    at("https://[febf::1]/", Reason::LinkLocal),
    at("https://[fec0::1]/", Reason::SiteLocal),
    at("https://[feff::1]/", Reason::SiteLocal),
    at("https://[ff02::1]/", Reason::Multicast),
    at("https://[ff0e::1]/", Reason::Multicast),
    unreadable("https://[::1%25lo]/"),
    unreadable("https://[::1%lo]/"),
    unreadable("https://[fe80::1%25eth0]/"),
    unreadable("https://[fe80::1%eth0]/"),
    unreadable("https://[v1.fe80::a]/"),
    unreadable("https://[::1/"),
    unreadable("https://::1/"),
    unreadable("https://[::1]x/"),
    unreadable("https://[1:2:3]/"),
];

const NAMES_OF_THIS_MACHINE: &[Row] = &[
    refused("https://localhost/", LOCAL),
    refused("http://localhost/", LOCAL),
    refused("https://localhost:8443/", LOCAL),
    refused("https://LocalHost/", LOCAL),
    refused("https://localhost./", LOCAL),
    refused("https://lo%63alhost/", LOCAL),
    refused("https://ｌｏｃａｌｈｏｓｔ/", LOCAL),
    refused("https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", LOCAL),
    refused("https://lo\u{ad}calhost/", LOCAL),
    refused("https://a.localhost/", LOCAL),
    refused("https://a.b.localhost./", LOCAL),
    refused("https://a。localhost/", LOCAL),
    refused("https://localhost.localdomain/", LOCAL),
    refused("https://ip6-localhost/", LOCAL),
    refused("https://ip6-loopback/", LOCAL),
    refused("https://metadata/", LOCAL),
    refused("https://metadata.google.internal/computeMetadata/v1/", LOCAL),
    refused("https://Metadata.Google.Internal./", LOCAL),
    refused("https://metadata.goog/", LOCAL),
    refused("https://metadata.azure.internal/", LOCAL),
    refused("https://instance-data.ec2.internal/", LOCAL),
];

const USER_INFO: Refusal = Refusal::UserInfo;
const HOST: Refusal = Refusal::Host;

const AUTHORITIES: &[Row] = &[
    refused("https://user@example.test/", USER_INFO),
    refused("https://user:pw@example.test/", USER_INFO),
    refused("https://:pw@example.test/", USER_INFO),
    refused("https://example.test@127.0.0.1/", USER_INFO),
    refused("https://127.0.0.1:80@example.test/", USER_INFO),
    refused("https://example.test%40@127.0.0.1/", USER_INFO),
    refused("https://example.test:443@127.0.0.1:443/", USER_INFO),
    refused("https://a@b@example.test/", USER_INFO),
    refused("https://example.test:0/", Refusal::Port),
    refused("https://example.test:00000/", Refusal::Port),
    refused("https://example..test/", HOST),
    refused("https://.example.test/", HOST),
    refused("https://example.test../", HOST),
    refused("https://127.0.0.1../", HOST),
    refused("https://./", HOST),
    refused("https://a*b.test/", HOST),
    refused("https://a$b.test/", HOST),
    refused("https://a'b.test/", HOST),
    refused("https://a,b.test/", HOST),
    refused("https://a;b.test/", HOST),
    refused("https://$(id).test/", HOST),
    refused("https://{a}.test/", HOST),
    refused("https://a!b.test/", HOST),
    refused("https://a=b&c.test/", HOST),
    refused(
        "https://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.test/",
        HOST,
    ),
    unreadable(""),
    unreadable("/hook"),
    unreadable("//example.test/hook"),
    unreadable("example.test"),
    unreadable("127.0.0.1"),
    unreadable("https"),
    unreadable("https:"),
    unreadable("https://"),
    unreadable("https:///"),
    unreadable("https://?q"),
    unreadable("https://#f"),
    unreadable("https://:443/"),
    unreadable("https://@/"),
    unreadable("https://user@/"),
    unreadable("https://example.test:99999/"),
    unreadable("https://example.test:65536/"),
    unreadable("https://example.test:-1/"),
    unreadable("https://example.test:8o/"),
    unreadable("https://example.test:443:443/"),
    unreadable("https://exam%00ple.test/"),
    unreadable("https://exam%0aple.test/"),
    unreadable("https://exam%20ple.test/"),
    unreadable("https://exam%2fple.test/"),
    unreadable("https://exam%23ple.test/"),
    unreadable("https://exam%zzple.test/"),
    unreadable("https://%ff.test/"),
    unreadable("https://a<b/"),
    unreadable("https://a|b/"),
    unreadable("https://a^b/"),
    unreadable("https://xn--/"),
    unreadable("https://xn--a\u{fe0f}\u{200d}/"),
    unreadable("https://\u{202e}tset.elpmaxe/"),
];

/// Texts that browsers repair and this host rejects, because different parsers would see different hosts.
const REPAIRS: &[Row] = &[
    repaired("ht\ntps://127.0.0.1/", Refusal::Address(Reason::Loopback)),
    repaired("https://127.0.\t0.1/", Refusal::Address(Reason::Loopback)),
    repaired("https://local\rhost/", LOCAL),
    repaired(" https://localhost/", LOCAL),
    repaired("\u{1}https://localhost/", LOCAL),
    repaired("https:127.0.0.1", Refusal::Address(Reason::Loopback)),
    repaired("https:/127.0.0.1/", Refusal::Address(Reason::Loopback)),
    repaired("https:////127.0.0.1/", Refusal::Address(Reason::Loopback)),
    repaired("https:\\\\127.0.0.1\\", Refusal::Address(Reason::Loopback)),
    repaired("https:\\/127.0.0.1/", Refusal::Address(Reason::Loopback)),
    (
        "https://example.test\\@127.0.0.1/",
        Err(Refusal::Malformed),
        Dials(&["8.8.8.8:443"]),
    ),
    (
        "https://example.test\\.localhost/",
        Err(Refusal::Malformed),
        Dials(&["8.8.8.8:443"]),
    ),
    (
        "https://example.test/a b",
        Err(Refusal::Malformed),
        Dials(&["8.8.8.8:443"]),
    ),
    (
        "https://example.test/\r\nx-injected: 1",
        Err(Refusal::Malformed),
        Dials(&["8.8.8.8:443"]),
    ),
    (
        "https://example.test/\u{0}",
        Err(Refusal::Malformed),
        Dials(&["8.8.8.8:443"]),
    ),
    (
        "https://example.test/\u{2028}",
        Err(Refusal::Malformed),
        Dials(&["8.8.8.8:443"]),
    ),
    (
        "https://example.test/hook ",
        Err(Refusal::Malformed),
        Dials(&["8.8.8.8:443"]),
    ),
    (
        "https:example.test",
        Err(Refusal::Malformed),
        Dials(&["8.8.8.8:443"]),
    ),
];

/// Suspicious texts that are valid: only the resolved address matters.
const PUBLIC: &[Row] = &[
    ("https://example.test/", Ok(()), Dials(&["8.8.8.8:443"])),
    (
        "https://example.test:8443/hook?x=1#f",
        Ok(()),
        Dials(&["8.8.8.8:8443"]),
    ),
    ("https://EXAMPLE.test./", Ok(()), Dials(&["8.8.8.8:443"])),
    ("https://example.test:65535/", Ok(()), Dials(&["8.8.8.8:65535"])),
    ("https://bücher.test/", Ok(()), Dials(&["8.8.8.8:443"])),
    ("https://xn--bcher-kva.test/", Ok(()), Dials(&["8.8.8.8:443"])),
    ("https://a_b.test/", Ok(()), Dials(&["8.8.8.8:443"])),
    ("https://127.0.0.1.nip.test/", Ok(()), Dials(&["8.8.8.8:443"])),
    ("https://localhost.example.test/", Ok(()), Dials(&["8.8.8.8:443"])),
    ("https://notlocalhost/", Ok(()), Dials(&["8.8.8.8:443"])),
    ("https://fd00.test/", Ok(()), Dials(&["8.8.8.8:443"])),
    (
        "https://example.test/?u=http://127.0.0.1/",
        Ok(()),
        Dials(&["8.8.8.8:443"]),
    ),
    (
        "https://example.test/http://user@127.0.0.1/",
        Ok(()),
        Dials(&["8.8.8.8:443"]),
    ),
    ("https://1.1.1.1/", Ok(()), Dials(&["1.1.1.1:443"])),
    ("https://16843009/", Ok(()), Dials(&["1.1.1.1:443"])),
    (
        "https://[2606:4700:4700::1111]/",
        Ok(()),
        Dials(&["[2606:4700:4700::1111]:443"]),
    ),
    (
        "https://[::ffff:8.8.8.8]/",
        Ok(()),
        Dials(&["[::ffff:8.8.8.8]:443"]),
    ),
    (
        "https://[64:ff9b::808:808]/",
        Ok(()),
        Dials(&["[64:ff9b::808:808]:443"]),
    ),
];

/// Addresses that no allow-list permits, not even one that contains everything.
const NEVER_ALLOWED: &[Row] = &[
    refused("ftp://10.0.0.1/", SCHEME),
    refused("file:///etc/passwd", SCHEME),
    refused("gopher://10.0.0.1/", SCHEME),
    refused("http://user@10.0.0.1/", USER_INFO),
    refused("http://:pw@in.test/", USER_INFO),
    refused("http://10.0.0.1:0/", Refusal::Port),
    refused("http://in..test/", HOST),
    refused("http://in$.test/", HOST),
    unreadable("http://[fe80::1%25eth0]/"),
    unreadable("http://10.0.0.256/"),
];

const LOOPBACK_ALLOWED: &[Row] = &[
    ("http://127.0.0.1:9999/hook", Ok(()), Dials(&["127.0.0.1:9999"])),
    ("https://127.0.0.1/", Ok(()), Dials(&["127.0.0.1:443"])),
    ("http://0x7f.1/", Ok(()), Dials(&["127.0.0.1:80"])),
    ("http://[::1]/", Ok(()), Dials(&["[::1]:80"])),
    (
        "http://[::ffff:127.0.0.1]/",
        Ok(()),
        Dials(&["[::ffff:127.0.0.1]:80"]),
    ),
    ("http://localhost:9999/", Ok(()), Dials(&["127.0.0.1:9999"])),
    ("http://a.localhost/", Ok(()), Dials(&["127.0.0.1:80"])),
    ("http://in.test/", Ok(()), Dials(&["127.0.0.1:80"])),
    ("https://in.test/", Ok(()), Dials(&["127.0.0.1:443"])),
    at("http://10.0.0.1/", Reason::Private),
    at("https://169.254.169.254/", Reason::LinkLocal),
    at("http://[fe80::1]/", Reason::LinkLocal),
    at("https://[2002:7f00:1::]/", Reason::SixToFour),
    at("https://[::127.0.0.1]/", Reason::Ipv4Compatible),
    refused("http://8.8.8.8/", PLAIN),
];

/// One forbidden address among allowed ones refuses the name.
#[tokio::test]
async fn every_resolved_address_is_checked() {
    use Reason::*;

    let bad = |reason| Use::Refused(Refusal::Address(reason));
    let rows: &[(&str, &[&str], Use)] = &[
        ("", &["8.8.8.8"], Dials(&["8.8.8.8:443"])),
        (
            "",
            &["8.8.8.8", "2606:4700::1"],
            Dials(&["8.8.8.8:443", "[2606:4700::1]:443"]),
        ),
        ("", &["64:ff9b::8.8.8.8"], Dials(&["[64:ff9b::808:808]:443"])),
        ("", &[], Use::Refused(Refusal::NoAddress)),
        ("", &["127.0.0.1"], bad(Loopback)),
        ("", &["::1"], bad(Loopback)),
        ("", &["0.0.0.0"], bad(Unspecified)),
        ("", &["8.8.8.8", "10.0.0.1"], bad(Private)),
        ("", &["10.0.0.1", "8.8.8.8"], bad(Private)),
        ("", &["8.8.8.8", "1.1.1.1", "192.168.1.1"], bad(Private)),
        ("", &["8.8.8.8", "169.254.169.254"], bad(LinkLocal)),
        ("", &["8.8.8.8", "::ffff:169.254.169.254"], bad(LinkLocal)),
        ("", &["2606:4700::1", "fd00::1"], bad(UniqueLocal)),
        ("", &["2606:4700::1", "fe80::1"], bad(LinkLocal)),
        ("", &["2606:4700::1", "fec0::1"], bad(SiteLocal)),
        ("", &["64:ff9b::a00:1"], bad(Private)),
        ("", &["64:ff9b:1::a00:1"], bad(LocalNat64)),
        ("", &["2002:a00:1::1"], bad(SixToFour)),
        ("", &["2001:0:4136:e378:8000:63bf:3fff:fdd2"], bad(Teredo)),
        ("", &["::10.0.0.1"], bad(Ipv4Compatible)),
        ("", &["100.64.0.1"], bad(CarrierGrade)),
        ("", &["198.18.0.1"], bad(Benchmarking)),
        ("", &["203.0.113.1"], bad(Documentation)),
        ("", &["224.0.0.1"], bad(Multicast)),
        ("", &["255.255.255.255"], bad(Broadcast)),
        ("10.0.0.0/8", &["10.0.0.1"], Dials(&["10.0.0.1:443"])),
        (
            "10.0.0.0/8",
            &["10.0.0.1", "10.9.9.9"],
            Dials(&["10.0.0.1:443", "10.9.9.9:443"]),
        ),
        ("10.0.0.0/8", &["10.0.0.1", "8.8.8.8"], bad(Private)),
        ("10.0.0.0/8", &["10.0.0.1", "127.0.0.1"], bad(Private)),
        ("10.0.0.0/8", &["8.8.8.8"], Dials(&["8.8.8.8:443"])),
    ];
    for (allow, answers, used) in rows {
        // Offline, a public HTTPS URL is accepted; its addresses are checked at delivery.
        check(allow, answers, &[("https://name.test/", Ok(()), *used)]).await;
    }
    // Plain HTTP requires every address to be in the allow-list, already at registration.
    for (answers, registered, used) in [
        (&["10.0.0.1"][..], Ok(()), Dials(&["10.0.0.1:80"])),
        (&["10.0.0.1", "8.8.8.8"], Err(PLAIN), Use::Refused(PLAIN)),
        (&["8.8.8.8"], Err(PLAIN), Use::Refused(PLAIN)),
    ] {
        check("10.0.0.0/8", answers, &[("http://name.test/", registered, used)]).await;
    }
}

#[tokio::test]
async fn name_that_moves_after_registration_is_checked_at_its_new_address() {
    for moved in [
        "10.0.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "::ffff:10.0.0.1",
        "fd00::1",
    ] {
        let notes = Arc::new(Notes::default());
        let resolver = Answers::new(&[&["8.8.8.8"], &[moved], &["8.8.8.8", moved]]);
        let network = Network {
            resolver: resolver.clone(),
            dial: notes.clone(),
            tls: Ok(trusting_nobody()),
        };
        let gate = Gate::over(Policy::default(), limits(), network);
        let url = gate.register("https://rebind.test/hook").await.unwrap();
        let deliver = || gate.request(Seam::Push, Request::new(Method::POST, url.clone()));
        assert!(matches!(deliver().await, Err(EgressError::Connect(_))));
        assert_eq!(notes.take(), ["8.8.8.8:443"]);
        for _ in 0..2 {
            let error = deliver().await.unwrap_err();
            assert!(
                matches!(error, EgressError::Refused(Refusal::Address(_))),
                "{moved} {error:?}"
            );
            assert!(!error.is_transient());
        }
        assert_eq!(notes.take(), [""; 0], "{moved}");
        assert_eq!(resolver.asked().len(), 3, "one look-up per delivery");
    }
}

#[tokio::test]
async fn long_texts_are_refused_before_parsing() {
    let long_path = format!("https://example.test/{}", "a".repeat(2_048));
    // Percent-encoding turns each of these letters into six characters.
    let long_when_escaped = format!("https://example.test/{}", "ä".repeat(500));
    let long_name = format!("https://{}example.test/", "a.".repeat(130));
    let long_number = format!("https://{}1/", "0".repeat(3_000));
    let endless = format!("https://{}/", "[".repeat(1 << 20));
    for (text, refusal) in [
        (&long_path, Refusal::Length),
        (&long_when_escaped, Refusal::Length),
        (&long_name, Refusal::Host),
        (&long_number, Refusal::Length),
        (&endless, Refusal::Length),
    ] {
        let gate = Gate::over(Policy::default(), limits(), Network::default());
        let shown: String = text.chars().take(60).collect();
        assert_eq!(gate.register(text).await, Err(refusal), "{shown}");
    }
}

#[test]
fn only_requests_to_configured_places_get_to_their_addresses() {
    let url = |text: &str| text.parse::<Url>().unwrap();
    let gate = Gate::new(Policy::default(), Limits::default());
    for (place, text) in [
        ("http://127.0.0.1:11434/v1", "http://127.0.0.1:11434/"),
        ("http://[::ffff:10.0.0.7]/v1", "http://10.0.0.7/"),
        ("http://localhost:1/v1", "http://[::1]:1/"),
    ] {
        let configured = gate.to_configured(&url(place));
        assert_eq!(configured.check_registration(&url(text)), Ok(()), "{text}");
        assert!(gate.check_registration(&url(text)).is_err(), "{text}");
        for text in [
            "http://127.0.0.2/",
            "http://169.254.169.254/",
            "http://models.example.com/",
        ] {
            assert!(configured.check_registration(&url(text)).is_err(), "{text}");
        }
    }
    let public = gate.to_configured(&url("https://models.example.com/v1"));
    assert_eq!(public.policy(), gate.policy());
}
