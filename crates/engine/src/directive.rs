//! What operators have set for descriptors until a time, beside the rules. The manual calls it an override; in the code an
//! override is a limit that a request carries.

mod inner_parts;

use std::{
    cmp::Reverse,
    fmt,
    hash::{BuildHasher as _, Hash as _, Hasher as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, HashMap};

use self::inner_parts::InnerParts;
use crate::{
    ledger::Few,
    pattern::Pattern,
    request::Entry,
    rule::{Limit, Mode},
    time::Timestamp,
};

/// What an operator has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directive {
    /// Its name.
    pub id: Arc<str>,
    /// The domain of the rules.
    pub domain: Arc<str>,
    /// The descriptors that it is for: as many entries, with these keys. A value with a star is a pattern.
    pub entries: Vec<Entry>,
    /// What it does.
    pub action: DirectiveAction,
    /// When it was set, by the store's clock.
    pub set_at: Timestamp,
    /// When it ends, by the store's clock.
    pub until: Timestamp,
}

/// What a directive does with the calls that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectiveAction {
    /// The only limit of the rule has this number.
    Limit(u64),
    /// The numbers of all limits of the rule are multiplied.
    Times(u64),
    /// They pass, and nothing is charged.
    Allow,
    /// They are denied, and nothing is charged.
    Ban,
    /// They are counted and never denied.
    Shadow,
}

impl DirectiveAction {
    /// The names of all actions.
    pub const NAMES: [&'static str; 5] = ["limit", "times", "allow", "ban", "shadow"];

    /// Its name.
    pub const fn name(self) -> &'static str {
        let [limit, times, allow, ban, shadow] = Self::NAMES;
        match self {
            Self::Limit(_) => limit,
            Self::Times(_) => times,
            Self::Allow => allow,
            Self::Ban => ban,
            Self::Shadow => shadow,
        }
    }

    /// Its number, if it has one.
    pub const fn value(self) -> Option<u64> {
        match self {
            Self::Limit(value) | Self::Times(value) => Some(value),
            Self::Allow | Self::Ban | Self::Shadow => None,
        }
    }

    /// The limit that applies in place of one of a rule, on the same counter.
    pub fn limit(self, limit: &Limit) -> Limit {
        match self {
            Self::Limit(requests) => Limit { shadow: None, ..limit.with_requests(requests) },
            Self::Times(times) => Limit {
                shadow: limit.shadow.map(|requests| requests.saturating_mul(times)),
                ..limit.with_requests(limit.requests_per_unit.saturating_mul(times))
            },
            Self::Shadow => {
                Limit { mode: Mode::Shadow, mode_written: Mode::Shadow, ..limit.clone() }
            }
            Self::Allow => Limit {
                hold: None,
                ban_ms: None,
                tiers: Default::default(),
                shadow: None,
                ..Self::Shadow.limit(limit)
            },
            Self::Ban => limit.clone(),
        }
    }
}

impl fmt::Display for DirectiveAction {
    /// Its name and number, such as `ban` or `limit 10`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.value().map_or(Ok(()), |value| write!(f, " {value}"))
    }
}

impl fmt::Display for Directive {
    /// Its action and its id, such as `ban 5f2c01aa` or `limit 10 5f2c01aa`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.action, self.id)
    }
}

impl Directive {
    /// Whether it lets calls pass uncharged.
    pub const fn exempts(&self) -> bool {
        matches!(self.action, DirectiveAction::Allow)
    }

    /// Whether both are for the same descriptors: then the one that was set later applies.
    pub fn has_target_of(&self, other: &Self) -> bool {
        self.domain == other.domain && self.entries == other.entries
    }

    /// Whether it is for several values.
    pub fn has_pattern(&self) -> bool {
        self.entries.iter().any(|entry| Pattern::of(&entry.value).is_some())
    }

