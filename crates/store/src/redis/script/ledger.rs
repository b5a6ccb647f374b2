//! Calls of any kind, as `lua/ledger.lua` takes them.

use std::{sync::Arc, time::Duration};

use redis::Cmd;
use tollkeeper_engine::{
    hold::Abandoned,
    key::Counter,
    ledger::{
        Charge, CommitOutcome, Few, Fit, GiveBack, HoldAction, JudgedBy, Tally, Verdict, part_asked,
    },
    request::Hits,
    rule::{Algorithm, FailureMode, Mode, WhenDenied},
    time::{Span, Timestamp},
};

use super::{
    ELSEWHERE, KeyDeclaration, ScriptVerdict, UNWRITTEN, WriteRefusal, count, keys::KeyIndex,
    timestamp, work::NodeWork,
};
use crate::Clear;

#[derive(Debug, Default)]
pub struct LedgerRun {
    keys: KeyIndex,
    arguments: Vec<String>,
    calls: Vec<Arc<[Charge]>>,
}

/// What distinguishes a charge from a give-back in the arguments.
struct Columns<'call> {
    kind: &'static str,
    hits: u64,
    /// The most hits, when the call was sent.
    limit: u64,
    /// What it costs if the call is denied.
    denied: &'static str,
    hold: Option<HoldAction>,
    /// The key of the take that its call is, if it opens holds.
    take: Option<&'call str>,
    failure_mode: FailureMode,
    /// The expiry of an aligned key, or when the hits of a give-back were charged.
    time: Timestamp,
    caller: Option<&'call str>,
    /// The marks of `draws_first` and `always_fits`, and the number of its group.
    quota: String,
}

impl LedgerRun {
    /// Whether an earlier call is on a counter of one of these charges.
    pub(in crate::redis) fn has_counter_of(&self, charges: &[Charge]) -> bool {
        let mut counters = self.calls.iter().flat_map(|call| call.iter());
        counters.any(|own| charges.iter().any(|other| own.counter.same_counter(&other.counter)))
    }

    /// Adds work in the windows that hold `assumed_now`, on keys that begin with `prefix`.
    pub(in crate::redis) fn add_work(
        &mut self,
        work: &NodeWork,
        assumed_now: Timestamp,
        prefix: &str,
    ) {
        match work {
            NodeWork::Charges(charges) => self.add(charges, assumed_now, prefix),
            NodeWork::GiveBack(give_back) => self.add_give_back(give_back, prefix),
            NodeWork::Read(counter, clear) => {
                self.add_reading(counter, *clear, assumed_now, prefix);
            }
        }
    }

    /// Adds the reading of a counter, as `lua/counter.lua` takes it, on keys that begin with `prefix`.
    pub fn add_reading(
        &mut self,
        counter: &Counter,
        clear: Clear,
        assumed_now: Timestamp,
        prefix: &str,
    ) {
        self.add(&Arc::from([Charge::reading(counter.clone())]), assumed_now, prefix);
        self.arguments.push(match clear {
            Clear::No => "read".to_owned(),
            Clear::Show => "show".to_owned(),
            Clear::Holds => "holds".to_owned(),
            Clear::Yes => "clear".to_owned(),
        });
        if clear.ends_holds() {
            let reset = self.slot(prefix, &counter.reset_key());
            self.arguments.push(reset.to_string());
        }
    }

    /// The slot of the key with the time of the counter's last reset.
    fn reset_slot(&mut self, counter: &Counter, prefix: &str) -> Option<u64> {
        u64::try_from(self.slot(prefix, &counter.reset_key())).ok()
    }

    /// Adds a call in the windows that hold `assumed_now`, on keys that begin with `prefix`.
    pub fn add(&mut self, charges: &Arc<[Charge]>, assumed_now: Timestamp, prefix: &str) {
        self.calls.push(Arc::clone(charges));
        self.arguments.push(charges.len().to_string());
        let opens = charges.iter().find_map(|charge| match charge.hold? {
            HoldAction::Open { id, .. } => Some(charge.counter.take_key(id)),
            _ => None,
        });
        for charge in charges.iter() {
            let Charge { counter, hits, caller, hold, .. } = charge;
            let limit = &*counter.limit;
            let span = charge.terms(assumed_now).span;
            let (kind, hits) = match *hits {
                Hits::Charge(hits) => ("charge", hits),
                Hits::Check => ("check", limit.exhausted_checks.asked()),
                Hits::Refund(hits) => ("refund", hits),
                Hits::Commit => ("refund", 0),
            };
            let time =
                if limit.algorithm.is_aligned() { counter.expiry(span.end) } else { span.end };
            let (failure_mode, caller) = (limit.failure_mode(), caller.as_deref());
            let (denied, hold) = (denied(charge), *hold);
            let columns = Columns {
                kind,
                hits,
                limit: limit.requests_at(span, assumed_now),
                denied,
                hold,
                take: opens.as_deref(),
                failure_mode,
                time,
                caller,
                quota: quota(charge),
            };
            self.add_charge(counter, span, columns, prefix);
        }
    }

