//! Proxies that decide by themselves, with hits that are assigned to them, as `envoy.service.rate_limit_quota.v3` has it.

use std::{collections::BTreeMap, future::pending, pin::pin, rc::Rc, slice, time::Duration};

use prost::Message as _;
use tokio::{
    select,
    time::{self, Instant},
};
use tollkeeper::rls::{QuotaStream, Reports};
use tollkeeper_proto::{
    quota::{
        BucketId, RateLimitQuotaUsageReports,
        rate_limit_quota_response::{BucketAction as Action, bucket_action::BucketAction},
        rate_limit_quota_usage_reports::BucketQuotaUsage,
    },
    rate_limit_strategy::Strategy,
};
use tollkeeper_sim::dice::Dice;

use super::{
    World,
    ledger::{Answer, Call, Kind},
};

const REPORTS_EVERY: Duration = Duration::from_secs(5);

/// How long an answer takes to the proxy, in microseconds. The service reckons with less than 250 ms.
const WAY_US: u64 = 200_000;

pub struct Proxy {
    world: Rc<World>,
    dice: Dice,
    counter: String,
    /// What is assigned: the hits, until when, and by Redis's clock when they were asked for.
    tokens: u64,
    ends: Instant,
    asked: (Instant, u64),
    allowed: u64,
    denied: u64,
    /// When its next call comes.
    calls: Instant,
}

impl Proxy {
    pub fn new(world: &Rc<World>, dice: Dice) -> Self {
        let (now, counter) = (Instant::now(), format!("minute=u{}", dice.below(2)));
        let (world, asked) = (Rc::clone(world), (now, world.redis_now_ms()));
        Self {
            world,
            dice,
            counter,
            tokens: 0,
            ends: now,
            asked,
            allowed: 0,
            denied: 0,
            calls: now,
        }
    }

    /// Decides calls until the world ends. A stream that breaks begins again, at another replica.
    pub async fn decide_all(mut self) {
        let mut seconds = 0;
        while !self.world.ends.get() {
            let replica = Rc::clone(self.dice.one_of(&self.world.replicas()));
            let mut stream = QuotaStream::of_anyone(&replica.service);
            loop {
                let report = self.report(seconds);
                seconds = REPORTS_EVERY.as_secs() as i64;
                let reported = Instant::now();
                self.apply(&mut stream, Some(report.encode_to_vec())).await;
                let next_report = reported + REPORTS_EVERY;
                while let Some(due) = stream.due().filter(|due| *due < next_report) {
                    self.while_waiting(time::sleep_until(due)).await;
                    if self.world.ends.get() || replica.has_ended.get() {
                        break;
                    }
                    self.apply(&mut stream, None).await;
                }
                self.while_waiting(time::sleep_until(next_report)).await;
                if self.world.ends.get() || replica.has_ended.get() || self.dice.hits(100) {
                    break;
                }
            }
        }
    }

    fn report(&mut self, seconds: i64) -> RateLimitQuotaUsageReports {
        let usage = BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket: self.bucket() }),
            time_elapsed: Some(prost_types::Duration { seconds, nanos: 0 }),
            num_requests_allowed: std::mem::take(&mut self.allowed),
            num_requests_denied: std::mem::take(&mut self.denied),
        };
        RateLimitQuotaUsageReports { domain: "shop".to_owned(), bucket_quota_usages: vec![usage] }
    }

    fn bucket(&self) -> BTreeMap<String, Vec<u8>> {
        let (key, value) = self.counter.split_once('=').expect("a key and a value");
        BTreeMap::from([(key.to_owned(), value.into())])
    }

    /// Reports, or lets the time pass, and follows the answer.
    async fn apply(&mut self, stream: &mut QuotaStream<'_>, report: Option<Vec<u8>>) {
        let asked = (Instant::now(), self.world.redis_now_ms());
        let mut reports = Reports::new(report.into_iter().map(Into::into).collect());
        let mut actions = Vec::new();
        while let Some(told) = self
            .while_waiting(stream.answer(&mut reports, pending()))
            .await
            .expect("the report is well")
        {
            actions.extend(told);
        }
        let way = self.dice.micros(0..WAY_US);
        self.while_waiting(time::sleep(way)).await;
        for Action { bucket_action, .. } in actions {
            let (tokens, seconds) = match bucket_action {
                Some(BucketAction::QuotaAssignmentAction(assignment)) => {
                    let strategy = assignment.rate_limit_strategy.and_then(|one| one.strategy);
                    let lasts = assignment.assignment_time_to_live.map_or(0, |time| time.seconds);
                    match strategy {
                        Some(Strategy::TokenBucket(bucket)) => (bucket.max_tokens.into(), lasts),
                        Some(Strategy::BlanketRule(1)) => (0, lasts),
                        other => panic!("{other:?}"),
                    }
                }
                other => panic!("{other:?}"),
            };
            self.world
                .note(|| format!("{tokens} hits of {} are assigned for {seconds} s", self.counter));
            self.tokens = tokens;
            self.ends = Instant::now() + Duration::from_secs(seconds as u64);
            self.asked = asked;
        }
    }

    /// Decides the calls that come until `until`.
    async fn while_waiting<T>(&mut self, until: impl Future<Output = T>) -> T {
        let mut until = pin!(until);
        loop {
            select! {
                biased;
                done = &mut until => return done,
                () = time::sleep_until(self.calls) => self.decide(),
            }
        }
    }

    fn decide(&mut self) {
        self.calls =
            Instant::now() + self.dice.micros(1000..*self.dice.one_of(&[100_000, 2_000_000]));
        if self.tokens == 0 || Instant::now() >= self.ends {
            self.denied += 1;
            return;
        }
        (self.tokens, self.allowed) = (self.tokens - 1, self.allowed + 1);
        let (world, (asked, made)) = (&self.world, self.asked);
        let has_jumped = world.jumped_at.get().is_some_and(|at| at >= asked);
        let at = if has_jumped { made } else { world.redis_now_ms() };
        let mut ledger = world.ledger.borrow_mut();
        let asked = ledger.asked();
        let answer =
            Answer { admitted: Some(true), at: Some(at), by_credit: true, asked, ..Answer::NONE };
        let counters = slice::from_ref(&self.counter).to_vec();
        ledger.answered(Call { counters, hits: 1, kind: Kind::Charge }, answer);
    }
}
