//! The rules in force, and their reload while the service runs: when the content of the files changes. If
//! the new content has a problem, the last good rules stay.

use std::{mem, path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{task::spawn_blocking, time};
use tollkeeper_base::telemetry::{EventKind, happened};
use tollkeeper_engine::text::counted;
use tollkeeper_yaml::{Problem, first_lines};

use super::{
    load::{InForce, RuleFiles, Version, compile_files},
    options::LoadOptions,
};

/// How often the files are read. The system's notifications would miss changes: network file systems send
/// none, and kubelet swaps a link.
const READ_EVERY: Duration = Duration::from_millis(500);

/// The rules in force. Its users need not know where the rules come from.
#[derive(Debug)]
pub struct Rules {
    /// What log lines call them.
    name: &'static str,
    current: ArcSwap<InForce>,
    /// The rules of the files or of the control plane; a promoted candidate may be in force instead. Lock it to replace `current`.
    written: Mutex<Arc<InForce>>,
    /// By [`RuleOrigin`], the problems of the newest content, if it could not be loaded.
    problems: Mutex<[Vec<Problem>; 2]>,
}

/// Where content comes from. What one has refused says nothing about the other.
#[derive(Debug, Clone, Copy)]
pub(super) enum RuleOrigin {
    Files,
    ControlPlane,
}

impl Rules {
    pub fn new(first: InForce) -> Self {
        Self::named("rules", first)
    }

    /// Like [`new`](Self::new), for rules that log lines call by this name.
    pub fn named(name: &'static str, first: InForce) -> Self {
        let (first, problems) = (Arc::new(first), Mutex::default());
        let (current, written) = (ArcSwap::new(Arc::clone(&first)), Mutex::new(first));
        Self { name, current, written, problems }
    }

    /// The rules for one call, which keeps this version to its end.
    pub fn current(&self) -> Arc<InForce> {
        self.current.load_full()
    }

    /// The newest good rules of their origin.
    pub fn written(&self) -> Arc<InForce> {
        Arc::clone(&self.written.lock())
    }

    /// Puts promoted rules in force in place of the written ones, or the written ones again. Returns whether that is a
    /// change.
    pub fn promote(&self, promoted: Option<Arc<InForce>>) -> bool {
        let written = self.written.lock();
        let next = promoted.unwrap_or_else(|| Arc::clone(&written));
        let current = self.current();
        let changes = !Arc::ptr_eq(&next, &current);
        if changes {
            next.rules.inherit(&current.rules);
            let (version, before) = (&next.version, &current.version);
            let what = if Arc::ptr_eq(&next, &written) {
                "the written rules are in force again"
            } else {
                "a promoted candidate is in force"
            };
            tracing::info!(%version, %before, "{what}");
            happened(EventKind::RulesLoaded, format!("{what}: version {version}, before {before}"));
            self.current.store(next);
        }
        changes
    }

    /// The problems of the newest content of each origin; empty if all of it is in force.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().concat()
    }

    /// Puts new content in force, with its warnings in the log.
    pub(super) fn accept(&self, next: InForce, origin: RuleOrigin) -> Loaded {
        next.log(self.name);
        let (domains, rules) = next.rules.counts();
        let (name, version) = (self.name, &next.version);
        let text = format!("version {version}, {name}: {rules}, domains: {domains}");
        happened(EventKind::RulesLoaded, text);
        next.rules.inherit(&self.current().rules);
        let (next, mut written) = (Arc::new(next), self.written.lock());
        self.current.store(Arc::clone(&next));
        *written = next;
        drop(written);
        self.set_problems(origin, Vec::new());
        Loaded::Good
    }

    /// Logs the problems of new content. The previous rules stay.
    pub(super) fn refuse(
        &self,
        version: &Version,
        problems: Vec<Problem>,
        origin: RuleOrigin,
    ) -> Loaded {
        let (name, count) = (self.name, counted(problems.len(), "problem"));
        tracing::error!(%version, "{name} not loaded ({count}); the previous ones stay");
        for problem in first_lines(&problems) {
            tracing::error!("{problem}");
        }
        if let Some(first) = problems.first() {
            let text = format!("version {version} of the {name}, {count}: {first}");
            happened(EventKind::RulesRefused, text);
        }
        self.set_problems(origin, problems);
        Loaded::Bad
    }

    /// Returns the problems that there were.
    pub(super) fn set_problems(&self, origin: RuleOrigin, problems: Vec<Problem>) -> Vec<Problem> {
        let [files, control_plane] = &mut *self.problems.lock();
        let present = match origin {
            RuleOrigin::Files => files,
            RuleOrigin::ControlPlane => control_plane,
        };
        mem::replace(present, problems)
    }
}

