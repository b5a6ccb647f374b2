//! The verdict on one call: all of its charges, or none of them.
//!
//! This is promise and model at once: the memory store runs it, and the Lua script is its
//! translation, compared with it step by step.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use crate::engine::{
    algorithm::{Account, AnyAccount, Terms},
    key::Counter,
    request::Hits,
    rule::{Limit, Mode, OnStoreFailure, WhenDenied},
    time::Timestamp,
};

/// A list as short as most calls, which then takes no allocation.
pub type Few<T> = SmallVec<[T; 4]>;

/// What one descriptor asks of one counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// Where to count, and the limit that holds there.
    pub counter: Counter,
    /// What to do there.
    pub hits: Hits,
    /// Who asks, where the limit remembers it: visible ASCII, see
    /// [`caller`](crate::engine::key::caller).
    pub caller: Option<Box<str>>,
}

/// What came of one charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Whether the charge fits, and how much more would.
    pub verdict: Verdict,
    /// Of an aligned window the time until it ends. Else, where the charge is over, the time until
    /// it fits, or if it never will, until nothing is used; where it fits, until nothing is used.
    pub reset: Duration,
}

impl Charge {
    /// Whether it changes its counter also in a call that an enforced limit denies for free.
    pub fn stands_when_denied(&self) -> bool {
        match self.hits {
            Hits::Charge(_) => self.counter.limit.when_denied == WhenDenied::Counted,
            Hits::Refund(_) => true,
            Hits::Look => false,
        }
    }

    /// Whether it denies its call, by this tally, and is not charged then.
    pub fn denies_uncharged(&self, tally: &Tally) -> bool {
        Vote::of(self, tally).denies_uncharged()
    }
}

impl Tally {
    /// The tally of a charge on a counter on which nothing was charged, in a call that asks `asked` hits of
    /// it.
    pub fn unused(limit: &Limit, asked: u64, now: Timestamp) -> Self {
        let (account, terms) = (AnyAccount::new(&limit.algorithm), Terms::new(limit, now));
        let account = account.read();
        Self::of(account, account.fits(asked, &terms), asked, &terms)
    }

    /// The tally of a charge that fits or does not, in a call that asks `asked` hits of its account.
    fn of(account: &dyn Account, fits: bool, asked: u64, terms: &Terms<'_>) -> Self {
        let (verdict, at) = if fits {
            (Verdict::Fits { remaining: account.remaining(terms) }, account.ends(terms))
        } else {
            (Verdict::Over, account.admits_at(asked, terms))
        };
        Self { verdict, reset: terms.now.until(at) }
    }

    /// The answer for a charge whose counter gives none: over its limit for a second if the limit's
    /// `on_store_failure` says `deny`, else as if nothing were used.
    pub fn without_counter(limit: &Limit, hits: Hits) -> Self {
        let verdict = if denies_without_counter(limit, hits) {
            Verdict::Over
        } else {
            Verdict::Fits { remaining: limit.capacity() }
        };
        Self { verdict, reset: Duration::from_secs(1) }
    }
}

/// How one counter stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterState {
    /// Hits that count, rounded up.
    pub used: u64,
    /// Hits that would pass.
    pub remaining: u32,
    /// The time until the window ends, or until nothing is used.
    pub reset: Duration,
    /// What a log remembers, the oldest first.
    pub remembered: Vec<Remembered>,
}

/// Hits that a log remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remembered {
    /// When they came.
    pub at: Timestamp,
    /// How many.
    pub hits: u64,
    /// Who, where the limit remembers it.
    pub caller: Option<Box<str>>,
}

impl CounterState {
    /// How `account` stands.
    pub fn of(account: &AnyAccount, terms: &Terms<'_>) -> Self {
        let remembered = match account {
            AnyAccount::SlidingLog(log) => log.remembered(terms).cloned().collect(),
            _ => Vec::new(),
        };
        let account = account.read();
        Self {
            used: account.used(terms),
            remaining: account.remaining(terms),
            reset: terms.now.until(account.ends(terms)),
            remembered,
        }
    }
}

/// Whether a charge fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does; so many hits would still pass after this call.
    Fits {
        /// Hits that would still pass.
        remaining: u32,
    },
    /// It does not.
    Over,
}

