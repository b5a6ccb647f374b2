//! Tables of calls on one account of each algorithm, and what its counter shows after each call.

use std::collections::HashSet;

use super::*;
use crate::{
    algorithm::{
        account::{COUNT_MAX, Terms, real},
        hold_record::HoldState,
        in_flight::Occupant,
    },
    hold::HoldPolicy,
    hold_id::HoldId,
    ledger::{CounterState, Remembered},
    rule::{Limit, Unit},
    time::Timestamp,
};

/// Makes the calls of a table on one account, each at its millisecond, and compares the table with what the counter shows.
///
/// `+3` charges, `-3` refunds and `?3` only asks. `<2@1200` gives back 2 hits of a reservation that was charged at 1200, and
/// `<2/5@1200` 2 of its 5. The name behind a colon is the caller. In flight, `+3#1/500` occupies 3 places for a call with the
/// id 1 for 500 ms, which `end#1` ends, `oldest` ends the oldest call, and `expire` drops those whose time has passed.
///
/// After each call, a row has the hits used, the hits remaining, the time when the hits asked for (or else one hit) will fit, the
/// time when the counter ends, and the time until which it is kept, or `-` if it equals a new one. Then come the hits or calls
/// that it remembers, and what the call returns.
#[track_caller]
fn check_from(mut account: AnyAccount, limit: &Limit, table: &str) {
    let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
    let rows: Vec<_> =
        rows.skip_while(Vec::is_empty).skip(1).filter(|row| !row.is_empty()).collect();
    let mut actual = Vec::new();
    for row in &rows {
        let terms = limit.terms(Timestamp::from_millis(number(row[0])));
        account.write().set_back(&terms);
        let (returned, terms) = call(&mut account, row[1], limit, terms);
        actual.push(format!("{} {} {}{returned}", row[0], row[1], spell(&account, row[1], &terms)));
    }
    let expected: Vec<_> = rows.iter().map(|row| row.join(" ")).collect();
    assert_eq!(actual.join("\n"), expected.join("\n"));
}

/// Like [`check_from`], on a new account.
#[track_caller]
fn check(limit: &Limit, table: &str) {
    check_from(limit.algorithm.new_account(), limit, table);
}

/// Ten hits a second.
fn ten(algorithm: Algorithm) -> Limit {
    Limit { algorithm, ..Limit::new(10, Unit::Second, 1).unwrap() }
}

/// Ten calls at once, of a second each.
fn ten_at_once() -> Limit {
    let hold = Some(Arc::new(HoldPolicy::new(1000)));
    Limit { hold, ..ten(Algorithm::InFlight { remember: None }) }
}

fn number(text: &str) -> u64 {
    text.parse().expect(text)
}

fn id(text: &str) -> HoldId {
    HoldId::new(number(text).into())
}

/// Makes a call. Returns what it returns, and its terms.
fn call(account: &mut AnyAccount, call: &str, limit: &Limit, terms: Terms) -> (String, Terms) {
    let (what, caller) =
        call.split_once(':').map_or((call, None), |(what, name)| (what, Some(name)));
    if let AnyAccount::InFlight(calls) = account
        && let Some(returned) = call_in_flight(calls, what, terms.now)
    {
        return (returned, terms);
    }
    match what.split_at(1) {
        ("+", hits) => account.write().charge(number(hits), caller, &terms),
        ("-", hits) => account.write().refund(number(hits), &terms),
        ("<", reservation) => {
            let (hits, made) = reservation.split_once('@').expect(call);
            let (hits, held) = hits.split_once('/').unwrap_or((hits, hits));
            let made = Timestamp::from_millis(number(made));
            let terms = Terms { span: limit.window.at(made), ..terms };
            account.write().give_back(number(hits), number(held), made, caller, &terms);
            return (String::new(), terms);
        }
        ("?", _) => {}
        _ => panic!("{call}"),
    }
    (String::new(), terms)
}

