//! Which rules are in force, and the defaults for all rules.

pub(super) mod source;

use self::source::{RULES, RuleSource};
use super::reader::{
    Setting, SettingReader,
    form::{Arity, OnOff, OneOf, SWITCH},
};
use crate::{
    engine::rule::{Defaults, ExhaustedLooks, ModeOverride, OnStoreFailure, WhenDenied},
    rules::{Algorithms, LoadOptions},
};

/// Which rules are in force, and the defaults for all rules.
#[derive(Debug, Clone)]
pub struct RuleSettings {
    /// Where they come from.
    pub source: RuleSource,
    /// What gives the source, for messages: a flag, a variable or a place in the file.
    pub source_name: String,
    /// The defaults for all rules.
    pub options: LoadOptions,
    /// Whether the service is ready without rules.
    pub needed: RulesNeeded,
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

const ON_STORE_FAILURE: OneOf<OnStoreFailure> = OneOf(&[
    (OnStoreFailure::Error.name(), OnStoreFailure::Error),
    (OnStoreFailure::Deny.name(), OnStoreFailure::Deny),
    (OnStoreFailure::Allow.name(), OnStoreFailure::Allow),
    (OnStoreFailure::Local.name(), OnStoreFailure::Local),
]);

const EXHAUSTED_LOOKS: OneOf<ExhaustedLooks> =
    OneOf(&[("deny", ExhaustedLooks::Denied), ("allow", ExhaustedLooks::Allowed)]);

impl RuleSettings {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let source = RuleSource::read(reader);
        let when_denied = reader.read_optional(&Setting {
            flag: "count-denied",
            form: OnOff { on: WhenDenied::Counted, off: WhenDenied::Free, arity: Arity::Switch },
            default: "off",
            help: "Charge denied calls too, except by rules that say `count_denied: false`; on by default for the rules of a control plane",
        });
        let when_denied = when_denied.unwrap_or(match source {
            RuleSource::Files(_) => WhenDenied::Free,
            // Gateways check with 0 hits and debit when the work is done: a debit that is dropped opens the limit.
            RuleSource::ControlPlane(_) => WhenDenied::Counted,
        });
        let exhausted_looks = reader.read(&Setting {
            flag: "exhausted-looks",
            form: EXHAUSTED_LOOKS,
            default: "deny",
            help: "Calls of 0 hits on a limit that is exactly used up: deny, or allow as envoyproxy/ratelimit does",
        });
        let on_store_failure = reader.read(&Setting {
            flag: "on-store-failure",
            form: ON_STORE_FAILURE,
            default: "error",
            help: "What rules without on_store_failure do when the store does not answer",
        });
        let mode_override = Self::read_mode(reader);
        let algorithms = reader.read(&Setting {
            flag: "redis-scripts",
            form: OnOff { on: Algorithms::All, off: Algorithms::FixedWindow, arity: Arity::Single },
            default: "on",
            help: "off is for a Redis that forbids scripts, and allows only fixed windows",
        });
        let defaults = Defaults { when_denied, exhausted_looks, on_store_failure, mode_override };
        let needed = reader.read(&Setting {
            flag: "ready-needs-rules",
            form: RULES_NEEDED,
            default: "off",
            help: "Be ready once a control plane has sent rules, always only while a domain has rules, or, with off, after 10s without them",
        });
        let source_name = reader.name_of(RULES);
        Self { source, source_name, options: LoadOptions { defaults, algorithms }, needed }
    }

    fn read_mode(reader: &mut SettingReader<'_>) -> ModeOverride {
        let shadow = reader.read(&Setting {
            flag: "shadow-mode",
            form: SWITCH,
            default: "off",
            help: "Count and report, but let every call pass",
        });
        let quota = reader.read(&Setting {
            flag: "quota-mode",
            form: SWITCH,
            default: "off",
            help: "Make every limit a quota: deny a call only if none of its limits has room",
        });
        if shadow {
            if quota {
                let shadow = reader.name_of("shadow-mode");
                reader.warn_unused("quota-mode", &format!("{shadow} is on"));
            }
            ModeOverride::Shadow
        } else if quota {
            ModeOverride::Quota
        } else {
            ModeOverride::AsWritten
        }
    }
}
