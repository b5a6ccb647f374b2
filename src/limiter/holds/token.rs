//! The token of a hold: what a take has charged, so that any replica can commit it without a rule and without a question
//! to the store. Postcard (<https://postcard.jamesmunns.com/wire-format>) in base64url, signed with HMAC-SHA256.

use std::{mem, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use postcard::ser_flavors::Flavor;
use serde::{
    Deserialize, Serialize, Serializer,
    ser::{Error as _, SerializeSeq as _},
};
use smallvec::SmallVec;

use super::keys::HoldKeys;
use crate::engine::{
    hold::HoldPolicy,
    hold_id::HoldId,
    key::{Counter, SlotBy},
    ledger::{HeldCharge, TakenHold},
    request::Hits,
    rule::{Algorithm, Limit, Unit},
    time::Timestamp,
    window::Window,
};

/// The format of what follows. 1 was without a signature.
const SIGNED: u8 = 2;

/// The same with weights below 0, which builds that know only the other format would read as huge ones.
const SIGNED_BELOW_ZERO: u8 = 3;

const SIGNATURE_BYTES: usize = 32;

/// Most tokens of one charge are shorter, with their signature.
const TOKEN_BYTES_USUAL: usize = 160;

/// The longest token, in characters.
pub(crate) const TOKEN_CHARS_MAX: usize = 8192;

pub(crate) const TOKEN_CHARGES_MAX: usize = 64;

const TOKEN_BYTES_MAX: usize = TOKEN_CHARS_MAX / 4 * 3;

/// The most bytes of a token beside its charges, and of a charge beside its texts. Clocks of nodes differ by less than a month.
const HEAD_BYTES_MAX: usize = 96;
const CHARGE_BYTES_MAX: usize = 48;
const WEIGHT_BYTES_MAX: usize = 11;

/// How far the clock that dates tokens may be from the one that reads them, in milliseconds.
const CLOCKS_DIFFER_MS_MAX: u64 = 86_400_000;

/// What follows the format and the nonce: the store's time of the first charge, in milliseconds, the charges, and the span of
/// the take, if it is sampled.
type Rest<Charges> = (u64, Charges, Option<SpanIds>);

struct Written<'hold>(&'hold [HeldCharge]);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut written = serializer.serialize_seq(Some(self.0.len()))?;
        let first = self.0.first().map(|first| first.made).unwrap_or_default();
        let mut before = "";
        for charge in self.0 {
            let next = TokenCharge::new(charge, before, first);
            written.serialize_element(&next.ok_or_else(|| S::Error::custom("no hold"))?)?;
            (before, _) = charge.counter.business_id();
        }
        written.end()
    }
}

/// The ids of a trace and of one of its spans.
pub type SpanIds = ([u8; 16], [u8; 8]);

/// A charge; what differs from the one before it.
#[derive(Serialize, Deserialize)]
struct TokenCharge<'text> {
    /// Number of bytes that its business ID shares with the one before it.
    shared: usize,
    #[serde(borrow)]
    rest: &'text str,
    is_in_slot_of_domain: bool,
    hits: u64,
    /// Milliseconds after the first.
    made_later: i64,
    /// Its place in [`Algorithm::all`].
    algorithm: u8,
    /// The rate of a bucket, the idle time of a first-hit window, or 0.
    parameter: u64,
    window_seconds: u64,
    calendar: Option<String>,
    lifetime_ms: u64,
    number: u32,
    /// Each as the bits of an `i64`.
    weights: Vec<(&'text str, u64)>,
    /// `None` for the usual ones.
    unused_on: Option<Vec<&'text str>>,
}

/// Whether a token can name these counters, whatever they are charged.
pub(in crate::limiter) fn can_name<'call>(counters: impl Iterator<Item = &'call Counter>) -> bool {
    let (mut charges, mut bytes, mut before) = (0, HEAD_BYTES_MAX, "");
    for counter in counters {
        let (business_id, _) = counter.business_id();
        let limit = &*counter.limit;
        let calendar = limit.window.calendar().map_or(0, |calendar| calendar.to_string().len());
        let names = limit.hold.iter().flat_map(|policy| {
            let weights = policy.weights.iter().map(|(kind, _)| kind.len() + WEIGHT_BYTES_MAX);
            weights.chain(policy.unused_on.iter().flatten().map(|end| end.len() + 1))
        });
        charges += 1;
        bytes += CHARGE_BYTES_MAX + calendar + names.sum::<usize>();
        bytes += business_id.len() - shared(before, business_id);
        before = business_id;
    }
    charges <= TOKEN_CHARGES_MAX && bytes <= TOKEN_BYTES_MAX
}

