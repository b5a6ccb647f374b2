//! Rules in force, and how they change while the service runs: by content, and the last good ones
//! stay.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use tokio::{task::spawn_blocking, time};

use super::{Basis, Compiled, Problem, Version, compile_all, read_all};
use crate::engine::rule_set::RuleSet;

/// How often the files are read. Asking the system for changes instead would miss some: network
/// file systems tell of none, and kubelet swaps a link.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The rules in force, behind a handle whose holders need not know where they come from.
#[derive(Debug)]
pub struct Rules {
    current: ArcSwap<InForce>,
    /// What is wrong with the newest content, if it could not be taken.
    problems: Mutex<Vec<Problem>>,
}

/// One set of rules, and since when.
#[derive(Debug)]
pub struct InForce {
    /// The rules.
    pub rules: RuleSet,
    /// Tells one content from another.
    pub version: Version,
    /// When they were loaded.
    pub since: SystemTime,
    /// The files that they come from.
    pub files: Vec<String>,
    /// What is allowed, and hardly meant.
    pub warnings: Vec<Problem>,
}

impl InForce {
    #[expect(
        clippy::disallowed_methods,
        reason = "for /rules, which shows when the rules were loaded"
    )]
    pub(super) fn now(compiled: Compiled, version: Version) -> Self {
        let Compiled { rules, files, warnings } = compiled;
        Self { rules, version, since: SystemTime::now(), files, warnings }
    }

    /// Tells the warnings in the log.
    pub fn warn(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
    }
}

impl Rules {
    /// Puts the first rules in force.
    pub fn new(first: InForce) -> Self {
        Self { current: ArcSwap::from_pointee(first), problems: Mutex::new(Vec::new()) }
    }

    /// The rules for one call, which sees this version to its end.
    pub fn current(&self) -> Arc<InForce> {
        self.current.load_full()
    }

    /// Puts other rules in force.
    pub fn replace(&self, next: InForce) {
        self.current.store(Arc::new(next));
        self.set_problems(Vec::new());
    }

    /// What is wrong with the newest content; empty if it is in force.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_problems(&self, problems: Vec<Problem>) {
        *self.problems.lock().unwrap_or_else(PoisonError::into_inner) = problems;
    }
}

/// What to watch, and how to read it.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Files and folders.
    pub paths: Vec<PathBuf>,
    /// For rules that do not say it themselves.
    pub basis: Basis,
}

/// Keeps `rules` at what the files say, for ever.
///
/// New content counts once two looks in a row saw the same: a file may be half written, and of
/// several files one may be newer than the other.
pub async fn watch(rules: Arc<Rules>, watched: Watched, on_load: impl Fn(Loaded)) {
    let mut tried = rules.current().version.clone();
    let mut seen = tried.clone();
    loop {
        time::sleep(LOOK_EVERY).await;
        let paths = watched.paths.clone();
        // Only a panic or the end of the runtime could lose the answer.
        let Ok(read) = spawn_blocking(move || read_all(&paths)).await else { continue };
        let version = Version::of(&read);
        let settled = version == seen;
        seen = version.clone();
        if !settled || version == tried {
            continue;
        }
        tried = version.clone();
        match compile_all(read, watched.basis) {
            Ok(compiled) => {
                tracing::info!(%version, "rules loaded");
                let next = InForce::now(compiled, version);
                next.warn();
                rules.replace(next);
                on_load(Loaded::Good);
            }
            Err(problems) => {
                let count = problems.len();
                tracing::error!(%version, "rules not loaded, {count} problems; the last good ones stay");
                for problem in &problems {
                    tracing::error!("{problem}");
                }
                rules.set_problems(problems);
                on_load(Loaded::Bad);
            }
        }
    }
}

/// What became of new content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// It is in force.
    Good,
    /// The last good rules stay.
    Bad,
}
