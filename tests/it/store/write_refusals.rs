//! Promise "an answer in time": a denial needs no write. While Redis refuses writes, calls over their limit are still denied, and
//! only calls that would pass fail, each by itself.

use tollkeeper::store::StoreError;

use crate::support::{charges::prelude::*, prelude::*, redis_store};

const REFUSALS: [&str; 4] = ["OOM", "NOREPLICAS", "MISCONF", "READONLY"];

/// Far longer than any call takes.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A charge on a limit of 5 in forty years.
fn charge_on(algorithm: Algorithm, when_denied: WhenDenied, user: &str, hits: Hits) -> Charge {
    let limit = Limit::new(5, Unit::Year, 40).unwrap();
    charge(user, hits, &Arc::new(Limit { algorithm, when_denied, ..limit }))
}

fn charge_hits(user: &str, hits: u64) -> Charge {
    charge_on(Algorithm::FixedWindow, WhenDenied::Free, user, Hits::Charge(hits))
}

/// `denied`, `admitted`, or the code of the refusal.
fn spell(answer: &Result<Verdict, StoreError>) -> String {
    match answer {
        Ok(Verdict { denied: true, .. }) => "denied".to_owned(),
        Ok(_) => "admitted".to_owned(),
        Err(error) => {
            let text = error.to_string();
            let code = REFUSALS.into_iter().find(|code| text.contains(&format!("({code})")));
            code.unwrap_or_else(|| panic!("{text}")).to_owned()
        }
    }
}

#[tokio::test]
async fn exhausted_limits_deny_and_what_counts_nevertheless_is_counted_later() {
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::store(&redis.url(), 0, system_clock, TIMEOUT);
        for call in [[charge_hits("full", 5)], [charge_hits("used", 3)]] {
            assert_eq!(spell(&store.charge(&call, redis_store::soon()).await), "admitted");
        }
        redis.refuse_writes(code);
        let no_hits = charge_on(Algorithm::FixedWindow, WhenDenied::Free, "new", Hits::Check);
        let debit = charge_on(Algorithm::FixedWindow, WhenDenied::Counted, "full", Hits::Charge(3));
        let refund =
            |user| charge_on(Algorithm::FixedWindow, WhenDenied::Free, user, Hits::Refund(1));
        let calls = [
            (vec![charge_hits("full", 1)], "denied"),
            (vec![charge_hits("new", 1)], code),
            (vec![charge_hits("used", 2)], code),
            (vec![charge_hits("used", 3)], "denied"),
            (vec![charge_hits("new", 1), charge_hits("full", 1)], "denied"),
            (vec![charge_hits("full", 1), charge_hits("new", 1)], "denied"),
            (vec![charge_hits("used", 1), charge_hits("new", 1)], code),
            // Equal calls are one item of the script.
            (vec![charge_hits("used", 2)], code),
            (vec![charge_hits("used", 2)], code),
            // Calls for the ledger script.
            (vec![no_hits], "admitted"),
            (vec![debit], "denied"),
            (vec![charge_hits("new", 6)], "denied"),
            (vec![refund("full")], code),
            (vec![refund("used"), charge_hits("full", 1)], "denied"),
        ];
        let answers =
            join_all(calls.iter().map(|(call, _)| store.charge(call, redis_store::soon()))).await;
        for ((call, expected), answer) in calls.iter().zip(&answers) {
            assert_eq!(spell(answer), *expected, "{code}: {call:?}");
        }
        // What was kept is refused once more.
        tokio::time::sleep(Duration::from_millis(200)).await;
        redis.accept_writes();
        store.ended().await;
        assert_eq!(
            spell(&store.charge(&[charge_hits("used", 2)], redis_store::soon()).await),
            "admitted",
            "{code}"
        );
        assert_eq!(redis.query::<String>(&["GET", &redis.key("used")]), "4", "{code}");
        // 5, a debit of 3 and a refund of 1.
        assert_eq!(redis.query::<String>(&["GET", &redis.key("full")]), "7", "{code}");
        redis.assert_no_key_leaks();
    }
}

#[tokio::test]
async fn every_algorithm_denies_without_a_write() {
    let algorithms = Algorithm::of_time(5, None);
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::store(&redis.url(), 0, system_clock, TIMEOUT);
        // The look makes each call one for the ledger script, also on fixed windows.
        let call = |algorithm: &Algorithm, user: &str, hits| {
            let charge =
                |user: &str, hits| charge_on(algorithm.clone(), WhenDenied::Free, user, hits);
            [charge(user, Hits::Charge(hits)), charge("looked at", Hits::Check)]
        };
        for algorithm in &algorithms {
            assert_eq!(
                spell(&store.charge(&call(algorithm, "full", 5), redis_store::soon()).await),
                "admitted"
            );
            assert_eq!(
                spell(&store.charge(&call(algorithm, "used", 4), redis_store::soon()).await),
                "admitted"
            );
        }
        redis.refuse_writes(code);
        let calls: Vec<_> = algorithms
            .iter()
            .flat_map(|algorithm| {
                let users = [("full", 1), ("new", 1), ("used", 1), ("used", 2)];
                users.map(|(user, hits)| call(algorithm, user, hits))
            })
            .collect();
        let answers =
            join_all(calls.iter().map(|call| store.charge(call, redis_store::soon()))).await;
        for (answers, algorithm) in answers.chunks(4).zip(&algorithms) {
            let spelled: Vec<String> = answers.iter().map(spell).collect();
            assert_eq!(spelled, ["denied", code, code, "denied"], "{}", algorithm.name());
        }
        redis.accept_writes();
        for algorithm in &algorithms {
            let last = store.charge(&call(algorithm, "used", 1), redis_store::soon()).await;
            assert_eq!(spell(&last), "admitted", "{code}: {}", algorithm.name());
        }
        redis.assert_no_key_leaks();
    }
}

