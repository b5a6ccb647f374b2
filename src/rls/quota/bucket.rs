//! One bucket of one stream: what the proxy reports of it, and what is assigned.

use std::{mem, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::grants::{Grant, Grants, Window};
use crate::{
    edge::arriving::{ConnectionBudget, HeldBytes},
    engine::{
        decision::{Code, Decision},
        ledger::Charge,
        request::{Descriptor, Entry, Hits, HitsMeaning, Request},
        rule::{Limit, Mode},
    },
    limiter::{Limiter, Undecided},
    rls::{
        claims::{BucketName, Claim, Told},
        pb::{
            RateLimitStrategy, TokenBucket,
            quota::rate_limit_quota_response::bucket_action::{
                AbandonAction, BucketAction, QuotaAssignmentAction,
            },
            rate_limit_strategy::{BlanketRule, Strategy},
        },
        service::Service,
    },
    store::{Clear, CounterReading, guard::Arrival},
    telemetry::{LogCause, due_line},
};

/// About what a bucket takes beside its name and its assignments, in bytes.
const BUCKET_BYTES: usize = 2_560;

/// How long an assignment lasts. Envoy reports every 5 s.
const LASTS: Duration = Duration::from_secs(7);

/// Assignments of one bucket are not closer: some proxies report after each.
const ASSIGNED_EVERY: Duration = Duration::from_secs(1);

/// How long before its window an assignment ends, for its way to the proxy.
const ENDS_EARLY_BY: Duration = Duration::from_millis(250);

/// An assignment lasts whole seconds, so that one which ends with its window is made this long before its end.
const LAST_LASTS: Duration = Duration::from_millis(2_050);

/// An assignment that would last no longer than the last one by this is the last one.
const LAST_LONGER_BY: Duration = Duration::from_millis(100);

/// How long after a window ends the first assignment of the next one is made.
const BEGINS_LATE_BY: Duration = Duration::from_millis(5);

/// A bucket without calls has assignments for as long, and is given up then.
const KEPT_FOR: Duration = Duration::from_secs(60);

/// How long after the store has given no answer it is asked again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// A bucket's first assignment is at most what its limits allow in this many seconds if they are used evenly, but may always have
/// this many hits.
const FIRST_SECONDS: u64 = 15;
const FIRST_MIN: u64 = 20;

/// How long the store may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Buckets of a proxy are full at first, and get a token once in this time. Envoy takes no longer one.
const NEVER_SECONDS: i64 = 365 * 24 * 3_600;

/// What the proxy has reported of a bucket.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    pub(super) allowed: u64,
    pub(super) denied: u64,
    /// The time since the proxy has reported it before, perhaps on another stream.
    pub(super) elapsed: Duration,
    /// Whether the proxy has not reported it before.
    pub(super) is_first: bool,
}

/// What becomes of a bucket.
pub(super) enum Change {
    /// Hits that were charged, in these windows.
    Hits {
        token: String,
        hits: u64,
        windows: Vec<Window>,
    },
    Blanket(BlanketRule),
    Abandon,
}

impl Change {
    const fn told(&self) -> Told {
        match self {
            Self::Hits { .. } => Told::Assigned,
            Self::Blanket(BlanketRule::AllowAll) => Told::Unlimited,
            Self::Blanket(BlanketRule::DenyAll) => Told::Denied,
            Self::Abandon => Told::Abandoned,
        }
    }
}

impl Usage {
    pub(super) fn add(&mut self, other: Self) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.elapsed = self.elapsed.saturating_add(other.elapsed);
        self.is_first |= other.is_first;
    }
}

pub(super) struct Bucket {
    pub(super) name: Arc<BucketName>,
    claim: Claim,
    grants: Grants,
    /// Assignments that have ended, and are to be settled.
    ended: Vec<Grant>,
    assigned: Option<Instant>,
    /// How often the proxy has reported the bucket.
    reports: u64,
    /// The last answer that the proxy got about the bucket.
    told: Option<Told>,
    /// When the next assignment is due, if not with a report.
    due: Option<Instant>,
    /// When the proxy last reported a call, and how many since the last assignment.
    called: Instant,
    calls: u64,
    /// Calls that no assignment covers, and whether they are charged.
    uncounted: u64,
    is_counted: bool,
    /// Whether a proxy can read an answer about it: its values may be any bytes.
    is_text: bool,
    held: HeldBytes,
}

