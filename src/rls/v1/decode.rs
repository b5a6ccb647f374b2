//! Turns the items of `tollkeeper.v1` into requests, within the bounds of every call.

use bytes::Bytes;
use prost::Message;

use crate::{
    engine::request::{Descriptor, ENTRIES_MAX, Entry, Hits, HitsMeaning, Request},
    rls::{
        decode::{Bounds, descriptors},
        pb::v1::{self, call::Mode},
        precheck::{check_counts, repeated},
        refusal::Refusal,
    },
};

/// A call as the limiter takes it.
pub(super) struct DecodedCall {
    pub(super) request: Request,
    pub(super) mode: Mode,
    pub(super) meaning: HitsMeaning,
    pub(super) overrides_ignored: u64,
}

/// The field numbers of `Call.descriptors`, `Renewal.commit` and `.call`, and `Commit.used_by_kind`.
const DESCRIPTORS: u32 = 1;
const COMMIT: u32 = 1;
const CALL: u32 = 2;
const USED_BY_KIND: u32 = 3;

/// Reads a call.
pub(super) fn call(bytes: Bytes, bounds: Bounds) -> Result<v1::Call, Refusal> {
    check_counts(repeated(&bytes, DESCRIPTORS), bounds)?;
    message(bytes)
}

/// Reads a commit.
pub(super) fn commit(bytes: &Bytes) -> Result<v1::Commit, Refusal> {
    check_kinds(repeated(bytes, USED_BY_KIND).count())?;
    message(bytes.clone())
}

/// Reads a renewal. A field that is repeated is merged, so all of its values count.
pub(super) fn renewal(bytes: Bytes, bounds: Bounds) -> Result<v1::Renewal, Refusal> {
    check_counts(repeated(&bytes, CALL).flat_map(|call| repeated(call, DESCRIPTORS)), bounds)?;
    check_kinds(
        repeated(&bytes, COMMIT).flat_map(|commit| repeated(commit, USED_BY_KIND)).count(),
    )?;
    message(bytes)
}

fn message<M: Message + Default>(bytes: Bytes) -> Result<M, Refusal> {
    M::decode(bytes).map_err(|error| Refusal::Malformed(error.to_string()))
}

/// Checks the number of kinds of a commit.
pub(super) fn check_kinds(count: usize) -> Result<(), Refusal> {
    if count > ENTRIES_MAX {
        return Err(Refusal::Invalid(format!("used_by_kind: {count} exceeds {ENTRIES_MAX}")));
    }
    Ok(())
}

impl DecodedCall {
    /// Checks a call, and fills in its defaults.
    pub(super) fn new(call: v1::Call, domain: &str) -> Result<Self, Refusal> {
        let Ok(mode) = Mode::try_from(call.mode) else {
            return Err(Refusal::Invalid(format!("mode: {} is not known", call.mode)));
        };
        if call.descriptors.is_empty() {
            return Err(Refusal::Empty);
        }
        let charges_nothing = matches!(mode, Mode::Check | Mode::Read);
        if charges_nothing && let Some(field) = stated_hits(&call) {
            let mode = mode.as_str_name();
            return Err(Refusal::Invalid(format!("{field}: must be absent with mode {mode}")));
        }
        let hits = if charges_nothing { 0 } else { call.hits.unwrap_or(1) };
        let (descriptors, overrides_ignored) =
            descriptors(call.descriptors, hits, call.hits.is_some())?;
        let meaning = match mode {
            Mode::Debit => HitsMeaning::Done,
            Mode::Take | Mode::Check | Mode::Read => HitsMeaning::Expected,
        };
        let request = Request { domain: domain.to_owned(), descriptors };
        Ok(Self { request, mode, meaning, overrides_ignored })
    }
}

/// The field by which a call states hits, if there is one.
fn stated_hits(call: &v1::Call) -> Option<String> {
    let states = |descriptor: &crate::rls::pb::RateLimitDescriptor| {
        descriptor.hits_addend.is_some() || descriptor.is_negative_hits
    };
    let own = call.descriptors.iter().position(states);
    let own = own.map(|index| format!("descriptors[{index}].hits_addend"));
    call.hits.map(|_| "hits".to_owned()).or(own)
}

/// The descriptor of a commit: the parameters that Envoy would send.
pub(super) fn commit_descriptor(commit: v1::Commit) -> Result<Descriptor, Refusal> {
    if commit.hold.is_empty() {
        return Err(Refusal::Invalid("hold: must not be empty".to_owned()));
    }
    let entry = |key: String, value: String| Entry { key: key.into(), value: value.into() };
    let mut entries = vec![entry("hold.commit".to_owned(), commit.hold)];
    let used = commit.used.map(|used| entry("hold.used".to_owned(), used.to_string()));
    entries.extend(used);
    for (kind, used) in commit.used_by_kind {
        entries.push(entry(format!("hold.used.{kind}"), used.to_string()));
    }
    if !commit.end.is_empty() {
        entries.push(entry("hold.end".to_owned(), commit.end));
    }
    Ok(Descriptor { entries, hits: Hits::Check, states_hits: true, limit: None })
}
