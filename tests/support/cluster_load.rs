//! Clients that call without pause, and what they were answered.

use tokio::{sync::watch, task::JoinSet};

use super::{cluster_calls::described, prelude::*};

/// A descriptor: its key and its value.
pub type Counted = (&'static str, String);

/// What calls were answered.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Number of calls that were admitted, by what they charged.
    pub admitted: BTreeMap<Counted, u64>,
    pub calls: usize,
    pub denied: usize,
    /// When calls that failed were answered, and how.
    pub failed: Vec<(Instant, String)>,
    /// The longest time to an answer.
    pub longest: Duration,
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
                    let answered = Instant::now();
                    let mut ledger = ledger.lock().unwrap();
                    ledger.calls += 1;
                    ledger.longest = ledger.longest.max(answered - sent);
                    match answer {
                        Ok(answer) if answer.get_ref().overall_code() == Code::Ok => {
                            for counted in call {
                                *ledger.admitted.entry(counted.clone()).or_default() += 1;
                            }
                        }
                        Ok(_) => ledger.denied += 1,
                        Err(status) => ledger.failed.push((answered, status.to_string())),
                    }
                }
            });
        }
        load
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
