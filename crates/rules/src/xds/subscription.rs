//! What outlives a stream: the rules in force, and which responses were accepted or refused.

use std::{mem, path::PathBuf, sync::Arc};

use tollkeeper_engine::text::counted;
use tollkeeper_yaml::Problem;

use super::{control_plane::ResponseOutcome, pb::DiscoveryResponse, received::ReceivedRules};
use crate::{
    load::{InForce, RuleFiles, Version},
    options::LoadOptions,
    watch::{Loaded, RuleOrigin, Rules, off_thread},
};

/// The longest text of a refusal, in bytes: gRPC servers accept 4 MiB.
const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// The rules until a control plane has sent some: none, so that no call is limited.
pub fn none_yet(overlays: &[PathBuf], options: LoadOptions) -> Result<InForce, Vec<Problem>> {
    ReceivedRules::default().compile(options, &RuleFiles::read_overlays(overlays))
}

/// What happens to domains that a response no longer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Vanished {
    /// Their limits end.
    Removed,
    /// They stay for a while: a control plane that has restarted sends growing sets.
    Kept,
}

/// The rules of a control plane, across its streams.
pub(super) struct RuleSubscription<F> {
    rules: Arc<Rules>,
    options: LoadOptions,
    on_load: F,
    overlays: Arc<RuleFiles>,
    in_force: ReceivedRules,
    /// The newest response, if more than its resources are in force.
    without_kept: Option<ReceivedRules>,
    /// The control plane's version of the last accepted response.
    pub(super) accepted: Option<String>,
    /// The content that was last refused, and why.
    refused: Option<(Version, String)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Ack(ResponseOutcome),
    /// With every problem.
    Nack(String),
}

impl<F: Fn(Loaded)> RuleSubscription<F> {
    pub(super) fn new(
        rules: Arc<Rules>,
        options: LoadOptions,
        on_load: F,
        overlays: RuleFiles,
    ) -> Self {
        let (in_force, overlays) = (ReceivedRules::default(), Arc::new(overlays));
        let (without_kept, accepted, refused) = (None, None, None);
        Self { rules, options, on_load, overlays, in_force, without_kept, accepted, refused }
    }

    /// Lays other overlays over the resources in force. If they are bad, the last good ones stay.
    pub(super) async fn lay(&mut self, overlays: RuleFiles) {
        let version = self.in_force.version(&overlays);
        let before = mem::replace(&mut self.overlays, Arc::new(overlays));
        if let Err(problems) = self.put_in_force(self.in_force.clone(), RuleOrigin::Files).await {
            self.report(&version, problems, RuleOrigin::Files);
            self.overlays = before;
        }
    }

    /// Puts the rules of a response in force, all or none.
    pub(super) async fn take(&mut self, response: DiscoveryResponse, vanished: Vanished) -> Answer {
        let DiscoveryResponse { version_info, resources, .. } = response;
        let overlays = Arc::clone(&self.overlays);
        let decoded = off_thread(move || {
            let received = ReceivedRules::decode(&resources);
            (received.version(&overlays), received)
        });
        let (version, received) = match decoded.await {
            Ok(decoded) => decoded,
            Err(problem) => return Answer::Nack(problem.to_string()),
        };
        if let Some((refused, reason)) = &self.refused
            && *refused == version
        {
            return Answer::Nack(reason.clone());
        }
        let mut next = received.clone();
        let kept = match vanished {
            Vanished::Kept => next.keep_vanished(&self.in_force),
            Vanished::Removed => Vec::new(),
        };
        match self.put_in_force(next, RuleOrigin::ControlPlane).await {
            Ok(outcome) => {
                if !kept.is_empty() && self.without_kept.is_none() {
                    let domains = kept.join(", ");
                    tracing::info!(
                        domains,
                        "the control plane does not send these domains after a reconnect; their rules stay for now"
                    );
                }
                self.without_kept = (!kept.is_empty()).then_some(received);
                (self.accepted, self.refused) = (Some(version_info), None);
                Answer::Ack(outcome)
            }
            Err(problems) => {
                let reason = refusal(&problems);
                self.report(&version, problems, RuleOrigin::ControlPlane);
                self.refused = Some((version, reason.clone()));
                Answer::Nack(reason)
            }
        }
    }

    /// Whether rules are in force that the control plane no longer sends.
    pub(super) fn keeps_vanished(&self) -> bool {
        self.without_kept.is_some()
    }

    /// Ends the rules that the control plane no longer sends.
    pub(super) async fn remove_vanished(&mut self) {
        let Some(received) = self.without_kept.take() else { return };
        if let Err(problems) = self.put_in_force(received, RuleOrigin::ControlPlane).await {
            self.report(&self.rules.current().version, problems, RuleOrigin::ControlPlane);
        }
    }

    /// Compiles the rules and puts them in force, unless they are.
    async fn put_in_force(
        &mut self,
        next: ReceivedRules,
        origin: RuleOrigin,
    ) -> Result<ResponseOutcome, Vec<Problem>> {
        let (options, present) = (self.options, self.rules.written().version.clone());
        let overlays = Arc::clone(&self.overlays);
        let compiled = off_thread(move || {
            let is_new = next.version(&overlays) != present;
            let compiled = is_new.then(|| next.compile(options, &overlays)).transpose();
            compiled.map(|compiled| (next, compiled))
        });
        let (next, compiled) = compiled.await.unwrap_or_else(|problem| Err(vec![problem]))?;
        self.in_force = next;
        let Some(compiled) = compiled else {
            // Refused content may be followed by that in force.
            if !self.rules.set_problems(origin, Vec::new()).is_empty() {
                (self.on_load)(Loaded::Good);
            }
            return Ok(ResponseOutcome::Unchanged);
        };
        (self.on_load)(self.rules.accept(compiled, origin));
        Ok(ResponseOutcome::Accepted)
    }

    fn report(&self, version: &Version, problems: Vec<Problem>, origin: RuleOrigin) {
        (self.on_load)(self.rules.refuse(version, problems, origin));
    }
}

/// The text of a refusal: every problem on a line of its own.
fn refusal(problems: &[Problem]) -> String {
    let mut text = String::new();
    for (index, problem) in problems.iter().enumerate() {
        let line = format!("{problem}\n");
        if text.len() + line.len() > REFUSAL_BYTES_MAX {
            text += &format!("and {} more", counted(problems.len() - index, "problem"));
            return text;
        }
        text += &line;
    }
    text.truncate(text.trim_end().len());
    text
}
