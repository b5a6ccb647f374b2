//! Calls on two accounts as text, and properties of random calls.

use std::{sync::Arc, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::{
    algorithm::{
        Algorithm,
        fixed_window::FixedWindow,
        hold_record::{HoldRecord, HoldState},
    },
    hold::{Abandoned, HoldBy, HoldPolicy},
    key::Counter,
    rule::{ExhaustedChecks, Lease, Limit, Mode, Tier, Unit, WhenDenied},
    time::Timestamp,
};

const NOW: Timestamp = Timestamp::from_secs(1_795_215_600);

/// A charge, and the index of its account; `None` if its counter is corrupt.
type IndexedCharge = (Option<usize>, Charge);

/// Judges a call on two accounts, `a` and `b`, and compares the verdict on each charge, and the used hits.
///
/// A call is written `charge 3 to a/5, check a/5, refund 2 of b/9`: the number after the slash is the limit.
/// `inclusive` is a check that passes at an exhausted limit,
/// `count` is a charge that counts when denied, `shadow` one to a shadow, `quota` one to a quota, `group` one to a quota
/// of a group, `draw` one to a quota that draws first, `exempt` one to a quota with room whatever it holds; `part` is a part;
/// `deny`, `allow` and `local` are charges to limits with this `on_store_failure`. The counter `x` is corrupt.
#[track_caller]
fn check(used: [u64; 2], call: &str, expected: &str, used_after: [u64; 2]) {
    let call_read: Vec<IndexedCharge> = call.split(", ").map(indexed_charge).collect();
    let mut accounts = used.map(account);
    let verdicts = match judge(&postings(&call_read), &mut accounts) {
        Some(verdict) => verdict.tallies.iter().map(spell).collect::<Vec<_>>().join(", "),
        None => "fails".to_owned(),
    };
    assert_eq!(verdicts, expected, "{used:?}: {call}");
    assert_eq!(accounts, used_after.map(account), "{used:?}: {call}");
}

fn spell(tally: &Tally) -> String {
    match tally.fit {
        Fit::Fits { remaining } => remaining.to_string(),
        Fit::Over => "over".to_owned(),
        Fit::Commit(outcome) => format!("{outcome:?}"),
    }
}

fn account(used: u64) -> AnyAccount {
    AnyAccount::FixedWindow(FixedWindow { used })
}

/// A limit of this many hits a year.
fn limit(requests: u64) -> Limit {
    Limit::new(requests, Unit::Year, 1).unwrap()
}

fn used(accounts: &[AnyAccount], index: usize) -> u64 {
    accounts[index].read().used(&limit(1).terms(NOW))
}

fn charge_of(account: Option<usize>, hits: Hits, limit: Limit) -> IndexedCharge {
    let domain = account.map_or("x", |index| ["a", "b"][index]);
    (account, Charge::new(Counter::new(domain, &[], Arc::new(limit)), hits))
}

fn postings(call: &[IndexedCharge]) -> Vec<Posting<'_>> {
    let mut postings = Vec::new();
    for (account, charge) in call {
        let terms = charge.counter.limit.terms(NOW);
        postings.push(Posting {
            account: *account,
            hold: None,
            reset: None,
            hits: charge.hits,
            charge,
            terms,
        });
    }
    postings
}

fn indexed_charge(text: &str) -> IndexedCharge {
    let (words, requests) = text.split_once('/').unwrap();
    let words: Vec<&str> = words.split(' ').collect();
    let account = match *words.last().unwrap() {
        "a" => Some(0),
        "b" => Some(1),
        _ => None,
    };
    let hits = match words[0] {
        "check" | "inclusive" => Hits::Check,
        "refund" => Hits::Refund(words[1].parse().unwrap()),
        _ => Hits::Charge(words[1].parse().unwrap()),
    };
    let mut limit = limit(requests.parse().unwrap());
    match words[0] {
        "count" => limit.when_denied = WhenDenied::Counted,
        "inclusive" => limit.exhausted_checks = ExhaustedChecks::Allowed,
        "shadow" => limit.mode = Mode::Shadow,
        "quota" | "group" | "draw" | "exempt" => limit.mode = Mode::Quota,
        "deny" => limit.on_store_failure = FailureMode::Deny,
        "allow" => limit.on_store_failure = FailureMode::Allow,
        "local" => limit.on_store_failure = FailureMode::Local,
        _ => {}
    }
    let (account, charge) = charge_of(account, hits, limit);
    let quota_group = usize::from(words[0] == "group");
    let (draws_first, always_fits) = (words[0] == "draw", words[0] == "exempt");
    let is_part = words[0] == "part";
    (account, Charge { quota_group, draws_first, always_fits, is_part, ..charge })
}

#[test]
fn what_fits_is_charged_and_the_rest_remains() {
    check([0, 0], "charge 3 to a/5", "2", [3, 0]);
    check([3, 0], "charge 2 to a/5, charge 1 to b/9", "0, 8", [5, 1]);
}

#[test]
fn if_one_charge_is_over_none_is_made() {
    check([3, 0], "charge 3 to a/5, charge 1 to b/9", "over, 9", [3, 0]);
    check([3, 0], "charge 1 to b/9, charge 3 to a/5", "9, over", [3, 0]);
    check([5, 0], "check a/5, charge 1 to b/9", "over, 9", [5, 0]);
    check([0, 0], "charge 1 to a/0", "over", [0, 0]);
}

