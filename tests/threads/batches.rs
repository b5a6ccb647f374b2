//! The queue of a server: each call gets its own answer, although nothing but the callers and the batches wakes a dispatcher,
//! and all dispatchers end when the server leaves.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use shuttle::{future::block_on, thread};
use tokio_util::task::TaskTracker;
use tollkeeper_engine::time::Timestamp;

use crate::{
    heavy::HeavyCalls,
    in_many_orders,
    owed::Owed,
    peers::{
        batch::{Runs, ScriptKind},
        decided::{CallAnswer, NotDecided},
        link::Link,
        metrics::StoreMetrics,
        work::NodeWork,
    },
    queue::{Mailbox, Queue, QueuedCall, Recipient, SentAs, SharedQueue},
    sync::{
        Mutex, oneshot,
        time::{self, Instant},
    },
    unsent::Unsent,
};

const WORKERS: usize = 2;
const CALLS: usize = 4;

fn queue() -> Arc<SharedQueue> {
    let queue = Queue {
        waiting: VecDeque::new(),
        waiting_heavy: VecDeque::new(),
        heavy: HeavyCalls::default(),
        leader: None,
        runs: Runs,
        batches: 0,
        full_batches: 1,
        is_closed: false,
    };
    Arc::new(SharedQueue {
        queue: Mutex::new(queue),
        mailboxes: (0..WORKERS).map(|_| Mailbox::default()).collect(),
        link: Link::default(),
        key_prefix: String::new(),
        dispatchers: TaskTracker::new(),
        wait_replicas: 0,
    })
}

/// Queues a call of this number for a worker. `None` if the server has left.
fn send(
    queue: &Arc<SharedQueue>,
    unsent: &Arc<Unsent>,
    number: usize,
    mailbox: usize,
) -> Option<oneshot::Receiver<CallAnswer>> {
    let (answer, answered) = oneshot::channel();
    let now = Instant::now();
    let call = QueuedCall {
        owed: Owed::new(NodeWork(number), unsent, |_| Some(Timestamp::default())),
        kind: ScriptKind,
        stale: 0,
        redis_now: None,
        since: now,
        until: now + Duration::from_secs(86_400),
        sent_as: SentAs::Call,
        caller: Recipient { mailbox, answer },
        span: None,
    };
    match queue.enqueue(call) {
        Ok(()) => Some(answered),
        Err(call) => {
            call.owed.settle();
            None
        }
    }
}

/// Each worker makes two calls at once, and then one after the other.
fn answers_each_call() {
    let (queue, unsent) = (queue(), Arc::new(Unsent::new(100, StoreMetrics::default())));
    let workers = (0..WORKERS).map(|worker| {
        let (queue, unsent) = (Arc::clone(&queue), Arc::clone(&unsent));
        thread::spawn(move || {
            let send = |call| (call, send(&queue, &unsent, worker * CALLS + call, worker).unwrap());
            for calls in [0..2, 2..3, 3..4] {
                let sent: Vec<_> = calls.map(send).collect();
                for (call, answered) in sent {
                    let answer = block_on(answered).expect("an answer").expect("its own");
                    assert_eq!(answer, worker * CALLS + call);
                }
            }
        })
    });
    let workers: Vec<_> = workers.collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert!(queue.close().is_empty());
    queue.dispatchers.close();
    block_on(queue.dispatchers.wait());
    assert!(unsent.is_empty());
}

#[test]
fn each_call_is_answered_though_no_timer_helps() {
    in_many_orders(answers_each_call);
}

#[test]
fn each_call_is_answered_while_others_take_the_lead_from_leaders_that_are_late() {
    in_many_orders(|| {
        time::may_pass();
        answers_each_call();
    });
}

#[test]
fn a_server_that_leaves_answers_or_returns_each_call() {
    in_many_orders(|| {
        let (queue, unsent) = (queue(), Arc::new(Unsent::new(100, StoreMetrics::default())));
        let workers = (0..WORKERS).map(|worker| {
            let (queue, unsent) = (Arc::clone(&queue), Arc::clone(&unsent));
            // The number of calls without an answer.
            thread::spawn(move || {
                let calls = [0, 1].map(|call| {
                    let number = worker * CALLS + call;
                    (number, send(&queue, &unsent, number, worker))
                });
                let answers = calls.map(|(number, answered)| match answered.map(block_on) {
                    Some(Ok(Ok(answer))) => usize::from(answer != number),
                    Some(Ok(Err(NotDecided::Elsewhere(None, owed)))) => {
                        owed.settle();
                        0
                    }
                    Some(Ok(Err(other))) => panic!("{other:?}"),
                    Some(Err(_)) => 1,
                    None => 0,
                });
                answers.into_iter().sum::<usize>()
            })
        });
        let workers: Vec<_> = workers.collect();
        let returned = queue.close();
        let returned = returned.into_iter().map(|call| call.owed.settle()).count();
        let unanswered = workers.into_iter().map(|worker| worker.join().unwrap()).sum::<usize>();
        assert_eq!(unanswered, returned);
        queue.dispatchers.close();
        block_on(queue.dispatchers.wait());
        assert!(unsent.is_empty());
    });
}
