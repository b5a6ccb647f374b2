//! Calls, commits and renewals, as items of a batch.

use super::{
    batch::BatchItem,
    decode::{DecodedCall, commit_descriptor},
    encode,
};
use crate::{
    engine::request::Request,
    rls::{
        pb::{
            google::rpc,
            v1::{self, call::Mode},
        },
        refusal::Refusal,
        service::Service,
    },
    store::guard::Arrival,
};

impl BatchItem for v1::Call {
    type Answer = v1::Verdict;

    const FIELD: &'static str = "calls";

    async fn answer(
        self,
        service: &Service,
        domain: &str,
        arrival: Arrival,
    ) -> Result<v1::Verdict, Refusal> {
        let call = DecodedCall::new(self, domain)?;
        service.limiter.metrics().overrides_ignored(call.overrides_ignored);
        if call.mode == Mode::Read {
            return encode::usage(Box::pin(service.limiter.usage(&call.request)).await);
        }
        let decision = service.limiter.decide_as(&call.request, call.meaning, arrival).await?;
        Ok(encode::verdict(decision))
    }

    fn failed(error: rpc::Status) -> v1::Verdict {
        v1::Verdict { error: Some(error), ..v1::Verdict::default() }
    }
}

impl BatchItem for v1::Commit {
    type Answer = v1::CommitResult;

    const FIELD: &'static str = "commits";

    async fn answer(
        self,
        service: &Service,
        domain: &str,
        arrival: Arrival,
    ) -> Result<v1::CommitResult, Refusal> {
        let descriptors = vec![commit_descriptor(self)?];
        let request = Request { domain: domain.to_owned(), descriptors };
        let decision = service.limiter.decide(&request, arrival).await?;
        encode::commit_result(&decision.commits)
    }

    fn failed(error: rpc::Status) -> v1::CommitResult {
        v1::CommitResult { error: Some(error), ..v1::CommitResult::default() }
    }
}

impl BatchItem for v1::Renewal {
    type Answer = v1::RenewResult;

    const FIELD: &'static str = "renewals";

    async fn answer(
        self,
        service: &Service,
        domain: &str,
        arrival: Arrival,
    ) -> Result<v1::RenewResult, Refusal> {
        let in_field = |field| {
            move |refusal: Refusal| match refusal {
                Refusal::Invalid(_) | Refusal::Empty => {
                    Refusal::Invalid(format!("{field}.{refusal}"))
                }
                other => other,
            }
        };
        let call = DecodedCall::new(self.call.unwrap_or_default(), domain);
        let mut call = call.map_err(in_field("call"))?;
        if call.mode != Mode::Take {
            return Err(Refusal::Invalid("call.mode: must be TAKE".to_owned()));
        }
        let commit = commit_descriptor(self.commit.unwrap_or_default());
        call.request.descriptors.push(commit.map_err(in_field("commit"))?);
        service.limiter.metrics().overrides_ignored(call.overrides_ignored);
        let mut decision = service.limiter.decide_as(&call.request, call.meaning, arrival).await?;
        // The last is the status of the commit.
        decision.statuses.pop();
        let commit = encode::commit_result(&decision.commits);
        let commit = commit.unwrap_or_else(|refusal| {
            let (code, message) = (refusal.codes().0.into(), format!("commit.{refusal}"));
            v1::Commit::failed(rpc::Status { code, message })
        });
        Ok(v1::RenewResult { commit: Some(commit), verdict: Some(encode::verdict(decision)) })
    }

    fn failed(error: rpc::Status) -> v1::RenewResult {
        let (commit, verdict) = (v1::Commit::failed(error.clone()), v1::Call::failed(error));
        v1::RenewResult { commit: Some(commit), verdict: Some(verdict) }
    }
}
