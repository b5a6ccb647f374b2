//! Calls of many descriptors.

use std::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use futures_util::future::join_all;
use tollkeeper_proto::v1::{Call, DecideRequest, tollkeeper_client::TollkeeperClient};
use tonic::transport::Channel;

use crate::support::{prelude::*, stores::one};

const CLIENTS: usize = 40;

/// All calls count on the same descriptor. So the hits that are left tell a small call how many calls were decided before it.
#[tokio::test(flavor = "multi_thread")]
async fn between_two_small_calls_few_of_the_large_calls_of_others_are_decided() {
    for method in ["ShouldRateLimit", "Decide", "DecideStream"] {
        large_calls_come_one_by_one(method).await;
    }
}

async fn large_calls_come_one_by_one(method: &str) {
    let rules = "{ domain: shop, descriptors: [{ key: all, rate_limit: { unit: year, \
                 requests_per_unit: 1000000000 } }, { key: part, rate_limit: { unit: year, \
                 requests_per_unit: 1000000000 } }] }";
    let service = Service::with(rules).flags(&["--workers", "1"]).ready();
    let parts = (0..63).map(|part| one("part", &part.to_string()));
    let large = request("shop", parts.chain([one("all", "calls")]).collect());
    let (service, large, is_over) = (&service, &large, &AtomicBool::new(false));
    let flood = join_all((0..CLIENTS).map(async |_| {
        let channel = service.channel().await;
        while !is_over.load(Relaxed) {
            join_all((0..4).map(|_| send(method, channel.clone(), large.clone()))).await;
        }
    }));
    let small = async {
        let mut client = service.client().await;
        let mut left = Vec::new();
        for _ in 0..20 {
            let answer = client.should_rate_limit(shop("all=calls")).await.unwrap();
            left.push(answer.into_inner().statuses[0].limit_remaining);
        }
        is_over.store(true, Relaxed);
        left.windows(2).map(|left| left[0] - left[1]).min().unwrap()
    };
    let (_, between) = tokio::join!(flood, small);
    assert!(between < CLIENTS as u32 / 2, "{between} calls of {method} were decided in between");
}

async fn send(
    method: &str,
    channel: Channel,
    RateLimitRequest { domain, descriptors, .. }: RateLimitRequest,
) {
    let mut client = TollkeeperClient::new(channel.clone());
    let calls = vec![Call { descriptors: descriptors.clone(), ..Call::default() }];
    let batch = DecideRequest { domain: domain.clone(), calls };
    match method {
        "Decide" => drop(client.decide(batch).await.unwrap()),
        "DecideStream" => {
            let answers = client.decide_stream(tokio_stream::once(batch)).await.unwrap();
            assert!(answers.into_inner().message().await.unwrap().is_some());
        }
        _ => {
            let mut client = RateLimitServiceClient::new(channel);
            drop(client.should_rate_limit(request(&domain, descriptors)).await.unwrap());
        }
    }
}

/// A store sums the charges of a small call and those of a large one in different ways.
#[tokio::test]
async fn descriptors_on_the_same_counter_ask_for_their_sum_in_a_call_of_two_and_in_one_of_forty() {
    let rules = "{ domain: shop, descriptors: [{ key: user, rate_limit: { unit: year, \
                 requests_per_unit: 5 } }] }";
    on_every_store(rules, &[], async |service| {
        let twice =
            |users: Range<u32>| users.flat_map(|user| vec![one("user", &user.to_string()); 2]);
        for expected in ["OK 3/5 YEAR", "OK 1/5 YEAR", "OVER_LIMIT 0/5 YEAR", "OVER_LIMIT 0/5 YEAR"]
        {
            for users in [0..1, 1..21] {
                let call = request("shop", twice(users.clone()).collect());
                let answer = spell(&service.ask(call).await.unwrap());
                let (_, statuses) = answer.split_once(": ").unwrap();
                assert_eq!(statuses, vec![expected; 2 * users.len()].join(", "));
            }
        }
    })
    .await;
}
