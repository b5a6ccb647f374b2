//! Addresses of services, and what the package logs.
#![allow(dead_code, reason = "each test uses a part")]

use std::{
    env, fmt,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tollkeeper_client::{Client, Options};
use tracing::field::{Field, Visit};
use tracing::subscriber::{DefaultGuard, set_default};
use tracing::{Event, Metadata, Subscriber, span};

/// An address that the tests of the repository set; ../conformance/README.md describes them. Without a service, a test
/// of one has nothing to do.
pub fn service(name: &str) -> Option<String> {
    let address = env::var(name).ok();
    if address.is_none() {
        println!("{name} is not set: not tested");
    }
    address
}

/// A timeout for busy machines.
pub fn patient() -> Options {
    Options::new("conformance").timeout(Duration::from_secs(10))
}

pub fn connect(address: &str, options: Options) -> Client {
    Client::new(address, options).unwrap()
}

/// A text that no other run has, so that its counters are new.
pub fn unique() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    format!("{}-{:?}", now.as_nanos(), std::thread::current().id())
}

/// The lines that this thread logs from now on.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        (log.clone(), set_default(log))
    }

    /// The lines of the package.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.starts_with("tollkeeper: ")).cloned().collect()
    }
}

impl Visit for Log {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
