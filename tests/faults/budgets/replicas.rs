//! Replicas of the service, which are killed and started again, and what the harness asks of them.

use tokio::time::sleep;
use tonic::transport::Endpoint;

use crate::support::{prelude::*, redis_server::free_port};

/// Clients of all replicas.
#[derive(Clone)]
pub struct Replicas(Vec<RateLimitServiceClient<Channel>>);

impl Replicas {
    pub fn new(addresses: &[SocketAddr]) -> Self {
        let client = |address| {
            let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
            RateLimitServiceClient::new(endpoint.connect_lazy())
        };
        Self(addresses.iter().map(client).collect())
    }

    /// Sends a commit to one of the replicas. It may be down: then the commit is lost.
    pub fn commit_later(&self, pause: Duration, which: usize, token: &str, used: &str, end: &str) {
        let entries = [("hold.commit", token), ("hold.used", used), ("hold.end", end)];
        let commit = request("llm", vec![hits(descriptor(&entries), 0)]);
        let mut client = self.0[which % self.0.len()].clone();
        tokio::spawn(async move {
            sleep(pause).await;
            let _ = client.should_rate_limit(commit).await;
        });
    }

    /// Number of hits that remain for this descriptor; `None` if the first replica does not answer.
    pub async fn remaining(&self, domain: &str, entries: &[(&str, &str)]) -> Option<u64> {
        let check = request(domain, vec![hits(descriptor(entries), 0)]);
        let answer = self.0[0].clone().should_rate_limit(check).await.ok()?.into_inner();
        Some(answer.statuses[0].limit_remaining.into())
    }
}

/// The replicas' processes.
pub struct Fleet {
    pub addresses: Vec<SocketAddr>,
    services: Vec<Option<Service>>,
    rules: String,
    store: String,
    decision_budget: &'static str,
}

impl Fleet {
    pub fn start(replicas: usize, rules: &str, store: &str, decision_budget: &'static str) -> Self {
        let addresses: Vec<_> =
            (0..replicas).map(|_| SocketAddr::from(([127, 0, 0, 1], free_port()))).collect();
        let services = addresses.iter().map(|_| None).collect();
        let (rules, store) = (rules.to_owned(), store.to_owned());
        let mut fleet = Self { addresses, services, rules, store, decision_budget };
        for which in 0..replicas {
            fleet.start_again(which);
        }
        fleet
    }

    pub fn kill(&mut self, which: usize) {
        self.services[which] = None;
    }

    pub fn start_again(&mut self, which: usize) {
        let address = self.addresses[which].to_string();
        let budget = self.decision_budget;
        // Envoy announces its timeout: the second budget counts then.
        let flags = &[
            "--grpc-addr",
            &address,
            "--decision-budget",
            budget,
            "--decision-budget-max",
            budget,
        ];
        let service = Service::with(&self.rules).on(&self.store).flags(flags).ready();
        self.services[which] = Some(service);
    }

    pub fn clients(&self) -> Replicas {
        Replicas::new(&self.addresses)
    }

    /// The sum of a metric's samples whose labels contain this value, over the living replicas.
    pub fn metric(&self, name: &str, label: &str) -> u64 {
        let label = format!("\"{label}\"");
        let of = |service: &Service| service.metric_with(name, &[&label]) as u64;
        self.services.iter().flatten().map(of).sum()
    }
}
