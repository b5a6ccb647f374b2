//! What plans charge, and the decisions that follow from tallies.

use std::time::Duration;

use super::*;
use crate::{
    decision::{Code, Committed},
    descriptor_syntax,
    hold::{Estimate, HoldPolicy},
    ledger::{CommitOutcome, HeldCharge},
    request::Descriptor,
    rule::{FailureMode, Lease, Mode, Policy, Priority, Rule, Tier, TierHeader, Unit, WhenDenied},
    time::Timestamp,
};

fn rules() -> RuleSet {
    let mut rules = RuleSet::default();
    let domain = rules.domain_mut("shop");
    let (minute, day) = (limit(5, Unit::Minute), limit(20, Unit::Day));
    for (key, policy) in [
        ("user", Policy::Limited(vec![Arc::clone(&minute)])),
        ("both", Policy::Limited(vec![minute, day])),
        ("free", Policy::Unlimited),
    ] {
        let rule = Rule::new("p", "f:1".into(), policy);
        domain.insert(&[(key, None)], Some(Arc::new(rule)));
    }
    rules
}

fn limit(requests: u64, unit: Unit) -> Arc<Limit> {
    Arc::new(Limit::new(requests, unit, 1).unwrap())
}

/// Five hits a minute.
fn five() -> Limit {
    Limit::new(5, Unit::Minute, 1).unwrap()
}

/// Adds a rule with these limits for a key with any value.
fn add(rules: &mut RuleSet, key: &str, limits: Vec<Arc<Limit>>) {
    let rule = Rule::new("p", "f:1".into(), Policy::Limited(limits));
    rules.domain_mut("shop").insert(&[(key, None)], Some(Arc::new(rule)));
}

/// A limit for `user`, and nothing else.
fn rules_of(limit: impl Into<Arc<Limit>>) -> RuleSet {
    let mut rules = RuleSet::default();
    add(&mut rules, "user", vec![limit.into()]);
    rules
}

