//! The token of a hold: what a take has charged, so that any replica can commit it without a rule and without a question
//! to the store. Postcard (<https://postcard.jamesmunns.com/wire-format>) in base64url, signed with HMAC-SHA256 if there are
//! keys.

use std::{fmt, mem, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use ring::hmac;
use serde::{Deserialize, Serialize};

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

/// The format of what follows: with or without a signature.
const UNSIGNED: u8 = 1;
const SIGNED: u8 = 2;

/// Bytes of a signature.
const SIGNATURE_BYTES: usize = 32;

/// Most tokens of one charge are shorter, with their signature.
const TOKEN_BYTES_USUAL: usize = 160;

/// The longest token, in characters.
pub(crate) const TOKEN_CHARS_MAX: usize = 8192;

/// The keys that sign tokens: the first signs, and all are accepted. Without keys, every client that can commit can
/// give back any hits.
#[derive(Clone, Default)]
pub struct HoldKeys(Arc<[hmac::Key]>);

impl fmt::Debug for HoldKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HoldKeys({})", self.0.len())
    }
}

#[derive(Serialize, Deserialize)]
struct HoldToken<'text> {
    nonce: [u8; HoldId::NONCE_BYTES],
    /// The store's time of the first charge, in milliseconds.
    made: u64,
    #[serde(borrow)]
    charges: Vec<TokenCharge<'text>>,
    /// The span of the take, if it is sampled.
    span: Option<SpanIds>,
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
    window: String,
    lifetime_ms: u64,
    number: u32,
    weights: Vec<(&'text str, u64)>,
    /// `None` for the usual ones.
    unused_on: Option<Vec<&'text str>>,
}

impl HoldKeys {
    /// The keys of these secrets, of any length.
    pub fn new<'secret>(secrets: impl Iterator<Item = &'secret [u8]>) -> Self {
        Self(secrets.map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret)).collect())
    }

    /// Encodes a hold as a token. `None` if the token would exceed [`TOKEN_CHARS_MAX`].
    pub(super) fn write(&self, hold: &TakenHold, span: Option<SpanIds>) -> Option<String> {
        let first = hold.charges.first()?;
        let made = first.made.as_millis();
        let windows = hold.charges.iter().map(|charge| charge.counter.limit.window.to_string());
        let mut before = "";
        let mut charges = Vec::with_capacity(hold.charges.len());
        for (charge, window) in hold.charges.iter().zip(windows) {
            charges.push(TokenCharge::new(charge, before, window, first.made)?);
            (before, _) = charge.counter.business_id();
        }
        let token = HoldToken { nonce: hold.id.nonce(), made, charges, span };
        let mut bytes = Vec::with_capacity(TOKEN_BYTES_USUAL);
        bytes.push(if self.0.is_empty() { UNSIGNED } else { SIGNED });
        bytes = postcard::to_extend(&token, bytes).ok()?;
        if let Some(key) = self.0.first() {
            let signature = hmac::sign(key, &bytes);
            bytes.extend_from_slice(signature.as_ref());
        }
        let token = BASE64.encode(bytes);
        (token.len() <= TOKEN_CHARS_MAX).then_some(token)
    }

    /// Decodes a token: the hold, and the span in which it was taken. `None` if the token is malformed, or not signed
    /// with one of the keys.
    pub fn read(&self, token: &[u8]) -> Option<(TakenHold, Option<SpanIds>)> {
        if token.len() > TOKEN_CHARS_MAX {
            return None;
        }
        let bytes = BASE64.decode(token).ok()?;
        let payload = match (*bytes.first()?, self.0.is_empty()) {
            (UNSIGNED, true) => &bytes[..],
            (SIGNED, false) => {
                let length = bytes.len().checked_sub(SIGNATURE_BYTES)?;
                let (signed, signature) = bytes.split_at_checked(length)?;
                let is_ours = |key| hmac::verify(key, signed, signature).is_ok();
                self.0.iter().any(is_ours).then_some(signed)?
            }
            _ => return None,
        };
        let (token, []) = postcard::take_from_bytes::<HoldToken<'_>>(payload.get(1..)?).ok()?
        else {
            return None;
        };
        let first = Timestamp::from_millis(token.made);
        let mut charges: Vec<HeldCharge> = Vec::with_capacity(token.charges.len());
        for charge in &token.charges {
            let before = charges.last().map_or("", |before| before.counter.business_id().0);
            let charge = charge.read(before, first)?;
            charges.push(charge);
        }
        if charges.is_empty() {
            return None;
        }
        Some((TakenHold { id: HoldId::from_nonce(token.nonce), charges }, token.span))
    }
}