/// Number of bytes with which both begin. Both are ASCII.
fn shared(before: &str, business_id: &str) -> usize {
    before.bytes().zip(business_id.bytes()).take_while(|(one, other)| one == other).count()
}

type TokenBytes = SmallVec<[u8; TOKEN_BYTES_USUAL]>;

/// Appends to bytes. Postcard's own form for bytes that exist appends one at a time, which costs more than all else of a token.
struct Appended(TokenBytes);

impl Flavor for Appended {
    type Output = TokenBytes;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Self::Output> {
        Ok(self.0)
    }
}

impl HoldKeys {
    /// Encodes a hold as a token. `None` if no key is known, or the token would be too long; see [`can_name`].
    pub(super) fn write(&self, hold: &TakenHold, span: Option<SpanIds>) -> Option<String> {
        let made = hold.charges.first()?.made.as_millis();
        let rest: Rest<_> = (made, Written(&hold.charges), span);
        let mut bytes = TokenBytes::new();
        let policies = hold.charges.iter().filter_map(|held| held.counter.limit.hold.as_deref());
        let mut weights = policies.flat_map(|policy| &policy.weights);
        bytes.push(match weights.any(|(_, weight)| *weight < 0) {
            true => SIGNED_BELOW_ZERO,
            false => SIGNED,
        });
        bytes.extend_from_slice(&hold.id.nonce());
        bytes = postcard::serialize_with_flavor(&rest, Appended(bytes)).ok()?;
        self.sealed(bytes)
    }

    /// The token that says this. `None` as in [`write`](Self::write).
    pub fn sealed<Said: AsRef<[u8]> + Extend<u8>>(&self, mut said: Said) -> Option<String> {
        let signature = self.sign(said.as_ref())?;
        said.extend(signature.as_ref().iter().copied());
        let token = BASE64.encode(said);
        (token.len() <= TOKEN_CHARS_MAX).then_some(token)
    }

    /// Decodes a token: the hold, and the span in which it was taken. `None` if the token is malformed, not signed with one
    /// of the keys, or says what no take at about `now` can have charged.
    pub fn read(&self, token: &[u8], now: Timestamp) -> Option<(TakenHold, Option<SpanIds>)> {
        let bytes = decoded(token)?;
        let (signed, signature) =
            bytes.split_at_checked(bytes.len().checked_sub(SIGNATURE_BYTES)?)?;
        if !self.have_signed(signed, signature) {
            return None;
        }
        let (nonce, rest) = signed.get(1..)?.split_first_chunk()?;
        let ((made, written, span), []) =
            postcard::take_from_bytes::<Rest<Vec<TokenCharge<'_>>>>(rest).ok()?
        else {
            return None;
        };
        if !(1..=TOKEN_CHARGES_MAX).contains(&written.len()) {
            return None;
        }
        let first = Timestamp::from_millis(made);
        let mut charges: Vec<HeldCharge> = Vec::with_capacity(written.len());
        for charge in &written {
            let before = charges.last().map_or("", |before| before.counter.business_id().0);
            let charge = charge.read(before, first)?;
            let latest = now.plus_millis(CLOCKS_DIFFER_MS_MAX);
            let last_deadline =
                charge.made.plus_millis(HoldPolicy::LIFETIME_MS_MAX + CLOCKS_DIFFER_MS_MAX);
            if charge.made > latest || last_deadline < now {
                return None;
            }
            charges.push(charge);
        }
        Some((TakenHold { id: HoldId::from_nonce(*nonce), charges }, span))
    }
}

/// Whether a value has the form of a token, by whatever key it is signed.
pub(super) fn has_form(value: &[u8]) -> bool {
    decoded(value).is_some()
}