fn call_in_flight(calls: &mut InFlight, call: &str, now: Timestamp) -> Option<String> {
    let hits = |hits: Option<u64>| hits.map_or("none".to_owned(), |hits| hits.to_string());
    let returned = match call.split_once('#') {
        Some(("end", call)) => hits(calls.end(id(call), now)),
        Some((places, call)) => {
            let (call, lifetime_ms) = call.split_once('/').unwrap_or((call, "1000"));
            let (hits, lifetime_ms) = (number(&places[1..]), number(lifetime_ms));
            calls.occupy(id(call), Occupant { hits, lifetime_ms, caller: None }, now);
            return Some(String::new());
        }
        None if call == "oldest" => hits(calls.end_oldest(now).map(|(_, hits)| hits)),
        None if call == "expire" => {
            let expired = calls.expire(now).into_iter();
            expired
                .map(|(at, hits)| format!("{}x{hits}", at.as_millis()))
                .collect::<Vec<_>>()
                .join(",")
        }
        None => return None,
    };
    Some(format!(" = {returned}"))
}

fn spell(account: &AnyAccount, call: &str, terms: &Terms) -> String {
    let asked = call.strip_prefix('?').map_or(1, number);
    let read = account.read();
    let millis = |at: Timestamp| at.as_millis().to_string();
    let fits = if read.fits(asked, terms) {
        "now".to_owned()
    } else {
        millis(read.admits_at(asked, terms))
    };
    let kept = if read.is_unused() { "-".to_owned() } else { millis(read.keep_until(terms)) };
    let (used, remaining, ends) =
        (read.used(terms), read.remaining(terms), millis(read.ends(terms)));
    let mut spelled = format!("{used} {remaining} {fits} {ends} {kept}");
    for Remembered { at, hits, caller } in CounterState::of(account, terms).remembered {
        let caller = caller.map_or(String::new(), |caller| format!(":{caller}"));
        spelled += &format!(" {}x{hits}{caller}", at.as_millis());
    }
    spelled
}

#[test]
fn no_two_algorithms_share_a_name() {
    let all = Algorithm::all(1, None);
    let short_names: HashSet<_> = all.iter().map(Algorithm::short_name).collect();
    assert_eq!(short_names.len(), all.len());
    assert_eq!(HashSet::<_>::from_iter(Algorithm::names()).len(), all.len());
}

#[test]
fn a_fixed_window_counts_until_its_end_and_gives_back_down_to_zero() {
    check(
        &ten(Algorithm::FixedWindow),
        "at    call      used remaining fits ends kept
         1200  ?10       0    10        now  2000 -
         1200  ?11       0    10        2000 2000 -
         1200  +3        3    7         now  2000 2000
         1300  ?7        3    7         now  2000 2000
         1300  ?8        3    7         2000 2000 2000
         1400  -1        2    8         now  2000 2000
         1400  <1@1200   1    9         now  2000 2000
         1500  +12       13   0         2000 2000 2000
         1600  -20       0    10        now  2000 -
         1700  +12       12   0         2000 2000 2000
         1800  <20@1700  0    10        now  2000 -",
    );
}

#[test]
fn a_count_that_has_stopped_at_its_maximum_takes_refunds_and_no_give_backs() {
    for (algorithm, ends) in [
        (Algorithm::FixedWindow, "2000 2000"),
        (Algorithm::FirstHitWindow { idle_ms: None }, "2200 2200"),
        (Algorithm::SlidingWindow, "3000 3000"),
    ] {
        // Where one hit fits is not the claim.
        let fits = if algorithm == Algorithm::SlidingWindow { "3000" } else { &ends[..4] };
        check(
            &ten(algorithm),
            &format!(
                "at    call               used             remaining fits   ends kept
                 1200  +9007199254740990  9007199254740990 0         {fits} {ends}
                 1200  <1@1200            9007199254740989 0         {fits} {ends}
                 1200  +9                 9007199254740991 0         {fits} {ends}
                 1200  <1@1200            9007199254740991 0         {fits} {ends}
                 1200  -1                 9007199254740990 0         {fits} {ends}"
            ),
        );
    }
}

