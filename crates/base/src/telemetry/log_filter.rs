//! Which log lines are written: a level for all, and levels for single targets. It may change while the service runs.

use std::{borrow::Cow, fmt, str::FromStr};

use tracing::{Level, Metadata, level_filters::LevelFilter, subscriber::Interest};
use tracing_subscriber::{
    filter::Targets,
    layer::{Context, Filter},
};

use crate::text::did_you_mean::hint;

const LEVELS: [(&str, LevelFilter); 5] = [
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("off", LevelFilter::OFF),
];

/// The target of the lines about decisions. Callers cause as many as they like, so only a filter that names it, and
/// not its level alone, writes them.
pub const DECISIONS: &str = "tollkeeper::decision";

/// The target of the audit, whose lines no filter leaves out.
const AUDIT: &str = "tollkeeper::audit";

/// The most targets in a filter: each line is compared with all of them.
const TARGETS_MAX: usize = 32;

/// What a filter looks like, for errors.
const FORM: &str = "a level (error, warn, info, debug, off) and up to 32 of TARGET=LEVEL, separated by commas, such \
                    as info,tollkeeper::decision=debug";

#[derive(Debug, Clone, PartialEq)]
pub struct LogFilter {
    text: String,
    targets: Targets,
    /// The most verbose level of all targets, of which the audit has INFO.
    most: LevelFilter,
}

/// The target as a filter names it: the crates of the service count as modules of the program.
fn name(target: &str) -> Cow<'_, str> {
    match target.strip_prefix("tollkeeper_") {
        Some(module) => format!("tollkeeper::{}", module.trim_start_matches("base::")).into(),
        None => target.into(),
    }
}

/// `LEVEL,TARGET=LEVEL,…`; of several targets that begin a line's, the longest decides.
impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || format!("must be {FORM}");
        let mut directives = text.split(',');
        let default = directives.next().and_then(level).ok_or_else(problem)?;
        let unnamed = default.min(LevelFilter::INFO);
        let mut targets = Targets::new().with_default(default).with_target(DECISIONS, unnamed);
        let mut most = default;
        for (number, directive) in directives.enumerate() {
            let (target, level_name) = directive.split_once('=').ok_or_else(problem)?;
            let level = level(level_name).ok_or_else(problem)?;
            if number >= TARGETS_MAX || !is_target(target) {
                return Err(problem());
            }
            let target = name(target);
            check_crate(&target)?;
            targets = targets.with_target(target, level);
            most = most.max(level);
        }
        let targets = targets.with_target(AUDIT, LevelFilter::INFO);
        Ok(Self { text: text.to_owned(), targets, most: most.max(LevelFilter::INFO) })
    }
}

impl fmt::Display for LogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn level(name: &str) -> Option<LevelFilter> {
    LEVELS.iter().find(|(known, _)| *known == name).map(|(_, level)| *level)
}

/// Refuses a target that is ours but for a typo: it would select nothing.
fn check_crate(target: &str) -> Result<(), String> {
    const OURS: &str = "tollkeeper";
    let name = target.split(':').next().unwrap_or(target);
    let hint = hint(name, [OURS]);
    if name == OURS || hint.is_empty() {
        return Ok(());
    }
    Err(format!("unknown target `{name}`{hint}"))
}

/// Whether this is the path of a module.
fn is_target(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !text.is_empty() && text.len() <= 128 && text.chars().all(is_part)
}

impl LogFilter {
    fn writes(&self, metadata: &Metadata<'_>) -> bool {
        // A peer can cause any number of warnings of h2.
        let is_caused_by_peer =
            metadata.target().starts_with("h2::") && *metadata.level() != Level::ERROR;
        // The spans of sampled calls put the ids of traces into lines.
        let is_ours = metadata.is_event() || metadata.target().starts_with("tollkeeper");
        is_ours
            && !is_caused_by_peer
            && self.targets.would_enable(&name(metadata.target()), metadata.level())
    }
}

impl<S> Filter<S> for LogFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.writes(metadata)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.writes(metadata) { Interest::always() } else { Interest::never() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_target_that_begins_a_lines_target_decides() {
        let filter: LogFilter = "warn,tollkeeper=info,tollkeeper::store=debug".parse().unwrap();
        for (target, level, expected) in [
            ("hyper", Level::WARN, true),
            ("hyper", Level::INFO, false),
            ("tollkeeper::limiter", Level::INFO, true),
            ("tollkeeper::limiter", Level::DEBUG, false),
            ("tollkeeper::store::redis", Level::DEBUG, true),
        ] {
            assert_eq!(filter.targets.would_enable(target, &level), expected, "{target} {level}");
        }
        assert_eq!(filter.most, LevelFilter::DEBUG);
    }

    #[test]
    fn the_crates_of_the_service_are_named_as_modules_of_the_program() {
        for (target, expected) in [
            ("tollkeeper::limiter", "tollkeeper::limiter"),
            ("tollkeeper_store::redis::node", "tollkeeper::store::redis::node"),
            ("tollkeeper_base::net::tls", "tollkeeper::net::tls"),
            ("h2::proto", "h2::proto"),
        ] {
            assert_eq!(name(target), expected);
        }
        let [new, old] = ["info,tollkeeper_store=debug", "info,tollkeeper::store=debug"]
            .map(|filter| filter.parse::<LogFilter>().unwrap());
        assert_eq!(new.targets, old.targets);
    }

    #[test]
    fn lines_about_decisions_are_written_only_by_a_filter_that_names_their_target() {
        for (filter, expected) in [
            ("debug", false),
            ("debug,tollkeeper=debug", false),
            ("off,tollkeeper::decision=debug", true),
        ] {
            let filter: LogFilter = filter.parse().unwrap();
            assert_eq!(filter.targets.would_enable(DECISIONS, &Level::DEBUG), expected, "{filter}");
        }
    }

    #[test]
    fn the_lines_of_the_audit_are_always_written() {
        for filter in ["off", "error", "info,tollkeeper::audit=off"] {
            let filter: LogFilter = filter.parse().unwrap();
            assert!(filter.targets.would_enable(AUDIT, &Level::INFO), "{filter}");
            assert!(filter.most >= LevelFilter::INFO, "{filter}");
        }
    }

    #[test]
    fn a_typo_in_our_name_is_refused() {
        let problem = "info,tolkeeper::store=debug".parse::<LogFilter>().unwrap_err();
        assert_eq!(problem, "unknown target `tolkeeper`; did you mean `tollkeeper`?");
        "info,h2=debug".parse::<LogFilter>().unwrap();
    }

    #[test]
    fn a_filter_of_another_form_is_refused() {
        let many = format!("info{}", ",a=info".repeat(33));
        let malformed = ["", "trace", "verbose", "a=info", "info,a", "info,"];
        for text in malformed.into_iter().chain(["info,a=trace", "info,a b=info", &many]) {
            let problem = text.parse::<LogFilter>().unwrap_err();
            assert!(problem.starts_with("must be a level"), "{text}: {problem}");
        }
    }
}
