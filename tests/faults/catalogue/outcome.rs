//! What a run of a row shows: its checks, and its line in the table.

use std::fmt::Write as _;

use super::{
    BUDGET, Counters, Effect, POOL_SIZE, Reach, Row, SMALL, Setup, World,
    load::{self, Answer, Call, Ledger, MODES, SPARED},
};
use crate::support::{prelude::*, service::*};

/// The table's header in docs/internals/reliability.md.
pub(super) const HEADER: &str =
    "| fault | slowest answer ms | full service after ms |\n| --- | ---: | ---: |";

/// A recovery takes at most a second, which the time is added to that this test waited for the processor.
const RECOVERY_MAX: Duration = Duration::from_secs(1);

/// Threads for reading files, which start when they are needed.
const MORE_THREADS: usize = 4;

/// How long callers wait for an answer when the fault has ended.
const WAITS: Duration = Duration::from_secs(20);

/// Most answers take less, unless the service stands still as long: it is stopped, and waits for a CPU.
const LONGEST: Duration = Duration::from_secs(1);

/// More calls on one counter than a batch has in these tests.
const BATCH_MAX: u64 = 8;

/// Lines of the log of one outage, which may change its cause. A recovery in steps, as on a busy machine, has several.
const LINES_MAX: usize = 24;

/// When what happened.
pub(super) struct Times {
    pub began: Instant,
    pub staged: Instant,
    pub heals: Instant,
    pub healed: Instant,
    pub recovery: Option<Recovery>,
}

/// How full service came back.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recovery {
    /// From the end of the fault to the last bad answer.
    pub after: Duration,
    /// How long the test and the service got no processor meanwhile.
    pub starved: Duration,
}

/// What a process holds.
pub(super) struct Process {
    pub id: u32,
    pub files: usize,
    waited: Duration,
    threads: usize,
    lines: usize,
}

impl Process {
    pub(super) fn of(service: &mut Service) -> Self {
        let id = service.process().0.id();
        let lines = lines(service).len();
        Self { id, files: open_files(id), waited: waited_for_cpu(id), threads: threads(id), lines }
    }
}

/// The lines of its log, apart from those that the machine has no processor for it.
fn lines(service: &Service) -> Vec<String> {
    let log = service.log();
    let lines = log.lines().filter(|line| !line.contains("was without CPU"));
    lines.map(str::to_owned).collect()
}

fn threads(process_id: u32) -> usize {
    fs::read_dir(format!("/proc/{process_id}/task")).unwrap().count()
}

/// Resident memory of a process, in KiB.
pub(super) fn memory(process_id: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process_id}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The service's measure of its calls: upper bounds in seconds, each with the number of calls up to it.
#[derive(Debug, Clone, Default)]
pub(super) struct Durations(Vec<(f64, u64)>);

impl Durations {
    pub(super) fn of(service: &Service) -> Self {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        for line in service.get("/metrics").lines() {
            let Some(rest) = line.strip_prefix("rpc_server_call_duration_seconds_bucket{") else {
                continue;
            };
            let (_, bound) = rest.split_once("le=\"").unwrap();
            let bound = match bound.split('"').next().unwrap() {
                "+Inf" => f64::INFINITY,
                number => number.parse().unwrap(),
            };
            let count = count_of(line);
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += count,
                None => buckets.push((bound, count)),
            }
        }
        Self(buckets)
    }

    /// Those after `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let before = |bound: f64| {
            earlier.0.iter().find(|(known, _)| *known == bound).map_or(0, |(_, count)| *count)
        };
        Self(self.0.iter().map(|(bound, count)| (*bound, count - before(*bound))).collect())
    }

    /// Whether most calls wait for nothing.
    pub(super) fn are_at_once(&self) -> bool {
        self.quantile(0.5) <= BUDGET.as_secs_f64() / 2.0
    }

    /// The bound of the bucket in which this part of all calls ends, in seconds.
    fn quantile(&self, part: f64) -> f64 {
        let all = self.0.iter().map(|(_, count)| *count).max().unwrap_or(0);
        let up_to = |(_, count): &&(f64, u64)| *count as f64 >= all as f64 * part;
        self.0.iter().find(up_to).map_or(0.0, |(bound, _)| *bound)
    }
}

fn count_of(line: &str) -> u64 {
    let number = line.rsplit(' ').next().unwrap();
    number.parse::<f64>().unwrap() as u64
}

