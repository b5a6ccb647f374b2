//! The verdict on one call: all of its charges, or none of them.
//!
//! This is promise and model at once: the memory store runs it, and the Lua script is its
//! translation, compared with it step by step.

use std::time::Duration;

use crate::engine::{
    algorithm::fixed_window::Account, key::Counter, request::Hits, rule::WhenDenied,
};

/// What one descriptor asks of one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Where to count.
    pub counter: Counter,
    /// What to do there.
    pub hits: Hits,
    /// The most that the counter's window admits.
    pub limit: u32,
    /// What it costs if the call is denied.
    pub when_denied: WhenDenied,
}

/// What came of one charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Whether the charge fits, and how much more would.
    pub verdict: Verdict,
    /// The time until the counter's window ends.
    pub reset: Duration,
}

/// Whether a charge fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does; so many hits would still pass after this call.
    Fits {
        /// Hits that would still pass.
        remaining: u32,
    },
    /// It does not, and the call is denied.
    Over,
}

/// One charge's view of the books: an account number, what to do, and the limit.
#[derive(Debug, Clone, Copy)]
pub struct Posting {
    /// Which of the accounts it meets.
    pub account: usize,
    /// What to do there.
    pub hits: Hits,
    /// The most that the account admits.
    pub limit: u32,
    /// What it costs if the call is denied.
    pub when_denied: WhenDenied,
}

/// The hits that one call takes from one account.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    all: u64,
    /// Those that count even if the call is denied.
    counted: u64,
}

impl Sum {
    fn add(&mut self, hits: u64, when_denied: WhenDenied) {
        self.all = self.all.saturating_add(hits);
        if when_denied == WhenDenied::Counted {
            self.counted = self.counted.saturating_add(hits);
        }
    }
}

