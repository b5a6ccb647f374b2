//! Timelines of answers and calls, as text.

use std::{sync::Arc, time::Duration};

use tollkeeper_engine::{
    request::{Entry, Hits},
    rule::{Algorithm, Limit, Mode, Unit, WhenDenied},
};

use super::*;

/// A cache on a timeline in milliseconds since its creation.
struct Scene(OverLimitCache);

impl Scene {
    fn new() -> Self {
        Self::of(1000)
    }

    fn of(entries_max: usize) -> Self {
        let metrics = StoreMetrics::new(&opentelemetry::global::meter("test"));
        Self(OverLimitCache::new(entries_max, Denials::Exact, metrics))
    }

    fn at(&self, ms: u64) -> Instant {
        self.0.created + Duration::from_millis(ms)
    }

    /// The store answers a call: `over 500` denies it for half a second, `7 left 500` does not.
    fn learn(&self, sent_ms: u64, call: &str, answer: &str) {
        self.0.learn(&charges(call), &verdict(answer), self.at(sent_ms));
    }

    /// The store has answered a call with refunds.
    fn refund(&self, ms: u64, call: &str) {
        self.0.forget_refunded(&charges(call), self.at(ms));
    }

    fn entries(&self) -> usize {
        self.0.shards.iter().map(|entries| entries.lock().len()).sum()
    }

    #[track_caller]
    fn check(&self, ms: u64, call: &str, expected: &str) {
        let tallies = self.0.answer(&charges(call), self.at(ms));
        let answer = match tallies {
            Some(tallies) => tallies.iter().map(spell).collect::<Vec<_>>().join(", "),
            None => "asks".to_owned(),
        };
        assert_eq!(answer, expected, "{ms} ms: {call}");
    }
}

fn verdict(answer: &str) -> Verdict {
    Verdict { tallies: answer.split(", ").map(tally).collect(), ..Verdict::default() }
}

fn tally(text: &str) -> Tally {
    let (fit, reset) = text.rsplit_once(' ').unwrap();
    let fit = match fit.split_once(' ') {
        None => Fit::Over,
        Some((remaining, _)) => Fit::Fits { remaining: remaining.parse().unwrap() },
    };
    Tally::new(fit, Duration::from_millis(reset.parse().unwrap()))
}

fn spell(Tally { fit, reset, .. }: &Tally) -> String {
    match fit {
        Fit::Over | Fit::Commit(_) => format!("over {}", reset.as_millis()),
        Fit::Fits { remaining } => format!("{remaining} left {}", reset.as_millis()),
    }
}

/// A call such as `charge 3 to a/5, check b/9, refund 1 of a/5`: the number after the slash is the limit
/// per hour. `count` is a charge that counts when denied, `shadow` one to a shadow, `quota` one to a quota,
/// `drop` one to a token bucket; `glance` is a check at a limit that counts when denied.
fn charges(call: &str) -> Vec<Charge> {
    call.split(", ").map(charge).collect()
}

fn charge(text: &str) -> Charge {
    let words: Vec<&str> = text.split(' ').collect();
    let (verb, counter) = (words[0], words[words.len() - 1]);
    let (user, number) = counter.split_once('/').unwrap();
    let mut limit = Limit::new(number.parse().unwrap(), Unit::Hour, 1).unwrap();
    match verb {
        "count" | "glance" => limit.when_denied = WhenDenied::Counted,
        "shadow" => limit.mode = Mode::Shadow,
        "quota" => limit.mode = Mode::Quota,
        "drop" => limit.algorithm = Algorithm::TokenBucket { burst: limit.requests_per_unit },
        _ => {}
    }
    let hits = match verb {
        "check" | "glance" => Hits::Check,
        "refund" => Hits::Refund(words[1].parse().unwrap()),
        _ => Hits::Charge(words[1].parse().unwrap()),
    };
    let entries = [Entry { key: "user".into(), value: user.to_owned().into() }];
    Charge::new(Counter::new("shop", &entries, Arc::new(limit)), hits)
}

#[test]
fn a_counter_is_over_for_a_second_at_most() {
    let scene = Scene::new();
    scene.check(0, "charge 1 to a/5", "asks");
    scene.learn(0, "charge 1 to a/5", "over 60000");
    scene.check(0, "charge 1 to a/5", "over 60000");
    scene.check(999, "charge 1 to a/5", "over 59001");
    scene.check(999, "check a/5", "over 59001");
    scene.check(999, "charge 1 to b/5", "asks");
    scene.check(1000, "charge 1 to a/5", "asks");
}

#[test]
fn an_earlier_reset_ends_it() {
    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5", "over 300");
    scene.check(298, "charge 1 to a/5", "over 2");
    // The store cuts its time to milliseconds, so the reset may come nearly a millisecond earlier.
    scene.check(299, "charge 1 to a/5", "asks");
}

