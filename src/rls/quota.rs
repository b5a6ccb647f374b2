//! `envoy.service.rate_limit_quota.v3`: proxies decide by themselves, with hits that are assigned to them for seconds. An
//! assignment is a part of the limits of its bucket, which is charged before it is sent and lasts no longer than their
//! windows, so that calls and proxies draw on one budget. What of it was not used counts until it has ended and the proxy
//! has reported.
//!
//! What Envoy 1.40 makes of an assignment:
//! <https://github.com/envoyproxy/envoy/blob/v1.40.0/source/extensions/filters/http/rate_limit_quota/global_client_impl.cc>

mod bucket;
mod grants;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    future::pending,
    mem,
    sync::Arc,
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use futures_util::{
    FutureExt as _,
    future::{join, join_all},
};
use http::Response;
use hyper::body::Incoming;
use prost::{DecodeError, Message as _};
use tokio::{
    select,
    sync::Semaphore,
    task,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use self::bucket::{Bucket, Usage};
use super::{
    claims::{BucketName, Told},
    framing::{self, AnswerBody, Answers, Messages},
    pb::quota::{
        BucketId, RateLimitQuotaResponse as Answer,
        rate_limit_quota_response::{
            BucketAction as Action,
            bucket_action::{AbandonAction, BucketAction},
        },
        rate_limit_quota_usage_reports::BucketQuotaUsage,
    },
    precheck::{next_field, repeated},
    refusal::Refusal,
    service::{ConnectedClient, Service},
};
use crate::{
    edge::{
        arriving::{ConnectionBudget, HeldBytes},
        panics::caught,
    },
    engine::{parameters::Parameters, request::ENTRIES_MAX},
    net::{grpc::ServedMethod, tls::server::Identity},
    process::turns::yield_to_others,
};

const METHOD: ServedMethod = ServedMethod::StreamRateLimitQuotas;

/// Most buckets of a stream. A further one is given up, so that the proxy forgets it.
const BUCKETS_MAX: usize = 10_000;

/// The longest name of a bucket, and of all buckets of a stream, in bytes of keys and values: a proxy repeats all names in each
/// report.
const NAME_BYTES_MAX: usize = 1 << 10;
const NAMES_BYTES_MAX: usize = 2 << 20;

/// The largest report: a proxy that was without us for a while may have many more buckets than we keep.
const REPORT_BYTES_MAX: usize = 8 << 20;

/// What one turn follows at most: buckets, and what their names take in memory.
const TURN_BUCKETS: usize = 16;
const TURN_BYTES: usize = 64 << 10;

/// About what a pair of a name takes beside its key and value, in bytes.
const PAIR_BYTES: usize = 256;

/// How often the name of a usage is in memory, beside the report: decoded, in a request, and in the answer and its bytes; and as
/// much for long ones that the allocator has back and still keeps.
const COPIES: usize = 8;

/// A longer usage is decoded on a thread of its own, so that other calls do not wait for it.
const LONG_USAGE_BYTES: usize = 64 << 10;

/// The task yields to other calls after it has read this many fields of a report, or 64 times as many bytes.
const FIELDS_AT_A_TIME: usize = 256;

/// How long the service settles what a proxy has reported once its stream has ended, and of how many buckets at most.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
const ENDING_BUCKETS_MAX: usize = 1_000;

/// Most reports that are answered as one.
const REPORTS_MAX: usize = 1_000;

/// The field numbers of the domain and the usages of a report, of the id of their bucket, and of its entries.
const DOMAIN: u32 = 1;
const USAGES: u32 = 2;
const BUCKET_ID: u32 = 1;
const BUCKET: u32 = 1;

/// Reports that are answered, as far as they are read.
pub struct Reports {
    /// The first one without what is read.
    unread: VecDeque<Bytes>,
    open_groups: usize,
    /// The number of the next usage of the first report.
    index: usize,
    /// Whether the domain of the first report is known.
    is_begun: bool,
    /// The fields that were read since the task last yielded.
    fields: usize,
    /// When they were taken up: what was due before is renewed with them.
    began: Instant,
}

impl Reports {
    pub fn new(reports: Vec<Bytes>) -> Self {
        let (unread, began) = (reports.into(), Instant::now());
        Self { unread, open_groups: 0, index: 0, is_begun: false, fields: 0, began }
    }

    /// The next field of the first report that is length-delimited; `None` at its end.
    async fn next_field(&mut self) -> Result<Option<(u32, Bytes)>, Refusal> {
        let Some(report) = self.unread.front_mut() else { return Ok(None) };
        loop {
            if self.fields >= FIELDS_AT_A_TIME {
                self.fields = 0;
                yield_to_others().await;
            }
            let mut rest = &**report;
            if rest.is_empty() && self.open_groups == 0 {
                return Ok(None);
            }
            let field = next_field(&mut rest, &mut self.open_groups);
            let malformed = || Refusal::Malformed("the report has a malformed field".into());
            let field = field.ok_or_else(malformed)?;
            let field = field.map(|(number, value)| (number, report.slice_ref(value)));
            let bytes = report.len() - rest.len();
            self.fields += 1 + bytes / 64;
            report.advance(bytes);
            if field.is_some() {
                return Ok(field);
            }
        }
    }
}

/// What is assigned to one proxy, for one domain.
pub struct QuotaStream<'service> {
    service: &'service Service,
    memory: Arc<ConnectionBudget>,
    identity: Option<&'service Identity>,
    /// The turns of the streams of its connection.
    turns: Arc<Semaphore>,
    domain: String,
    /// Of all buckets, also of those whose turn it is.
    count: usize,
    name_bytes: usize,
    buckets: HashMap<Arc<BucketName>, Bucket>,
    /// Calls of buckets for which there was no room, to be charged at the end.
    beyond: Vec<(BucketName, u64)>,
}

