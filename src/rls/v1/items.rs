//! Calls, commits and renewals, as items of a batch.

use prost::Message as _;

use super::{
    batch::{BYTES_OF_A_DESCRIPTOR, BatchItem, ItemContext},
    decode::{DecodedCall, ReadCall, commit_descriptor},
    encode,
};
use crate::{
    engine::{
        decision::{Code, Decision},
        request::{Descriptor, Hits, HitsMeaning, Request},
    },
    limiter::{
        Undecided,
        once::{Begun, Once},
    },
    rls::{
        pb::{
            google::rpc,
            v1::{self, call::Mode},
        },
        refusal::Refusal,
        service::Service,
    },
    store::{AtOnce, StoreError},
};

/// The longest verdict that is noted with its statuses, so that an id takes little memory.
const REPEATED_BYTES_MAX: usize = 1 << 10;

impl BatchItem for ReadCall {
    const FIELD: &'static str = "calls";

    fn weight(&self) -> usize {
        match self {
            Self::Plain(descriptors) => {
                let entries = descriptors.iter().flat_map(|descriptor| &descriptor.entries);
                let bytes: usize = entries.map(|entry| entry.value.len()).sum();
                descriptors.len() + bytes / BYTES_OF_A_DESCRIPTOR
            }
            Self::Message(call) => {
                call.descriptors.len() + call.encoded_len() / BYTES_OF_A_DESCRIPTOR
            }
        }
    }

    fn answer_at_once(self, batch: &ItemContext<'_>) -> Result<Result<Vec<u8>, Refusal>, Self> {
        let waits = match &self {
            Self::Plain(_) => false,
            Self::Message(call) => !call.id.is_empty() || call.mode() == Mode::Read,
        };
        match batch.at_once {
            Some(store) if !waits => {
                let call = self.decoded(batch.domain).and_then(|call| batch.checked(call, false));
                Ok(call.and_then(|call| batch.decide_at_once(store, &call)))
            }
            _ => Err(self),
        }
    }

    async fn answer(self, batch: &ItemContext<'_>) -> Result<Vec<u8>, Refusal> {
        let once = match &self {
            Self::Message(call) if !call.id.is_empty() => {
                Some(Once::new(batch.domain, &call.id, &call.encode_to_vec()))
            }
            _ => None,
        };
        let call = batch.checked(self.decoded(batch.domain)?, once.is_some())?;
        match once {
            None => batch.decide_call(call, false, None).await,
            Some(once) => Box::pin(batch.decide_once(&once, call)).await,
        }
    }

    fn failed(error: rpc::Status) -> Vec<u8> {
        v1::Verdict { error: Some(error), ..v1::Verdict::default() }.encode_to_vec()
    }
}

impl DecodedCall {
    /// Whether it counts work that is done, or gives hits back.
    fn counts_work(&self) -> bool {
        let is_refund = |one: &Descriptor| matches!(one.hits, Hits::Refund(_));
        self.mode == Mode::Debit || self.request.descriptors.iter().any(is_refund)
    }

    /// The verdict as a message; that on a part has the hits that were charged.
    fn verdict(&self, decision: &Decision) -> Vec<u8> {
        let hits = match (self.mode, decision.code) {
            (Mode::Part | Mode::Lease, Code::Ok) => decision.part.unwrap_or(self.hits),
            _ => 0,
        };
        let mut verdict = encode::verdict(decision, hits);
        if self.mode == Mode::Lease && decision.code == Code::Ok {
            encode::spend_within(decision, &mut verdict);
        }
        verdict
    }
}

