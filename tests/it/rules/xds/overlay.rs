//! Overlays: our own keys for the rules of a control plane.

use super::{ask, limit, rules, start};
use crate::support::{ads::FakeAds, prelude::*};

const DENY: &str = "domain: shop\ndefaults: { algorithm: sliding_window }\n";

struct Overlaid {
    service: Service,
    ads: FakeAds,
    folder: TempDir,
}

impl Overlaid {
    fn start(overlay: &str) -> Self {
        let (ads, folder) = (FakeAds::start(), TempDir::new().unwrap());
        fs::write(folder.path().join("overlay.yaml"), overlay).unwrap();
        let service = start(&ads.url(), &["--rules-overlay", folder.path().to_str().unwrap()]);
        ads.request();
        Self { service, ads, folder }
    }

    fn respond(&self, version: &str, configs: &[serde_json::Value]) -> Option<String> {
        self.ads.respond(version, version, configs);
        self.ads.request().error
    }

    fn overlay(&self, text: &str) {
        fs::write(self.folder.path().join("overlay.yaml"), text).unwrap();
    }

    #[track_caller]
    fn wait_for(&self, limit: &str) {
        wait_until(limit, || self.limit() == limit);
    }

    fn limit(&self) -> String {
        rules(&self.service)["domains"][0]["rules"][0]["limit"].as_str().unwrap_or("none").into()
    }
}

#[tokio::test]
async fn an_overlay_is_in_force_with_the_first_rules_and_follows_its_file() {
    let overlaid = Overlaid::start(DENY);
    assert_eq!(rules(&overlaid.service)["problems"], json!([]));
    assert_eq!(overlaid.respond("1", &[limit("shop", "user", 2)]), None);
    assert_eq!(overlaid.limit(), "2 per year by sliding_window");
    let answer = ask(&overlaid.service, "shop", "user=a").await;
    assert_eq!(answer, "OK: OK 1/2 YEAR");
    assert!(!overlaid.service.log().contains("no rule matches"));

    overlaid.overlay("domain: shop\ndescriptors: [{ key: user, rate_limit: { algorithm: first_hit_window } }, { key: plan }]");
    overlaid.wait_for("2 per year by first_hit_window");
    let log = overlaid.service.log();
    assert!(log.contains("no rule matches this descriptor, so it has no effect"), "{log}");

    // Another response has the same overlay.
    assert_eq!(overlaid.respond("2", &[limit("shop", "user", 3)]), None);
    assert_eq!(overlaid.limit(), "3 per year by first_hit_window");
}

#[tokio::test]
async fn the_last_good_overlay_stays_when_it_becomes_bad_and_while_there_is_no_stream() {
    let overlaid = Overlaid::start(DENY);
    assert_eq!(overlaid.respond("1", &[limit("shop", "user", 2)]), None);
    overlaid.overlay("domain: shop\ndefaults: { algorithm: slidin_log }\n");
    let problem = eventually("the problem is listed", || {
        let problems = rules(&overlaid.service)["problems"].clone();
        problems[0].as_str().map(str::to_owned)
    });
    assert!(problem.contains("overlay.yaml:2:24: algorithm: must be one of"), "{problem}");
    assert_eq!(overlaid.limit(), "2 per year by sliding_window");
    // The control plane is not refused for it.
    assert_eq!(overlaid.respond("2", &[limit("shop", "user", 5)]), None);
    assert_eq!(overlaid.limit(), "5 per year by sliding_window");

    drop(overlaid.ads);
    let Overlaid { service, folder, .. } = overlaid;
    fs::write(folder.path().join("overlay.yaml"), "domain: shop\n").unwrap();
    wait_until("no overlay", || rules(&service)["domains"][0]["rules"][0]["limit"] == "5 per year");
}

