//! Counters in memory: calls on several shards never wait for each other, and each is decided as if it were alone.

use std::sync::Arc;

use shuttle::thread;
use tollkeeper_engine::{
    hold::{Abandoned, HoldBy, HoldPolicy},
    hold_id::HoldId,
    key::Counter,
    ledger::{Charge, HoldAction},
    request::{Entry, Hits},
    rule::{Limit, Unit},
    time::Timestamp,
};

use crate::{
    in_many_orders,
    store::{
        Clear,
        memory::{MemoryStore, metrics::MemorySize},
    },
};

const LIMIT: u64 = 3;
const NOW: Timestamp = Timestamp::from_secs(4_102_444_800);

/// A store of four shards.
fn store() -> Arc<MemoryStore> {
    Arc::new(MemoryStore::of_size(|| NOW, MemorySize { counters: 4 * 4096, bytes: 64 << 20 }))
}

fn charge(user: &str, limit: &Arc<Limit>) -> Charge {
    let entries = [Entry { key: "user".into(), value: user.to_owned().into() }];
    Charge::new(Counter::new("shop", &entries, Arc::clone(limit)), Hits::Charge(1))
}

#[test]
fn calls_on_several_counters_are_decided_one_after_the_other() {
    in_many_orders(|| {
        let (store, limit) = (store(), Arc::new(Limit::new(LIMIT, Unit::Hour, 1).unwrap()));
        let calls = [["a", "b"], ["b", "c"], ["c", "a"]].map(|users| {
            let (store, limit) = (Arc::clone(&store), Arc::clone(&limit));
            thread::spawn(move || {
                let call = users.map(|user| charge(user, &limit));
                [(); 3]
                    .map(|()| !store.charge(&call).denied)
                    .into_iter()
                    .filter(|passed| *passed)
                    .count() as u64
            })
        });
        let [ab, bc, ca] = calls.map(|call| call.join().unwrap());
        let used = |user| store.read_counter(&charge(user, &limit).counter, Clear::No).used;
        assert_eq!([used("a"), used("b"), used("c")], [ab + ca, ab + bc, bc + ca]);
        for (passed, users) in [(ab, ["a", "b"]), (bc, ["b", "c"]), (ca, ["c", "a"])] {
            // It was denied because one was full, and stays so.
            assert!(passed == 3 || users.into_iter().any(|user| used(user) == LIMIT), "{users:?}");
            assert!(users.into_iter().all(|user| used(user) <= LIMIT), "{users:?}");
        }
    });
}

#[test]
fn a_take_on_several_counters_is_ended_on_all_by_one_commit() {
    in_many_orders(|| {
        let store = store();
        let policy = HoldPolicy { by: HoldBy::Counter, ..HoldPolicy::new(60_000) };
        let hold = Some(Arc::new(policy));
        let limit = Arc::new(Limit { hold, ..Limit::new(100, Unit::Hour, 1).unwrap() });
        let act = |user: &str, hits, hold, limit: &Arc<Limit>| Charge {
            hits,
            hold: Some(hold),
            ..charge(user, limit)
        };
        let takes = [(1, ["a", "b"]), (2, ["b", "a"])].map(|(id, users)| {
            let (store, limit) = (Arc::clone(&store), Arc::clone(&limit));
            thread::spawn(move || {
                let abandoned = Abandoned::Keep;
                let open = HoldAction::Open {
                    id: HoldId::new(id),
                    estimate: 5,
                    lifetime_ms: 60_000,
                    abandoned,
                };
                store.charge(&users.map(|user| act(user, Hits::Check, open, &limit)));
                let end = HoldAction::EndOldest { abandoned };
                store.charge(&[act(users[0], Hits::Charge(1), end, &limit)]);
            })
        });
        takes.into_iter().for_each(|take| take.join().unwrap());
        for user in ["a", "b"] {
            let read = store.read_counter(&charge(user, &limit).counter, Clear::No);
            assert_eq!((read.used, read.open_holds), (1, 0), "{user}");
        }
    });
}