impl Service {
    /// Answers a call of `StreamRateLimitQuotas`.
    pub(super) fn answer_quotas(
        self: Arc<Self>,
        body: Incoming,
        client: Arc<ConnectedClient>,
    ) -> Response<AnswerBody> {
        let calls = client.calls.clone();
        framing::answer_stream(&calls, async move |answers| {
            let slot = Arc::clone(&client.other_calls).try_acquire_owned();
            let _slot = slot.map_err(|_| Refusal::TooMany.status())?;
            self.limiter.prepare_tokens();
            let (memory, identity) = (Arc::clone(&client.memory), client.identity.as_ref());
            let turns = Arc::clone(&client.quota_turns);
            let mut stream =
                QuotaStream { memory, identity, turns, ..QuotaStream::of_anyone(&self) };
            let answered = stream.answer_all(body, &client.ending, &answers).await;
            drop(time::timeout(ENDS_WITHIN, stream.end()).await);
            answered
        })
    }
}

impl<'service> QuotaStream<'service> {
    /// The stream of a proxy that may be anyone.
    pub fn of_anyone(service: &'service Service) -> Self {
        Self {
            service,
            memory: service.memory_of_a_connection(),
            identity: None,
            turns: Semaphore::new(1).into(),
            domain: String::new(),
            count: 0,
            name_bytes: 0,
            buckets: HashMap::new(),
            beyond: Vec::new(),
        }
    }

