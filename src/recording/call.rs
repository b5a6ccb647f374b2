//! The parts of a call and its verdict that are recorded: the operator's words, and digests of what callers sent.

use std::mem;

use bytes::{BufMut as _, Bytes, BytesMut};
use hashbrown::HashMap;
use siphasher::sip::SipHasher24;
use smallvec::SmallVec;
use tollkeeper_proto::{
    RateLimitDescriptor, rate_limit_response::rate_limit::Unit as WireUnit,
    recording::recorded_call::Meaning,
};

use crate::{
    engine::{
        decision::{Code, Decision, Matched, Outcome, Status},
        parameters::Parameters,
        request::{self, Descriptor, Hits, HitsMeaning, Request},
        rule::{Limit, Unit},
        rule_set::{Domain, MatchedBy, RuleSet},
        time::Timestamp,
    },
    fields::{delimited, nested, number, text, write_bytes},
};

/// What stands before the digest of a value.
const DIGEST_MARK: u8 = b'#';

/// Stands for a digest in a shape.
const ANY: &str = "*";

/// A longer call is dropped, so that callers fill the memory of this process no further than with buffers of about this size.
pub(super) const CALL_BYTES_MAX: usize = 64 << 10;

/// The most shapes that are known: where descriptors have hits of their own, there are as many as numbers of hits.
const SHAPES_MAX: usize = 256;

/// A call to record, and how it was decided.
#[derive(Debug, Clone, Copy)]
pub struct Recorded<'call> {
    pub request: &'call Request,
    pub meaning: HitsMeaning,
    pub decision: &'call Decision,
    /// When it was decided, by the clock of the store.
    pub at: Timestamp,
    /// Whether `on_store_failure` decided for a counter.
    pub without_store: bool,
}

/// The shapes of the calls of a block: what calls have in common that differ only in their values. Most calls have one of few.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    numbers: HashMap<Box<[u8]>, u64>,
    /// The encoded shape of the present call, and its values.
    shape: Vec<u8>,
    values: Vec<u8>,
}

impl Shapes {
    /// Begins a block.
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
    }
}

/// How values are recorded.
pub(super) struct RecordedValues<'rules> {
    pub(super) rules: &'rules RuleSet,
    pub(super) digests: &'rules SipHasher24,
    pub(super) shows_values: bool,
}

