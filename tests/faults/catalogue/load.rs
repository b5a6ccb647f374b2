//! Clients that call at a steady rate, and the ledger of what they were answered.

use tokio::{
    runtime::{Builder, Runtime},
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{Reach, outcome::Recovery};
use crate::support::{prelude::*, service::waited_for_cpu};

/// The values of `on_store_failure`, each the key of a rule.
pub(super) const MODES: [&str; 4] = ["error", "deny", "allow", "local"];

/// The key of a rule whose counter a fault of the first node of a Cluster does not affect, and its index after the
/// [`MODES`].
pub(super) const SPARED: &str = "spared";
const SPARED_INDEX: usize = MODES.len();

/// Each mode has a call in this time, in turn on the large limit and on the small one.
const PAUSE: Duration = Duration::from_millis(8);

/// A call without an answer after this time hangs.
const HANGS: Duration = Duration::from_secs(10);

/// How long there must be no bad answer before service counts as back, and how long to wait for that.
const QUIET: Duration = Duration::from_millis(400);
const RECOVERS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Ok,
    OverLimit,
    Unavailable,
    /// No answer, or another error.
    Other,
}

/// One call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    /// Its place in [`MODES`], or the one after them.
    pub mode: usize,
    pub is_small: bool,
    pub sent: Instant,
    pub answered: Instant,
    pub answer: Answer,
}

pub(super) type Ledger = Vec<Call>;

/// Running clients.
pub(super) struct Load {
    runtime: Runtime,
    clients: JoinSet<()>,
    ledger: Arc<Mutex<Ledger>>,
    stop: watch::Sender<bool>,
}

impl Load {
    pub(super) fn start(service: SocketAddr, reach: Reach) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ledger = Arc::new(Mutex::new(Ledger::new()));
        let stop = watch::channel(false).0;
        let mut clients = JoinSet::new();
        let keys = match reach {
            Reach::All => 0..MODES.len(),
            Reach::FirstNode => 0..SPARED_INDEX + 1,
        };
        for mode in keys {
            let client = call_at_a_rate(service, mode, Arc::clone(&ledger), stop.subscribe());
            clients.spawn_on(client, runtime.handle());
        }
        Self { runtime, clients, ledger, stop }
    }

    /// Waits until Redis has answered every call for a while, and returns how long after `healed` the last one
    /// without its answer was answered; `None` if that takes too long.
    pub(super) fn recovered_after(&self, healed: Instant, service: u32) -> Option<Recovery> {
        const STEP: Duration = Duration::from_millis(20);
        let (mut starved, before) = (Duration::ZERO, waited_for_cpu(service));
        while healed.elapsed() < RECOVERS_WITHIN {
            let began = Instant::now();
            thread::sleep(STEP);
            starved += began.elapsed().saturating_sub(STEP);
            let ledger = self.ledger.lock().unwrap();
            let last_bad = ledger.iter().filter(|call| call.is_bad()).map(|call| call.answered);
            let last_bad = last_bad.max().map_or(healed, |at| at.max(healed));
            let good = ledger
                .iter()
                .filter(|call| call.sent > last_bad && call.answered - last_bad > QUIET);
            if last_bad.elapsed() > QUIET && good.count() > 0 {
                starved += waited_for_cpu(service).saturating_sub(before);
                return Some(Recovery { after: last_bad - healed, starved });
            }
        }
        None
    }

    /// The calls that were answered since the last time.
    pub(super) fn take(&self) -> Ledger {
        std::mem::take(&mut *self.ledger.lock().unwrap())
    }

    /// The number of calls after `from` that the fault spares and that are answered.
    pub(super) fn spared_since(&self, from: Instant) -> usize {
        let ledger = self.ledger.lock().unwrap();
        ledger.iter().filter(|call| call.is_spared() && call.sent >= from).count()
    }

    /// Waits for the answers to all calls.
    pub(super) fn stop(self) -> Ledger {
        self.stop.send_replace(true);
        self.runtime.block_on(self.clients.join_all());
        self.runtime.shutdown_background();
        std::mem::take(&mut *self.ledger.lock().unwrap())
    }
}

impl Call {
    /// Whether no fault of the first node affects it.
    pub(super) fn is_spared(&self) -> bool {
        self.mode == SPARED_INDEX
    }

    /// Whether only a store that fails answers a call on a large limit like this.
    pub(super) fn is_bad(&self) -> bool {
        !self.is_small && shows_failure(self.mode) && self.answer != Answer::Ok
    }
}

/// Whether this mode answers calls on a large limit otherwise than Redis does.
pub(super) fn shows_failure(mode: usize) -> bool {
    MODES.get(mode).is_some_and(|mode| ["error", "deny"].contains(mode))
}

async fn call_at_a_rate(
    service: SocketAddr,
    mode: usize,
    ledger: Arc<Mutex<Ledger>>,
    mut stop: watch::Receiver<bool>,
) {
    let endpoint = Channel::from_shared(format!("http://{service}")).unwrap();
    let client = RateLimitServiceClient::new(endpoint.connect().await.unwrap());
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut calls = JoinSet::new();
    let mut is_small = false;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.changed() => break,
        }
        is_small = !is_small && mode != SPARED_INDEX;
        let (client, ledger) = (client.clone(), Arc::clone(&ledger));
        calls.spawn(async move {
            let call = call(client, mode, is_small, None).await;
            ledger.lock().unwrap().push(call);
        });
        while calls.try_join_next().is_some() {}
    }
    calls.join_all().await;
}

/// One call on the large or the small limit of a mode, by a client that may announce how long it waits.
pub(super) async fn call(
    mut client: RateLimitServiceClient<Channel>,
    mode: usize,
    is_small: bool,
    waits: Option<Duration>,
) -> Call {
    let value = if is_small { "small" } else { "large" };
    let key = MODES.get(mode).unwrap_or(&SPARED);
    let descriptors = vec![descriptor(&[(key, value)])];
    let mut request = tonic::Request::new(request("faults", descriptors));
    waits.inspect(|waits| request.set_timeout(*waits));
    let sent = Instant::now();
    let answer = timeout(HANGS, client.should_rate_limit(request)).await;
    let answer = match answer {
        Ok(Ok(answer)) if answer.get_ref().overall_code() == Code::Ok => Answer::Ok,
        Ok(Ok(_)) => Answer::OverLimit,
        Ok(Err(status)) if status.code() == tonic::Code::Unavailable => Answer::Unavailable,
        _ => Answer::Other,
    };
    Call { mode, is_small, sent, answered: Instant::now(), answer }
}
