//! Calls and their descriptors, as messages, which are checked before they are sent.

use std::{collections::HashMap, fmt};

use crate::v1::{Call, Commit, Descriptor, call::Mode, descriptor::Entry};

/// The largest number of hits: 2^53 - 1.
pub const HITS_MAX: u64 = (1 << 53) - 1;
/// The most calls in one request.
const CALLS_MAX: usize = 1000;
const ID_BYTES_MAX: usize = 128;

/// A mistake of the caller. Its text names the field and the bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// A descriptor of one entry. Key and value may be any bytes.
pub fn on(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Descriptor {
    Descriptor::default().and(key, value)
}

impl Descriptor {
    /// Adds an entry at the end: entries are in the order of the rules.
    #[must_use]
    pub fn and(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.entries.push(Entry { key: key.into(), value: value.into() });
        self
    }

    fn validate(&self) -> Result<(), Error> {
        check_hits("hits_addend", self.hits_addend)?;
        if self.entries.is_empty() {
            return Err(Error("entries: must be at least 1".to_owned()));
        }
        match self.entries.iter().position(|entry| entry.key.is_empty()) {
            Some(index) => Err(Error(format!("entries[{index}].key: must not be empty"))),
            None => Ok(()),
        }
    }
}

impl From<Descriptor> for Vec<Descriptor> {
    fn from(descriptor: Descriptor) -> Self {
        vec![descriptor]
    }
}

/// Without key and value, which must not reach a log.
impl fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Entry")
    }
}

/// All descriptors of a call pass, or none.
impl Call {
    pub(crate) fn new(
        mode: Mode,
        hits: Option<u64>,
        descriptors: impl Into<Vec<Descriptor>>,
    ) -> Self {
        let descriptors = descriptors.into();
        Self { descriptors, mode: mode.into(), hits, ..Self::default() }
    }

    /// Charges the hits if all of them fit, or nothing. With 0 hits it is [`Self::check`].
    pub fn take(hits: u64, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self::new(Mode::Take, Some(hits), descriptors)
    }

    /// Charges as many of the hits as fit. [`Decision::hits`](crate::Decision::hits) is their number.
    pub fn part(hits: u64, descriptors: impl Into<Vec<Descriptor>>) -> Self {
        Self::new(Mode::Part, Some(hits), descriptors)
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
        let mut call = Self::new(Mode::Take, None, descriptors);
        for descriptor in &mut call.descriptors {
            descriptor.hits_addend = Some(hits);
            descriptor.is_negative_hits = true;
        }
        call
    }

    /// Sets an estimate for a kind of usage, for [`Client::hold_call`](crate::Client::hold_call) on limits with `weights`.
    #[must_use]
    pub fn kind(mut self, kind: impl Into<String>, hits: u64) -> Self {
        self.hits_by_kind.insert(kind.into(), hits);
        self
    }

    /// Names the call, so that the same call with this id is charged once within 60 s.
    #[must_use]
    pub fn once(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_hits("hits", self.hits)?;
        check_kinds("hits_by_kind", &self.hits_by_kind)?;
        if self.id.len() > ID_BYTES_MAX {
            let bytes = self.id.len();
            return Err(Error(format!("id: must be at most {ID_BYTES_MAX} bytes, and is {bytes}")));
        }
        if self.descriptors.is_empty() {
            return Err(Error("descriptors: must be at least 1".to_owned()));
        }
        let mut descriptors = self.descriptors.iter().enumerate();
        descriptors.try_for_each(|(index, descriptor)| {
            descriptor.validate().map_err(|error| Error(format!("descriptors[{index}].{error}")))
        })
    }
}

/// The path of a field begins with the index of its call.
pub(crate) fn validate_all(calls: &[Call]) -> Result<(), Error> {
    if calls.len() > CALLS_MAX {
        let number = calls.len();
        return Err(Error(format!("calls: must be at most {CALLS_MAX}, and are {number}")));
    }
    calls.iter().enumerate().try_for_each(|(index, call)| {
        call.validate().map_err(|error| Error(format!("calls[{index}].{error}")))
    })
}

impl Commit {
    pub(crate) fn validate(&self) -> Result<(), Error> {
        check_hits("used", self.used)?;
        check_kinds("used_by_kind", &self.used_by_kind)
    }
}

pub(crate) fn check_hits(field: &str, hits: Option<u64>) -> Result<(), Error> {
    match hits {
        Some(hits) if hits > HITS_MAX => {
            Err(Error(format!("{field}: must be from 0 to {HITS_MAX}, and is {hits}")))
        }
        _ => Ok(()),
    }
}

fn check_kinds(field: &str, kinds: &HashMap<String, u64>) -> Result<(), Error> {
    kinds.iter().try_for_each(|(kind, hits)| {
        check_hits("", Some(*hits)).map_err(|error| Error(format!("{field}[{kind:?}]{error}")))
    })
}
