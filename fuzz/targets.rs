//! What is fuzzed: one function for each reader of input from outside. It takes any bytes, and panics if a
//! promise about them does not hold.
//!
//! libFuzzer calls these functions (`fuzz/run`), and so does `tests/it/wire/fuzz.rs`, which needs nothing
//! installed.

use std::{collections::BTreeSet, ffi::OsString, sync::Arc, sync::LazyLock};

use bytes::Bytes;
use prost::Message as _;
use tokio::runtime::{Builder, Runtime};
use tollkeeper::{
    app::{self, instruments, stores},
    engine::{
        descriptor_syntax,
        key::Counter,
        ledger::{Charge, CommitOutcome},
        plan::Plan,
        request::{Descriptor, Entry, Hits, HitsMeaning, Request},
        rule::{Algorithm, Limit},
        time::{Timestamp, Unit},
    },
    http::admin,
    import::limitador::{self, LimitadorOptions},
    limiter::holds::HoldKeys,
    net::grpc::ServedMethod,
    overrides::Overrides,
    rls::{
        BatchContext, Service,
        decode::{Bounds, Decoded, Echo},
        encode,
        headers::Headers,
        json, precheck,
        refusal::Refusal,
    },
    rules::{self, LoadOptions, Rules},
    settings::{self, Environment, TypedFlags},
    store::{
        memory::MemoryStore,
        redis::{
            script::{fixed::FixedRun, ledger::LedgerRun},
            wire::resp,
        },
    },
    telemetry::Telemetry,
};
use tollkeeper_proto::{self as pb, v1::verdict::Code};

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: [(&str, Target); 13] = [
    ("request", request),
    ("json", json),
    ("batch", batch),
    ("batch_json", batch_json),
    ("rules", rules),
    ("limitador", limitador),
    ("descriptor", descriptor),
    ("key", key),
    ("reply", reply),
    ("settings", settings),
    ("query", query),
    ("token", token),
    ("token_fields", token_fields),
];

/// Rules with each algorithm and each kind of item.
const RULES: &str = "
domain: d
descriptors:
  - key: a
    rate_limit: { unit: minute, requests_per_unit: 10 }
  - key: b
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 3, algorithm: token_bucket, burst: 2 }
  - key: c
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 100000000, algorithm: sliding_window }
  - key: e
    value: x*
    share_threshold: true
    descriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 4294967295, count_denied: true } }]
    rate_limits:
      - { unit: second, requests_per_unit: 2, algorithm: sliding_log, remember: e }
      - { unit: year, requests_per_unit: 7, algorithm: first_hit_window, count_denied: true }
  - key: f
    rate_limit: { unlimited: true }
  - key: g
    rate_limit: { unit: hour, requests_per_unit: 100000, hold: { for: 10m, estimate: 4, weights: { input: 2, output: 10 } } }
";

const NOW: Timestamp = Timestamp::from_secs(1_795_215_600);

static IN_FORCE: LazyLock<rules::InForce> = LazyLock::new(|| {
    rules::parse("rules.yaml", RULES, LoadOptions::default()).expect("the rules are valid")
});

/// A message as it arrives over gRPC: counted, decoded, decided in memory, and answered.
pub fn request(input: &[u8]) {
    let bounds = Bounds { echo: Echo::On, ..Bounds::default() };
    let message = pb::RateLimitRequest::decode(input);
    match (precheck::request(Bytes::copy_from_slice(input), bounds), message) {
        (Ok(decoded), Ok(message)) => {
            assert!(is_acceptable(&message, bounds), "accepted: {message:?}");
            assert_eq!(decoded.request.descriptors.len(), message.descriptors.len());
            decide(decoded);
        }
        (Ok(_), Err(error)) => panic!("accepted what is not Protobuf: {error}"),
        (Err(refusal), message) => {
            check_text(&refusal.to_string());
            let is_bad = message.map_or(true, |message| !is_acceptable(&message, bounds));
            assert!(is_bad, "refused: {refusal}");
        }
    }
}

/// Whether a message is one that must be accepted.
fn is_acceptable(message: &pb::RateLimitRequest, bounds: Bounds) -> bool {
    !message.domain.is_empty()
        && (1..=bounds.descriptors_max).contains(&message.descriptors.len())
        && message.descriptors.iter().all(|descriptor| {
            descriptor.entries.len() <= 32
                && descriptor.entries.iter().all(|entry| !entry.key.is_empty())
        })
}