#[tokio::test]
async fn an_overlay_and_a_control_plane_have_problems_of_their_own() {
    let overlaid = Overlaid::start(DENY);
    let problems = || rules(&overlaid.service)["problems"].as_array().unwrap().len();
    let is_whole = || {
        let metrics = overlaid.service.get("/metrics");
        metrics.contains("\nratelimit_rules_last_reload_successful 1\n")
    };
    assert_eq!(overlaid.respond("1", &[limit("shop", "user", 2)]), None);
    assert!(is_whole());
    overlaid.overlay("domain: shop\ndefaults: { algorithm: slidin_log }\n");
    wait_until("the overlay is refused", || problems() == 1);
    assert_eq!(overlaid.respond("2", &[limit("shop", "user", 5)]), None);
    assert_eq!((problems(), is_whole()), (1, false), "the overlay is still refused");

    assert!(overlaid.respond("3", &[limit("shop", "user", 5), limit("", "user", 5)]).is_some());
    assert_eq!(problems(), 2);
    // The overlay in force, and then another one.
    overlaid.overlay(DENY);
    wait_until("the overlay is good", || problems() == 1);
    overlaid.overlay("domain: shop\n");
    overlaid.wait_for("5 per year");
    assert_eq!((problems(), is_whole()), (1, false), "version 3 is still refused");
    assert_eq!(overlaid.respond("4", &[limit("shop", "user", 5)]), None);
    assert_eq!((problems(), is_whole()), (0, true));
}

#[tokio::test]
async fn a_response_to_which_the_overlay_does_not_fit_is_refused_by_the_name_of_the_rule() {
    let overlaid =
        Overlaid::start("domain: shop\ndescriptors: [{ key: user, rate_limit: { burst: 7 } }]");
    let refusal = overlaid.respond("1", &[limit("shop", "user", 2)]).unwrap();
    assert_eq!(refusal, "shop: user: burst: only for algorithm token_bucket, not fixed_window");
    overlaid.overlay("domain: shop");
    // A real control plane sends the same again after a refusal.
    wait_until("the overlay is read", || {
        let log = overlaid.service.log();
        log.matches("rules loaded").count() > 0
    });
    assert_eq!(overlaid.respond("1", &[limit("shop", "user", 2)]), None);
    assert_eq!(overlaid.limit(), "2 per year");
}

#[tokio::test]
async fn a_scale_multiplies_limits_beyond_the_field_of_the_control_plane() {
    let overlaid = Overlaid::start("domain: shop\ndefaults: { scale: 1000000 }");
    assert_eq!(overlaid.respond("1", &[limit("shop", "user", 4_000_000_000)]), None);
    assert_eq!(overlaid.limit(), "4000000000000000 per year");
    overlaid.overlay("domain: shop\ndefaults: { scale: 10000000 }");
    let problem = eventually("the problem is listed", || {
        let problems = rules(&overlaid.service)["problems"].clone();
        problems[0].as_str().map(str::to_owned)
    });
    let expected = "shop: user: scale: 4000000000 times 10000000 exceeds 9007199254740991";
    assert_eq!(problem, expected);
    assert_eq!(overlaid.limit(), "4000000000000000 per year");
}

#[tokio::test]
async fn an_overlay_that_the_rules_refuse_is_in_force_with_the_next_that_it_fits_and_the_reverse() {
    let burst = "domain: shop\ndescriptors: [{ key: user, rate_limit: { burst: 7 } }]";
    let zone = "domain: shop\ndefaults: { scale: 10 }\ndescriptors: [{ key: user, rate_limit: { time_zone: Europe/Berlin } }]";
    let per = |unit: &str| {
        let mut config = limit("shop", "user", 2);
        config["descriptors"][0]["rateLimit"]["unit"] = json!(unit);
        [config]
    };
    let overlaid = Overlaid::start("domain: shop");
    let problems = || rules(&overlaid.service)["problems"].as_array().unwrap().len();
    assert_eq!(overlaid.respond("1", &per("MINUTE")), None);
    overlaid.overlay(zone);
    wait_until("the overlay is refused", || problems() == 1);
    assert_eq!(overlaid.respond("2", &per("HOUR")), None);
    assert_eq!((overlaid.limit(), problems()), ("2 per hour".to_owned(), 1), "the last good one");
    assert_eq!(overlaid.respond("3", &per("DAY")), None);
    assert_eq!((overlaid.limit(), problems()), ("20 per day".to_owned(), 0));

    // A refused response comes into force with other overlays.
    assert!(overlaid.respond("4", &per("MINUTE")).is_some());
    overlaid.overlay(burst);
    wait_until("both are refused", || problems() == 2);
    overlaid.overlay("domain: shop");
    overlaid.wait_for("2 per minute");
    let answer = rules(&overlaid.service);
    assert_eq!(
        (&answer["problems"], &answer["control_plane"]["version"]),
        (&json!([]), &json!("4"))
    );
    assert_eq!(answer["control_plane"]["refused_version"], json!(null));
}
