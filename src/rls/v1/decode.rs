//! Turns the items of `tollkeeper.v1` into requests, within the bounds of every call.

use bytes::Bytes;
use prost::Message;

use crate::{
    engine::request::{Descriptor, ENTRIES_MAX, Entry, Hits, HitsMeaning, Request},
    rls::{
        decode::{Bounds, descriptors},
        pb::{
            RateLimitDescriptor,
            v1::{self, call::Mode},
        },
        precheck::{check_counts, repeated, varint},
        refusal::Refusal,
    },
    text::printable::printable_start,
};

pub(super) struct DecodedCall {
    pub(super) request: Request,
    pub(super) mode: Mode,
    pub(super) meaning: HitsMeaning,
    pub(super) hits: u64,
    pub(super) overrides_ignored: u64,
}

/// The longest id of a call, in bytes.
const ID_BYTES_MAX: usize = 128;

/// The field numbers of `Call.descriptors` and `.hits_by_kind`, `Renewal.commit` and `.call`, and `Commit.used_by_kind`.
const DESCRIPTORS: u32 = 1;
const HITS_BY_KIND: u32 = 4;
const COMMIT: u32 = 1;
const CALL: u32 = 2;
const USED_BY_KIND: u32 = 3;

pub(super) enum ReadCall {
    /// One that has descriptors only, and these have entries only.
    Plain(Vec<Descriptor>),
    /// In a box, since it is large and moved several times.
    Message(Box<v1::Call>),
}

impl ReadCall {
    /// Checks the call, and fills in its defaults.
    pub(super) fn decoded(self, domain: &str) -> Result<DecodedCall, Refusal> {
        match self {
            Self::Plain(descriptors) => Ok(DecodedCall::plain(descriptors, domain)),
            Self::Message(call) => DecodedCall::new(*call, domain),
        }
    }
}

pub(super) fn call(bytes: &[u8], batch: &Bytes, bounds: Bounds) -> Result<ReadCall, Refusal> {
    if let Some(descriptors) = plain_descriptors(bytes, batch, bounds) {
        return Ok(ReadCall::Plain(descriptors));
    }
    check_counts(repeated(bytes, DESCRIPTORS), bounds)?;
    check_kinds("hits_by_kind", repeated(bytes, HITS_BY_KIND).count())?;
    message(batch.slice_ref(bytes)).map(Box::new).map(ReadCall::Message)
}

/// The descriptors of a call that has nothing else, as most calls of a batch; `None` also if it is refused.
fn plain_descriptors(mut rest: &[u8], batch: &Bytes, bounds: Bounds) -> Option<Vec<Descriptor>> {
    let mut descriptors = Vec::with_capacity(1);
    while !rest.is_empty() {
        let mut fields = next_value(&mut rest, 1)?;
        let mut entries = Vec::new();
        while !fields.is_empty() {
            let mut entry = next_value(&mut fields, 1)?;
            let (key, value) = (next_value(&mut entry, 1)?, next_value(&mut entry, 2)?);
            if key.is_empty() || !entry.is_empty() || entries.len() == ENTRIES_MAX {
                return None;
            }
            entries.push(Entry { key: batch.slice_ref(key), value: batch.slice_ref(value) });
        }
        descriptors.push(Descriptor::new(entries, Hits::Charge(1)));
        bounds.check_descriptors(descriptors.len()).ok()?;
    }
    (!descriptors.is_empty()).then_some(descriptors)
}

/// The value of the next field, if it has this number, and a value with a length.
fn next_value<'message>(message: &mut &'message [u8], number: u8) -> Option<&'message [u8]> {
    message.split_off_first().filter(|tag| **tag == number << 3 | 2)?;
    let length = usize::try_from(varint(message)?).ok()?;
    message.split_off(..length)
}

pub(super) fn commit(bytes: Bytes) -> Result<v1::Commit, Refusal> {
    check_kinds("used_by_kind", repeated(&bytes, USED_BY_KIND).count())?;
    message(bytes)
}

