//! Rules in force, and how they change while the service runs: by content, and the last good ones
//! stay.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use tokio::{task::spawn_blocking, time};

use super::{Compiled, LoadOptions, Problem, Read, Version, compile_all, read_all};
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
    pub options: LoadOptions,
}

/// Keeps `rules` at what the files say, for ever.
pub async fn watch(rules: Arc<Rules>, watched: Watched, on_load: impl Fn(Loaded)) {
    let mut watcher = Watcher::new(rules, watched, compile_all);
    loop {
        time::sleep(LOOK_EVERY).await;
        if let Some(loaded) = watcher.look().await {
            on_load(loaded);
        }
    }
}

/// What compiles the files. A test passes one that panics.
type Compile = fn(Read, LoadOptions) -> Result<Compiled, Vec<Problem>>;

/// Follows the files from one look to the next.
struct Watcher {
    rules: Arc<Rules>,
    watched: Watched,
    compile: Compile,
    /// The newest content that was compiled, or could not be.
    tried: Version,
    /// What the last look saw.
    seen: Version,
}

impl Watcher {
    fn new(rules: Arc<Rules>, watched: Watched, compile: Compile) -> Self {
        let version = rules.current().version.clone();
        Self { rules, watched, compile, tried: version.clone(), seen: version }
    }

    /// Reads the files, and loads them if they are new.
    ///
    /// New content counts once two looks in a row saw the same: a file may be half written, and of
    /// several files one may be newer than the other.
    async fn look(&mut self) -> Option<Loaded> {
        let paths = self.watched.paths.clone();
        let read = match off_thread(move || read_all(&paths)).await {
            Ok(read) => read,
            Err(problem) => Read { problems: vec![problem], ..Read::default() },
        };
        let version = Version::of(&read);
        let settled = version == self.seen;
        self.seen = version.clone();
        if !settled || version == self.tried {
            return None;
        }
        self.tried = version.clone();
        let (compile, options) = (self.compile, self.watched.options);
        let compiled = off_thread(move || compile(read, options)).await;
        Some(match compiled.unwrap_or_else(|problem| Err(vec![problem])) {
            Ok(compiled) => {
                tracing::info!(%version, "rules loaded");
                let next = InForce::now(compiled, version);
                next.warn();
                self.rules.replace(next);
                Loaded::Good
            }
            Err(problems) => {
                let count = problems.len();
                tracing::error!(%version, "rules not loaded, {count} problems; the last good ones stay");
                for problem in &problems {
                    tracing::error!("{problem}");
                }
                self.rules.set_problems(problems);
                Loaded::Bad
            }
        })
    }
}

/// Runs `work` on a thread of its own. If it panics, that is a problem of the rules, and no reason to end
/// the service or to stop watching.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    spawn_blocking(work).await.map_err(|_| Problem {
        file: "rules".to_owned(),
        location: None,
        message: "a bug in tollkeeper: reading them panicked; please report it".to_owned(),
    })
}

/// What became of new content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loaded {
    /// It is in force.
    Good,
    /// The last good rules stay.
    Bad,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::rules::load;

    fn compile_or_panic(read: Read, options: LoadOptions) -> Result<Compiled, Vec<Problem>> {
        assert!(!read.sources[0].text.contains("panic"), "as the text asks");
        compile_all(read, options)
    }

    #[tokio::test]
    async fn a_panic_while_compiling_is_a_problem_and_the_last_good_rules_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.yaml");
        fs::write(&file, "domain: first").unwrap();
        let watched = Watched { paths: vec![file.clone()], options: LoadOptions::default() };
        let first = load(&watched.paths, watched.options).unwrap();
        let rules = Arc::new(Rules::new(first));
        let mut watcher = Watcher::new(Arc::clone(&rules), watched, compile_or_panic);
        assert_eq!(watcher.look().await, None);

        fs::write(&file, "domain: panic").unwrap();
        assert_eq!(watcher.look().await, None, "not settled yet");
        assert_eq!(watcher.look().await, Some(Loaded::Bad));
        assert_eq!(watcher.look().await, None, "reported once");
        let problems = rules.problems();
        assert!(problems[0].message.contains("panicked"), "{problems:?}");
        assert!(rules.current().rules.domain("first").is_some());

        fs::write(&file, "domain: second").unwrap();
        assert_eq!(watcher.look().await, None);
        assert_eq!(watcher.look().await, Some(Loaded::Good));
        assert_eq!(rules.problems(), []);
        assert!(rules.current().rules.domain("second").is_some());
    }
}
