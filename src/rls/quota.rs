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
    mem,
    sync::Arc,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::Response;
use hyper::body::Incoming;
use prost::{DecodeError, Message as _};
use tokio::{
    select, task,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use self::bucket::{Bucket, Change, Usage};
use super::{
    claims::{AT_A_TIME, BucketName, Told},
    framing::{self, AnswerBody, Answers, Messages},
    pb::quota::{
        BucketId, RateLimitQuotaResponse as Answer,
        rate_limit_quota_response::{
            BucketAction as Action,
            bucket_action::{AbandonAction, BucketAction},
        },
        rate_limit_quota_usage_reports::BucketQuotaUsage,
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

/// Most buckets of a stream. A further one is given up, so that the proxy forgets it.
const BUCKETS_MAX: usize = 10_000;

/// The longest name of a bucket, and of all buckets of a stream, in bytes of keys and values: a proxy repeats all names in each
/// report.
const NAME_BYTES_MAX: usize = 1 << 10;
const NAMES_BYTES_MAX: usize = 2 << 20;

/// The largest report: a proxy that was without us for a while may have many buckets.
const REPORT_BYTES_MAX: usize = 32 << 20;

/// How many usages are read at a time.
const USAGES_AT_A_TIME: usize = 1_000;

/// Most buckets beyond the bounds that are given up after a report; the rest is after the next one.
const BEYOND_MAX: usize = 20_000;

/// Most reports that are answered as one.
const REPORTS_MAX: usize = 1_000;

/// Most actions of an answer.
const ACTIONS_MAX: usize = 1_000;

/// The field numbers of the usages of a report, of the id of their bucket, and of its entries.
const USAGES: u32 = 2;
const BUCKET_ID: u32 = 1;
const BUCKET: u32 = 1;

/// What all reports have beside the usages, which are decoded one by one.
#[derive(Clone, PartialEq, prost::Message)]
#[prost(skip_debug)]
struct Head {
    #[prost(string, tag = "1")]
    domain: String,
}

/// What reports say of each bucket.
#[derive(Default)]
struct Reported {
    usages: BTreeMap<BucketName, Usage>,
    /// Of buckets for which the stream has no room.
    beyond: Vec<(BucketName, Usage)>,
    /// How many buckets the stream will have, and the bytes of their names.
    buckets: usize,
    name_bytes: usize,
}

/// What is assigned to one proxy, for one domain.
pub struct QuotaStream<'service> {
    service: &'service Service,
    memory: Arc<ConnectionBudget>,
    identity: Option<&'service Identity>,
    domain: String,
    /// Of all buckets.
    name_bytes: usize,
    buckets: HashMap<Arc<BucketName>, Bucket>,
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
            self.limiter.prepare_tokens();
            let (memory, identity) = (Arc::clone(&client.memory), client.identity.as_ref());
            let mut stream = QuotaStream { memory, identity, ..QuotaStream::of_anyone(&self) };
            stream.answer_all(body, &client.ending, &answers).await
        })
    }
}

