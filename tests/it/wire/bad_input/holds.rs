//! Tokens, numbers, kinds and ends of holds over gRPC. End users and models write them, so none is an error: a bad token
//! changes nothing, and what else is bad counts as missing.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};

use crate::support::{
    overrides::set,
    prelude::*,
    service::{metadata, of_bytes},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 100 } }
  - key: money
    rate_limit:
      unit: year
      requests_per_unit: 1000
      hold: { for: 10m, estimate: 100, weights: { input: 2, output: 3 } }
";

/// Part of every invented value.
const MARKER: &str = "marker-3b90";

type Bytes = Vec<u8>;

/// A way to spoil the bytes of a token.
type Spoil = fn(&[u8]) -> Bytes;

/// Tokens, each made of a good one.
const TOKENS: [(&str, Spoil); 28] = [
    ("an_empty_token", |_| vec![]),
    ("a_character", |_| b"A".to_vec()),
    ("words", |_| b"marker-3b90".to_vec()),
    ("a_nul", |_| b"\0".to_vec()),
    ("bytes_that_are_not_utf_8", |_| b"\xff\xfe\x80".to_vec()),
    ("line_ends", |_| b"\r\nEvil: 1".to_vec()),
    ("a_variable_that_envoy_did_not_fill", |_| b"-".to_vec()),
    ("a_token_in_json", |token| [b"{\"hold\":\"", token, b"\"}"].concat()),
    ("a_token_in_quotes", |token| [b"\"", token, b"\""].concat()),
    ("a_space_before_a_token", |token| [b" ", token].concat()),
    ("a_line_end_after_a_token", |token| [token, b"\n"].concat()),
    ("padding_after_a_token", |token| [token, b"=="].concat()),
    ("a_token_and_a_character", |token| [token, b"A"].concat()),
    ("a_token_and_a_whole_byte", |token| [token, b"AAAA"].concat()),
    ("two_tokens", |token| [token, token].concat()),
    ("two_tokens_with_a_comma", |token| [token, b",", token].concat()),
    ("the_first_half", |token| token[..token.len() / 2].to_vec()),
    ("all_but_the_last_character", |token| token[..token.len() - 1].to_vec()),
    ("all_but_the_first_character", |token| token[1..].to_vec()),
    ("a_token_backwards", |token| token.iter().rev().copied().collect()),
    ("a_token_in_upper_case", |token| token.to_ascii_uppercase()),
    ("zeros", |token| vec![b'A'; token.len()]),
    ("8193_characters", |_| vec![b'A'; 8193]),
    ("60_kib", |_| vec![b'A'; 60 << 10]),
    ("another_version", |token| recoded(token, |bytes| bytes[0] = 3)),
    ("the_version_of_unsigned_tokens", |token| recoded(token, |bytes| bytes[0] = 1)),
    ("another_nonce", |token| recoded(token, |bytes| bytes[1] ^= 1)),
    ("another_signature", |token| recoded(token, |bytes| *bytes.last_mut().unwrap() ^= 1)),
];

/// The token with its bytes changed.
fn recoded(token: &[u8], change: fn(&mut Bytes)) -> Bytes {
    let mut bytes = BASE64.decode(token).unwrap();
    change(&mut bytes);
    BASE64.encode(bytes).into_bytes()
}

/// Values that are not a number of hits.
const NUMBERS: [&str; 17] = [
    "",
    "none",
    "-",
    "-1",
    "+1",
    "1e3",
    "0x10",
    "nan",
    "inf",
    "1.",
    ".5",
    "1.2.3",
    "1,5",
    " 1",
    "1 ",
    "١",
    "11111111111111111111111111111111111111111",
];

/// Entries that are no usage in the kinds of `money`.
const KINDS: [(&str, &str); 8] = [
    ("hold.used", "5"),
    ("hold.used.", "5"),
    ("hold.used.cached", "5"),
    ("hold.used.INPUT", "5"),
    ("hold.used.input.x", "5"),
    ("hold.usedinput", "5"),
    ("hold.used_input", "5"),
    ("hold.used.input", "5 tokens"),
];

/// Ends after which work may have been done.
const ENDS: [&str; 12] = [
    "",
    "-",
    "200 -",
    "503",
    "503 -",
    "uf",
    "UFX",
    "UF;UH",
    "0 DC",
    "5xx",
    "marker-3b90",
    "503\tUF",
];