impl Bucket {
    /// # Errors
    /// The name again, if the connection may hold no more memory.
    pub(super) fn new(
        service: &Service,
        memory: &Arc<ConnectionBudget>,
        domain: &str,
        name: BucketName,
        name_bytes: usize,
    ) -> Result<Self, BucketName> {
        let mut held = memory.reserve();
        if held.add(BUCKET_BYTES + name_bytes).is_err() {
            return Err(name);
        }
        let (is_text, name) = (is_text(&name), Arc::new(name));
        Ok(Self {
            is_text,
            claim: service.quotas.add(domain, &name),
            name,
            grants: Grants::default(),
            assigned: None,
            reports: 0,
            ended: Vec::new(),
            told: None,
            due: None,
            called: Instant::now(),
            calls: 0,
            uncounted: 0,
            is_counted: !is_text,
            held,
        })
    }

    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes in what the proxy has reported; it is settled by [`follow`](Self::follow), or by [`end`](Self::end).
    pub(super) fn report(&mut self, Usage { allowed, denied, elapsed, is_first }: Usage) {
        let now = Instant::now();
        self.reports += 1;
        let uncovered = self.grants.spend(allowed);
        self.ended.extend(self.grants.ended(elapsed, now));
        let calls = allowed.saturating_add(denied);
        if calls > 0 {
            self.called = now;
        }
        self.calls = self.calls.saturating_add(calls);
        // An assignment of another stream may have covered the first ones.
        if self.reports > 1 || is_first {
            self.uncounted = self.uncounted.saturating_add(uncovered);
        }
    }

    /// Gives back what was not used of assignments that have ended.
    async fn commit_ended(&mut self, limiter: &Limiter, domain: &str) {
        give_back(limiter, domain, mem::take(&mut self.ended), Instant::now()).await;
    }

    /// Charges what the proxy has reported, and was not charged.
    pub(super) async fn end(mut self, limiter: &Limiter, domain: &str) {
        self.commit_ended(limiter, domain).await;
        count(limiter, domain, &self.name, self.uncounted).await;
    }

    /// Whether something is left to be charged or given back at the end.
    pub(super) const fn is_unsettled(&self) -> bool {
        self.uncounted > 0 || !self.ended.is_empty()
    }

    /// Whether the bucket is given up, and nothing of its assignments can be given back any more.
    pub(super) fn is_over(&self) -> bool {
        self.told == Some(Told::Abandoned) && self.grants.is_empty()
    }

    /// Follows a report, or renews an assignment that is due; returns what becomes of the bucket.
    pub(super) async fn follow(
        &mut self,
        service: &Service,
        domain: &str,
        is_reported: bool,
    ) -> Option<Change> {
        let (limiter, now) = (&*service.limiter, Instant::now());
        self.commit_ended(limiter, domain).await;
        let is_idle = now.duration_since(self.called) > KEPT_FOR;
        if is_idle && self.told == Some(Told::Abandoned) {
            // Envoy forgets a bucket that is given up, and reports no more of it without a call.
            give_back(limiter, domain, self.grants.take_all(), now).await;
            return None;
        }
        if is_idle && self.grants.is_empty() {
            return Some(Change::Abandon);
        }
        let is_due = !is_reported
            || self.assigned.is_none_or(|assigned| now.duration_since(assigned) >= ASSIGNED_EVERY);
        let mut change = None;
        if is_due {
            self.due = None;
        }
        if is_due && !is_idle && self.is_text {
            // Until there is a second report, it is not known how many calls there are.
            if is_reported && self.reports > 1 {
                self.claim.set_needs(mem::take(&mut self.calls).saturating_mul(2).max(1));
            }
            self.claim.set_unused(self.grants.unused(now));
            self.assigned = Some(now);
            change = self.assign(service, domain).await;
        }
        if self.is_counted {
            count(limiter, domain, &self.name, mem::take(&mut self.uncounted)).await;
        }
        change
    }

