//! Calls and their descriptors, as messages, which are checked before they are sent.

use std::{fmt, iter, mem};

use tonic::Code;

use crate::ServiceError;
use crate::v1::{self, call::Mode, descriptor::Entry, descriptor::Override};

/// The largest number of hits: 2^53 - 1.
pub const HITS_MAX: u64 = (1 << 53) - 1;
/// The most calls in one request.
const CALLS_MAX: usize = 1000;
const ID_BYTES_MAX: usize = 128;
/// The most bytes of keys and values in one request. End users may send long values, and more would take longer than the
/// timeout, or be refused by the service, which takes 4 MiB.
const ENTRY_BYTES_MAX: usize = 512 << 10;

/// A mistake of the caller. Its text names the field and the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// What to limit: keys and values in the order of the rules. [`on`] makes it.
#[derive(Clone, Default, PartialEq)]
pub struct Descriptor {
    /// Keys and values in turn, each after its length: a descriptor is made, hashed and compared on each call of a limiter.
    pub(crate) text: Vec<u8>,
    /// Without entries.
    pub(crate) message: v1::Descriptor,
}

/// A descriptor of one entry. Key and value may be any bytes.
pub fn on(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Descriptor {
    // Most have room in one allocation.
    Descriptor { text: Vec::with_capacity(64), ..Descriptor::default() }.and(key, value)
}

impl Descriptor {
    /// Adds an entry at the end: entries are in the order of the rules.
    #[must_use]
    pub fn and(mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        for text in [key.as_ref(), value.as_ref()] {
            self.text.extend_from_slice(&text.len().to_ne_bytes());
            self.text.extend_from_slice(text);
        }
        self
    }

    fn entries(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = self.text.as_slice();
        let mut next = move || {
            let (length, texts) = rest.split_first_chunk()?;
            let (text, others) = texts.split_at_checked(usize::from_ne_bytes(*length))?;
            rest = others;
            Some(text)
        };
        iter::from_fn(move || Some((next()?, next()?)))
    }

    /// Sets a limit of the caller's own, in place of the one of the rules: a number of hits in a number of units.
    #[must_use]
    pub fn limit(mut self, hits: u32, units: u32, unit: Unit) -> Self {
        let unit = unit as i32;
        self.message.limit =
            Some(Override { requests_per_unit: hits, unit, unit_multiplier: Some(units) });
        self
    }

    /// The value of the first entry with this key.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<&[u8]> {
        self.entries().find(|(its, _)| *its == key.as_ref()).map(|(_, value)| value)
    }

    fn validate(&self) -> Result<(), Error> {
        check_hits("hits_addend", self.message.hits_addend)?;
        if self.text.is_empty() {
            return Err(Error("entries: must have at least 1 item".to_owned()));
        }
        match self.entries().position(|(key, _)| key.is_empty()) {
            Some(index) => Err(Error(format!("entries[{index}].key: must not be empty"))),
            None => Ok(()),
        }
    }

    fn decode(mut message: v1::Descriptor) -> Self {
        let entries = mem::take(&mut message.entries);
        let made = Self { message, ..Self::default() };
        entries.into_iter().fold(made, |made, entry| made.and(entry.key, entry.value))
    }

    fn encode(self) -> v1::Descriptor {
        let entry = |(key, value): (&[u8], &[u8])| Entry { key: key.into(), value: value.into() };
        v1::Descriptor { entries: self.entries().map(entry).collect(), ..self.message }
    }
}

/// The keys, such as `path|user`, without the values, which must not reach a log.
impl fmt::Debug for Descriptor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.entries().map(|(key, _)| String::from_utf8_lossy(key));
        formatter.write_str(&keys.collect::<Vec<_>>().join("|"))
    }
}

impl From<Descriptor> for Vec<Descriptor> {
    fn from(descriptor: Descriptor) -> Self {
        vec![descriptor]
    }
}

/// Number of bytes of the keys and values.
pub(crate) fn entry_bytes<'a>(on: impl IntoIterator<Item = &'a Descriptor>) -> usize {
    let entries = on.into_iter().flat_map(Descriptor::entries);
    entries.map(|(key, value)| key.len() + value.len()).sum()
}

/// The unit of a limit's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum Unit {
    Second = 1,
    Minute,
    Hour,
    Day,
    Month,
    Year,
    Week,
}

impl Unit {
    pub(crate) fn decode(number: i32) -> Option<Self> {
        use Unit::{Day, Hour, Minute, Month, Second, Week, Year};
        let units = [Second, Minute, Hour, Day, Month, Year, Week];
        units.into_iter().find(|unit| *unit as i32 == number)
    }
}

/// What to decide. All of its descriptors pass, or none. A descriptor, or a list of them, is a call of one hit, or, as a hold,
/// of the estimate that the rule has.
#[derive(Clone, PartialEq)]
#[must_use]
pub struct Call {
    pub(crate) descriptors: Vec<Descriptor>,
    /// Without descriptors.
    message: v1::Call,
}

impl<Descriptors: Into<Vec<Descriptor>>> From<Descriptors> for Call {
    fn from(descriptors: Descriptors) -> Self {
        Self::new(Mode::Take, None, descriptors)
    }
}

impl Call {
    fn new(mode: Mode, hits: Option<u64>, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        let message = v1::Call { mode: mode.into(), hits, ..v1::Call::default() };
        Self { descriptors: descriptors.into(), message }
    }

    /// What it limits. [`Descriptor::get`] has the values, which `Debug` does not show.
    pub fn descriptors(&self) -> &[Descriptor] {
        &self.descriptors
    }

    /// Charges the hits if all of them fit, or nothing. With 0 hits it is [`Self::check`].
    pub fn take(hits: u64, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self::new(Mode::Take, Some(hits), descriptors)
    }