    /// Whether it applies to a rule with this number of limits. A number of hits has a meaning for one limit only.
    pub const fn applies_to(&self, limits: usize) -> bool {
        match self.action {
            DirectiveAction::Limit(_) => limits == 1,
            DirectiveAction::Times(_) | DirectiveAction::Shadow => limits > 0,
            DirectiveAction::Allow | DirectiveAction::Ban => true,
        }
    }
}

/// The directives in force, and how the one of a descriptor is found: the most specific. Entry by entry, an exact value comes
/// before a pattern, and a pattern before `*` alone; of equals, the newest wins.
#[derive(Debug, Default)]
pub struct Directives {
    all: Vec<Arc<Directive>>,
    /// By the hash of the domain and of all keys: one index for each form that the values of the directives have.
    indexes: HashMap<u64, Vec<(Vec<FixedPart>, Index)>>,
    hasher: DefaultHashBuilder,
    /// The store's time when it was last learned, in milliseconds.
    now_ms: AtomicU64,
}

/// By the hash of the parts of the values that a form takes.
type Index = HashMap<u64, Matchers>;

/// Those whose forms take the same parts, the lowest rank first.
#[derive(Debug, Default)]
struct Matchers {
    all: Vec<Matcher>,
    /// What the patterns of each entry have within, if any has.
    inner: Vec<Option<InnerParts>>,
}

/// The part of a value that is the same in all values that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FixedPart {
    /// All of it.
    Whole,
    /// The first bytes, of this number.
    Head(usize),
    /// The last bytes, of this number.
    Tail(usize),
}

/// One directive, and what a descriptor must have.
#[derive(Debug)]
struct Matcher {
    patterns: Vec<Option<Pattern>>,
    directive: Arc<Directive>,
    /// Of several that match, the lowest applies.
    rank: usize,
}

impl Directives {
    /// These directives.
    pub fn new(all: Vec<Arc<Directive>>) -> Self {
        let mut new = Self { all, ..Self::default() };
        let mut matchers: Vec<Matcher> = new.all.iter().map(Matcher::new).collect();
        matchers.sort_by_cached_key(Matcher::precedence);
        for (rank, matcher) in matchers.into_iter().enumerate() {
            let matcher = Matcher { rank, ..matcher };
            let Directive { domain, entries, .. } = &*matcher.directive;
            let form: Vec<FixedPart> = matcher.patterns.iter().map(FixedPart::of).collect();
            let Some(hash) = hash_parts(&new.hasher, &form, entries) else { continue };
            let forms = new.indexes.entry(hash_keys(&new.hasher, domain, entries)).or_default();
            match forms.iter_mut().find(|(known, _)| *known == form) {
                Some((_, index)) => index.entry(hash).or_default().all.push(matcher),
                None => {
                    let first = Matchers { all: vec![matcher], inner: Vec::new() };
                    forms.push((form, HashMap::from_iter([(hash, first)])));
                }
            }
        }
        let indexes = new.indexes.values_mut().flatten();
        indexes.flat_map(|(_, index)| index.values_mut()).for_each(Matchers::prepare);
        new
    }

    /// All of them.
    pub fn all(&self) -> &[Arc<Directive>] {
        &self.all
    }

    /// The directive for a descriptor.
    pub fn find(&self, domain: &str, entries: &[Entry]) -> Option<&Arc<Directive>> {
        let forms = self.indexes.get(&hash_keys(&self.hasher, domain, entries))?;
        let found = forms.iter().filter_map(|(form, index)| {
            index.get(&hash_parts(&self.hasher, form, entries)?)?.find(domain, entries)
        });
        found.min_by_key(|matcher| matcher.rank).map(|matcher| &matcher.directive)
    }

    /// Notes the store's time.
    pub fn learn(&self, now: Timestamp) {
        self.now_ms.store(now.as_millis(), Ordering::Relaxed);
    }

