//! Shadows, quotas and the two global modes: every combination of up to three descriptors, compared with the
//! answers of envoyproxy/ratelimit, whose rules are written here.

use prost_types::value::Kind;

use crate::support::{prelude::*, stores::one};

/// The rule that a descriptor of the call matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Matches {
    /// A rule with a limit. If `over`, the limit is 0; if not, no call of the test reaches it.
    Limit {
        shadow: bool,
        quota: bool,
        over: bool,
    },
    /// A limit that every other rule replaces.
    Replaced {
        over: bool,
    },
    Unlimited,
    Nothing,
}

use Matches::{Limit, Nothing, Replaced, Unlimited};

const ALL: [Matches; 12] = [
    Limit { shadow: false, quota: false, over: false },
    Limit { shadow: false, quota: false, over: true },
    Limit { shadow: false, quota: true, over: false },
    Limit { shadow: false, quota: true, over: true },
    Limit { shadow: true, quota: false, over: false },
    Limit { shadow: true, quota: false, over: true },
    Limit { shadow: true, quota: true, over: false },
    Limit { shadow: true, quota: true, over: true },
    Replaced { over: false },
    Replaced { over: true },
    Unlimited,
    Nothing,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Global {
    Neither,
    Shadow,
    Quota,
}

impl Matches {
    /// The key of its rule.
    fn key(self) -> String {
        format!("{self:?}").chars().filter(char::is_ascii_alphanumeric).collect()
    }

    /// The rule as YAML; empty for no rule.
    fn rule(self) -> String {
        let key = self.key();
        let (modes, limit) = match self {
            Limit { shadow, quota, over } => {
                let modes = format!("shadow_mode: {shadow}, quota_mode: {quota}, ");
                (modes, limit(over) + ", replaces: [{ name: replaced }]")
            }
            Replaced { over } => (String::new(), limit(over) + ", name: replaced"),
            Unlimited => {
                (String::new(), "unlimited: true, replaces: [{ name: replaced }]".to_owned())
            }
            Nothing => return String::new(),
        };
        let metadata = format!("metadata: {{ {key}: true }}");
        format!("  - {{ key: {key}, {modes}{metadata}, rate_limit: {{ {limit} }} }}\n")
    }
}

fn limit(over: bool) -> String {
    let requests = if over { 0 } else { u32::MAX };
    format!("unit: year, requests_per_unit: {requests}")
}

/// One status, without what depends on earlier calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Ok,
    /// OK with no remaining hits.
    OkAtZero,
    OverLimit,
    Unlimited,
    NoLimit,
}

#[derive(Debug, PartialEq, Eq)]
struct Answer {
    overall: Code,
    statuses: Vec<Status>,
    /// The rules whose metadata the answer has.
    metadata: BTreeSet<String>,
}

/// The answer of envoyproxy/ratelimit. It counts how many limits and quotas are over:
///
/// - A rule in `shadow_mode` that is over has the status OK, with no remaining hits.
/// - Under the global quota mode every descriptor is a quota, except unlimited ones: also a shadow, and one
///   without a limit, which is never over.
/// - The call is denied if a limit that is not a quota is over, or if there are quotas and all are over.
/// - The global shadow mode makes the overall code OK, and changes nothing else.
fn envoyproxy_ratelimit(call: &[Matches], global: Global) -> Answer {
    let replaced = call.iter().any(|matched| matches!(matched, Limit { .. } | Unlimited));
    let status = |matched: &Matches| match *matched {
        Limit { over: false, .. } => Status::Ok,
        Limit { shadow: true, .. } => Status::OkAtZero,
        Limit { shadow: false, .. } => Status::OverLimit,
        Replaced { .. } if replaced => Status::NoLimit,
        Replaced { over: false } => Status::Ok,
        Replaced { over: true } => Status::OverLimit,
        Unlimited => Status::Unlimited,
        Nothing => Status::NoLimit,
    };
    let statuses: Vec<Status> = call.iter().map(status).collect();
    let (mut limits_over, mut quotas, mut quotas_over) = (0, 0, 0);
    let mut metadata = BTreeSet::new();
    for (matched, status) in call.iter().zip(&statuses) {
        let quota = global == Global::Quota || matches!(matched, Limit { quota: true, .. });
        let over = *status == Status::OverLimit;
        if *status == Status::Unlimited {
            continue;
        }
        quotas += i32::from(quota);
        quotas_over += i32::from(quota && over);
        limits_over += i32::from(!quota && over);
        if !over && *status != Status::NoLimit {
            metadata.insert(matched.key());
        }
    }
    let denied = limits_over > 0 || (quotas > 0 && quotas == quotas_over);
    let overall = if denied && global != Global::Shadow { Code::OverLimit } else { Code::Ok };
    Answer { overall, statuses, metadata }
}

