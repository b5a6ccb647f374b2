//! The scenarios of `table.txt`, through the service on every store.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{cluster::ClusterSetup, prelude::*, service::metadata};

const TABLE: &str = include_str!("table.txt");

const BY_TOKEN: &str = "
domain: llm
descriptors:
  - key: tokens
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 300 } }
  - key: short
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 1s, estimate: 300 } }
  - key: seconds
    rate_limit: { unit: second, requests_per_unit: 1000, hold: { for: 10m, estimate: 300 } }
";

/// Rules that need scripts.
const FURTHER: &str = "
  - key: first
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: first_hit_window, hold: 10m }
  - key: bucket
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: token_bucket, hold: 10m }
  - key: sliding
    rate_limit: { unit: year, requests_per_unit: 1000, algorithm: sliding_window, hold: 10m }
  - key: jobs
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, by: id } }
  - key: short_jobs
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 1s, by: id } }
  - key: seconds_jobs
    rate_limit: { unit: second, requests_per_unit: 1000, hold: { for: 10m, by: id } }
  - key: slots
    rate_limit: { algorithm: in_flight, requests_per_unit: 2, hold: 10m }
  - key: short_slots
    rate_limit: { algorithm: in_flight, requests_per_unit: 2, hold: 1s }
  - key: slot_jobs
    rate_limit: { algorithm: in_flight, requests_per_unit: 2, hold: { for: 10m, by: id } }
  - key: both
    rate_limits:
      - { unit: year, requests_per_unit: 1000, hold: { for: 10m, estimate: 300 } }
      - { algorithm: in_flight, requests_per_unit: 1, hold: 10m }
";

/// Rules by counter, which keep their domain on one node of a Cluster.
const BY_COUNTER: &str = "
domain: llm
descriptors:
  - key: routes
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 10m, by: counter, estimate: 300 } }
  - key: short_routes
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 1s, by: counter, estimate: 300 } }
  - key: released_routes
    rate_limit: { unit: year, requests_per_unit: 1000, hold: { for: 1s, by: counter, estimate: 300, abandoned: release } }
";

/// A line of the table: what is done, and the answer.
type Step = (&'static str, &'static str);

#[derive(Clone)]
struct Scenario {
    key: &'static str,
    name: &'static str,
    steps: Vec<Step>,
}

fn scenarios() -> Vec<Scenario> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in lines {
        let step =
            line.rsplit_once(" = ").or(matches!(line, "wait" | "no rule").then_some((line, "")));
        let step = step.or(line.starts_with("limit ").then_some((line, "")));
        match step {
            Some(step) => scenarios.last_mut().expect("a name before steps").steps.push(step),
            None => {
                let (key, name) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
                scenarios.push(Scenario { key, name, steps: Vec::new() });
            }
        }
    }
    scenarios
}

impl Scenario {
    fn reloads(&self) -> bool {
        self.steps.iter().any(|(step, _)| step.starts_with("limit") || *step == "no rule")
    }
}

/// A scenario on a service, with counters of its own.
struct Running<'a> {
    service: &'a Service,
    rules: &'a str,
    key: &'static str,
    value: String,
    /// The tokens of takes, by their names.
    tokens: HashMap<String, String>,
}

