//! The scenarios of `table.txt`, through the service on every store.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{
    fleet::rules_of,
    prelude::*,
    scenarios::{Scenario, Step, on_all_stores, run, scenarios},
    service::metadata,
};

const TABLE: &str = include_str!("table.txt");

/// A scenario on a service, with counters of its own.
struct Running<'a> {
    service: &'a Service,
    domain: &'a str,
    rules: &'a str,
    key: &'static str,
    value: String,
    /// The tokens of takes, by their names.
    tokens: HashMap<String, String>,
}

impl Running<'_> {
    async fn ask(&self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.service.ask(request(self.domain, descriptors)).await.unwrap()
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
        let descriptor = format!("{}={value}", self.key).replace(' ', "%20");
        let path = format!("{path}domain={}&descriptor={descriptor}", self.domain);
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
        self.service.reload_at(&rules_of(self.service, self.domain), &changed);
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
async fn perform(service: &Service, domain: &str, scenario: &Scenario) -> Vec<String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let rules = fs::read_to_string(rules_of(service, domain)).unwrap();
    let (key, _) = scenario.name.split_once(": ").expect(scenario.name);
    loop {
        let value = format!("{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let tokens = HashMap::new();
        let mut running = Running { service, domain, rules: &rules, key, value, tokens };
        let (mut began, mut from, mut answers) = (second(), Instant::now(), Vec::new());
        let (mut is_in_time, all) = (true, from);
        for (step, _) in &scenario.steps {
            if step == "wait" {
                is_in_time &= !key.starts_with("short") || from.elapsed().as_millis() < 990;
            } else {
                is_in_time &= !key.starts_with("seconds") || second() == began;
            }
            answers.push(running.step(step).await);
            if step == "wait" {
                (began, from) = (second(), Instant::now());
            }
        }
        is_in_time &= !key.starts_with("seconds") || second() == began;
        is_in_time &= key != "short_jobs" || all.elapsed().as_millis() < 1990;
        is_in_time &= !key.starts_with("short_slots") || from.elapsed().as_millis() < 990;
        if is_in_time {
            let steps = scenario.steps.iter().zip(&answers);
            let others = steps.filter(|((_, expected), answer)| {
                expected.as_deref().unwrap_or_default() != *answer
            });
            let spell = |((step, expected), answer): (&Step, &String)| {
                format!("{step} = {answer}, not {expected:?}")
            };
            return others.map(spell).collect();
        }
    }
}

#[test]
fn every_scenario_has_its_answers_on_every_store() {
    on_all_stores(async |store| {
        run(store, "holds", scenarios(TABLE), async |service, domain, scenario| {
            perform(service, &domain, scenario).await
        })
        .await;
    });
}

#[test]
fn every_other_rule_of_the_table_is_refused_in_words_without_scripts() {
    let rules =
        TABLE.split("\n\n").filter_map(|block| block.strip_prefix("domain: shop\ndescriptors:\n"));
    let rules = rules.map(|rules| format!("{}\n", rules.trim_end()));
    let file = TextFile::new(
        "rules.yaml",
        "domain: shop\ndescriptors:\n".to_owned() + &rules.collect::<String>(),
    );
    let flags = ["serve", "--redis-scripts", "off", "--rules", &file];
    let (code, _, stderr) = crate::support::run(tollkeeper().args(flags));
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