/// One charge's view of the accounts: which one, what to do there, and on what terms.
#[derive(Debug, Clone, Copy)]
pub struct Posting<'call> {
    /// An index into the accounts; `None` where the counter is corrupt.
    pub account: Option<usize>,
    /// What to do there.
    pub hits: Hits,
    /// The caller's name, where the limit remembers it.
    pub caller: Option<&'call str>,
    /// What it is judged by.
    pub terms: Terms<'call>,
}

/// Whether a charge denies its call where its counter gives no answer. A refund never does.
pub fn denies_without_counter(limit: &Limit, hits: Hits) -> bool {
    limit.failure_mode() == OnStoreFailure::Deny && !hits.is_refund()
}

/// The verdict on one call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Whether the call is denied.
    pub denied: bool,
    /// One for each charge, in their order.
    pub tallies: Vec<Tally>,
    /// The charges whose counters are corrupt; their limits' `on_store_failure` answered for them.
    pub corrupt: Vec<usize>,
}

/// Judges one call, and changes `accounts` accordingly.
///
/// 1. Refunds apply first and always.
/// 2. Hits on one account are summed; each charge is judged by the sum against its own limit. A look
///    fits if one hit would, and is no part of the sum.
/// 3. The call is denied or not. If not, all charges that fit are made; if it is, none.
///    Hits that count when denied are charged in any case, and so are those of a quota, except in a
///    call that an enforced limit denies uncharged.
/// 4. For a corrupt counter its limit's `on_store_failure` answers: `deny` denies the call, `allow`
///    has no vote, and `error` fails a call that nothing else denies. `local` cannot be answered here.
///
/// `None` if the call fails, or needs the answer of a `local` limit; then nothing has changed. It is
/// never `None` where every posting has an account.
pub fn judge(postings: &[Posting<'_>], accounts: &mut [AnyAccount]) -> Option<Judgement> {
    let failures: Few<OnStoreFailure> = postings.iter().filter_map(Posting::failure).collect();
    if failures.is_empty() {
        return Some(decide(postings, accounts));
    }
    if failures.contains(&OnStoreFailure::Local) {
        return None;
    }
    let mut after = accounts.to_vec();
    let judgement = decide(postings, &mut after);
    if !judgement.denied && failures.contains(&OnStoreFailure::Error) {
        return None;
    }
    accounts.clone_from_slice(&after);
    Some(judgement)
}

fn decide(postings: &[Posting<'_>], accounts: &mut [AnyAccount]) -> Judgement {
    let sums = refund_and_sum(postings, accounts);
    let asked = |posting: &Posting<'_>| match posting.hits {
        Hits::Charge(_) => posting.account.and_then(|it| sums.get(it).copied()).unwrap_or(u64::MAX),
        Hits::Look => 1,
        Hits::Refund(_) => 0,
    };

    // Looks are answered before anything is charged.
    let mut votes: Few<Vote<'_>> = Few::new();
    let mut looks: Few<Option<Tally>> = Few::new();
    for posting in postings {
        let vote = posting.vote(accounts, asked(posting));
        let is_look = posting.hits == Hits::Look;
        looks.push(is_look.then(|| posting.tally(accounts, asked(posting), vote.fit)));
        votes.push(vote);
    }

    let denied = is_denied(votes.iter().copied());
    charge(postings, &votes, denied, accounts);

    let mut judgement = Judgement { denied, ..Judgement::default() };
    for (index, ((posting, vote), look)) in postings.iter().zip(&votes).zip(looks).enumerate() {
        let tally = look.unwrap_or_else(|| posting.tally(accounts, asked(posting), vote.fit));
        judgement.tallies.push(tally);
        if vote.fit == Fit::Corrupt {
            judgement.corrupt.push(index);
        }
    }
    judgement
}

/// Applies the refunds; returns the sum of the hits that are to be charged to each account.
fn refund_and_sum(postings: &[Posting<'_>], accounts: &mut [AnyAccount]) -> Few<u64> {
    let mut sums: Few<u64> = smallvec![0; accounts.len()];
    for Posting { account, hits, terms, .. } in postings {
        let Some(index) = *account else { continue };
        match (*hits, accounts.get_mut(index), sums.get_mut(index)) {
            (Hits::Refund(hits), Some(account), _) => account.write().refund(hits, terms),
            (Hits::Charge(hits), _, Some(sum)) => *sum = sum.saturating_add(hits),
            _ => {}
        }
    }
    sums
}

/// Makes the charges that stand: those that fit if the call is admitted, else those that count when
/// denied.
fn charge(postings: &[Posting<'_>], votes: &[Vote<'_>], denied: bool, accounts: &mut [AnyAccount]) {
    let denied_uncharged = votes.iter().any(|vote| vote.denies_uncharged());
    for (posting, vote) in postings.iter().zip(votes) {
        let (Hits::Charge(hits), Some(index)) = (posting.hits, posting.account) else { continue };
        let stands = (vote.fit == Fit::Fits && !denied)
            || vote.limit.when_denied == WhenDenied::Counted
            || (vote.limit.mode == Mode::Quota && !denied_uncharged);
        if let (true, Some(account)) = (stands, accounts.get_mut(index)) {
            account.write().charge(hits, posting.caller, &posting.terms);
        }
    }
}

impl<'call> Posting<'call> {
    /// What answers for this charge if its counter is corrupt; `None` if it is not.
    fn failure(&self) -> Option<OnStoreFailure> {
        if self.account.is_some() {
            return None;
        }
        Some(match self.terms.limit.failure_mode() {
            // A refund denies nothing, but a caller must hear that it is lost.
            OnStoreFailure::Deny if self.hits.is_refund() => OnStoreFailure::Error,
            mode => mode,
        })
    }

    fn vote(&self, accounts: &[AnyAccount], asked: u64) -> Vote<'call> {
        let account = self.account.and_then(|index| accounts.get(index));
        let fit = match account.map(AnyAccount::read) {
            None => Fit::Corrupt,
            Some(_) if self.hits.is_refund() => Fit::Fits,
            Some(account) if account.fits(asked, &self.terms) => Fit::Fits,
            Some(_) => Fit::Over,
        };
        Vote { hits: self.hits, limit: self.terms.limit, fit }
    }

    fn tally(&self, accounts: &[AnyAccount], asked: u64, fit: Fit) -> Tally {
        let (terms, account) = (&self.terms, self.account.and_then(|index| accounts.get(index)));
        match account {
            Some(account) => Tally::of(account.read(), fit == Fit::Fits, asked, terms),
            None => Tally::without_counter(terms.limit, self.hits),
        }
    }
}

/// How one charge stands against its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Fits,
    Over,
    Corrupt,
}

