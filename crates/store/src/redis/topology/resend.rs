//! Sends what was kept: in batches, and ever more seldom to servers that refuse it.

use std::{iter, sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};

use crate::{
    redis::{
        node::{
            decided::NotDecided,
            owed::Owed,
            unsent::{RELEASED_AFTER, Unsent},
        },
        script::work::NodeWork,
    },
    sync::{
        Mutex,
        time::{self, Instant},
    },
};

/// How long servers are left alone that refuse what is sent: first this, and twice as long after each round in which
/// nothing succeeds, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// How many are sent at once. They share batches with calls, and take a third of one at most.
const SENT_AT_ONCE: usize = 16;

/// A store that sends what was kept.
pub(crate) trait Resend {
    /// Which server does this work: an error of one says nothing about others.
    fn server(&self, work: &NodeWork) -> Option<usize>;

    /// Does work that was kept, unless its window has ended.
    fn send(&self, owed: Owed) -> impl Future<Output = Result<(), NotDecided>> + Send;
}

/// What has become of the works that were sent at once.
#[derive(Debug, Default)]
struct Round {
    has_succeeded: bool,
    /// The servers that have refused one, or gave no answer. They are sent no more in this round.
    failing: Vec<Option<usize>>,
}

/// Sends by `sender` what is kept, as long as this runs.
pub(crate) async fn follow(unsent: &Arc<Unsent>, sender: &impl Resend) {
    let mut pause = PAUSE_MIN;
    loop {
        let Round { has_succeeded, failing } = send_due(unsent, sender, Instant::now()).await;
        pause = match failing.is_empty() || has_succeeded {
            true => PAUSE_MIN,
            false => (2 * pause).min(PAUSE_MAX),
        };
        if unsent.waiting() == 0 {
            unsent.arrived.notified().await;
        } else {
            time::sleep(pause).await;
        }
    }
}

/// Sends by `sender` what is kept, for this time at most, and drops the rest.
pub(crate) async fn end(unsent: &Arc<Unsent>, time: Duration, sender: &impl Resend) {
    let all = async {
        while !unsent.is_empty() {
            send_due(unsent, sender, Instant::now() + RELEASED_AFTER).await;
            time::sleep(PAUSE_MIN).await;
        }
    };
    drop(time::timeout(time, all).await);
    unsent.drop_all();
}

/// Tries once to send each that is due by `due`.
async fn send_due(unsent: &Arc<Unsent>, sender: &impl Resend, due: Instant) -> Round {
    let mut left = unsent.waiting();
    let round = Mutex::new(Round::default());
    let kept = iter::from_fn(|| unsent.pop(due, &mut left));
    let sending = kept.map(|kept| (kept.until, Owed::kept(kept, Arc::clone(unsent))));
    let sending = sending.map(async |(until, owed)| {
        let server = sender.server(&owed.work);
        // What is left of a lease only stays used until its window ends.
        let is_of_lease = owed.work.leased_at().is_some();
        let ended = || {
            if !is_of_lease {
                unsent.dropped("ended");
            }
        };
        if until <= Instant::now() {
            owed.settle();
            return ended();
        }
        if round.lock().failing.contains(&server) {
            return;
        }
        match sender.send(owed).await {
            Ok(()) => round.lock().has_succeeded = true,
            Err(NotDecided::WindowEnded) => ended(),
            Err(NotDecided::Failed(error)) if error.is_of_the_call() => {}
            Err(_) => round.lock().failing.push(server),
        }
    });
    stream::iter(sending).buffer_unordered(SENT_AT_ONCE).collect::<()>().await;
    round.into_inner()
}