/// The bytes of what has the form of a token.
fn decoded(token: &[u8]) -> Option<Vec<u8>> {
    let is_short = token.len() <= TOKEN_CHARS_MAX;
    let bytes = is_short.then(|| BASE64.decode(token).ok())??;
    let is_whole = bytes.len() > 1 + HoldId::NONCE_BYTES + SIGNATURE_BYTES;
    let is_known = matches!(bytes.first(), Some(&(SIGNED | SIGNED_BELOW_ZERO)));
    (is_whole && is_known).then_some(bytes)
}

impl<'text> TokenCharge<'text> {
    fn new(charge: &'text HeldCharge, before: &str, first: Timestamp) -> Option<Self> {
        let limit = &*charge.counter.limit;
        let policy = limit.hold.as_deref()?;
        let (business_id, slot_by) = charge.counter.business_id();
        let shared = shared(before, business_id);
        let kind = mem::discriminant(&limit.algorithm);
        let kinds = Algorithm::all(0, None);
        let place = kinds.iter().position(|known| mem::discriminant(known) == kind)?;
        Some(Self {
            shared,
            rest: business_id.get(shared..)?,
            is_in_slot_of_domain: slot_by == SlotBy::Domain,
            hits: charge.hits,
            made_later: charge.made.millis_since(first),
            algorithm: u8::try_from(place).ok()?,
            parameter: match limit.algorithm {
                Algorithm::TokenBucket { .. } => limit.requests_per_unit,
                _ => limit.idle_ms().unwrap_or(0),
            },
            window_seconds: limit.window.seconds(),
            calendar: limit.window.calendar().map(ToString::to_string),
            lifetime_ms: policy.lifetime_ms,
            number: policy.number,
            weights: (policy.weights.iter())
                .map(|(kind, weight)| (&**kind, weight.cast_unsigned()))
                .collect(),
            unused_on: policy
                .unused_on
                .as_ref()
                .map(|ends| ends.iter().map(|end| &**end).collect()),
        })
    }