    async fn answer_all(
        &mut self,
        body: Incoming,
        ending: &CancellationToken,
        answers: &Answers,
    ) -> Result<(), Status> {
        let (service, memory) = (self.service, Arc::clone(&self.memory));
        let mut messages = Messages::new(body, REPORT_BYTES_MAX, &memory)?;
        loop {
            let due = self.due();
            let renewal = async {
                match due {
                    Some(due) => time::sleep_until(due).await,
                    None => pending().await,
                }
            };
            let first = select! {
                biased;
                () = ending.cancelled() => return Err(framing::connection_ends()),
                message = messages.next() => match self.received(message)? {
                    Some(message) => Some(message),
                    None => return Ok(()),
                },
                () = renewal => None,
            };
            // A new bucket is a report of its own: those that wait are answered as one.
            let (mut reports, mut end) = (Vec::from_iter(first), None);
            while !reports.is_empty() && reports.len() < REPORTS_MAX && end.is_none() {
                match messages.next().now_or_never() {
                    Some(Ok(Some(message))) => reports.push(message),
                    Some(last) => end = Some(self.received(last)),
                    None => break,
                }
            }
            let (reports, _held): (Vec<_>, Vec<_>) = reports.into_iter().unzip();
            let (count, mut reports) = (reports.len(), Reports::new(reports));
            let answered = async {
                let began = Instant::now();
                let end = loop {
                    let answer = self.answer(&mut reports, answers.closed());
                    let answer = caught(Box::pin(answer)).await;
                    let bucket_action = match answer.unwrap_or(Err(Refusal::Panicked)) {
                        Ok(Some(actions)) if actions.is_empty() => continue,
                        Ok(Some(actions)) => actions,
                        Ok(None) => break Ok(!answers.is_closed()),
                        Err(refusal) => break Err(refusal),
                    };
                    let answer = match framing::framed(&Answer { bucket_action }, &memory) {
                        Ok(answer) => answer,
                        Err(spent) => break Err(Refusal::Busy(spent)),
                    };
                    if answers.send(Ok((answer, None))).await.is_err() {
                        break Ok(false);
                    }
                };
                let code = end.as_ref().map_or_else(|refusal| refusal.codes().0, |_| Code::Ok);
                (0..count).for_each(|_| service.limiter.metrics().call_of(METHOD, began, code));
                end.map_err(|refusal| refusal.status())
            };
            if !messages.read_during(answered).await? {
                self.note_rest(reports, &mut messages).await;
                return Ok(());
            }
            if let Some(end) = end {
                return end.map(drop);
            }
        }
    }

    /// Notes what a proxy that has left has reported, as far as it has arrived whole.
    async fn note_rest(&mut self, mut reports: Reports, messages: &mut Messages) {
        let until = Instant::now() + ENDS_WITHIN;
        while self.beyond.len() < ENDING_BUCKETS_MAX && Instant::now() < until {
            let mut held = self.memory.reserve();
            let Ok(usages) = self.next_turn(&mut reports, &mut held).await else { return };
            if usages.is_empty() {
                let Some(Ok(Some((message, _)))) = messages.next().now_or_never() else { return };
                reports = Reports::new(vec![message]);
            }
            for (name, usage) in usages {
                match self.take(name) {
                    Ok(mut bucket) => {
                        bucket.report(usage);
                        self.buckets.insert(Arc::clone(&bucket.name), bucket);
                    }
                    Err(name) => self.beyond.push((name, usage.allowed)),
                }
            }
        }
    }

    /// Counts a message that cannot be read, which ends the stream.
    fn received<M>(&self, message: Result<M, Refusal>) -> Result<M, Status> {
        message.map_err(|refusal| {
            let code = refusal.codes().0;
            self.service.limiter.metrics().call_of(METHOD, Instant::now(), code);
            refusal.status()
        })
    }

    /// When assignments are due without a report.
    pub fn due(&self) -> Option<Instant> {
        self.buckets.values().filter_map(Bucket::due).min()
    }

