//! What outlives a stream: the rules in force, and which responses were accepted or refused.

use std::{path::PathBuf, sync::Arc};

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
    newest_overlays: Arc<RuleFiles>,
    /// The overlays in force: older ones, if the newest do not fit the rules.
    overlays: Arc<RuleFiles>,
    in_force: ReceivedRules,
    /// The newest response, if more than its resources are in force.
    without_kept: Option<ReceivedRules>,
    /// The control plane's version of the last accepted response.
    pub(super) accepted: Option<String>,
    refused: Option<RefusedResponse>,
}

/// The newest response, if it was refused. Other overlays may fit it.
#[derive(Clone)]
struct RefusedResponse {
    response: Response,
    /// Of its content with the overlays that it was tried with.
    version: Version,
    reason: String,
}

#[derive(Clone)]
struct Response {
    version_info: String,
    received: ReceivedRules,
    vanished: Vanished,
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
        let newest_overlays = Arc::clone(&overlays);
        let (without_kept, accepted, refused) = (None, None, None);
        Self {
            rules,
            options,
            on_load,
            newest_overlays,
            overlays,
            in_force,
            without_kept,
            accepted,
            refused,
        }
    }

    /// Lays other overlays over the newest response, or else over the resources in force. If they do not fit, the last
    /// good ones stay until a response does. Returns the version of a refused response that they put in force.
    pub(super) async fn lay(&mut self, overlays: RuleFiles) -> Option<String> {
        let newest = Arc::new(overlays);
        self.newest_overlays = Arc::clone(&newest);
        if let Some(refused) = self.refused.clone()
            && self.accept(refused.response, vec![Arc::clone(&newest)]).await.is_ok()
        {
            return self.accepted.clone();
        }
        let (version, next) = (self.in_force.version(&newest), self.in_force.clone());
        if let Err(problems) = self.put_in_force(next, vec![newest], RuleOrigin::Files).await {
            self.report(&version, problems, RuleOrigin::Files);
        }
        None
    }

    /// Puts the rules of a response in force, all or none.
    pub(super) async fn take(&mut self, response: DiscoveryResponse, vanished: Vanished) -> Answer {
        let DiscoveryResponse { version_info, resources, .. } = response;
        let overlays = Arc::clone(&self.newest_overlays);
        let decoded = off_thread(move || {
            let received = ReceivedRules::decode(&resources);
            (received.version(&overlays), received)
        });
        let (version, received) = match decoded.await {
            Ok(decoded) => decoded,
            Err(problem) => return Answer::Nack(problem.to_string()),
        };
        if let Some(refused) = &self.refused
            && refused.version == version
        {
            return Answer::Nack(refused.reason.clone());
        }
        let response = Response { version_info, received, vanished };
        match self.accept(response.clone(), self.overlays()).await {
            Ok(outcome) => Answer::Ack(outcome),
            Err(problems) => {
                let reason = refusal(&problems);
                self.report(&version, problems, RuleOrigin::ControlPlane);
                self.refused = Some(RefusedResponse { response, version, reason: reason.clone() });
                Answer::Nack(reason)
            }
        }
    }

    async fn accept(
        &mut self,
        response: Response,
        overlays: Vec<Arc<RuleFiles>>,
    ) -> Result<ResponseOutcome, Vec<Problem>> {
        let Response { version_info, received, vanished } = response;
        let mut next = received.clone();
        let kept = match vanished {
            Vanished::Kept => next.keep_vanished(&self.in_force),
            Vanished::Removed => Vec::new(),
        };
        let outcome = self.put_in_force(next, overlays, RuleOrigin::ControlPlane).await?;
        if !kept.is_empty() && self.without_kept.is_none() {
            let domains = kept.join(", ");
            tracing::info!(
                domains,
                "the control plane does not send these domains after a reconnect; their rules stay for now"
            );
        }
        self.without_kept = (!kept.is_empty()).then_some(received);
        (self.accepted, self.refused) = (Some(version_info), None);
        Ok(outcome)
    }

    /// Whether rules are in force that the control plane no longer sends, or will be with other overlays.
    pub(super) fn keeps_vanished(&self) -> bool {
        let refused = self.refused.as_ref().map(|refused| refused.response.vanished);
        self.without_kept.is_some() || refused == Some(Vanished::Kept)
    }

    /// Ends the rules that the control plane no longer sends.
    pub(super) async fn remove_vanished(&mut self) {
        if let Some(refused) = &mut self.refused {
            refused.response.vanished = Vanished::Removed;
        }
        let Some(received) = self.without_kept.take() else { return };
        let overlays = self.overlays();
        let removed = self.put_in_force(received, overlays, RuleOrigin::ControlPlane).await;
        if let Err(problems) = removed {
            self.report(&self.rules.current().version, problems, RuleOrigin::ControlPlane);
        }
    }

    /// The overlays to try, in this order.
    fn overlays(&self) -> Vec<Arc<RuleFiles>> {
        let mut overlays = vec![Arc::clone(&self.newest_overlays), Arc::clone(&self.overlays)];
        overlays.dedup_by(|next, before| Arc::ptr_eq(next, before));
        overlays
    }

    /// Compiles the rules with the first overlays that fit, and puts them in force, unless they are.
    async fn put_in_force(
        &mut self,
        next: ReceivedRules,
        overlays: Vec<Arc<RuleFiles>>,
        origin: RuleOrigin,
    ) -> Result<ResponseOutcome, Vec<Problem>> {
        let (options, present) = (self.options, self.rules.written().version.clone());
        let compiled = off_thread(move || {
            let mut refusal = Vec::new();
            for overlays in overlays {
                let is_new = next.version(&overlays) != present;
                match is_new.then(|| next.compile(options, &overlays)).transpose() {
                    Ok(compiled) => return Ok((next, overlays, compiled)),
                    Err(problems) => refusal = problems,
                }
            }
            Err(refusal)
        });
        let compiled = compiled.await.unwrap_or_else(|problem| Err(vec![problem]))?;
        let (next, overlays, compiled) = compiled;
        let accepted = compiled.map(|compiled| self.rules.accept(compiled, origin));
        // Refused content may be followed by that in force.
        let mut solved = self.rules.set_problems(origin, Vec::new());
        if Arc::ptr_eq(&overlays, &self.newest_overlays) {
            solved.extend(self.rules.set_problems(RuleOrigin::Files, Vec::new()));
        }
        (self.in_force, self.overlays) = (next, overlays);
        if let Some(loaded) = accepted {
            (self.on_load)(loaded);
            return Ok(ResponseOutcome::Accepted);
        }
        if !solved.is_empty() {
            (self.on_load)(Loaded::Good);
        }
        Ok(ResponseOutcome::Unchanged)
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