    fn read(&self, before: &str, first: Timestamp) -> Option<HeldCharge> {
        let business_id = before.get(..self.shared)?.to_owned() + self.rest;
        let unused_on = self.unused_on.as_ref();
        let is_of_key = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        let are_bounded = (1..=Hits::MAX).contains(&self.hits)
            && (1..=HoldPolicy::LIFETIME_MS_MAX).contains(&self.lifetime_ms)
            && self.parameter <= Hits::MAX
            && self.weights.len() <= HoldPolicy::ITEMS_MAX
            && unused_on.map_or(0, Vec::len) <= HoldPolicy::ITEMS_MAX;
        if !are_bounded || business_id.is_empty() || !business_id.bytes().all(is_of_key) {
            return None;
        }
        let policy = HoldPolicy {
            number: self.number,
            weights: (self.weights.iter())
                .map(|(kind, weight)| ((*kind).into(), weight.cast_signed()))
                .collect(),
            unused_on: unused_on.map(|ends| ends.iter().map(|end| (*end).into()).collect()),
            ..HoldPolicy::new(self.lifetime_ms)
        };
        let algorithms = Algorithm::all(self.parameter, None);
        let algorithm = algorithms.into_iter().nth(self.algorithm.into())?;
        let limit = Limit {
            window: match &self.calendar {
                Some(calendar) => Window::read(calendar)?,
                None => Window::of_seconds(self.window_seconds)?,
            },
            algorithm: match algorithm {
                Algorithm::FirstHitWindow { .. } => Algorithm::FirstHitWindow {
                    idle_ms: Some(self.parameter).filter(|idle| *idle > 0),
                },
                other => other,
            },
            hold: Some(Arc::new(policy)),
            ..Limit::new(self.parameter, Unit::Second, 1)?
        };
        if self.hits.max(self.parameter) > limit.capacity_max() {
            return None;
        }
        let slot_by = if self.is_in_slot_of_domain { SlotBy::Domain } else { SlotBy::BusinessId };
        let counter = Counter::of_business_id(business_id, slot_by, Arc::new(limit));
        Some(HeldCharge { counter, hits: self.hits, made: first.shifted(self.made_later) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{calendar::Calendar, request::Entry};

    const NOW: Timestamp = Timestamp::from_millis(1_795_215_600_123);

    fn hold(charges: usize) -> TakenHold {
        let berlin = Calendar::new(Unit::Month, "Europe/Berlin").unwrap();
        let weights = vec![("input".into(), 250), ("output".into(), 1000)];
        let mut held = Vec::new();
        for (index, algorithm) in
            Algorithm::all(7, None).into_iter().cycle().take(charges).enumerate()
        {
            let user = format!("alice{index}");
            let entries = [("tenant", "blue"), ("user", &*user)];
            let entries = entries.map(|(key, value)| Entry {
                key: key.to_owned().into(),
                value: value.to_owned().into(),
            });
            let mut policy = HoldPolicy { number: 77, ..HoldPolicy::new(600_000) };
            let mut limit = Limit { algorithm, ..Limit::new(7, Unit::Minute, 1).unwrap() };
            if index % 2 == 1 {
                policy = HoldPolicy {
                    weights: weights.clone(),
                    unused_on: Some(vec!["5xx".into()]),
                    ..policy
                };
                limit.window = Window::of_calendar(berlin.clone());
            }
            limit.hold = Some(Arc::new(policy));
            let counter = Counter::new("llm", &entries, Arc::new(limit));
            let made = NOW.plus_millis(index as u64);
            held.push(HeldCharge { counter, hits: 300 + index as u64, made });
        }
        TakenHold { id: HoldId::from_nonce([7; 12]), charges: held }
    }

    fn keys(secrets: &[&[u8]]) -> HoldKeys {
        HoldKeys::new(secrets.iter().copied())
    }

    fn essence(hold: &TakenHold) -> Vec<String> {
        let charges = hold.charges.iter().map(|charge| {
            let policy = charge.counter.limit.hold.as_deref().unwrap();
            let key = charge.counter.key(charge.made);
            format!("{} {key} {} {} {policy:?}", hold.id, charge.hits, charge.made.as_millis())
        });
        charges.collect()
    }

    #[test]
    fn what_is_written_is_read() {
        for keys in [keys(&[b"secret"]), keys(&[b"first secret", b"second"])] {
            for charges in [1, 2, 6, 16] {
                let hold = hold(charges);
                for span in [None, Some(([1; 16], [2; 8]))] {
                    let token = keys.write(&hold, span).unwrap();
                    let (read, span_read) = keys.read(token.as_bytes(), NOW).unwrap();
                    assert_eq!((essence(&read), span_read), (essence(&hold), span));
                }
                let token = keys.write(&hold, None).unwrap();
                assert!(charges < 16 || token.len() <= 1500, "{} characters", token.len());
            }
        }
    }

    #[test]
    fn a_token_is_read_from_a_day_before_its_take_to_a_day_after_the_longest_hold() {
        let (keys, day_ms) = (keys(&[b"secret"]), 86_400_000);
        let token = keys.write(&hold(1), None).unwrap();
        let is_read = |shift_ms| keys.read(token.as_bytes(), NOW.shifted(shift_ms)).is_some();
        assert!(is_read(-day_ms) && is_read(8 * day_ms));
        assert!(!is_read(-day_ms - 1) && !is_read(8 * day_ms + 1));
    }

    #[test]
    fn a_token_names_at_most_64_charges() {
        let keys = keys(&[b"secret"]);
        let token = keys.write(&hold(TOKEN_CHARGES_MAX), None).unwrap();
        assert_eq!(keys.read(token.as_bytes(), NOW).unwrap().0.charges.len(), 64);
        let token = keys.write(&hold(TOKEN_CHARGES_MAX + 1), None).unwrap();
        assert!(keys.read(token.as_bytes(), NOW).is_none());
    }

    #[test]
    fn a_key_that_is_replaced_is_accepted_and_a_foreign_one_is_not() {
        let token = keys(&[b"old"]).write(&hold(2), None).unwrap();
        assert!(keys(&[b"new", b"old"]).read(token.as_bytes(), NOW).is_some());
        assert!(keys(&[b"new"]).read(token.as_bytes(), NOW).is_none());
        assert!(keys(&[]).read(token.as_bytes(), NOW).is_none());
        assert!(keys(&[]).write(&hold(2), None).is_none(), "no key is known");
    }

    #[test]
    fn a_signed_token_with_any_byte_changed_is_none() {
        let keys = keys(&[b"secret"]);
        let token = keys.write(&hold(3), None).unwrap();
        for index in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            assert!(keys.read(&changed, NOW).is_none(), "byte {index}");
            assert!(keys.read(&token.as_bytes()[..index], NOW).is_none(), "cut at {index}");
        }
    }
}
