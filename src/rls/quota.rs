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
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Response;
use hyper::{body::Incoming, rt::Executor as _};
use prost::Message as _;
use tokio::{
    select,
    sync::mpsc,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use self::bucket::{Bucket, Usage};
use super::{
    claims::BucketName,
    framing::{self, AnswerBody, Messages, WAITING_CALL_BYTES},
    pb::quota::{
        BucketId, RateLimitQuotaResponse as Answer, RateLimitQuotaUsageReports as Reports,
        rate_limit_quota_response::{
            BucketAction as Action,
            bucket_action::{AbandonAction, BucketAction},
        },
    },
    precheck::repeated,
    refusal::Refusal,
    service::{ConnectedClient, Service},
};
use crate::{
    edge::{arriving::ConnectionBudget, panics::caught},
    engine::{parameters::Parameters, request::ENTRIES_MAX},
    net::{grpc::ServedMethod, tls::server::Identity},
};

const METHOD: ServedMethod = ServedMethod::StreamRateLimitQuotas;

/// Answers that wait to be written, before the next report is read.
const ANSWERS_MAX: usize = 2;

/// Most buckets of a stream. A further one is given up, so that the proxy forgets it.
const BUCKETS_MAX: usize = 10_000;

/// How many buckets get their assignments at a time.
const AT_A_TIME: usize = 64;

/// Most usages of a report: those of all buckets, and of some that are given up.
const USAGES_MAX: usize = 2 * BUCKETS_MAX;

/// The field numbers of the usages of a report, of the id of their bucket, and of its entries.
const USAGES: u32 = 2;
const BUCKET_ID: u32 = 1;
const BUCKET: u32 = 1;

/// What is assigned to one proxy, for one domain.
pub struct QuotaStream<'service> {
    service: &'service Service,
    memory: Arc<ConnectionBudget>,
    identity: Option<&'service Identity>,
    domain: String,
    buckets: HashMap<Arc<BucketName>, Bucket>,
}

impl Service {
    /// Answers a call of `StreamRateLimitQuotas`. The connection owns its task.
    pub(super) fn answer_quotas(
        self: Arc<Self>,
        body: Incoming,
        client: Arc<ConnectedClient>,
    ) -> Response<AnswerBody> {
        let (answers, to_write) = mpsc::channel(ANSWERS_MAX);
        let calls = client.calls.clone();
        calls.execute(async move {
            self.limiter.prepare_tokens();
            let (memory, identity) = (Arc::clone(&client.memory), client.identity.as_ref());
            let mut stream = QuotaStream { memory, identity, ..QuotaStream::of_anyone(&self) };
            if let Err(refused) = stream.answer_all(body, &client.ending, &answers).await {
                drop(answers.send(Err(refused)).await);
            }
        });
        framing::answer(AnswerBody::Stream(to_write))
    }
}

impl<'service> QuotaStream<'service> {
    /// The stream of a proxy that may be anyone.
    pub fn of_anyone(service: &'service Service) -> Self {
        let (memory, domain) = (service.memory_of_a_connection(), String::new());
        Self { service, memory, identity: None, domain, buckets: HashMap::new() }
    }

