//! A store whose master Sentinels name: failovers under load, and Sentinels that fail.

use crate::support::{prelude::*, sentinels::*};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 10 } }
  - { key: bucket, rate_limit: { unit: year, requests_per_unit: 10, algorithm: token_bucket } }
";

fn start(store: &str, flags: &[&str]) -> Service {
    Service::with(RULES).on(store).flags(&[&["--decision-budget", "2s"], flags].concat()).start()
}

#[tokio::test]
async fn a_failover_is_followed_with_and_without_scripts() {
    let mut sentinels = Sentinels::start();
    // Without scripts there are only fixed windows.
    let rules = &RULES[..RULES.find("  - { key: bucket").unwrap()];
    let (url, flags) = (sentinels.url(), &["--redis-scripts", "off"]);
    let plain = Service::with(rules).on(&url).flags(flags);
    let services = [start(&url, &[]), Service::start(plain)];
    let before = sentinels.master().port;
    for (service, left) in services.iter().zip([9, 8]) {
        assert_eq!(service.answered("user=a").await, format!("OK: OK {left}/10 YEAR"));
    }
    sentinels.kill_master();
    sentinels.announced();
    let after = sentinels.master().port;
    let follows = |service: &Service| {
        let line =
            format!("failover of `{NAME}` from 127.0.0.1:{before} to 127.0.0.1:{after}, in epoch ");
        service.wait_for_log(&line);
    };
    for (service, left) in services.iter().zip([7, 6]) {
        follows(service);
        assert_eq!(service.answered("user=a").await, format!("OK: OK {left}/10 YEAR"));
    }
}

#[tokio::test]
async fn an_unknown_master_name_is_told_in_words() {
    let sentinels = Sentinels::start();
    let service = start(&format!("redis+sentinel://{}/other", sentinels.hosts()), &[]);
    service.wait_for_log("the Sentinels know no master named `other`");
    assert_eq!(service.answer("user=a").await, "Unavailable");
}

#[tokio::test]
async fn a_failover_is_followed_although_one_sentinel_hangs() {
    let mut sentinels = Sentinels::start();
    let service = start(&sentinels.url(), &[]);
    assert_eq!(service.answered("user=a").await, "OK: OK 9/10 YEAR");
    let master = sentinels.master().port;
    let hanging = |sentinels: &Sentinels, signal| sentinels.sentinels[0].signal(signal);
    hanging(&sentinels, "STOP");
    let index = sentinels.redises.iter().position(|redis| redis.port == master).unwrap();
    sentinels.redises[index].stop();
    assert_eq!(service.answered("user=a").await, "OK: OK 8/10 YEAR");
    // It still names the old master when it goes on.
    hanging(&sentinels, "CONT");
    assert_eq!(service.answer("user=a").await, "OK: OK 7/10 YEAR");
    assert_eq!(service.log().matches("failover of").count(), 1);
}

#[tokio::test]
async fn without_sentinels_the_present_master_is_kept() {
    let mut sentinels = Sentinels::start();
    let service = start(&sentinels.url(), &[]);
    assert_eq!(service.answered("user=a").await, "OK: OK 9/10 YEAR");
    sentinels.sentinels.iter_mut().for_each(Redis::stop);
    service.wait_for_log("no Sentinel answers: 127.0.0.1:");
    let late = start(&sentinels.url(), &[]);
    assert_eq!(service.answer("user=a").await, "OK: OK 8/10 YEAR");
    assert_eq!(late.answer("user=a").await, "Unavailable");
    sentinels.sentinels.iter_mut().for_each(Redis::start_again);
    service.wait_for_log("the master `counters` is known and answers");
    assert_eq!(late.answered("user=a").await, "OK: OK 7/10 YEAR");
    // One line each, however often they are asked meanwhile.
    assert_eq!(service.log().matches("no Sentinel answers").count(), 1);
}

/// The rights that docs/redis.md lists, for the user who has this one.
fn documented_rights(right: &str) -> Vec<String> {
    let docs = std::fs::read_to_string(root().join("docs/redis.md")).unwrap();
    let mut users = docs.lines().filter_map(|line| line.strip_prefix("ACL SETUSER tollkeeper "));
    let line = users.find(|line| line.contains(right)).expect("it is in the docs");
    line.split(' ').map(str::to_owned).collect()
}

#[tokio::test]
async fn documented_rights_passwords_and_tls_are_enough() {
    let authority = Authority::new();
    let mut sentinels = Sentinels::start_as(&SentinelSetup {
        password: "counters-password".to_owned(),
        sentinel_password: "sentinels-password".to_owned(),
        tls: Some(authority.server(&["127.0.0.1"])),
        ..SentinelSetup::default()
    });
    let set_user = |server: &Redis, user: &str, right: &str| {
        let rights = documented_rights(right);
        let words: Vec<_> = ["ACL", "SETUSER", user].into_iter().collect();
        let rights: Vec<_> = rights.iter().map(String::as_str).collect();
        server.query::<()>(&[words, rights].concat());
    };
    sentinels.redises.iter().for_each(|redis| set_user(redis, "tollkeeper", "~tk1:*"));
    for sentinel in &sentinels.sentinels {
        set_user(sentinel, "tollkeeper-sentinel", "&+switch-master");
    }
    let password = TextFile::new("password", "secret");
    let client = authority.client();
    let url = format!("rediss+sentinel://tollkeeper:secret@{}/{NAME}", sentinels.hosts());
    let of_sentinels = ["--store-sentinel-user", "tollkeeper-sentinel"];
    let login = [&of_sentinels[..], &["--store-sentinel-password-file", &password]].concat();
    let service = start(&url, &[&client.store_flags()[..], &login].concat());
    assert_eq!(service.answered("user=a").await, "OK: OK 9/10 YEAR");
    sentinels.replicated();
    sentinels.kill_master();
    sentinels.announced();
    service.wait_for_log("failover of `counters`");
    assert_eq!(service.answered("user=a").await, "OK: OK 8/10 YEAR");
    assert!(
        service.log().contains("no acknowledged write is known to be lost"),
        "{}",
        service.log()
    );

    // The same without the Sentinels' password.
    let refused = start(&url, &client.store_flags());
    refused.wait_for_log("it requires a login");
}
