//! The messages of `tollkeeper.v1` in protobuf's JSON, in which numbers are numbers: all are below 2^53.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    batch::{ITEMS_MAX, check_items},
    decode::{self, check_kinds},
    encode,
};
use crate::{
    edge::arriving::{BudgetSpent, ConnectionBudget, HeldBytes},
    engine::request::{ENTRIES_MAX, Hits, Request},
    members::present,
    net::{
        grpc::{ServedMethod, status_name},
        tls::server::Identity,
    },
    rls::{
        decode::Bounds,
        json::{self, AtMost, DESCRIPTORS_MAX, JsonDescriptor, MapAtMost, Object, Scalar},
        pb::{
            google::rpc,
            v1::{self, call::Mode},
        },
        refusal::Refusal,
        service::{BatchContext, Service},
    },
    store::guard::Arrival,
};

/// The request of any method. Its items are read one by one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonBatch<'body> {
    domain: Option<String>,
    #[serde(borrow)]
    calls: Option<Items<'body>>,
    #[serde(borrow)]
    commits: Option<Items<'body>>,
    #[serde(borrow)]
    renewals: Option<Items<'body>>,
}

type Items<'body> = AtMost<ITEMS_MAX, &'body RawValue>;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonCall {
    descriptors: Option<AtMost<DESCRIPTORS_MAX, Object<JsonDescriptor>>>,
    mode: Option<Scalar>,
    hits: Option<Scalar>,
    #[serde(alias = "hitsByKind")]
    hits_by_kind: Option<MapAtMost<ENTRIES_MAX, Scalar>>,
    id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonCommit {
    hold: Option<String>,
    used: Option<Scalar>,
    #[serde(alias = "usedByKind")]
    used_by_kind: Option<MapAtMost<ENTRIES_MAX, Scalar>>,
    end: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRenewal {
    commit: Option<Object<JsonCommit>>,
    call: Option<Object<JsonCall>>,
}

/// A request whose text has been read. Its items are in Protobuf, which takes no more memory than their text.
pub struct JsonItems {
    domain: String,
    /// Whether a call reads counters, and so may wait for the turns of others that read.
    pub reads: bool,
    items: Vec<Result<Bytes, Refusal>>,
}

impl Service {
    /// Reads a request of one of the methods of `tollkeeper.v1`.
    pub fn read_json(&self, method: ServedMethod, body: &[u8]) -> Result<JsonItems, Refusal> {
        let Object::<JsonBatch<'_>>(batch) = serde_json::from_slice(body)
            .map_err(|error| Refusal::Invalid(json::problem(&error)))?;
        let (domain, bounds) = (batch.domain.unwrap_or_default(), self.bounds);
        let lists = [
            (ServedMethod::Decide, "calls", batch.calls),
            (ServedMethod::Commit, "commits", batch.commits),
            (ServedMethod::Renew, "renewals", batch.renewals),
        ];
        let mut items = Vec::new();
        for (of, field, list) in lists {
            match list {
                _ if of == method => {
                    let list = list.unwrap_or_default();
                    check_items(field, list.count, &domain)?;
                    items = list.first;
                }
                Some(_) => return Err(Refusal::Invalid(format!("{field}: of another method"))),
                None => {}
            }
        }
        let mut reads = false;
        let in_protobuf = |one: &RawValue| match method {
            ServedMethod::Commit => Ok(commit(item(one)?)?.encode_to_vec()),
            ServedMethod::Renew => Ok(renewal(item(one)?, bounds)?.encode_to_vec()),
            _ => {
                let call = call(item(one)?, bounds)?;
                reads |= call.mode() == Mode::Read;
                Ok(call.encode_to_vec())
            }
        };
        let items = items.into_iter().map(in_protobuf).map(|one| one.map(Bytes::from)).collect();
        Ok(JsonItems { domain, reads, items })
    }

    /// The answer to a request of this method.
    pub async fn answer_json(
        &self,
        method: ServedMethod,
        JsonItems { domain, items, .. }: JsonItems,
        memory: &Arc<ConnectionBudget>,
        context: BatchContext<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let (count, items) = (items.len(), items.into_iter());
        let name = if method == ServedMethod::Decide { "verdicts" } else { "results" };
        let mut answers = JsonAnswers::new(name, memory.reserve());
        let taken = match method {
            ServedMethod::Commit => {
                let items = items.map(|one| decode::commit(one?));
                let to = |one: Vec<u8>| answers.add(&commit_result(&read(&one)));
                self.answer_each(&domain, count, items, context, to).await?
            }
            ServedMethod::Renew => {
                let items = items.map(|one| decode::renewal(one?, self.bounds));
                let to = |one: Vec<u8>| answers.add(&renew_result(&read(&one)));
                self.answer_each(&domain, count, items, context, to).await?
            }
            _ => {
                let items =
                    items.map(|one| one.and_then(|one| decode::call(&one, &one, self.bounds)));
                let to = |one: Vec<u8>| answers.add(&verdict(&read(&one)));
                self.answer_each(&domain, count, items, context, to).await?
            }
        };
        let answer = answers.end();
        if answer.is_err() {
            self.limiter.give_back(taken).await;
        }
        answer
    }
}

/// The answers to the items of a request, which count as they are written.
struct JsonAnswers {
    text: Vec<u8>,
    held: HeldBytes,
    spent: Result<(), BudgetSpent>,
}

impl JsonAnswers {
    fn new(name: &str, held: HeldBytes) -> Self {
        Self { text: format!("{{\"{name}\":[").into_bytes(), held, spent: Ok(()) }
    }

    fn add(&mut self, answer: &Value) {
        let answer = answer.to_string();
        self.spent = self.spent.and_then(|()| self.held.add(answer.len()));
        if self.spent.is_ok() {
            if self.text.last() != Some(&b'[') {
                self.text.push(b',');
            }
            self.text.extend_from_slice(answer.as_bytes());
        }
    }

    fn end(mut self) -> Result<Vec<u8>, Refusal> {
        self.spent?;
        self.text.extend_from_slice(b"]}");
        Ok(self.text)
    }
}

fn item<'item, T: Deserialize<'item>>(written: &'item RawValue) -> Result<T, Refusal> {
    let read = serde_json::from_str(written.get());
    let Object(item) = read.map_err(|error| Refusal::Malformed(json::problem(&error)))?;
    Ok(item)
}

impl Service {
    /// The counters of a call of mode READ, as its verdict.
    ///
    /// # Errors
    /// If the client may not use the domain, the call exceeds a bound, or the store gives no answer.
    pub(crate) async fn usage_json(
        &self,
        request: &Request,
        client: Option<&Identity>,
        arrival: Arrival,
    ) -> Result<Value, Refusal> {
        self.check_domain(client, &request.domain)?;
        self.bounds.check_descriptors(request.descriptors.len())?;
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            self.bounds.check_entries(index, descriptor.entries.len())?;
        }
        let usage = self.limiter.usage(&self.limiter.deciding(), request, arrival).await?;
        Ok(verdict(&read(&encode::usage(usage))))
    }
}

fn call(written: JsonCall, bounds: Bounds) -> Result<v1::Call, Refusal> {
    let mode = match &written.mode {
        None => Ok(0),
        Some(Scalar::Text(name)) => Mode::from_str_name(name).map(i32::from).ok_or(name.clone()),
        Some(Scalar::Number(number)) => {
            let mode = number.as_i64().and_then(|one| i32::try_from(one).ok());
            mode.ok_or_else(|| number.to_string())
        }
    };
    Ok(v1::Call {
        descriptors: json::descriptors(written.descriptors, bounds)?,
        mode: mode.map_err(|written| decode::unknown_mode(&written))?,
        hits: json::number(written.hits, "hits", Hits::MAX)?,
        hits_by_kind: kinds(written.hits_by_kind, "hits_by_kind")?,
        id: written.id.unwrap_or_default(),
    })
}

fn commit(written: JsonCommit) -> Result<v1::Commit, Refusal> {
    Ok(v1::Commit {
        hold: written.hold.unwrap_or_default(),
        used: json::number(written.used, "used", Hits::MAX)?,
        used_by_kind: kinds(written.used_by_kind, "used_by_kind")?,
        end: written.end.unwrap_or_default(),
    })
}

fn kinds(
    written: Option<MapAtMost<ENTRIES_MAX, Scalar>>,
    field: &str,
) -> Result<BTreeMap<String, u64>, Refusal> {
    let written = written.map_or_else(AtMost::default, |MapAtMost(kinds)| kinds);
    check_kinds(field, written.count)?;
    let number = |(kind, number)| {
        let number = json::number(Some(number), field, Hits::MAX)?;
        Ok((kind, number.unwrap_or(0)))
    };
    written.first.into_iter().map(number).collect()
}

fn renewal(written: JsonRenewal, bounds: Bounds) -> Result<v1::Renewal, Refusal> {
    let Object(of_commit) = written.commit.unwrap_or(Object(JsonCommit::default()));
    let Object(of_call) = written.call.unwrap_or(Object(JsonCall::default()));
    Ok(v1::Renewal { commit: Some(commit(of_commit)?), call: Some(call(of_call, bounds)?) })
}

fn read<M: Message + Default>(answer: &[u8]) -> M {
    M::decode(answer).unwrap_or_default()
}

pub(super) fn verdict(verdict: &v1::Verdict) -> Value {
    if let Some(error) = &verdict.error {
        return json!({ "error": status_in_json(error) });
    }
    present(json!({
        "code": verdict.code().as_str_name(),
        "statuses": verdict.statuses.iter().map(status).collect::<Value>(),
        "hold": Some(&verdict.hold).filter(|hold| !hold.is_empty()),
        "hits": Some(verdict.hits).filter(|hits| *hits > 0),
        "spendWithin": verdict.spend_within.map(|time| time.to_string()),
        "domainUnknown": verdict.domain_unknown.then_some(true),
    }))
}

fn status(status: &v1::Status) -> Value {
    let limit = |limit: &v1::Limit| {
        json!({
            "name": limit.name,
            "requestsPerUnit": limit.requests_per_unit,
            "unit": limit.unit().as_str_name(),
            "unitMultiplier": limit.unit_multiplier,
        })
    };
    let current_limit = status.current_limit.as_ref();
    present(json!({
        "code": status.code().as_str_name(),
        "descriptor": status.descriptor_index,
        "rule": status.rule,
        "currentLimit": current_limit.map(limit),
        "limitRemaining": current_limit.map(|_| status.limit_remaining),
        "durationUntilReset": status.duration_until_reset.map(|reset| reset.to_string()),
        "used": status.used,
        "held": status.held,
    }))
}

fn commit_result(result: &v1::CommitResult) -> Value {
    if let Some(error) = &result.error {
        return json!({ "error": status_in_json(error) });
    }
    let charge = |charge: &v1::CommittedCharge| {
        let outcome = charge.outcome().as_str_name();
        json!({ "outcome": outcome, "held": charge.held, "used": charge.used })
    };
    json!({ "charges": result.charges.iter().map(charge).collect::<Value>() })
}

fn renew_result(result: &v1::RenewResult) -> Value {
    json!({
        "commit": result.commit.as_ref().map(commit_result),
        "verdict": result.verdict.as_ref().map(verdict),
    })
}

/// The code by its name, as in the refusal of a whole request.
fn status_in_json(error: &rpc::Status) -> Value {
    json!({ "code": status_name(error.code.into()), "message": error.message })
}