    async fn assign(&mut self, service: &Service, domain: &str) -> Option<Change> {
        let limiter = &*service.limiter;
        let entries = entries(limiter, domain, &self.name);
        let asked = request(domain, entries.clone(), Hits::Charge(1));
        let readings = limiter.read_counters(&asked, Clear::No).await;
        let (mut left, mut first) = (u64::MAX, u64::MAX);
        for (charge, reading) in &readings {
            let CounterReading::State(state) = reading else { return self.again_soon(service) };
            left = left.min(state.remaining);
            first = first.min(first_of(&charge.counter.limit));
        }
        let is_shadow = |(charge, _): &(Charge, _)| charge.counter.limit.mode == Mode::Shadow;
        if !readings.is_empty() && readings.iter().all(is_shadow) {
            self.is_counted = true;
            // A ban applies in shadow mode, too.
            let check = request(domain, entries, Hits::Check);
            let checked = decide(limiter, &check, HitsMeaning::Charged).await;
            let is_denied = checked.is_ok_and(|decision| decision.code == Code::OverLimit);
            let all = if is_denied { BlanketRule::DenyAll } else { BlanketRule::AllowAll };
            return Some(Change::Blanket(all));
        }
        let asked = Instant::now();
        let hits = self.claim.share(left, first, asked).clamp(1, u32::MAX.into());
        let request = request(domain, entries, Hits::Charge(hits));
        let decision = match decide(limiter, &request, HitsMeaning::Assigned).await {
            Ok(decision) => decision,
            Err(Undecided::NotLeased { rule }) => {
                self.uncounted = 0;
                service.quotas.count(Told::NotAssigned, 1);
                report_not_assigned(domain, &rule);
                self.due = (!self.grants.is_empty()).then(|| asked + KEPT_FOR);
                // Otherwise, the proxy would follow its `expired_assignment_behavior`.
                let is_known = self.told.is_some_and(|told| told != Told::Abandoned);
                return is_known.then_some(Change::Abandon);
            }
            Err(_) => return self.again_soon(service),
        };
        self.is_counted = true;
        if decision.code == Code::OverLimit {
            let over = decision.statuses.first().and_then(|status| status.outcome.of_limit());
            let resets = over.map(|(_, _, reset)| asked + reset + BEGINS_LATE_BY);
            // What is left of an assignment is better, unless there is to be none.
            let is_banned = over.is_none_or(|(limit, ..)| limit.requests_per_unit == 0);
            let alive = self.grants.are_alive_until();
            let alive = alive.and_then(|ends| ends.checked_sub(ENDS_EARLY_BY));
            let alive = alive.filter(|until| *until > asked && !is_banned);
            self.due = resets.into_iter().chain(alive).min();
            return alive.is_none().then_some(Change::Blanket(BlanketRule::DenyAll));
        }
        let Some(hits) = decision.part else {
            return Some(Change::Blanket(BlanketRule::AllowAll));
        };
        let charges = decision.taken.iter().flat_map(|taken| &taken.charges);
        let windows = charges.map(|charge| {
            let limit = &charge.counter.limit;
            let ends = asked + limit.remaining_window(charge.made);
            Window::new(ends, limit.window.seconds(), charge.counter.id())
        });
        let (token, windows) = (decision.token.unwrap_or_default(), windows.collect());
        Some(Change::Hits { token, hits, windows })
    }

    /// The actions that tell the proxy so, to be sent `now`. An assignment lasts whole seconds, and ends before its windows do.
    pub(super) fn tell(
        &mut self,
        service: &Service,
        change: Change,
        now: Instant,
    ) -> Vec<BucketAction> {
        let told = change.told();
        self.told = Some(told);
        let actions = match change {
            Change::Abandon if !self.is_text => return Vec::new(),
            Change::Abandon => vec![BucketAction::AbandonAction(AbandonAction {})],
            Change::Blanket(rule) => vec![assignment(LASTS, Strategy::BlanketRule(rule.into()))],
            Change::Hits { token, hits, windows } => {
                let first_ends = windows.iter().map(|window| window.ends).min().unwrap_or(now);
                let left = first_ends.saturating_duration_since(now);
                let left = left.saturating_sub(ENDS_EARLY_BY);
                let lasts = Duration::from_secs(left.min(LASTS).as_secs());
                let is_last = left < LAST_LASTS + LAST_LONGER_BY;
                let begins = first_ends + BEGINS_LATE_BY;
                let due = if is_last { begins } else { now + left - LAST_LASTS };
                self.due = (left < LASTS).then_some(due);
                self.claim.set_counters(windows.iter().map(|window| window.counter).collect());
                self.grants.add(Grant::new(token, &mut self.held, hits, lasts, windows, now));
                self.claim.set_unused(self.grants.unused(now));
                if lasts.is_zero() {
                    return Vec::new();
                }
                let interval = prost_types::Duration { seconds: NEVER_SECONDS, nanos: 0 };
                let bucket = TokenBucket {
                    max_tokens: u32::try_from(hits).unwrap_or(u32::MAX),
                    tokens_per_fill: Some(1),
                    fill_interval: Some(interval),
                };
                // Envoy fills a bucket that follows another one by as much as is left in that one, and takes both of these
                // before it decides a call.
                let none = Strategy::BlanketRule(BlanketRule::DenyAll.into());
                let strategies = [none, Strategy::TokenBucket(bucket)];
                strategies.map(|one| assignment(lasts, one)).into()
            }
        };
        service.quotas.count(told, 1);
        actions
    }