/// Judges one call, and changes `accounts` accordingly.
///
/// 1. Refunds apply first and always.
/// 2. Hits on one account are summed; each charge is judged by the sum against its own limit. A look
///    fits if one hit would, and is no part of the sum.
/// 3. If all fit, the sums are charged; else nothing but the hits that count when denied.
///
/// Every `posting.account` must be an index into `accounts`; others are judged as over.
pub fn judge(postings: &[Posting], accounts: &mut [Account]) -> Vec<Verdict> {
    let mut sums = vec![Sum::default(); accounts.len()];
    for posting in postings {
        match (posting.hits, accounts.get_mut(posting.account), sums.get_mut(posting.account)) {
            (Hits::GiveBack(hits), Some(account), _) => account.give_back(hits),
            (Hits::Take(hits), _, Some(sum)) => sum.add(hits, posting.when_denied),
            _ => {}
        }
    }

    let before = accounts.to_vec();
    let fits = |posting: &Posting| {
        let (Some(account), Some(sum)) = (before.get(posting.account), sums.get(posting.account))
        else {
            return false;
        };
        match posting.hits {
            Hits::Take(_) => account.fits(sum.all, posting.limit),
            Hits::Look => account.fits(1, posting.limit),
            Hits::GiveBack(_) => true,
        }
    };
    let admitted = postings.iter().all(fits);
    for (account, sum) in accounts.iter_mut().zip(&sums) {
        account.charge(if admitted { sum.all } else { sum.counted });
    }

    let remaining = |posting: &Posting| {
        // A look sees what was there before the call's own charges.
        let books = if posting.hits == Hits::Look { before.as_slice() } else { &*accounts };
        books.get(posting.account).map_or(0, |account| account.remaining(posting.limit))
    };
    let verdict = |posting: &Posting| match fits(posting) {
        true => Verdict::Fits { remaining: remaining(posting) },
        false => Verdict::Over,
    };
    postings.iter().map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Judges a call on two accounts, `a` and `b`, and spells what came of it.
    ///
    /// A call is written `take 3 of a/5, look a/5, give 2 to b/9`: the number behind the slash is
    /// the limit. `count` is a take that counts when denied.
    #[track_caller]
    fn check(used: [u64; 2], call: &str, expected: &str, used_after: [u64; 2]) {
        let postings: Vec<Posting> = call.split(", ").map(posting).collect();
        let mut accounts = used.map(|used| Account { used });
        let spell = |verdict: &Verdict| match verdict {
            Verdict::Fits { remaining } => remaining.to_string(),
            Verdict::Over => "over".to_owned(),
        };
        let verdicts: Vec<_> = judge(&postings, &mut accounts).iter().map(spell).collect();
        assert_eq!(verdicts.join(", "), expected, "{used:?}: {call}");
        assert_eq!(accounts.map(|account| account.used), used_after, "{used:?}: {call}");
    }

    fn posting(text: &str) -> Posting {
        let (words, limit) = text.split_once('/').unwrap();
        let words: Vec<&str> = words.split(' ').collect();
        let account = usize::from(*words.last().unwrap() == "b");
        let hits = match words[0] {
            "take" | "count" => Hits::Take(words[1].parse().unwrap()),
            "give" => Hits::GiveBack(words[1].parse().unwrap()),
            _ => Hits::Look,
        };
        let when_denied = match words[0] {
            "count" => WhenDenied::Counted,
            _ => WhenDenied::Free,
        };
        Posting { account, hits, limit: limit.parse().unwrap(), when_denied }
    }

    #[test]
    fn what_fits_is_charged_and_the_rest_remains() {
        check([0, 0], "take 3 of a/5", "2", [3, 0]);
        check([3, 0], "take 2 of a/5, take 1 of b/9", "0, 8", [5, 1]);
    }

    #[test]
    fn if_one_is_over_nobody_is_charged() {
        check([3, 0], "take 3 of a/5, take 1 of b/9", "over, 9", [3, 0]);
        check([3, 0], "take 1 of b/9, take 3 of a/5", "9, over", [3, 0]);
        check([5, 0], "look a/5, take 1 of b/9", "over, 9", [5, 0]);
        check([0, 0], "take 1 of a/0", "over", [0, 0]);
    }

    #[test]
    fn hits_on_one_account_are_summed() {
        check([0, 0], "take 2 of a/5, take 3 of a/5", "0, 0", [5, 0]);
        check([0, 0], "take 3 of a/5, take 3 of a/5", "over, over", [0, 0]);
        check([0, 0], "take 3 of a/9, take 3 of a/5", "9, over", [0, 0]);
    }

    #[test]
    fn what_counts_when_denied_is_charged_in_full_either_way() {
        check([3, 0], "count 2 of a/5", "0", [5, 0]);
        check([3, 0], "count 3 of a/5", "over", [6, 0]);
        check([3, 0], "count 3 of a/5, take 1 of b/9", "over, 9", [6, 0]);
        check([3, 9], "count 1 of a/5, take 1 of b/9", "1, over", [4, 9]);
        check([3, 0], "count 1 of a/5, take 2 of a/5", "over, over", [4, 0]);
        check([6, 0], "count 1 of a/5, give 9 to a/5", "4, 4", [1, 0]);
        let most = Hits::MAX;
        let twice = format!("count {most} of a/5, count {most} of a/5");
        check([3, 0], &twice, "over, over", [most, 0]);
    }

    #[test]
    fn refunds_come_first_stand_and_stop_at_zero() {
        check([5, 0], "take 1 of a/5, give 2 to a/5", "1, 1", [4, 0]);
        check([5, 9], "give 2 to a/5, take 1 of b/9", "2, over", [3, 9]);
        check([1, 0], "give 7 to a/5", "5", [0, 0]);
        check([9, 0], "give 1 to a/5", "0", [8, 0]);
    }

    #[test]
    fn looks_see_refunds_and_not_charges() {
        check([4, 0], "look a/5, take 1 of a/5", "1, 0", [5, 0]);
        check([5, 0], "look a/5, give 1 to a/5", "1, 1", [4, 0]);
    }

    fn any_posting() -> impl Strategy<Value = Posting> {
        let hits = prop_oneof![
            (1..9_u64).prop_map(Hits::Take),
            Just(Hits::Take(Hits::MAX)),
            Just(Hits::Look),
            (0..9_u64).prop_map(Hits::GiveBack),
        ];
        (0..2_usize, hits, 0..20_u32, any::<bool>()).prop_map(|(account, hits, limit, counted)| {
            let when_denied = if counted { WhenDenied::Counted } else { WhenDenied::Free };
            Posting { account, hits, limit, when_denied }
        })
    }

    fn any_call() -> impl Strategy<Value = (Vec<Posting>, [Account; 2])> {
        let accounts = [0..25_u64, 0..25].prop_map(|used| used.map(|used| Account { used }));
        (prop::collection::vec(any_posting(), 1..6), accounts)
    }

    /// All that `hits` picks of the postings on an account.
    fn total(postings: &[Posting], account: usize, hits: impl Fn(&Posting) -> u64) -> u64 {
        postings.iter().filter(|it| it.account == account).map(hits).sum()
    }

    fn taken(posting: &Posting) -> u64 {
        if let Hits::Take(hits) = posting.hits { hits } else { 0 }
    }

    fn given(posting: &Posting) -> u64 {
        if let Hits::GiveBack(hits) = posting.hits { hits } else { 0 }
    }

    fn counted(posting: &Posting) -> u64 {
        if posting.when_denied == WhenDenied::Counted { taken(posting) } else { 0 }
    }

    proptest! {
        /// P5, P6: all takes of a call are made, or only those that count when denied; refunds
        /// always.
        #[test]
        fn a_call_is_charged_as_a_whole((postings, before) in any_call()) {
            let mut after = before;
            let verdicts = judge(&postings, &mut after);
            let admitted = !verdicts.contains(&Verdict::Over);
            for account in 0..2 {
                let refunded =
                    before[account].used.saturating_sub(total(&postings, account, given));
                let charged = match admitted {
                    true => total(&postings, account, taken),
                    false => total(&postings, account, counted),
                };
                prop_assert_eq!(after[account].used, (refunded + charged).min(Hits::MAX));
            }
        }

        /// P1, P13: an admitted take leaves its account within its limit, and tells what remains.
        #[test]
        fn an_admitted_take_is_within_its_limit((postings, before) in any_call()) {
            let mut after = before;
            let verdicts = judge(&postings, &mut after);
            if verdicts.contains(&Verdict::Over) {
                return Ok(());
            }
            for (posting, verdict) in postings.iter().zip(verdicts) {
                if let (Hits::Take(_), Verdict::Fits { remaining }) = (posting.hits, verdict) {
                    let used = after[posting.account].used;
                    prop_assert_eq!(used + u64::from(remaining), u64::from(posting.limit));
                }
            }
        }

        /// P14: looks change nothing.
        #[test]
        fn looks_change_nothing((mut postings, before) in any_call()) {
            postings.iter_mut().for_each(|posting| posting.hits = Hits::Look);
            let mut after = before;
            judge(&postings, &mut after);
            prop_assert_eq!(after, before);
        }

        /// P17: what passes, passes under a higher limit too.
        #[test]
        fn a_higher_limit_denies_nothing_more((mut postings, before) in any_call(), more in 0..9_u32) {
            let passes = |postings: &[Posting]| {
                let mut accounts = before;
                !judge(postings, &mut accounts).contains(&Verdict::Over)
            };
            let passed = passes(&postings);
            postings.iter_mut().for_each(|posting| posting.limit += more);
            prop_assert!(!passed || passes(&postings));
        }

        /// P18: where so many hits are denied, more are.
        #[test]
        fn more_hits_are_never_admitted_instead(used in 0..25_u64, hits in 1..25_u64, limit in 0..20_u32) {
            let passes = |hits| {
                let (hits, when_denied) = (Hits::Take(hits), WhenDenied::Free);
                let posting = Posting { account: 0, hits, limit, when_denied };
                judge(&[posting], &mut [Account { used }]) != [Verdict::Over]
            };
            prop_assert!(passes(hits) || !passes(hits + 1));
        }
    }
}
