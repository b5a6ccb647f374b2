//! The messages of `tollkeeper.v1` in protobuf's JSON, in which numbers are numbers: all are below 2^53.

use std::collections::{BTreeMap, HashMap};

use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    batch::{ITEMS_MAX, check_items},
    decode::{ReadCall, check_kinds},
    encode,
};
use crate::{
    engine::request::{Hits, Request},
    net::{
        grpc::{ServedMethod, status_name},
        tls::server::Identity,
    },
    rls::{
        decode::Bounds,
        json::{self, AtMost, DESCRIPTORS_MAX, JsonDescriptor, Object, Scalar},
        pb::{google::rpc, v1},
        refusal::Refusal,
        service::{BatchContext, Service},
    },
};

/// The request of any method.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonBatch {
    domain: Option<String>,
    calls: Option<AtMost<ITEMS_MAX, Object<JsonCall>>>,
    commits: Option<AtMost<ITEMS_MAX, Object<JsonCommit>>>,
    renewals: Option<AtMost<ITEMS_MAX, Object<JsonRenewal>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonCall {
    descriptors: Option<AtMost<DESCRIPTORS_MAX, Object<JsonDescriptor>>>,
    mode: Option<Scalar>,
    hits: Option<Scalar>,
    #[serde(alias = "hitsByKind")]
    hits_by_kind: Option<HashMap<String, Scalar>>,
    id: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonCommit {
    hold: Option<String>,
    used: Option<Scalar>,
    #[serde(alias = "usedByKind")]
    used_by_kind: Option<HashMap<String, Scalar>>,
    end: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRenewal {
    commit: Option<Object<JsonCommit>>,
    call: Option<Object<JsonCall>>,
}

impl Service {
    /// Answers a request of one of the methods of `tollkeeper.v1`.
    ///
    /// # Errors
    /// If the whole request is refused.
    pub async fn answer_json(
        &self,
        method: ServedMethod,
        body: &[u8],
        context: BatchContext<'_>,
    ) -> Result<Value, Refusal> {
        let Object::<JsonBatch>(batch) = serde_json::from_slice(body)
            .map_err(|error| Refusal::Invalid(json::problem(&error)))?;
        let (domain, bounds) = (batch.domain.unwrap_or_default(), self.bounds);
        let counts = [
            (ServedMethod::Decide, "calls", batch.calls.as_ref().map(|list| list.count)),
            (ServedMethod::Commit, "commits", batch.commits.as_ref().map(|list| list.count)),
            (ServedMethod::Renew, "renewals", batch.renewals.as_ref().map(|list| list.count)),
        ];
        for (of, field, count) in counts {
            match count {
                _ if of == method => check_items(field, count.unwrap_or(0), &domain)?,
                Some(_) => return Err(Refusal::Invalid(format!("{field}: of another method"))),
                None => {}
            }
        }
        let (calls, commits) = (batch.calls.unwrap_or_default(), batch.commits.unwrap_or_default());
        let mut answers: Vec<Value> = Vec::new();
        let name = match method {
            ServedMethod::Commit => {
                let items = commits.first.into_iter().map(|Object(one)| commit(one));
                let to = |one: Vec<u8>| answers.push(commit_result(&read(&one)));
                self.answer_each(&domain, items.len(), items, context, to).await?;
                "results"
            }
            ServedMethod::Renew => {
                let renewals = batch.renewals.unwrap_or_default().first.into_iter();
                let items = renewals.map(|Object(one)| renewal(one, bounds));
                let to = |one: Vec<u8>| answers.push(renew_result(&read(&one)));
                self.answer_each(&domain, items.len(), items, context, to).await?;
                "results"
            }
            _ => {
                let items = calls.first.into_iter().map(|Object(one)| call(one, bounds));
                let items = items.map(|item| item.map(Box::new).map(ReadCall::Message));
                let to = |one: Vec<u8>| answers.push(verdict(&read(&one)));
                self.answer_each(&domain, items.len(), items, context, to).await?;
                "verdicts"
            }
        };
        Ok(json!({ name: answers }))
    }
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
    ) -> Result<Value, Refusal> {
        self.check_domain(client, &request.domain)?;
        self.bounds.check_descriptors(request.descriptors.len())?;
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            self.bounds.check_entries(index, descriptor.entries.len())?;
        }
        Ok(verdict(&read(&encode::usage(self.limiter.usage(request).await)?)))
    }
}

fn call(written: JsonCall, bounds: Bounds) -> Result<v1::Call, Refusal> {
    let mode = match written.mode {
        None => Some(0),
        Some(Scalar::Text(name)) => v1::call::Mode::from_str_name(&name).map(i32::from),
        Some(Scalar::Number(number)) => number.as_i64().and_then(|one| i32::try_from(one).ok()),
    };
    Ok(v1::Call {
        descriptors: json::descriptors(written.descriptors, bounds)?,
        mode: mode.ok_or_else(|| Refusal::Invalid("mode: not known".to_owned()))?,
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
    written: Option<HashMap<String, Scalar>>,
    field: &str,
) -> Result<BTreeMap<String, u64>, Refusal> {
    let written = written.unwrap_or_default();
    check_kinds(field, written.len())?;
    let number = |(kind, number)| {
        let number = json::number(Some(number), field, Hits::MAX)?;
        Ok((kind, number.unwrap_or(0)))
    };
    written.into_iter().map(number).collect()
}

fn renewal(written: JsonRenewal, bounds: Bounds) -> Result<v1::Renewal, Refusal> {
    let Object(of_commit) = written.commit.unwrap_or(Object(JsonCommit::default()));
    let Object(of_call) = written.call.unwrap_or(Object(JsonCall::default()));
    Ok(v1::Renewal { commit: Some(commit(of_commit)?), call: Some(call(of_call, bounds)?) })
}

/// An answer, as a value.
fn read<M: Message + Default>(answer: &[u8]) -> M {
    M::decode(answer).unwrap_or_default()
}

/// A verdict in JSON.
pub(super) fn verdict(verdict: &v1::Verdict) -> Value {
    if let Some(error) = &verdict.error {
        return json!({ "error": status_in_json(error) });
    }
    present(json!({
        "code": verdict.code().as_str_name(),
        "statuses": verdict.statuses.iter().map(status).collect::<Value>(),
        "hold": Some(&verdict.hold).filter(|hold| !hold.is_empty()),
        "hits": Some(verdict.hits).filter(|hits| *hits > 0),
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

/// The fields that are not null.
fn present(mut object: Value) -> Value {
    if let Value::Object(fields) = &mut object {
        fields.retain(|_, field| !field.is_null());
    }
    object
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