#[test]
fn calls_for_no_more_than_was_left_ask_the_store() {
    let scene = Scene::new();
    scene.learn(0, "charge 4 to a/5", "over 60000");
    scene.check(10, "charge 4 to a/5", "over 59990");
    scene.check(10, "charge 9 to a/5", "over 59990");
    scene.check(10, "charge 3 to a/5", "asks");
    scene.check(10, "check a/5", "asks");
    // Hits on one counter are judged by their sum.
    scene.check(10, "charge 2 to a/5, charge 2 to a/5", "over 59990, over 59990");
    scene.check(10, "charge 2 to a/5, charge 2 to b/5", "asks");
    // The smallest number of remaining hits counts until it expires.
    scene.learn(100, "charge 2 to a/5", "over 60000");
    scene.learn(200, "charge 3 to a/5", "over 60000");
    scene.check(300, "charge 2 to a/5", "over 59800");
    scene.check(1100, "charge 3 to a/5", "asks");
}

#[test]
fn the_later_question_counts_even_if_its_answer_arrives_first() {
    let scene = Scene::new();
    scene.learn(200, "charge 1 to a/5", "over 60000");
    scene.learn(100, "charge 1 to a/5", "4 left 60000");
    scene.check(300, "charge 1 to a/5", "over 59900");
    scene.learn(300, "charge 1 to a/5", "4 left 60000");
    scene.check(400, "charge 1 to a/5", "asks");
    scene.learn(200, "charge 1 to a/5", "over 60000");
    scene.check(400, "charge 1 to a/5", "asks");
}

#[test]
fn another_limit_on_the_same_counter_is_not_over() {
    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5", "over 60000");
    scene.check(0, "charge 1 to a/6", "asks");
    scene.check(0, "drop 1 to a/5", "asks");
    scene.check(0, "charge 1 to a/6, charge 1 to a/5", "asks");
    // But hits under two limits on one counter are judged by their sum.
    scene.learn(0, "charge 1 to b/5, charge 1 to b/6", "over 60000, 2 left 60000");
    scene.check(0, "charge 1 to b/5", "asks");
    scene.check(0, "charge 1 to b/5, charge 1 to b/6", "over 60000, 2 left 60000");
}

#[test]
fn siblings_report_what_they_last_had_and_one_without_an_entry_asks_the_store() {
    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5, charge 1 to b/9", "over 60000, 7 left 60000");
    scene.check(10, "charge 1 to a/5, charge 1 to b/9", "over 59990, 7 left 59990");
    // Calls that pass update existing entries too.
    scene.learn(20, "charge 1 to b/9", "6 left 60000");
    scene.learn(20, "charge 1 to c/9", "6 left 60000");
    scene.check(30, "charge 1 to b/9, charge 1 to a/5", "6 left 59990, over 59970");
    for sibling in ["charge 1 to c/9", "drop 1 to d/9", "check d/9", "charge 1 to d/0"] {
        scene.check(30, &format!("{sibling}, charge 1 to a/5"), "asks");
    }
    // A denial gives an upper bound on what was left.
    scene.learn(30, "charge 5 to e/9, charge 1 to a/5", "over 60000, over 60000");
    scene.check(30, "charge 1 to e/9, charge 1 to a/5", "4 left 60000, over 59970");
}

/// Promise 2g: a status is OVER_LIMIT where its own charge does not fit.
#[test]
fn a_sibling_that_can_never_fit_is_over_too() {
    let scene = Scene::new();
    // What exceeds the limit never fits, however much was left at most.
    scene.learn(0, "charge 20 to c/9, charge 1 to a/5", "over 60000, over 60000");
    scene.check(0, "charge 10 to c/9, charge 1 to a/5", "over 60000, over 60000");
}

#[test]
fn a_sibling_that_asks_for_more_than_it_last_had_must_be_judged_by_the_store() {
    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5, charge 1 to b/9", "over 60000, 7 left 60000");
    scene.check(10, "charge 1 to a/5, charge 7 to b/9", "over 59990, 7 left 59990");
    scene.check(10, "charge 1 to a/5, charge 8 to b/9", "asks");
    scene.check(10, "charge 1 to a/5, charge 4 to b/9, charge 4 to b/9", "asks");
    scene.learn(20, "charge 1 to a/5, charge 8 to b/9", "over 60000, over 60000");
    scene.check(30, "charge 1 to a/5, charge 8 to b/9", "over 59970, over 59990");
}

#[test]
fn only_a_limit_that_denies_uncharged_answers_a_call() {
    let scene = Scene::new();
    let over = "over 60000, over 60000, over 60000, over 60000";
    scene.learn(0, "charge 1 to a/5, count 1 to b/5, shadow 1 to c/5, quota 1 to d/5", over);
    for call in ["count 1 to b/5", "glance b/5", "shadow 1 to c/5", "quota 1 to d/5"] {
        scene.check(0, call, "asks");
    }
    // Quotas are not charged if an enforced limit denies uncharged.
    let call = "charge 1 to a/5, shadow 1 to c/5, quota 1 to d/5, glance b/5";
    scene.check(0, call, over);
    scene.learn(0, "count 1 to e/5", "over 60000");
    scene.check(0, "check a/5, glance e/5", "asks");
}