/// Parameters that there are not.
const PARAMETERS: [&str; 5] =
    ["hold.", "hold.x", "hold.Estimate", "hold.estimated", "hold.estimate.input"];

struct Tried {
    service: Service,
}

impl Tried {
    fn start(flags: &[&str]) -> Self {
        Self { service: Service::with(RULES).flags(flags).start() }
    }

    async fn ask(&self, descriptor: RateLimitDescriptor) -> RateLimitResponse {
        self.service.ask(request("shop", vec![descriptor])).await.expect("no error")
    }

    /// Takes a hold; returns its token.
    async fn take(&self, entries: &[(&str, &str)]) -> String {
        token(&self.ask(descriptor(entries)).await).expect("a token")
    }

    /// Commits, and checks that the answer is the usual one.
    async fn commit(&self, case: &str, entries: &[(&str, &[u8])]) {
        let entries: Vec<_> = entries.iter().map(|(k, v)| (k.as_bytes(), *v)).collect();
        assert_eq!(spell(&self.ask(of_bytes(&entries)).await), "OK: OK -", "{case}");
    }

    #[track_caller]
    fn assert_quiet(&self, bad_tokens: usize) {
        let (log, metrics) = (self.service.log(), self.service.get("/metrics"));
        let lines = log.lines().filter(|line| line.contains("a commit has no effect")).count();
        assert_eq!(lines, bad_tokens.min(1), "once a minute: {log}");
        assert!(!log.contains(MARKER) && !metrics.contains(MARKER), "{log}");
        let bad = format!("ratelimit_holds_total{{outcome=\"bad\",rule=\"other\"}} {bad_tokens}\n");
        assert_eq!(metrics.contains(&bad), bad_tokens > 0, "{metrics}");
        let series = metrics.lines().filter(|line| line.starts_with("ratelimit_holds_total{"));
        assert!(series.count() <= 9, "{metrics}");
    }

    /// The remaining hits of a counter.
    async fn left(&self, key: &str, value: &str) -> u32 {
        let look = self.ask(hits(descriptor(&[(key, value)]), 0)).await;
        look.statuses[0].limit_remaining
    }
}

fn token(response: &RateLimitResponse) -> Option<String> {
    metadata(response, "hold")
}

/// Commits every bad token of a hold, and returns the good one.
async fn commit_bad_tokens(tried: &Tried) -> String {
    let token = tried.take(&[("user", "alice")]).await;
    for (case, spoil) in TOKENS {
        let bad = spoil(token.as_bytes());
        assert_ne!(bad, token.as_bytes(), "{case}");
        tried.commit(case, &[("hold.commit", &bad), ("hold.used", b"0")]).await;
        assert_eq!(tried.left("user", "alice").await, 900, "{case}");
    }
    // The empty one is none.
    tried.assert_quiet(TOKENS.len() - 1);
    token
}

#[tokio::test]
async fn a_bad_token_changes_nothing() {
    let keys = TextFile::new("keys", "0123456789abcdef0123456789abcdef\n");
    let tried = Tried::start(&["--hold-key-file", &keys]);
    let token = commit_bad_tokens(&tried).await;
    tried.commit("the good token", &[("hold.commit", token.as_bytes()), ("hold.used", b"0")]).await;
    assert_eq!(tried.left("user", "alice").await, 1000);
}

/// What commits nothing is counted, closed out and required like any other descriptor.
#[tokio::test]
async fn a_bad_token_exempts_its_descriptor_from_nothing() {
    let rules = "
domain: shop
require: [user]
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 2 } }
";
    let admin = ["--admin-addr", "127.0.0.1:0"];
    let tried = Tried { service: Service::with(rules).flags(&admin).start() };
    set(&tried.service, "user=banned", json!({ "action": "ban" }));
    let other = Tried::start(&[]).take(&[("user", "alice")]).await;
    let tokens =
        TOKENS[..TOKENS.len() - 3].iter().map(|(case, spoil)| (*case, spoil(other.as_bytes())));
    for (case, bad) in tokens {
        let ask = async |user: &str| {
            let entries = [(&b"user"[..], user.as_bytes()), (b"hold.commit", &bad)];
            spell(&tried.ask(of_bytes(&entries)).await)
        };
        assert_eq!(ask(case).await, "OK: OK 1/2 YEAR", "{case}");
        assert_eq!(ask(case).await, "OK: OK 0/2 YEAR", "{case}");
        assert_eq!(ask(case).await, "OVER_LIMIT: OVER_LIMIT 0/2 YEAR", "{case}");
        assert_eq!(ask("banned").await, "OVER_LIMIT: OVER_LIMIT 0/0 YEAR", "{case}");
        let alone = tried.ask(of_bytes(&[(b"hold.commit", &bad), (b"hold.used", b"1")])).await;
        assert_eq!(spell(&alone), "OVER_LIMIT: OK -", "{case}");
    }
}