/// The files to watch, and the options to load them with.
#[derive(Debug, Clone)]
pub struct Watched {
    pub paths: Vec<PathBuf>,
    pub overlays: Vec<PathBuf>,
    /// Defaults for all rules, and the algorithms that the store can run.
    pub options: LoadOptions,
}

/// Keeps `rules` up to date with the files. Never returns.
pub async fn watch(rules: Arc<Rules>, watched: Watched, on_load: impl Fn(Loaded)) {
    let Watched { paths, overlays, options } = watched;
    let read = move || RuleFiles::read(&paths, &overlays);
    let mut files = FollowedFiles::new(read, rules.written().version.clone());
    loop {
        on_load(reload(&rules, files.next().await, options, compile_files).await);
    }
}

/// Compiles new content, and puts it in force if it has no problem.
async fn reload(rules: &Rules, read: RuleFiles, options: LoadOptions, compile: Compile) -> Loaded {
    let version = read.version();
    // What was refused is taken back. To load the same rules again would end a promotion.
    if version == rules.written().version {
        tracing::info!(%version, "{} are again as they were loaded", rules.name);
        rules.set_problems(RuleOrigin::Files, Vec::new());
        return Loaded::Good;
    }
    let compiled = off_thread(move || compile(read, options)).await;
    match compiled.unwrap_or_else(|problem| Err(vec![problem])) {
        Ok(next) => rules.accept(next, RuleOrigin::Files),
        Err(problems) => rules.refuse(&version, problems, RuleOrigin::Files),
    }
}

/// Compiles the files. A test passes one that panics.
type Compile = fn(RuleFiles, LoadOptions) -> Result<InForce, Vec<Problem>>;

/// The content of files, from one read to the next.
pub(super) struct FollowedFiles<R> {
    read: R,
    /// The newest content that was returned.
    tried: Version,
    /// The content of the last read.
    seen: Version,
}

impl<R: Fn() -> RuleFiles + Clone + Send + 'static> FollowedFiles<R> {
    pub(super) fn new(read: R, known: Version) -> Self {
        Self { read, tried: known.clone(), seen: known }
    }

    /// Reads the files. Returns their content if it is new.
    ///
    /// New content is returned once two consecutive reads have found the same: a file may be half written, or some
    /// files may be newer than others.
    async fn poll(&mut self) -> Option<RuleFiles> {
        let read = off_thread(self.read.clone()).await.unwrap_or_else(|problem| RuleFiles {
            problems: vec![problem],
            ..RuleFiles::default()
        });
        let version = read.version();
        let settled = version == self.seen;
        self.seen = version.clone();
        if !settled || version == self.tried {
            return None;
        }
        self.tried = version;
        Some(read)
    }

    pub(super) async fn next(&mut self) -> RuleFiles {
        loop {
            time::sleep(READ_EVERY).await;
            if let Some(read) = self.poll().await {
                return read;
            }
        }
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
    use crate::load;

    fn compile_or_panic(read: RuleFiles, options: LoadOptions) -> Result<InForce, Vec<Problem>> {
        assert!(!read.sources[0].text.contains("panic"), "a bug");
        compile_files(read, options)
    }

    #[tokio::test]
    async fn a_panic_while_compiling_is_a_problem_and_the_last_good_rules_stay() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.yaml");
        fs::write(&file, "domain: first").unwrap();
        let (paths, options) = ([file.clone()], LoadOptions::default());
        let rules = Rules::new(load(&paths, &[], options).unwrap());
        let known = rules.current().version.clone();
        let mut files = FollowedFiles::new(move || RuleFiles::read(&paths, &[]), known);
        assert!(files.poll().await.is_none());

        fs::write(&file, "domain: panic").unwrap();
        assert!(files.poll().await.is_none(), "not settled yet");
        let read = files.poll().await.unwrap();
        assert_eq!(reload(&rules, read, options, compile_or_panic).await, Loaded::Bad);
        assert!(files.poll().await.is_none(), "reported once");
        let problems = rules.problems();
        assert!(problems[0].message.contains("panicked"), "{problems:?}");
        assert!(rules.current().rules.domain("first").is_some());

        fs::write(&file, "domain: second").unwrap();
        assert!(files.poll().await.is_none());
        let read = files.poll().await.unwrap();
        assert_eq!(reload(&rules, read, options, compile_or_panic).await, Loaded::Good);
        assert_eq!(rules.problems(), []);
        assert!(rules.current().rules.domain("second").is_some());
    }
}
