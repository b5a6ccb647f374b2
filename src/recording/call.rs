//! The parts of a call and its verdict that are recorded: the operator's words, and digests of what callers sent.

use std::hash::Hasher as _;

use bytes::Bytes;
use siphasher::sip::SipHasher24;
use tollkeeper_proto::{
    Entry, RateLimitDescriptor, RateLimitOverride,
    rate_limit_response::rate_limit::Unit as WireUnit,
    recording::{Over, RecordedCall, recorded_call::Meaning},
};

use crate::engine::{
    decision::{Code, Decision, Matched, Outcome, Status},
    parameters::Parameters,
    request::{self, Descriptor, Hits, HitsMeaning, Request},
    rule::{Limit, Unit},
    rule_set::{Domain, MatchedBy, RuleSet},
    time::Timestamp,
};

/// What stands before the digest of a value.
const DIGEST_MARK: char = '#';

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

/// How values are recorded.
pub(super) struct RecordedValues<'rules> {
    pub(super) rules: &'rules RuleSet,
    pub(super) digests: &'rules SipHasher24,
    pub(super) shows_values: bool,
}

impl RecordedValues<'_> {
    pub(super) fn call(&self, call: Recorded<'_>) -> RecordedCall {
        let Recorded { request, meaning, decision, at, without_store } = call;
        let statuses = &decision.statuses;
        let domain = self.rules.domain(&request.domain);
        let descriptors = request
            .descriptors
            .iter()
            .zip(statuses)
            .map(|(descriptor, status)| self.descriptor(domain, descriptor, status));
        let over = statuses.iter().zip(0..).filter_map(|(status, index)| over(status, index));
        RecordedCall {
            at_ms: at.as_millis(),
            domain: request.domain.clone(),
            descriptors: descriptors.collect(),
            meaning: match meaning {
                HitsMeaning::Charged => Meaning::Charged,
                HitsMeaning::Expected => Meaning::Expected,
                HitsMeaning::Done => Meaning::Done,
                HitsMeaning::Part => Meaning::Part,
                HitsMeaning::Checked => Meaning::Checked,
                HitsMeaning::Read => Meaning::Read,
            }
            .into(),
            denied: decision.code == Code::OverLimit,
            hits: request.descriptors.iter().find(|one| !one.states_hits).map_or(0, hits),
            over: over.collect(),
            hold: decision
                .token
                .as_ref()
                .map(|token| self.digest(token.as_bytes()))
                .unwrap_or_default(),
            without_store,
            overridden: statuses.iter().any(|status| status.directive.is_some()),
        }
    }

    fn descriptor(
        &self,
        domain: Option<&Domain>,
        descriptor: &Descriptor,
        status: &Status,
    ) -> RateLimitDescriptor {
        let mut matches = Vec::new();
        if let Some(domain) = domain {
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
        let mut matches = matches.into_iter();
        let entry = |entry: &request::Entry| {
            let named = match domain {
                Some(domain) if domain.is_beside_path(entry) => beside_path(entry, status),
                _ => matches.next().unwrap_or(NamedBy::Nothing),
            };
            Entry { key: entry.key.clone(), value: self.value(domain, entry, named) }
        };
        RateLimitDescriptor {
            entries: descriptor.entries.iter().map(entry).collect(),
            limit: descriptor.limit.as_ref().map(written),
            hits_addend: descriptor.states_hits.then_some(hits(descriptor)),
            is_negative_hits: matches!(descriptor.hits, Hits::Refund(_)),
        }
    }

    /// What stands for a value: itself, if it is the operator's, or a digest, in the form of the pattern that it matches.
    fn value(&self, domain: Option<&Domain>, entry: &request::Entry, named: NamedBy<'_>) -> Bytes {
        let is_secret = |domain: &Domain| domain.secret_keys.contains(&*entry.key);
        let may_show = domain.is_some_and(|domain| !is_secret(domain));
        let is_shown = self.shows_values && !Parameters::is_parameter(entry);
        match named {
            NamedBy::Value if may_show => entry.value.clone(),
            _ if may_show && is_shown => entry.value.clone(),
            NamedBy::Pattern(pattern) => {
                let digest = self.digest(&entry.value);
                Bytes::from(pattern.replacen('*', &digest, 1).replace('*', ""))
            }
            NamedBy::Value | NamedBy::Nothing => Bytes::from(self.digest(&entry.value)),
        }
    }

    fn digest(&self, value: &[u8]) -> String {
        let mut hasher = *self.digests;
        hasher.write(value);
        format!("{DIGEST_MARK}{:016x}", hasher.finish())
    }
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

fn over(status: &Status, descriptor_index: u32) -> Option<Over> {
    let (limit, reset, shadow) = match (&status.outcome, &status.over_shadow) {
        (Outcome::Over { limit, reset, .. }, _) => (limit, reset, false),
        (_, Some((limit, reset))) => (limit, reset, true),
        (_, None) => return None,
    };
    let rule = status.matched.rule_label().to_owned();
    let reset_ms = u64::try_from(reset.as_millis()).unwrap_or(u64::MAX);
    Some(Over { descriptor_index, rule, limit: limit.to_string(), reset_ms, shadow })
}

/// A limit of a request, as the wire writes it.
fn written(limit: &Limit) -> RateLimitOverride {
    let unit = match limit.unit {
        Unit::Second => WireUnit::Second,
        Unit::Minute => WireUnit::Minute,
        Unit::Hour => WireUnit::Hour,
        Unit::Day => WireUnit::Day,
        Unit::Week => WireUnit::Week,
        Unit::Month => WireUnit::Month,
        Unit::Year => WireUnit::Year,
    };
    RateLimitOverride {
        requests_per_unit: u32::try_from(limit.requests_per_unit).unwrap_or(u32::MAX),
        unit: unit.into(),
        unit_multiplier: Some(limit.unit_multiplier),
    }
}