#[test]
fn hits_on_one_account_are_summed() {
    check([0, 0], "charge 2 to a/5, charge 3 to a/5", "0, 0", [5, 0]);
    check([0, 0], "charge 3 to a/5, charge 3 to a/5", "over, over", [0, 0]);
    check([0, 0], "charge 3 to a/9, charge 3 to a/5", "9, over", [0, 0]);
}

#[test]
fn hits_that_count_when_denied_are_charged_in_full_in_any_case() {
    check([3, 0], "count 2 to a/5", "0", [5, 0]);
    check([3, 0], "count 3 to a/5", "over", [6, 0]);
    check([3, 0], "count 3 to a/5, charge 1 to b/9", "over, 9", [6, 0]);
    check([3, 9], "count 1 to a/5, charge 1 to b/9", "1, over", [4, 9]);
    check([3, 0], "count 1 to a/5, charge 2 to a/5", "over, over", [4, 0]);
    check([6, 0], "count 1 to a/5, refund 9 of a/5", "4, 4", [1, 0]);
    let most = Hits::MAX;
    let twice = format!("count {most} to a/5, count {most} to a/5");
    check([3, 0], &twice, "over, over", [most, 0]);
}

#[test]
fn a_shadow_never_denies_and_is_charged_only_if_it_fits() {
    check([5, 0], "shadow 1 to a/5, charge 1 to b/9", "over, 8", [5, 1]);
    check([4, 0], "shadow 1 to a/5, charge 1 to b/9", "0, 8", [5, 1]);
    check([4, 9], "shadow 1 to a/5, charge 1 to b/9", "1, over", [4, 9]);
}

#[test]
fn quotas_deny_only_together_and_count_work_that_is_done() {
    check([5, 0], "quota 1 to a/5, quota 1 to b/9", "over, 8", [6, 1]);
    check([5, 9], "quota 1 to a/5, quota 1 to b/9", "over, over", [6, 10]);
    check([4, 0], "quota 3 to a/5", "over", [7, 0]);
    // A call that an enforced limit denies uncharged did no work.
    check([0, 9], "quota 1 to a/5, charge 1 to b/9", "5, over", [0, 9]);
    check([0, 9], "quota 1 to a/5, count 1 to b/9", "4, over", [1, 10]);
}

#[test]
fn a_group_of_quotas_has_room_if_each_of_them_has() {
    check([5, 0], "group 1 to a/5, group 1 to b/9, charge 1 to b/9", "over, 8, 8", [6, 1]);
    check([4, 0], "group 1 to a/5, group 1 to b/9, charge 1 to b/9", "0, 7, 7", [5, 2]);
    check([5, 0], "group 1 to a/5, quota 1 to b/9, charge 1 to b/9", "over, 7, 7", [6, 2]);
}

#[test]
fn of_quotas_that_draw_first_the_first_that_fits_is_charged_and_no_other() {
    check([0, 0], "draw 1 to a/5, draw 1 to b/9", "4, 9", [1, 0]);
    check([5, 0], "draw 1 to a/5, draw 1 to b/9", "over, 8", [5, 1]);
    check([5, 9], "draw 1 to a/5, draw 1 to b/9", "over, over", [5, 9]);
    // A refund draws nothing.
    check([5, 0], "refund 1 of a/5, draw 1 to b/9", "1, 8", [4, 1]);
}

#[test]
fn a_quota_is_skipped_if_another_of_its_group_is_charged() {
    let charges = ["draw 1 to a/5", "draw 1 to b/9", "charge 1 to a/5"].map(|text| {
        let (_, charge) = indexed_charge(text);
        charge
    });
    let [over, fits] =
        [Fit::Over, Fit::Fits { remaining: 1 }].map(|fit| Tally::new(fit, Duration::ZERO));
    assert_eq!(skipped(&charges, &[fits, fits, fits]), [1]);
    assert_eq!(skipped(&charges, &[over, fits, fits]), [0]);
    assert_eq!(skipped(&charges, &[over, over, fits]), [0]);
    assert_eq!(skipped(&charges[1..], &[fits, fits]), [0; 0]);
}

#[test]
fn an_exempt_quota_admits_the_call_whatever_it_holds() {
    check([5, 9], "exempt 1 to a/5, quota 1 to b/9", "over, over", [6, 10]);
    check([5, 3], "exempt 1 to a/5, charge 1 to b/9", "over, 5", [6, 4]);
}

#[test]
fn of_parts_as_many_hits_are_charged_as_let_the_call_pass() {
    check([0, 0], "part 9 to a/5", "0", [5, 0]);
    check([2, 0], "part 9 to a/5, part 9 to b/7", "0, 4", [5, 3]);
    check([2, 0], "part 2 to a/5, charge 1 to b/9", "1, 8", [4, 1]);
    check([0, 0], "part 9 to a/7, part 9 to a/7", "1, 1", [6, 0]);
    check([5, 0], "part 9 to a/5, part 9 to b/7", "over, 7", [5, 0]);
    // A denied call charges nothing to quotas neither.
    check([0, 9], "part 9 to a/5, quota 1 to b/9", "5, over", [0, 9]);
}

