//! Proxies that decide by themselves, with hits that are assigned to them, as `envoy.service.rate_limit_quota.v3` has it.

use std::{collections::BTreeMap, future::pending, ops::Range, pin::pin, rc::Rc, time::Duration};

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
    ledger::{Answer, Call, Kind, window_of},
};

const REPORTS_EVERY: Duration = Duration::from_secs(5);

/// How long an answer takes to the proxy, in microseconds. The service reckons with less than 250 ms.
const WAY_US: u64 = 200_000;

/// The keys of buckets, and the rules of the ledger whose limits count their calls.
const BUCKETS: [(&str, &[&str]); 2] = [("minute", &["minute"]), ("nested", &["short", "long"])];

/// The longest pauses between two calls, and how long a proxy is idle at times.
const PAUSES_US: [u64; 3] = [2000, 100_000, 2_000_000];
const IDLE_US: Range<u64> = 2_000_000..9_000_000;

pub struct Proxy {
    world: Rc<World>,
    dice: Dice,
    /// Its bucket: a key and a value.
    bucket: String,
    /// The counters that its calls count in.
    counters: Vec<String>,
    /// What is assigned: the hits, until when, when they were asked for, and by Redis's clock before and after that.
    tokens: u64,
    ends: Instant,
    asked: Instant,
    charged_ms: [u64; 2],
    /// Whether the present stream has assigned them: until it does, it may count once more what another one has charged.
    is_of_stream: bool,
    allowed: u64,
    denied: u64,
    /// When its next call comes, and how long the pauses after it are at most.
    calls: Instant,
    pause_us: u64,
}

impl Proxy {
    pub fn new(world: &Rc<World>, dice: Dice) -> Self {
        let (now, user) = (Instant::now(), format!("u{}", dice.below(2)));
        let (key, rules) = *dice.one_of(&BUCKETS);
        let counters = rules.iter().map(|rule| format!("{rule}={user}")).collect();
        let world = Rc::clone(world);
        Self {
            world,
            dice,
            bucket: format!("{key}={user}"),
            counters,
            tokens: 0,
            ends: now,
            asked: now,
            charged_ms: [0; 2],
            is_of_stream: false,
            allowed: 0,
            denied: 0,
            calls: now,
            pause_us: PAUSES_US[0],
        }
    }

    /// Decides calls until the world ends. A stream that breaks begins again, at another replica.
    pub async fn decide_all(mut self) {
        let mut seconds = 0;
        while !self.world.ends.get() {
            let replica = Rc::clone(self.dice.one_of(&self.world.replicas()));
            let mut stream = QuotaStream::of_anyone(&replica.service);
            self.is_of_stream = false;
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
        let (key, value) = self.bucket.split_once('=').expect("a key and a value");
        BTreeMap::from([(key.to_owned(), value.into())])
    }

    /// Reports, or lets the time pass, and follows the answer.
    async fn apply(&mut self, stream: &mut QuotaStream<'_>, report: Option<Vec<u8>>) {
        let (asked, before_ms) = (Instant::now(), self.world.redis_now_ms());
        let mut reports = Reports::new(report.into_iter().map(Into::into).collect());
        let mut actions = Vec::new();
        while let Some(told) = self
            .while_waiting(stream.answer(&mut reports, pending()))
            .await
            .expect("the report is well")
        {
            actions.extend(told);
        }
        let charged_ms = [before_ms, self.world.redis_now_ms()];
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
                .note(|| format!("{tokens} hits of {} are assigned for {seconds} s", self.bucket));
            (self.tokens, self.is_of_stream) = (tokens, true);
            self.ends = Instant::now() + Duration::from_secs(seconds as u64);
            (self.asked, self.charged_ms) = (asked, charged_ms);
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
        if self.dice.hits(20) {
            self.pause_us = *self.dice.one_of(&PAUSES_US);
        }
        // A burst follows an idle time.
        let idle_us = if self.dice.hits(10) { self.dice.within(IDLE_US) } else { 0 };
        let pause = self.dice.micros(100..self.pause_us);
        self.calls = Instant::now() + pause + Duration::from_micros(idle_us);
        if idle_us > 0 {
            self.pause_us = PAUSES_US[0];
        }
        if self.tokens == 0 || Instant::now() >= self.ends {
            self.denied += 1;
            return;
        }
        (self.tokens, self.allowed) = (self.tokens - 1, self.allowed + 1);
        let world = &self.world;
        let has_jumped = world.jumped_at.get().is_some_and(|at| at >= self.asked);
        // After a jump, they count in the window in which they were charged, if that is known.
        let [before_ms, after_ms] = self.charged_ms;
        let ends_between = |counter: &String| {
            let (_, length_ms, _) = window_of(counter);
            before_ms / length_ms != after_ms / length_ms
        };
        let at = match has_jumped {
            false => Some(world.redis_now_ms()),
            true => (!self.counters.iter().any(ends_between)).then_some(before_ms),
        };
        let mut ledger = world.ledger.borrow_mut();
        let asked = ledger.asked();
        let answer = Answer { admitted: Some(true), at, by_credit: true, asked, ..Answer::NONE };
        let call = Call { counters: self.counters.clone(), hits: 1, kind: Kind::Charge };
        if !self.is_of_stream {
            ledger.answered(call.clone(), Answer { asked, ..Answer::NONE });
        }
        ledger.answered(call, answer);
    }
}