impl ItemContext<'_> {
    async fn decide(&self, request: &Request, meaning: HitsMeaning) -> Result<Decision, Undecided> {
        self.service.limiter.decide_by(&self.by, request, meaning, self.arrival, None).await
    }

    fn decide_at_once(&self, store: AtOnce<'_>, call: &DecodedCall) -> Result<Vec<u8>, Refusal> {
        let Self { service: Service { limiter, .. }, arrival, by, .. } = self;
        limiter.metrics().overrides_ignored(call.overrides_ignored);
        let decision = limiter.decide_at_once(store, by, &call.request, call.meaning, *arrival)?;
        self.taken.lock().add(&call.request, &decision);
        Ok(call.verdict(&decision))
    }

    /// Refuses what no call may ask for, before anything is noted of a call with an id.
    fn checked(&self, call: DecodedCall, has_id: bool) -> Result<DecodedCall, Refusal> {
        if call.mode == Mode::Part || has_id {
            self.service.limiter.check(&self.by, &call.request, call.meaning)?;
        }
        Ok(call)
    }

    /// The verdict on a call. Who repeats one that has an id gets its token then. If the store is `away`, it is not asked.
    async fn decide_call(
        &self,
        call: DecodedCall,
        has_id: bool,
        away: Option<StoreError>,
    ) -> Result<Vec<u8>, Refusal> {
        let Self { service: Service { limiter, .. }, arrival, by, .. } = self;
        limiter.metrics().overrides_ignored(call.overrides_ignored);
        let request = &call.request;
        if call.mode == Mode::Read {
            let usage = Box::pin(limiter.usage(by, request, *arrival)).await?;
            return Ok(encode::usage(usage));
        }
        // Not as a variable first: a future of this size would be moved.
        let decision = limiter.decide_by(by, request, call.meaning, *arrival, away).await?;
        if !has_id {
            self.taken.lock().add(request, &decision);
        }
        Ok(call.verdict(&decision))
    }

    /// The verdict on a call with an id: the first one, if it is repeated.
    async fn decide_once(&self, once: &Once, call: DecodedCall) -> Result<Vec<u8>, Refusal> {
        match self.service.limiter.begin(once, self.arrival).await {
            Ok(Begun::Now) => {
                let verdict = self.decide_call(call, true, None).await?;
                let mut noted = verdict.clone();
                if verdict.len() > REPEATED_BYTES_MAX
                    && let Ok(long) = v1::Verdict::decode(&*verdict)
                {
                    noted = v1::Verdict { statuses: Vec::new(), ..long }.encode_to_vec();
                }
                self.service.limiter.note_answer(once, &noted, self.arrival).await;
                Ok(verdict)
            }
            Ok(Begun::Answered(verdict)) if v1::Verdict::decode(&*verdict).is_ok() => Ok(verdict),
            Ok(Begun::Answered(_) | Begun::Unanswered) => Err(Refusal::Unanswered),
            Ok(Begun::ByAnother) => Err(Refusal::Invalid(
                "id: another call had the same id within the last 60 s".to_owned(),
            )),
            // Without a record, a debit that is kept could be charged twice. With an error, its caller repeats it.
            Err(error) if call.counts_work() => Err(Undecided::NoAnswer(error).into()),
            Err(error) => self.decide_call(call, true, Some(error)).await,
        }
    }
}

impl BatchItem for v1::Commit {
    const FIELD: &'static str = "commits";

    fn weight(&self) -> usize {
        1 + self.hold.len() / BYTES_OF_A_DESCRIPTOR
    }

    async fn answer(self, batch: &ItemContext<'_>) -> Result<Vec<u8>, Refusal> {
        let descriptors = vec![commit_descriptor(self)?];
        let request = Request { domain: batch.domain.to_owned(), descriptors };
        let decision = batch.decide(&request, HitsMeaning::Charged).await?;
        Ok(encode::commit_result(&decision.commits)?.encode_to_vec())
    }

    fn failed(error: rpc::Status) -> Vec<u8> {
        v1::CommitResult { error: Some(error), ..v1::CommitResult::default() }.encode_to_vec()
    }
}

impl BatchItem for v1::Renewal {
    const FIELD: &'static str = "renewals";

    fn weight(&self) -> usize {
        let call = self.call.as_ref().map_or(1, |call| call.descriptors.len());
        call + self.commit.as_ref().map_or(1, v1::Commit::weight)
    }

    async fn answer(self, batch: &ItemContext<'_>) -> Result<Vec<u8>, Refusal> {
        let in_field = |field| {
            move |refusal: Refusal| match refusal {
                Refusal::Invalid(_) | Refusal::Empty => {
                    Refusal::Invalid(format!("{field}.{refusal}"))
                }
                other => other,
            }
        };
        let call = self.call.unwrap_or_default();
        if !call.id.is_empty() {
            return Err(Refusal::Invalid("call.id: must be absent in a renewal".to_owned()));
        }
        let mut call = DecodedCall::new(call, batch.domain).map_err(in_field("call"))?;
        if call.mode != Mode::Take {
            return Err(Refusal::Invalid("call.mode: must be TAKE".to_owned()));
        }
        let commit = commit_descriptor(self.commit.unwrap_or_default());
        call.request.descriptors.push(commit.map_err(in_field("commit"))?);
        batch.service.limiter.metrics().overrides_ignored(call.overrides_ignored);
        let decided = batch.decide(&call.request, call.meaning).await;
        let mut decision = decided.map_err(|undecided| in_field("call")(undecided.into()))?;
        batch.taken.lock().add(&call.request, &decision);
        // The last is the status of the commit.
        decision.statuses.pop();
        let commit = encode::commit_result(&decision.commits);
        let commit = commit.map_or_else(
            |refusal| {
                let (code, message) = (refusal.codes().0.into(), format!("commit.{refusal}"));
                v1::Commit::failed(rpc::Status { code, message })
            },
            |commit| commit.encode_to_vec(),
        );
        Ok(encode::renew_result(&commit, &encode::verdict(&decision, 0)))
    }

    fn failed(error: rpc::Status) -> Vec<u8> {
        let (commit, verdict) = (v1::Commit::failed(error.clone()), ReadCall::failed(error));
        encode::renew_result(&commit, &verdict)
    }
}
