//! Clients that call without pause, and what they were answered.

use tokio::{sync::watch, task::JoinSet};
use tonic::{Response, Status};

use super::{cluster_calls::described, prelude::*};

/// A descriptor: its key and its value.
pub type Counted = (&'static str, String);

/// What calls were answered.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Number of calls that were admitted, by what they charged.
    pub admitted: BTreeMap<Counted, u64>,
    /// Number of calls that failed, by what they may have charged.
    pub uncertain: BTreeMap<Counted, u64>,
    /// The longest time between two admitted calls, and its end.
    pub gap: Option<(Duration, Instant)>,
    last_admitted: Option<Instant>,
    pub calls: usize,
    pub denied: usize,
    /// When calls that failed were answered, and how.
    pub failed: Vec<(Instant, String)>,
    /// The longest time to an answer.
    pub longest: Duration,
}

impl Ledger {
    /// Adds a call that has just been answered.
    fn add(
        &mut self,
        call: &[Counted],
        sent: Instant,
        answer: Result<Response<RateLimitResponse>, Status>,
    ) {
        let now = Instant::now();
        self.calls += 1;
        self.longest = self.longest.max(now - sent);
        let count = |of: &mut BTreeMap<Counted, u64>| {
            call.iter().for_each(|counted| *of.entry(counted.clone()).or_default() += 1);
        };
        match answer {
            Ok(answer) if answer.get_ref().overall_code() == Code::Ok => {
                count(&mut self.admitted);
                let last = self.last_admitted.replace(now);
                self.gap = self.gap.max(last.map(|last| (now - last, now)));
            }
            Ok(_) => self.denied += 1,
            Err(status) => {
                self.failed.push((now, status.to_string()));
                count(&mut self.uncertain);
            }
        }
    }
}

pub struct Load {
    clients: JoinSet<()>,
    ledger: Arc<Mutex<Ledger>>,
    stop: watch::Sender<bool>,
}

impl Load {
    /// This number of clients make these calls in turn, until [`stop`](Self::stop), or until each was made so
    /// often.
    pub async fn start(
        services: &[&Service],
        clients: usize,
        calls: Vec<Vec<Counted>>,
        rounds: usize,
    ) -> Self {
        Self::paced(services, clients, calls, rounds, Duration::ZERO).await
    }

    /// Like [`start`](Self::start), with a pause of each client between its calls.
    pub async fn paced(
        services: &[&Service],
        clients: usize,
        calls: Vec<Vec<Counted>>,
        rounds: usize,
        pause: Duration,
    ) -> Self {
        let stop = watch::channel(false).0;
        let (calls, next) = (Arc::new(calls), Arc::new(AtomicUsize::new(0)));
        let mut load = Self { clients: JoinSet::new(), ledger: Arc::default(), stop };
        for number in 0..clients {
            let mut client = services[number % services.len()].client().await;
            let (calls, next, stopped) =
                (Arc::clone(&calls), Arc::clone(&next), load.stop.subscribe());
            let ledger = Arc::clone(&load.ledger);
            load.clients.spawn(async move {
                while !*stopped.borrow() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number / calls.len() >= rounds {
                        return;
                    }
                    let call = &calls[number % calls.len()];
                    let descriptors = call.iter().map(described).collect();
                    let sent = Instant::now();
                    let answer = client.should_rate_limit(request("shop", descriptors)).await;
                    ledger.lock().unwrap().add(call, sent, answer);
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                }
            });
        }
        load
    }

    /// Waits until some more calls are admitted.
    pub fn goes_on(&self) {
        let admitted = || self.ledger.lock().unwrap().admitted.values().sum::<u64>();
        let before = admitted();
        wait_until("calls are admitted", || admitted() > before + 20);
    }

    /// Stops, and waits for the answers to all calls.
    pub async fn stop(self) -> Ledger {
        self.stop.send_replace(true);
        self.end().await
    }

    /// Waits until every call has been made as often as it should.
    pub async fn end(self) -> Ledger {
        self.clients.join_all().await;
        std::mem::take(&mut *self.ledger.lock().unwrap())
    }
}