#[test]
fn parts_ask_for_no_more_than_their_limits_can_admit() {
    const MOST: u64 = Hits::MAX;
    let lent = |policy: HoldPolicy, requests| {
        let (account, charge) = charge_of(Some(0), Hits::Charge(1), limit(requests));
        let limit = Limit { hold: Some(Arc::new(policy)), ..limit(requests) };
        (account, Charge { counter: charge.counter.with_limit(Arc::new(limit)), ..charge })
    };
    let call = |text: &str| text.split(", ").map(indexed_charge).collect::<Vec<_>>();
    for (call, expected) in [
        (call("part 1 to a/5"), 5),
        (call("part 1 to a/0"), 1),
        (call("part 1 to a/9, part 1 to b/7"), 7),
        (call("part 1 to a/9, shadow 1 to b/7"), 9),
        (call("quota 1 to a/9, quota 1 to b/7"), 9),
        (call("exempt 1 to a/9, quota 1 to b/7"), MOST),
        (call("shadow 1 to a/9"), MOST),
        (call("shadow 1 to a/9, shadow 1 to b/9"), MOST),
        (call("shadow 1 to a/9, shadow 1 to a/9"), MOST / 2),
        (vec![lent(HoldPolicy::lease(), 100)], 5),
        (vec![lent(HoldPolicy::assignment(), 100)], 100),
        (vec![lent(HoldPolicy::new(1000), 100)], 100),
    ] {
        let charges = call.into_iter().map(|(_, charge)| charge);
        let part = |charge| Charge { hits: Hits::Charge(MOST), is_part: true, ..charge };
        let mut charges: Vec<Charge> = charges.map(part).collect();
        bound_parts(&mut charges);
        let bound = charges.iter().map(|charge| charge.hits.charged()).collect::<Vec<_>>();
        assert_eq!(bound, vec![expected; charges.len()], "{charges:?}");
    }
}

#[test]
fn what_a_denied_call_charges_is_what_counts_when_denied() {
    for (call, denies, denies_uncharged, applies) in [
        ("charge 1 to a/5", true, true, false),
        ("count 1 to a/5", true, false, true),
        ("shadow 1 to a/5", false, false, false),
        ("quota 1 to a/5", true, false, false),
        ("check a/5", true, true, false),
        ("refund 1 of a/5", false, false, true),
    ] {
        let (_, charge) = indexed_charge(call);
        let over = Tally::new(Fit::Over, Duration::ZERO);
        let fits = Tally::new(Fit::Fits { remaining: 0 }, Duration::ZERO);
        assert_eq!(super::denies(slice::from_ref(&charge), &[over]), denies, "{call}");
        assert!(!super::denies(slice::from_ref(&charge), &[fits]), "{call}");
        let absent = Tally::by_failure_mode(&charge, JudgedBy::Absent);
        assert_eq!(absent.judged_by, JudgedBy::Absent, "{call}");
        assert!(!super::denies(slice::from_ref(&charge), &[absent]), "{call}");
        assert_eq!(super::denies_uncharged(&charge, &over), denies_uncharged, "{call}");
        assert_eq!(charge.applies_when_denied(), applies, "{call}");
    }
}

#[test]
fn a_refund_opens_no_closed_counter() {
    let charges = [indexed_charge("refund 2 of a/5").1, indexed_charge("charge 1 to a/5").1];
    for (closed, expected) in [(true, Fit::Over), (false, Fit::Fits { remaining: 1 })] {
        let state = CounterState { used: 5, closed, ..CounterState::default() };
        assert_eq!(foresee(&charges, &[state.clone(), state])[1].fit, expected);
    }
}

#[test]
fn takes_and_parts_charge_nothing_when_denied_and_work_that_is_done_always_counts() {
    let id = HoldId::new(1);
    let by_id = |is_end| HoldAction::ById { id, used: None, is_end, lifetime_ms: 1000 };
    let end = HoldAction::EndOldest { abandoned: Abandoned::Keep };
    let charge = |by: Option<HoldBy>, when_denied, hold, hits| {
        let hold_of_limit = by.map(|by| Arc::new(HoldPolicy { by, ..HoldPolicy::new(1000) }));
        let limit = Limit { hold: hold_of_limit, when_denied, ..limit(5) };
        Charge { hold, ..charge_of(Some(0), hits, limit).1 }
    };
    let (token, by) = (Some(HoldBy::Token), Some(HoldBy::Id));
    let (one, free, counted) = (Hits::Charge(1), WhenDenied::Free, WhenDenied::Counted);
    let plain = |when_denied| charge(None, when_denied, None, one);
    // What is left of one whose call is refused.
    for (charge, is_take, when_denied, refused) in [
        (plain(free), false, free, Hits::Check),
        (plain(counted), false, counted, one),
        (Charge { only_if_fits: true, ..plain(counted) }, true, free, Hits::Check),
        (Charge { is_part: true, ..plain(counted) }, false, free, Hits::Check),
        (charge(token, counted, None, one), true, free, Hits::Check),
        (charge(token, counted, None, Hits::Refund(1)), false, counted, Hits::Refund(1)),
        (charge(by, counted, Some(by_id(false)), one), true, free, Hits::Check),
        (charge(by, free, Some(by_id(true)), one), false, counted, one),
        (charge(Some(HoldBy::Counter), free, Some(end), one), false, counted, one),
    ] {
        assert_eq!(charge.is_take(), is_take, "{charge:?}");
        assert_eq!(charge.when_denied(), when_denied, "{charge:?}");
        assert_eq!(charge.is_commit(), charge.hold == Some(by_id(true)), "{charge:?}");
        let mut left = charge.clone();
        left.refuse();
        assert_eq!(left.hits, refused, "{charge:?}");
        let keeps_hold = charge.hold == Some(by_id(true)) || charge.hold == Some(end);
        assert_eq!(left.hold.is_some(), keeps_hold, "{charge:?}");
    }
}