/// Our answer: the same, except that a shadow has no vote. In envoyproxy/ratelimit a shadow that is a quota as
/// well counts as a quota that fits.
fn ours(call: &[Matches], global: Global) -> Answer {
    let mut votes = Vec::new();
    let has_shadow = call.iter().any(|matched| matches!(matched, Limit { shadow: true, .. }));
    for matched in call {
        match matched {
            Limit { shadow: true, .. } => {}
            // A shadow still replaces the limits that it names.
            Replaced { .. } if has_shadow => votes.push(Nothing),
            other => votes.push(*other),
        }
    }
    Answer {
        overall: envoyproxy_ratelimit(&votes, global).overall,
        ..envoyproxy_ratelimit(call, global)
    }
}

fn read(answer: &RateLimitResponse) -> Answer {
    let statuses = answer.statuses.iter().map(|status| {
        match (status.code(), &status.current_limit, status.limit_remaining) {
            (Code::Ok, Some(_), 0) => Status::OkAtZero,
            (Code::Ok, Some(_), _) => Status::Ok,
            (Code::OverLimit, Some(_), 0) => Status::OverLimit,
            (Code::Ok, None, u32::MAX) => Status::Unlimited,
            (Code::Ok, None, 0) => Status::NoLimit,
            _ => panic!("{status:?}"),
        }
    });
    let fields = &answer.dynamic_metadata.as_ref().expect("--dynamic-metadata").fields;
    let metadata = match fields.get("metadata").map(|value| value.kind.as_ref().unwrap()) {
        Some(Kind::StructValue(rules)) => rules.fields.keys().cloned().collect(),
        _ => BTreeSet::new(),
    };
    Answer { overall: answer.overall_code(), statuses: statuses.collect(), metadata }
}

/// Every choice of one to three, in the order of [`ALL`].
fn calls() -> Vec<Vec<Matches>> {
    let mut calls: Vec<Vec<Matches>> = vec![Vec::new()];
    let mut longest = calls.clone();
    for _ in 0..3 {
        longest = longest.iter().flat_map(|call| longer(call)).collect();
        calls.extend(longest.iter().cloned());
    }
    calls.remove(0);
    calls
}

/// The call with each further descriptor that is not before its last in [`ALL`].
fn longer(call: &[Matches]) -> Vec<Vec<Matches>> {
    let index_of = |matched: &Matches| ALL.iter().position(|other| other == matched).unwrap();
    let from = call.last().map_or(0, index_of);
    ALL[from..].iter().map(|next| [call, &[*next]].concat()).collect()
}

#[tokio::test]
async fn every_combination_of_modes_is_answered_as_by_envoyproxy_ratelimit_but_shadows_have_no_vote()
 {
    let head = "domain: shop\ndescriptors:\n".to_owned();
    let rules = ALL.iter().fold(head, |rules, matched| rules + &matched.rule());
    let modes = [
        (Global::Neither, None, true),
        (Global::Shadow, Some("--shadow-mode"), false),
        (Global::Quota, Some("--quota-mode"), true),
    ];
    for (global, flag, differs) in modes {
        let mut flags = vec!["--dynamic-metadata"];
        flags.extend(flag);
        on_every_store(&rules, &flags, async |service: &Service| {
            let mut client = service.client().await;
            let mut differences = Vec::new();
            for call in calls() {
                let descriptor =
                    |(number, matched): (usize, &Matches)| one(&matched.key(), &number.to_string());
                let descriptors = call.iter().enumerate().map(descriptor).collect();
                let answer = client.should_rate_limit(request("shop", descriptors)).await.unwrap();
                let answer = read(&answer.into_inner());
                assert_eq!(answer, ours(&call, global), "{global:?}: {call:?}");
                if answer != envoyproxy_ratelimit(&call, global) {
                    differences.push(call);
                }
            }
            assert_eq!(!differences.is_empty(), differs, "{global:?}: {differences:?}");
            for call in differences {
                let documented = |matched: &Matches| match matched {
                    Limit { shadow: true, quota, .. } => *quota || global == Global::Quota,
                    _ => false,
                };
                assert!(call.iter().any(documented), "{global:?}: {call:?}");
            }
        })
        .await;
    }
}
