//! Addresses of services, and what the package logs.
#![allow(dead_code, reason = "each test uses a part")]

use std::{
    cell::RefCell,
    env, fmt,
    sync::Once,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tollkeeper_client::{Client, Options};
use tracing::field::{Field, Visit};
use tracing::subscriber::set_global_default;
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
    Log::listen();
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

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The lines that this thread logs from now on.
pub struct Log;

impl Log {
    /// Listens to all threads. A line that one without a listener logs first would be silent in the others too: tracing asks
    /// once for each whether anyone listens.
    fn listen() {
        static LISTENS: Once = Once::new();
        LISTENS.call_once(|| set_global_default(Self).unwrap());
    }

    pub fn start() -> Self {
        Self::listen();
        LINES.take();
        Self
    }

    /// The lines of the package.
    pub fn lines(&self) -> Vec<String> {
        let is_own = |line: &&String| line.starts_with("tollkeeper: ");
        LINES.with_borrow(|lines| lines.iter().filter(is_own).cloned().collect())
    }
}

impl Visit for Log {
    fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
        LINES.with_borrow_mut(|lines| lines.push(format!("{value:?}")));
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tollkeeper")
    }

    fn event(&self, event: &Event<'_>) {
        event.record(&mut Self);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