    /// Adds a give-back as a call of its own, on keys that begin with `prefix`. Its verdict is the verdict of a refund
    /// whose counter's `on_store_failure` is `error`: decided with one tally, or
    /// [`Corrupt`](ScriptVerdict::Corrupt), or [`WriteRefused`](ScriptVerdict::WriteRefused). It is never
    /// [`Stale`](ScriptVerdict::Stale).
    pub fn add_give_back(&mut self, give_back: &GiveBack, prefix: &str) {
        let GiveBack { counter, hits, made, caller, hold } = give_back;
        let refund = Hits::Refund(*hits);
        self.calls.push([Charge { hold: *hold, ..Charge::new(counter.clone(), refund) }].into());
        self.arguments.push("1".to_owned());
        let columns = Columns {
            kind: "give_back",
            hits: *hits,
            limit: counter.limit.requests_per_unit,
            denied: "free",
            hold: *hold,
            take: None,
            failure_mode: FailureMode::Error,
            time: *made,
            caller: caller.as_deref(),
            quota: String::new(),
        };
        self.add_charge(counter, counter.limit.window.at(*made), columns, prefix);
    }

    /// Adds the arguments of a charge in the window `span`; see `lua/charge.lua`.
    fn add_charge(&mut self, counter: &Counter, span: Span, columns: Columns<'_>, prefix: &str) {
        let limit = &*counter.limit;
        let slot = self.slot(prefix, &counter.key(span.start));
        let (start, stop) = if limit.algorithm.is_aligned() {
            (span.start.as_millis(), span.end.as_millis())
        } else {
            (0, limit.window_ms())
        };
        let extra = match limit.algorithm {
            Algorithm::SlidingWindow => match span.previous() {
                Some(previous) => self.slot(prefix, &counter.key(previous.start)).to_string(),
                None => String::new(),
            },
            Algorithm::TokenBucket { burst } => burst.to_string(),
            Algorithm::FirstHitWindow { idle_ms: Some(idle_ms) } => idle_ms.to_string(),
            _ => columns.caller.unwrap_or_default().to_owned(),
        };
        self.arguments.extend([
            limit.algorithm.short_name().to_owned(),
            slot.to_string(),
            start.to_string(),
            stop.to_string(),
            columns.kind.to_owned() + if columns.hold.is_some() { "+" } else { "" },
            columns.hits.to_string(),
            columns.limit.to_string(),
            columns.denied.to_owned(),
            match limit.mode {
                Mode::Enforced => "enforced".to_owned(),
                Mode::Shadow => "shadow".to_owned() + &columns.quota,
                Mode::Quota => "quota".to_owned() + &columns.quota,
            },
            columns.failure_mode.name().to_owned(),
            columns.time.as_millis().to_string(),
            extra,
        ]);
        if let Some(hold) = columns.hold {
            self.add_hold(hold, counter, columns.take, prefix);
        }
    }