impl Running<'_> {
    async fn ask(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.service.ask(request("llm", descriptors)).await.unwrap()
    }

    fn is_by_id(&self) -> bool {
        self.key.ends_with("jobs")
    }

    fn is_by_counter(&self) -> bool {
        self.key.ends_with("routes")
    }

    /// The values of the counters of `all`.
    fn values(&self) -> Vec<String> {
        let others = (2..5).map(|number| format!("{number} of {}", self.value));
        [self.value.clone()].into_iter().chain(others).collect()
    }

    /// A descriptor of this scenario, with these parameters.
    fn of(&self, value: &str, name: &str, parameters: &[(&str, &str)]) -> RateLimitDescriptor {
        let id = format!("{} {name}", self.value);
        let mut entries = vec![(self.key, value)];
        if self.is_by_id() && !name.is_empty() {
            entries.push(("hold.id", &id));
        }
        entries.extend(parameters);
        descriptor(&entries)
    }

    async fn take(&mut self, words: &[&str]) -> RateLimitResponse {
        let (step, name, estimate) = (words[0], words[1], words.get(2));
        let estimate: Vec<_> =
            estimate.map(|number| ("hold.estimate", *number)).into_iter().collect();
        let values = match step {
            "all" => self.values(),
            "twice" => vec![self.value.clone(); 2],
            _ => vec![self.value.clone()],
        };
        let take = |value: &String| match self.is_by_counter() {
            true => hits(self.of(value, name, &estimate), 0),
            false => self.of(value, name, &estimate),
        };
        let answer = self.ask(values.iter().map(take).collect()).await;
        if let Some(token) = metadata(&answer, "hold") {
            self.tokens.insert(name.to_owned(), token);
        }
        answer
    }

    async fn commit(&self, words: &[&str]) -> String {
        let (words, end) = match words.iter().position(|word| *word == "end") {
            Some(at) => (&words[..at], Some(words[at + 1..].join(" "))),
            None => (words, None),
        };
        let (name, used) = (words[1], words.get(2).copied());
        let mut parameters: Vec<(&str, &str)> =
            end.iter().map(|end| ("hold.end", &**end)).collect();
        if self.is_by_counter() {
            let used = used.unwrap().parse().unwrap();
            return spell(&self.ask(vec![hits(self.of(&self.value, name, &[]), used)]).await);
        }
        parameters.extend(used.map(|used| ("hold.used", used)));
        if self.is_by_id() {
            let answer = self.ask(vec![self.of(&self.value, name, &parameters)]).await;
            return answer.overall_code().as_str_name().to_owned();
        }
        let token = self.tokens.get(name).map_or("no token", String::as_str);
        parameters.push(("hold.commit", token));
        metadata(&self.ask(vec![descriptor(&parameters)]).await, "commit").unwrap_or_default()
    }

    /// What is used of the counters of a value, by the admin address.
    fn counters(&self, method: &str, path: &str, value: &str) -> String {
        let descriptor: String = format!("{}={value}", self.key);
        let descriptor = descriptor.replace('=', "%3D").replace(' ', "%20");
        let path = format!("{path}domain=llm&descriptor={descriptor}");
        let (status, body) = self.service.admin(method, &path);
        assert_eq!(status, 200, "{body}");
        let spell = |counter: &Value| match counter["held"].as_u64() {
            Some(held @ 1..) => format!("{} + {held}", counter["used"]),
            _ => counter["used"].to_string(),
        };
        body["counters"].as_array().unwrap().iter().map(spell).collect::<Vec<_>>().join(", ")
    }

    /// Replaces the limit of the rule, or removes the rule.
    fn reload(&self, limit: Option<&str>) {
        let rule = format!("key: {}\n", self.key);
        let (before, after) = self.rules.split_once(&rule).unwrap();
        let changed = match limit {
            Some(limit) => {
                let (head, tail) = after.split_once("requests_per_unit: ").unwrap();
                let (_, tail) = tail.split_once(',').unwrap();
                format!("{before}{rule}{head}requests_per_unit: {limit},{tail}")
            }
            None => format!("{before}key: gone\n{after}"),
        };
        self.service.reload(&changed);
    }

    async fn step(&mut self, step: &str) -> String {
        let words: Vec<&str> = step.split(' ').collect();
        match words[0] {
            "take" | "twice" => spell(&self.take(&words).await),
            "all" => self.take(&words).await.overall_code().as_str_name().to_owned(),
            "commit" => self.commit(&words).await,
            "counter" => self.counters("GET", "/counters?", &self.value),
            "others" => {
                let values = self.values();
                let others = values[1..].iter();
                let all = others.map(|value| self.counters("GET", "/counters?", value));
                all.collect::<Vec<_>>().join(", ")
            }
            "refund" => {
                let back = refund(self.of(&self.value, "", &[]), words[1].parse().unwrap());
                spell(&self.ask(vec![back]).await)
            }
            "reset" => self.counters("POST", "/counters/reset?", &self.value),
            "set" => {
                self.counters("POST", &format!("/counters/set?used={}&", words[1]), &self.value)
            }
            "limit" => {
                self.reload(Some(words[1]));
                String::new()
            }
            "no" => {
                self.reload(None);
                String::new()
            }
            "wait" => {
                tokio::time::sleep(Duration::from_millis(1050)).await;
                String::new()
            }
            _ => panic!("{step}"),
        }
    }
}

/// The code and what remains.
fn spell(answer: &RateLimitResponse) -> String {
    let left = answer.statuses[0].limit_remaining;
    format!("{} {left}", answer.overall_code().as_str_name())
}