impl RecordedValues<'_> {
    /// Writes a `RecordedCall` behind its length, unless it is too long. Returns whether it is written.
    pub(super) fn write(&self, call: Recorded<'_>, shapes: &mut Shapes, to: &mut Vec<u8>) -> bool {
        let Recorded { request, meaning, decision, at, without_store } = call;
        let statuses = &decision.statuses;
        let domain = self.rules.domain(&request.domain);
        let meaning = match meaning {
            HitsMeaning::Charged => Meaning::Charged,
            HitsMeaning::Expected => Meaning::Expected,
            HitsMeaning::Done => Meaning::Done,
            HitsMeaning::Part => Meaning::Part,
            HitsMeaning::Lease => Meaning::Lease,
            HitsMeaning::Assigned => Meaning::Assigned,
            HitsMeaning::Checked => Meaning::Checked,
            HitsMeaning::Read => Meaning::Read,
        };
        let of_all = request.descriptors.iter().find(|one| !one.states_hits).map_or(0, hits);
        let overridden = statuses.iter().any(|status| status.directive.is_some());
        let Shapes { numbers, shape, values } = shapes;
        shape.clear();
        values.clear();
        text(2, &request.domain, shape);
        for (descriptor, status) in request.descriptors.iter().zip(statuses) {
            nested(3, shape, |to| self.write_descriptor(domain, descriptor, status, to, values));
        }
        let known = numbers.get(&**shape).copied();
        let shape_number = known.unwrap_or(numbers.len() as u64 + 1);
        let begin = to.len();
        delimited(to, |to| {
            number(1, at.as_millis(), to);
            if known.is_none() {
                to.extend_from_slice(shape);
            }
            number(11, shape_number, to);
            number(4, meaning as u64, to);
            number(5, of_all, to);
            number(6, (decision.code == Code::OverLimit).into(), to);
            for (status, index) in statuses.iter().zip(0..) {
                write_over(status, index, to);
            }
            if let Some(token) = &decision.token {
                write_bytes(8, &hex(self.digest(token.as_bytes())), to);
            }
            number(9, without_store.into(), to);
            number(10, overridden.into(), to);
            to.extend_from_slice(values);
        });
        let is_short = to.len() - begin <= CALL_BYTES_MAX;
        if !is_short {
            to.truncate(begin);
            (*shape, *values) = (Vec::new(), Vec::new());
        } else if known.is_none() && numbers.len() < SHAPES_MAX {
            numbers.insert(shape.as_slice().into(), shape_number);
        }
        is_short
    }

    /// Writes a descriptor, and its values apart.
    fn write_descriptor(
        &self,
        domain: Option<&Domain>,
        descriptor: &Descriptor,
        status: &Status,
        to: &mut Vec<u8>,
        values: &mut Vec<u8>,
    ) {
        let mut matches = SmallVec::<[NamedBy<'_>; 4]>::new();
        let names_none = matches!(&status.matched, Matched::Rule(_, rule) if !rule.names_values());
        if let Some(domain) = domain.filter(|_| !names_none) {
            let path = domain.path(&descriptor.entries);
            domain.walk(&path, |_, candidates, matched_by| {
                matches.push(match matched_by {
                    MatchedBy::Value => NamedBy::Value,
                    MatchedBy::Pattern(index) => {
                        candidates.patterns().nth(index).map_or(NamedBy::Nothing, NamedBy::Pattern)
                    }
                    MatchedBy::Key | MatchedBy::Nothing => NamedBy::Nothing,
                });
            });
        }
        let mut matches = matches.iter().copied();
        for entry in &*descriptor.entries {
            let named = match domain {
                Some(domain) if domain.is_beside_path(entry) => beside_path(entry, status),
                _ => matches.next().unwrap_or(NamedBy::Nothing),
            };
            nested(1, to, |to| {
                write_bytes(1, &entry.key, to);
                self.write_value(domain, entry, named, to, values);
            });
        }
        if let Some(limit) = &descriptor.limit {
            nested(2, to, |to| write_limit(limit, to));
        }
        if descriptor.states_hits {
            nested(3, to, |to| number(1, hits(descriptor), to));
        }
        number(4, matches!(descriptor.hits, Hits::Refund(_)).into(), to);
    }

    /// Writes what stands for a value: itself, if it is the operator's, or a digest, in the form of the pattern that it
    /// matches.
    fn write_value(
        &self,
        domain: Option<&Domain>,
        entry: &request::Entry,
        named: NamedBy<'_>,
        to: &mut Vec<u8>,
        values: &mut Vec<u8>,
    ) {
        let is_secret = |domain: &Domain| domain.secret_keys.contains(&*entry.key);
        let may_show = || domain.is_some_and(|domain| !is_secret(domain));
        let is_shown = self.shows_values && !Parameters::is_parameter(entry);
        match named {
            NamedBy::Value if may_show() => return write_bytes(12, &entry.value, values),
            _ if is_shown && may_show() => return write_bytes(12, &entry.value, values),
            NamedBy::Pattern(pattern) => text(2, pattern, to),
            NamedBy::Value | NamedBy::Nothing => text(2, ANY, to),
        }
        write_bytes(12, &self.digest(&entry.value), values);
    }

    fn digest(&self, value: &[u8]) -> [u8; 8] {
        self.digests.hash(value).to_be_bytes()
    }
}

/// Puts the values of a call into the entries of its shape. They get their memory from `memory`.
///
/// # Errors
/// What is wrong with the values.
pub fn fill_in(
    descriptors: &mut [RateLimitDescriptor],
    values: Vec<Bytes>,
    memory: &mut BytesMut,
) -> Result<(), &'static str> {
    let mut values = values.into_iter();
    for entry in descriptors.iter_mut().flat_map(|descriptor| &mut descriptor.entries) {
        let value = values.next().ok_or("a value is missing")?;
        let pattern = mem::replace(&mut entry.value, value);
        let mut parts = pattern.split(|byte| *byte == b'*');
        let before = parts.next().unwrap_or_default();
        let Some(after) = parts.next() else { continue };
        memory.put_slice(before);
        let digest = (&*entry.value).try_into().map_err(|_| "a digest has not 8 bytes")?;
        memory.put_slice(&hex(digest));
        memory.put_slice(after);
        parts.for_each(|part| memory.put_slice(part));
        entry.value = memory.split().freeze();
    }
    Ok(())
}

