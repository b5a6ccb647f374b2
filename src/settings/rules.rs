//! Which rules are in force, and the defaults for all rules. `source` distinguishes files from a control plane; loading
//! is for `rules/`.

pub(super) mod source;

use std::path::PathBuf;

use self::source::RuleSource;
use super::reader::{
    SettingReader,
    environment::Given,
    form::{Arity, OnOff, OneOf, SWITCH, WholeNumber, switch},
};
use crate::{
    engine::rule::{Defaults, ExhaustedChecks, FailureMode, ModeOverride, WhenDenied},
    rules::{Algorithms, LoadOptions},
};

#[derive(Debug, Clone)]
pub struct RuleSettings {
    pub source: Given<RuleSource>,
    /// Files and folders that are laid over them.
    pub overlays: Vec<PathBuf>,
    pub options: LoadOptions,
    pub candidate: CandidateSettings,
    /// Whether the service is ready without rules.
    pub needed: RulesNeeded,
}

/// Rules that are judged beside those in force.
#[derive(Debug, Clone)]
pub struct CandidateSettings {
    /// Files and folders; none for no candidate.
    pub paths: Vec<PathBuf>,
    /// One key in this many is judged.
    pub one_in: u64,
}

/// Which rules the service needs to be ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RulesNeeded {
    /// None: a control plane may not have sent any after ten seconds.
    None,
    /// A control plane must have sent rules once.
    Once,
    /// There must be rules for a domain.
    Always,
}

const RULES_NEEDED: OneOf<RulesNeeded> = OneOf(&[
    ("off", RulesNeeded::None),
    ("once", RulesNeeded::Once),
    ("always", RulesNeeded::Always),
]);

const ON_STORE_FAILURE: OneOf<FailureMode> = OneOf(&[
    (FailureMode::Error.name(), FailureMode::Error),
    (FailureMode::Deny.name(), FailureMode::Deny),
    (FailureMode::Allow.name(), FailureMode::Allow),
    (FailureMode::Local.name(), FailureMode::Local),
]);

const EXHAUSTED_CHECKS: OneOf<ExhaustedChecks> =
    OneOf(&[("deny", ExhaustedChecks::Denied), ("allow", ExhaustedChecks::Allowed)]);

const COUNT_DENIED: OnOff<WhenDenied> = switch(WhenDenied::Counted, WhenDenied::Free);

const SCRIPTS: OnOff<Algorithms> =
    OnOff { on: Algorithms::All, off: Algorithms::FixedWindow, arity: Arity::Single };

impl RuleSettings {
    #[rustfmt::skip]
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let source = RuleSource::read(reader);
        let overlays = reader.read_paths("rules-overlay", ("PATH", |_| false), "", "File or folder whose keys are laid over the rules; repeatable; in the variable, separate paths with `:`");
        reader.check_needs("rules-overlay", "rules");
        let paths = reader.read_paths("candidate", ("PATH", |_| false), "", "File or folder of rules that judge a part of the keys beside the rules in force; repeatable; in the variable, separate paths with `:`").value;
        let one_in = reader.read("candidate-one-in", WholeNumber(1..=1_000_000), "16", "The candidate judges one key in this many");
        if paths.is_empty() {
            reader.warn_unused("candidate-one-in", "--candidate is not set");
        }
        let when_denied = reader.read_optional("count-denied", &COUNT_DENIED, "off", "Charge denied calls too, except with `count_denied: false`; on for rules of a control plane");
        let when_denied = when_denied.unwrap_or(match source.value {
            RuleSource::Files(_) => WhenDenied::Free,
            // Gateways check with 0 hits and debit when the work is done: a debit that is dropped opens the limit.
            RuleSource::ControlPlane(_) => WhenDenied::Counted,
        });
        let exhausted_checks = reader.read("exhausted-checks", EXHAUSTED_CHECKS, "deny", "Answer to a check (0 hits) of a used-up limit");
        let on_store_failure = reader.read("on-store-failure", ON_STORE_FAILURE, "error", "Decision without the store, for rules without on_store_failure");
        let mode_override = Self::read_mode(reader);
        let algorithms = reader.read("redis-scripts", SCRIPTS, "on", "Use Lua scripts; off allows only fixed windows");
        let defaults = Defaults { when_denied, exhausted_checks, on_store_failure, mode_override };
        let needed = reader.read("ready-needs-rules", RULES_NEEDED, "off", "When to be ready: off, after 10s even without rules; once, with a control plane's first rules; always, only while there are rules");
        Self { source, overlays: overlays.value, options: LoadOptions { defaults, algorithms }, candidate: CandidateSettings { paths, one_in }, needed }
    }

    #[rustfmt::skip]
    fn read_mode(reader: &mut SettingReader<'_>) -> ModeOverride {
        let shadow = reader.read_given("shadow-mode", SWITCH, "off", "Count and report, but let every call pass");
        let quota = reader.read("quota-mode", SWITCH, "off", "Make every limit a quota: deny a call only if none has room");
        if shadow.value {
            if quota {
                reader.warn_unused("quota-mode", &format!("{} is on", shadow.name));
            }
            ModeOverride::Shadow
        } else if quota {
            ModeOverride::Quota
        } else {
            ModeOverride::AsWritten
        }
    }
}