impl<'text> TokenCharge<'text> {
    fn new(
        charge: &'text HeldCharge,
        before: &str,
        window: String,
        first: Timestamp,
    ) -> Option<Self> {
        let limit = &*charge.counter.limit;
        let policy = limit.hold.as_deref()?;
        let (business_id, slot_by) = charge.counter.business_id();
        // Both are ASCII.
        let shared =
            before.bytes().zip(business_id.bytes()).take_while(|(one, other)| one == other);
        let shared = shared.count();
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
            window,
            lifetime_ms: policy.lifetime_ms,
            number: policy.number,
            weights: policy.weights.iter().map(|(kind, weight)| (&**kind, *weight)).collect(),
            unused_on: policy
                .unused_on
                .as_ref()
                .map(|ends| ends.iter().map(|end| &**end).collect()),
        })
    }

    fn read(&self, before: &str, first: Timestamp) -> Option<HeldCharge> {
        let business_id = before.get(..self.shared)?.to_owned() + self.rest;
        let is_of_key = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'{' | b'}');
        let are_bounded = (1..=Hits::MAX).contains(&self.hits)
            && (1..=HoldPolicy::LIFETIME_MS_MAX).contains(&self.lifetime_ms)
            && self.parameter <= Hits::MAX;
        if !are_bounded || business_id.is_empty() || !business_id.bytes().all(is_of_key) {
            return None;
        }
        let unused_on = self.unused_on.as_ref();
        let policy = HoldPolicy {
            number: self.number,
            weights: self.weights.iter().map(|(kind, weight)| ((*kind).into(), *weight)).collect(),
            unused_on: unused_on.map(|ends| ends.iter().map(|end| (*end).into()).collect()),
            ..HoldPolicy::new(self.lifetime_ms)
        };
        let algorithms = Algorithm::all(self.parameter, None);
        let algorithm = algorithms.into_iter().nth(self.algorithm.into())?;
        let limit = Limit {
            window: Window::read(&self.window)?,
            algorithm: match algorithm {
                Algorithm::FirstHitWindow { .. } => Algorithm::FirstHitWindow {
                    idle_ms: Some(self.parameter).filter(|idle| *idle > 0),
                },
                other => other,
            },
            hold: Some(Arc::new(policy)),
            ..Limit::new(self.parameter, Unit::Second, 1)?
        };
        let slot_by = if self.is_in_slot_of_domain { SlotBy::Domain } else { SlotBy::BusinessId };
        let counter = Counter::of_business_id(business_id, slot_by, Arc::new(limit));
        Some(HeldCharge { counter, hits: self.hits, made: first.shifted(self.made_later) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{calendar::Calendar, request::Entry};

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
            let made = Timestamp::from_millis(1_795_215_600_123 + index as u64);
            held.push(HeldCharge { counter, hits: 300 + index as u64, made });
        }
        TakenHold { id: HoldId::from_nonce([7; 12]), charges: held }
    }

    fn keys(secrets: &[&[u8]]) -> HoldKeys {
        HoldKeys::new(secrets.iter().copied())
    }

    /// What a commit needs of each charge.
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
        for keys in [keys(&[]), keys(&[b"first secret", b"second"])] {
            for charges in [1, 2, 6, 16] {
                let hold = hold(charges);
                for span in [None, Some(([1; 16], [2; 8]))] {
                    let token = keys.write(&hold, span).unwrap();
                    let (read, span_read) = keys.read(token.as_bytes()).unwrap();
                    assert_eq!((essence(&read), span_read), (essence(&hold), span));
                }
                let token = keys.write(&hold, None).unwrap();
                assert!(charges < 16 || token.len() <= 1500, "{} characters", token.len());
            }
        }
    }

    #[test]
    fn a_key_that_is_replaced_is_accepted_and_a_foreign_one_is_not() {
        let token = keys(&[b"old"]).write(&hold(2), None).unwrap();
        assert!(keys(&[b"new", b"old"]).read(token.as_bytes()).is_some());
        assert!(keys(&[b"new"]).read(token.as_bytes()).is_none());
        assert!(keys(&[]).read(token.as_bytes()).is_none());
        let unsigned = keys(&[]).write(&hold(2), None).unwrap();
        assert!(keys(&[b"old"]).read(unsigned.as_bytes()).is_none());
    }

    #[test]
    fn a_signed_token_with_any_byte_changed_is_none() {
        let keys = keys(&[b"secret"]);
        let token = keys.write(&hold(3), None).unwrap();
        for index in 0..token.len() {
            let mut changed = token.clone().into_bytes();
            changed[index] = if changed[index] == b'A' { b'B' } else { b'A' };
            assert!(keys.read(&changed).is_none(), "byte {index}");
            assert!(keys.read(&token.as_bytes()[..index]).is_none(), "cut at {index}");
        }
    }
}