#[test]
fn a_commit_by_id_replaces_what_its_take_held_in_the_window_of_the_take() {
    use CommitOutcome::{Applied, Late, Repeated};
    const YEAR_MS: u64 = 366 * 86_400_000;
    let (before, soon) = (Timestamp::from_millis(NOW.as_millis() - YEAR_MS), NOW.plus_millis(9));
    let taken = |made, deadline| Some(HoldState::Taken { hits: 4, made, deadline });
    // The counter holds 5.
    for (state, used, outcome, used_after, held) in [
        (taken(NOW, soon), Some(1), Applied, 2, 4),
        (taken(NOW, soon), Some(4), Applied, 5, 4),
        (taken(NOW, soon), Some(6), Applied, 7, 4),
        (taken(NOW, soon), None, Applied, 5, 4),
        (taken(before, soon), Some(1), Applied, 5, 4),
        (taken(before, soon), Some(6), Applied, 7, 4),
        (taken(NOW, NOW), Some(1), Late, 5, 4),
        (Some(HoldState::Committed), Some(1), Repeated, 5, 0),
        (None, Some(3), Applied, 8, 0),
        (None, None, Applied, 7, 0),
    ] {
        let hold = HoldAction::ById { id: HoldId::new(1), used, is_end: true, lifetime_ms: 9 };
        let (_, charge) = charge_of(Some(0), Hits::Charge(2), limit(10));
        let call = [(Some(0), Charge { hold: Some(hold), ..charge })];
        let posting = Posting { hold: Some(1), ..postings(&call)[0] };
        let record = HoldRecord { state, until: soon };
        let mut accounts = [account(5), AnyAccount::HoldRecord(Box::new(record))];
        let [tally] = judge(&[posting], &mut accounts).unwrap().tallies[..] else { panic!() };
        assert_eq!((tally.fit, tally.held), (Fit::Commit(outcome), held), "{state:?}, {used:?}");
        assert_eq!(accounts[0], account(used_after), "{state:?}, {used:?}");
        let AnyAccount::HoldRecord(record) = &accounts[1] else { panic!("{accounts:?}") };
        assert_eq!(record.state, Some(HoldState::Committed), "{state:?}, {used:?}");
    }
}

#[test]
fn a_commit_by_token_counts_once_and_until_a_deadline_that_a_hold_can_have() {
    use CommitOutcome::{Applied, Late, Repeated};
    let at = |ms| NOW.plus_millis(ms);
    // Seven days, and one for clocks that differ.
    let most = 8 * 86_400_000;
    // The take held 4 of 5 hits.
    for (deadline, used, before, outcome, used_after) in [
        (at(1), 1, None, Applied, 2),
        (at(1), 6, None, Applied, 7),
        (at(1), 1, Some(HoldState::Committed), Repeated, 5),
        (at(0), 1, None, Late, 5),
        (at(most), 1, None, Applied, 2),
        (at(most + 1), 1, None, Late, 5),
    ] {
        let id = HoldId::new(1);
        let hold = HoldAction::Commit { id, held: 4, used, made: NOW, deadline };
        let (_, charge) = charge_of(Some(0), Hits::Commit, limit(10));
        let call = [(Some(0), Charge { hold: Some(hold), ..charge })];
        let posting = Posting { hold: Some(1), ..postings(&call)[0] };
        let record = HoldRecord { state: before, until: deadline };
        let mut accounts = [account(5), AnyAccount::HoldRecord(Box::new(record))];
        let [tally] = judge(&[posting], &mut accounts).unwrap().tallies[..] else { panic!() };
        assert_eq!(tally.fit, Fit::Commit(outcome), "{deadline:?}, {used}");
        assert_eq!(accounts[0], account(used_after), "{deadline:?}, {used}");
    }
}

#[test]
fn a_commit_that_gives_back_has_the_window_of_its_take() {
    let (made, deadline) = (Timestamp::from_secs(1_600_000_000), NOW.plus_millis(1));
    for (used, start) in [(3, 1_576_800_000), (4, 1_766_016_000), (5, 1_766_016_000)] {
        let hold = HoldAction::Commit { id: HoldId::new(1), held: 4, used, made, deadline };
        let (_, charge) = charge_of(Some(0), Hits::Commit, limit(10));
        let charge = Charge { hold: Some(hold), ..charge };
        assert_eq!(charge.terms(NOW).span.start, Timestamp::from_secs(start), "{used}");
        assert_eq!(charge.terms(NOW).now, NOW);
    }
}