    /// Follows a part of these reports, and then what has become due; returns what the proxy is to do. `None` at the end, or if
    /// the proxy leaves before it is its turn.
    ///
    /// # Errors
    /// If a report cannot be decoded, or one of its fields is outside its bounds.
    pub async fn answer(
        &mut self,
        reports: &mut Reports,
        leaves: impl Future<Output = ()>,
    ) -> Result<Option<Vec<Action>>, Refusal> {
        let mut held = self.memory.reserve();
        let usages = self.next_turn(reports, &mut held).await?;
        // Those for which the stream has no room are beyond.
        let (mut taken, mut beyond) = (Vec::with_capacity(TURN_BUCKETS), Vec::new());
        for (name, usage) in usages {
            match self.take(name) {
                Ok(mut bucket) => {
                    bucket.report(usage);
                    taken.push((bucket, true));
                }
                Err(name) => beyond.push((name, usage.allowed)),
            }
        }
        if taken.is_empty() && beyond.is_empty() {
            let is_due = |bucket: &Bucket| bucket.due().is_some_and(|due| due <= reports.began);
            let due = self.buckets.extract_if(|_, bucket| is_due(bucket)).take(TURN_BUCKETS);
            taken.extend(due.map(|(_, bucket)| (bucket, false)));
            if taken.is_empty() {
                return Ok(None);
            }
        }
        let (service, domain) = (self.service, &*self.domain);
        let followed = async {
            let followed = taken.iter_mut().map(async |(bucket, is_reported)| {
                bucket.follow(service, domain, *is_reported).await
            });
            let given_up = beyond.iter().map(async |(name, calls)| {
                bucket::count(&service.limiter, domain, name, *calls).await;
                service.quotas.count(Told::Abandoned, 1);
            });
            join(join_all(followed), join_all(given_up)).await.0
        };
        let Some(changes) = service.quotas.in_turn(&self.turns, leaves, followed).await else {
            self.beyond.extend(beyond);
            let taken = taken.into_iter().map(|(bucket, _)| bucket);
            self.buckets.extend(taken.map(|bucket| (Arc::clone(&bucket.name), bucket)));
            return Ok(None);
        };
        // An assignment lasts from when it is sent.
        let (now, mut actions) = (Instant::now(), Vec::with_capacity(taken.len()));
        for ((mut bucket, _), change) in taken.into_iter().zip(changes) {
            let told = change.map(|change| bucket.tell(service, change, now));
            let told = told.into_iter().flatten();
            actions.extend(told.map(|told| action(BucketName::clone(&bucket.name), told)));
            if bucket.is_over() {
                (self.count, self.name_bytes) =
                    (self.count - 1, self.name_bytes - bytes_of(&bucket.name));
            } else {
                self.buckets.insert(Arc::clone(&bucket.name), bucket);
            }
        }
        let abandon = BucketAction::AbandonAction(AbandonAction {});
        // Only of names that the proxy could read.
        let given_up = beyond.into_iter().map(|(name, _)| name).filter(bucket::is_text);
        actions.extend(given_up.map(|name| action(name, abandon)));
        Ok(Some(actions))
    }

    /// Charges the calls that were reported of buckets beyond the bounds of the stream.
    async fn count_beyond(&self, beyond: Vec<(BucketName, u64)>) {
        let (limiter, domain) = (&*self.service.limiter, &*self.domain);
        let count = beyond.iter().map(|(name, calls)| bucket::count(limiter, domain, name, *calls));
        self.service.quotas.in_turn(&self.turns, pending(), join_all(count)).await;
    }

    /// Charges what was reported, and was not charged while the stream was open.
    async fn end(mut self) {
        let (buckets, beyond) = (mem::take(&mut self.buckets), mem::take(&mut self.beyond));
        let (limiter, domain) = (&*self.service.limiter, &*self.domain);
        let unsettled = buckets.into_values().filter(Bucket::is_unsettled);
        let mut unsettled: Vec<_> = unsettled.take(ENDING_BUCKETS_MAX).collect();
        if unsettled.is_empty() && beyond.is_empty() {
            return;
        }
        let Ok(_ending) = self.service.quotas.ending.try_acquire() else { return };
        while !unsettled.is_empty() {
            let some = unsettled.drain(..unsettled.len().min(TURN_BUCKETS));
            let ends = join_all(some.map(|bucket| bucket.end(limiter, domain)));
            self.service.quotas.in_turn(&self.turns, pending(), ends).await;
        }
        self.count_beyond(beyond).await;
    }

    /// Takes a bucket out, or makes it.
    ///
    /// # Errors
    /// The name again, if the connection may hold no more memory.
    fn take(&mut self, name: BucketName) -> Result<Bucket, BucketName> {
        if let Some(bucket) = self.buckets.remove(&name) {
            return Ok(bucket);
        }
        let bytes = bytes_of(&name);
        if bytes > NAME_BYTES_MAX
            || self.count >= BUCKETS_MAX
            || self.name_bytes + bytes > NAMES_BYTES_MAX
        {
            return Err(name);
        }
        let own = memory_of(&name);
        let bucket = Bucket::new(self.service, &self.memory, &self.domain, name, own)?;
        (self.count, self.name_bytes) = (self.count + 1, self.name_bytes + bytes);
        Ok(bucket)
    }