    /// The time until a directive ends, by the time that was last learned.
    pub fn remaining(&self, directive: &Directive) -> Duration {
        Timestamp::from_millis(self.now_ms.load(Ordering::Relaxed)).until(directive.until)
    }
}

impl Matchers {
    /// Prepares the search for what patterns have within.
    fn prepare(&mut self) {
        let entries = self.all.first().map_or(0, |first| first.patterns.len());
        let of_entry =
            |entry: usize| self.all.iter().map(move |one| one.patterns.get(entry)?.as_ref());
        self.inner = (0..entries).map(|entry| InnerParts::new(of_entry(entry))).collect();
    }

    fn find(&self, domain: &str, entries: &[Entry]) -> Option<&Matcher> {
        let mut found = Few::new();
        for (inner, entry) in self.inner.iter().zip(entries) {
            found.extend(inner.as_ref().map(|inner| (inner, inner.places(&entry.value))));
        }
        let may_match = |index| found.iter().all(|(inner, at)| inner.may_match(index, at));
        let mut all = self.all.iter().enumerate();
        all.find(|(index, matcher)| may_match(*index) && matcher.matches(domain, entries))
            .map(|(_, matcher)| matcher)
    }
}

impl Matcher {
    fn new(directive: &Arc<Directive>) -> Self {
        let patterns = directive.entries.iter().map(|entry| Pattern::of(&entry.value)).collect();
        Self { patterns, directive: Arc::clone(directive), rank: 0 }
    }

    /// Of several that match, the least applies: entry by entry an exact value, then a pattern, then `*` alone; then the newest.
    fn precedence(&self) -> (Vec<u8>, Reverse<(Timestamp, Arc<str>)>) {
        let Directive { id, entries, set_at, .. } = &*self.directive;
        let rank = |(entry, pattern): (&Entry, &Option<Pattern>)| match pattern {
            None => 0,
            Some(_) if &*entry.value == b"*" => 2,
            Some(_) => 1,
        };
        let ranks = entries.iter().zip(&self.patterns).map(rank).collect();
        (ranks, Reverse((*set_at, Arc::clone(id))))
    }

    fn matches(&self, domain: &str, entries: &[Entry]) -> bool {
        let own = self.directive.entries.iter().zip(&self.patterns);
        let is_same = |((own, pattern), entry): ((&Entry, &Option<Pattern>), &Entry)| {
            let is_value = || own.value == entry.value;
            let is_match = |pattern: &Pattern| pattern.matches(&entry.value);
            own.key == entry.key && pattern.as_ref().map_or_else(is_value, is_match)
        };
        *self.directive.domain == *domain
            && self.patterns.len() == entries.len()
            && own.zip(entries).all(is_same)
    }
}

impl FixedPart {
    /// The longer of a pattern's literal start and end; without a pattern, all of the value.
    fn of(pattern: &Option<Pattern>) -> Self {
        match pattern.as_ref().map(Pattern::ends) {
            None => Self::Whole,
            Some((head, tail)) if tail.len() > head.len() => Self::Tail(tail.len()),
            Some((head, _)) => Self::Head(head.len()),
        }
    }

    /// This part of a value; `None` if that is shorter.
    fn take(self, value: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Whole => Some(value),
            Self::Head(bytes) => value.get(..bytes),
            Self::Tail(bytes) => value.get(value.len().checked_sub(bytes)?..),
        }
    }
}

fn hash_keys(hasher: &DefaultHashBuilder, domain: &str, entries: &[Entry]) -> u64 {
    let mut hasher = hasher.build_hasher();
    domain.hash(&mut hasher);
    entries.iter().for_each(|entry| entry.key.hash(&mut hasher));
    hasher.finish()
}