#[test]
fn open_holds_need_room_beside_hits_until_they_are_ended_or_their_time_has_passed() {
    for (abandoned, used_after) in [(Abandoned::Keep, 10), (Abandoned::Release, 6)] {
        let mut accounts = [account(3), AnyAccount::InFlight(Box::default())];
        let mut call = |now_ms, hits, hold| {
            let (_, charge) = charge_of(Some(0), hits, limit(12));
            let call = [(Some(0), Charge { hold: Some(hold), ..charge })];
            let terms = call[0].1.terms(NOW.plus_millis(now_ms));
            let posting = Posting { hold: Some(1), terms, ..postings(&call)[0] };
            let verdict = judge(&[posting], &mut accounts).unwrap();
            let open = CounterState::read(&posting, &mut accounts.to_vec()).unwrap();
            let ended = verdict.ended.len();
            let tally = verdict.tallies[0];
            assert_eq!(open.remaining, 12_u64.saturating_sub(open.used + open.held));
            (spell(&tally), tally.held, ended, open.used, open.held, open.open_holds)
        };
        let open = |id| HoldAction::Open {
            id: HoldId::new(id),
            estimate: 4,
            lifetime_ms: 1000,
            abandoned,
        };
        let (beside, end) = (HoldAction::Beside { abandoned }, HoldAction::EndOldest { abandoned });
        let (one, two) = (Hits::Charge(1), Hits::Charge(2));
        let over = |used, held, open| ("over".to_owned(), 0, 0, used, held, open);
        let fits = |left: &str, used, held, open| (left.to_owned(), 0, 0, used, held, open);
        assert_eq!(call(0, one, open(1)), fits("4", 4, 4, 1));
        assert_eq!(call(1, one, open(2)), over(4, 4, 1));
        assert_eq!(call(1, Hits::Check, open(2)), fits("0", 4, 8, 2));
        assert_eq!(call(2, one, open(3)), over(4, 8, 2));
        assert_eq!(call(2, one, beside), over(4, 8, 2));
        assert_eq!(call(2, Hits::Refund(0), beside), fits("0", 4, 8, 2));
        assert_eq!(call(3, two, end), ("2".to_owned(), 4, 1, 6, 4, 1));
        assert_eq!(call(1000, one, beside), fits("1", 7, 4, 1));
        let (_, _, _, used, held, open) = call(1001, Hits::Refund(1), beside);
        assert_eq!((used, held, open), (used_after, 0, 0), "{abandoned:?}");
    }
}

#[test]
fn the_highest_tier_that_a_call_reaches_counts() {
    let tier = |at| Tier { at, request_headers: Vec::new() };
    let limit = Limit { tiers: Some(vec![tier(50), tier(80)].into()), ..limit(10) };
    let committed = Fit::Commit(CommitOutcome::Applied);
    for (fit, expected) in [
        (Fit::Fits { remaining: 6 }, None),
        (Fit::Fits { remaining: 5 }, Some(50)),
        (Fit::Fits { remaining: 2 }, Some(80)),
        (Fit::Over, Some(80)),
        (committed, None),
    ] {
        let reached = Tally::new(fit, Duration::ZERO).tier(&limit).map(|tier| tier.at);
        assert_eq!(reached, expected, "{fit:?}");
    }
}

#[test]
fn what_does_not_fit_closes_a_counter_until_its_ban_ends() {
    let call = |now_ms: u64, hits, accounts: &mut [AnyAccount]| {
        let limit = Limit { ban_ms: Some(3000), ..limit(5) };
        let (_, charge) = charge_of(Some(0), hits, limit);
        let hold = Some(HoldAction::Ban { for_ms: 3000 });
        let call = [(Some(0), Charge { hold, ..charge })];
        let terms = call[0].1.terms(NOW.plus_millis(now_ms));
        let posting = Posting { hold: Some(1), terms, ..postings(&call)[0] };
        let reading = CounterState::read(&posting, &mut accounts.to_vec()).unwrap();
        let tally = judge(&[posting], accounts).unwrap().tallies[0];
        let closed = reading.closed.then_some((reading.remaining, reading.reset.as_millis()));
        (spell(&tally), tally.reset.as_millis(), closed)
    };
    let mut accounts = [account(2), AnyAccount::HoldRecord(Box::default())];
    let over = |reset_ms, closed: Option<u128>| {
        ("over".to_owned(), reset_ms, closed.map(|reset_ms| (0, reset_ms)))
    };
    // What fits or is checked closes nothing, and one that is closed stays closed no longer than before.
    assert_eq!(call(0, Hits::Charge(1), &mut accounts).0, "2");
    assert_eq!(call(0, Hits::Check, &mut accounts).0, "2");
    assert_eq!(call(0, Hits::Charge(3), &mut accounts), over(3000, None));
    assert_eq!(call(1000, Hits::Charge(1), &mut accounts), over(2000, Some(2000)));
    assert_eq!(call(2999, Hits::Check, &mut accounts), over(1, Some(1)));
    let (tally, reset_ms, _) = call(2999, Hits::Refund(0), &mut accounts);
    assert_eq!((&*tally, reset_ms), ("2", 2_336_397_001), "a refund shows the window");
    let (tally, _, closed) = call(3000, Hits::Charge(1), &mut accounts);
    assert_eq!((&*tally, closed), ("1", None));
}

#[test]
fn what_is_known_of_holds_has_a_key_of_its_own_beside_all_counters_but_those_of_calls() {
    let id = HoldId::new(1);
    let (abandoned, lifetime_ms, made, deadline) = (Abandoned::Keep, 1000, NOW, NOW);
    let counter = |algorithm| Counter::new("shop", &[], Arc::new(Limit { algorithm, ..limit(5) }));
    let fixed = counter(Algorithm::FixedWindow);
    let in_flight = counter(Algorithm::InFlight { remember: None });
    let open = HoldAction::Open { id, estimate: 1, lifetime_ms, abandoned };
    let commit = HoldAction::Commit { id, held: 1, used: 1, made, deadline };
    let by_id = HoldAction::ById { id, used: None, is_end: false, lifetime_ms };
    for (action, expected, of_calls) in [
        (open, Some(fixed.open_holds_key()), None),
        (HoldAction::Beside { abandoned }, Some(fixed.open_holds_key()), None),
        (commit, Some(fixed.hold_record_key(id)), None),
        (by_id, Some(fixed.hold_record_key(id)), Some(in_flight.hold_record_key(id))),
        (HoldAction::Ban { for_ms: 1 }, Some(fixed.ban_key()), Some(in_flight.ban_key())),
        (HoldAction::Occupy { id, lifetime_ms }, None, None),
    ] {
        assert_eq!(action.key_beside(&fixed), expected, "{action:?}");
        assert_eq!(action.key_beside(&in_flight), of_calls, "{action:?}");
    }
}