/// The second in which what follows happens.
fn second() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Runs a scenario; again if the machine was too slow for it: if steps between waits fell into several windows of a second, a
/// hold of a second ended before the wait, or it was forgotten, a second later, before its late commit. Returns the steps that
/// have other answers.
async fn perform(scenario: &Scenario, service: &Service, rules: &str) -> Vec<String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    loop {
        let value = format!("{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let (key, tokens) = (scenario.key, HashMap::new());
        let mut running = Running { service, rules, key, value, tokens };
        let (mut began, mut from, mut answers) = (second(), Instant::now(), Vec::new());
        let (mut is_in_time, all) = (true, from);
        for (step, _) in &scenario.steps {
            if *step == "wait" {
                is_in_time &= !key.starts_with("short") || from.elapsed().as_millis() < 990;
            } else {
                is_in_time &= !key.starts_with("seconds") || second() == began;
            }
            answers.push(running.step(step).await);
            if *step == "wait" {
                (began, from) = (second(), Instant::now());
            }
        }
        is_in_time &= !key.starts_with("seconds") || second() == began;
        is_in_time &= key != "short_jobs" || all.elapsed().as_millis() < 1990;
        is_in_time &= !key.starts_with("short_slots") || from.elapsed().as_millis() < 990;
        if is_in_time {
            let steps = scenario.steps.iter().zip(&answers);
            let others = steps.filter(|((_, expected), answer)| expected != answer);
            let spell = |((step, expected), answer): (&Step, &String)| {
                format!("{key}: {}: {step} = {answer}, not {expected}", scenario.name)
            };
            return others.map(spell).collect();
        }
    }
}

/// Performs the scenarios whose keys have rules. Those that reload the rules are performed one after the other.
async fn perform_all(service: &Service, rules: &str, store: &str) {
    let has_rule = |scenario: &Scenario| rules.contains(&format!("key: {}\n", scenario.key));
    let scenarios: Vec<_> = scenarios().into_iter().filter(has_rule).collect();
    let (reload, stay): (Vec<_>, Vec<_>) = scenarios.iter().partition(|one| one.reloads());
    let stay = stay.iter().map(|scenario| perform(scenario, service, rules));
    let mut others = join_all(stay).await.concat();
    for scenario in reload {
        others.extend(perform(scenario, service, rules).await);
        service.reload(&(rules.to_owned() + "# as at first\n"));
    }
    assert!(others.is_empty(), "on {store}:\n{}", others.join("\n"));
    println!("{} scenarios on {store}", scenarios.len());
}

/// Performs all scenarios on a store.
async fn perform_on(store: &str, name: &str) {
    for rules in [BY_TOKEN.to_owned() + FURTHER, BY_COUNTER.to_owned()] {
        let service = Service::with(&rules).on(store).ready();
        perform_all(&service, &rules, name).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios_of_the_table_have_their_answers_on_memory() {
    perform_on("memory://", "memory").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios_of_the_table_have_their_answers_on_a_redis() {
    let redis = Redis::start();
    perform_on(&redis.url_with_minimal_rights(), "a Redis").await;
    redis.assert_no_key_leaks();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios_of_the_table_have_their_answers_on_a_cluster() {
    let cluster = Cluster::start_as(&ClusterSetup { replicas: false, ..ClusterSetup::default() });
    perform_on(&cluster.url_with_minimal_rights(), "a Cluster").await;
    cluster.assert_no_key_leaks();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_scenarios_by_token_have_their_answers_without_scripts() {
    let redis = Redis::start();
    let (store, flags) = (redis.url_without_scripts(), &["--redis-scripts", "off"]);
    let service = Service::with(BY_TOKEN).on(&store).flags(flags).start();
    perform_all(&service, BY_TOKEN, "a Redis without scripts").await;
    redis.assert_no_key_leaks();
}

#[test]
fn every_other_rule_of_the_table_is_refused_in_words_without_scripts() {
    let file = TextFile::new(
        "rules.yaml",
        [BY_TOKEN, FURTHER].concat() + BY_COUNTER.split_once("descriptors:").unwrap().1,
    );
    let flags = ["serve", "--redis-scripts", "off", "--rules", &file];
    let (code, _, stderr) = run(tollkeeper().args(flags));
    assert_eq!(code, Some(2));
    let by_token = "hold: needs scripts unless it is `by: token`, but --redis-scripts is off";
    assert_eq!(stderr.matches(by_token).count(), 7, "{stderr}");
    for (algorithm, count) in
        [("first_hit_window", 1), ("token_bucket", 1), ("sliding_window", 1), ("in_flight", 4)]
    {
        let problem = format!("algorithm: {algorithm} needs scripts, but --redis-scripts is off");
        assert_eq!(stderr.matches(&problem).count(), count, "{stderr}");
    }
}