    /// The store has given no answer.
    fn again_soon(&mut self, service: &Service) -> Option<Change> {
        service.quotas.count(Told::NoAnswer, 1);
        self.due = Some(Instant::now() + AGAIN_AFTER);
        None
    }
}

/// The path of a bucket through the rules.
fn entries(limiter: &Limiter, domain: &str, name: &BucketName) -> Vec<Entry> {
    let entry = |(key, value): (&String, &Vec<u8>)| Entry {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value),
    };
    let entries = name.iter().map(entry).collect();
    let rules = limiter.rules();
    match rules.rules.domain(domain) {
        Some(domain) => domain.ordered(entries),
        None => entries,
    }
}

/// The most hits of a first assignment: it is not known yet what is needed, and a stream that breaks takes them with it.
fn first_of(limit: &Limit) -> u64 {
    let evenly = limit.requests_per_unit.saturating_mul(FIRST_SECONDS) / limit.window.seconds();
    evenly.max(FIRST_MIN)
}

/// Charges calls that a proxy has let pass without an assignment. Without an answer of the store, they are kept, or
/// `on_store_failure` decides, as for all debits.
pub(super) async fn count(limiter: &Limiter, domain: &str, name: &BucketName, calls: u64) {
    if calls > 0 {
        let hits = Hits::Charge(calls.min(Hits::MAX));
        let request = request(domain, entries(limiter, domain, name), hits);
        drop(decide(limiter, &request, HitsMeaning::Done).await);
    }
}

/// Whether a proxy can read an answer about a bucket of this name.
pub(super) fn is_text(name: &BucketName) -> bool {
    name.values().all(|value| str::from_utf8(value).is_ok())
}

fn request(domain: &str, entries: Vec<Entry>, hits: Hits) -> Request {
    let descriptors = vec![Descriptor::new(entries, hits)];
    Request { domain: domain.to_owned(), descriptors }
}

async fn decide(
    limiter: &Limiter,
    request: &Request,
    meaning: HitsMeaning,
) -> Result<Decision, Undecided> {
    let arrival = Arrival { at: Instant::now(), timeout: Some(ANSWER_WITHIN) };
    limiter.decide_by(&limiter.deciding(), request, meaning, arrival, None).await
}

async fn give_back(limiter: &Limiter, domain: &str, ended: Vec<Grant>, now: Instant) {
    for grant in ended {
        if let (Some(used), Some((token, _))) = (grant.committed(now), grant.token) {
            commit(limiter, domain, token.into(), used).await;
        }
    }
}

/// Gives back what is unused. If the store gives no answer, that is kept.
async fn commit(limiter: &Limiter, domain: &str, token: String, used: u64) {
    let parameter =
        |key: &'static str, value: String| Entry { key: key.into(), value: value.into() };
    let entries = vec![parameter("hold.commit", token), parameter("hold.used", used.to_string())];
    drop(decide(limiter, &request(domain, entries, Hits::Check), HitsMeaning::Charged).await);
}

fn assignment(lasts: Duration, strategy: Strategy) -> BucketAction {
    let seconds = i64::try_from(lasts.as_secs()).unwrap_or(i64::MAX);
    BucketAction::QuotaAssignmentAction(QuotaAssignmentAction {
        assignment_time_to_live: Some(prost_types::Duration { seconds, nanos: 0 }),
        rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
    })
}

fn report_not_assigned(domain: &str, rule: &str) {
    if let Some(line) = due_line(LogCause::NotAssigned, &format!("{domain}\n{rule}")) {
        tracing::warn!(
            rule,
            domain,
            suppressed = line.suppressed,
            "a rule does not limit proxies, which do as their `no_assignment_behavior` says: hits are assigned only of \
             limits with a fixed or calendar window of 10 s or more, and nothing that docs/rlqs.md excludes"
        );
    }
}