/// A refund before the one may be on its way, and some hits of the other may fit.
#[test]
fn a_call_that_keeps_an_order_and_a_part_ask_the_store() {
    let scene = Scene::new();
    scene.learn(0, "charge 3 to a/5", "over 60000");
    let plain = || charge("charge 3 to a/5");
    for asks in [Charge { keeps_order: true, ..plain() }, Charge { is_part: true, ..plain() }] {
        assert_eq!(scene.0.answer(&[asks], scene.at(1)), None);
    }
    scene.check(1, "charge 3 to a/5", "over 59999");
}

#[test]
fn hits_that_are_charged_or_given_back_by_a_denied_call_reach_the_store() {
    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5", "over 60000");
    scene.check(0, "charge 1 to a/5, count 1 to b/5", "asks");
    scene.check(0, "charge 1 to a/5, refund 1 of b/5", "asks");
    scene.check(0, "charge 1 to a/5, refund 0 of a/5", "asks");
}

#[test]
fn a_refund_ends_it_and_a_denial_that_may_have_run_before_is_not_kept() {
    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5", "over 60000");
    // A denial that was sent after the refund may run before it: in the same batch, in an earlier script.
    scene.refund(30, "refund 1 of a/5");
    scene.learn(20, "charge 1 to a/5", "over 60000");
    scene.check(40, "charge 1 to a/5", "asks");
    scene.learn(40, "charge 1 to a/5", "over 60000");
    scene.check(50, "charge 1 to a/5", "over 59990");
}

#[test]
fn a_refund_or_a_reset_under_one_limit_ends_it_under_every_limit_of_the_counter() {
    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5", "over 60000");
    scene.learn(0, "charge 1 to a/6", "over 60000");
    scene.check(0, "charge 1 to a/6", "over 60000");
    scene.refund(10, "refund 1 of a/9");
    scene.check(20, "charge 1 to a/5", "asks");
    scene.check(20, "charge 1 to a/6", "asks");

    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5", "over 60000");
    scene.0.forget(&charge("check a/6").counter, scene.at(10));
    scene.check(20, "charge 1 to a/5", "asks");
    // Another algorithm on the same descriptor is another counter.
    scene.learn(30, "charge 1 to a/5", "over 60000");
    scene.refund(40, "drop 1 to a/5");
    scene.check(50, "charge 1 to a/5", "over 59980");
}

#[test]
fn at_most_eight_limits_of_one_counter_are_kept() {
    let scene = Scene::new();
    for limit in 1..=100 {
        scene.learn(0, &format!("charge 1 to a/{limit}"), "over 60000");
    }
    scene.check(10, "charge 1 to a/92", "asks");
    scene.check(10, "charge 1 to a/93", "over 59990");
}

#[test]
fn a_reset_also_discards_denials_that_are_under_way() {
    let scene = Scene::new();
    scene.learn(0, "charge 1 to a/5", "over 60000");
    scene.0.forget(&charge("check a/5").counter, scene.at(20));
    scene.learn(10, "charge 1 to a/5", "over 60000");
    scene.check(30, "charge 1 to a/5", "asks");
    scene.learn(40, "charge 1 to a/5", "over 60000");
    scene.check(50, "charge 1 to a/5", "over 59990");
}

#[test]
fn the_number_of_entries_is_bounded_and_expired_ones_are_evicted_first() {
    let scene = Scene::of(10);
    for (ms, user) in (0..8).map(|user| (0, user)).chain([(900, 8), (900, 9), (1000, 10)]) {
        scene.learn(ms, &format!("charge 1 to {user}/5"), "over 60000");
    }
    scene.check(1000, "charge 1 to 9/5", "over 59900");
    assert_eq!(scene.entries(), 3);
    for user in 0..1000 {
        let call = format!("charge 1 to {user}/5");
        scene.learn(1000, &call, "over 60000");
        assert!(scene.entries() <= 10);
        scene.check(1000, &call, "over 60000");
    }
}

#[test]
fn a_long_business_id_is_not_kept() {
    let scene = Scene::new();
    for (parts, is_known) in [(9, true), (10, false)] {
        let checked = charge("check a/5");
        let entries = vec![Entry { key: "k".into(), value: "v".repeat(100).into() }; parts];
        let counter = Counter::new("shop", &entries, Arc::clone(&checked.counter.limit));
        let call = [Charge { counter, ..checked }];
        scene.0.learn(&call, &verdict("over 60000"), scene.at(0));
        assert_eq!(scene.0.answer(&call, scene.at(0)).is_some(), is_known, "{parts}");
    }
}
