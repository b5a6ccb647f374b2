//! Failovers under load: how long they take, what they cost, and that they cost no more.

use crate::support::{
    cluster_load::{Counted, Ledger, Load},
    prelude::*,
    sentinels::Sentinels,
    service::{open_files, waited_for_cpu},
};

/// Half of the calls are on a limit that is never reached, the others on limits of 10 that each get 30 calls.
const RULES: &str = "
domain: shop
descriptors:
  - { key: wide, rate_limit: { unit: year, requests_per_unit: 1000000 } }
  - { key: narrow, rate_limit: { unit: year, requests_per_unit: 10 } }
";
const NARROW: u64 = 10;
const CALLS_ON_NARROW: usize = 30;

const CLIENTS: usize = 8;
const PAUSE: Duration = Duration::from_millis(2);

/// How long after the announcement calls pass again, on a machine that has a CPU for the service.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// More calls than the clients make in a round.
fn calls(round: usize) -> Vec<Vec<Counted>> {
    let wide = || vec![("wide", format!("r{round:03}"))];
    let narrow = |number| vec![("narrow", format!("r{round:03}n{:06}", number / CALLS_ON_NARROW))];
    (0..100_000).flat_map(|number| [wide(), narrow(number)]).collect()
}

/// Acknowledged charges that the new master lacks. Fails if it has more than was ever asked for.
fn lost(ledger: &Ledger, master: &Redis) -> u64 {
    let (keys, mut connection) = (master.keys(), master.connect());
    let lost = |(counter, admitted): (&Counted, &u64)| {
        let key = keys.iter().find(|key| key.contains(&format!("{}={}}}", counter.0, counter.1)));
        let count = |key| redis::cmd("GET").arg(key).query::<u64>(&mut connection).unwrap();
        let (count, asked) =
            (key.map_or(0, count), admitted + ledger.uncertain.get(counter).unwrap_or(&0));
        assert!(count <= asked, "{counter:?}: {count} > {asked}");
        assert!(counter.0 == "wide" || count <= NARROW, "{counter:?}: {count}");
        admitted.saturating_sub(count)
    };
    ledger.admitted.iter().map(lost).sum()
}

fn beyond_the_limit(ledger: &Ledger) -> u64 {
    let narrow = ledger.admitted.iter().filter(|((key, _), _)| *key == "narrow");
    narrow.map(|(_, admitted)| admitted.saturating_sub(NARROW)).sum()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    Stop,
    ByHand,
    /// By hand, after `CLIENT PAUSE` on the old master lets writes wait.
    Paused,
}

/// The service's clients of this server, by its own list; `None` while it becomes a replica.
fn clients_of_the_service(redis: &Redis) -> Option<usize> {
    let clients: String = redis.try_query(&["CLIENT", "LIST"]).ok()?;
    let is_ours = |client: &&str| {
        ["cmd=evalsha", "cmd=role", "cmd=info"].iter().any(|command| client.contains(command))
            && client.contains(" name= ")
    };
    Some(clients.lines().filter(is_ours).count())
}

/// `FAILOVERS` is how often each fault happens.
#[tokio::test(flavor = "multi_thread")]
async fn each_failover_under_load_is_over_soon_and_costs_what_was_not_replicated() {
    let mut sentinels = Sentinels::start();
    let store = sentinels.url();
    let flags = &["--decision-budget", "200ms"];
    let mut service = Service::with(RULES).on(&store).flags(flags).ready();
    let process = service.process().0.id();
    let mut files = 0;
    let faults = [Fault::Kill, Fault::Stop, Fault::ByHand, Fault::Paused];
    for (round, fault) in (0..number("FAILOVERS", 3)).flat_map(|_| faults).enumerate() {
        let calls = calls(round);
        let load = Load::paced(&[&service], CLIENTS, calls, usize::MAX, PAUSE).await;
        load.goes_on();
        let changes = || service.log().matches("failover of ").count();
        let before = changes();
        let old = sentinels.master().port;
        let (began, waited) = (Instant::now(), waited_for_cpu(process));
        match fault {
            Fault::Kill => sentinels.kill_master(),
            Fault::Stop => sentinels.stop_master(),
            Fault::ByHand => sentinels.failover_by_hand(),
            Fault::Paused => {
                sentinels.master().query::<()>(&["CLIENT", "PAUSE", "3000", "WRITE"]);
                sentinels.failover_by_hand();
            }
        }
        let announced = sentinels.announced();
        wait_until("the service follows", || changes() > before);
        load.goes_on();
        let old = sentinels.redises.iter().find(|redis| redis.port == old).unwrap();
        if fault == Fault::Stop {
            old.signal("CONT");
        }
        if fault != Fault::Kill {
            wait_until("the old master is left", || clients_of_the_service(old) == Some(0));
            let runs = || eventually("the old master answers", || old.try_runs_of("evalsha").ok());
            let before = runs();
            load.goes_on();
            thread::sleep(Duration::from_millis(200));
            assert_eq!(runs(), before, "the old master is still asked");
        }
        let ledger = load.stop().await;
        let (lost, beyond) = (lost(&ledger, sentinels.master()), beyond_the_limit(&ledger));
        let (gap, back) = ledger.gap.expect("calls were admitted");
        let late = back.saturating_duration_since(announced);
        let log = service.log();
        let (_, reported) = log.rsplit_once("in epoch ").expect("the failover was reported");
        let reported = reported.lines().next().unwrap_or_default();
        eprintln!(
            "{fault:?}: announced after {:.2?}, back {late:.2?} later, nothing admitted for {gap:.2?}; \
             {} admitted, {lost} of them lost, {beyond} beyond the limit; reported: {reported}",
            announced - began,
            ledger.admitted.values().sum::<u64>(),
        );
        let starved = waited_for_cpu(process).saturating_sub(waited);
        assert!(late < BACK_WITHIN + starved, "{late:?}, {starved:?} without a CPU");
        assert!(beyond <= lost, "{beyond} > {lost}");
        // A batch may be answered before it is sent to the replicas.
        assert!(fault != Fault::Kill || lost <= CLIENTS as u64, "{lost}");
        sentinels.master().assert_no_key_leaks();
        sentinels.heal();
        if round == 0 {
            files = open_files(process);
        }
    }
    wait_until("no descriptors are left open", || open_files(process) <= files + CLIENTS);
}