#[test]
fn a_first_hit_window_opens_at_a_hit_and_takes_back_only_its_own() {
    check(
        &ten(Algorithm::FirstHitWindow { idle_ms: None }),
        "at    call      used remaining fits ends kept
         1200  ?1        0    10        now  2200 -
         1200  -1        0    10        now  2200 -
         1200  +3        3    7         now  2200 2200
         1500  +6        9    1         now  2200 2200
         1500  ?2        9    1         2200 2200 2200
         1600  -1        8    2         now  2200 2200
         2100  <1@1199   8    2         now  2200 2200
         2100  <1@1200   7    3         now  2200 2200
         2100  <1@2199   6    4         now  2200 2200
         2100  <1@2200   6    4         now  2200 2200
         2199  ?1        6    4         now  2200 2200
         2200  ?1        0    10        now  3200 3200
         2200  -1        0    10        now  3200 3200
         2200  <1@1500   0    10        now  3200 3200
         2199  ?1        6    4         now  2200 2200
         2200  +1        1    9         now  3200 3200
         2300  -9        0    10        now  3200 3200",
    );
}

#[test]
fn a_first_hit_window_ends_when_nothing_was_charged_for_its_idle_time() {
    check(
        &ten(Algorithm::FirstHitWindow { idle_ms: Some(300) }),
        "at    call  used remaining fits ends kept
         1200  +1    1    9         now  1500 1500
         1400  +1    2    8         now  1700 1700
         1699  -1    1    9         now  1700 1700
         1700  ?1    0    10        now  2000 2000
         1700  +1    1    9         now  2000 2000
         1900  +1    2    8         now  2200 2200
         2100  +1    3    7         now  2400 2400
         2300  +1    4    6         now  2600 2600
         2500  +1    5    5         now  2700 2700
         2700  ?1    0    10        now  3000 3000",
    );
}

#[test]
fn a_first_hit_window_from_a_time_at_which_the_clock_was_ahead_ends_one_window_from_now() {
    check(
        &ten(Algorithm::FirstHitWindow { idle_ms: Some(600) }),
        "at    call  used remaining fits ends kept
         5000  +3    3    7         now  5600 5600
         4900  ?1    3    7         now  5500 5500
         3000  ?1    3    7         now  3600 3600
         3500  +1    4    6         now  4000 4000",
    );
}

#[test]
fn the_window_before_weighs_in_a_sliding_window_as_much_as_of_it_is_less_than_a_window_ago() {
    let before = SlidingWindow { current: 0, previous: 8 };
    check_from(
        AnyAccount::SlidingWindow(before),
        &ten(Algorithm::SlidingWindow),
        "at    call     used remaining fits ends kept
         1250  ?4       6    4         now  2000 -
         1250  ?5       6    4         1375 2000 -
         1250  +4       10   0         1375 3000 3000
         1300  ?1       10   0         1375 3000 3000
         1375  ?1       9    1         now  3000 3000
         1376  ?1       9    1         now  3000 3000
         1500  +3       11   0         1750 3000 3000
         1500  ?3       11   0         2000 3000 3000
         1500  ?4       11   0         2143 3000 3000
         1500  ?10      11   0         3000 3000 3000
         1500  ?11      11   0         3000 3000 3000
         1500  -2       9    1         now  3000 3000
         1500  <1@1300  8    2         now  3000 3000
         2100  <1@1900  3    7         now  3000 3000
         900   <1@1900  10   0         1125 3000 3000
         1500  +5       11   0         1750 3000 3000
         1500  -9       4    6         now  2000 -
         1500  +9       13   0         2000 3000 3000
         1500  <10@1500 4    6         now  2000 -",
    );
}

#[test]
fn a_sliding_window_without_hits_ends_now_and_one_with_too_many_counts_no_more_than_the_maximum() {
    check(
        &ten(Algorithm::SlidingWindow),
        "at    call  used remaining fits ends kept
         1250  ?10   0    10        now  1250 -
         1250  ?11   0    10        1250 1250 -",
    );
    let full = SlidingWindow { current: COUNT_MAX, previous: COUNT_MAX };
    check_from(
        AnyAccount::SlidingWindow(full),
        &ten(Algorithm::SlidingWindow),
        "at    call                used             remaining fits ends kept
         1250  ?1                  9007199254740991 0         3000 3000 3000
         1250  -9007199254740991   6755399441055744 0         2000 2000 -",
    );
}