/// One charge's vote on the call.
#[derive(Debug, Clone, Copy)]
struct Vote<'call> {
    hits: Hits,
    limit: &'call Limit,
    fit: Fit,
}

impl<'call> Vote<'call> {
    fn of(charge: &'call Charge, tally: &Tally) -> Self {
        let fit = match tally.verdict {
            Verdict::Fits { .. } => Fit::Fits,
            Verdict::Over => Fit::Over,
        };
        Self { hits: charge.hits, limit: &charge.counter.limit, fit }
    }

    /// Whether this charge alone denies the call.
    fn denies(self) -> bool {
        match self.fit {
            Fit::Fits => false,
            Fit::Over => self.limit.mode == Mode::Enforced && !self.hits.is_refund(),
            Fit::Corrupt => denies_without_counter(self.limit, self.hits),
        }
    }

    fn denies_uncharged(self) -> bool {
        self.denies() && self.limit.when_denied == WhenDenied::Free
    }
}

/// The tallies that charges on counters which stand so would have, refunds first. Only what they say of
/// fitting is foreseen; nothing is charged.
pub fn foresee(charges: &[Charge], standings: &[CounterState]) -> Vec<Tally> {
    let given = |hits| if let Hits::Refund(hits) = hits { hits } else { 0 };
    let tally = |(charge, standing): (&Charge, &CounterState)| {
        let most = u64::from(charge.counter.limit.capacity());
        // What would pass now is not quite the most less what is used: that is rounded up.
        let room = match sum(charges, &charge.counter, given) {
            0 => u64::from(standing.remaining),
            given => most.saturating_sub(standing.used.saturating_sub(given)),
        };
        let fits = asked(charge, charges) <= room;
        let remaining = u32::try_from(room).unwrap_or(u32::MAX);
        let verdict = if fits { Verdict::Fits { remaining } } else { Verdict::Over };
        Tally { verdict, reset: standing.reset }
    };
    charges.iter().zip(standings).map(tally).collect()
}

