//! The reference: what each algorithm means, in plain words and big numbers. It shares no arithmetic
//! with the engine, and is not fast.

use std::{collections::HashMap, time::Duration};

use tollkeeper::engine::{
    ledger::{Charge, Tally, Verdict},
    request::Hits,
    rule::{Algorithm, Mode, WhenDenied},
    time::Timestamp,
};

const MOST: i128 = (1 << 53) - 1;

/// Everything that was ever counted, by the counter's name.
#[derive(Default, Clone)]
pub struct Model {
    /// Fixed and sliding windows: the hits of each window, by its start.
    windows: HashMap<(String, i128), i128>,
    /// First-hit windows: hits and end.
    opened: HashMap<String, (i128, i128)>,
    /// Logs: the time of each single hit.
    logs: HashMap<String, Vec<i128>>,
    /// Buckets: what is lacking, in hits times milliseconds of the window, and since when.
    buckets: HashMap<String, (i128, i128)>,
}

/// One charge, as the model reads it.
struct Read {
    name: String,
    limit: i128,
    most: i128,
    window: i128,
    start: i128,
    end: i128,
}

impl Read {
    fn of(charge: &Charge, now: i128) -> Self {
        let limit = &charge.counter.limit;
        let span = limit.window.at(Timestamp::from_millis(now as u64));
        Self {
            name: charge.counter.key(Timestamp::from_millis(0)),
            limit: limit.requests_per_unit.into(),
            most: limit.capacity().into(),
            window: i128::from(limit.window.seconds()) * 1000,
            start: span.start.as_millis().into(),
            end: span.end.as_millis().into(),
        }
    }
}

impl Model {
    /// Judges one call at `now`, and remembers it.
    pub fn charge(&mut self, charges: &[Charge], now: Timestamp) -> Vec<Tally> {
        let now = i128::from(now.as_millis());
        for charge in charges {
            if let Hits::Refund(hits) = charge.hits {
                self.refund(charge, hits.into(), now);
            }
        }
        // Every charge is judged in the state after the refunds, by the sum on its counter.
        let after_refunds = self.clone();
        let asked = |charge: &Charge| -> i128 {
            let counter = Read::of(charge, now).name;
            let same = charges.iter().filter(|other| Read::of(other, now).name == counter);
            same.map(|other| if let Hits::Charge(hits) = other.hits { hits.into() } else { 0 })
                .sum()
        };
        let asked = |charge: &Charge| if charge.hits == Hits::Look { 1 } else { asked(charge) };
        let fits = |charge: &Charge| {
            charge.hits.is_refund() || after_refunds.fits(charge, asked(charge), now)
        };
        // Promise 2d: who denies the call.
        let mode = |charge: &&Charge| charge.counter.limit.mode;
        let judged: Vec<&Charge> = charges.iter().filter(|it| !it.hits.is_refund()).collect();
        let enforced = || judged.iter().filter(|it| mode(it) == Mode::Enforced);
        let quotas = || judged.iter().filter(|it| mode(it) == Mode::Quota);
        let over = |charge: &&&Charge| !fits(charge);
        let denied = enforced().any(|it| over(&it))
            || (quotas().count() > 0 && quotas().all(|it| over(&it)));
        // Promise 2e and 2f: what is charged.
        let counted = |charge: &Charge| charge.counter.limit.when_denied == WhenDenied::Counted;
        let denied_for_free = enforced().any(|it| over(&it) && !counted(it));
        for charge in charges {
            let is_charged = (!denied && fits(charge))
                || counted(charge)
                || (mode(&charge) == Mode::Quota && !denied_for_free);
            if let (Hits::Charge(hits), true) = (charge.hits, is_charged) {
                self.take(charge, hits.into(), now);
            }
        }
        let tally = |charge: &Charge| {
            let books = if charge.hits == Hits::Look { &after_refunds } else { &*self };
            books.tally(charge, fits(charge), asked(charge), now)
        };
        charges.iter().map(tally).collect()
    }

    fn tally(&self, charge: &Charge, fits: bool, asked: i128, now: i128) -> Tally {
        let (verdict, at) = match fits {
            true => (Verdict::Fits { remaining: self.left(charge, now) }, self.ends(charge, now)),
            false => (Verdict::Over, self.admits_at(charge, asked, now)),
        };
        Tally { verdict, reset: Duration::from_millis((at - now).max(0) as u64) }
    }

    /// The most hits that would pass: it is tried.
    fn left(&self, charge: &Charge, now: i128) -> u32 {
        let (mut fit, mut over) = (0_u64, u64::from(u32::MAX) + 1);
        while over - fit > 1 {
            let middle = fit.midpoint(over);
            match self.fits(charge, middle.into(), now) {
                true => fit = middle,
                false => over = middle,
            }
        }
        fit as u32
    }

