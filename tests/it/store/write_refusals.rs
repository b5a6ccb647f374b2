//! Promise "an answer in time": a denial needs no write. While Redis refuses writes, calls over their limit are still denied, and
//! only calls that would pass fail, each by itself.

use tollkeeper::store::{StoreError, redis::RedisStore};

use crate::support::{
    charges::{self, prelude::*},
    prelude::*,
    redis_store::{self, answer, answers},
};

const REFUSALS: [&str; 4] = ["OOM", "NOREPLICAS", "MISCONF", "READONLY"];

/// Five hits in forty years.
fn five(algorithm: Algorithm) -> Limit {
    Limit { algorithm, ..Limit::new(5, Unit::Year, 40).unwrap() }
}

/// `denied`, `admitted`, `failed` by itself, or the code of the refusal.
fn spell(answer: &Result<Verdict, StoreError>) -> &'static str {
    match answer {
        Ok(Verdict { denied: true, .. }) => "denied",
        Ok(_) => "admitted",
        Err(StoreError::CallFailed) => "failed",
        Err(error) => {
            let text = error.to_string();
            let code = REFUSALS.into_iter().find(|code| text.contains(&format!("({code})")));
            code.unwrap_or_else(|| panic!("{text}"))
        }
    }
}

/// Makes these calls at once, as [`charges::call`] reads them, and checks what each gets.
async fn check(store: &RedisStore, algorithm: Algorithm, calls: &[(impl AsRef<str>, &str)]) {
    let limit = five(algorithm);
    let asked = calls.iter().map(|(call, _)| charges::call(call.as_ref(), &limit));
    let answers = answers(store, asked).await;
    for ((call, expected), answer) in calls.iter().zip(&answers) {
        assert_eq!(spell(answer), *expected, "{}: {}", limit.algorithm.name(), call.as_ref());
    }
}

#[tokio::test]
async fn exhausted_limits_deny_and_what_counts_nevertheless_is_counted_later() {
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::patient(&redis.url());
        let check =
            async |calls: &[(&str, &str)]| check(&store, Algorithm::FixedWindow, calls).await;
        check(&[("charge 5 to full", "admitted"), ("charge 3 to used", "admitted")]).await;
        redis.refuse_writes(code);
        check(&[
            ("charge 1 to full", "denied"),
            ("charge 1 to new", code),
            ("charge 2 to used", code),
            ("charge 3 to used", "denied"),
            ("charge 1 to new, charge 1 to full", "denied"),
            ("charge 1 to full, charge 1 to new", "denied"),
            ("charge 1 to used, charge 1 to new", code),
            // Equal calls are one item of the script.
            ("charge 2 to used", code),
            ("charge 2 to used", code),
            // Calls for the ledger script.
            ("check new", "admitted"),
            ("debit 3 to full", "denied"),
            ("charge 6 to new", "denied"),
            ("refund 1 of full", code),
            ("refund 1 of used, charge 1 to full", "denied"),
        ])
        .await;
        // What was kept is refused once more.
        tokio::time::sleep(Duration::from_millis(200)).await;
        redis.accept_writes();
        store.ended().await;
        check(&[("charge 2 to used", "admitted")]).await;
        // Of `full`: 5, a debit of 3 and a refund of 1.
        assert_eq!((redis.count("used"), redis.count("full")), (4, 7), "{code}");
        redis.assert_no_key_leaks();
    }
}

#[tokio::test]
async fn every_algorithm_denies_without_a_write() {
    let algorithms = Algorithm::of_time(5, None);
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::patient(&redis.url());
        // The check makes each call one for the ledger script, also on fixed windows.
        let each = async |calls: &[(&str, &str)]| {
            join_all(algorithms.iter().map(|one| check(&store, one.clone(), calls))).await;
        };
        let admitted = ["charge 5 to full, check seen", "charge 4 to used, check seen"];
        each(&admitted.map(|call| (call, "admitted"))).await;
        redis.refuse_writes(code);
        each(&[
            ("charge 1 to full, check seen", "denied"),
            ("charge 1 to new, check seen", code),
            ("charge 1 to used, check seen", code),
            ("charge 2 to used, check seen", "denied"),
        ])
        .await;
        redis.accept_writes();
        each(&[("charge 1 to used, check seen", "admitted")]).await;
        redis.assert_no_key_leaks();
    }
}