/// Decides a call in memory; the answer must be complete.
fn decide(Decoded { request, echo, .. }: Decoded) {
    let store = MemoryStore::new(|| NOW);
    for _ in 0..2 {
        let plan = Plan::draw(&IN_FORCE.rules, &request);
        let judged = store.charge_at(&plan.charges, NOW);
        assert_eq!(judged.tallies.len(), plan.charges.len());
        let decision = plan.settle(judged);
        let headers = Headers { draft: true, ..Headers::default() };
        let answer = encode::response(decision, &headers, echo.clone());
        assert_eq!(answer.statuses.len(), request.descriptors.len());
        assert!([1, 2].contains(&answer.overall_code), "OK or OVER_LIMIT");
        for header in &answer.response_headers_to_add {
            check_text(&header.value);
        }
        let written = answer.encode_to_vec();
        assert_eq!(pb::RateLimitResponse::decode(&written[..]), Ok(answer.clone()));
        serde_json::to_string(&json::response(&answer)).expect("an answer has a form in JSON");
    }
}

/// A text for a client or a log: short, on one line, and of visible characters.
fn check_text(text: &str) {
    assert!(text.len() < 1000, "{} bytes", text.len());
    assert!(!text.contains(char::is_control), "{text:?}");
}

/// The body of `/json`.
pub fn json(input: &[u8]) {
    match json::request(input, Bounds { echo: Echo::On, ..Bounds::default() }) {
        Ok(decoded) => decide(decoded),
        Err(refusal @ (Refusal::Invalid(_) | Refusal::Empty)) => check_text(&refusal.to_string()),
        Err(other) => panic!("JSON is refused as {other:?}"),
    }
}

/// The methods of `tollkeeper.v1`, by the first byte of an input, with the fields of their items and answers in JSON.
const METHODS: [(ServedMethod, &str, &str); 3] = [
    (ServedMethod::Decide, "calls", "verdicts"),
    (ServedMethod::Commit, "commits", "results"),
    (ServedMethod::Renew, "renewals", "results"),
];

/// The whole service, on memory.
static SERVICE: LazyLock<(Service, Runtime)> = LazyLock::new(|| {
    let flag = |name, value: &str| (name, vec![OsString::from(value)]);
    let flags = TypedFlags::from([flag("store", "memory://"), flag("rules", "rules.yaml")]);
    let settings = settings::resolve(&flags, &Environment::default()).settings;
    let telemetry =
        Telemetry::start(&settings.telemetry.export, instruments()).expect("nothing is exported");
    let store = Arc::new(stores::store(&settings, &telemetry.meter()));
    let overrides = Arc::new(Overrides::new(Arc::clone(&store)));
    let in_force = rules::parse("rules.yaml", RULES, LoadOptions::default());
    let rules = Arc::new(Rules::new(in_force.expect("the rules are valid")));
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    (app::service(&settings, &telemetry, rules, overrides, store, None, None), runtime)
});

/// A message of `tollkeeper.v1`, behind a byte that chooses its method: a batch within the bounds is answered, each item
/// for itself.
pub fn batch(input: &[u8]) {
    let Some((choice, message)) = input.split_first() else { return };
    let (method, field, _) = METHODS[usize::from(*choice) % METHODS.len()];
    let (service, runtime) = &*SERVICE;
    let memory = service.arriving.connection(1 << 24);
    let bytes = Bytes::copy_from_slice(message);
    let answer =
        runtime.block_on(service.answer_batch(method, bytes, &memory, BatchContext::alone()));
    let answer = match answer {
        Ok((answer, _)) => answer,
        Err(refusal @ (Refusal::Invalid(_) | Refusal::Malformed(_))) => {
            return check_text(&refusal.to_string());
        }
        Err(other) => panic!("a batch is refused as {other:?}"),
    };
    // Behind the prefix of gRPC.
    let answer = &answer[5..];
    if method == ServedMethod::Decide {
        let verdicts = pb::v1::DecideResponse::decode(answer).expect("an answer").verdicts;
        let calls = pb::v1::DecideRequest::decode(message).ok().map(|request| request.calls);
        assert!(calls.as_ref().is_none_or(|calls| calls.len() == verdicts.len()));
        for (index, verdict) in verdicts.iter().enumerate() {
            check_verdict(&format!("{field}[{index}]"), verdict);
            let call = calls.as_ref().map(|calls| &calls[index]);
            if let Some(call) = call.filter(|call| verdict.error.is_none() && call.mode != 2) {
                assert_eq!(verdict.statuses.len(), call.descriptors.len());
            }
        }
    } else {
        // `Commit` and `Renew` have answers of the same form, but for the items.
        let results = pb::v1::RenewResponse::decode(answer).map_or(0, |one| one.results.len());
        let items = pb::v1::RenewRequest::decode(message).map(|one| one.renewals.len());
        assert!(method != ServedMethod::Renew || items.is_err() || items == Ok(results));
    }
}

