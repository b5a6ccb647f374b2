//! What the log gets: one line at once about each kind of event, and then at most one a minute.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

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
    lines: Mutex<Lines>,
    /// Whether `lines` has any.
    has_lines: AtomicBool,
}

/// The kinds of events with a line in the last minute.
#[derive(Default)]
struct Lines {
    /// What they are about, and when the next line of each is due, in that order.
    due: VecDeque<(Instant, Arc<str>)>,
    unsaid: HashMap<Arc<str>, Option<Unsaid>>,
}

/// What no line shows yet.
struct Unsaid {
    events: usize,
    /// Writes a line with their number.
    write: Box<dyn Fn(usize) + Send>,
}

impl Lines {
    /// Adds events of a kind. The first line of a kind is due at once.
    fn add(&mut self, kind: &str, unsaid: Unsaid, now: Instant) {
        if let Some(before) = self.unsaid.get_mut(kind) {
            let events = unsaid.events + before.as_ref().map_or(0, |before| before.events);
            *before = Some(Unsaid { events, ..unsaid });
            return;
        }
        let kind = Arc::<str>::from(kind);
        self.due.push_front((now, Arc::clone(&kind)));
        self.unsaid.insert(kind, Some(unsaid));
    }

    /// Takes what each kind that is due has to say; each kind if the client closes. One with nothing to say is forgotten.
    fn take_due(&mut self, now: Instant, closes: bool) -> Vec<Option<Unsaid>> {
        let is_due = |(due, _): &&(Instant, Arc<str>)| closes || *due <= now;
        let number = self.due.iter().take_while(is_due).count();
        let kinds: Vec<_> = self.due.drain(..number).map(|(_, kind)| kind).collect();
        let take = |kind: Arc<str>| {
            let unsaid = self.unsaid.get_mut(&kind).and_then(Option::take);
            if unsaid.is_some() || closes {
                self.due.push_back((now + PAUSE, kind));
            } else {
                self.unsaid.remove(&kind);
            }
            unsaid
        };
        kinds.into_iter().map(take).collect()
    }
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
        // One with an error is a failed call.
        let is_unknown = |it: &&Verdict| it.domain_unknown && it.error.is_none();
        let calls = verdicts.iter().filter(is_unknown).count();
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
        let write = Box::new(move |events| write(level, &line(events)));
        let mut lines = self.lines();
        lines.add(kind, Unsaid { events, write }, Instant::now());
        self.has_lines.store(true, Relaxed);
        drop(lines);
        self.remind(false);
    }

    /// Writes the lines whose minute is over; all if the client closes.
    pub(crate) fn remind(&self, closes: bool) {
        if !self.has_lines.load(Relaxed) {
            return;
        }
        let mut lines = self.lines();
        let due = lines.take_due(Instant::now(), closes);
        self.has_lines.store(!lines.due.is_empty(), Relaxed);
        drop(lines);
        due.into_iter().flatten().for_each(|Unsaid { events, write }| write(events));
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
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
    use std::sync::atomic::AtomicUsize;
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
        for (due, _) in &mut log.lines().due {
            *due = due.checked_sub(PAUSE).unwrap();
        }
        client.decide(on("user", "a")).await.unwrap();
        assert_eq!(*said.lock().unwrap(), [1, 5]);
        (4..6).for_each(add);
        client.close().await;
        client.close().await;
        assert_eq!(*said.lock().unwrap(), [1, 5, 9]);
    }

    #[test]
    fn only_kinds_that_are_due_are_looked_at_and_a_quiet_one_is_forgotten_after_a_minute() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let add = |lines: &mut Lines, kind: u64, events, ms| {
            let write = Box::new(|_| ());
            lines.add(&format!("domain {kind}"), Unsaid { events, write }, at(ms));
        };
        let look = |lines: &mut Lines, ms, closes| {
            let looked_at = lines.take_due(at(ms), closes);
            let events = |it: Option<Unsaid>| it.map_or(0, |it| it.events);
            looked_at.into_iter().map(events).collect::<Vec<_>>()
        };
        for kind in 0..30_000 {
            add(&mut lines, kind, 1, kind);
            assert_eq!(look(&mut lines, kind, false), [1], "of all kinds, only the new one");
        }
        add(&mut lines, 0, 2, 30_000);
        add(&mut lines, 0, 3, 30_000);
        assert!(look(&mut lines, 59_999, false).is_empty());
        assert_eq!(look(&mut lines, 60_001, false), [5, 0]);
        assert_eq!((lines.due.len(), lines.unsaid.len()), (29_999, 29_999), "one is forgotten");
        add(&mut lines, 1, 4, 60_001);
        assert_eq!(look(&mut lines, 60_001, false), [4], "it is new again");
        assert_eq!(look(&mut lines, 90_000, false).len(), 29_998);
        assert_eq!(look(&mut lines, 90_000, true), [0, 0], "the client closes");
        assert!(look(&mut lines, 149_999, false).is_empty());
        assert_eq!(look(&mut lines, 150_000, false), [0, 0]);
        assert_eq!((lines.due.len(), lines.unsaid.len()), (0, 0));
    }

    #[test]
    fn a_verdict_with_an_error_is_a_failure_only() {
        let log = Log::default();
        let error = Some(tonic_types::pb::Status::default());
        let failed = Verdict { domain_unknown: true, error, ..Verdict::default() };
        log.unknown("shop", &[failed]);
        assert!(log.lines().due.is_empty());
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
        let unsaid: Vec<_> = lines.unsaid.values().flatten().map(|it| it.events).collect();
        assert_eq!(unsaid, [asked.load(Relaxed) - 1], "all but the first");
    }
}