#[test]
fn a_sliding_log_forgets_each_hit_one_window_after_it() {
    check(
        &ten(Algorithm::SlidingLog { remember: None }),
        "at    call   used remaining fits ends kept
         1200  ?1     0    10        now  1200 -
         1200  +3     3    7         now  2200 2200 1200x3
         1500  +4:ann 7    3         now  2500 2500 1200x3 1500x4:ann
         1500  ?4     7    3         2200 2500 2500 1200x3 1500x4:ann
         1500  ?6     7    3         2200 2500 2500 1200x3 1500x4:ann
         1500  ?7     7    3         2500 2500 2500 1200x3 1500x4:ann
         1500  ?10    7    3         2500 2500 2500 1200x3 1500x4:ann
         1500  ?11    7    3         2500 2500 2500 1200x3 1500x4:ann
         1600  -2     5    5         now  2500 2500 1200x3 1500x2:ann
         2199  ?1     5    5         now  2500 2500 1200x3 1500x2:ann
         2200  ?8     2    8         now  2500 2500 1500x2:ann
         2200  ?9     2    8         2500 2500 2500 1500x2:ann
         2250  +9     11   0         2500 3250 3250 1500x2:ann 2250x9
         2250  ?4     11   0         3250 3250 3250 1500x2:ann 2250x9
         2250  -10    1    9         now  2500 2500 1500x1:ann
         2100  +1:bob 2    8         now  3100 3100 1500x1:ann 2100x1:bob
         2000  +1     3    7         now  3100 3100 1500x1:ann 2100x1:bob 2100x1
         2400  -9     0    10        now  2400 -
         2400  +1     1    9         now  3400 3400 2400x1
         3400  ?1     0    10        now  3400 3400
         3400  -1     0    10        now  3400 3400
         3300  ?1     1    9         now  3400 3400 2400x1
         3500  ?1     0    10        now  3500 3500
         3500  ?11    0    10        3500 3500 3500
         3500  +3     3    7         now  4500 4500 3500x3
         3600  +2     5    5         now  4600 4600 3500x3 3600x2
         3700  +4     9    1         now  4700 4700 3500x3 3600x2 3700x4
         3700  -5     4    6         now  4600 4600 3500x3 3600x1
         3700  +1     5    5         now  4700 4700 3500x3 3600x1 3700x1
         3700  -4     1    9         now  4500 4500 3500x1
         3700  +6     7    3         now  4700 4700 3500x1 3700x6
         3700  -6     1    9         now  4500 4500 3500x1",
    );
}

#[test]
fn a_sliding_log_gives_back_only_hits_of_the_time_and_caller_of_their_reservation() {
    check(
        &ten(Algorithm::SlidingLog { remember: None }),
        "at    call         used remaining fits ends kept
         1000  +3:ann       3    7         now  2000 2000 1000x3:ann
         3000  +2:ann       2    8         now  4000 4000 3000x2:ann
         3000  +3:bob       5    5         now  4000 4000 3000x2:ann 3000x3:bob
         3100  +1:ann       6    4         now  4100 4100 3000x2:ann 3000x3:bob 3100x1:ann
         3200  <1@3050:ann  6    4         now  4100 4100 3000x2:ann 3000x3:bob 3100x1:ann
         3200  <1@3000      6    4         now  4100 4100 3000x2:ann 3000x3:bob 3100x1:ann
         3200  <1@3000:ann  5    5         now  4100 4100 3000x1:ann 3000x3:bob 3100x1:ann
         3200  ?6           5    5         4000 4100 4100 3000x1:ann 3000x3:bob 3100x1:ann
         3200  <5@3000:ann  4    6         now  4100 4100 3000x3:bob 3100x1:ann
         3300  +2:bob       6    4         now  4300 4300 3000x3:bob 3100x1:ann 3300x2:bob
         3300  +2:bob       8    2         now  4300 4300 3000x3:bob 3100x1:ann 3300x2:bob 3300x2:bob
         3400  <3@3300:bob  5    5         now  4300 4300 3000x3:bob 3100x1:ann 3300x1:bob
         4000  <1@3000:bob  2    8         now  4300 4300 3100x1:ann 3300x1:bob
         3999  ?1           5    5         now  4300 4300 3000x3:bob 3100x1:ann 3300x1:bob
         4000  <1@3300:bob  1    9         now  4100 4100 3100x1:ann
         3999  ?10          1    9         4100 4100 4100 3100x1:ann",
    );
}