    /// What the next turn follows.
    async fn next_turn(
        &mut self,
        reports: &mut Reports,
        held: &mut HeldBytes,
    ) -> Result<BTreeMap<BucketName, Usage>, Refusal> {
        let (mut usages, mut bytes) = (BTreeMap::<_, Usage>::new(), 0);
        while usages.len() < TURN_BUCKETS && bytes < TURN_BYTES {
            let Some(report) = reports.unread.front() else { break };
            if !reports.is_begun {
                self.begin(report.clone()).await?;
                reports.is_begun = true;
            }
            let Some((number, written)) = reports.next_field().await? else {
                reports.unread.pop_front();
                (reports.index, reports.is_begun) = (0, false);
                continue;
            };
            if number != USAGES {
                continue;
            }
            let index = reports.index;
            reports.index += 1;
            held.add(COPIES * written.len())?;
            let is_long = written.len() > LONG_USAGE_BYTES;
            let decoding = move || usage(&written, index);
            let (name, usage) = match is_long {
                false => decoding(),
                true => task::spawn_blocking(decoding).await.unwrap_or(Err(Refusal::Panicked)),
            }?;
            if let Some(known) = usages.get_mut(&name) {
                known.add(usage);
                continue;
            }
            let own = memory_of(&name);
            held.add(own)?;
            bytes += own;
            usages.insert(name, usage);
        }
        Ok(usages)
    }

    /// Takes the domain of a report.
    async fn begin(&mut self, report: Bytes) -> Result<(), Refusal> {
        let (mut fields, mut domain) = (Reports::new(vec![report]), Bytes::new());
        while let Some((number, value)) = fields.next_field().await? {
            if number == DOMAIN {
                domain = value;
            }
        }
        let not_text = |_| Refusal::Malformed("domain: must be UTF-8".to_owned());
        let domain = str::from_utf8(&domain).map_err(not_text)?;
        if domain.is_empty() {
            return Err(Refusal::Invalid("domain: must not be empty".to_owned()));
        }
        if self.domain.is_empty() {
            domain.clone_into(&mut self.domain);
        } else if self.domain != domain {
            return Err(Refusal::Invalid("domain: must stay the same on a stream".to_owned()));
        }
        // Rights may have changed since the last report.
        Ok(self.service.check_domain(self.identity, &self.domain)?)
    }
}

/// The bucket of the usage with this number, and what is reported of it.
fn usage(written: &[u8], index: usize) -> Result<(BucketName, Usage), Refusal> {
    let invalid = |problem: String| {
        let field = format!("bucket_quota_usages[{index}].bucket_id.bucket");
        Refusal::Invalid(format!("{field}: {problem}"))
    };
    let entries = repeated(written, BUCKET_ID).flat_map(|id| repeated(id, BUCKET)).count();
    if !(1..=ENTRIES_MAX).contains(&entries) {
        return Err(invalid(format!("{entries} entries are not from 1 to {ENTRIES_MAX}")));
    }
    let malformed = |error: DecodeError| Refusal::Malformed(error.to_string());
    let written = BucketQuotaUsage::decode(written).map_err(malformed)?;
    let name = written.bucket_id.unwrap_or_default().bucket;
    let is_no_key = |key: &&String| key.is_empty() || Parameters::is_parameter_key(key);
    if let Some(key) = name.keys().find(is_no_key) {
        return Err(invalid(format!("{key:?} must not be a key")));
    }
    let elapsed = written.time_elapsed.and_then(|elapsed| elapsed.try_into().ok());
    let usage = Usage {
        allowed: written.num_requests_allowed,
        denied: written.num_requests_denied,
        elapsed: elapsed.unwrap_or_default(),
        is_first: elapsed.is_none_or(|elapsed: Duration| elapsed.is_zero()),
    };
    Ok((name, usage))
}

fn bytes_of(name: &BucketName) -> usize {
    name.iter().map(|(key, value)| key.len() + value.len()).sum()
}

/// About what a name takes, in bytes.
fn memory_of(name: &BucketName) -> usize {
    2 * bytes_of(name) + PAIR_BYTES * name.len()
}