/// A Redis whose INCRBY is renamed answers every use of it with an error that has no code of its own.
#[tokio::test]
async fn a_command_that_fails_for_an_unknown_reason_fails_its_call_alone() {
    let redis = Redis::start_with(&["--rename-command", "INCRBY", ""]);
    let store = redis_store::patient(&redis.url());
    let begin = ["charge 1 to used", "charge 1 to debited"].map(|call| (call, "admitted"));
    check(&store, Algorithm::FixedWindow, &begin).await;
    // More than the breaker stands of failures in a row.
    for round in 0..5 {
        let calls = [
            ("charge 2 to first@", "admitted"),
            ("charge 2 to used", "failed"),
            ("charge 1 to beside@, charge 2 to used", "failed"),
            ("charge 1 to last@", "admitted"),
            // Calls for the ledger script.
            ("debit 2 to debit@", "admitted"),
            ("debit 1 to debited", "failed"),
            ("debit 1 to after@", "admitted"),
        ];
        let calls = calls.map(|(call, gets)| (call.replace('@', &round.to_string()), gets));
        check(&store, Algorithm::FixedWindow, &calls).await;
    }
    assert_eq!(["used", "debited", "beside"].map(|user| redis.count(user)), [1, 1, 0]);
    redis.assert_no_key_leaks();
}

#[tokio::test]
async fn transactions_deny_without_a_write() {
    for code in REFUSALS {
        let redis = Redis::start();
        let store = redis_store::transactions(&redis.url());
        let check =
            async |call: &str, gets| check(&store, Algorithm::FixedWindow, &[(call, gets)]).await;
        check("charge 5 to full", "admitted").await;
        redis.refuse_writes(code);
        check("charge 1 to full", "denied").await;
        check("charge 1 to new", code).await;
        check("charge 1 to new, charge 1 to full", "denied").await;
        check("refund 1 of full", code).await;
        check("refund 1 of new", "admitted").await;
        redis.accept_writes();
        check("refund 1 of full", "admitted").await;
        assert_eq!(redis.count("full"), 4, "{code}");
        redis.assert_no_key_leaks();
    }
}

/// A right that only one algorithm needs concerns only its limits, and no key is left without a TTL.
#[tokio::test]
async fn a_missing_right_fails_the_calls_of_its_algorithm_alone() {
    for version in Version::ALL {
        for lacking in ["-pexpireat", "-rpush", "-ltrim", "-lindex", "-llen", "-pexpireat -ltrim"] {
            let redis = Redis::start_version(version);
            let store = redis_store::patient(&redis.url_with_minimal_rights());
            let user = format!("ACL SETUSER tollkeeper {lacking}");
            redis.query::<()>(&user.split(' ').collect::<Vec<_>>());
            let log = charges::call("charge 1 to log", &five(LOG));
            for _ in 0..5 {
                let answer = answer(&store, &log).await;
                let is_named = match &answer {
                    Err(StoreError::TakesNoWrites(text)) => text.contains("(NOPERM)"),
                    Err(StoreError::Corrupt(_)) => ["-lindex", "-llen"].contains(&lacking),
                    // The first entry needs neither.
                    answer => ["-lindex", "-ltrim"].contains(&lacking) && answer.is_ok(),
                };
                assert!(is_named, "{version:?} {lacking}: {answer:?}");
            }
            check(&store, Algorithm::FixedWindow, &[("charge 1 to fixed", "admitted")]).await;
            redis.assert_no_key_leaks();
        }
    }
}