#[test]
fn a_sliding_log_looks_for_what_is_given_back_among_its_newest_257_entries() {
    for (others, used) in [(256, 256), (257, 258)] {
        let limit = ten(Algorithm::SlidingLog { remember: None });
        let mut log = SlidingLog::default();
        let made = Timestamp::from_millis(1000);
        let terms = limit.terms(made);
        log.charge(1, Some("ann"), &terms);
        (0..others).for_each(|_| log.charge(1, None, &terms));
        log.give_back(1, 1, made, Some("ann"), &terms);
        assert_eq!(log.used(&terms), used);
    }
}

#[test]
fn hits_in_a_log_from_a_time_at_which_the_clock_was_ahead_are_of_now() {
    check(
        &ten(Algorithm::SlidingLog { remember: None }),
        "at    call   used remaining fits ends kept
         5000  +1     1    9         now  6000 6000 5000x1
         5500  +2     3    7         now  6500 6500 5000x1 5500x2
         5900  +3:bob 6    4         now  6900 6900 5000x1 5500x2 5900x3:bob
         5950  +1:ann 7    3         now  6950 6950 5000x1 5500x2 5900x3:bob 5950x1:ann
         4950  ?1     7    3         now  6950 6950 5000x1 5500x2 5900x3:bob 5950x1:ann
         4900  ?1     7    3         now  6900 6900 5000x1 5500x2 5900x3:bob 5900x1:ann
         4400  ?1     7    3         now  6000 6000 5000x1 5000x6:ann
         3999  ?4     7    3         4999 4999 4999 3999x7:ann
         4000  +1     8    2         now  5000 5000 3999x7:ann 4000x1",
    );
}

#[test]
fn a_bucket_refills_evenly_and_reports_when_it_is_full() {
    let bucket = ten(Algorithm::TokenBucket { burst: 5 });
    check(
        &bucket,
        "at    call      used remaining fits ends kept
         1200  ?5        0    5         now  1200 -
         1200  -1        0    5         now  1200 -
         1250  <1@1200   0    5         now  1250 -
         1200  ?6        0    5         1200 1200 -
         1200  +3        3    2         now  1500 2500
         1250  ?2        3    2         now  1500 2500
         1250  ?3        3    2         1300 1500 2500
         1250  ?5        3    2         1500 1500 2500
         1250  ?6        3    2         1500 1500 2500
         1250  +1        4    1         now  1600 2600
         1250  -1        3    2         now  1500 2500
         1500  -1        0    5         now  1500 2500
         1500  ?5        0    5         now  1500 2500
         1500  +6        6    0         1700 2100 3100
         1501  ?1        6    0         1700 2100 3100",
    );
}

#[test]
fn a_clock_that_is_set_back_refills_a_bucket_twice_only_by_more_than_a_window() {
    check(
        &ten(Algorithm::TokenBucket { burst: 5 }),
        "at     call  used remaining fits  ends  kept
         10000  +5    5    0         10100 10500 11500
         9000   ?1    5    0         10100 10500 11500
         10250  ?1    3    2         now   10500 11500
         8999   ?1    5    0         9099  9499  10499
         9250   ?1    3    2         now   9499  10499",
    );
}

#[test]
fn a_bucket_takes_back_no_more_than_what_it_has_not_refilled() {
    let bucket = ten(Algorithm::TokenBucket { burst: 5 });
    check(
        &bucket,
        "at    call        used remaining fits ends kept
         1200  +3          3    2         now  1500 2500
         1250  +2          5    0         1300 1700 2700
         1280  <1@1200     4    1         now  1680 2680
         1280  <1/3@1200   3    2         now  1580 2580
         1300  <2@1200     2    3         now  1480 2480
         1300  <1@1200     2    3         now  1480 2480
         1400  +2          3    2         now  1680 2680
         1450  <9@1400     0    5         now  1450 2450
         1450  <1@1450     0    5         now  1450 2450",
    );
    // What is given back to no effect leaves the last charges the last.
    check(
        &bucket,
        "at    call        used remaining fits ends kept
         1200  +3          3    2         now  1500 2500
         1200  +2          5    0         1300 1700 2700
         1250  <1@1000     5    0         1300 1700 2700
         1260  <2@1200     3    2         now  1500 2500",
    );
    check(
        &bucket,
        "at    call            used          remaining fits            ends            kept
         1500  +9007199254741  9007199254741 0         900719925475200 900719925475600 900719925476600
         1500  <1@1500         9007199254741 0         900719925475200 900719925475600 900719925476600
         1600  <1@1500         9007199254740 0         900719925475200 900719925475600 900719925476600
         1600  -1              9007199254739 0         900719925475100 900719925475500 900719925476500
         1600  <1@1600         9007199254738 0         900719925475000 900719925475400 900719925476400",
    );
}