/// A hash of the parts that a form takes of the values; `None` if one is shorter.
fn hash_parts(hasher: &DefaultHashBuilder, form: &[FixedPart], entries: &[Entry]) -> Option<u64> {
    let mut hasher = hasher.build_hasher();
    for (part, entry) in form.iter().zip(entries) {
        part.take(&entry.value)?.hash(&mut hasher);
    }
    Some(hasher.finish())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        descriptor_syntax,
        hold::HoldPolicy,
        rule::{Algorithm, Tier, Unit},
    };

    /// Directives on these descriptors, each set one second after the one before; the ids are their indices.
    fn directives(texts: &[&str]) -> Directives {
        let all = texts.iter().enumerate().map(|(index, text)| {
            let set_at = Timestamp::from_secs(index as u64);
            Arc::new(Directive {
                id: index.to_string().into(),
                domain: "shop".into(),
                entries: descriptor_syntax::parse(text).unwrap(),
                action: DirectiveAction::Ban,
                set_at,
                until: Timestamp::from_secs(1000),
            })
        });
        Directives::new(all.collect())
    }

    fn found<'a>(directives: &'a Directives, descriptor: &str) -> Option<&'a str> {
        let entries = descriptor_syntax::parse(descriptor).unwrap();
        directives.find("shop", &entries).map(|directive| &*directive.id)
    }

    #[track_caller]
    fn check(texts: &[&str], descriptor: &str, expected: Option<&str>) {
        assert_eq!(found(&directives(texts), descriptor), expected, "{descriptor} by {texts:?}");
    }

    #[test]
    fn the_most_specific_wins_whatever_came_first() {
        let all = ["user=*", "user=al*", "user=alice", "user=*e"];
        check(&all, "user=alice", Some("2"));
        check(&all, "user=albert", Some("1"));
        check(&all, "user=eve", Some("3"));
        check(&all, "user=bob", Some("0"));
        check(&["user=al*", "user=*"], "user=alice", Some("0"));
        check(&all, "account=alice", None);
        check(&all, "user=alice,path=/", None);
    }

    #[test]
    fn the_first_entry_that_differs_decides() {
        let all = ["path=/login,user=*", "path=*,user=alice", "path=/*,user=alice"];
        check(&all, "path=/login,user=alice", Some("0"));
        check(&all, "path=/other,user=alice", Some("2"));
        check(&all, "path=other,user=alice", Some("1"));
    }

    #[test]
    fn of_equals_the_newest_wins() {
        check(&["user=alice", "user=alice"], "user=alice", Some("1"));
        check(&["user=al*", "user=*ce"], "user=alice", Some("1"));
    }

    #[test]
    fn another_domain_has_none() {
        let entries = descriptor_syntax::parse("user=alice").unwrap();
        assert_eq!(directives(&["user=alice"]).find("other", &entries), None);
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_search_of_all_finds(
            texts in prop::collection::vec("(a=[xy*]{1,5})(,b=[xy*]{1,4})?", 0..20),
            descriptor in "(a=[xy]{1,6})(,b=[xy]{1,4})?",
        ) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let directives = directives(&texts);
            let entries = descriptor_syntax::parse(&descriptor).unwrap();
            let matchers = directives.all().iter().map(Matcher::new);
            let matching = matchers.filter(|matcher| matcher.matches("shop", &entries));
            let best = matching.min_by_key(Matcher::precedence);
            let best = best.map(|matcher| matcher.directive.id.to_string());
            prop_assert_eq!(found(&directives, &descriptor).map(str::to_owned), best);
        }
    }

    #[test]
    fn actions_have_names_numbers_and_the_rules_that_they_apply_to() {
        use DirectiveAction::{Allow, Ban, Limit, Shadow, Times};
        // Whether it applies to a rule without a limit, with one, and with two.
        for (action, text, value, applies_to) in [
            (Limit(10), "limit 10", Some(10), [false, true, false]),
            (Times(3), "times 3", Some(3), [false, true, true]),
            (Shadow, "shadow", None, [false, true, true]),
            (Allow, "allow", None, [true; 3]),
            (Ban, "ban", None, [true; 3]),
        ] {
            let all = directives(&["user=alice"]);
            let directive = Directive { action, ..Directive::clone(&all.all()[0]) };
            assert_eq!(directive.to_string(), format!("{text} 0"));
            assert_eq!(action.value(), value, "{text}");
            assert_eq!([0, 1, 2].map(|limits| directive.applies_to(limits)), applies_to, "{text}");
            assert_eq!(directive.exempts(), action == Allow, "{text}");
        }
    }

    #[test]
    fn a_directive_has_a_pattern_if_one_of_its_values_has_a_star() {
        for (text, expected) in [("user=a*", true), ("path=/,user=*", true), ("user=a", false)] {
            assert_eq!(directives(&[text]).all()[0].has_pattern(), expected, "{text}");
        }
    }

    #[test]
    fn the_time_until_its_end_is_by_the_time_that_was_last_learned() {
        let directives = directives(&["user=alice"]);
        for (now_ms, remaining_ms) in [(400_500, 599_500), (999_999, 1), (1_000_001, 0)] {
            directives.learn(Timestamp::from_millis(now_ms));
            let remaining = directives.remaining(&directives.all()[0]);
            assert_eq!(remaining, Duration::from_millis(remaining_ms));
        }
    }

    #[test]
    fn what_passes_by_an_operator_holds_bans_and_tries_nothing() {
        use DirectiveAction::{Allow, Ban, Shadow, Times};
        let tiers = Some([Tier { at: 50, request_headers: Vec::new() }].into());
        let hold = Some(Arc::new(HoldPolicy::new(1000)));
        let limit = Limit::new(10, Unit::Minute, 1).unwrap();
        let limit = Limit { hold, tiers, ban_ms: Some(9), shadow: Some(4), ..limit };
        let (enforced, shadow) = ([Mode::Enforced; 2], [Mode::Shadow; 2]);
        for (action, modes, tried, is_bare) in [
            (DirectiveAction::Limit(20), enforced, None, false),
            (Times(3), enforced, Some(12), false),
            (Shadow, shadow, Some(4), false),
            (Allow, shadow, None, true),
            (Ban, enforced, Some(4), false),
        ] {
            let Limit { mode, mode_written, shadow, hold, tiers, ban_ms, .. } =
                action.limit(&limit);
            assert_eq!(([mode, mode_written], shadow), (modes, tried), "{action}");
            let are_none = (hold.is_none(), tiers.is_none(), ban_ms.is_none());
            assert_eq!(are_none, (is_bare, is_bare, is_bare), "{action}");
        }
    }

    #[test]
    fn a_changed_limit_keeps_its_counter_and_its_bounds() {
        let bucket = Limit {
            algorithm: Algorithm::TokenBucket { burst: 50 },
            ..Limit::new(10, Unit::Minute, 1).unwrap()
        };
        let log = Limit { algorithm: Algorithm::SlidingLog { remember: None }, ..bucket.clone() };
        for (action, limit, expected) in [
            (DirectiveAction::Limit(20), &bucket, (20, 100)),
            (DirectiveAction::Times(3), &bucket, (30, 150)),
            (DirectiveAction::Limit(1), &bucket, (1, 5)),
            (DirectiveAction::Limit(0), &bucket, (0, 0)),
            (DirectiveAction::Limit(20_000), &log, (10_000, 10_000)),
            (DirectiveAction::Times(u64::MAX), &log, (10_000, 10_000)),
        ] {
            let changed = action.limit(limit);
            assert_eq!((changed.requests_per_unit, changed.capacity()), expected, "{action:?}");
            assert_eq!(changed.algorithm.short_name(), limit.algorithm.short_name());
            assert_eq!(changed.window, limit.window);
        }
        let most = DirectiveAction::Times(u64::MAX).limit(&bucket);
        // The largest burst that is five times the rate.
        assert_eq!(most.capacity(), ((1 << 53) - 1) / 60_000 / 5 * 5);
    }
}