/// Without a file of keys the service has a key of its own.
#[tokio::test]
async fn a_bad_token_changes_nothing_without_a_file_of_keys() {
    let tried = Tried::start(&[]);
    let token = commit_bad_tokens(&tried).await;
    let other = descriptor(&[("hold.commit", &token), ("hold.used", "0")]);
    tried.service.ask(request("another", vec![other])).await.unwrap();
    assert_eq!(tried.left("user", "alice").await, 900, "the token of another domain");
    tried.assert_quiet(TOKENS.len());
}

#[tokio::test]
async fn what_is_no_number_counts_as_missing() {
    let tried = Tried::start(&[]);
    for number in NUMBERS {
        let user = format!("take {number}");
        tried.take(&[("user", &user), ("hold.estimate", number)]).await;
        assert_eq!(tried.left("user", &user).await, 900, "hold.estimate={number}");

        let user = format!("commit {number}");
        let token = tried.take(&[("user", &user)]).await;
        let used = ("hold.used", number.as_bytes());
        tried.commit(number, &[("hold.commit", token.as_bytes()), used]).await;
        assert_eq!(tried.left("user", &user).await, 900, "hold.used={number}");
    }
    for (key, value) in KINDS {
        let user = format!("{key}={value}");
        let token = tried.take(&[("money", &user)]).await;
        tried.commit(key, &[("hold.commit", token.as_bytes()), (key, value.as_bytes())]).await;
        assert_eq!(tried.left("money", &user).await, 900, "{key}={value}");
    }
    for end in ENDS {
        let user = format!("end {end}");
        let token = tried.take(&[("user", &user)]).await;
        let entries = [("hold.commit", token.as_bytes()), ("hold.end", end.as_bytes())];
        tried.commit(end, &entries).await;
        assert_eq!(tried.left("user", &user).await, 900, "hold.end={end}");
    }
    for parameter in PARAMETERS {
        tried.take(&[("user", parameter), (parameter, "7")]).await;
        assert_eq!(tried.left("user", parameter).await, 900, "{parameter}");
    }
    tried.assert_quiet(0);
}

/// Descriptors of this number of users whose names begin like this.
fn users(prefix: &str, count: usize) -> Vec<RateLimitDescriptor> {
    (0..count).map(|user| descriptor(&[("user", &format!("{prefix}{user}"))])).collect()
}

#[tokio::test]
async fn a_call_commits_at_most_128_charges_of_tokens_and_a_further_token_changes_nothing() {
    let tried = Tried::start(&[]);
    let mut commits = Vec::new();
    for prefix in ["a", "b", "c"] {
        let taken = tried.service.ask(request("shop", users(prefix, 64))).await.unwrap();
        let token = token(&taken).expect("a token");
        commits.push(descriptor(&[("hold.commit", &token), ("hold.used", "0")]));
    }
    tried.service.ask(request("shop", commits.clone())).await.expect("no error");
    for (user, left) in [("a63", 1000), ("b0", 1000), ("b63", 1000), ("c0", 900), ("c63", 900)] {
        assert_eq!(tried.left("user", user).await, left, "{user}");
    }
    tried.assert_quiet(1);
    tried.ask(commits.remove(2)).await;
    assert_eq!(tried.left("user", "c63").await, 1000, "by itself it is committed");
}

#[tokio::test]
async fn a_take_that_no_token_can_name_is_denied_and_charges_nothing() {
    let tried = Tried::start(&["--max-descriptors", "100"]);
    for (count, length) in [(65, 4), (48, 120)] {
        let user = |user: usize| format!("{user:x<length$}");
        let users = (0..count).map(|number| descriptor(&[("user", &user(number))])).collect();
        let taken = tried.service.ask(request("shop", users)).await.unwrap();
        assert!(spell(&taken).starts_with("OVER_LIMIT"), "{}", spell(&taken));
        assert_eq!(token(&taken), None);
        assert_eq!(tried.left("user", &user(0)).await, 1000);
    }
    let lines = tried.service.log().matches("a take was denied: its token").count();
    assert_eq!(lines, 1, "once a minute: {}", tried.service.log());
}