#[test]
fn a_log_shows_its_newest_hits_and_a_counter_of_calls_those_in_flight() {
    for (algorithm, at, open_holds) in [
        (Algorithm::SlidingLog { remember: None }, NOW, 0),
        (Algorithm::InFlight { remember: None }, NOW.plus_millis(31_536_000_000), 2),
        (Algorithm::FixedWindow, NOW, 0),
    ] {
        let mut account = algorithm.new_account();
        let terms = Limit { algorithm: algorithm.clone(), ..limit(5) }.terms(NOW);
        account.write().charge(2, Some("alice"), &terms);
        let CounterState { remembered, open_holds: found, used, .. } =
            CounterState::of(&account, &terms);
        let hits = Remembered { at, hits: 2, caller: Some("alice".into()) };
        let expected = if algorithm == Algorithm::FixedWindow { vec![] } else { vec![hits] };
        assert_eq!((remembered, found, used), (expected, open_holds, 2), "{algorithm:?}");
    }
}

#[test]
fn a_give_back_has_the_window_of_its_charge_and_all_of_its_limit() {
    let limit = Limit { opens_from: Some(1), ..limit(10) };
    let counter = Counter::new("shop", &[], Arc::new(limit));
    let made = Timestamp::from_secs(1_600_000_000);
    let terms = GiveBack { counter, hits: 1, made, caller: None, hold: None }.terms(NOW);
    let start = terms.span.start.as_secs();
    assert_eq!((start, terms.requests_per_unit, terms.now), (1_576_800_000, 10, NOW));
}

#[test]
fn charges_are_found_by_what_they_were_judged_by() {
    let by = |judged_by| Tally { judged_by, ..Tally::new(Fit::Over, Duration::ZERO) };
    let tallies = [JudgedBy::Absent, JudgedBy::Counter, JudgedBy::Absent].map(by);
    assert_eq!(indices_judged_by(JudgedBy::Absent, &tallies), [0, 2]);
}

#[test]
fn a_counter_is_read_beside_its_open_holds_or_with_its_ban() {
    let beside = HoldAction::Beside { abandoned: Abandoned::Release };
    let in_flight = Algorithm::InFlight { remember: None };
    for (by, algorithm, ban_ms, expected) in [
        (HoldBy::Counter, Algorithm::FixedWindow, None, Some(beside)),
        (HoldBy::Counter, in_flight, None, None),
        (HoldBy::Token, Algorithm::FixedWindow, None, None),
        (HoldBy::Id, Algorithm::FixedWindow, Some(9), Some(HoldAction::Ban { for_ms: 9 })),
    ] {
        let abandoned = Abandoned::Release;
        let hold = Some(Arc::new(HoldPolicy { by, abandoned, ..HoldPolicy::new(1000) }));
        let limit = Arc::new(Limit { hold, algorithm, ban_ms, ..limit(5) });
        let reading = Charge::reading(Counter::new("shop", &[], limit));
        assert_eq!((reading.hits, reading.hold), (Hits::Check, expected), "{by:?}");
    }
}

#[test]
fn hits_of_a_lease_that_may_be_lost_are_given_back_too_late() {
    let plain = limit(100);
    let lent = Limit { hold: Some(Arc::new(HoldPolicy::lease())), ..limit(100) };
    let leasing = Limit { lease: Lease::Auto, ..limit(100) };
    let deadline = NOW.plus_millis(1000);
    for (limit, used, is_leased) in
        [(&lent, 3, true), (&leasing, 3, true), (&plain, 3, false), (&lent, 4, false)]
    {
        let hold = HoldAction::Commit { id: HoldId::new(1), held: 4, used, made: NOW, deadline };
        let (_, charge) = charge_of(Some(0), Hits::Commit, limit.clone());
        let charge = Charge { hold: Some(hold), ..charge };
        assert_eq!(charge.leased_at(), is_leased.then_some(NOW), "{limit}, {used}");
        for is_lost in [false, true] {
            let mut charge = charge.clone();
            charge.lose_lease(|made| made == NOW && is_lost);
            let Some(HoldAction::Commit { deadline: found, .. }) = charge.hold else {
                panic!("{charge:?}");
            };
            let is_late = is_leased && is_lost;
            let expected = if is_late { Timestamp::default() } else { deadline };
            assert_eq!(found, expected, "{limit}, {used}, {is_lost}");
        }
    }
}