    /// Charges as many of the hits as fit. [`Decision::hits`](crate::Decision::hits) is their number.
    pub fn part(hits: u64, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self::new(Mode::Part, Some(hits), descriptors)
    }

    /// Charges hits in advance: as many as the service leases.
    pub(crate) fn lease(hits: u64, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self::new(Mode::Lease, Some(hits), descriptors)
    }

    /// Charges nothing, and answers as for one hit.
    pub fn check(descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self::new(Mode::Check, None, descriptors)
    }

    /// Charges nothing and denies nothing: there is a status for each limit of each descriptor.
    pub fn read(descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self::new(Mode::Read, None, descriptors)
    }

    /// Charges the hits in any case, for work that is done. The decision shows whether they fit.
    pub fn debit(hits: u64, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self::new(Mode::Debit, Some(hits), descriptors)
    }

    /// Gives hits back.
    pub fn refund(hits: u64, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        let mut call = Self::from(descriptors);
        for descriptor in &mut call.descriptors {
            descriptor.message.hits_addend = Some(hits);
            descriptor.message.is_negative_hits = true;
        }
        call
    }

    /// Sets an estimate for a kind of usage, for holds on limits with `weights`.
    pub fn kind(mut self, kind: impl Into<String>, hits: u64) -> Self {
        self.message.hits_by_kind.insert(kind.into(), hits);
        self
    }

    /// Names the call, so that the same call with this id is charged once within 60 s.
    pub fn once(mut self, id: impl Into<String>) -> Self {
        self.message.id = id.into();
        self
    }

    /// The field is the one of the hits.
    pub(crate) fn validate(&self, field: &str) -> Result<(), Error> {
        check_hits(field, self.message.hits)?;
        for (kind, hits) in &self.message.hits_by_kind {
            check_hits(&format!("hits_by_kind[{kind:?}]"), Some(*hits))?;
        }
        let bytes = self.message.id.len();
        if bytes > ID_BYTES_MAX {
            return Err(Error(format!("id: must be at most {ID_BYTES_MAX} bytes, and is {bytes}")));
        }
        if self.descriptors.is_empty() {
            return Err(Error("descriptors: must have at least 1 item".to_owned()));
        }
        let mut descriptors = self.descriptors.iter().enumerate();
        descriptors.try_for_each(|(index, descriptor)| {
            descriptor.validate().map_err(|error| Error(format!("descriptors[{index}].{error}")))
        })
    }

    /// Whether an equal call would be denied too, until the limit has room again.
    pub(crate) fn is_deniable_again(&self) -> bool {
        self.message.mode() == Mode::Take && self.message.id.is_empty()
    }

    /// The hits, if the call may be decided by hits that were charged in advance.
    pub(crate) fn hits_to_lease(&self) -> Option<u64> {
        let (message, hits) = (&self.message, self.message.hits.unwrap_or(1));
        let is_plain = |it: &v1::Descriptor| {
            it.limit.is_none() && it.hits_addend.is_none() && !it.is_negative_hits
        };
        let leases = hits > 0
            && message.mode == Mode::Take as i32
            && message.id.is_empty()
            && message.hits_by_kind.is_empty()
            && self.descriptors.iter().all(|descriptor| is_plain(&descriptor.message));
        leases.then_some(hits)
    }

    pub(crate) fn decode(mut message: v1::Call) -> Self {
        let descriptors = mem::take(&mut message.descriptors).into_iter();
        Self { descriptors: descriptors.map(Descriptor::decode).collect(), message }
    }

    pub(crate) fn encode(self) -> v1::Call {
        let descriptors = self.descriptors.into_iter().map(Descriptor::encode).collect();
        v1::Call { descriptors, ..self.message }
    }
}

/// As its descriptors, it shows no values.
impl fmt::Debug for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v1::Call { hits, hits_by_kind, id, .. } = &self.message;
        let back = self.descriptors.first().and_then(|first| first.message.hits_addend);
        let mode = back.map_or(self.message.mode().as_str_name(), |_| "REFUND");
        let mut shown = formatter.debug_struct("Call");
        shown.field("mode", &mode).field("hits", &back.or(*hits));
        shown.field("hits_by_kind", hits_by_kind).field("id", id);
        shown.field("descriptors", &self.descriptors).finish()
    }
}

/// The path of a field begins with the index of its call.
pub(crate) fn in_batch(index: usize) -> impl Fn(Error) -> Error {
    move |error| Error(format!("calls[{index}].{error}"))
}

pub(crate) fn validate_all(calls: &[Call]) -> Result<(), Error> {
    let number = calls.len();
    if number > CALLS_MAX {
        return Err(Error(format!("calls: must be at most {CALLS_MAX}, and are {number}")));
    }
    let mut calls = calls.iter().enumerate();
    calls.try_for_each(|(index, call)| call.validate("hits").map_err(in_batch(index)))
}

/// Why calls are denied without a request, if they are.
pub(crate) fn too_large(calls: &[Call]) -> Option<ServiceError> {
    let bytes = entry_bytes(calls.iter().flat_map(|call| &call.descriptors));
    let text = || format!("keys and values must have at most {ENTRY_BYTES_MAX} bytes, not {bytes}");
    (bytes > ENTRY_BYTES_MAX).then(|| ServiceError::new(Code::OutOfRange, text()))
}

pub(crate) fn check_hits(field: &str, hits: Option<u64>) -> Result<(), Error> {
    match hits {
        Some(hits) if hits > HITS_MAX => {
            Err(Error(format!("{field}: must be from 0 to {HITS_MAX}, and is {hits}")))
        }
        _ => Ok(()),
    }
}
