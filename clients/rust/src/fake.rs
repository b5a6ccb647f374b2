//! A service for unit tests: in memory, below a real client, without a network.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{collections::HashMap, future::ready};

use tonic::{Code, Request, Response, Status, body::Body, server::Grpc};
use tonic_prost::ProstCodec;
use tower::{service_fn, util::BoxCloneSyncService};

use crate::v1::{self, CommitRequest, CommitResponse, CommitResult, DecideRequest, DecideResponse};
use crate::v1::{RenewRequest, RenewResponse, RenewResult, Verdict, call::Mode, verdict};
use crate::{Call, Client, Commit, Descriptor, Error, Options, Unit, decision::code_of};

/// Of every limit.
const RESET: Duration = Duration::from_millis(59_500);

/// Of every lease.
const SPEND_WITHIN: Duration = Duration::from_millis(200);

/// Answers its clients in memory, for unit tests. It allows all calls that no limit of its own denies, and lists what it got.
#[derive(Clone, Default)]
pub struct Fake(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    limits: Vec<Limited>,
    failure: Option<Code>,
    calls: Vec<Call>,
    commits: Vec<Commit>,
    /// The descriptors and the hits of what is held, by its token.
    holds: HashMap<String, (Vec<Descriptor>, u64)>,
}

struct Limited {
    descriptor: Descriptor,
    hits: u64,
    used: u64,
}

impl Fake {
    /// Makes a client of this fake.
    ///
    /// # Errors
    ///
    /// If the domain is empty, or outside of a tokio runtime.
    pub fn client(&self, options: Options) -> Result<Client, Error> {
        let fake = self.clone();
        let service = service_fn(move |request| fake.clone().serve(request));
        let service =
            || v1::tollkeeper_client::TollkeeperClient::new(BoxCloneSyncService::new(service));
        Client::make("a fake".to_owned(), options, service)
    }

    /// Denies calls with this descriptor.
    pub fn deny(&self, descriptor: Descriptor) {
        self.limit(descriptor, 0);
    }

    /// Allows this number of hits of the descriptor.
    pub fn limit(&self, descriptor: Descriptor, hits: u64) {
        self.state().limits.push(Limited { descriptor, hits, used: 0 });
    }

    /// Answers nothing but this code of gRPC, such as `UNAVAILABLE`, or answers again.
    pub fn fail(&self, code: Option<&str>) {
        self.state().failure = code.map(code_of);
    }

    /// The calls, also the ones that failed.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// The commits, also the ones that failed.
    pub fn commits(&self) -> Vec<Commit> {
        self.state().commits.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let decide = |state: &mut State, asked: DecideRequest| {
            let verdicts = asked.calls.into_iter().map(|call| state.decide(call)).collect();
            DecideResponse { verdicts }
        };
        let commit = |state: &mut State, asked: CommitRequest| {
            let results = asked.commits.into_iter().map(|commit| state.commit(commit)).collect();
            CommitResponse { results }
        };
        let renew = |state: &mut State, asked: RenewRequest| {
            let results = asked.renewals.into_iter().map(|renewal| state.renew(renewal)).collect();
            RenewResponse { results }
        };
        Ok(match request.uri().path().rsplit('/').next() {
            Some("Decide") => self.answer(request, decide).await,
            Some("Commit") => self.answer(request, commit).await,
            _ => self.answer(request, renew).await,
        })
    }

    async fn answer<Asked, Answer>(
        self,
        request: http::Request<Body>,
        answer: fn(&mut State, Asked) -> Answer,
    ) -> http::Response<Body>
    where
        Asked: prost::Message + Default + 'static,
        Answer: prost::Message + 'static,
    {
        let service = service_fn(|request: Request<Asked>| {
            let mut state = self.state();
            let answer = Response::new(answer(&mut state, request.into_inner()));
            let failure = state.failure.map(|code| Err(Status::new(code, "the fake fails")));
            ready(failure.unwrap_or(Ok(answer)))
        });
        Grpc::new(ProstCodec::default()).unary(service, request).await
    }
}

