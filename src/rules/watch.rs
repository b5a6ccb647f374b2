//! The rules in force, and their reload while the service runs: when the content of the files changes. If
//! the new content has a problem, the last good rules stay.

use std::{path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{task::spawn_blocking, time};

use super::{
    load::{InForce, RuleFiles, Version, compile_files},
    options::LoadOptions,
};
use crate::yaml::{Problem, first_lines};

/// How often the files are read. The system's notifications would miss changes: network file systems send
/// none, and kubelet swaps a link.
const READ_EVERY: Duration = Duration::from_millis(500);

/// The rules in force. Its users need not know where the rules come from.
#[derive(Debug)]
pub struct Rules {
    current: ArcSwap<InForce>,
    /// The problems of the newest content, if it could not be loaded.
    problems: Mutex<Vec<Problem>>,
}

impl Rules {
    /// Puts the first rules in force.
    pub fn new(first: InForce) -> Self {
        Self { current: ArcSwap::from_pointee(first), problems: Mutex::new(Vec::new()) }
    }

    /// The rules for one call, which keeps this version to its end.
    pub fn current(&self) -> Arc<InForce> {
        self.current.load_full()
    }

    /// Puts the next rules in force.
    pub fn replace(&self, next: InForce) {
        next.rules.inherit(&self.current().rules);
        self.current.store(Arc::new(next));
        self.set_problems(Vec::new());
    }

    /// The problems of the newest content; empty if it is in force.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().clone()
    }

    /// Puts new content in force, with its warnings in the log.
    pub(super) fn accept(&self, next: InForce) -> Loaded {
        tracing::info!(version = %next.version, "rules loaded");
        next.warn();
        self.replace(next);
        Loaded::Good
    }

    /// Logs the problems of new content. The previous rules stay.
    pub(super) fn refuse(&self, version: &Version, problems: Vec<Problem>) -> Loaded {
        let count = count(problems.len());
        tracing::error!(%version, "rules not loaded ({count}); the previous rules stay in force");
        for problem in first_lines(&problems) {
            tracing::error!("{problem}");
        }
        self.set_problems(problems);
        Loaded::Bad
    }

    pub(super) fn set_problems(&self, problems: Vec<Problem>) {
        *self.problems.lock() = problems;
    }
}

/// The files to watch, and the options to load them with.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Files and folders.
    pub paths: Vec<PathBuf>,
    /// Defaults for all rules, and the algorithms that the store can run.
    pub options: LoadOptions,
}

/// Keeps `rules` up to date with the files. Never returns.
pub async fn watch(rules: Arc<Rules>, watched: Watched, on_load: impl Fn(Loaded)) {
    let mut watcher = Watcher::new(rules, watched, compile_files);
    loop {
        time::sleep(READ_EVERY).await;
        if let Some(loaded) = watcher.poll().await {
            on_load(loaded);
        }
    }
}

/// Compiles the files. A test passes one that panics.
type Compile = fn(RuleFiles, LoadOptions) -> Result<InForce, Vec<Problem>>;

/// Follows the files from one read to the next.
struct Watcher {
    rules: Arc<Rules>,
    watched: Watched,
    compile: Compile,
    /// The newest content that was compiled, with or without success.
    tried: Version,
    /// The content of the last read.
    seen: Version,
}

impl Watcher {
    fn new(rules: Arc<Rules>, watched: Watched, compile: Compile) -> Self {
        let version = rules.current().version.clone();
        Self { rules, watched, compile, tried: version.clone(), seen: version }
    }

    /// Reads the files, and loads them if they have changed.
    ///
    /// New content is loaded once two consecutive reads have returned the same: a file may be half written, or some
    /// files may be newer than others.
    async fn poll(&mut self) -> Option<Loaded> {
        let paths = self.watched.paths.clone();
        let read = match off_thread(move || RuleFiles::read(&paths)).await {
            Ok(read) => read,
            Err(problem) => RuleFiles { problems: vec![problem], ..RuleFiles::default() },
        };
        let version = read.version();
        let settled = version == self.seen;
        self.seen = version.clone();
        if !settled || version == self.tried {
            return None;
        }
        self.tried = version.clone();
        let (compile, options) = (self.compile, self.watched.options);
        let compiled = off_thread(move || compile(read, options)).await;
        Some(match compiled.unwrap_or_else(|problem| Err(vec![problem])) {
            Ok(next) => self.rules.accept(next),
            Err(problems) => self.rules.refuse(&version, problems),
        })
    }
}

pub(super) fn count(problems: usize) -> String {
    match problems {
        1 => "1 problem".to_owned(),
        more => format!("{more} problems"),
    }
}

/// Runs `work` on a thread of its own. A panic becomes a problem of the rules: it must not end the service,
/// nor the watching.
pub(super) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    spawn_blocking(work).await.map_err(|_| Problem {
        file: "rules".to_owned(),
        location: None,
        message: "a bug in tollkeeper: reading them panicked; please report it".to_owned(),
    })
}

/// The outcome of loading new content.
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

    fn compile_or_panic(read: RuleFiles, options: LoadOptions) -> Result<InForce, Vec<Problem>> {
        assert!(!read.sources[0].text.contains("panic"), "a bug");
        compile_files(read, options)
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
        assert_eq!(watcher.poll().await, None);

        fs::write(&file, "domain: panic").unwrap();
        assert_eq!(watcher.poll().await, None, "not settled yet");
        assert_eq!(watcher.poll().await, Some(Loaded::Bad));
        assert_eq!(watcher.poll().await, None, "reported once");
        let problems = rules.problems();
        assert!(problems[0].message.contains("panicked"), "{problems:?}");
        assert!(rules.current().rules.domain("first").is_some());

        fs::write(&file, "domain: second").unwrap();
        assert_eq!(watcher.poll().await, None);
        assert_eq!(watcher.poll().await, Some(Loaded::Good));
        assert_eq!(rules.problems(), []);
        assert!(rules.current().rules.domain("second").is_some());
    }
}