    /// Adds the arguments of what a charge does with holds.
    fn add_hold(&mut self, hold: HoldAction, counter: &Counter, take: Option<&str>, prefix: &str) {
        let keep = |abandoned| (abandoned == Abandoned::Keep).then_some(1);
        let key = hold.key_beside(counter).map(|key| self.slot(prefix, &key).to_string());
        let (action, id, numbers) = match hold {
            HoldAction::Commit { id, held, used, made, deadline } => {
                let numbers = [held, used, made.as_millis(), deadline.as_millis()].map(Some);
                let reset = self.reset_slot(counter, prefix);
                ("commit", Some(id), numbers.into_iter().chain([reset]).collect())
            }
            HoldAction::ById { id, used, is_end, lifetime_ms } => (
                "by_id",
                Some(id),
                vec![
                    Some(lifetime_ms),
                    used,
                    is_end.then_some(1),
                    self.reset_slot(counter, prefix),
                ],
            ),
            HoldAction::Open { id, estimate, lifetime_ms, abandoned } => {
                let take = take.and_then(|key| u64::try_from(self.slot(prefix, key)).ok());
                let numbers = vec![keep(abandoned), Some(lifetime_ms), Some(estimate), take];
                ("open", Some(id), numbers)
            }
            HoldAction::EndOldest { abandoned } => ("end_oldest", None, vec![keep(abandoned)]),
            HoldAction::Beside { abandoned } => ("beside", None, vec![keep(abandoned)]),
            HoldAction::Ban { for_ms } => ("ban", None, vec![Some(for_ms)]),
            HoldAction::Occupy { id, lifetime_ms } => ("occupy", Some(id), vec![Some(lifetime_ms)]),
        };
        let id = id.map(|id| id.to_string());
        self.arguments.extend([action.to_owned(), key.unwrap_or_default(), id.unwrap_or_default()]);
        let spelled = |number: Option<u64>| number.map(|number| number.to_string());
        self.arguments
            .extend(numbers.into_iter().map(|number| spelled(number).unwrap_or_default()));
    }

    /// The command `verb` that runs the script: EVALSHA and its hash, or EVAL and its text.
    pub fn command(&self, verb: &str, script: &str, keys: KeyDeclaration) -> Cmd {
        let mut command = redis::cmd(verb);
        keys.write(command.arg(script), &[self.keys.as_slice()], |command| {
            command.arg(&self.arguments);
        });
        command
    }

    pub(in crate::redis) fn keys(&self) -> &[String] {
        self.keys.as_slice()
    }

    /// The verdict on each call, in the order in which they were added, and Redis's time; `None`
    /// if it has another form.
    pub fn read(&self, reply: &[i64]) -> Option<(Timestamp, Vec<ScriptVerdict>)> {
        let [seconds, micros, rest @ ..] = reply else { return None };
        let now = timestamp(*seconds, *micros)?;
        let mut rest = rest;
        let mut verdicts = Vec::with_capacity(self.calls.len());
        for charges in &self.calls {
            let verdict = *rest.split_off_first()?;
            let (answers, []) = rest.split_off(..2 * charges.len())?.as_chunks::<2>() else {
                return None;
            };
            let held = rest.split_off(..charges.iter().filter(|one| may_end_hold(one)).count())?;
            verdicts.push(read_call(verdict, charges, answers, held, now)?);
        }
        rest.is_empty().then_some((now, verdicts))
    }

    /// The slot of a key in KEYS, counted from 1 as Lua does.
    fn slot(&mut self, prefix: &str, key: &str) -> usize {
        self.keys.slot(prefix.to_owned() + key)
    }
}

/// What is written behind the mode of a quota; see `lua/charge.lua`.
fn quota(Charge { quota_group, draws_first, always_fits, .. }: &Charge) -> String {
    let mut quota = String::new();
    quota.extend(draws_first.then_some('!'));
    quota.extend(always_fits.then_some('+'));
    if *quota_group > 0 {
        quota += &quota_group.to_string();
    }
    quota
}

fn denied(charge: &Charge) -> &'static str {
    match charge.when_denied() {
        _ if charge.is_part => "part",
        _ if charge.is_take() => "hold",
        WhenDenied::Free => "free",
        WhenDenied::Counted => "count",
    }
}

/// Whether the reply says how many hits the hold had that the charge has ended.
const fn may_end_hold(charge: &Charge) -> bool {
    matches!(charge.hold, Some(HoldAction::ById { .. } | HoldAction::EndOldest { .. }))
}