/// A verdict is a decision, or an error that names its call.
fn check_verdict(call: &str, verdict: &pb::v1::Verdict) {
    match &verdict.error {
        Some(error) => {
            assert!(error.message.starts_with(call), "{}", error.message);
            check_text(&error.message);
        }
        None => assert_ne!(verdict.code(), Code::Unknown),
    }
}

/// The same in JSON.
pub fn batch_json(input: &[u8]) {
    let Some((choice, body)) = input.split_first() else { return };
    let (method, field, answers) = METHODS[usize::from(*choice) % METHODS.len()];
    let (service, runtime) = &*SERVICE;
    let memory = service.arriving.connection(1 << 30);
    let answer =
        async |items| service.answer_json(method, items, &memory, BatchContext::alone()).await;
    match service.read_json(method, body).and_then(|items| runtime.block_on(answer(items))) {
        Ok(answer) => {
            let answer: serde_json::Value = serde_json::from_slice(&answer).expect("JSON");
            // Items that are too deep, or have too large numbers, have errors as answers.
            let Ok(items) = serde_json::from_slice::<serde_json::Value>(body) else { return };
            let items = items[field].as_array().map(Vec::len);
            assert_eq!(answer[answers].as_array().map(Vec::len), items);
        }
        Err(refusal @ (Refusal::Invalid(_) | Refusal::Empty)) => check_text(&refusal.to_string()),
        Err(other) => panic!("JSON is refused as {other:?}"),
    }
}

/// A rule file: every problem is one line, and rules that load decide every call.
pub fn rules(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let in_force = match rules::parse("rules.yaml", text, LoadOptions::default()) {
        Ok(in_force) => in_force,
        Err(problems) => {
            assert!(!problems.is_empty());
            return problems.iter().for_each(|problem| {
                assert!(!problem.to_string().contains(char::is_control), "{problem}");
            });
        }
    };
    for domain in in_force.rules.domains() {
        for rule in domain.rules() {
            let entries = rule.path.split('|').take(32).map(|part| Entry {
                key: Bytes::copy_from_slice(part.split('_').next().unwrap_or(part).as_bytes()),
                value: Bytes::copy_from_slice(part.as_bytes()),
            });
            let descriptor = Descriptor {
                entries: entries.collect(),
                hits: Hits::Charge(1),
                states_hits: false,
                limit: None,
            };
            let request =
                Request { domain: domain.name.to_string(), descriptors: vec![descriptor; 2] };
            let plan = Plan::draw(&in_force.rules, &request);
            let judged = MemoryStore::new(|| NOW).charge_at(&plan.charges, NOW);
            plan.settle(judged);
        }
    }
}

/// A limits file of limitador: every problem is one line, and what is translated are valid rules.
pub fn limitador(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let problems = match limitador::import_text("limits.yaml", text, &LimitadorOptions::default()) {
        Ok(rules) => [rules.refused, rules.warnings].concat(),
        Err(problems) => problems,
    };
    for problem in problems {
        assert_eq!(problem.file, "limits.yaml", "{problem}");
        assert!(!problem.message.starts_with("a bug"), "{problem}");
        assert!(!problem.to_string().contains(char::is_control), "{problem}");
    }
}

/// The text form of a descriptor: what is read and written again is the same.
pub fn descriptor(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match descriptor_syntax::parse(&*text) {
        Ok(entries) => {
            assert!(entries.iter().all(|entry| !entry.key.is_empty()));
            let written: Vec<String> = entries.iter().map(written).collect();
            assert_eq!(descriptor_syntax::parse(written.join(",")), Ok(entries));
        }
        Err(problem) => check_text(&problem),
    }
}