/// A digest, as it is shown.
fn hex(digest: [u8; 8]) -> [u8; 17] {
    let mut shown = [DIGEST_MARK; 17];
    let [_, digits @ ..] = &mut shown;
    for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&[byte >> 4, byte & 0xf].map(hex_digit));
    }
    shown
}

const fn hex_digit(number: u8) -> u8 {
    if number < 10 { b'0' + number } else { b'a' + number - 10 }
}

/// How rules name a value.
#[derive(Debug, Clone, Copy)]
enum NamedBy<'rules> {
    Value,
    Pattern(&'rules str),
    Nothing,
}

/// A number of a hold, and the class of a call if its rule has it, are the operator's words too.
fn beside_path(entry: &request::Entry, status: &Status) -> NamedBy<'static> {
    let limits = match &status.matched {
        Matched::Rule(_, rule) => rule.limits(),
        _ => &[],
    };
    let mut priorities = limits.iter().filter_map(|limit| limit.priority.as_ref());
    let is_class = priorities.any(|priority| {
        let mut names = priority.shares.iter().map(|(name, _)| name.as_bytes());
        *priority.entry.as_bytes() == *entry.key && names.any(|name| *name == *entry.value)
    });
    if is_class || Parameters::is_harmless(entry) { NamedBy::Value } else { NamedBy::Nothing }
}

const fn hits(descriptor: &Descriptor) -> u64 {
    match descriptor.hits {
        Hits::Charge(hits) | Hits::Refund(hits) => hits,
        Hits::Check | Hits::Commit => 0,
    }
}

fn write_over(status: &Status, descriptor_index: u64, to: &mut Vec<u8>) {
    let (limit, reset, shadow) = match (&status.outcome, &status.over_shadow) {
        (Outcome::Over { limit, reset, .. }, _) => (limit, reset, false),
        (_, Some((limit, reset))) => (limit, reset, true),
        (_, None) => return,
    };
    nested(7, to, |to| {
        number(1, descriptor_index, to);
        text(2, status.matched.rule_label(), to);
        text(3, &limit.to_string(), to);
        number(4, u64::try_from(reset.as_millis()).unwrap_or(u64::MAX), to);
        number(5, shadow.into(), to);
    });
}

