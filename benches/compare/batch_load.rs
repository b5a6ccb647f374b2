//! Batches of `tollkeeper.v1` about 10,000 keys, each sent when another is answered.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use tollkeeper_proto::{
    Entry, RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient,
    v1::{Call, DecideRequest, Verdict, tollkeeper_client::TollkeeperClient},
};
use tonic::transport::Channel;

use crate::process::Result;

const KEYS: usize = 10_000;

fn descriptor(number: usize) -> RateLimitDescriptor {
    let entry = Entry { key: "user".into(), value: format!("u{number}").into() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

/// Sends a batch, or with size 0 a single call of Envoy's API. Returns the number of calls that passed.
pub(crate) async fn send(channel: Channel, size: usize, turn: usize) -> u64 {
    let key = |index: usize| (turn * 7919 + index * 6101) % KEYS;
    if size == 0 {
        let descriptors = vec![descriptor(key(0))];
        let request = RateLimitRequest { domain: "compare".into(), descriptors, hits_addend: 0 };
        let mut client = RateLimitServiceClient::new(channel);
        return client.should_rate_limit(request).await.map_or(0, |_| 1);
    }
    let call = |index| Call { descriptors: vec![descriptor(key(index))], ..Call::default() };
    let calls = (0..size).map(call).collect();
    let request = DecideRequest { domain: "compare".into(), calls };
    let answer = TollkeeperClient::new(channel).decide(request).await;
    let passed = |verdicts: Vec<Verdict>| verdicts.iter().filter(|one| one.code == 1).count();
    answer.map_or(0, |answer| passed(answer.into_inner().verdicts) as u64)
}

pub(crate) async fn connect(addr: &str) -> Result<Channel> {
    Ok(Channel::from_shared(format!("http://{addr}"))?.connect().await?)
}

/// Sends messages for a while, and notes how long each took; returns how many calls passed.
pub(crate) async fn load(
    channel: &Channel,
    size: usize,
    in_flight: usize,
    ended: &AtomicBool,
    latencies: &RefCell<Vec<Duration>>,
) -> u64 {
    let passed = AtomicU64::new(0);
    let senders = (0..in_flight).map(async |sender| {
        let mut turn = sender;
        while !ended.load(Relaxed) {
            let began = Instant::now();
            passed.fetch_add(send(channel.clone(), size, turn).await, Relaxed);
            latencies.borrow_mut().push(began.elapsed());
            turn += in_flight;
        }
    });
    futures_util::future::join_all(senders).await;
    passed.into_inner()
}

pub(crate) async fn after(time: Duration, ended: &AtomicBool) {
    tokio::time::sleep(time).await;
    ended.store(true, Relaxed);
}