#[test]
fn a_limit_that_is_tried_is_over_if_its_counter_holds_more_after_the_call() {
    let fits = |remaining| Tally::new(Fit::Fits { remaining }, Duration::ZERO);
    let over = Tally::new(Fit::Over, Duration::ZERO);
    let absent = Tally { judged_by: JudgedBy::Absent, ..fits(5) };
    for (call, tally, denied, expected) in [
        ("charge 1 to a/10", fits(6), false, None),
        ("charge 1 to a/10", fits(5), false, Some(4)),
        ("charge 1 to a/10", fits(5), true, None),
        ("count 1 to a/10", fits(5), true, Some(4)),
        ("check a/10", fits(6), false, Some(4)),
        ("check a/10", fits(7), false, None),
        ("inclusive a/10", fits(6), false, None),
        ("refund 1 of a/10", fits(5), false, None),
        ("charge 1 to a/10", absent, false, None),
        ("charge 1 to a/10", over, true, None),
        ("shadow 1 to a/10", over, false, Some(10)),
    ] {
        let (_, charge) = indexed_charge(call);
        let limit = Limit::clone(&charge.counter.limit);
        let limit = Limit { shadow: Some(4), mode_written: limit.mode, ..limit };
        let charge = Charge { counter: charge.counter.with_limit(Arc::new(limit)), ..charge };
        let tried = tally.over_shadow(&charge, denied).map(|limit| limit.requests_per_unit);
        assert_eq!(tried, expected, "{call}: {tally:?}, {denied}");
    }
}

#[test]
fn a_counter_that_a_charge_does_not_fit_holds_at_least_what_leaves_too_little_for_it() {
    for (call, fit, expected) in [
        ("charge 4 to a/10", Fit::Fits { remaining: 3 }, Some(7)),
        ("charge 4 to a/10", Fit::Over, Some(7)),
        ("count 4 to a/10", Fit::Over, Some(10)),
        ("check a/10", Fit::Over, Some(10)),
        ("charge 4 to a/10", Fit::Commit(CommitOutcome::Applied), None),
    ] {
        let (_, charge) = indexed_charge(call);
        assert_eq!(Tally::new(fit, Duration::ZERO).used(&charge), expected, "{call}: {fit:?}");
    }
}

#[test]
fn refunds_come_first_apply_to_denied_calls_and_stop_at_zero() {
    check([5, 0], "charge 1 to a/5, refund 2 of a/5", "1, 1", [4, 0]);
    check([5, 9], "refund 2 of a/5, charge 1 to b/9", "2, over", [3, 9]);
    check([1, 0], "refund 7 of a/5", "5", [0, 0]);
    check([9, 0], "refund 1 of a/5", "0", [8, 0]);
}

#[test]
fn checks_see_refunds_but_no_charges() {
    check([4, 0], "check a/5, charge 1 to a/5", "1, 0", [5, 0]);
    check([5, 0], "check a/5, refund 1 of a/5", "1, 1", [4, 0]);
}

#[test]
fn a_check_that_passes_at_an_exhausted_limit_is_over_only_beyond_it() {
    check([4, 0], "inclusive a/5", "1", [4, 0]);
    check([5, 0], "inclusive a/5", "0", [5, 0]);
    check([6, 0], "inclusive a/5", "over", [6, 0]);
}

#[test]
fn the_failure_mode_applies_to_a_corrupt_counter_and_siblings_are_judged_as_usual() {
    check([0, 0], "allow 1 to x/5, charge 1 to b/9", "5, 8", [0, 1]);
    check([0, 0], "deny 1 to x/5, charge 1 to b/9", "over, 9", [0, 0]);
    check([0, 0], "deny 1 to x/5, count 1 to b/9, refund 3 of a/9", "over, 8, 9", [0, 1]);
    check([3, 0], "shadow 1 to x/5, refund 3 of a/9", "5, 9", [0, 0]);
    // Only quotas whose counters can be read have a vote.
    check([0, 9], "quota 1 to b/9, allow 1 to x/9", "over, 9", [0, 10]);
}

#[test]
fn a_corrupt_counter_fails_the_call_unless_something_denies_it() {
    check([3, 0], "charge 1 to x/5, count 1 to b/9, refund 3 of a/9", "fails", [3, 0]);
    check([3, 9], "charge 1 to x/5, charge 1 to b/9, refund 3 of a/9", "5, over, 9", [0, 9]);
    check([0, 0], "charge 1 to x/5, deny 1 to x/5", "5, over", [0, 0]);
    // A refund denies nothing, but its loss must not go unnoticed.
    check([0, 0], "refund 1 of x/5", "fails", [0, 0]);
    check([0, 0], "local 1 to x/5, deny 1 to x/5", "fails", [0, 0]);
}

fn any_charge() -> impl Strategy<Value = IndexedCharge> {
    let hits = prop_oneof![
        (1..9_u64).prop_map(Hits::Charge),
        Just(Hits::Charge(Hits::MAX)),
        Just(Hits::Check),
        (0..9_u64).prop_map(Hits::Refund),
    ];
    (0..2_usize, hits, 0..20_u64, any::<bool>()).prop_map(|(account, hits, requests, counted)| {
        let when_denied = if counted { WhenDenied::Counted } else { WhenDenied::Free };
        charge_of(Some(account), hits, Limit { when_denied, ..limit(requests) })
    })
}

fn any_call() -> impl Strategy<Value = (Vec<IndexedCharge>, [AnyAccount; 2])> {
    let accounts = [0..25_u64, 0..25].prop_map(|used| used.map(account));
    (prop::collection::vec(any_charge(), 1..6), accounts)
}

/// The sum of `hits` over the charges on an account.
fn total(call: &[IndexedCharge], account: usize, hits: fn(&Charge) -> u64) -> u64 {
    let on_account = call.iter().filter(|(index, _)| *index == Some(account));
    on_account.map(|(_, charge)| hits(charge)).sum()
}

fn charged(charge: &Charge) -> u64 {
    if let Hits::Charge(hits) = charge.hits { hits } else { 0 }
}