fn written(entry: &Entry) -> String {
    let escaped = |bytes: &[u8]| bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let [key, value]: [String; 2] = [escaped(&entry.key), escaped(&entry.value)];
    format!("{key}={value}")
}

/// Two counters share a key only if they are the same counter in the same window.
pub fn key(input: &[u8]) {
    let mut input = Reader(input);
    let (a, b) = (counter(&mut input), counter(&mut input));
    let [key_a, key_b] = [&a, &b].map(|(counter, ..)| counter.key(NOW));
    let same = a.1 == b.1;
    assert_eq!(key_a == key_b, same, "{key_a} and {key_b}");
    assert_eq!(a.0.same_counter(&b.0), same, "{key_a} and {key_b}");
    for key in [key_a, key_b] {
        assert!(key.bytes().all(|byte| byte.is_ascii_graphic()), "{key}");
        assert_eq!((key.matches('{').count(), key.matches('}').count()), (1, 1), "{key}");
    }
}

type Identity = (String, Vec<(Vec<u8>, Vec<u8>)>, &'static str, u64);

/// A counter, and what makes it differ from others.
fn counter(input: &mut Reader<'_>) -> (Counter, Identity) {
    let (unit, algorithm) = (input.byte() % 7, input.byte() % 5);
    let domain = String::from_utf8_lossy(input.bytes()).into_owned();
    let count = input.byte() % 4;
    let pairs: Vec<_> =
        (0..count).map(|_| (input.bytes().to_vec(), input.bytes().to_vec())).collect();
    let entry = |(key, value): &(Vec<u8>, Vec<u8>)| Entry {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(value),
    };
    let entries: Vec<Entry> = pairs.iter().map(entry).collect();
    let unit = Unit::ALL[usize::from(unit)];
    let algorithm = Algorithm::of_time(1, None)[usize::from(algorithm)].clone();
    let name = algorithm.short_name();
    let limit = Limit { algorithm, ..Limit::new(1, unit, 1).expect("a valid window") };
    let identity = (domain, pairs, name, unit.seconds());
    (Counter::new(&identity.0, &entries, Arc::new(limit)), identity)
}

/// Reads short parts from bytes; at their end, everything is zero or empty.
struct Reader<'input>(&'input [u8]);

impl<'input> Reader<'input> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn bytes(&mut self) -> &'input [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        self.0.split_off(..length).unwrap_or_default()
    }
}

/// What arrives from Redis: its framing, its values, and the replies of the scripts.
pub fn reply(input: &[u8]) {
    if let Ok(Some(length)) = resp::reply_length(input) {
        assert!(length <= input.len());
        let (whole, _) = input.split_at(length);
        assert_eq!(resp::reply_length(whole).ok(), Some(Some(length)), "the rest has no effect");
        for end in (0..length).rev().take(64) {
            let part = resp::reply_length(&whole[..end]).ok().flatten();
            assert_eq!(part, None, "complete after {end} of {length} bytes");
        }
        if let (Ok(fast), Ok(slow)) = (resp::integers(whole), resp::value::<Vec<i64>>(whole)) {
            assert_eq!(fast, slow);
        }
    }
    if let Ok(integers) = resp::integers(input) {
        read_outcomes(&integers);
    }
    drop(resp::value::<Vec<String>>(input));
    // Small numbers mean something to the scripts' replies, so most are small.
    let mut integers = vec![1_795_215_600, 0];
    integers.extend(input.iter().map(|byte| match byte {
        0xf0..=0xff => i64::MAX >> (4 * (byte & 15)),
        byte => i64::from(byte.cast_signed()),
    }));
    read_outcomes(&integers);
}