/// The sum of a metric's series that have all of these labels.
fn sum(metrics: &str, name: &str, labels: &[String]) -> u64 {
    let of_metric = metrics.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    of_metric
        .filter(|line| labels.iter().all(|label| line.contains(label.as_str())))
        .map(count_of)
        .sum()
}

/// The outcome of one run of a row, or the worst of several.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// The slowest answer, from the fault's begin to its end.
    slowest: Duration,
    recovery: Option<Duration>,
    /// The checks that failed, with what was found.
    failed: Vec<String>,
}

impl Outcome {
    pub(super) fn worse(mut self, other: Self) -> Self {
        self.slowest = self.slowest.max(other.slowest);
        self.recovery = self.recovery.zip(other.recovery).map(|(one, other)| one.max(other));
        self.failed.extend(other.failed);
        self
    }

    /// The failed checks.
    pub(super) fn failures(&self, row: &Row) -> Vec<String> {
        self.failed.iter().map(|failed| format!("{}: {failed}", row.fault)).collect()
    }

    /// The line of the table.
    pub(super) fn line(&self, row: &Row) -> String {
        let recovery = self.recovery.map_or("none".to_owned(), |time| time.as_millis().to_string());
        format!("| {} | {} | {recovery} |", row.fault, self.slowest.as_millis())
    }
}

/// Writes the table to docs/internals/reliability.md if `UPDATE_DOCS` is set.
pub(super) fn update_page(lines: &[String], is_complete: bool) {
    if std::env::var_os("UPDATE_DOCS").is_none() || !is_complete {
        return;
    }
    let file = root().join("docs/internals/reliability.md");
    let page = fs::read_to_string(&file).unwrap();
    let (before, rest) = page.split_once(HEADER).expect("the page has the table");
    let after = rest.split_once("\n\n").map_or("", |(_, after)| after);
    fs::write(file, format!("{before}{HEADER}\n{}\n\n{after}", lines.join("\n"))).unwrap();
}

/// Checks everything after the fault has ended and the load has stopped.
pub(super) fn judge(
    row: &Row,
    world: &mut World,
    before: &Process,
    ledger: &Ledger,
    times: &Times,
    in_fault: Durations,
) -> Outcome {
    let during =
        ledger.iter().filter(|call| call.answered >= times.began && call.sent <= times.heals);
    let slowest = during.map(|call| call.answered - call.sent).max().unwrap_or_default();
    let beyond = beyond(row, ledger, times);
    let median = in_fault.quantile(0.5);
    let mut failed = Vec::new();
    let mut check = |claim: &str, problem: Option<String>| {
        failed.extend(problem.map(|problem| format!("{claim}: {problem}")));
    };
    let answers = "every call is answered, and by the service's measure 99 of 100 within a second";
    check(answers, answered(world, before, ledger));
    if row.effect == Effect::Outage {
        let slow = !in_fault.are_at_once();
        let problem = slow.then(|| format!("half of the answers took up to {median} s"));
        check("answers do not wait for the budget", problem);
    }
    check("answers come from the rule's on_store_failure", modes(row, ledger, times));
    let problem = (beyond > 0).then(|| format!("{beyond} more"));
    check("no more is admitted than promised", problem);
    let is_back =
        times.recovery.is_some_and(|recovery| recovery.after <= RECOVERY_MAX + recovery.starved);
    let problem = (!is_back).then(|| format!("after {:?}", times.recovery));
    check("full service is back after the fault", problem);
    check("clients, metrics and counters agree", agrees(row, world, ledger));
    check("descriptors, threads and connections return", leaks(row, world, before));
    check("every key has a TTL", without_ttl(world));
    let lines = lines(world.service()).split_off(before.lines);
    check("the log has few lines", (lines.len() > LINES_MAX).then(|| lines.join("\n")));
    Outcome { slowest, recovery: times.recovery.map(|recovery| recovery.after), failed }
}

fn answered(world: &World, before: &Process, ledger: &Ledger) -> Option<String> {
    let others = ledger.iter().filter(|call| call.answer == Answer::Other).count();
    if others > 0 {
        return Some(format!("{others} calls got no answer or an unexpected error"));
    }
    let most = Durations::of(world.service()).quantile(0.99);
    let (stopped, _) = world.stopped;
    let waited = waited_for_cpu(before.id).saturating_sub(before.waited);
    (most > LONGEST.as_secs_f64() && stopped + waited < LONGEST).then(|| {
        format!("of 100 answers, one takes more than {most} s; it waits {waited:?} for a CPU")
    })
}