impl<'service> QuotaStream<'service> {
    /// The stream of a proxy that may be anyone.
    pub fn of_anyone(service: &'service Service) -> Self {
        let (memory, domain) = (service.memory_of_a_connection(), String::new());
        Self { service, memory, identity: None, domain, name_bytes: 0, buckets: HashMap::new() }
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
                    None => std::future::pending().await,
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
            let (mut reports, mut has_ended) = (Vec::from_iter(first), false);
            while !reports.is_empty() && reports.len() < REPORTS_MAX && !has_ended {
                match messages.next().now_or_never() {
                    Some(message) => match self.received(message)? {
                        Some(message) => reports.push(message),
                        None => has_ended = true,
                    },
                    None => break,
                }
            }
            let answered = async {
                let began = Instant::now();
                let (reports, held): (Vec<_>, Vec<_>) = reports.into_iter().unzip();
                let count = reports.len();
                let answer = caught(Box::pin(self.answer(reports))).await;
                let answer = answer.unwrap_or(Err(Refusal::Panicked));
                drop(held);
                let code = answer.as_ref().map_or_else(|refusal| refusal.codes().0, |_| Code::Ok);
                (0..count).for_each(|_| service.limiter.metrics().call_of(METHOD, began, code));
                let mut actions = answer.map_err(|refusal| refusal.status())?;
                while !actions.is_empty() {
                    let others = actions.split_off(actions.len().min(ACTIONS_MAX));
                    let answer = Answer { bucket_action: mem::replace(&mut actions, others) };
                    let answer = framing::framed(&answer, &memory);
                    let answer = answer.map_err(|spent| Refusal::Busy(spent).status())?;
                    if answers.send(Ok(answer)).await.is_err() {
                        return Ok(false);
                    }
                }
                Ok::<_, Status>(true)
            };
            if !messages.read_during(answered).await? || has_ended {
                return Ok(());
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

    /// Follows these reports, and what has become due; returns what the proxy is to do.
    ///
    /// # Errors
    /// If a report cannot be decoded, or one of its fields is outside its bounds.
    pub async fn answer(&mut self, reports: Vec<Bytes>) -> Result<Vec<Action>, Refusal> {
        let now = Instant::now();
        let Reported { usages, mut beyond, .. } = self.read(&reports).await?;
        let mut taken = Vec::with_capacity(usages.len());
        for (name, usage) in usages {
            match self.take(name) {
                Ok(bucket) => taken.push((bucket, Some(usage))),
                Err(name) => beyond.push((name, usage)),
            }
        }
        let is_due = |bucket: &Bucket| bucket.due().is_some_and(|due| due <= now);
        let due = self.buckets.extract_if(|_, bucket| is_due(bucket));
        taken.extend(due.map(|(_, bucket)| (bucket, None)));
        let (service, domain) = (self.service, &*self.domain);
        let followed = stream::iter(taken).map(async |(mut bucket, usage)| {
            let change = service.quotas.in_turn(bucket.follow(service, domain, usage)).await;
            (bucket, change)
        });
        let followed: Vec<_> = followed.buffer_unordered(AT_A_TIME).collect().await;
        let given_up = stream::iter(beyond).map(async |(name, usage): (BucketName, Usage)| {
            let counted = bucket::count(&service.limiter, domain, &name, usage.allowed);
            service.quotas.in_turn(counted).await;
            service.quotas.count(Told::Abandoned, 1);
            name
        });
        let given_up: Vec<_> = given_up.buffer_unordered(AT_A_TIME).collect().await;
        // An assignment lasts from when it is sent.
        let (now, mut actions) = (Instant::now(), Vec::with_capacity(followed.len()));
        for (mut bucket, change) in followed {
            let is_given_up = matches!(change, Some(Change::Abandon));
            let told = change.map(|change| bucket.tell(service, change, now));
            let told = told.into_iter().flatten();
            actions.extend(told.map(|told| action(BucketName::clone(&bucket.name), told)));
            if is_given_up {
                self.name_bytes -= bytes_of(&bucket.name);
            } else {
                self.buckets.insert(Arc::clone(&bucket.name), bucket);
            }
        }
        let abandon = BucketAction::AbandonAction(AbandonAction {});
        // Only of names that the proxy could read.
        let given_up = given_up.into_iter().filter(bucket::is_text);
        actions.extend(given_up.map(|name| action(name, abandon)));
        Ok(actions)
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
        let bucket = Bucket::new(self.service, &self.memory, &self.domain, name, bytes)?;
        self.name_bytes += bytes;
        Ok(bucket)
    }

    async fn read(&mut self, reports: &[Bytes]) -> Result<Reported, Refusal> {
        let (buckets, name_bytes) = (self.buckets.len(), self.name_bytes);
        let mut reported = Reported { buckets, name_bytes, ..Reported::default() };
        for report in reports {
            self.read_one(report, &mut reported).await?;
        }
        Ok(reported)
    }

    async fn read_one(&mut self, report: &[u8], to: &mut Reported) -> Result<(), Refusal> {
        let malformed = |error: DecodeError| Refusal::Malformed(error.to_string());
        let Head { domain } = Head::decode(report).map_err(malformed)?;
        if domain.is_empty() {
            return Err(Refusal::Invalid("domain: must not be empty".to_owned()));
        }
        if self.domain.is_empty() {
            self.domain = domain;
        } else if self.domain != domain {
            return Err(Refusal::Invalid("domain: must stay the same on a stream".to_owned()));
        }
        // Rights may have changed since the last report.
        self.service.check_domain(self.identity, &self.domain)?;
        for (index, written) in repeated(report, USAGES).enumerate() {
            if index % USAGES_AT_A_TIME == 0 {
                // The calls of others come in between.
                task::yield_now().await;
            }
            let invalid = |problem: String| {
                let field = format!("bucket_quota_usages[{index}].bucket_id.bucket");
                Refusal::Invalid(format!("{field}: {problem}"))
            };
            let entries = repeated(written, BUCKET_ID).flat_map(|id| repeated(id, BUCKET)).count();
            if !(1..=ENTRIES_MAX).contains(&entries) {
                let bounds = format!("{entries} entries are not from 1 to {ENTRIES_MAX}");
                return Err(invalid(bounds));
            }
            let written = BucketQuotaUsage::decode(written).map_err(malformed)?;
            let name = written.bucket_id.unwrap_or_default().bucket;
            let is_no_key = |key: &&String| key.is_empty() || Parameters::is_parameter_key(key);
            if let Some(key) = name.keys().find(is_no_key) {
                return Err(invalid(format!("{key:?} must not be a key")));
            }
            let usage = Usage {
                allowed: written.num_requests_allowed,
                denied: written.num_requests_denied,
                elapsed: written
                    .time_elapsed
                    .and_then(|elapsed| elapsed.try_into().ok())
                    .unwrap_or_default(),
            };
            if !self.buckets.contains_key(&name) && !to.usages.contains_key(&name) {
                let own = bytes_of(&name);
                if own > NAME_BYTES_MAX
                    || to.buckets == BUCKETS_MAX
                    || to.name_bytes + own > NAMES_BYTES_MAX
                {
                    if to.beyond.len() < BEYOND_MAX {
                        to.beyond.push((name, usage));
                    }
                    continue;
                }
                (to.buckets, to.name_bytes) = (to.buckets + 1, to.name_bytes + own);
            }
            to.usages.entry(name).or_default().add(usage);
        }
        Ok(())
    }
}

fn bytes_of(name: &BucketName) -> usize {
    name.iter().map(|(key, value)| key.len() + value.len()).sum()
}

fn action(name: BucketName, action: BucketAction) -> Action {
    Action { bucket_id: Some(BucketId { bucket: name }), bucket_action: Some(action) }
}