/// Runs of one call and of several, to which every reply is read.
static RUNS: LazyLock<Vec<(FixedRun, LedgerRun)>> = LazyLock::new(|| {
    let charges = |keys: &[&str]| -> Arc<[Charge]> {
        let entry =
            |key: &&str| Entry { key: Bytes::copy_from_slice(key.as_bytes()), value: "x".into() };
        let descriptor = |key| Descriptor {
            entries: vec![entry(key)],
            hits: Hits::Charge(1),
            states_hits: false,
            limit: None,
        };
        let descriptors = keys.iter().map(descriptor).collect();
        let request = Request { domain: "d".to_owned(), descriptors };
        Plan::draw(&IN_FORCE.rules, &request).charges.into()
    };
    let run = |fixed: &[&[&str]], ledger: &[&[&str]]| {
        let mut runs = (FixedRun::default(), LedgerRun::default());
        fixed.iter().for_each(|keys| runs.0.add(&charges(keys), NOW, "p:"));
        ledger.iter().for_each(|keys| runs.1.add(&charges(keys), NOW, "p:"));
        runs
    };
    vec![
        run(&[&["a"]], &[&["b"]]),
        run(&[&["a"], &["a"], &["a"]], &[&["a", "b"], &["c"], &["e", "a", "b"]]),
    ]
});

/// A reply that is read has one outcome for each call.
fn read_outcomes(integers: &[i64]) {
    for ((fixed, ledger), calls) in RUNS.iter().zip([(1, 1), (3, 3)]) {
        if let Some((_, outcomes)) = fixed.read(integers) {
            assert_eq!(outcomes.len(), calls.0);
        }
        if let Some((_, outcomes)) = ledger.read(integers) {
            assert_eq!(outcomes.len(), calls.1);
        }
    }
}

/// Flags and variables, a line each: the number of a row as a letter, `=` for a variable and anything else for
/// a flag, and the value. The store's password must appear nowhere.
pub fn settings(input: &[u8]) {
    const SECRET: &str = "s3cret-marker";
    let text = String::from_utf8_lossy(input);
    // A fuzzer learns the marker from our own comparison.
    if text.contains(SECRET) {
        return;
    }
    // A fuzzer that names files would read any of this machine's, and wait for pipes.
    let rows = settings::table().into_iter().filter(|row| !row.value.contains("FILE"));
    let rows: Vec<_> = rows.filter(|row| !names_a_file(row.flag)).collect();
    let (mut flags, mut variables) = (TypedFlags::new(), Vec::new());
    for line in text.lines() {
        let mut characters = line.chars();
        let (Some(row), Some(kind)) = (characters.next(), characters.next()) else { continue };
        let row = &rows[row as usize % rows.len()];
        let mut value = characters.as_str().to_owned();
        if row.flag == "store" && value.contains("://") {
            value = value.replacen("://", &format!("://user:{SECRET}"), 1);
        }
        match kind {
            '=' => variables.push((row.variable(), value)),
            _ => flags.entry(row.flag).or_default().push(value.into()),
        }
    }
    let resolved = settings::resolve(&flags, &Environment::new(variables));
    let mut texts: BTreeSet<String> = resolved.problems.into_iter().collect();
    texts.extend(resolved.settings.warnings.iter().cloned());
    texts.insert(resolved.settings.store.url.to_string());
    texts.insert(format!("{:?}", resolved.settings));
    for text in texts {
        assert!(!text.contains(SECRET), "{text}");
    }
}

fn names_a_file(flag: &str) -> bool {
    ["file", "tls-cert", "tls-key", "tls-client-ca", "tls-ca", "client-domains", "rules"]
        .iter()
        .any(|part| flag.ends_with(part))
}

/// The query of `/counters` on the admin address.
pub fn query(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match admin::request(Some(&text)) {
        Ok(request) => {
            assert_eq!(request.descriptors.len(), 1);
            Plan::draw(&IN_FORCE.rules, &request);
        }
        Err(problem) => check_text(&problem),
    }
}