/// A Redis whose INCRBY is renamed answers every use of it with an error that has no code of its own.
#[tokio::test]
async fn a_command_that_fails_for_an_unknown_reason_fails_its_call_alone() {
    let redis = Redis::start_with(&["--rename-command", "INCRBY", ""]);
    let store = redis_store::store(&redis.url(), 0, system_clock, TIMEOUT);
    let debit = |user: &str, hits| {
        charge_on(Algorithm::FixedWindow, WhenDenied::Counted, user, Hits::Charge(hits))
    };
    for user in ["used", "debited"] {
        let answer = store.charge(&[charge_hits(user, 1)], redis_store::soon()).await;
        assert_eq!(spell(&answer), "admitted");
    }
    // More than the breaker stands of failures in a row.
    for round in 0..5 {
        let new = |name: &str| format!("{name} {round}");
        let calls = [
            (vec![charge_hits(&new("first"), 2)], "admitted"),
            (vec![charge_hits("used", 2)], "failed"),
            (vec![charge_hits(&new("beside"), 1), charge_hits("used", 2)], "failed"),
            (vec![charge_hits(&new("last"), 1)], "admitted"),
            // Calls for the ledger script.
            (vec![debit(&new("debit"), 2)], "admitted"),
            (vec![debit("debited", 1)], "failed"),
            (vec![debit(&new("last debit"), 1)], "admitted"),
        ];
        let answers =
            join_all(calls.iter().map(|(call, _)| store.charge(call, redis_store::soon()))).await;
        for ((call, expected), answer) in calls.iter().zip(&answers) {
            let spelled = match answer {
                Err(StoreError::CallFailed) => "failed".to_owned(),
                answer => spell(answer),
            };
            assert_eq!(spelled, *expected, "{round}: {call:?}");
        }
    }
    for user in ["used", "debited"] {
        assert_eq!(redis.query::<String>(&["GET", &redis.key(user)]), "1", "{user}");
    }
    assert!(!redis.keys().iter().any(|key| key.contains("beside")));
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn transactions_deny_without_a_write() {
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::transactions(&redis.url(), TIMEOUT);
        assert_eq!(
            spell(&store.charge(&[charge_hits("full", 5)], redis_store::soon()).await),
            "admitted"
        );
        redis.refuse_writes(code);
        let refund =
            |user| charge_on(Algorithm::FixedWindow, WhenDenied::Free, user, Hits::Refund(1));
        for (call, expected) in [
            (vec![charge_hits("full", 1)], "denied"),
            (vec![charge_hits("new", 1)], code),
            (vec![charge_hits("new", 1), charge_hits("full", 1)], "denied"),
            (vec![refund("full")], code),
            (vec![refund("new")], "admitted"),
        ] {
            assert_eq!(
                spell(&store.charge(&call, redis_store::soon()).await),
                expected,
                "{code}: {call:?}"
            );
        }
        redis.accept_writes();
        assert_eq!(
            spell(&store.charge(&[refund("full")], redis_store::soon()).await),
            "admitted",
            "{code}"
        );
        assert_eq!(redis.query::<String>(&["GET", &redis.key("full")]), "4", "{code}");
        redis.assert_no_key_leaks();
    }
}

/// A right that only one algorithm needs concerns only its limits, and no key is left without a TTL.
#[tokio::test]
async fn a_missing_right_fails_the_calls_of_its_algorithm_alone() {
    for version in Version::ALL {
        for lacking in ["-pexpireat", "-rpush", "-ltrim", "-lindex", "-llen", "-pexpireat -ltrim"] {
            let redis = Redis::start_version(version);
            let store =
                redis_store::store(&redis.url_with_minimal_rights(), 0, system_clock, TIMEOUT);
            let user = format!("ACL SETUSER tollkeeper {lacking}");
            redis.query::<()>(&user.split(' ').collect::<Vec<_>>());
            let log = [charge_on(LOG, WhenDenied::Free, "log", Hits::Charge(1))];
            for _ in 0..5 {
                let answer = store.charge(&log, redis_store::soon()).await;
                let is_named = match &answer {
                    Err(StoreError::TakesNoWrites(text)) => text.contains("(NOPERM)"),
                    Err(StoreError::Corrupt(_)) => ["-lindex", "-llen"].contains(&lacking),
                    // The first entry needs neither.
                    answer => ["-lindex", "-ltrim"].contains(&lacking) && answer.is_ok(),
                };
                assert!(is_named, "{version:?} {lacking}: {answer:?}");
            }
            let answer = store.charge(&[charge_hits("fixed", 1)], redis_store::soon()).await;
            assert_eq!(spell(&answer), "admitted", "{version:?} {lacking}");
            redis.assert_no_key_leaks();
        }
    }
}
