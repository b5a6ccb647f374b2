//! A commit whose answer is lost is counted exactly once: it waits in the service, and is sent until it is answered.

use crate::support::{fault_proxy::Cut, prelude::*, service::metadata};

const RULES: &str = "
domain: llm
descriptors:
  - key: user
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 300 } }
  - { key: probe, rate_limit: { unit: year, requests_per_unit: 1000000 } }
";

/// A service that reaches its Redis through a proxy.
struct Reached {
    redis: Redis,
    proxy: FaultProxy,
    service: Service,
}

impl Reached {
    fn start(flags: &[&str]) -> Self {
        let redis = Redis::start();
        let proxy = FaultProxy::start(redis.port, 1);
        let flags: Vec<_> = ["--decision-budget", "1s"].iter().chain(flags).copied().collect();
        let service = Service::with(RULES).on(&proxy.url).flags(&flags).ready();
        Self { redis, proxy, service }
    }

    async fn ask(&self, entries: &[(&str, &str)]) -> Option<RateLimitResponse> {
        self.service.ask(request("llm", vec![descriptor(entries)])).await.ok()
    }

    /// Waits until Redis answers the service.
    async fn answers(&self) {
        while self.ask(&[("probe", "a")]).await.is_none() {}
    }

    async fn take(&self, user: &str) -> String {
        metadata(&self.ask(&[("user", user)]).await.unwrap(), "hold").unwrap()
    }

    /// What becomes of a commit; `None` without an answer.
    async fn commit(&self, token: &str) -> Option<String> {
        let answer = self.ask(&[("hold.commit", token), ("hold.used", "42")]).await?;
        metadata(&answer, "commit")
    }

    /// The number of commits that wait.
    fn queued(&self) -> u64 {
        self.service.metric("ratelimit_commits_queued ") as u64
    }

    /// What Redis counts for a user.
    fn counted(&self, user: &str) -> u64 {
        self.redis.count(&format!("user={user}}}"))
    }
}

/// Ends connections after every number of bytes of answers, within the answers to a commit and behind them.
async fn check_commits_whose_answers_are_cut(flags: &[&str], bytes: usize) {
    let reached = Reached::start(flags);
    let mut lost = 0;
    for at in (0..bytes).step_by(bytes / 20) {
        reached.answers().await;
        let user = format!("after-{at}-bytes");
        let token = reached.take(&user).await;
        let replies = Flow::CutAt(at, Cut::Rst);
        reached.proxy.set(Faults { replies, ..Faults::default() });
        let outcome = reached.commit(&token).await;
        if outcome.as_deref() != Some("committed") {
            lost += 1;
        }
        reached.proxy.heal();
        wait_until("no commit waits", || reached.queued() == 0);
        assert_eq!(reached.counted(&user), 42, "{user}: {outcome:?}");
        reached.answers().await;
        assert_eq!(reached.commit(&token).await.as_deref(), Some("repeated"), "{user}");
        assert_eq!(reached.counted(&user), 42, "{user}");
    }
    assert!(lost >= 3, "{lost} answers were lost");
    reached.redis.assert_no_key_leaks();
}

#[tokio::test]
async fn a_commit_whose_answer_is_cut_anywhere_is_counted_once() {
    check_commits_whose_answers_are_cut(&[], 100).await;
}

#[tokio::test]
async fn without_scripts_too() {
    check_commits_whose_answers_are_cut(&["--redis-scripts", "off"], 300).await;
}

#[tokio::test]
async fn a_commit_that_has_run_waits_until_it_is_answered() {
    let reached = Reached::start(&[]);
    // From then on Redis has the script.
    assert_eq!(reached.commit(&reached.take("bob").await).await.as_deref(), Some("committed"));
    let token = reached.take("alice").await;
    assert_eq!(reached.counted("alice"), 300);
    reached.proxy.set(Faults { replies: Flow::CutAt(0, Cut::Rst), ..Faults::default() });
    assert_ne!(reached.commit(&token).await.as_deref(), Some("committed"));
    wait_until("it has run", || reached.counted("alice") == 42);
    assert_eq!(reached.queued(), 1);
    reached.proxy.heal();
    wait_until("it is answered", || reached.queued() == 0);
    assert_eq!(reached.counted("alice"), 42);
}

#[tokio::test]
async fn commits_to_a_redis_that_is_stopped_are_counted_once_when_it_goes_on() {
    let reached = Reached::start(&[]);
    for round in 0..3 {
        reached.answers().await;
        let mut tokens = Vec::new();
        for number in 0..4 {
            let user = format!("{round}-{number}");
            tokens.push((reached.take(&user).await, user));
        }
        reached.redis.signal("STOP");
        for (token, _) in &tokens {
            // The second one is a repetition, whichever runs first.
            assert_ne!(reached.commit(token).await.as_deref(), Some("committed"));
            reached.commit(token).await;
        }
        assert!(reached.queued() > 0);
        reached.redis.signal("CONT");
        wait_until("no commit waits", || reached.queued() == 0);
        for (_, user) in &tokens {
            assert_eq!(reached.counted(user), 42, "{user}");
        }
    }
}