    async fn answer_all(
        &mut self,
        body: Incoming,
        ending: &CancellationToken,
        answers: &mpsc::Sender<Result<Bytes, Status>>,
    ) -> Result<(), Status> {
        let (service, memory) = (self.service, Arc::clone(&self.memory));
        let mut waiting = memory.reserve();
        let held = waiting.add(WAITING_CALL_BYTES);
        held.map_err(|spent| Refusal::Busy(spent).status())?;
        let mut messages = Messages::new(body, service.message_bytes_max, &memory);
        loop {
            let due = self.due();
            let renewal = async {
                match due {
                    Some(due) => time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let message = select! {
                biased;
                () = ending.cancelled() => {
                    return Err(Status::unavailable("the connection ends; open another stream"));
                }
                () = renewal => None,
                message = messages.next() => match message.map_err(|refusal| refusal.status())? {
                    Some(message) => Some(message),
                    None => return Ok(()),
                },
            };
            let answered = async {
                let began = Instant::now();
                let is_report = message.is_some();
                let answer = caught(Box::pin(self.answer(message.map(|(message, _held)| message))));
                let answer = answer.await.unwrap_or(Err(Refusal::Panicked));
                let code = answer.as_ref().map_or_else(|refusal| refusal.codes().0, |_| Code::Ok);
                if is_report {
                    service.limiter.metrics().call_of(METHOD, began, code);
                }
                let actions = answer.map_err(|refusal| refusal.status())?;
                if actions.is_empty() {
                    return Ok(true);
                }
                let answer = framing::framed(&Answer { bucket_action: actions }, &memory);
                let answer = answer.map_err(|spent| Refusal::Busy(spent).status())?;
                Ok::<_, Status>(answers.send(Ok(answer)).await.is_ok())
            };
            if !messages.read_during(answered).await? {
                return Ok(());
            }
        }
    }

    /// When assignments are due without a report.
    pub fn due(&self) -> Option<Instant> {
        self.buckets.values().filter_map(Bucket::due).min()
    }

    /// What a report changes, or the time if there is none.
    ///
    /// # Errors
    /// If the report is no such message, or has a field outside of its bound.
    pub async fn answer(&mut self, report: Option<Bytes>) -> Result<Vec<Action>, Refusal> {
        let now = Instant::now();
        let mut actions = Vec::new();
        let taken: Vec<(Bucket, Option<Usage>)> = match report {
            Some(report) => {
                let mut taken = Vec::new();
                for (id, usage) in self.usages(&report)? {
                    match self.buckets.remove(&id).map_or_else(|| self.bucket(id), Ok) {
                        Ok(bucket) => taken.push((bucket, Some(usage))),
                        Err(action) => actions.push(action),
                    }
                }
                taken
            }
            None => {
                let is_due = |bucket: &Bucket| bucket.due().is_some_and(|due| due <= now);
                let due = self.buckets.extract_if(|_, bucket| is_due(bucket));
                due.map(|(_, bucket)| (bucket, None)).collect()
            }
        };
        let (service, domain) = (self.service, &*self.domain);
        let followed = stream::iter(taken).map(async |(mut bucket, usage)| {
            let change = bucket.follow(service, domain, usage).await;
            (bucket, change)
        });
        let followed: Vec<_> = followed.buffer_unordered(AT_A_TIME).collect().await;
        for (bucket, change) in followed {
            actions.extend(change.map(|change| action(BucketName::clone(&bucket.id), change)));
            if !bucket.is_given_up() {
                self.buckets.insert(Arc::clone(&bucket.id), bucket);
            }
        }
        Ok(actions)
    }

    /// A bucket that is new on this stream, or what tells the proxy to forget it.
    fn bucket(&self, id: BucketName) -> Result<Bucket, Action> {
        let bucket = match self.buckets.len() {
            ..BUCKETS_MAX => Bucket::new(self.service, &self.memory, &self.domain, id),
            _ => Err(id),
        };
        bucket.map_err(|id| action(id, BucketAction::AbandonAction(AbandonAction {})))
    }

    /// What a report says of each bucket.
    fn usages(&mut self, report: &[u8]) -> Result<BTreeMap<BucketName, Usage>, Refusal> {
        let usages = repeated(report, USAGES);
        let count = usages.clone().count();
        if !(1..=USAGES_MAX).contains(&count) {
            let bounds = format!("{count} is not from 1 to {USAGES_MAX}");
            return Err(Refusal::Invalid(format!("bucket_quota_usages: {bounds}")));
        }
        let invalid = |index: usize, problem: String| {
            Refusal::Invalid(format!("bucket_quota_usages[{index}].bucket_id.bucket: {problem}"))
        };
        for (index, usage) in usages.enumerate() {
            let entries = repeated(usage, BUCKET_ID).flat_map(|id| repeated(id, BUCKET)).count();
            if !(1..=ENTRIES_MAX).contains(&entries) {
                let bounds = format!("{entries} entries are not from 1 to {ENTRIES_MAX}");
                return Err(invalid(index, bounds));
            }
        }
        let Reports { domain, bucket_quota_usages } =
            Reports::decode(report).map_err(|error| Refusal::Malformed(error.to_string()))?;
        match &*self.domain {
            _ if domain.is_empty() => {
                return Err(Refusal::Invalid("domain: must not be empty".to_owned()));
            }
            "" => {
                self.service.check_domain(self.identity, &domain)?;
                self.domain = domain;
            }
            known if known != domain => {
                return Err(Refusal::Invalid("domain: must stay the same on a stream".to_owned()));
            }
            _ => {}
        }
        let mut usages: BTreeMap<BucketName, Usage> = BTreeMap::new();
        for (index, one) in bucket_quota_usages.into_iter().enumerate() {
            let id = one.bucket_id.unwrap_or_default().bucket;
            let is_no_key = |key: &&String| key.is_empty() || Parameters::is_parameter_key(key);
            if let Some(key) = id.keys().find(is_no_key) {
                return Err(invalid(index, format!("{key:?} must not be a key")));
            }
            let usage = usages.entry(id).or_default();
            usage.has_history |= one.time_elapsed.is_some_and(|elapsed| elapsed.seconds > 0);
            usage.allowed = usage.allowed.saturating_add(one.num_requests_allowed);
            usage.denied = usage.denied.saturating_add(one.num_requests_denied);
        }
        Ok(usages)
    }
}

fn action(id: BucketName, action: BucketAction) -> Action {
    Action { bucket_id: Some(BucketId { bucket: id }), bucket_action: Some(action) }
}