fn read_call(
    verdict: i64,
    charges: &[Charge],
    answers: &[[i64; 2]],
    held: &[i64],
    now: Timestamp,
) -> Option<ScriptVerdict> {
    let corrupt = answers.iter().enumerate().filter(|(_, [answer, _])| *answer == -2);
    let corrupt: Vec<usize> = corrupt.map(|(charge, _)| charge).collect();
    // Why what counts of a denied call was not written.
    let unwritten = WriteRefusal::from_reply(verdict.saturating_sub(UNWRITTEN));
    let (denied, part) = match verdict {
        hits @ 1.. if part_asked(charges).is_some() => (false, Some(count(hits)?)),
        1 => (false, None),
        0 => (true, None),
        _ if unwritten.is_some() => (true, None),
        -1 => return Some(ScriptVerdict::Stale),
        ELSEWHERE => return Some(ScriptVerdict::Elsewhere),
        -2 if corrupt.is_empty() => return None,
        -2 => return Some(ScriptVerdict::Corrupt(corrupt)),
        code => return ScriptVerdict::from_error(code),
    };
    let mut tallies = Vec::with_capacity(charges.len());
    let mut held = held.iter();
    for (charge, answer) in charges.iter().zip(answers) {
        let mut tally = match answer {
            [-2, _] => Tally::by_failure_mode(charge, JudgedBy::Corrupt),
            answer => one_tally(charge, *answer)?,
        };
        if may_end_hold(charge) {
            tally.held = count(*held.next()?)?;
        }
        tallies.push(tally);
    }
    let at = Few::from_iter([now]);
    let judged = Verdict { denied, tallies, part, at, ..Verdict::default() };
    Some(match unwritten {
        Some(refusal) => ScriptVerdict::Unwritten(judged, refusal),
        None => ScriptVerdict::Decided(judged),
    })
}

fn one_tally(charge: &Charge, [answer, reset]: [i64; 2]) -> Option<Tally> {
    let reset = Duration::from_millis(u64::try_from(reset).ok()?);
    let fit = match answer {
        -1 => Fit::Over,
        -3 if charge.hold.is_some() => Fit::Commit(CommitOutcome::Applied),
        -4 if charge.hold.is_some() => Fit::Commit(CommitOutcome::Repeated),
        -5 if charge.hold.is_some() => Fit::Commit(CommitOutcome::Late),
        remaining => Fit::Fits { remaining: count(remaining)? },
    };
    Some(Tally::new(fit, reset))
}

#[cfg(test)]
mod tests {
    use super::*;

    use tollkeeper_engine::rule::{Limit, Unit};

    /// One call of `charges` charges, on limits that fail with an error.
    fn run(charges: usize) -> LedgerRun {
        let limit = Arc::new(Limit::new(10, Unit::Hour, 1).unwrap());
        let charge = |_| {
            let counter = Counter::new("shop", &[], Arc::clone(&limit));
            Charge::new(counter, Hits::Charge(1))
        };
        LedgerRun { calls: vec![(0..charges).map(charge).collect()], ..LedgerRun::default() }
    }

    #[test]
    fn a_reply_of_another_form_decides_nothing() {
        for reply in [
            &[][..],
            &[1_795_215_600],
            &[1_795_215_600, 0, 1],
            &[1_795_215_600, 0, 1, 5],
            &[1_795_215_600, 0, 1, 5, 0, 5],
            &[1_795_215_600, 0, 1, 5, 0, 5, 0],
            &[1_795_215_600, 0, 1, -7, 0],
            &[1_795_215_600, 0, 1, 7, -1],
            &[1_795_215_600, 0, 1, i64::MAX, 0],
            &[-5, 0, 1, 5, 0],
            &[i64::MAX, 0, 1, 5, 0],
            &[1_795_215_600, 0, 2, 5, 0],
            &[1_795_215_600, 0, -2, 0, 0],
            &[1_795_215_600, 0, -10, 0, 0],
        ] {
            assert_eq!(run(1).read(reply), None, "for {reply:?}");
        }
    }

    #[test]
    fn a_reply_holds_redis_time_in_milliseconds_and_the_verdict() {
        let (now, answer) =
            run(2).read(&[1_795_215_600, 123_999, 0, -1, 1500, 7, 20]).expect("a good reply");
        let tally = |fit, ms| Tally::new(fit, Duration::from_millis(ms));
        assert_eq!(now, Timestamp::from_millis(1_795_215_600_123));
        let tallies = vec![tally(Fit::Over, 1500), tally(Fit::Fits { remaining: 7 }, 20)];
        let at = Few::from_iter([now]);
        let verdict = Verdict { denied: true, tallies, at, ..Verdict::default() };
        assert_eq!(answer, [ScriptVerdict::Decided(verdict)]);
    }

    #[test]
    fn a_reply_names_the_charges_whose_counters_are_corrupt() {
        let read = |verdict| run(2).read(&[1_795_215_600, 0, verdict, 7, 20, -2, 0]).unwrap().1;
        assert_eq!(read(-2), [ScriptVerdict::Corrupt(vec![1])]);
        let [ScriptVerdict::Decided(verdict @ Verdict { denied: false, .. })] = &read(1)[..] else {
            panic!("{:?}", read(1));
        };
        assert_eq!(verdict.tallies[1].judged_by, JudgedBy::Corrupt);
    }
}