#[test]
fn a_record_of_a_hold_counts_nothing_and_one_that_closes_a_counter_ends_in_time() {
    let closed = HoldState::Closed { for_ms: 3000 };
    for (state, until) in [(closed, 4000), (HoldState::Committed, 5000)] {
        let record = HoldRecord { state: Some(state), until: Timestamp::from_millis(5000) };
        check_from(
            AnyAccount::HoldRecord(Box::new(record)),
            &ten(Algorithm::FixedWindow),
            &format!(
                "at    call    used remaining fits ends    kept
                 2000  +3      0    0         now  5000    5000
                 1000  ?99     0    0         now  {until} {until}
                 2500  -1      0    0         now  {until} {until}
                 2500  <1@1000 0    0         now  {until} {until}"
            ),
        );
    }
    check_from(
        AnyAccount::HoldRecord(Box::default()),
        &ten(Algorithm::FixedWindow),
        "at    call  used remaining fits ends kept
         1000  +3    0    0         now  0    -",
    );
}

#[test]
fn a_reset_is_known_of_what_was_charged_until_then_and_of_nothing_later() {
    let at = Timestamp::from_millis;
    let reset = HoldRecord::of_reset(at(5000));
    assert_eq!(reset.until, at(604_805_000));
    assert_eq!([4999, 5000, 5001].map(|made| reset.is_reset_since(at(made))), [true, true, false]);
    let unknown = HoldRecord { state: None, ..reset };
    assert!(!unknown.is_reset_since(at(4999)));
}

#[test]
fn every_count_is_exact_as_a_float() {
    assert_eq!(real(9_007_199_254_740_991).to_string(), "9007199254740991");
}

#[test]
fn a_call_in_flight_occupies_its_places_until_its_end_or_its_deadline() {
    check(
        &ten_at_once(),
        "at    call      used remaining fits ends kept
         1000  ?1        0    10        now  1000 -
         1000  +3#1      3    7         now  2000 3000 2000x3
         1200  +4#2/500  7    3         now  2000 3000 1700x4 2000x3
         1200  ?4        7    3         1700 2000 3000 1700x4 2000x3
         1200  ?7        7    3         1700 2000 3000 1700x4 2000x3
         1200  ?8        7    3         2000 2000 3000 1700x4 2000x3
         1200  ?11       7    3         2000 2000 3000 1700x4 2000x3
         1300  -1        6    4         now  2000 3000 1700x4 2000x2
         1300  -3        3    7         now  1700 2700 1700x3
         1400  +2#2/500  5    5         now  1900 2900 1900x5
         1400  +1#3/500  6    4         now  1900 2900 1900x1 1900x5
         1500  +1:ann    7    3         now  2500 3500 1900x1 1900x5 2500x1:ann
         1899  end#4     7    3         now  2500 3500 1900x1 1900x5 2500x1:ann = none
         1899  oldest    6    4         now  2500 3500 1900x5 2500x1:ann = 1
         1899  ?4        6    4         now  2500 3500 1900x5 2500x1:ann
         1900  end#2     1    9         now  2500 3500 2500x1:ann = none
         1900  expire    1    9         now  2500 3500 2500x1:ann = 1900x5
         1900  +2#4      3    7         now  2900 3900 2500x1:ann 2900x2
         1950  end#4     1    9         now  2500 3500 2500x1:ann = 2
         1950  end#4     1    9         now  2500 3500 2500x1:ann = none
         2500  oldest    0    10        now  2500 3500 = none
         2600  -1        0    10        now  2600 3600
         2600  expire    0    10        now  2600 - = 2500x1",
    );
}