impl State {
    fn commit(&mut self, commit: v1::Commit) -> CommitResult {
        let v1::Commit { hold, used, used_by_kind, end } = commit;
        let held = if self.failure.is_none() { self.holds.remove(&hold) } else { None };
        if let (Some((descriptors, held)), Some(used)) = (held, used) {
            for descriptor in &descriptors {
                if let Some(limit) = self.limit_of(descriptor) {
                    limit.used = limit.used.saturating_add(used).saturating_sub(held);
                }
            }
        }
        self.commits.push(Commit { hold, used, used_by_kind, end });
        CommitResult::default()
    }

    fn renew(&mut self, renewal: v1::Renewal) -> RenewResult {
        let commit = renewal.commit.map(|commit| self.commit(commit));
        RenewResult { commit, verdict: renewal.call.map(|call| self.decide(call)) }
    }

    fn decide(&mut self, message: v1::Call) -> Verdict {
        let (mode, hits) = (message.mode(), message.hits.unwrap_or(1));
        let call = Call::decode(message);
        self.calls.push(call.clone());
        if self.failure.is_some() {
            return Verdict::default();
        }
        let mut room = u64::MAX;
        for descriptor in &call.descriptors {
            room = self.limit_of(descriptor).map_or(room, |limit| room.min(limit.remaining()));
        }
        let (part, needed) = (hits.min(room), hits.max(1));
        let (is_allowed, charged) = match mode {
            _ if call.descriptors.iter().any(|on| on.message.is_negative_hits) => (true, 0),
            Mode::Take => (needed <= room, if needed <= room { hits } else { 0 }),
            Mode::Part | Mode::Lease => (room > 0, part),
            Mode::Debit => (needed <= room, hits),
            Mode::Check => (room > 0, 0),
            Mode::Read => (true, 0),
        };
        let status = |(index, on)| {
            let mut status = v1::Status { descriptor_index: index, ..v1::Status::default() };
            if let Some(limit) = self.limit_of(on) {
                let is_over = !is_allowed && needed > limit.remaining();
                limit.charge(charged, on);
                limit.show(&mut status);
                status.code = code(!is_over);
            }
            status
        };
        let statuses = (0..).zip(&call.descriptors).map(status).collect();
        let hits = if matches!(mode, Mode::Part | Mode::Lease) { charged } else { 0 };
        let mut hold = String::new();
        if matches!(mode, Mode::Take | Mode::Lease) && charged > 0 {
            hold = format!("hold {}", self.calls.len());
            self.holds.insert(hold.clone(), (call.descriptors.clone(), charged));
        }
        let spend_within =
            (mode == Mode::Lease && is_allowed).then(|| SPEND_WITHIN.try_into().ok());
        let (code, spend_within) = (code(is_allowed), spend_within.flatten());
        Verdict { code, statuses, hold, hits, spend_within, ..Verdict::default() }
    }

    fn limit_of(&mut self, descriptor: &Descriptor) -> Option<&mut Limited> {
        let is_of = |limit: &&mut Limited| limit.descriptor.text == descriptor.text;
        self.limits.iter_mut().rev().find(is_of)
    }
}

impl Limited {
    fn remaining(&self) -> u64 {
        self.hits.saturating_sub(self.used)
    }

    /// Charges the hits, or gives back the ones of the descriptor.
    fn charge(&mut self, hits: u64, descriptor: &Descriptor) {
        self.used = match descriptor.message.hits_addend {
            Some(back) => self.used.saturating_sub(back),
            None => self.used.saturating_add(hits),
        };
    }

    fn show(&self, status: &mut v1::Status) {
        let mut limit = v1::Limit { requests_per_unit: self.hits, ..v1::Limit::default() };
        (limit.unit, limit.unit_multiplier) = (Unit::Minute as i32, 1);
        status.current_limit = Some(limit);
        status.limit_remaining = self.remaining();
        status.rule = format!("{:?}", self.descriptor);
        status.duration_until_reset = RESET.try_into().ok();
    }
}

fn code(is_allowed: bool) -> i32 {
    if is_allowed { verdict::Code::Ok.into() } else { verdict::Code::OverLimit.into() }
}