fn action(name: BucketName, action: BucketAction) -> Action {
    Action { bucket_id: Some(BucketId { bucket: name }), bucket_action: Some(action) }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        pin::pin,
    };

    use super::*;
    use crate::{
        app,
        edge::arriving::ArrivalBudget,
        engine::time::Timestamp,
        overrides::Overrides,
        rls::pb::quota::RateLimitQuotaUsageReports,
        rules::{self, LoadOptions, Rules},
        settings::{self, Environment},
        store::{Store, memory::MemoryStore},
        telemetry::Telemetry,
    };

    const RULES: &str = "{ domain: shop, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 9 } }] }";

    fn service() -> Service {
        let settings = settings::resolve(&BTreeMap::new(), &Environment::default()).settings;
        let telemetry = Telemetry::start(&settings.telemetry.export, app::instruments()).unwrap();
        let rules = rules::parse("rules", RULES, LoadOptions::default()).unwrap();
        let (rules, store) =
            (Arc::new(Rules::new(rules)), MemoryStore::new(|| Timestamp::from_millis(0)));
        let store = Arc::new(Store::Memory(store));
        let overrides = Arc::new(Overrides::new(Arc::clone(&store)));
        app::service(&settings, &telemetry, rules, overrides, store, None, None)
    }

    /// A report of the first call of each of these users.
    fn report(users: impl Iterator<Item = usize>) -> Reports {
        let usage = |user: usize| BucketQuotaUsage {
            bucket_id: Some(BucketId {
                bucket: BTreeMap::from([("user".to_owned(), user.to_string().into())]),
            }),
            num_requests_allowed: 1,
            ..BucketQuotaUsage::default()
        };
        let usages = users.map(usage).collect();
        let report =
            RateLimitQuotaUsageReports { domain: "shop".to_owned(), bucket_quota_usages: usages };
        Reports::new(vec![report.encode_to_vec().into()])
    }

    #[tokio::test]
    async fn the_buckets_of_a_connection_are_counted_to_its_bound_and_those_beyond_are_given_up() {
        const MOST: usize = 1 << 20;
        let (service, all) = (service(), ArrivalBudget::new(usize::MAX));
        let connection = all.connection(MOST);
        let mut streams = [(); 2].map(|()| QuotaStream {
            memory: Arc::clone(&connection),
            ..QuotaStream::of_anyone(&service)
        });
        let mut kept = 0;
        for (stream, users) in streams.iter_mut().zip([0..250, 250..1_000]) {
            let (mut reports, mut given_up) = (report(users.clone()), 0);
            while let Some(actions) = stream.answer(&mut reports, pending()).await.unwrap() {
                let abandoned = |action: &&Action| {
                    matches!(action.bucket_action, Some(BucketAction::AbandonAction(_)))
                };
                given_up += actions.iter().filter(abandoned).count();
            }
            kept += stream.buckets.len();
            assert_eq!(stream.buckets.len() + given_up, users.len());
        }
        // Each has about 3 KiB, with its assignment.
        assert!((250..350).contains(&kept), "{kept}");
        drop(streams);
        assert_eq!(connection.held(), 0, "the streams have ended");
    }

    /// `claims` has how many turns a bucket waits for.
    #[tokio::test]
    async fn a_turn_is_a_few_buckets_however_many_are_reported() {
        let service = service();
        let mut stream = QuotaStream::of_anyone(&service);
        stream.answer(&mut report(0..5_000), pending()).await.unwrap().unwrap();
        assert_eq!(stream.buckets.len(), 16);
    }

    #[tokio::test]
    async fn a_report_of_junk_lets_other_calls_in_between_each_part_of_it() {
        let service = service();
        // Two bytes that are no usage: a number, an empty text, a group without fields.
        for junk in [[0x18, 1], [0x1a, 0], [0x1b, 0x1c]] {
            const FIELDS: usize = 100_000;
            let junk = junk.repeat(FIELDS);
            let begins = [&b"\x0a\x04shop"[..], &junk].concat();
            let (mut stream, mut polls) = (QuotaStream::of_anyone(&service), 0);
            let mut reports = Reports::new(vec![begins.into()]);
            let mut answer = pin!(stream.answer(&mut reports, pending()));
            let answered = poll_fn(|context| {
                polls += 1;
                answer.as_mut().poll(context)
            });
            assert!(answered.await.unwrap().is_none());
            // It is read for its domain, and then for its usages.
            let expected = 2 * FIELDS / FIELDS_AT_A_TIME;
            assert!(polls >= expected, "{polls} of {expected}");
        }
    }
}