/// Writes a limit of a request, as the wire has it.
fn write_limit(limit: &Limit, to: &mut Vec<u8>) {
    let unit = match limit.unit {
        Unit::Second => WireUnit::Second,
        Unit::Minute => WireUnit::Minute,
        Unit::Hour => WireUnit::Hour,
        Unit::Day => WireUnit::Day,
        Unit::Week => WireUnit::Week,
        Unit::Month => WireUnit::Month,
        Unit::Year => WireUnit::Year,
    };
    number(1, u32::try_from(limit.requests_per_unit).unwrap_or(u32::MAX).into(), to);
    number(2, unit as u64, to);
    nested(3, to, |to| number(1, limit.unit_multiplier.into(), to));
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use prost::Message as _;
    use tollkeeper_proto::{
        Entry, RateLimitDescriptor, RateLimitOverride,
        recording::{Over, RecordedCall},
    };

    use super::*;
    use crate::engine::ledger::JudgedBy;

    #[test]
    fn a_call_is_read_as_it_was_written() {
        let (rules, digests) = (RuleSet::default(), SipHasher24::new());
        let values = RecordedValues { rules: &rules, digests: &digests, shows_values: false };
        let limit = Limit::new(9, Unit::Hour, 2).unwrap();
        let key = "k".repeat(200);
        let descriptor = |hits, states_hits, limit| {
            let entry = request::Entry { key: key.clone().into(), value: "alice".into() };
            Descriptor { entries: vec![entry], hits, states_hits, limit }
        };
        let descriptors = vec![
            descriptor(Hits::Charge(300), false, None),
            descriptor(Hits::Refund(7), true, Some(limit.clone())),
            descriptor(Hits::Check, true, None),
        ];
        let over = |reset| Outcome::Over {
            limit: Arc::new(limit.clone()),
            reset: Duration::from_millis(reset),
            judged_by: JudgedBy::Counter,
        };
        let outcomes = [Outcome::NoLimit, over(70_000), over(0)];
        let status = |outcome| Status::settled(Matched::NoDomain, outcome, None);
        let decision = Decision {
            code: Code::OverLimit,
            part: None,
            statuses: outcomes.map(status).into(),
            taken: None,
            taken_by_id: Vec::new(),
            at: None,
            token: Some("token".to_owned()),
            commits: Vec::new(),
            passed_groups: None,
            request_headers: Vec::new(),
        };
        let request = Request { domain: "shop".to_owned(), descriptors };
        let call = Recorded {
            request: &request,
            meaning: HitsMeaning::Part,
            decision: &decision,
            at: Timestamp::from_millis(1_700_000_000_000),
            without_store: true,
        };
        let (mut shapes, mut written) = (Shapes::default(), Vec::new());
        for _ in 0..2 {
            assert!(values.write(call, &mut shapes, &mut written));
        }

        let descriptor = |hits_addend, limit| RateLimitDescriptor {
            entries: vec![Entry { key: key.clone().into(), value: "*".into() }],
            limit,
            hits_addend,
            is_negative_hits: hits_addend == Some(7),
        };
        let own = RateLimitOverride {
            requests_per_unit: 9,
            unit: WireUnit::Hour.into(),
            unit_multiplier: Some(2),
        };
        let over = |descriptor_index, reset_ms| Over {
            descriptor_index,
            rule: Matched::NoDomain.rule_label().to_owned(),
            limit: limit.to_string(),
            reset_ms,
            shadow: false,
        };
        let expected = RecordedCall {
            at_ms: 1_700_000_000_000,
            domain: "shop".to_owned(),
            descriptors: vec![
                descriptor(None, None),
                descriptor(Some(7), Some(own)),
                descriptor(Some(0), None),
            ],
            meaning: Meaning::Part.into(),
            denied: true,
            hits: 300,
            over: vec![over(1, 70_000), over(2, 0)],
            hold: String::from_utf8(hex(values.digest(b"token")).into()).unwrap(),
            without_store: true,
            overridden: false,
            shape: 1,
            values: vec![values.digest(b"alice").to_vec().into(); 3],
        };
        let mut written = &*written;
        assert_eq!(RecordedCall::decode_length_delimited(&mut written), Ok(expected.clone()));
        // What the second has in common with the first is not repeated.
        let second = RecordedCall { domain: String::new(), descriptors: Vec::new(), ..expected };
        assert_eq!(RecordedCall::decode_length_delimited(&mut written), Ok(second));
        assert!(written.is_empty());

        // Of many shapes, the first are known.
        let mut written = Vec::new();
        for number in (0..300).chain(0..300) {
            let request = Request { domain: number.to_string(), descriptors: Vec::new() };
            let call = Recorded { request: &request, ..call };
            assert!(values.write(call, &mut shapes, &mut written));
        }
        let (mut written, mut repeated) = (&*written, 0);
        while let Ok(call) = RecordedCall::decode_length_delimited(&mut written) {
            repeated += usize::from(call.domain.is_empty());
        }
        assert_eq!((repeated, written.len()), (SHAPES_MAX - 1, 0));
    }

    #[test]
    fn values_are_filled_into_what_calls_have_in_common() {
        let digest: &[u8] = b"\x01\x23\x45\x67\x89\xab\xcd\xef";
        let filled =
            |pattern: &'static str, values: &[&'static [u8]]| -> Result<Bytes, &'static str> {
                let entry = Entry { key: "key".into(), value: pattern.into() };
                let entries = vec![entry];
                let mut descriptors =
                    [RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
                let values = values.iter().copied().map(Bytes::from_static).collect();
                fill_in(&mut descriptors, values, &mut BytesMut::new())?;
                Ok(descriptors[0].entries[0].value.clone())
            };
        assert_eq!(filled("", &[b"a*b"]), Ok("a*b".into()));
        assert_eq!(filled("*", &[digest]), Ok("#0123456789abcdef".into()));
        assert_eq!(filled("/a/*/of/*/b", &[digest]), Ok("/a/#0123456789abcdef/of//b".into()));
        assert_eq!(filled("*", &[b"short"]), Err("a digest has not 8 bytes"));
        assert_eq!(filled("*", &[]), Err("a value is missing"));
    }
}
