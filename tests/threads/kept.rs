//! Kept work is done exactly once, whichever thread keeps it and whatever a server refuses.

use std::{mem, sync::Arc, time::Duration};

use shuttle::{future, thread};
use tollkeeper_engine::time::Timestamp;

use crate::{
    in_many_orders,
    owed::{Fate, Owed},
    peers::{StoreError, decided::NotDecided, metrics::StoreMetrics, work::NodeWork},
    resend::{self, Resend},
    sync::{Mutex, Notify, task, time},
    unsent::Unsent,
};

const CALLERS: usize = 3;
const DAY: Duration = Duration::from_secs(86_400);

/// Refuses the first that it gets, and does the others.
#[derive(Default)]
struct Server {
    has_refused: Mutex<bool>,
    done: Mutex<Vec<usize>>,
    progress: Notify,
}

impl Resend for Arc<Server> {
    fn server(&self, _: &NodeWork) -> Option<usize> {
        Some(0)
    }

    async fn send(&self, owed: Owed) -> Result<(), NotDecided> {
        task::yield_now().await;
        if !mem::replace(&mut *self.has_refused.lock(), true) {
            return Err(NotDecided::Failed(StoreError::NoConnection));
        }
        self.done.lock().push(owed.work.0);
        owed.settle();
        self.progress.notify_one();
        Ok(())
    }
}

/// Callers leave before their work has run, while what was kept is sent.
fn leave(unsent: &Arc<Unsent>) -> Vec<thread::JoinHandle<()>> {
    let callers = (0..CALLERS).map(|caller| {
        let unsent = Arc::clone(unsent);
        thread::spawn(move || {
            let mut owed = Owed::new(NodeWork(caller), &unsent, |_| Some(Timestamp::default()));
            owed.is(Fate::NotRun);
            drop(owed);
        })
    });
    callers.collect()
}

#[test]
fn what_is_kept_is_done_once_though_the_server_refuses_some() {
    in_many_orders(|| {
        // A pause after a refusal ends; what arrives wakes the sender without one.
        time::may_pass();
        let unsent = Arc::new(Unsent::new(100, StoreMetrics::default()));
        let server = Arc::new(Server::default());
        let sender = {
            let (unsent, server) = (Arc::clone(&unsent), Arc::clone(&server));
            future::spawn(async move { resend::follow(&unsent, &server).await })
        };
        for caller in leave(&unsent) {
            caller.join().unwrap();
        }
        future::block_on(async {
            while server.done.lock().len() < CALLERS || !unsent.is_empty() {
                server.progress.notified().await;
            }
        });
        sender.abort();
        let mut done = server.done.lock().clone();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2]);
    });
}

#[test]
fn the_end_sends_what_is_kept_and_what_is_kept_meanwhile() {
    in_many_orders(|| {
        time::may_pass();
        let unsent = Arc::new(Unsent::new(100, StoreMetrics::default()));
        let server = Arc::new(Server::default());
        let callers = leave(&unsent);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        let more = leave(&unsent);
        future::block_on(async {
            while server.done.lock().len() < 2 * CALLERS {
                resend::end(&unsent, DAY, &server).await;
                task::yield_now().await;
            }
        });
        more.into_iter().for_each(|caller| caller.join().unwrap());
        let mut done = server.done.lock().clone();
        done.sort_unstable();
        assert_eq!(done, [0, 0, 1, 1, 2, 2]);
    });
}