fn request(domain: &str, keys: &[&'static str]) -> Request {
    let mut descriptors = Vec::new();
    for key in keys.iter().copied() {
        let entries = vec![Entry { key: key.into(), value: "x".into() }];
        descriptors.push(Descriptor::new(entries, Hits::Charge(1)));
    }
    Request { domain: domain.into(), descriptors }
}

fn verdict(denied: bool, tallies: Vec<Tally>) -> Verdict {
    Verdict { denied, tallies, ..Verdict::default() }
}

fn over(seconds: u64) -> Tally {
    Tally::new(Fit::Over, Duration::from_secs(seconds))
}

fn fits(remaining: u64, seconds: u64) -> Tally {
    Tally::new(Fit::Fits { remaining }, Duration::from_secs(seconds))
}

#[test]
fn only_descriptors_with_a_limit_are_charged() {
    let plan = Plan::draw(&rules(), &request("shop", &["free", "user", "other"]));
    let start = Timestamp::from_secs(60);
    let keys: Vec<_> = plan.charges.iter().map(|charge| charge.counter.key(start)).collect();
    assert_eq!(keys, ["tk1:fw:60s:{shop|user=x}:60"]);
    assert!(Plan::draw(&rules(), &request("unknown", &["user"])).charges.is_empty());
}

#[test]
fn a_limit_of_a_request_is_bounded_in_the_windows_of_the_rule_that_it_replaces() {
    let bounding = Limit { override_max: Some(60), ..five() };
    let rules = rules_of(bounding);
    for (sent, unit, expected) in [
        (60, Unit::Minute, "60 per minute"),
        (61, Unit::Minute, "60 per minute"),
        (1, Unit::Second, "1 per second, 60 per minute"),
        (2, Unit::Second, "60 per minute"),
        (60, Unit::Hour, "60 per hour, 60 per minute"),
        (61, Unit::Hour, "60 per minute"),
        (0, Unit::Day, "0 per day, 60 per minute"),
    ] {
        let mut request = request("shop", &["user"]);
        request.descriptors[0].limit = Limit::new(sent, unit, 1);
        let plan = Plan::draw(&rules, &request);
        let found = plan.charges.iter().map(|charge| charge.counter.limit.to_string());
        assert_eq!(found.collect::<Vec<_>>().join(", "), expected, "{sent} per {unit:?}");
    }
}

#[test]
fn slot_by_domain_applies_to_rules_and_to_limits_of_requests() {
    let mut rules = rules();
    rules.domain_mut("shop").slot_by = SlotBy::Domain;
    let mut request = request("shop", &["user", "other"]);
    request.descriptors[1].limit = Limit::new(5, Unit::Minute, 1);
    let plan = Plan::draw(&rules, &request);
    let keys = plan.charges.iter().map(|charge| charge.counter.key(Timestamp::from_secs(60)));
    let keys: Vec<_> = keys.collect();
    assert_eq!(keys, ["tk1:fw:60s:{shop}|user=x:60", "tk1:fw:60s:{shop}|other=x:60"]);
}

#[test]
fn each_tally_goes_to_its_descriptor_and_one_over_denies_the_call() {
    let plan = Plan::draw(&rules(), &request("shop", &["user", "free", "user", "other"]));
    let reset = Duration::from_secs(7);
    let decision = plan.settle(verdict(true, vec![over(7), fits(3, 7)]));
    let limit = limit(5, Unit::Minute);
    let outcomes: Vec<_> = decision.statuses.into_iter().map(|status| status.outcome).collect();
    let within = Outcome::Within { limit: Arc::clone(&limit), remaining: 3, reset };
    let judged_by = JudgedBy::Counter;
    let expected =
        [Outcome::Over { limit, reset, judged_by }, Outcome::Unlimited, within, Outcome::NoLimit];
    assert_eq!(decision.code, Code::OverLimit);
    assert_eq!(outcomes, expected);
}

#[test]
fn a_descriptor_whose_charges_are_not_kept_has_no_limit() {
    let mut plan = Plan::draw(&rules(), &request("shop", &["both", "user", "free", "user"]));
    assert_eq!(plan.by_descriptor().map(<[_]>::len).collect::<Vec<_>>(), [2, 1, 0, 1]);
    plan.keep(|index, charge| index > 0 || charge.counter.limit.unit == Unit::Day);
    assert_eq!(plan.by_descriptor().map(<[_]>::len).collect::<Vec<_>>(), [1, 1, 0, 1]);
    plan.keep(|index, _| index > 0);
    assert_eq!(plan.by_descriptor().map(<[_]>::len).collect::<Vec<_>>(), [0, 1, 0, 1]);
    plan.keep(|index, _| index < 3);
    assert_eq!(plan.charges[0].counter.descriptor(), "user=x");
    let decision = plan.settle(verdict(true, vec![over(7)]));
    let codes = decision.statuses.iter().map(|status| status.outcome.code());
    assert_eq!(codes.collect::<Vec<_>>(), [Code::Ok, Code::OverLimit, Code::Ok, Code::Ok]);
    assert_eq!(decision.statuses[0].outcome, Outcome::NoLimit);
}

#[test]
fn of_several_limits_the_tightest_is_reported() {
    for (tallies, reported) in [
        ([fits(3, 7), fits(2, 70)], 70),
        ([fits(3, 7), fits(3, 70)], 7),
        ([fits(0, 7), over(70)], 70),
        ([over(7), fits(0, 70)], 7),
        ([over(7), over(70)], 70),
    ] {
        let plan = Plan::draw(&rules(), &request("shop", &["both"]));
        let decision = plan.settle(verdict(false, tallies.to_vec()));
        let [Status { outcome, .. }] = &decision.statuses[..] else {
            panic!("one descriptor has one status: {decision:?}");
        };
        let (Outcome::Within { reset, .. } | Outcome::Over { reset, .. }) = outcome else {
            panic!("{outcome:?}");
        };
        assert_eq!(reset.as_secs(), reported, "{tallies:?}");
    }
}

/// The plan of a call whose descriptors are each for this limit, with hits of this meaning.
fn plan_of(limit: Limit, meaning: HitsMeaning, request: &Request) -> Plan {
    Plan::draw_as(&rules_of(limit), None, request, &[], meaning)
}

fn held(by: HoldBy, algorithm: Algorithm) -> Limit {
    let hold = Some(Arc::new(HoldPolicy { by, ..HoldPolicy::new(5000) }));
    Limit { hold, algorithm, ..five() }
}

#[test]
fn takes_that_a_token_names_are_refused_without_one_and_others_are_not() {
    use Algorithm::{FixedWindow, InFlight};
    let in_flight = InFlight { remember: None };
    for (limit, takes_holds, by_token) in [
        (five(), false, 0),
        (held(HoldBy::Token, FixedWindow), true, 1),
        (held(HoldBy::Token, in_flight), true, 1),
        (held(HoldBy::Counter, FixedWindow), true, 0),
        (held(HoldBy::Id, FixedWindow), false, 0),
    ] {
        let charged = HitsMeaning::Charged;
        let mut plan = plan_of(limit.clone(), charged, &request("shop", &["user"]));
        assert_eq!(plan.takes_holds(), takes_holds, "{limit:?}");
        assert_eq!(plan.takes_by_token().count(), by_token, "{limit:?}");
        plan.set_hold_id(HoldId::new(7));
        if let Some(HoldAction::Open { id, .. } | HoldAction::Occupy { id, .. }) =
            plan.charges[0].hold
        {
            assert_eq!(id, HoldId::new(7), "{limit:?}");
        }
        assert_eq!(plan.refusal(), None);
        plan.refuse_takes();
        let refusal = plan.refusal().expect("no token names what it takes");
        assert!(refusal.denied && refusal.tallies.len() == 1, "{limit:?}");
        assert_eq!((plan.charges[0].hits, plan.charges[0].hold), (Hits::Check, None));
        let mut refund = request("shop", &["user"]);
        refund.descriptors[0].hits = Hits::Refund(1);
        let refund = plan_of(limit.clone(), charged, &refund);
        assert!(!refund.takes_holds() && refund.takes_by_token().next().is_none());
    }
}

#[test]
fn a_descriptor_whose_token_names_a_hold_commits_it_and_charges_nothing_else() {
    let limit = Arc::new(held(HoldBy::Token, Algorithm::FixedWindow));
    let made = Timestamp::from_secs(60);
    let counter = Counter::new("shop", &[], Arc::clone(&limit));
    let id = HoldId::new(7);
    let taken = TakenHold { id, charges: vec![HeldCharge { counter, hits: 4, made }] };
    let mut request = request_of("user=x,hold.commit=token,hold.used=3", Hits::Charge(1), false);
    request.descriptors.push(request_of("user=x", Hits::Charge(1), false).descriptors.remove(0));
    let draw = |commits: &[(usize, TakenHold)], meaning| {
        Plan::draw_as(&rules_of(Arc::clone(&limit)), None, &request, commits, meaning)
    };
    let deadline = made.plus_millis(5000);
    let commit = HoldAction::Commit { id, held: 4, used: 3, made, deadline };
    let commits = [(0, taken)];
    let plan = draw(&commits, HitsMeaning::Charged);
    let drawn = |plan: &Plan| {
        let drawn = plan.charges.iter().map(|charge| (charge.hits, charge.hold));
        drawn.collect::<Vec<_>>()
    };
    assert!(plan.is_commit(0) && !plan.is_commit(1));
    assert_eq!(drawn(&plan), [(Hits::Charge(1), None), (Hits::Commit, Some(commit))]);
    assert_eq!((plan.weight(), plan.takes_by_token().count()), (1, 1));
    let tally = |fit| Tally::new(fit, Duration::from_secs(7));
    let tallies = vec![fits(3, 7), tally(Fit::Commit(CommitOutcome::Applied))];
    let decision = plan.settle(verdict(false, tallies));
    let [committed] = &decision.commits[..] else { panic!("{decision:?}") };
    let Committed { outcome, held, used, deadline: found, .. } = committed;
    assert_eq!((*outcome, *held, *used), (Some(CommitOutcome::Applied), Some(4), Some(3)));
    assert_eq!(*found, Some(deadline));
    let leased = draw(&commits, HitsMeaning::Lease);
    assert_eq!(leased.not_leased(), Some("p".to_owned()), "the limit does not lease");
    let mut refused = draw(&commits, HitsMeaning::Charged);
    refused.refuse_takes();
    assert_eq!(drawn(&refused), [(Hits::Check, None), (Hits::Commit, Some(commit))]);
    // A check commits nothing.
    assert_eq!(drawn(&draw(&commits, HitsMeaning::Checked)).len(), 1);
    assert_eq!(drawn(&draw(&[], HitsMeaning::Charged)).len(), 2);
}

#[test]
fn charges_that_search_or_hold_weigh_as_much_as_four_others() {
    let log = Algorithm::SlidingLog { remember: None };
    let plain = five();
    for (limit, meaning, expected) in [
        (plain.clone(), HitsMeaning::Charged, 2),
        (plain.clone(), HitsMeaning::Part, 8),
        (Limit { algorithm: log, ..plain }, HitsMeaning::Charged, 8),
        (held(HoldBy::Token, Algorithm::FixedWindow), HitsMeaning::Charged, 2),
        (held(HoldBy::Id, Algorithm::FixedWindow), HitsMeaning::Charged, 8),
        (held(HoldBy::Counter, Algorithm::FixedWindow), HitsMeaning::Charged, 8),
    ] {
        let plan = plan_of(limit.clone(), meaning, &request("shop", &["user", "user"]));
        assert_eq!(plan.weight(), expected, "{limit:?}, {meaning:?}");
    }
}

#[test]
fn hits_are_leased_of_limits_that_lease_and_that_one_descriptor_charges() {
    let plain = five();
    let leased = Limit { lease: Lease::Auto, ..plain.clone() };
    for (limit, keys, expected) in [
        (&leased, &["user"][..], None),
        (&leased, &["user", "user"], Some("p".to_owned())),
        (&plain, &["user"], Some("p".to_owned())),
        (&plain, &["other"], None),
    ] {
        let plan = plan_of(limit.clone(), HitsMeaning::Lease, &request("shop", keys));
        assert_eq!(plan.not_leased(), expected, "{limit:?}, {keys:?}");
    }
}

#[test]
fn a_call_without_required_entries_is_refused_and_charges_only_work_that_is_done() {
    let counted = Limit { when_denied: WhenDenied::Counted, ..(*limit(5, Unit::Day)).clone() };
    let mut rules = rules();
    rules.domain_mut("shop").requirement.keys = vec!["tenant".into()];
    add(&mut rules, "debit", vec![Arc::new(counted)]);
    for (keys, hits) in [
        (&["user", "debit"][..], &[Hits::Check, Hits::Charge(1)][..]),
        (&["user", "tenant"], &[Hits::Charge(1)]),
        (&["free"], &[]),
        (&[], &[]),
    ] {
        let plan = Plan::draw(&rules, &request("shop", keys));
        let drawn: Vec<Hits> = plan.charges.iter().map(|charge| charge.hits).collect();
        assert_eq!(drawn, hits, "{keys:?}");
        let is_refused = !keys.is_empty() && !keys.contains(&"tenant");
        assert_eq!(plan.is_refused(), is_refused, "{keys:?}");
        assert_eq!(plan.lacking.is_some(), is_refused, "{keys:?}");
    }
    rules.domain_mut("shop").requirement.mode = RequireMode::Report;
    let plan = Plan::draw(&rules, &request("shop", &["user"]));
    assert!(plan.lacking.is_some() && !plan.is_refused());
}

#[test]
fn quotas_are_grouped_by_the_entries_that_a_domain_names() {
    let mut rules = RuleSet::default();
    let domain = rules.domain_mut("shop");
    domain.quota_group = vec!["model".into()];
    domain.draws_first = true;
    let quota = Limit { mode: Mode::Quota, ..five() };
    let policy = || Policy::Limited(vec![Arc::new(quota.clone()), limit(9, Unit::Day)]);
    for path in [&[("model", None)][..], &[("model", None), ("user", None)], &[("user", None)]] {
        let rule = Rule::new("p", "f:1".into(), policy());
        domain.insert(path, Some(Arc::new(rule)));
    }
    let texts = ["model=a", "model=b,user=x", "user=x", "model=a,user=x"];
    let descriptors =
        texts.map(|text| Descriptor::new(descriptor_syntax::parse(text).unwrap(), Hits::Charge(1)));
    let request = Request { domain: "shop".into(), descriptors: descriptors.into() };
    let plan = Plan::draw(&rules, &request);
    let groups = plan.charges.iter().map(|charge| (charge.quota_group, charge.draws_first));
    let groups: Vec<_> = groups.collect();
    let (of_quota, none) = (|group| (group, true), (0, false));
    let expected = [of_quota(1), none, of_quota(2), none, of_quota(0), none, of_quota(1), none];
    assert_eq!(groups, expected);
}

#[test]
fn an_operator_bans_exempts_or_shadows_descriptors() {
    use DirectiveAction::{Allow, Ban, Limit as Number, Shadow, Times};
    let quota = Limit { mode: Mode::Quota, ..five() };
    let plain = five();
    // What is charged, of how many hits, and whether it has room whatever its counter holds.
    let charged = |limit, fits| Some((Hits::Charge(1), limit, fits));
    for (limit, action, is_refused, expected) in [
        (&plain, Number(7), false, charged(7, false)),
        (&plain, Times(3), false, charged(15, false)),
        (&plain, Shadow, false, charged(5, false)),
        (&plain, Allow, false, None),
        (&plain, Ban, true, None),
        (&quota, Shadow, false, charged(5, true)),
        (&quota, Allow, false, None),
        (&quota, Ban, true, None),
    ] {
        let (rules, request) = (rules_of(limit.clone()), request("shop", &["user"]));
        let directives = set_by_an_operator(action, &request.descriptors[0].entries);
        let charged = HitsMeaning::Charged;
        let plan = Plan::draw_as(&rules, Some(&directives), &request, &[], charged);
        let drawn = plan.charges.iter().map(|charge| {
            (charge.hits, charge.counter.limit.requests_per_unit, charge.always_fits)
        });
        let case = format!("{action} of {limit}, {:?}", limit.mode);
        assert_eq!(drawn.collect::<Vec<_>>(), Vec::from_iter(expected), "{case}");
        assert_eq!(plan.is_refused(), is_refused, "{case}");
        assert_eq!(plan.directive_of_each().flatten().count(), 1, "{case}");
        let judged = verdict(is_refused, vec![fits(4, 7); plan.charges.len()]);
        let banned = plan.judged(&judged).filter(|judged| judged.tally.fit == Fit::Over);
        assert_eq!(banned.count(), usize::from(is_refused), "{case}");
    }
}

fn set_by_an_operator(action: DirectiveAction, entries: &[Entry]) -> Directives {
    Directives::new(vec![Arc::new(Directive {
        id: "1".into(),
        domain: "shop".into(),
        entries: entries.into(),
        action,
        set_at: Timestamp::from_secs(0),
        until: Timestamp::from_secs(60),
    })])
}

#[test]
fn a_ban_denies_no_work_that_is_done() {
    let entries = request("shop", &["user"]).descriptors.remove(0).entries;
    let ban = set_by_an_operator(DirectiveAction::Ban, &entries);
    let drawn = |limits: &[(&'static str, Limit)], request: &Request| {
        let mut rules = RuleSet::default();
        for (key, limit) in limits {
            add(&mut rules, key, vec![Arc::new(limit.clone())]);
        }
        let plan = Plan::draw_as(&rules, Some(&ban), request, &[], HitsMeaning::Charged);
        (plan.is_refused(), plan.charges.iter().map(|charge| charge.hits).collect::<Vec<_>>())
    };
    let (one, check) = (Hits::Charge(1), Hits::Check);
    for (by, descriptor, hits, states_hits, expected) in [
        (HoldBy::Id, "user=x,hold.id=7,hold.used=3", one, false, (false, vec![one])),
        (HoldBy::Id, "user=x,hold.id=7", one, false, (true, vec![])),
        (HoldBy::Counter, "user=x", one, true, (false, vec![one])),
        (HoldBy::Counter, "user=x", one, false, (true, vec![])),
        (HoldBy::Counter, "user=x", check, true, (true, vec![])),
        (HoldBy::Token, "user=x", one, true, (true, vec![])),
    ] {
        let request = request_of(descriptor, hits, states_hits);
        let limits = [("user", held(by, Algorithm::FixedWindow))];
        assert_eq!(drawn(&limits, &request), expected, "{by:?}, {descriptor}, {hits:?}");
    }
    let plain = five();
    let counted = Limit { when_denied: WhenDenied::Counted, ..plain.clone() };
    let limits = [("user", plain), ("debit", counted)];
    let charged = drawn(&limits, &request("shop", &["user", "debit"]));
    assert_eq!(charged, (true, vec![Hits::Charge(1)]));
}

#[test]
fn what_is_banned_is_over_an_enforced_limit_of_zero_and_an_exempt_quota_keeps_its_place() {
    let entries = request("shop", &["user"]).descriptors.remove(0).entries;
    let draw = |action, mode, keys: &[&'static str]| {
        let mut rules = rules();
        let limit = Limit { mode, mode_written: mode, ..(*limit(5, Unit::Hour)).clone() };
        let rule = Rule::new("q", "f:1".into(), Policy::Limited(vec![Arc::new(limit)]));
        rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
        let set = set_by_an_operator(action, &entries);
        let (request, charged) = (request("shop", keys), HitsMeaning::Charged);
        Plan::draw_as(&rules, Some(&set), &request, &[], charged)
    };
    let banned = draw(DirectiveAction::Ban, Mode::Shadow, &["user"]);
    let Outcome::Over { limit, .. } = &banned.settle(verdict(true, vec![])).statuses[0].outcome
    else {
        panic!("what is banned is over");
    };
    assert_eq!((limit.requests_per_unit, limit.mode), (0, Mode::Enforced));
    let exempt = draw(DirectiveAction::Allow, Mode::Quota, &["user", "both"]);
    let Charge { hits, always_fits, .. } = exempt.charges[0];
    assert_eq!((hits, always_fits), (Hits::Check, true));
    let labels = exempt.matched_charges().map(|(matched, ..)| matched.rule_label().to_owned());
    assert_eq!(labels.collect::<Vec<_>>(), ["q", "p", "p"]);
    assert_eq!([0, 1, 2, 3].map(|index| exempt.label(index)), ["q", "p", "p", "override"]);
    let decision = exempt.settle(verdict(false, vec![fits(3, 7); 3]));
    assert_eq!(decision.statuses[0].outcome, Outcome::Unlimited);
}

#[test]
fn a_log_remembers_callers_and_no_secrets() {
    let remember = Some("user".into());
    for algorithm in [Algorithm::SlidingLog { remember: None }, Algorithm::SlidingLog { remember }]
    {
        for counted_by in [CountedBy::Value, CountedBy::Digest] {
            let mut rules = RuleSet::default();
            let limit = Limit { algorithm: algorithm.clone(), ..five() };
            let mut rule = Rule::new("p", "f:1".into(), Policy::Limited(vec![Arc::new(limit)]));
            rule.counted_by = vec![CountedBy::Value, counted_by.clone()];
            let path = [("tenant", None), ("user", None)];
            rules.domain_mut("shop").insert(&path, Some(Arc::new(rule)));
            let request = request_of("tenant=t,user=alice", Hits::Charge(1), false);
            let plan = Plan::draw(&rules, &request);
            let expected = match (&algorithm, counted_by) {
                (Algorithm::SlidingLog { remember: None }, _) => None,
                (_, CountedBy::Digest) => Some(key::secret_caller(b"alice")),
                _ => Some("alice".into()),
            };
            assert_eq!(plan.charges[0].caller, expected, "{algorithm:?}");
        }
    }
}

#[test]
fn a_call_has_the_share_of_its_class_and_a_reading_without_one_the_whole_limit() {
    use HitsMeaning::{Charged, Read};
    let shares = vec![("low".into(), 50)];
    let priority = Priority { entry: "class".into(), shares, default: 80, releases: false };
    let limit = Limit { priority: Some(Arc::new(priority)), ..(*limit(10, Unit::Minute)).clone() };
    let mut rules = rules_of(limit);
    rules.domain_mut("shop").class_keys.push("class".into());
    for (descriptor, meaning, expected) in [
        ("user=x,class=low", Charged, 5),
        ("user=x,class=other", Charged, 8),
        ("user=x", Charged, 8),
        ("user=x,class=low", Read, 5),
        ("user=x", Read, 10),
    ] {
        let request = request_of(descriptor, Hits::Charge(1), false);
        let plan = Plan::draw_as(&rules, None, &request, &[], meaning);
        let drawn = plan.charges[0].counter.limit.requests_per_unit;
        assert_eq!(drawn, expected, "{descriptor}, {meaning:?}");
    }
}

#[test]
fn a_limit_that_another_rule_replaces_is_not_charged() {
    let mut rules = rules();
    let named = Limit { name: Some("daily".into()), ..(*limit(9, Unit::Day)).clone() };
    add(&mut rules, "named", vec![limit(5, Unit::Minute), Arc::new(named)]);
    let replacing = Rule::new("p", "f:1".into(), Policy::Limited(vec![limit(7, Unit::Hour)]));
    let replacing = Rule { replaces: vec!["daily".into()], ..replacing };
    rules.domain_mut("shop").insert(&[("replacing", None)], Some(Arc::new(replacing)));
    for (keys, expected) in [
        (&["named"][..], &[5, 9][..]),
        (&["named", "replacing"], &[5, 7]),
        (&["replacing", "named"], &[7, 5]),
    ] {
        let plan = Plan::draw(&rules, &request("shop", keys));
        let limits = plan.charges.iter().map(|charge| charge.counter.limit.requests_per_unit);
        assert_eq!(limits.collect::<Vec<_>>(), expected, "{keys:?}");
    }
}

#[test]
fn a_charge_closes_its_counter_or_waits_for_room_by_what_the_call_says() {
    let banning = Limit { ban_ms: Some(3000), ..five() };
    let bucket = Algorithm::TokenBucket { burst: 5 };
    let bucket = Limit { algorithm: bucket, ..five() };
    let ban = Some(HoldAction::Ban { for_ms: 3000 });
    use HitsMeaning::{Charged, Done, Part};
    for (limit, meaning, hits, states_hits, expected) in [
        (&banning, Charged, Hits::Charge(1), false, (ban, false)),
        (&banning, Charged, Hits::Refund(1), false, (None, false)),
        (&bucket, Charged, Hits::Charge(1), false, (None, true)),
        (&bucket, Charged, Hits::Charge(1), true, (None, false)),
        (&bucket, Charged, Hits::Charge(2), false, (None, false)),
        (&bucket, Done, Hits::Charge(1), false, (None, false)),
        (&bucket, Part, Hits::Charge(2), true, (None, true)),
    ] {
        let mut request = request("shop", &["user"]);
        request.descriptors[0].hits = hits;
        request.descriptors[0].states_hits = states_hits;
        let plan = plan_of(limit.clone(), meaning, &request);
        let Charge { hold, only_if_fits, .. } = plan.charges[0];
        assert_eq!((hold, only_if_fits), expected, "{meaning:?} {hits:?} on {limit}");
    }
}

fn request_of(descriptor: &str, hits: Hits, states_hits: bool) -> Request {
    let entries = descriptor_syntax::parse(descriptor).unwrap();
    let descriptor = Descriptor { states_hits, ..Descriptor::new(entries, hits) };
    Request { domain: "shop".into(), descriptors: vec![descriptor] }
}

fn spell(charge: &Charge) -> String {
    let hits = match charge.hits {
        Hits::Charge(hits) => format!("charge {hits}"),
        Hits::Check => "check".to_owned(),
        Hits::Refund(hits) => format!("refund {hits}"),
        Hits::Commit => "commit".to_owned(),
    };
    let hold = match charge.hold {
        None => return hits,
        Some(HoldAction::Open { estimate, .. }) => format!("open {estimate}"),
        Some(HoldAction::EndOldest { .. }) => "end oldest".to_owned(),
        Some(HoldAction::Beside { .. }) => "beside".to_owned(),
        Some(HoldAction::ById { used, is_end, .. }) => format!("by id, {used:?}, {is_end}"),
        Some(HoldAction::Occupy { .. }) => "occupy".to_owned(),
        Some(other) => format!("{other:?}"),
    };
    format!("{hits}, {hold}")
}

#[test]
fn a_charge_holds_by_the_policy_of_its_limit_and_by_what_the_call_says() {
    use HitsMeaning::{Charged, Checked, Done, Expected, Part};
    use HoldBy::{Counter, Id, Token};
    let (fixed, in_flight) = (Algorithm::FixedWindow, Algorithm::InFlight { remember: None });
    let (one, two) = (Hits::Charge(1), Hits::Charge(2));
    let (refund, check) = (Hits::Refund(2), Hits::Check);
    // The first call with an id, and commits that say what was used, that nothing was, and neither.
    let (id, used) = (",hold.id=7", ",hold.id=7,hold.used=3");
    let (unused, ended) = (",hold.id=7,hold.end=503 UF", ",hold.id=7,hold.end=200");
    for (by, algorithm, meaning, parameters, hits, states_hits, expected) in [
        (Token, &fixed, Charged, "", one, false, "charge 4"),
        (Token, &fixed, Charged, "", two, true, "charge 4"),
        (Token, &fixed, Charged, ",hold.estimate=9", one, false, "charge 9"),
        (Token, &fixed, Expected, "", two, true, "charge 2"),
        (Token, &fixed, Expected, "", two, false, "charge 4"),
        (Token, &fixed, Charged, "", check, false, "check"),
        (Token, &fixed, Charged, "", refund, true, "refund 2"),
        (Token, &fixed, Done, "", two, true, "charge 2"),
        (Token, &fixed, Part, "", two, true, "charge 2"),
        (Token, &in_flight, Charged, "", one, false, "charge 4, occupy"),
        (Token, &in_flight, Done, "", one, false, "check"),
        (Token, &in_flight, Part, "", one, false, "check"),
        (Token, &in_flight, Charged, "", refund, true, "refund 2"),
        (Id, &fixed, Charged, "", two, true, "charge 2"),
        (Id, &fixed, Expected, id, one, false, "charge 4, by id, None, false"),
        (Id, &fixed, Expected, id, two, true, "charge 4, by id, Some(2), false"),
        (Id, &fixed, Charged, used, two, true, "charge 4, by id, Some(3), true"),
        (Id, &fixed, Charged, unused, one, false, "charge 4, by id, Some(0), true"),
        (Id, &fixed, Charged, ended, one, false, "charge 4, by id, None, true"),
        (Id, &fixed, Charged, id, check, false, "charge 4, by id, None, false"),
        (Id, &fixed, Charged, "", check, false, "check"),
        (Id, &fixed, Charged, id, refund, true, "refund 2"),
        (Id, &in_flight, Charged, "", one, false, "charge 1, occupy"),
        (Counter, &fixed, Charged, "", one, false, "charge 1, open 4"),
        (Counter, &fixed, Charged, "", check, true, "check, open 4"),
        (Counter, &fixed, Charged, "", two, true, "charge 2, end oldest"),
        (Counter, &fixed, Charged, "", refund, true, "refund 2, beside"),
        (Counter, &fixed, Done, "", two, true, "charge 2, beside"),
        (Counter, &fixed, Part, "", two, false, "charge 2, beside"),
        (Counter, &in_flight, Charged, "", one, false, "charge 4, occupy"),
        (Counter, &in_flight, Charged, "", two, true, "charge 2, end oldest"),
        // A call that is only judged takes nothing.
        (Counter, &in_flight, Checked, "", check, false, "check"),
        (Id, &fixed, Checked, id, check, false, "check"),
    ] {
        let limit = held(by, algorithm.clone());
        let policy = HoldPolicy::clone(limit.hold.as_ref().unwrap());
        let estimate = Estimate { default: Some(4), ..policy.estimate };
        let hold = Some(Arc::new(HoldPolicy { estimate, ..policy }));
        let limit = Limit { hold, requests_per_unit: 20, ..limit };
        let request = request_of(&format!("user=x{parameters}"), hits, states_hits);
        let plan = plan_of(limit, meaning, &request);
        let case = format!("{by:?}, {algorithm:?}, {meaning:?}, {parameters}, {hits:?}");
        assert_eq!(spell(&plan.charges[0]), expected, "{case}");
    }
}

#[test]
fn a_limit_applies_to_hits_by_their_meaning() {
    use HitsMeaning::{Assigned, Charged, Done, Lease as Leased, Part};
    use WhenDenied::{Counted, Free};
    let on_store_failure = FailureMode::Allow;
    let plain = Limit { on_store_failure, ..five() };
    let leased = Limit { lease: Lease::Auto, ..plain.clone() };
    let tried = Limit { shadow: Some(3), ..leased.clone() };
    let counted = Limit { when_denied: Counted, ..plain.clone() };
    let log = Limit { algorithm: Algorithm::SlidingLog { remember: None }, ..plain.clone() };
    let in_flight = Limit { algorithm: Algorithm::InFlight { remember: None }, ..plain.clone() };
    let short = Limit::new(5, Unit::Second, 9).unwrap();
    let (lease, assigned) = (Some(HoldPolicy::lease()), Some(HoldPolicy::assignment()));
    let pattern = CountedBy::Pattern("x*".into());
    for (limit, meaning, counted_by, when_denied, hold) in [
        (&plain, Charged, CountedBy::Value, Free, None),
        (&plain, Done, CountedBy::Value, Counted, None),
        (&log, Done, CountedBy::Value, Free, None),
        (&in_flight, Done, CountedBy::Value, Free, None),
        (&counted, Charged, CountedBy::Value, Counted, None),
        (&counted, Part, CountedBy::Value, Free, None),
        (&plain, Leased, CountedBy::Value, Free, None),
        (&leased, Leased, CountedBy::Value, Free, lease),
        (&leased, Part, CountedBy::Value, Free, None),
        (&tried, Leased, CountedBy::Value, Free, None),
        (&plain, Assigned, CountedBy::Value, Free, assigned),
        (&plain, Assigned, pattern, Free, None),
        (&short, Assigned, CountedBy::Value, Free, None),
    ] {
        let mut rules = RuleSet::default();
        let mut rule = Rule::new("p", "f:1".into(), Policy::Limited(vec![Arc::new(limit.clone())]));
        rule.counted_by = vec![counted_by.clone()];
        rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
        let request = request("shop", &["user"]);
        let plan = Plan::draw_as(&rules, None, &request, &[], meaning);
        let drawn = &plan.charges[0].counter.limit;
        let case = format!("{limit}, {meaning:?}, {counted_by:?}");
        assert_eq!(drawn.when_denied, when_denied, "{case}");
        assert_eq!(drawn.hold.as_deref(), hold.as_ref(), "{case}");
        // Nothing is leased without the store.
        let of_limit = if hold.is_some() { FailureMode::Error } else { limit.on_store_failure };
        assert_eq!(drawn.on_store_failure, of_limit, "{case}");
    }
}

#[test]
fn what_an_admitted_call_holds_by_token_is_taken_once_on_each_counter() {
    let at = Timestamp::from_secs(60);
    let verdict = |denied, tallies: &[Tally]| Verdict {
        denied,
        tallies: tallies.to_vec(),
        at: Few::from_iter([at]),
        ..Verdict::default()
    };
    let absent = Tally { judged_by: JudgedBy::Absent, ..fits(3, 7) };
    let by_token = held(HoldBy::Token, Algorithm::FixedWindow);
    let by_counter = held(HoldBy::Counter, Algorithm::FixedWindow);
    let one = Hits::Charge(1);
    for (limit, hits, verdict, expected) in [
        (&by_token, one, verdict(false, &[fits(3, 7), fits(3, 7)]), Some(2)),
        (&by_token, one, verdict(false, &[fits(3, 7), absent]), Some(1)),
        (&by_token, one, verdict(false, &[over(7), absent]), None),
        (&by_token, one, verdict(true, &[fits(3, 7), fits(3, 7)]), None),
        (&by_token, Hits::Refund(1), verdict(false, &[fits(3, 7), fits(3, 7)]), None),
        (&by_counter, one, verdict(false, &[fits(3, 7), fits(3, 7)]), None),
    ] {
        let mut request = request("shop", &["user", "user"]);
        request.descriptors.iter_mut().for_each(|descriptor| descriptor.hits = hits);
        let mut plan = plan_of(limit.clone(), HitsMeaning::Charged, &request);
        plan.set_hold_id(HoldId::new(7));
        let taken = plan.settle(verdict.clone()).taken;
        let taken = taken.map(|TakenHold { id, charges }| {
            let [HeldCharge { hits, made, .. }] = charges[..] else { panic!("{charges:?}") };
            assert_eq!((id, made), (HoldId::new(7), at));
            hits
        });
        assert_eq!(taken, expected, "{limit}, {hits:?}, {verdict:?}");
    }
    let leased = Limit { lease: Lease::Auto, ..five() };
    let mut part = request("shop", &["user"]);
    part.descriptors[0].hits = Hits::Charge(4);
    let plan = plan_of(leased, HitsMeaning::Lease, &part);
    let taken = plan.settle(Verdict { part: Some(2), ..verdict(false, &[fits(3, 7)]) }).taken;
    assert_eq!(taken.unwrap().charges[0].hits, 2);
}

#[test]
fn what_holds_by_id_is_taken_or_committed() {
    let commit = |outcome, held| Tally { held, ..Tally::new(Fit::Commit(outcome), Duration::ZERO) };
    let absent = Tally { judged_by: JudgedBy::Absent, ..fits(3, 7) };
    let applied = commit(CommitOutcome::Applied, 5);
    let late = commit(CommitOutcome::Late, 0);
    let used_3 = "user=x,hold.id=7,hold.used=3";
    for (descriptor, denied, tally, taken, committed) in [
        ("user=x,hold.id=7", false, fits(3, 7), vec![1], None),
        ("user=x,hold.id=7", true, fits(3, 7), vec![], None),
        ("user=x,hold.id=7", false, absent, vec![], None),
        ("user=x", false, fits(3, 7), vec![], None),
        (used_3, false, applied, vec![], Some((CommitOutcome::Applied, Some(5), Some(3)))),
        (used_3, false, late, vec![], Some((CommitOutcome::Late, None, Some(3)))),
    ] {
        let request = request_of(descriptor, Hits::Charge(1), false);
        let limit = held(HoldBy::Id, Algorithm::FixedWindow);
        let decision =
            plan_of(limit, HitsMeaning::Charged, &request).settle(verdict(denied, vec![tally]));
        let by_id: Vec<_> = decision.taken_by_id.iter().map(|(_, hits)| *hits).collect();
        assert_eq!(by_id, taken, "{descriptor}: {tally:?}");
        let [committed, expected] = [
            decision.commits.first().map(|done| (done.outcome.unwrap(), done.held, done.used)),
            committed,
        ];
        assert_eq!(committed, expected, "{descriptor}: {tally:?}");
    }
}

#[test]
fn the_end_of_the_oldest_hold_is_a_commit_of_its_hits() {
    let request = request_of("user=x", Hits::Charge(3), true);
    let limit = held(HoldBy::Counter, Algorithm::FixedWindow);
    let plan = plan_of(limit, HitsMeaning::Charged, &request);
    let decision = plan.settle(verdict(false, vec![Tally { held: 4, ..fits(3, 7) }]));
    let [committed] = &decision.commits[..] else { panic!("{decision:?}") };
    let Committed { outcome, held, used, .. } = committed;
    assert_eq!((*outcome, *held, *used), (Some(CommitOutcome::Applied), Some(4), Some(3)));
}

#[test]
fn a_group_passes_unless_a_quota_of_it_is_over_in_whose_place_none_is_charged() {
    let passed = |draws_first: bool, tallies: Vec<Tally>| {
        let mut rules = RuleSet::default();
        let domain = rules.domain_mut("shop");
        domain.quota_group = vec!["model".into()];
        domain.draws_first = draws_first;
        let quota = |unit| Arc::new(Limit { mode: Mode::Quota, ..(*limit(5, unit)).clone() });
        add(&mut rules, "model", vec![quota(Unit::Minute), quota(Unit::Day)]);
        add(&mut rules, "user", vec![quota(Unit::Hour)]);
        let mut request = request_of("user=x", Hits::Charge(1), false);
        let grouped = request_of("model=a", Hits::Charge(1), false);
        request.descriptors.extend(grouped.descriptors);
        let tallies = [vec![over(7)], tallies].concat();
        let decision = Plan::draw(&rules, &request).settle(verdict(false, tallies));
        assert!(!decision.statuses[0].is_of_full_group, "it is of no group");
        (decision.passed_groups.unwrap().len(), decision.statuses[1].is_of_full_group)
    };
    assert_eq!(passed(false, vec![fits(3, 7), fits(3, 7)]), (1, false));
    assert_eq!(passed(false, vec![fits(3, 7), over(7)]), (0, true));
    assert_eq!(passed(true, vec![over(7), fits(3, 7)]), (1, false));
    assert_eq!(passed(true, vec![over(7), over(7)]), (0, true));
}

#[test]
fn the_outcome_of_each_limit_is_listed_if_asked_for() {
    for (lists_limits, keys, listed) in [(true, "both", 2), (false, "both", 0), (true, "user", 0)] {
        let mut plan = Plan::draw(&rules(), &request("shop", &[keys]));
        plan.lists_limits = lists_limits;
        let tallies = vec![fits(3, 7); plan.charges.len()];
        let decision = plan.settle(verdict(false, tallies));
        assert_eq!(decision.statuses[0].by_limit.len(), listed, "{lists_limits}, {keys}");
    }
}

#[test]
fn a_limit_that_is_tried_is_reported_unless_the_descriptor_is_over() {
    let tried = Limit { shadow: Some(3), ..five() };
    for (denied, tally, expected) in
        [(false, fits(1, 7), Some(3)), (false, fits(2, 7), None), (true, over(7), None)]
    {
        let plan = plan_of(tried.clone(), HitsMeaning::Charged, &request("shop", &["user"]));
        let decision = plan.settle(verdict(denied, vec![tally]));
        let tried = decision.statuses[0].over_shadow.as_ref();
        let tried = tried.map(|(limit, _)| limit.requests_per_unit);
        assert_eq!(tried, expected, "{tally:?}");
    }
}

#[test]
fn in_quota_mode_a_descriptor_without_a_limit_lets_the_call_pass() {
    let (over, fits) = (vec![over(7)], vec![fits(3, 7)]);
    for (mode_override, keys, tallies, expected) in [
        (ModeOverride::Quota, &["user", "other"][..], &over, Code::Ok),
        (ModeOverride::Quota, &["user"], &over, Code::OverLimit),
        (ModeOverride::Quota, &["user", "free"], &over, Code::OverLimit),
        (ModeOverride::AsWritten, &["user", "other"], &over, Code::OverLimit),
        (ModeOverride::AsWritten, &["user"], &fits, Code::Ok),
    ] {
        let mut rules = rules();
        rules.defaults.mode_override = mode_override;
        let plan = Plan::draw(&rules, &request("shop", keys));
        let decision = plan.settle(verdict(tallies == &over, tallies.clone()));
        assert_eq!(decision.code, expected, "{mode_override:?}, {keys:?}");
        assert_eq!(decision.passed_groups, None, "its domain has no groups");
    }
}

#[test]
fn an_admitted_call_carries_the_headers_of_the_tiers_that_it_reaches() {
    let header: TierHeader = ("x-tier".into(), "half".into());
    let tier = Tier { at: 50, request_headers: vec![header.clone()] };
    let tiers = Some(vec![tier].into());
    let limit = Limit { tiers, ..(*limit(10, Unit::Minute)).clone() };
    for (denied, tally, expected) in [
        (false, fits(6, 7), vec![]),
        (false, fits(5, 7), vec![header.clone()]),
        (true, fits(5, 7), vec![]),
        (true, over(7), vec![]),
    ] {
        let plan = plan_of(limit.clone(), HitsMeaning::Charged, &request("shop", &["user"]));
        let decision = plan.settle(verdict(denied, vec![tally]));
        assert_eq!(decision.request_headers, expected, "{denied}, {tally:?}");
    }
}

#[test]
fn a_shadow_is_not_reported_beside_a_limit_that_denies_the_descriptor() {
    let mode = Mode::Shadow;
    let shadow = Limit { mode, mode_written: mode, ..five() };
    let mut rules = RuleSet::default();
    add(&mut rules, "user", vec![Arc::new(shadow), limit(20, Unit::Day)]);
    for (denied, second, is_reported) in [(false, fits(3, 7), true), (true, over(7), false)] {
        let plan = Plan::draw(&rules, &request("shop", &["user"]));
        let decision = plan.settle(verdict(denied, vec![over(7), second]));
        assert_eq!(decision.statuses[0].over_shadow.is_some(), is_reported, "{second:?}");
    }
}
