//! Calls over two nodes of which one is late: what they have reserved is given back, also when the caller no longer waits.

use tonic::{Request, Status};

use crate::support::{
    cluster_calls::{described, masters, serve, used, values_on},
    prelude::*,
};

const RULES: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 100 } }
  - { key: deny, rate_limit: { unit: year, requests_per_unit: 100, on_store_failure: deny } }
  - { key: allow, rate_limit: { unit: year, requests_per_unit: 100, on_store_failure: allow } }
  - { key: local, rate_limit: { unit: year, requests_per_unit: 100, on_store_failure: local } }
  - { key: none, rate_limit: { unit: year, requests_per_unit: 0 } }
";

/// The first node is late, and the second is well.
struct Late {
    cluster: Cluster,
    service: Service,
}

impl Late {
    fn start(flags: &[&str]) -> Self {
        let cluster = masters(Version::Redis7);
        let service = serve(&cluster, RULES, flags);
        Self { cluster, service }
    }

    /// A value of this key whose counter is on a node.
    fn on(&self, node: usize, key: &'static str) -> (&'static str, String) {
        (key, values_on(&self.cluster, node, key, "late", 1).remove(0))
    }

    async fn ask(
        &self,
        call: &[(&str, String)],
        timeout: Duration,
    ) -> Result<RateLimitResponse, Status> {
        let descriptors = call.iter().map(|counter| hits(described(counter), 3)).collect();
        let mut call = Request::new(request("shop", descriptors));
        call.set_timeout(timeout);
        let mut client = self.service.client().await;
        client.should_rate_limit(call).await.map(|response| response.into_inner())
    }

    fn nothing_stays(&self, (key, value): &(&str, String)) {
        wait_until("what was reserved is given back", || used(&self.service, key, value) == 0);
    }
}

/// A connection whose answer is later than this is closed, and what its calls charge afterwards stays: even a busy machine is faster.
const BUDGET: &str = "1m";
/// Far less than the budget: the caller, and not the service, ends the wait.
const IMPATIENT: Duration = Duration::from_millis(200);
const PATIENT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_waits_less_than_the_budget_leaves_no_charge_on_a_healthy_node() {
    let mut late = Late::start(&["--decision-budget", BUDGET]);
    let call = [late.on(0, "user"), late.on(1, "user")];
    assert!(late.ask(&call[1..], PATIENT).await.is_ok());
    late.cluster.nodes[0].signal("STOP");
    for _ in 0..5 {
        late.ask(&call, IMPATIENT).await.unwrap_err();
    }
    late.cluster.nodes[0].signal("CONT");
    wait_until("only the first call stays", || used(&late.service, call[1].0, &call[1].1) == 3);
    late.nothing_stays(&call[0]);
    late.cluster.heal();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_call_gives_back_what_a_late_part_has_charged() {
    let mut late = Late::start(&["--decision-budget", BUDGET, "--decision-budget-max", "3s"]);
    let call = [late.on(0, "user"), late.on(1, "none")];
    late.cluster.nodes[0].signal("STOP");
    let denied = late.ask(&call, PATIENT).await.unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    // The part is still under way, and runs now.
    late.cluster.nodes[0].signal("CONT");
    late.nothing_stays(&call[0]);
    late.cluster.heal();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_for_want_of_an_answer_is_not_remembered() {
    let mut late = Late::start(&["--decision-budget", "1s"]);
    let (deny, well) = (late.on(0, "deny"), late.on(1, "user"));
    late.cluster.nodes[0].signal("STOP");
    let denied = late.ask(&[deny.clone(), well], PATIENT).await.unwrap();
    assert_eq!(denied.overall_code(), Code::OverLimit);
    late.cluster.nodes[0].signal("CONT");
    let other = late.on(0, "user");
    let answered = late.ask(&[other], PATIENT).await.unwrap();
    assert_eq!(answered.overall_code(), Code::Ok);
    let answered = late.ask(&[deny], PATIENT).await.unwrap();
    assert_eq!(answered.overall_code(), Code::Ok);
    late.cluster.heal();
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_call_in_parts_that_on_store_failure_decides_are_counted() {
    for (mode, code) in [("allow", Code::Ok), ("deny", Code::OverLimit), ("local", Code::Ok)] {
        let mut late = Late::start(&["--decision-budget", "1s"]);
        let call = [late.on(0, mode), late.on(1, "user")];
        late.cluster.nodes[0].signal("STOP");
        let answer = late.ask(&call, PATIENT).await.unwrap();
        assert_eq!(answer.overall_code(), code, "{mode}");
        let metrics = late.service.get("/metrics");
        let fallbacks: Vec<_> =
            metrics.lines().filter(|line| line.starts_with("ratelimit_fallbacks_total{")).collect();
        let [counted] = fallbacks[..] else { panic!("{mode}: {fallbacks:?}") };
        assert!(counted.contains(mode) && counted.ends_with(" 1"), "{mode}: {counted}");
        late.cluster.nodes[0].signal("CONT");
        late.cluster.heal();
    }
}