/// Calls on large limits within the fault, once it has taken effect, must be answered by the mode, and those that the
/// fault does not affect by Redis.
fn modes(row: &Row, ledger: &Ledger, times: &Times) -> Option<String> {
    let from = times.staged + Duration::from_millis(50);
    let is_within = |call: &&Call| {
        let until = if effect_on(row, call) == Effect::Served { times.healed } else { times.heals };
        !call.is_small && call.sent >= from && call.answered <= until
    };
    let is_wrong = |call: &&Call| {
        let fallback = match MODES.get(call.mode) {
            Some(&"deny") => Answer::OverLimit,
            Some(&("allow" | "local")) => Answer::Ok,
            _ => Answer::Unavailable,
        };
        match effect_on(row, call) {
            Effect::Served => call.answer != Answer::Ok,
            Effect::Mixed => ![Answer::Ok, fallback].contains(&call.answer),
            Effect::Outage | Effect::WritesRefused => call.answer != fallback,
        }
    };
    let within = ledger.iter().filter(is_within);
    let mut wrong: Vec<&Call> = within.clone().filter(is_wrong).collect();
    if matches!(row.setup, Setup::Cluster | Setup::Shards) {
        // Six servers keep a small machine busy, and some calls from being served in time; a node that gets no
        // requests fails all of its calls.
        let is_served = |call: &Call| effect_on(row, call) == Effect::Served;
        let served = within.clone().filter(|call| is_served(call)).count();
        if 2 * wrong.iter().filter(|call| is_served(call)).count() < served {
            wrong.retain(|call| !is_served(call));
        }
    }
    let first = wrong.first()?;
    Some(format!(
        "{} of {} answers are not of the mode, such as {:?} for {} after {:?}",
        wrong.len(),
        within.count(),
        first.answer,
        MODES.get(first.mode).unwrap_or(&SPARED),
        first.sent - times.staged
    ))
}

fn effect_on(row: &Row, call: &Call) -> Effect {
    match row.reach {
        Reach::FirstNode if call.is_spared() => Effect::Served,
        Reach::FirstNode | Reach::All => row.effect,
    }
}

/// Calls that were admitted on small limits beyond what is promised.
fn beyond(row: &Row, ledger: &Ledger, times: &Times) -> u64 {
    let promised = match row.counters {
        Counters::Kept => SMALL,
        Counters::Replicated => SMALL + BATCH_MAX,
        Counters::Lost(times) => SMALL * (1 + times),
    };
    let recovery = times.recovery.map(|recovery| recovery.after).unwrap_or_default();
    let back = back(ledger, times.healed + recovery);
    let mut beyond = 0;
    for (mode, name) in MODES.iter().enumerate() {
        let admitted = ledger.iter().filter(|call| {
            let is_free = *name == "allow" && call.answered >= times.began && call.sent <= back;
            call.mode == mode && call.is_small && call.answer == Answer::Ok && !is_free
        });
        let share = if *name == "local" { SMALL } else { 0 };
        beyond += (admitted.count() as u64).saturating_sub(promised + share);
    }
    beyond
}

/// When Redis is known to answer again, after the last bad answer: the modes that show it have had an answer of its own.
fn back(ledger: &Ledger, last_bad: Instant) -> Instant {
    let first_good = |mode: usize| {
        let good = ledger.iter().filter(|call| {
            call.mode == mode && !call.is_small && call.sent > last_bad && !call.is_bad()
        });
        good.map(|call| call.answered).min()
    };
    (0..MODES.len())
        .filter(|mode| load::shows_failure(*mode))
        .filter_map(first_good)
        .fold(last_bad, Instant::max)
}

