//! Commands on a key that replicas share beside counters.

use redis::{Cmd, Value};
use tollkeeper::store::{
    StoreError,
    redis::{RedisStore, topology::by_key::Steps},
};

use crate::support::{
    cluster_calls::*,
    prelude::*,
    redis_store::{PATIENT, patient},
};

const TAG: &str = "shared";
const KEY: &str = "tk1:op:{shared}";

fn write(key: &str) -> Vec<Cmd> {
    let write = redis::cmd("HSET").arg(key).arg("field").arg("value").take();
    vec![write, redis::cmd("PEXPIRE").arg(key).arg(60_000).take()]
}

fn read(key: &str) -> Vec<Cmd> {
    vec![redis::cmd("HGET").arg(key).arg("field").take(), redis::cmd("TIME")]
}

async fn writes_and_reads(store: &RedisStore) {
    for steps in [Steps::One, Steps::Several] {
        let written = store.run(TAG, PATIENT, steps, write).await.unwrap();
        assert_eq!(written.len(), 2, "{written:?}");
        let answers = store.run(TAG, PATIENT, steps, read).await.unwrap();
        let [Value::BulkString(field), Value::Array(time)] = &answers[..] else {
            panic!("{answers:?}");
        };
        assert_eq!((&field[..], time.len()), (&b"value"[..], 2));
    }
    let alone = |key: &str| vec![redis::cmd("HGET").arg(key).arg("none").take()];
    assert_eq!(store.run(TAG, PATIENT, Steps::One, alone).await.unwrap(), [Value::Nil]);
}

#[tokio::test]
async fn a_user_with_the_documented_rights_writes_and_reads() {
    for version in Version::ALL {
        let redis = Redis::start_version(version);
        for url in [redis.url_with_minimal_rights(), redis.url_without_scripts()] {
            writes_and_reads(&patient(&url)).await;
        }
        assert_eq!(redis.keys(), [KEY]);
        redis.assert_no_key_leaks();
    }
}

#[tokio::test]
async fn nothing_is_done_for_a_user_without_one_of_the_rights() {
    let redis = Redis::start();
    let url = redis.url_with_minimal_rights();
    redis.query::<()>(&["ACL", "SETUSER", "tollkeeper", "-pexpire"]);
    let refused = patient(&url).run(TAG, PATIENT, Steps::One, write).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotPermitted(_)), "{refused:?}");
    assert!(refused.to_string().starts_with("the user `tollkeeper` may not run"), "{refused}");
    assert_eq!(redis.keys(), [""; 0]);
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error() {
    let redis = Redis::start();
    redis.query::<()>(&["SET", KEY, "1"]);
    let refused = patient(&redis.url()).run(TAG, PATIENT, Steps::One, read).await.unwrap_err();
    assert!(refused.to_string().contains("a value of another type"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_follow_a_slot_that_moves() {
    let cluster = masters(Version::Redis7);
    let store = follow(&cluster.url_with_minimal_rights(), PATIENT);
    writes_and_reads(&store).await;
    let slot = cluster.slot_of(KEY);
    let to = (cluster.node_of(slot) + 1) % 3;
    let migration = cluster.begin_move(slot, to);
    // The key is still at its old node, then at the new one, which takes it only if asked to.
    writes_and_reads(&store).await;
    migration.move_keys();
    writes_and_reads(&store).await;
    migration.finish();
    writes_and_reads(&store).await;
    cluster.assert_no_key_leaks();
}