/// The secret that signs forged tokens, as text for `--hold-key-file`.
pub const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// What a token says: unsigned it is never read, and signed it is committed at most once.
pub fn token(input: &[u8]) {
    let keys = HoldKeys::new([SECRET.as_bytes()].into_iter());
    assert!(keys.read(input, NOW).is_none());
    let Some(token) = keys.sealed(input.to_owned()) else { return };
    let Some((hold, _)) = keys.read(token.as_bytes(), NOW) else { return };
    let latest = NOW.plus_millis(86_400_000);
    assert!((1..=64).contains(&hold.charges.len()));
    assert!(hold.charges.iter().all(|charge| charge.made <= latest && charge.hits < 1 << 53));
    let store = MemoryStore::new(|| NOW);
    let entries: [Entry; 2] = ["hold.commit=x", "hold.used=42"].map(|text| {
        let (key, value) = text.split_once('=').expect("a pair");
        Entry { key: key.into(), value: value.into() }
    });
    let descriptor =
        Descriptor { entries: entries.into(), hits: Hits::Check, states_hits: true, limit: None };
    let (request, commits) =
        (Request { domain: "d".to_owned(), descriptors: vec![descriptor] }, [(0, hold)]);
    for turn in 0..2 {
        let plan = Plan::draw_as(&IN_FORCE.rules, None, &request, &commits, HitsMeaning::Charged);
        let verdict = store.charge_at(&plan.charges, NOW);
        assert!(!verdict.denied);
        let committed = plan.settle(verdict).commits;
        assert_eq!(committed.len(), commits[0].1.charges.len());
        let applied = |outcome| outcome == Some(CommitOutcome::Applied);
        assert!(turn == 0 || !committed.iter().any(|commit| applied(commit.outcome)));
    }
}

/// Like [`token`], for a token whose form is right and whose fields are anything.
pub fn token_fields(input: &[u8]) {
    token(&forged(input, NOW));
}

/// What a token says that is made about now, with each field chosen by the input. Without input all are usual.
pub fn forged(input: &[u8], now: Timestamp) -> Vec<u8> {
    let mut fields = Fields { input, written: vec![2] };
    let nonce: [u8; 12] = std::array::from_fn(|_| fields.next());
    fields.written.extend(nonce);
    fields.number(now.as_millis());
    let charges = match fields.next() {
        choice @ 0..200 => 1 + choice % 4,
        choice => choice / 3,
    };
    fields.varint(charges.into());
    for charge in 0..charges {
        let shared = if charge == 0 { 0 } else { 2 };
        fields.number(shared);
        let user = fields.next() % 4;
        let rest = format!("user=u{user}");
        fields.text(&(if shared == 0 { "d|" } else { "" }.to_owned() + &rest));
        fields.flag(false);
        fields.number(4);
        fields.number(0);
        let algorithm = fields.next() % 7;
        fields.written.push(algorithm);
        fields.number(if algorithm == 4 { 10 } else { 0 });
        fields.number(60);
        if fields.flag(false) {
            fields.text("month@Europe/Berlin");
        }
        fields.number(600_000);
        fields.number(77);
        for _ in 0..fields.count() {
            fields.text("input");
            fields.number(250);
        }
        if fields.flag(false) {
            for _ in 0..fields.count() {
                fields.text("5xx");
            }
        }
    }
    if fields.flag(false) {
        fields.written.extend([7; 24]);
    }
    fields.written
}

/// Fields of postcard's format, chosen by an input.
struct Fields<'input> {
    input: &'input [u8],
    written: Vec<u8>,
}

impl Fields<'_> {
    /// 0 when the input has ended.
    fn next(&mut self) -> u8 {
        self.input.split_off_first().copied().unwrap_or(0)
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.written.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.written.push(number as u8);
    }

    /// A number: mostly the usual one, or about that, or at a bound.
    fn number(&mut self, usual: u64) {
        let day_ms = 86_400_000;
        let number = match self.next() {
            0..215 => usual,
            215..222 => usual.wrapping_add(self.next().into()),
            222..229 => usual.wrapping_add(u64::from(self.next()) * day_ms),
            229..236 => usual.saturating_sub(u64::from(self.next()) * day_ms),
            236..239 => 0,
            239..242 => u64::MAX,
            242..245 => u64::from(u32::MAX),
            245..248 => (1 << 53) - 1,
            248..251 => 1 << 53,
            _ => u64::from_be_bytes(std::array::from_fn(|_| self.next())),
        };
        self.varint(number);
    }

    fn flag(&mut self, usual: bool) -> bool {
        let flag = usual ^ (self.next() >= 230);
        self.written.push(flag.into());
        flag
    }

    fn count(&mut self) -> u64 {
        let count = u64::from(self.next() / 8).saturating_sub(12);
        self.varint(count);
        count
    }

    fn text(&mut self, usual: &str) {
        let text = match self.next() {
            0..230 => usual.as_bytes().to_vec(),
            length => (0..length % 40).map(|_| self.next() & 0x7f).collect(),
        };
        self.varint(text.len() as u64);
        self.written.extend(text);
    }
}