/// The clients' ledger, the metrics and the counters say the same, and every further call is counted once.
fn agrees(row: &Row, world: &World, ledger: &Ledger) -> Option<String> {
    let mut ledger = ledger.clone();
    let uncounted = MODES.iter().enumerate().filter_map(|(mode, name)| {
        let counts = counts_once(world.service(), mode, &mut ledger);
        let used = used(world.service(), name);
        let calls = || ledger.iter().filter(|call| call.mode == mode && !call.is_small);
        let admitted = calls().filter(|call| call.answer == Answer::Ok).count() as u64;
        let least = if row.counters == Counters::Kept { admitted } else { 0 };
        // A call that got no answer of Redis may be counted, and none twice.
        let is_exact = mode >= 2 || (least..=calls().count() as u64).contains(&used);
        let other =
            || format!("{name}: {admitted} admitted of {}, {used} counted", calls().count());
        counts.or_else(|| (!is_exact).then(other))
    });
    let uncounted: Vec<String> = uncounted.collect();
    if !uncounted.is_empty() {
        return Some(uncounted.join(", "));
    }
    // A call is measured after it is answered.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let problem = differs(&ledger, &world.service().get("/metrics"))?;
        if Instant::now() > deadline {
            return Some(problem);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Makes some more calls, and adds them to the ledger. They wait so long that a busy machine has time to serve them.
fn counts_once(service: &Service, mode: usize, ledger: &mut Ledger) -> Option<String> {
    const MORE: u64 = 5;
    let (name, runtime) = (MODES[mode], tokio::runtime::Runtime::new().unwrap());
    let before = used(service, name);
    let calls = runtime.block_on(async {
        let client = service.client().await;
        let mut calls = Vec::new();
        for _ in 0..MORE {
            calls.push(load::call(client.clone(), mode, false, Some(WAITS)).await);
        }
        calls
    });
    let passed = calls.iter().filter(|call| call.answer == Answer::Ok).count() as u64;
    ledger.extend(calls);
    let counted = used(service, name) - before;
    let is_exact = (passed, counted) == (MORE, MORE);
    (!is_exact)
        .then(|| format!("{name}: {passed} of {MORE} more calls pass, {counted} are counted"))
}

/// How the metrics differ from the ledger.
fn differs(ledger: &Ledger, metrics: &str) -> Option<String> {
    let mut problems = String::new();
    let count = |is: &dyn Fn(&Call) -> bool| ledger.iter().filter(|call| is(call)).count() as u64;
    for (mode, name) in MODES.iter().enumerate() {
        for (code, answer) in [("ok", Answer::Ok), ("over_limit", Answer::OverLimit)] {
            let labels = [format!("rule=\"{name}\""), format!("code=\"{code}\"")];
            let measured = sum(metrics, "ratelimit_decisions_total", &labels);
            let answered =
                count(&|call| call.mode == mode && !call.is_small && call.answer == answer);
            if measured != answered {
                writeln!(problems, "{name}: {answered} {code}, {measured} by the metrics").unwrap();
            }
        }
    }
    let labels = ["rpc_response_status_code=\"UNAVAILABLE\"".to_owned()];
    let measured = sum(metrics, "rpc_server_call_duration_seconds_count", &labels);
    let answered = count(&|call| call.answer == Answer::Unavailable);
    if measured != answered {
        writeln!(problems, "{answered} UNAVAILABLE, {measured} by the metrics").unwrap();
    }
    (!problems.is_empty()).then_some(problems)
}

/// The count of a mode's large limit.
fn used(service: &Service, mode: &str) -> u64 {
    service.counter("faults", &format!("{mode}=large"))["used"].as_u64().unwrap()
}

fn leaks(row: &Row, world: &World, before: &Process) -> Option<String> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let servers = world.servers();
    loop {
        let (files, threads) = (open_files(before.id), threads(before.id));
        let connections: Vec<usize> = match row.setup {
            Setup::Memory => Vec::new(),
            _ => servers.iter().map(|server| connections(server)).collect(),
        };
        if files <= before.files + 2 * POOL_SIZE * servers.len()
            && threads <= before.threads + MORE_THREADS
            && connections.iter().all(|count| *count <= POOL_SIZE)
        {
            return None;
        }
        if Instant::now() > deadline {
            return Some(format!(
                "descriptors {} before, {files} now; threads {} before, {threads} now; {connections:?} connections",
                before.files, before.threads
            ));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Number of the service's connections to a server. Sentinels name theirs, and nodes keep those by which they moved keys.
fn connections(server: &Redis) -> usize {
    let clients: String = server.query(&["CLIENT", "LIST", "TYPE", "normal"]);
    let is_ours = |client: &&str| client.contains(" name= ") && !client.contains(" cmd=restore");
    // One was opened before the fault, or follows a master of a Cluster.
    clients.lines().filter(is_ours).count().saturating_sub(1)
}

fn without_ttl(world: &World) -> Option<String> {
    let leaked: Vec<Vec<u8>> = world.servers().into_iter().flat_map(keys_without_ttl).collect();
    (!leaked.is_empty()).then(|| format!("{leaked:?}"))
}

fn keys_without_ttl(server: &Redis) -> Vec<Vec<u8>> {
    eventually("redis answers", || {
        let pong: redis::RedisResult<String> = redis::cmd("PING").query(&mut server.connect());
        pong.ok()
    });
    server.keys_without_ttl()
}