/// Reads a renewal. A field that is repeated is merged, so all of its values count.
pub(super) fn renewal(bytes: Bytes, bounds: Bounds) -> Result<v1::Renewal, Refusal> {
    let of_each = |part, field| repeated(&bytes, part).flat_map(move |part| repeated(part, field));
    check_counts(of_each(CALL, DESCRIPTORS), bounds)?;
    check_kinds("call.hits_by_kind", of_each(CALL, HITS_BY_KIND).count())?;
    check_kinds("commit.used_by_kind", of_each(COMMIT, USED_BY_KIND).count())?;
    message(bytes)
}

fn message<M: Message + Default>(bytes: Bytes) -> Result<M, Refusal> {
    M::decode(bytes).map_err(|error| Refusal::Malformed(error.to_string()))
}

pub(super) fn unknown_mode(written: &str) -> Refusal {
    const SHOWN_BYTES_MAX: usize = 64;
    let modes = (0..).map_while(|mode| Mode::try_from(mode).ok());
    let names: Vec<&str> = modes.map(|mode| mode.as_str_name()).collect();
    let (names, written) = (names.join(", "), printable_start(written.as_bytes(), SHOWN_BYTES_MAX));
    Refusal::Invalid(format!("mode: must be one of: {names}; not `{written}`"))
}

pub(super) fn check_kinds(field: &str, count: usize) -> Result<(), Refusal> {
    if count > ENTRIES_MAX {
        return Err(Refusal::Invalid(format!("{field}: {count} exceeds {ENTRIES_MAX}")));
    }
    Ok(())
}

impl DecodedCall {
    /// A call of these descriptors, with all defaults.
    pub(super) fn plain(descriptors: Vec<Descriptor>, domain: &str) -> Self {
        let request = Request { domain: domain.to_owned(), descriptors };
        let (mode, meaning) = (Mode::Take, HitsMeaning::Expected);
        Self { request, mode, meaning, hits: 1, overrides_ignored: 0 }
    }

    /// Checks a call, and fills in its defaults.
    pub(super) fn new(call: v1::Call, domain: &str) -> Result<Self, Refusal> {
        let Ok(mode) = Mode::try_from(call.mode) else {
            return Err(unknown_mode(&call.mode.to_string()));
        };
        if call.descriptors.is_empty() {
            return Err(Refusal::Empty);
        }
        let charges_nothing = matches!(mode, Mode::Check | Mode::Read);
        if let Some(field) = field_of_other_mode(&call, mode) {
            let mode = mode.as_str_name();
            return Err(Refusal::Invalid(format!("{field}: must be absent with mode {mode}")));
        }
        if call.id.len() > ID_BYTES_MAX {
            let bytes = call.id.len();
            return Err(Refusal::Invalid(format!("id: {bytes} bytes exceeds {ID_BYTES_MAX}")));
        }
        let hits = if charges_nothing { 0 } else { call.hits.unwrap_or(1) };
        if hits > Hits::MAX {
            return Err(Refusal::Invalid(format!("hits: {hits} exceeds {}", Hits::MAX)));
        }
        let (mut descriptors, overrides_ignored) =
            descriptors(call.descriptors, hits, call.hits.is_some())?;
        let estimate = |(kind, hits)| entry(format!("hold.estimate.{kind}"), hits);
        let estimates: Vec<Entry> = call.hits_by_kind.iter().map(estimate).collect();
        descriptors.iter_mut().for_each(|one| one.entries.extend_from_slice(&estimates));
        let meaning = match mode {
            Mode::Debit => HitsMeaning::Done,
            Mode::Part => HitsMeaning::Part,
            Mode::Lease => HitsMeaning::Lease,
            Mode::Check => HitsMeaning::Checked,
            Mode::Take | Mode::Read => HitsMeaning::Expected,
        };
        let request = Request { domain: domain.to_owned(), descriptors };
        Ok(Self { request, mode, meaning, hits, overrides_ignored })
    }
}

