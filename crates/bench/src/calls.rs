//! The requests of a run: one template, in whose values `{}` stands for the number of a key; perhaps commits of the
//! holds that they have taken.
//!
//! Every descriptor is encoded before the run, once for each number that it may have.

use bytes::Bytes;
use prost::Message as _;
use prost_types::value::Kind;
use tollkeeper_base::net::grpc::{self, PREFIX_BYTES};
use tollkeeper_proto::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};

use super::keys::{Distribution, Numbers};

/// Stands for the number of a key.
const PLACEHOLDER: &[u8] = b"{}";

#[derive(Debug, Clone)]
pub struct Calls {
    /// The encoded message without its descriptors.
    head: Bytes,
    descriptors: Vec<Variants>,
    numbers: Numbers,
    /// The hits that commits state, if holds are committed.
    used: Option<u64>,
    /// Encoded commits that are to be made next.
    commits: Vec<Bytes>,
}

/// One descriptor, encoded for each number; without a placeholder there is one variant.
type Variants = Vec<Bytes>;

impl Calls {
    /// Requests like `template`. Each descriptor draws a number below `keys`, which replaces all
    /// placeholders in it.
    pub fn new(template: &RateLimitRequest, keys: usize, distribution: Distribution) -> Self {
        let head = RateLimitRequest { descriptors: vec![], ..template.clone() };
        let keys = keys.max(1);
        Self {
            head: head.encode_to_vec().into(),
            descriptors: template
                .descriptors
                .iter()
                .map(|descriptor| variants(descriptor, keys))
                .collect(),
            numbers: Numbers::new(keys, distribution),
            used: None,
            commits: Vec::new(),
        }
    }

    /// These calls; with `used`, each hold that is taken is committed with this number of hits.
    #[must_use]
    pub fn committing(self, used: Option<u64>) -> Self {
        Self { used, ..self }
    }

    /// The requests of one of several threads, which draw other numbers.
    pub(super) fn of_thread(&self, index: usize, threads: usize) -> Self {
        Self { numbers: self.numbers.of_thread(index, threads), ..self.clone() }
    }

    /// The next request, as gRPC sends it: a prefix with its length, and the message.
    pub(super) fn next(&mut self) -> Bytes {
        if let Some(commit) = self.commits.pop() {
            return commit;
        }
        let Self { head, descriptors, numbers, .. } = self;
        let drawn: Vec<&Bytes> =
            descriptors.iter().filter_map(|variants| draw(variants, numbers)).collect();
        frame(head, &drawn)
    }

    /// Prepares the commit of the hold that a call has taken, by its answer.
    pub(super) fn answered(&mut self, message: &[u8]) {
        let Some(used) = self.used else { return };
        let token = RateLimitResponse::decode(message).ok().and_then(token);
        if let Some(token) = token {
            let entry =
                |key: &'static str, value: String| Entry { key: key.into(), value: value.into() };
            let entries = vec![entry("hold.commit", token), entry("hold.used", used.to_string())];
            let descriptor = RateLimitDescriptor { entries, ..Default::default() };
            self.commits.push(frame(&self.head, &[&encode(&descriptor, 0)]));
        }
    }
}

/// The token of the hold that a call has taken.
fn token(mut response: RateLimitResponse) -> Option<String> {
    match response.dynamic_metadata.as_mut()?.fields.remove("hold")?.kind? {
        Kind::StringValue(token) => Some(token),
        _ => None,
    }
}

fn frame(head: &Bytes, descriptors: &[&Bytes]) -> Bytes {
    let length = head.len() + descriptors.iter().map(|descriptor| descriptor.len()).sum::<usize>();
    let mut frame = Vec::with_capacity(PREFIX_BYTES + length);
    frame.extend(grpc::prefix(length));
    frame.extend_from_slice(head);
    for descriptor in descriptors {
        frame.extend_from_slice(descriptor);
    }
    frame.into()
}

fn variants(descriptor: &RateLimitDescriptor, keys: usize) -> Variants {
    let numbers = if has_placeholder(descriptor) { keys } else { 1 };
    (0..numbers).map(|number| encode(descriptor, number)).collect()
}

fn draw<'a>(variants: &'a Variants, numbers: &mut Numbers) -> Option<&'a Bytes> {
    match variants.as_slice() {
        [only] => Some(only),
        several => several.get(numbers.draw()),
    }
}

