//! What the log gets: one line at once about each kind of event, and then at most one a minute.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{mem, time::Duration};

use tokio::time::Instant;
use tracing::Level;

use crate::{ServiceError, v1::Verdict};

const PAUSE: Duration = Duration::from_secs(60);
/// Of a text of the service.
const CHARACTERS_MAX: usize = 300;

/// What is said of one, and of more.
type Words = [[&'static str; 2]; 2];
pub(crate) const CALLS: Words = [
    ["call", "had no answer and was decided by on_failure"],
    ["calls", "had no answer and were decided by on_failure"],
];
pub(crate) const COMMITS: Words = [
    ["commit", "failed, and its estimate may count in place of what was used"],
    ["commits", "failed, and their estimates may count in place of what was used"],
];
const UNKNOWN: Words = [
    ["call", "met no limit, because the service has no such domain"],
    ["calls", "met no limit, because the service has no such domain"],
];

/// The lines of a client and its views.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) target: String,
    /// By what they are about.
    lines: Mutex<HashMap<String, Line>>,
    /// Whether a line is to be written later.
    has_unsaid: AtomicBool,
}

#[derive(Default)]
struct Line {
    written: Option<Instant>,
    /// Number of events that it does not show yet.
    events: usize,
    /// Writes it with their number.
    write: Option<Box<dyn Fn(usize) + Send>>,
}

impl Log {
    pub(crate) fn new(target: String) -> Self {
        Self { target, ..Self::default() }
    }

    /// Logs errors of calls or commits.
    pub(crate) fn errors<'a>(
        &self,
        words: &'static Words,
        domain: &str,
        errors: impl DoubleEndedIterator<Item = &'a ServiceError> + Clone,
    ) {
        let Some(last) = errors.clone().next_back() else { return self.remind(false) };
        let reason = format!("; the last: {}", service_text(last));
        self.warn(words, domain, errors.count(), &reason);
    }

    /// Logs the calls whose domain no rules have.
    pub(crate) fn unknown(&self, domain: &str, verdicts: &[Verdict]) {
        let calls = verdicts.iter().filter(|verdict| verdict.domain_unknown).count();
        if calls > 0 {
            self.warn(&UNKNOWN, domain, calls, "");
        }
    }

    fn warn(&self, [one, many]: &'static Words, domain: &str, events: usize, reason: &str) {
        let kind = format!("{one:?} {domain}");
        let (domain, end) = (shown(domain), format!("{reason} (target {})", self.target));
        let line = move |number| {
            let [what, effect] = if number == 1 { one } else { many };
            format!("{number} {what} of the domain {domain:?} {effect}{end}")
        };
        self.add(Level::WARN, &kind, events, line);
    }

    /// Counts events of a kind. Their line, by their number, is written now or later.
    pub(crate) fn add(
        &self,
        level: Level,
        kind: &str,
        events: usize,
        line: impl Fn(usize) -> String + Send + 'static,
    ) {
        let write = move |events| write(level, &line(events));
        let mut lines = self.lines();
        let line = lines.entry(kind.to_owned()).or_default();
        line.events += events;
        line.write = Some(Box::new(write));
        drop(lines);
        self.has_unsaid.store(true, Relaxed);
        self.remind(false);
    }

    /// Writes the lines whose minute is over; all if the client closes.
    pub(crate) fn remind(&self, closes: bool) {
        if !self.has_unsaid.load(Relaxed) {
            return;
        }
        let (mut lines, mut due) = (self.lines(), Vec::new());
        for line in lines.values_mut() {
            let is_quiet = line.written.is_some_and(|written| written.elapsed() < PAUSE);
            if let Some(write) = line.write.take_if(|_| closes || !is_quiet) {
                line.written = Some(Instant::now());
                due.push((write, mem::take(&mut line.events)));
            }
        }
        self.has_unsaid.store(lines.values().any(|line| line.write.is_some()), Relaxed);
        drop(lines);
        due.into_iter().for_each(|(write, events)| write(events));
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<String, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes a line. What gets it is the application's: its panic must not reach the caller.
fn write(level: Level, line: &str) {
    let line = shown(line);
    let write = || match level {
        Level::ERROR => tracing::error!("tollkeeper: {line}"),
        Level::WARN => tracing::warn!("tollkeeper: {line}"),
        _ => tracing::info!("tollkeeper: {line}"),
    };
    let _ = catch_unwind(AssertUnwindSafe(write));
}

/// The text on one line, and in its order.
fn shown(text: &str) -> String {
    let is_seen = |it: char| {
        !it.is_control() && !matches!(it, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|it| if is_seen(it) { it } else { ' ' }).collect()
}

/// An error of the service, whose message may be long.
pub(crate) fn service_text(ServiceError { code, message }: &ServiceError) -> String {
    let end = message.char_indices().nth(CHARACTERS_MAX);
    let cut = end.and_then(|(index, _)| message.get(..index));
    cut.map_or_else(|| format!("{code}: {message}"), |cut| format!("{code}: {cut}…"))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, atomic::AtomicUsize};
    use std::{convert::Infallible, future::ready};

    use tonic::{Request, Response, body::Body, server::Grpc};
    use tonic_prost::ProstCodec;
    use tower::service_fn;

    use super::*;
    use crate::v1::{CommitResponse, CommitResult, DecideResponse, RenewResponse, RenewResult};
    use crate::{Client, Fake, Limiter, Options, on};

    #[tokio::test]
    async fn the_number_of_an_outage_is_said_when_its_minute_is_over_or_the_client_closes() {
        let client = Fake::default().client(Options::new("shop")).unwrap();
        let log = &client.shared.log;
        let said = Arc::new(Mutex::new(Vec::new()));
        let add = |events| {
            let said = Arc::clone(&said);
            let line = move |number| {
                said.lock().unwrap().push(number);
                String::new()
            };
            log.add(Level::INFO, "an outage", events, line);
        };
        (1..4).for_each(add);
        client.decide(on("user", "a")).await.unwrap();
        assert_eq!(*said.lock().unwrap(), [1]);
        for line in log.lines().values_mut() {
            line.written = line.written.and_then(|written| written.checked_sub(PAUSE));
        }
        client.decide(on("user", "a")).await.unwrap();
        assert_eq!(*said.lock().unwrap(), [1, 5]);
        (4..6).for_each(add);
        client.close().await;
        client.close().await;
        assert_eq!(*said.lock().unwrap(), [1, 5, 9]);
    }

    /// A service without rules for the domain, which holds a token.
    async fn serve(request: http::Request<Body>) -> Result<http::Response<Body>, Infallible> {
        let (code, hold) = (1, "token".to_owned());
        let verdict = Verdict { code, hold, domain_unknown: true, ..Verdict::default() };
        Ok(match request.uri().path().rsplit('/').next() {
            Some("Decide") => answer(request, DecideResponse { verdicts: vec![verdict] }).await,
            Some("Renew") => {
                let result = RenewResult { verdict: Some(verdict), commit: None };
                answer(request, RenewResponse { results: vec![result] }).await
            }
            _ => answer(request, CommitResponse { results: vec![CommitResult::default()] }).await,
        })
    }

    async fn answer<Answer: prost::Message + Clone + 'static>(
        request: http::Request<Body>,
        answer: Answer,
    ) -> http::Response<Body> {
        let answer = service_fn(|_: Request<()>| ready(Ok(Response::new(answer.clone()))));
        Grpc::new(ProstCodec::default()).unary(answer, request).await
    }

    #[tokio::test]
    async fn an_unknown_domain_is_counted_in_each_verdict_also_of_a_renewal_and_a_lease() {
        let [asked, heard] = [(), ()].map(|()| Arc::<AtomicUsize>::default());
        let (counts, hears) = (Arc::clone(&asked), Arc::clone(&heard));
        let service = service_fn(move |request: http::Request<Body>| {
            let is_commit = request.uri().path().ends_with("Commit");
            counts.fetch_add(usize::from(!is_commit), Relaxed);
            serve(request)
        });
        let options = Options::new("shop").timeout(PAUSE).on_call(move |method, _, _| {
            hears.fetch_add(usize::from(method != "commit"), Relaxed);
        });
        let client = Client::over(service, options).unwrap();
        let mut hold = client.hold(on("user", "a")).await.unwrap();
        assert!(hold.renew(None, on("user", "a")).await.unwrap().allowed);
        let limiter = Limiter::new(&client);
        // The hook does not hear of a lease.
        while asked.load(Relaxed) == heard.load(Relaxed) {
            assert!(limiter.decide(on("user", "a")).await.unwrap().allowed);
            tokio::task::yield_now().await;
        }
        client.shared.closes.send_replace(true);
        client.shared.closes.closed().await;
        let lines = client.shared.log.lines();
        let unsaid: Vec<_> = lines.values().map(|line| line.events).collect();
        assert_eq!(unsaid, [asked.load(Relaxed) - 1], "all but the first");
    }
}
