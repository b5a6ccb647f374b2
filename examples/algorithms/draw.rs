//! Draws the decisions of each algorithm on the same calls.

use std::{fmt::Write as _, sync::Arc};

use tollkeeper::{
    engine::{
        hold::HoldPolicy,
        hold_id::HoldId,
        key::Counter,
        ledger::{Charge, Fit, HoldAction},
        request::{Entry, Hits},
        rule::{Algorithm, Limit, Unit},
        time::Timestamp,
    },
    store::memory::MemoryStore,
};

/// The times of the calls, in milliseconds: a burst at the end of a window, one after it, then a few.
const CALLS: [u64; 22] = [
    700, 750, 800, 850, 900, 950, 1050, 1100, 1150, 1200, 1250, 1450, 1700, 1850, 2000, 2200, 2400,
    2600, 2800, 3000, 3200, 3400,
];
const LIMIT: u64 = 4;
const SPAN_MS: u64 = 4000;
/// How long a call is in flight, unless nobody says that it has ended.
const CALL_MS: u64 = 400;
const HOLD_MS: u64 = 1000;

const WIDTH: u64 = 720;
const LEFT: u64 = 40;
const PLOT_TOP: u64 = 40;
const PLOT_HEIGHT: u64 = 80;

/// The pictures: a file name and its content.
pub(crate) fn pictures() -> Vec<(String, String)> {
    let algorithms = [
        Algorithm::FixedWindow,
        Algorithm::FirstHitWindow { idle_ms: None },
        Algorithm::SlidingLog { remember: None },
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket { burst: LIMIT },
        Algorithm::InFlight { remember: None },
    ];
    algorithms
        .into_iter()
        .map(|algorithm| (format!("{}.svg", algorithm.name()), picture(algorithm)))
        .collect()
}

fn picture(algorithm: Algorithm) -> String {
    let name = algorithm.name();
    let limit = Limit::new(LIMIT, Unit::Second, 1).map(|limit| Limit { algorithm, ..limit });
    let mut limit = limit.expect("a second is a window");
    let is_in_flight = limit.counts_calls();
    limit.hold = is_in_flight.then(|| Arc::new(HoldPolicy::new(HOLD_MS)));
    let title = if is_in_flight { limit.to_string() } else { format!("{name}, {limit}") };
    let limit = Arc::new(limit);
    let store = MemoryStore::new(|| Timestamp::from_millis(0));
    let (mut marks, mut line, mut passed) = (String::new(), String::new(), 0);
    for ms in (0..=SPAN_MS).step_by(10) {
        // Of one call nobody says that it has ended.
        if is_in_flight && ms > CALL_MS && ms - CALL_MS != CALLS[0] {
            ask(&store, &limit, ms, Hits::Commit);
        }
        if CALLS.contains(&ms) {
            let fits = matches!(ask(&store, &limit, ms, Hits::Charge(1)), Some(Fit::Fits { .. }));
            passed += u32::from(fits);
            mark(&mut marks, ms, fits);
        }
        let left = match ask(&store, &limit, ms, Hits::Check) {
            Some(Fit::Fits { remaining }) => remaining,
            _ => 0,
        };
        let y = PLOT_TOP + PLOT_HEIGHT - PLOT_HEIGHT * left / LIMIT;
        write!(line, "{},{y} ", x(ms)).expect("writing to a String cannot fail");
    }
    frame(&title, passed, &marks, line.trim_end())
}

/// The verdict on one call, `ms` after the start of an hour.
fn ask(store: &MemoryStore, limit: &Arc<Limit>, ms: u64, hits: Hits) -> Option<Fit> {
    let entries = [Entry { key: "user".into(), value: "alice".into() }];
    let counter = Counter::new("shop", &entries, Arc::clone(limit));
    let mut charge = Charge::new(counter, hits);
    let at = |ms| Timestamp::from_secs(1_795_215_600).plus_millis(ms);
    let (now, id) = (at(ms), |ms: u64| HoldId::from_caller(&ms.to_be_bytes()));
    charge.hold = match hits {
        _ if limit.hold.is_none() => None,
        Hits::Charge(_) => Some(HoldAction::Occupy { id: id(ms), lifetime_ms: HOLD_MS }),
        Hits::Commit => {
            let (id, made) = (id(ms - CALL_MS), at(ms - CALL_MS));
            let deadline = made.plus_millis(HOLD_MS);
            Some(HoldAction::Commit { id, held: 1, used: 1, made, deadline })
        }
        Hits::Check | Hits::Refund(_) => None,
    };
    store.charge_at(&[charge], now).tallies.first().map(|tally| tally.fit)
}

fn x(ms: u64) -> u64 {
    LEFT + ms * (WIDTH - 2 * LEFT) / SPAN_MS
}

fn mark(marks: &mut String, ms: u64, fits: bool) {
    let (x, y) = (x(ms), PLOT_TOP + PLOT_HEIGHT + 24);
    *marks += &if fits {
        format!("<circle cx='{x}' cy='{y}' r='5' fill='#1a7f37'/>\n")
    } else {
        let (x, y) = (x - 4, y - 4);
        format!("<path d='M{x} {y}l8 8m0 -8l-8 8' stroke='#cf222e' stroke-width='2'/>\n")
    };
}

fn frame(title: &str, passed: u32, marks: &str, line: &str) -> String {
    let (bottom, height) = (PLOT_TOP + PLOT_HEIGHT, PLOT_TOP + PLOT_HEIGHT + 60);
    let mut seconds = String::new();
    for second in 0..=SPAN_MS / 1000 {
        let x = x(second * 1000);
        let tick = format!(
            "<path d='M{x} {PLOT_TOP}V{}' stroke='#d0d7de'/>\n\
             <text x='{x}' y='{}' text-anchor='middle'>{second} s</text>\n",
            bottom + 34,
            bottom + 50
        );
        seconds.push_str(&tick);
    }
    let calls = CALLS.len();
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' \
         font-family='sans-serif' font-size='13'>\n\
         <rect width='{WIDTH}' height='{height}' fill='#ffffff'/>\n\
         <text x='{LEFT}' y='22'>{title}: {passed} of {calls} calls pass</text>\n\
         {seconds}\
         <text x='{}' y='{}' text-anchor='end'>{LIMIT}</text>\n\
         <text x='{}' y='{bottom}' text-anchor='end'>0</text>\n\
         <polyline points='{line}' fill='none' stroke='#0969da' stroke-width='2'/>\n\
         {marks}</svg>\n",
        LEFT - 8,
        PLOT_TOP + 10,
        LEFT - 8,
    )
}