/// A field of a call that has no meaning with its mode.
fn field_of_other_mode(call: &v1::Call, mode: Mode) -> Option<String> {
    let charges_nothing = matches!(mode, Mode::Check | Mode::Read);
    let has_own = |one: &RateLimitDescriptor| one.hits_addend.is_some() || one.is_negative_hits;
    let own = call.descriptors.iter().position(has_own);
    let own = own.filter(|_| charges_nothing || matches!(mode, Mode::Part | Mode::Lease));
    let of_others = [
        ("hits", charges_nothing && call.hits.is_some()),
        ("hits_by_kind", mode != Mode::Take && !call.hits_by_kind.is_empty()),
        ("id", (charges_nothing || mode == Mode::Lease) && !call.id.is_empty()),
    ];
    let field = of_others.into_iter().find(|(_, is_there)| *is_there);
    let field = field.map(|(field, _)| field.to_owned());
    field.or_else(|| own.map(|index| format!("descriptors[{index}].hits_addend")))
}

fn entry(key: String, value: impl ToString) -> Entry {
    Entry { key: key.into(), value: value.to_string().into() }
}

/// The descriptor of a commit: the parameters that Envoy would send.
pub(super) fn commit_descriptor(commit: v1::Commit) -> Result<Descriptor, Refusal> {
    if commit.hold.is_empty() {
        return Err(Refusal::Invalid("hold: must not be empty".to_owned()));
    }
    let mut entries = vec![entry("hold.commit".to_owned(), commit.hold)];
    let used = commit.used.map(|used| entry("hold.used".to_owned(), used));
    entries.extend(used);
    for (kind, used) in commit.used_by_kind {
        entries.push(entry(format!("hold.used.{kind}"), used));
    }
    if !commit.end.is_empty() {
        entries.push(entry("hold.end".to_owned(), commit.end));
    }
    Ok(Descriptor { entries, hits: Hits::Check, states_hits: true, limit: None })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rls::pb;

    fn message_of(descriptors: &[Vec<(String, String)>], hits: Option<u64>) -> Bytes {
        let entry = |(key, value): &(String, String)| pb::Entry {
            key: key.clone().into(),
            value: value.clone().into(),
        };
        let descriptors = descriptors.iter().map(|entries| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            ..RateLimitDescriptor::default()
        });
        let descriptors = descriptors.collect();
        v1::Call { descriptors, hits, ..v1::Call::default() }.encode_to_vec().into()
    }

    proptest! {
        #[test]
        fn a_call_of_descriptors_only_is_read_as_by_the_generated_decoder(
            descriptors in prop::collection::vec(prop::collection::vec((".{0,3}", ".{0,200}"), 0..4), 0..4),
        ) {
            let (message, bounds) = (message_of(&descriptors, None), Bounds::default());
            let generated = DecodedCall::new(v1::Call::decode(message.clone()).unwrap(), "shop");
            match call(&message, &message, bounds).unwrap() {
                ReadCall::Message(_) => {
                    let has_empty = |(key, value): &(String, String)| key.is_empty() || value.is_empty();
                    prop_assert!(descriptors.is_empty() || descriptors.iter().flatten().any(has_empty));
                }
                ReadCall::Plain(descriptors) => {
                    let (plain, generated) = (DecodedCall::plain(descriptors, "shop"), generated.ok().unwrap());
                    prop_assert_eq!(plain.request, generated.request);
                    prop_assert_eq!((plain.mode, plain.meaning), (generated.mode, generated.meaning));
                    prop_assert_eq!((plain.hits, plain.overrides_ignored), (generated.hits, 0));
                }
            }
        }
    }

    #[test]
    fn a_call_with_too_much_or_with_hits_is_not_plain() {
        let entry = || ("user".to_owned(), "alice".to_owned());
        let is_plain = |message: Bytes| {
            let bounds = Bounds { descriptors_max: 2, ..Bounds::default() };
            plain_descriptors(&message, &message, bounds).is_some()
        };
        assert!(is_plain(message_of(&[vec![entry(); ENTRIES_MAX], vec![entry()]], None)));
        assert!(!is_plain(message_of(&[vec![entry(); ENTRIES_MAX + 1]], None)));
        assert!(!is_plain(message_of(&vec![vec![entry()]; 3], None)));
        assert!(!is_plain(message_of(&[vec![entry()]], Some(1))));
    }
}