fn has_placeholder(descriptor: &RateLimitDescriptor) -> bool {
    descriptor.entries.iter().any(|entry| memchr::memmem::find(&entry.value, PLACEHOLDER).is_some())
}

/// Encodes a request with only this descriptor: in Protobuf, concatenated messages are one message.
fn encode(descriptor: &RateLimitDescriptor, number: usize) -> Bytes {
    let mut descriptor = descriptor.clone();
    for entry in &mut descriptor.entries {
        entry.value = fill(&entry.value, number);
    }
    let request = RateLimitRequest { descriptors: vec![descriptor], ..Default::default() };
    request.encode_to_vec().into()
}

fn fill(mut value: &[u8], number: usize) -> Bytes {
    let mut filled = Vec::new();
    while let Some(at) = memchr::memmem::find(value, PLACEHOLDER) {
        let (before, after) = value.split_at(at);
        filled.extend_from_slice(before);
        filled.extend_from_slice(number.to_string().as_bytes());
        value = after.strip_prefix(PLACEHOLDER).unwrap_or_default();
    }
    filled.extend_from_slice(value);
    filled.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollkeeper_proto::Entry;

    fn descriptor(value: &'static str) -> RateLimitDescriptor {
        let entry = Entry { key: "user".into(), value: value.into() };
        RateLimitDescriptor { entries: vec![entry], hits_addend: Some(3), ..Default::default() }
    }

    #[track_caller]
    fn check(values: &[&'static str], expected: [&[&str]; 3]) {
        let template = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: values.iter().map(|value| descriptor(value)).collect(),
            hits_addend: 2,
        };
        let mut calls = Calls::new(&template, 3, Distribution::Sequential);
        for expected in expected {
            let frame = calls.next();
            let (prefix, message) = frame.split_at(5);
            assert_eq!(prefix, [0, 0, 0, 0, u8::try_from(message.len()).unwrap()]);
            let sent = RateLimitRequest::decode(message).unwrap();
            let values: Vec<_> =
                sent.descriptors.iter().map(|descriptor| &descriptor.entries[0].value).collect();
            assert_eq!(values, expected);
            assert_eq!((sent.domain.as_str(), sent.hits_addend), ("shop", 2));
            for descriptor in &sent.descriptors {
                assert_eq!(descriptor.hits_addend, Some(3));
            }
        }
    }

    #[test]
    fn a_hold_that_is_taken_is_committed_by_the_next_call() {
        let descriptors = vec![descriptor("alice")];
        let template = RateLimitRequest { domain: "shop".to_owned(), descriptors, hits_addend: 0 };
        let hold = prost_types::Value { kind: Some(Kind::StringValue("TOKEN".to_owned())) };
        let fields = [("hold".to_owned(), hold)].into();
        let dynamic_metadata = Some(prost_types::Struct { fields });
        let answer = RateLimitResponse { dynamic_metadata, ..Default::default() }.encode_to_vec();
        let next = |used| {
            let mut calls = Calls::new(&template, 1, Distribution::Uniform).committing(used);
            calls.answered(&answer);
            [calls.next(), calls.next()].map(|frame| {
                let request = RateLimitRequest::decode(frame.slice(5..)).unwrap();
                let entries = request.descriptors.into_iter().flat_map(|one| one.entries);
                let entries = entries.map(|entry| format!("{entry:?}"));
                (request.domain, entries.collect::<Vec<_>>())
            })
        };
        assert_eq!(next(None)[0], next(Some(42))[1]);
        let entry = |key: &'static str, value: &'static str| {
            format!("{:?}", Entry { key: key.into(), value: value.into() })
        };
        let commit = vec![entry("hold.commit", "TOKEN"), entry("hold.used", "42")];
        assert_eq!(next(Some(42))[0], ("shop".to_owned(), commit));
    }

    #[test]
    fn a_request_without_a_placeholder_is_always_the_same() {
        check(&["alice", "{bob}"], [&["alice", "{bob}"], &["alice", "{bob}"], &["alice", "{bob}"]]);
    }

    #[test]
    fn placeholders_of_a_descriptor_share_its_number_and_each_descriptor_has_its_own() {
        check(&["u{}/{}"], [&["u0/0"], &["u1/1"], &["u2/2"]]);
        check(&["{}", "x", "{}."], [&["0", "x", "1."], &["2", "x", "0."], &["1", "x", "2."]]);
    }
}