fn given_back(charge: &Charge) -> u64 {
    if let Hits::Refund(hits) = charge.hits { hits } else { 0 }
}

fn counted_when_denied(charge: &Charge) -> u64 {
    if charge.counter.limit.when_denied == WhenDenied::Counted { charged(charge) } else { 0 }
}

fn tallies(call: &[IndexedCharge], accounts: &mut [AnyAccount]) -> Vec<Tally> {
    judge(&postings(call), accounts).expect("no counter is corrupt").tallies
}

fn pass(tallies: &[Tally]) -> bool {
    tallies.iter().all(|tally| tally.fit != Fit::Over)
}

proptest! {
    #[test]
    fn one_charge_is_settled_as_a_list_of_one((charge, before) in (any_charge(), [0..25_u64, 0..25])) {
        let (call, before) = ([charge], before.map(account));
        let (mut one, mut listed) = (before.clone(), before);
        let postings = postings(&call);
        prop_assert_eq!(settle_one(&postings[0], &mut one), settle(&postings, &mut listed));
        prop_assert_eq!(one, listed);
    }

    /// P5, P6: all charges of a call are made, or only those that count when denied; refunds always.
    #[test]
    fn a_call_is_charged_as_a_whole((call, before) in any_call()) {
        let mut after = before.clone();
        let charges = if pass(&tallies(&call, &mut after)) { charged } else { counted_when_denied };
        for account in 0..2 {
            let refunded = used(&before, account).saturating_sub(total(&call, account, given_back));
            let expected = refunded + total(&call, account, charges);
            prop_assert_eq!(used(&after, account), expected.min(Hits::MAX));
        }
    }

    /// P1, P13: an admitted charge leaves its account within its limit, and reports what remains.
    #[test]
    fn an_admitted_charge_is_within_its_limit((call, before) in any_call()) {
        let mut after = before;
        let tallies = tallies(&call, &mut after);
        if !pass(&tallies) {
            return Ok(());
        }
        for ((account, charge), tally) in call.iter().zip(tallies) {
            if let (Hits::Charge(_), Fit::Fits { remaining }) = (charge.hits, tally.fit) {
                let used = used(&after, account.unwrap());
                let requests = charge.counter.limit.requests_per_unit;
                prop_assert_eq!(used + remaining, requests);
            }
        }
    }

    /// P14.
    #[test]
    fn checks_change_nothing((mut call, before) in any_call()) {
        for (_, charge) in &mut call {
            charge.hits = Hits::Check;
        }
        let mut after = before.clone();
        tallies(&call, &mut after);
        prop_assert_eq!(after, before);
    }

    /// What checks of its counters show lets as many hits of each part pass as the call itself.
    #[test]
    fn parts_are_fitted_by_checks_as_by_their_counters((mut call, before) in any_call(), most in 1..30_u64) {
        for (_, charge) in &mut call {
            (charge.hits, charge.is_part) = (Hits::Check, true);
        }
        let charges: Vec<Charge> = call.iter().map(|(_, charge)| charge.clone()).collect();
        let fitting = fitting_by_checks(most, &charges, &tallies(&call, &mut before.clone()));
        for (_, charge) in &mut call {
            charge.hits = Hits::Charge(most);
        }
        let verdict = judge(&postings(&call), &mut before.clone()).expect("no counter is corrupt");
        prop_assert_eq!(fitting, verdict.part.unwrap_or(1));
    }

    /// What an explanation foresees from what is read of the counters is what the call gets.
    #[test]
    fn what_is_foreseen_is_what_the_call_gets((call, before) in any_call()) {
        let charges: Vec<Charge> = call.iter().map(|(_, charge)| charge.clone()).collect();
        let states = call.iter().map(|(account, charge)| {
            CounterState::of(&before[account.unwrap()], &charge.terms(NOW))
        });
        let foreseen = foresee(&charges, &states.collect::<Vec<_>>());
        prop_assert_eq!(foreseen.len(), charges.len());
        let tallies = tallies(&call, &mut before.clone());
        let passes = pass(&tallies);
        for ((charge, tally), foreseen) in charges.iter().zip(tallies).zip(foreseen) {
            match charge.hits {
                Hits::Charge(_) if passes => prop_assert_eq!(tally, foreseen),
                _ => prop_assert_eq!(tally.fit == Fit::Over, foreseen.fit == Fit::Over),
            }
        }
    }

    /// P17: what passes, passes under a higher limit too.
    #[test]
    fn a_higher_limit_denies_nothing_more((mut call, before) in any_call(), more in 0..9_u64) {
        let passes_before = pass(&tallies(&call, &mut before.clone()));
        for (account, charge) in &mut call {
            let limit = (*charge.counter.limit).clone();
            let requests_per_unit = limit.requests_per_unit + more;
            (_, *charge) = charge_of(*account, charge.hits, Limit { requests_per_unit, ..limit });
        }
        let passes_after = pass(&tallies(&call, &mut before.clone()));
        prop_assert!(!passes_before || passes_after);
    }

    /// P18.
    #[test]
    fn more_hits_are_never_admitted_instead(used in 0..25_u64, hits in 1..25_u64, requests in 0..20_u64) {
        let [fewer, more] = [hits, hits + 1].map(|hits| {
            let call = [charge_of(Some(0), Hits::Charge(hits), limit(requests))];
            pass(&tallies(&call, &mut [account(used)]))
        });
        prop_assert!(fewer || !more);
    }
}