/// How many hits must fit for `charge` to fit, in a call of these charges: all that its counter is
/// asked, one for a look, none for a refund.
pub fn asked(charge: &Charge, charges: &[Charge]) -> u64 {
    match charge.hits {
        Hits::Charge(_) => sum(charges, &charge.counter, |hits| match hits {
            Hits::Charge(hits) => hits,
            Hits::Look | Hits::Refund(_) => 0,
        }),
        Hits::Look => 1,
        Hits::Refund(_) => 0,
    }
}

fn sum(charges: &[Charge], counter: &Counter, pick: fn(Hits) -> u64) -> u64 {
    let same = charges.iter().filter(|charge| charge.counter.same_counter(counter));
    same.fold(0, |sum, charge| sum.saturating_add(pick(charge.hits)))
}

/// Whether a call of these charges is denied, by their tallies.
pub fn denies(charges: &[Charge], tallies: &[Tally]) -> bool {
    is_denied(charges.iter().zip(tallies).map(|(charge, tally)| Vote::of(charge, tally)))
}

/// Whether a call is denied: a charge denies it, or it has quota charges and none of them fits. Shadows
/// have no vote, and refunds are never judged.
fn is_denied<'call>(votes: impl Iterator<Item = Vote<'call>>) -> bool {
    let (mut quotas, mut quotas_fit) = (false, false);
    for vote in votes {
        if vote.denies() {
            return true;
        }
        let is_quota = vote.limit.mode == Mode::Quota && !vote.hits.is_refund();
        if is_quota && vote.fit != Fit::Corrupt {
            (quotas, quotas_fit) = (true, quotas_fit || vote.fit == Fit::Fits);
        }
    }
    quotas && !quotas_fit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{algorithm::fixed_window, rule::Unit};
    use proptest::prelude::*;

    /// Judges a call on two accounts, `a` and `b`, and spells what came of it.
    ///
    /// A call is written `take 3 of a/5, look a/5, give 2 to b/9`: the number behind the slash is
    /// the limit. `count` is a take that counts when denied, `shadow` one of a shadow, `quota` one of
    /// a quota; `deny`, `allow` and `local` are takes of limits with this `on_store_failure`. The counter
    /// `x` is corrupt.
    #[track_caller]
    fn check(used: [u64; 2], call: &str, expected: &str, used_after: [u64; 2]) {
        let postings: Vec<Posting<'_>> = call.split(", ").map(posting).collect();
        let mut accounts = used.map(account);
        let spell = |tally: &Tally| match tally.verdict {
            Verdict::Fits { remaining } => remaining.to_string(),
            Verdict::Over => "over".to_owned(),
        };
        let verdicts = match judge(&postings, &mut accounts) {
            Some(judgement) => judgement.tallies.iter().map(spell).collect::<Vec<_>>().join(", "),
            None => "fails".to_owned(),
        };
        assert_eq!(verdicts, expected, "{used:?}: {call}");
        assert_eq!(accounts, used_after.map(account), "{used:?}: {call}");
    }

    fn account(used: u64) -> AnyAccount {
        AnyAccount::FixedWindow(fixed_window::FixedWindow { used })
    }

    /// The terms of so many hits a year. They live as long as the test's process.
    fn terms(requests: u32, when_denied: WhenDenied) -> Terms<'static> {
        let limit = Limit { when_denied, ..Limit::new(requests, Unit::Year, 1).unwrap() };
        Terms::new(Box::leak(Box::new(limit)), Timestamp::from_secs(1_795_215_600))
    }

    fn used(accounts: &[AnyAccount], number: usize) -> u64 {
        accounts[number].read().used(&terms(1, WhenDenied::Free))
    }

    fn posting(text: &str) -> Posting<'static> {
        let (words, requests) = text.split_once('/').unwrap();
        let words: Vec<&str> = words.split(' ').collect();
        let account = match *words.last().unwrap() {
            "a" => Some(0),
            "b" => Some(1),
            _ => None,
        };
        let hits = match words[0] {
            "look" => Hits::Look,
            "give" => Hits::Refund(words[1].parse().unwrap()),
            _ => Hits::Charge(words[1].parse().unwrap()),
        };
        let mut limit = terms(requests.parse().unwrap(), WhenDenied::Free).limit.clone();
        match words[0] {
            "count" => limit.when_denied = WhenDenied::Counted,
            "shadow" => limit.mode = Mode::Shadow,
            "quota" => limit.mode = Mode::Quota,
            "deny" => limit.on_store_failure = OnStoreFailure::Deny,
            "allow" => limit.on_store_failure = OnStoreFailure::Allow,
            "local" => limit.on_store_failure = OnStoreFailure::Local,
            _ => {}
        }
        let terms = Terms { limit: Box::leak(Box::new(limit)), ..terms(1, WhenDenied::Free) };
        Posting { account, hits, caller: None, terms }
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
    fn a_shadow_has_no_voice_and_is_charged_only_if_it_fits() {
        check([5, 0], "shadow 1 of a/5, take 1 of b/9", "over, 8", [5, 1]);
        check([4, 0], "shadow 1 of a/5, take 1 of b/9", "0, 8", [5, 1]);
        check([4, 9], "shadow 1 of a/5, take 1 of b/9", "1, over", [4, 9]);
    }

    #[test]
    fn quotas_deny_only_together_and_count_what_is_done() {
        check([5, 0], "quota 1 of a/5, quota 1 of b/9", "over, 8", [6, 1]);
        check([5, 9], "quota 1 of a/5, quota 1 of b/9", "over, over", [6, 10]);
        check([4, 0], "quota 3 of a/5", "over", [7, 0]);
        // Where an enforced limit denies for free, nothing was done.
        check([0, 9], "quota 1 of a/5, take 1 of b/9", "5, over", [0, 9]);
        check([0, 9], "quota 1 of a/5, count 1 of b/9", "4, over", [1, 10]);
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

    #[test]
    fn for_a_corrupt_counter_its_limit_answers_and_siblings_are_judged_as_usual() {
        check([0, 0], "allow 1 of x/5, take 1 of b/9", "5, 8", [0, 1]);
        check([0, 0], "deny 1 of x/5, take 1 of b/9", "over, 9", [0, 0]);
        check([0, 0], "deny 1 of x/5, count 1 of b/9, give 3 to a/9", "over, 8, 9", [0, 1]);
        check([3, 0], "shadow 1 of x/5, give 3 to a/9", "5, 9", [0, 0]);
        // Only the quotas whose counters can be read have a vote.
        check([0, 9], "quota 1 of b/9, allow 1 of x/9", "over, 9", [0, 10]);
    }

    #[test]
    fn a_corrupt_counter_fails_the_call_unless_something_denies_it() {
        check([3, 0], "take 1 of x/5, count 1 of b/9, give 3 to a/9", "fails", [3, 0]);
        check([3, 9], "take 1 of x/5, take 1 of b/9, give 3 to a/9", "5, over, 9", [0, 9]);
        check([0, 0], "take 1 of x/5, deny 1 of x/5", "5, over", [0, 0]);
        // A refund denies nothing, and must not be lost in silence.
        check([0, 0], "give 1 to x/5", "fails", [0, 0]);
        check([0, 0], "local 1 of x/5, deny 1 of x/5", "fails", [0, 0]);
    }

    fn any_posting() -> impl Strategy<Value = Posting<'static>> {
        let hits = prop_oneof![
            (1..9_u64).prop_map(Hits::Charge),
            Just(Hits::Charge(Hits::MAX)),
            Just(Hits::Look),
            (0..9_u64).prop_map(Hits::Refund),
        ];
        (0..2_usize, hits, 0..20_u32, any::<bool>()).prop_map(|(account, hits, limit, counted)| {
            let account = Some(account);
            let when_denied = if counted { WhenDenied::Counted } else { WhenDenied::Free };
            Posting { account, hits, caller: None, terms: terms(limit, when_denied) }
        })
    }

    fn any_call() -> impl Strategy<Value = (Vec<Posting<'static>>, [AnyAccount; 2])> {
        let accounts = [0..25_u64, 0..25].prop_map(|used| used.map(account));
        (prop::collection::vec(any_posting(), 1..6), accounts)
    }

    /// All that `hits` picks of the postings on an account.
    fn total(postings: &[Posting<'_>], account: usize, hits: impl Fn(&Posting<'_>) -> u64) -> u64 {
        postings.iter().filter(|it| it.account == Some(account)).map(hits).sum()
    }

    fn taken(posting: &Posting<'_>) -> u64 {
        if let Hits::Charge(hits) = posting.hits { hits } else { 0 }
    }

    fn given(posting: &Posting<'_>) -> u64 {
        if let Hits::Refund(hits) = posting.hits { hits } else { 0 }
    }

    fn counted(posting: &Posting<'_>) -> u64 {
        if posting.terms.limit.when_denied == WhenDenied::Counted { taken(posting) } else { 0 }
    }

    fn tallies(postings: &[Posting<'_>], accounts: &mut [AnyAccount]) -> Vec<Tally> {
        judge(postings, accounts).expect("no counter is corrupt").tallies
    }

    fn passes(tallies: &[Tally]) -> bool {
        tallies.iter().all(|tally| tally.verdict != Verdict::Over)
    }

    proptest! {
        /// P5, P6: all takes of a call are made, or only those that count when denied; refunds
        /// always.
        #[test]
        fn a_call_is_charged_as_a_whole((postings, before) in any_call()) {
            let mut after = before.clone();
            let admitted = passes(&tallies(&postings, &mut after));
            for account in 0..2 {
                let refunded =
                    used(&before, account).saturating_sub(total(&postings, account, given));
                let charged = match admitted {
                    true => total(&postings, account, taken),
                    false => total(&postings, account, counted),
                };
                prop_assert_eq!(used(&after, account), (refunded + charged).min(Hits::MAX));
            }
        }

        /// P1, P13: an admitted take leaves its account within its limit, and tells what remains.
        #[test]
        fn an_admitted_take_is_within_its_limit((postings, before) in any_call()) {
            let mut after = before;
            let tallies = tallies(&postings, &mut after);
            if !passes(&tallies) {
                return Ok(());
            }
            for (posting, tally) in postings.iter().zip(tallies) {
                if let (Hits::Charge(_), Verdict::Fits { remaining }) = (posting.hits, tally.verdict) {
                    let used = used(&after, posting.account.unwrap());
                    let limit = posting.terms.limit.requests_per_unit;
                    prop_assert_eq!(used + u64::from(remaining), u64::from(limit));
                }
            }
        }

        /// P14: looks change nothing.
        #[test]
        fn looks_change_nothing((mut postings, before) in any_call()) {
            postings.iter_mut().for_each(|posting| posting.hits = Hits::Look);
            let mut after = before.clone();
            tallies(&postings, &mut after);
            prop_assert_eq!(after, before);
        }

        /// P17: what passes, passes under a higher limit too.
        #[test]
        fn a_higher_limit_denies_nothing_more((mut postings, before) in any_call(), more in 0..9_u32) {
            let pass = |postings: &[Posting<'_>]| passes(&tallies(postings, &mut before.clone()));
            let passed = pass(&postings);
            for posting in &mut postings {
                let Limit { requests_per_unit, when_denied, .. } = *posting.terms.limit;
                posting.terms = terms(requests_per_unit + more, when_denied);
            }
            prop_assert!(!passed || pass(&postings));
        }

        /// P18: where so many hits are denied, more are.
        #[test]
        fn more_hits_are_never_admitted_instead(used in 0..25_u64, hits in 1..25_u64, limit in 0..20_u32) {
            let pass = |hits| {
                let terms = terms(limit, WhenDenied::Free);
                let posting = Posting { account: Some(0), hits: Hits::Charge(hits), caller: None, terms };
                passes(&tallies(&[posting], &mut [account(used)]))
            };
            prop_assert!(pass(hits) || !pass(hits + 1));
        }
    }
}