#[test]
fn calls_in_flight_from_a_time_at_which_the_clock_was_ahead_begin_now_if_the_newest_is_one() {
    check(
        &ten_at_once(),
        "at    call       used remaining fits ends kept
         3000  +1#9/2900  1    9         now  5900 6900 5900x1
         5000  +1#1       2    8         now  6000 7000 5900x1 6000x1
         5000  +2#2/3000  4    6         now  8000 9000 5900x1 6000x1 8000x2
         4500  ?1         4    6         now  7500 8500 5500x1 5900x1 7500x2
         4500  end#1      3    7         now  7500 8500 5900x1 7500x2 = 1
         4000  +4#3/500   7    3         now  7000 8000 4500x4 5900x1 7000x2
         4000  +1#4/100   8    2         now  7000 8000 4100x1 4500x4 5900x1 7000x2
         4000  end#9      7    3         now  7000 8000 4100x1 4500x4 7000x2 = 1
         4000  ?3         7    3         now  7000 8000 4100x1 4500x4 7000x2
         3950  ?1         7    3         now  6950 7950 4050x1 4450x4 6950x2
         4000  +1#5/100   8    2         now  6950 7950 4050x1 4100x1 4450x4 6950x2
         3960  ?1         8    2         now  6950 7950 4050x1 4100x1 4450x4 6950x2
         3960  ?6         8    2         4450 6950 7950 4050x1 4100x1 4450x4 6950x2
         3960  -6         2    8         now  4060 5060 4050x1 4100x1
         3960  ?10        2    8         4060 4060 5060 4050x1 4060x1",
    );
}

#[test]
fn a_refund_ends_at_most_100_calls_and_a_denied_call_waits_for_at_most_100() {
    let limit = Limit { requests_per_unit: 150, ..ten_at_once() };
    let mut calls = InFlight::default();
    for at in 1..=150 {
        let call = Occupant { hits: 1, lifetime_ms: 1000, caller: None };
        calls.occupy(HoldId::new(at.into()), call, Timestamp::from_millis(at));
    }
    let terms = limit.terms(Timestamp::from_millis(150));
    for (hits, at) in [(1, 1001), (100, 1100), (101, 1150), (150, 1150)] {
        assert_eq!(calls.admits_at(hits, &terms), Timestamp::from_millis(at), "{hits}");
    }
    calls.refund(150, &terms);
    assert_eq!((calls.count(), calls.used(&terms)), (50, 50));
    assert_eq!(calls.ends(&terms), Timestamp::from_millis(1050));
}

#[test]
fn an_account_takes_the_bytes_of_its_box_its_entries_and_their_callers() {
    let caller = "a".repeat(1000);
    let (log, in_flight) = (ten(Algorithm::SlidingLog { remember: None }), ten_at_once());
    let first_hit = ten(Algorithm::FirstHitWindow { idle_ms: None });
    for (limit, hits, caller, least, most) in [
        (&ten(Algorithm::FixedWindow), 1, None, 0, 0),
        (&ten(Algorithm::SlidingWindow), 1, None, 0, 0),
        (&ten(Algorithm::TokenBucket { burst: 1 }), 1, None, 0, 0),
        (&first_hit, 1, None, 24, 24),
        (&log, 0, None, 24, 40),
        (&log, 100, None, 4_000, 7_000),
        (&log, 100, Some(&*caller), 104_000, 107_000),
        (&in_flight, 0, None, 50, 150),
        (&in_flight, 100, None, 10_000, 15_000),
        (&in_flight, 100, Some(&*caller), 110_000, 115_000),
    ] {
        let mut account = limit.algorithm.new_account();
        let unused = account.heap_bytes();
        let at = |index| limit.terms(Timestamp::from_millis(index));
        for index in 0..hits {
            if let AnyAccount::InFlight(calls) = &mut account {
                let call = Occupant { hits: 1, lifetime_ms: 1000, caller: caller.map(Into::into) };
                calls.occupy(HoldId::new(index.into()), call, Timestamp::from_millis(index));
            } else {
                account.write().charge(1, caller, &at(index));
            }
        }
        let bytes = account.heap_bytes();
        assert!((least..=most).contains(&bytes), "{limit:?} {hits}: {bytes}");
        if let AnyAccount::InFlight(calls) = &mut account {
            assert_eq!(calls.expire(Timestamp::from_millis(2000)).len() as u64, hits);
            assert_eq!(account.heap_bytes(), unused, "{hits}");
        }
    }
    let record = AnyAccount::HoldRecord(Box::default()).heap_bytes();
    assert!((32..=64).contains(&record), "{record}");
}