    /// The first instant at which so many hits would pass: it is tried.
    fn admits_at(&self, charge: &Charge, asked: i128, now: i128) -> i128 {
        let (mut over, mut fit) = (now, self.ends(charge, now));
        let one_window = matches!(
            charge.counter.limit.algorithm,
            Algorithm::FixedWindow | Algorithm::FirstHitWindow
        );
        // Windows to come may hold hits, if the clock was set back; they are not foreseen.
        let mut past = self.clone();
        past.windows.retain(|(_, start), _| *start <= now);
        if one_window || !past.fits(charge, asked, fit) {
            return fit;
        }
        while fit - over > 1 {
            let middle = over.midpoint(fit);
            match past.fits(charge, asked, middle) {
                true => fit = middle,
                false => over = middle,
            }
        }
        fit
    }

    fn in_window(&self, name: &str, start: i128) -> i128 {
        self.windows.get(&(name.to_owned(), start)).copied().unwrap_or(0)
    }

    /// The live hits of a log.
    fn logged(&self, it: &Read, now: i128) -> Vec<i128> {
        let log = self.logs.get(&it.name).cloned().unwrap_or_default();
        log.into_iter().filter(|at| at + it.window > now).collect()
    }

    /// What a bucket lacks, and the time that it is told for.
    fn lacking(&self, it: &Read, now: i128) -> (i128, i128) {
        let (debt, at) = self.buckets.get(&it.name).copied().unwrap_or((0, now));
        ((debt - (now - at).max(0) * it.limit).max(0), at.max(now))
    }

    fn opened(&self, it: &Read, now: i128) -> Option<(i128, i128)> {
        self.opened.get(&it.name).copied().filter(|(_, end)| now < *end)
    }

    fn fits(&self, charge: &Charge, hits: i128, now: i128) -> bool {
        let it = Read::of(charge, now);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow => self.in_window(&it.name, it.start) + hits <= it.limit,
            Algorithm::FirstHitWindow => {
                self.opened(&it, now).map_or(0, |(used, _)| used) + hits <= it.limit
            }
            Algorithm::SlidingLog { .. } => self.logged(&it, now).len() as i128 + hits <= it.limit,
            Algorithm::SlidingWindow => {
                let before = self.in_window(&it.name, it.start - it.window) * (it.end - now);
                let present = self.in_window(&it.name, it.start);
                before + (present + hits) * it.window <= it.limit * it.window
            }
            Algorithm::TokenBucket { .. } => {
                self.lacking(&it, now).0 + hits * it.window <= it.most * it.window
            }
        }
    }

    /// When nothing of it counts any more, or its window ends.
    fn ends(&self, charge: &Charge, now: i128) -> i128 {
        let it = Read::of(charge, now);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow => it.end,
            Algorithm::FirstHitWindow => {
                self.opened(&it, now).map_or(now + it.window, |(_, end)| end)
            }
            Algorithm::SlidingLog { .. } => {
                self.logged(&it, now).last().map_or(now, |at| at + it.window)
            }
            Algorithm::SlidingWindow => {
                let before = self.in_window(&it.name, it.start - it.window);
                match (self.in_window(&it.name, it.start), before) {
                    (0, 0) => now,
                    (0, _) => it.end,
                    _ => it.end + it.window,
                }
            }
            Algorithm::TokenBucket { .. } => match self.lacking(&it, now) {
                (0, _) => now,
                (_, at) if it.limit == 0 => at + it.window,
                (debt, at) => at + (debt + it.limit - 1) / it.limit,
            },
        }
    }

    fn take(&mut self, charge: &Charge, hits: i128, now: i128) {
        let it = Read::of(charge, now);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                let used = self.windows.entry((it.name, it.start)).or_default();
                *used = (*used + hits).min(MOST);
            }
            Algorithm::FirstHitWindow => {
                let (used, end) = self.opened(&it, now).unwrap_or((0, now + it.window));
                self.opened.insert(it.name, ((used + hits).min(MOST), end));
            }
            Algorithm::SlidingLog { .. } => {
                let mut log = self.logged(&it, now);
                let at = log.last().map_or(now, |newest| now.max(*newest));
                log.extend((0..hits).map(|_| at));
                self.logs.insert(it.name, log);
            }
            Algorithm::TokenBucket { .. } => {
                let (debt, at) = self.lacking(&it, now);
                self.buckets.insert(it.name, ((debt + hits * it.window).min(MOST), at));
            }
        }
    }

    fn refund(&mut self, charge: &Charge, hits: i128, now: i128) {
        let it = Read::of(charge, now);
        match charge.counter.limit.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => {
                if let Some(used) = self.windows.get_mut(&(it.name, it.start)) {
                    *used = (*used - hits).max(0);
                }
            }
            Algorithm::FirstHitWindow => {
                if let Some((used, end)) = self.opened(&it, now) {
                    self.opened.insert(it.name, ((used - hits).max(0), end));
                }
            }
            Algorithm::SlidingLog { .. } => {
                let mut log = self.logged(&it, now);
                if !log.is_empty() {
                    log.truncate((log.len() as i128 - hits).max(0) as usize);
                    self.logs.insert(it.name, log);
                }
            }
            Algorithm::TokenBucket { .. } => {
                let (debt, at) = self.lacking(&it, now);
                if debt > 0 {
                    self.buckets.insert(it.name, ((debt - hits * it.window).max(0), at));
                }
            }
        }
    }
}
