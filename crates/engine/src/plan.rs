//! From a request to charges, and from tallies to a decision.

use std::{borrow::Cow, iter, slice, sync::Arc, time::Duration};

use crate::{
    decision::{Code, Committed, Decision, Matched, Outcome, Status},
    directive::{Directive, DirectiveAction, Directives},
    hold::{HoldBy, HoldPolicy},
    hold_id::HoldId,
    key::{self, Counter, SlotBy},
    ledger::{
        self, Charge, CommitOutcome, Few, Fit, HeldCharge, HoldAction, JudgedBy, TakenHold, Tally,
        Verdict,
    },
    parameters::Parameters,
    request::{Descriptor, Entry, Hits, HitsMeaning, Request},
    rule::{
        Algorithm, Defaults, Limit, Mode, ModeOverride, TierHeader, Unit, WhenDenied, headers_of,
    },
    rule_set::{Domain, Found, RequireMode, RuleSet},
};

/// The charges of one call, and which of them belong to each descriptor.
#[derive(Debug)]
pub struct Plan {
    /// What the store must charge, all or nothing.
    pub charges: Vec<Charge>,
    items: Vec<Item>,
    /// The number of the last charges that commit holds of earlier calls.
    commits: usize,
    /// The indices of the descriptors that name these holds.
    committing: Few<usize>,
    /// Common to all holds that this call takes.
    hold_id: HoldId,
    mode_override: ModeOverride,
    /// The domain whose required entries the call lacks, and what that means.
    pub lacking: Option<(Arc<str>, RequireMode)>,
    /// What the descriptors would charge that an operator has banned, with the answer.
    banned: Vec<(Matched, Arc<Directive>, Charge, Tally)>,
    /// Whether it would take holds that no token can name.
    has_no_token: bool,
    /// The entries of each group of quotas; the first has the number 1.
    groups: Vec<Vec<Entry>>,
}

/// A charge that is judged.
#[derive(Debug, Clone, Copy)]
pub struct JudgedCharge<'plan> {
    /// What its descriptor matched.
    pub matched: &'plan Matched,
    /// What an operator has set for its descriptor.
    pub directive: Option<&'plan Arc<Directive>>,
    /// The charge.
    pub charge: &'plan Charge,
    /// The answer.
    pub tally: &'plan Tally,
}

/// One descriptor's part of a plan.
#[derive(Debug)]
enum Item {
    /// Already decided.
    Settled(Status),
    /// Decided by the tallies of the next charges, of this number, at least one.
    Charged(Matched, usize, Option<Arc<Directive>>),
}

impl Plan {
    /// Finds the rule of each descriptor.
    pub fn draw(rules: &RuleSet, request: &Request) -> Self {
        Self::draw_as(rules, None, request, &[], HitsMeaning::Charged)
    }

    /// Like [`draw`](Self::draw), with what operators have set, for hits with this meaning. `commits` has the holds whose
    /// tokens descriptors name, with the indices of these descriptors; any other token counts as absent.
    pub fn draw_as(
        rules: &RuleSet,
        directives: Option<&Directives>,
        request: &Request,
        commits: &[(usize, TakenHold)],
        meaning: HitsMeaning,
    ) -> Self {
        let mode_override = rules.defaults.mode_override;
        let mut plan = Self {
            charges: Vec::with_capacity(request.descriptors.len()),
            items: Vec::with_capacity(request.descriptors.len()),
            commits: 0,
            committing: commits.iter().map(|(descriptor, _)| *descriptor).collect(),
            hold_id: HoldId::default(),
            mode_override,
            lacking: None,
            banned: Vec::new(),
            has_no_token: false,
            groups: Vec::new(),
        };
        // A check charges nothing, and commits nothing either.
        let commits = if meaning == HitsMeaning::Checked { &[] } else { commits };
        let Some(domain) = rules.domain(&request.domain) else {
            for _ in &request.descriptors {
                plan.settle_at_once(Matched::NoDomain, Outcome::NoLimit);
            }
            plan.commit(request, commits);
            return plan;
        };
        let mut found_by_each = Few::new();
        for (index, descriptor) in request.descriptors.iter().enumerate() {
            let mut asked = Asked::new(domain, descriptor, meaning);
            asked.is_commit = plan.is_commit(index);
            let found = match descriptor.limit {
                Some(_) => Found::NoLimit,
                // Its rule may have gone.
                None if asked.is_commit => Found::NoLimit,
                None => domain.find(&asked.path),
            };
            if let Some(directives) =
                directives.filter(|_| !asked.is_commit && !asked.ends_hold(&found))
            {
                let set = directives.find(&domain.name, &asked.path);
                asked.directive = set.map(|set| (set, directives.remaining(set)));
            }
            found_by_each.push((asked, found));
        }
        let replaced = found_by_each.iter().flat_map(|(_, found)| found.replaces());
        let replaced: Vec<&Arc<str>> = replaced.collect();
        for (asked, found) in &found_by_each {
            match &asked.descriptor.limit {
                Some(limit) => plan.add_override(domain, asked, limit, rules.defaults),
                None => plan.add(domain, asked, found, &replaced),
            }
        }
        let mut others = found_by_each.iter().filter(|(asked, _)| !asked.is_commit).peekable();
        if others.peek().is_some()
            && !others.any(|(asked, _)| domain.requirement.is_met(&asked.descriptor.entries))
        {
            plan.lacking = Some((Arc::clone(&domain.name), domain.requirement.mode));
        }
        if plan.is_refused() {
            plan.charges.iter_mut().for_each(Charge::refuse);
        }
        if !plan.banned.is_empty()
            || plan.items.iter().all(|item| item.charges() == 0 || item.is_exempt())
        {
            plan.drop_checks();
        }
        ledger::bound_parts(&mut plan.charges);
        plan.commit(request, commits);
        plan
    }

    /// Whether the descriptor with this index commits the hold that its token names.
    pub fn is_commit(&self, descriptor: usize) -> bool {
        self.committing.contains(&descriptor)
    }

    /// Whether the call is denied, since it lacks required entries, an operator has banned it, or no token can name what it
    /// takes.
    pub fn is_refused(&self) -> bool {
        self.has_no_token
            || !self.banned.is_empty()
            || matches!(self.lacking, Some((_, RequireMode::Deny)))
    }

    /// Spares the store a call of which nothing is charged: its other descriptors show no limit then.
    fn drop_checks(&mut self) {
        let is_check = |charge: &Charge| charge.hits == Hits::Check && charge.hold.is_none();
        if !self.charges.iter().all(is_check) {
            return;
        }
        self.charges.clear();
        for item in &mut self.items {
            let outcome = if item.is_exempt() { Outcome::Unlimited } else { Outcome::NoLimit };
            if let Item::Charged(matched, _, directive) = item {
                *item = Item::settled(matched.clone(), outcome, directive.take());
            }
        }
    }

    /// The verdict on a call that is denied even if the store gives none.
    pub fn refusal(&self) -> Option<Verdict> {
        let tally = |charge| Tally::by_failure_mode(charge, JudgedBy::Absent);
        self.is_refused().then(|| Verdict {
            denied: true,
            tallies: self.charges.iter().map(tally).collect(),
            ..Verdict::default()
        })
    }

    /// Adds the commits of holds. The parameters of their descriptors contain what was used.
    fn commit(&mut self, request: &Request, commits: &[(usize, TakenHold)]) {
        let own = self.charges.len();
        for (descriptor, hold) in commits {
            let named = request.descriptors.get(*descriptor);
            if let Some(parameters) = named.and_then(|named| Parameters::of(&named.entries)) {
                self.charges.extend(hold.commit(parameters));
            }
        }
        self.commits = self.charges.len() - own;
    }

    /// What its charges cost the store at most, without commits of earlier holds.
    pub fn weight(&self) -> usize {
        let own = self.charges.len() - self.commits;
        self.charges.iter().take(own).map(Charge::weight).sum()
    }

    /// Whether it takes holds that need an id.
    pub fn takes_holds(&self) -> bool {
        self.charges.iter().any(|charge| match charge.hold {
            Some(HoldAction::Open { .. } | HoldAction::Occupy { .. }) => true,
            Some(_) => false,
            None => is_by_token(charge) && charge.is_take(),
        })
    }

    /// What it takes that its token must name.
    pub fn takes_by_token(&self) -> impl Iterator<Item = &Counter> {
        let takes = self.charges.iter().filter(|charge| is_by_token(charge) && charge.is_take());
        takes.map(|charge| &charge.counter)
    }

    /// Denies the call, since no token can name what it takes.
    pub fn refuse_takes(&mut self) {
        self.has_no_token = true;
        let own = self.charges.len() - self.commits;
        self.charges.iter_mut().take(own).for_each(Charge::refuse);
    }

    /// Gives the holds that it takes their id.
    pub fn set_hold_id(&mut self, taken: HoldId) {
        self.hold_id = taken;
        for charge in &mut self.charges {
            if let Some(HoldAction::Open { id, .. } | HoldAction::Occupy { id, .. }) =
                &mut charge.hold
            {
                *id = taken;
            }
        }
    }

    fn add_override(
        &mut self,
        domain: &Domain,
        asked: &Asked<'_>,
        limit: &Limit,
        defaults: Defaults,
    ) {
        let (limit, slot_by) = match domain.find(&asked.path) {
            Found::Rule(rule) => (rule.bound(limit.clone()), domain.slot_of(rule.limits())),
            Found::NoLimit | Found::Nothing => (limit.clone(), domain.slot_by),
        };
        let limit = Arc::new(defaults.complete(limit));
        let matched = Matched::Override(Arc::clone(&domain.name));
        if let Some(settled) = asked.settled(&matched, &[Arc::clone(&limit)]) {
            return self.settle_by_operator(domain, asked, &[], settled);
        }
        self.charge((domain, slot_by), asked, &[], &limit, asked.directive(1));
        self.items.push(Item::Charged(matched, 1, asked.directive(1).cloned()));
    }

    fn add(
        &mut self,
        domain: &Domain,
        asked: &Asked<'_>,
        found: &Found<'_>,
        replaced: &[&Arc<str>],
    ) {
        let name = Arc::clone(&domain.name);
        let (matched, limits, shared) = match found {
            Found::Rule(rule) => {
                (Matched::Rule(name, Arc::clone(rule)), rule.limits(), &rule.shared[..])
            }
            Found::NoLimit => (Matched::NoLimit(name), &[][..], &[][..]),
            Found::Nothing => (Matched::NoRule(name), &[][..], &[][..]),
        };
        if let Some(settled) = asked.settled(&matched, limits) {
            return self.settle_by_operator(domain, asked, shared, settled);
        }
        if limits.is_empty() {
            let is_rule = matches!(matched, Matched::Rule(..));
            let outcome = if is_rule { Outcome::Unlimited } else { Outcome::NoLimit };
            return self.settle_at_once(matched, outcome);
        }
        let directive = asked.directive(limits.len());
        let mut count = 0;
        for limit in limits {
            let is_replaced = limit.name.as_ref().is_some_and(|name| replaced.contains(&name));
            if !is_replaced && (is_quota(limit) || !directive.is_some_and(|set| set.exempts())) {
                let slot_by = domain.slot_of(slice::from_ref(limit));
                self.charge((domain, slot_by), asked, shared, limit, directive);
                count += 1;
            }
        }
        match count {
            0 => self.settle_at_once(matched, Outcome::NoLimit),
            1.. => self.items.push(Item::Charged(matched, count, directive.cloned())),
        }
    }

    /// Adds what an operator lets pass, or has banned.
    fn settle_by_operator(
        &mut self,
        domain: &Domain,
        asked: &Asked<'_>,
        shared: &[Option<Arc<str>>],
        settled: Item,
    ) {
        if let Item::Settled(Status { matched, outcome, directive: Some(directive), .. }) = &settled
            && let Outcome::Over { limit, reset } = outcome
        {
            let counter = Counter::shared(&domain.name, &asked.path, shared, Arc::clone(limit));
            let charge = Charge::new(counter, Hits::Charge(1));
            let tally = Tally::new(Fit::Over, *reset);
            self.banned.push((matched.clone(), Arc::clone(directive), charge, tally));
        }
        self.items.push(settled);
    }

    fn charge(
        &mut self,
        (domain, slot_by): (&Domain, SlotBy),
        asked: &Asked<'_>,
        shared: &[Option<Arc<str>>],
        limit: &Arc<Limit>,
        directive: Option<&Arc<Directive>>,
    ) {
        let is_quota = is_quota(limit);
        let is_exempt = directive.is_some_and(|directive| directive.exempts());
        let is_shadow = directive.is_some_and(|set| set.action == DirectiveAction::Shadow);
        let changed = directive.map(|directive| Arc::new(directive.action.limit(limit)));
        let (entries, limit) = (&asked.path, asked.unheld(changed.as_ref().unwrap_or(limit)));
        let caller = caller(entries, &limit.algorithm);
        let ban = limit.ban_ms.map(|for_ms| HoldAction::Ban { for_ms });
        let policy = limit.hold.clone();
        let carries_over = limit.algorithm.carries_over();
        let counter = Counter::shared(&domain.name, entries, shared, limit);
        let mut charge = Charge {
            counter: counter.with_slot_by(slot_by),
            hits: if is_exempt { Hits::Check } else { asked.descriptor.hits },
            caller,
            hold: None,
            quota_group: 0,
            draws_first: is_quota && domain.draws_first,
            has_room: is_quota && (is_exempt || is_shadow),
            only_if_fits: carries_over && !asked.is_debit(),
            is_part: asked.meaning == HitsMeaning::Part,
            keeps_order: false,
        };
        if let Some(policy) = policy {
            asked.hold(&policy, &mut charge);
        } else if !charge.hits.asks_nothing() {
            charge.hold = ban;
        }
        if is_quota && !domain.quota_group.is_empty() {
            charge.quota_group = self.group(&domain.quota_group, entries);
        }
        self.charges.push(charge);
    }

    /// The number of the group of a quota on this path; 0 if it has no entry with one of these keys.
    fn group(&mut self, keys: &[String], path: &[Entry]) -> usize {
        let of_key = |key: &String| path.iter().find(|entry| *entry.key == *key.as_bytes());
        let group: Vec<Entry> = keys.iter().filter_map(of_key).cloned().collect();
        if group.is_empty() {
            return 0;
        }
        let known = self.groups.iter().position(|known| *known == group);
        known.unwrap_or_else(|| {
            self.groups.push(group);
            self.groups.len() - 1
        }) + 1
    }

    fn settle_at_once(&mut self, matched: Matched, outcome: Outcome) {
        self.items.push(Item::settled(matched, outcome, None));
    }

    /// The number of charges of each descriptor, in their order.
    pub fn charges_of_each(&self) -> Vec<usize> {
        self.items.iter().map(Item::charges).collect()
    }

    /// What an operator has set for each descriptor, in their order.
    pub fn directive_of_each(&self) -> impl Iterator<Item = Option<&Arc<Directive>>> {
        self.items.iter().map(|item| match item {
            Item::Settled(status) => status.directive.as_ref(),
            Item::Charged(_, _, directive) => directive.as_ref(),
        })
    }

    /// The label of the rule that the charge with this index is for, from the configuration.
    pub fn label(&self, charge: usize) -> String {
        let mut end = 0;
        let charged = self.items.iter().find(|item| {
            end += item.charges();
            charge < end
        });
        match charged {
            Some(Item::Charged(Matched::Rule(_, rule), ..)) => rule.path.to_string(),
            _ => "override".to_owned(),
        }
    }

    /// The charges, each with what its descriptor matched, and with what an operator has set for it.
    pub fn matched_charges(
        &self,
    ) -> impl Iterator<Item = (&Matched, Option<&Arc<Directive>>, &Charge)> {
        let matched = self.items.iter().flat_map(|item| match item {
            Item::Charged(matched, count, directive) => {
                iter::repeat_n((matched, directive.as_ref()), *count)
            }
            Item::Settled(status) => iter::repeat_n((&status.matched, None), 0),
        });
        matched
            .zip(&self.charges)
            .map(|((matched, directive), charge)| (matched, directive, charge))
    }

    /// The charges with the store's answers, and behind them those that a ban answers: over, until it ends.
    pub fn judged<'plan>(
        &'plan self,
        verdict: &'plan Verdict,
    ) -> impl Iterator<Item = JudgedCharge<'plan>> {
        let charged = self.matched_charges().zip(&verdict.tallies);
        let charged = charged.map(|((matched, directive, charge), tally)| JudgedCharge {
            matched,
            directive,
            charge,
            tally,
        });
        let banned = self.banned.iter().map(|(matched, ban, charge, tally)| JudgedCharge {
            matched,
            directive: Some(ban),
            charge,
            tally,
        });
        charged.chain(banned)
    }

    /// The decision, from the store's verdict, which has one tally for each charge, in their order.
    pub fn settle(mut self, mut verdict: Verdict) -> Decision {
        // Nothing is charged for them.
        for skipped in self.skipped(&verdict) {
            let tally = verdict.tallies.get_mut(skipped);
            tally.into_iter().for_each(|tally| tally.judged_by = JudgedBy::Absent);
        }
        let Verdict { tallies, denied, .. } = &verdict;
        debug_assert_eq!(tallies.len(), self.charges.len(), "a store answers every charge");
        let own = self.charges.len() - self.commits;
        // Most calls have none.
        let has_holds = self.charges.iter().any(Charge::has_hold);
        let (mut committed, mut taken_by_id) = (Vec::new(), Vec::new());
        if has_holds {
            let judged = self.charges.iter().zip(tallies);
            let commits = judged.clone().skip(own).chain(judged.take(own));
            committed.extend(commits.filter_map(Committed::new));
            taken_by_id = self.taken_by_id(&verdict);
        }
        let taken = if *denied || !has_holds { None } else { self.taken(&verdict) };
        let is_quota_without_limit =
            self.mode_override == ModeOverride::Quota && self.items.iter().any(Item::has_no_limit);
        let is_refused = self.is_refused();
        let at = verdict.at.first().copied();
        let full = self.full_groups(&verdict);
        let denies = self.mode_override != ModeOverride::Shadow;
        let passed_groups = (denies && !self.groups.is_empty()).then(|| {
            let groups = self.groups.iter().enumerate();
            let passed = groups.filter(|(group, _)| !full.contains(&(group + 1)));
            passed.map(|(_, group)| group.clone()).collect()
        });
        let is_denied = verdict.denied || is_refused;
        let request_headers = if is_denied { Vec::new() } else { self.tier_headers(&verdict) };
        self.charges.truncate(own);
        let mut judged = self.charges.into_iter().zip(verdict.tallies);
        let mut statuses = Vec::with_capacity(self.items.len());
        for item in self.items {
            match item {
                Item::Settled(status) => statuses.push(status),
                Item::Charged(matched, count, directive) => {
                    let is_exempt = directive.as_ref().is_some_and(|set| set.exempts());
                    let mut is_of_full_group = false;
                    let outcomes = judged.by_ref().take(count).map(|(charge, tally)| {
                        is_of_full_group |= full.contains(&charge.quota_group);
                        outcome(charge, tally)
                    });
                    let outcome = outcomes.reduce(tighter);
                    let outcome = outcome
                        .map(|of_counter| if is_exempt { Outcome::Unlimited } else { of_counter });
                    let status = |outcome| Status { matched, outcome, is_of_full_group, directive };
                    statuses.extend(outcome.map(status));
                }
            }
        }
        let is_over = is_refused || verdict.denied && !is_quota_without_limit;
        let code = if is_over { Code::OverLimit } else { Code::Ok };
        Decision {
            code,
            statuses,
            part: verdict.part,
            taken,
            taken_by_id,
            at,
            token: None,
            commits: committed,
            passed_groups,
            request_headers,
        }
    }

    /// The indices of the quotas in whose place another one of their group is charged.
    pub fn skipped(&self, verdict: &Verdict) -> Vec<usize> {
        if !self.charges.iter().any(|charge| charge.draws_first) {
            return Vec::new();
        }
        ledger::skipped(&self.charges, &verdict.tallies)
    }

    fn tier_headers(&self, verdict: &Verdict) -> Vec<TierHeader> {
        let judged = self.charges.iter().zip(&verdict.tallies);
        headers_of(judged.filter_map(|(charge, tally)| tally.tier(&charge.counter.limit)))
    }

    /// What the call has charged for work under way, with an id of its own.
    fn taken_by_id(&self, verdict: &Verdict) -> Vec<(Arc<Limit>, u64)> {
        let charges = self.charges.iter().zip(&verdict.tallies);
        let charges = charges.filter(|(_, tally)| tally.judged_by == JudgedBy::Counter);
        let taken =
            charges.filter_map(|(charge, tally)| match (charge.hold, charge.hits, tally.fit) {
                (Some(HoldAction::ById { .. }), Hits::Charge(hits), Fit::Fits { .. }) => {
                    Some((Arc::clone(&charge.counter.limit), hits))
                }
                _ => None,
            });
        if verdict.denied { Vec::new() } else { taken.collect() }
    }

    /// The numbers of the groups of which a quota is over, but for those in whose place another one is charged.
    fn full_groups(&self, Verdict { tallies, .. }: &Verdict) -> Vec<usize> {
        if self.groups.is_empty() {
            return Vec::new();
        }
        let charges = self.charges.iter().zip(tallies);
        let over = charges.filter(|(charge, tally)| {
            let is_passed = charge.draws_first && tally.judged_by == JudgedBy::Absent;
            let is_over = charge.quota_group > 0 && !charge.has_room && tally.fit == Fit::Over;
            is_over && !is_passed
        });
        over.map(|(charge, _)| charge.quota_group).collect()
    }

    /// What the call has charged for work under way. The counters are moved out of its charges.
    fn taken(&mut self, verdict: &Verdict) -> Option<TakenHold> {
        let mut charges: Vec<HeldCharge> = Vec::new();
        for (index, (charge, tally)) in self.charges.iter_mut().zip(&verdict.tallies).enumerate() {
            if let Hits::Charge(hits) = charge.hits
                && is_by_token(charge)
                && matches!(tally.fit, Fit::Fits { .. })
                && tally.judged_by == JudgedBy::Counter
                && let Some(made) = verdict.at.get(index).or(verdict.at.first())
            {
                let counter = &mut charge.counter;
                match charges.iter_mut().find(|known| known.counter.same_counter(counter)) {
                    // A commit ends a hold once on each counter.
                    Some(known) => known.hits = known.hits.saturating_add(hits).min(Hits::MAX),
                    None => charges.push(HeldCharge { counter: counter.take(), hits, made: *made }),
                }
            }
        }
        (!charges.is_empty()).then_some(TakenHold { id: self.hold_id, charges })
    }
}

/// A descriptor, its parameters apart from its path.
struct Asked<'call> {
    descriptor: &'call Descriptor,
    path: Cow<'call, [Entry]>,
    parameters: Option<Parameters<'call>>,
    meaning: HitsMeaning,
    /// Whether its token names a hold, which it commits.
    is_commit: bool,
    /// What an operator has set for it, and for how long still.
    directive: Option<(&'call Arc<Directive>, Duration)>,
}

impl<'call> Asked<'call> {
    fn new(domain: &Domain, descriptor: &'call Descriptor, meaning: HitsMeaning) -> Self {
        let parameters = Parameters::of(&descriptor.entries);
        let path = match parameters {
            None if domain.class_keys.is_empty() => Cow::Borrowed(&descriptor.entries[..]),
            _ => domain.path(&descriptor.entries),
        };
        Self { descriptor, path, parameters, meaning, is_commit: false, directive: None }
    }

    /// What an operator has set for it, if that applies to this number of limits.
    fn directive(&self, limits: usize) -> Option<&'call Arc<Directive>> {
        let (directive, _) = self.directive?;
        directive.applies_to(limits).then_some(directive)
    }

    /// Its status if an operator lets it pass, or has banned it: then a limit of 0 applies until that ends.
    fn settled(&self, matched: &Matched, limits: &[Arc<Limit>]) -> Option<Item> {
        let (directive, reset) = self.directive?;
        let outcome = match directive.action {
            // An exempt quota still has its place among the others.
            DirectiveAction::Allow if !limits.iter().any(is_quota) => Outcome::Unlimited,
            DirectiveAction::Ban => {
                let own = limits.first().map(|limit| Limit::clone(limit));
                let limit = own.or_else(|| Limit::new(0, Unit::Second, 1))?;
                let limit = Limit { requests_per_unit: 0, mode: Mode::Enforced, ..limit };
                Outcome::Over { limit: Arc::new(limit), reset }
            }
            _ => return None,
        };
        Some(Item::settled(matched.clone(), outcome, Some(Arc::clone(directive))))
    }

    /// Whether it states what was used of a hold without a token, and so commits it.
    fn ends_hold(&self, found: &Found<'_>) -> bool {
        let Found::Rule(rule) = found else { return false };
        let mut policies = rule.limits().iter().filter_map(|limit| limit.hold.as_ref());
        policies.any(|policy| match policy.by {
            HoldBy::Counter => {
                self.descriptor.states_hits && matches!(self.descriptor.hits, Hits::Charge(_))
            }
            HoldBy::Id => {
                let id = self.parameters.and_then(Parameters::id);
                id.is_some() && self.states_end(policy)
            }
            HoldBy::Token => false,
        })
    }

    /// Whether its hits may be work that is done: Envoy does not say so, but sends a number with them.
    fn is_debit(&self) -> bool {
        match (self.meaning, self.descriptor.hits) {
            (HitsMeaning::Done, _) => true,
            (HitsMeaning::Charged, hits) => self.descriptor.states_hits || hits != Hits::Charge(1),
            _ => false,
        }
    }

    /// The value of its first entry with this key.
    fn value(&self, key: &str) -> Option<&'call [u8]> {
        let entries = &self.descriptor.entries;
        entries.iter().find(|entry| *entry.key == *key.as_bytes()).map(|entry| &*entry.value)
    }

    /// The limit as it applies to the class of the call, and to hits that are not held. Work that is done counts whether it
    /// fits or not, but a log keeps no more than its limit, and places are only for calls in flight, so that these limits
    /// stay as they are. A part counts only if it fits; limits that count open holds stay as they are, since they have no
    /// parts.
    fn unheld(&self, limit: &Arc<Limit>) -> Arc<Limit> {
        let is_whole = self.meaning == HitsMeaning::Read
            && limit.priority.as_ref().is_some_and(|set| self.value(&set.entry).is_none());
        let limit =
            if is_whole { Arc::clone(limit) } else { limit.for_call(|key| self.value(key)) };
        let is_log = matches!(limit.algorithm, Algorithm::SlidingLog { .. });
        let when_denied = match self.meaning {
            HitsMeaning::Done if !is_log && !limit.counts_calls() => WhenDenied::Counted,
            HitsMeaning::Part if !limit.counts_calls() => WhenDenied::Free,
            _ => return limit,
        };
        let by_counter = |policy: &Arc<HoldPolicy>| policy.by == HoldBy::Counter;
        let hold = limit.hold.clone().filter(by_counter);
        Arc::new(Limit { when_denied, hold, ..Limit::clone(&limit) })
    }

    /// Makes a charge hold hits, by the policy of its limit.
    fn hold(&self, policy: &HoldPolicy, charge: &mut Charge) {
        let (hits, lifetime_ms) = (self.descriptor.hits, policy.lifetime_ms);
        let (asked, id) = match self.parameters {
            Some(parameters) => (parameters.estimate(&policy.weights), parameters.id()),
            None => (None, None),
        };
        let own = if let Hits::Charge(hits) = hits { hits } else { 1 };
        let is_estimate = self.meaning == HitsMeaning::Expected
            && policy.by == HoldBy::Token
            && self.descriptor.states_hits
            && policy.weights.is_empty();
        let asked = asked.or(is_estimate.then_some(own));
        let estimate = policy.estimate(asked, own, charge.counter.limit.capacity()).max(1);
        let abandoned = policy.abandoned;
        let occupies = charge.counter.limit.counts_calls();
        let occupy = occupies.then_some(HoldAction::Occupy { id: HoldId::default(), lifetime_ms });
        let holds_nothing = self.meaning != HitsMeaning::Charged
            && self.meaning != HitsMeaning::Expected
            || hits.asks_nothing();
        (charge.hits, charge.hold) = match (policy.by, hits, id) {
            // Places are only for calls in flight.
            (_, Hits::Charge(_), _) if holds_nothing && occupies => (Hits::Check, None),
            (HoldBy::Counter, _, _) if holds_nothing && !occupies => {
                (hits, Some(HoldAction::Beside { abandoned }))
            }
            _ if holds_nothing => (hits, None),
            (_, Hits::Refund(_), _)
            | (HoldBy::Token, Hits::Check, _)
            | (HoldBy::Id, Hits::Check, None) => (hits, None),
            (HoldBy::Token, _, _) => (Hits::Charge(estimate), occupy),
            (HoldBy::Id, _, Some(id)) => {
                let hold = HoldAction::ById {
                    id: HoldId::from_caller(id),
                    used: self.used_by_id(policy),
                    is_end: self.states_end(policy),
                    lifetime_ms,
                };
                (Hits::Charge(estimate), Some(hold))
            }
            (HoldBy::Id, _, None) => (hits, occupy),
            (HoldBy::Counter, Hits::Charge(_), _) if self.descriptor.states_hits => {
                (hits, Some(HoldAction::EndOldest { abandoned }))
            }
            (HoldBy::Counter, _, _) if occupies => (Hits::Charge(estimate), occupy),
            (HoldBy::Counter, _, _) => (
                hits,
                Some(HoldAction::Open { id: HoldId::default(), estimate, lifetime_ms, abandoned }),
            ),
        };
    }

    /// Whether it states what was used, or how the work has ended.
    fn states_end(&self, policy: &HoldPolicy) -> bool {
        self.parameters.is_some_and(|parameters| {
            parameters.used(&policy.weights).is_some() || parameters.end().is_some()
        })
    }

    /// The true number that this call would have as a commit: its parameter, or its hits.
    fn used_by_id(&self, policy: &HoldPolicy) -> Option<u64> {
        let parameters = self.parameters?;
        let hits = match self.descriptor.hits {
            Hits::Charge(hits) if self.descriptor.states_hits => Some(hits),
            _ => None,
        };
        let is_unused = || parameters.ended_in(policy).then_some(0);
        parameters.used(&policy.weights).or(hits).or_else(is_unused)
    }
}

/// Whether a limit is a quota, or a shadow of one by the settings.
fn is_quota(limit: &Arc<Limit>) -> bool {
    limit.mode == Mode::Quota || limit.mode_written == Mode::Quota
}

/// Whether a token names this charge.
fn is_by_token(charge: &Charge) -> bool {
    charge.counter.limit.hold.as_ref().is_some_and(|policy| policy.by == HoldBy::Token)
        && !matches!(charge.hold, Some(HoldAction::Commit { .. }))
}

impl Committed {
    fn new((charge, tally): (&Charge, &Tally)) -> Option<Self> {
        let (held, used) = match charge.hold? {
            HoldAction::Commit { held, used, deadline, .. } => (Some((held, deadline)), Some(used)),
            HoldAction::ById { used, .. } => (None, used),
            HoldAction::EndOldest { .. } => {
                let Hits::Charge(hits) = charge.hits else { return None };
                (None, Some(hits))
            }
            HoldAction::Open { .. }
            | HoldAction::Beside { .. }
            | HoldAction::Occupy { .. }
            | HoldAction::Ban { .. } => return None,
        };
        let outcome = match (tally.fit, charge.hold?) {
            (Fit::Commit(outcome), _) => Some(outcome),
            (_, HoldAction::EndOldest { .. }) => Some(CommitOutcome::Applied),
            // A take.
            (_, HoldAction::ById { .. }) => return None,
            _ => None,
        };
        Some(Self { limit: Arc::clone(&charge.counter.limit), outcome, held, used })
    }
}

impl Item {
    const fn settled(
        matched: Matched,
        outcome: Outcome,
        directive: Option<Arc<Directive>>,
    ) -> Self {
        Self::Settled(Status { matched, outcome, is_of_full_group: false, directive })
    }

    fn charges(&self) -> usize {
        match self {
            Self::Charged(_, count, _) => *count,
            Self::Settled(_) => 0,
        }
    }

    fn is_exempt(&self) -> bool {
        matches!(self, Self::Charged(_, _, Some(directive)) if directive.exempts())
    }

    fn has_no_limit(&self) -> bool {
        matches!(self, Self::Settled(Status { outcome: Outcome::NoLimit, .. }))
    }
}

/// The caller to store with the hits, if the algorithm remembers callers.
fn caller(entries: &[Entry], algorithm: &Algorithm) -> Option<Box<str>> {
    let (Algorithm::SlidingLog { remember: Some(name) }
    | Algorithm::InFlight { remember: Some(name) }) = algorithm
    else {
        return None;
    };
    let entry = entries.iter().find(|entry| *entry.key == *name.as_bytes())?;
    Some(key::caller(&entry.value))
}

fn outcome(charge: Charge, Tally { fit, reset, .. }: Tally) -> Outcome {
    let limit = charge.counter.limit;
    match fit {
        // A limit that is a shadow by the settings alone still has the status OVER_LIMIT.
        Fit::Over if limit.mode_written == Mode::Shadow => Outcome::Shadowed { limit, reset },
        Fit::Fits { remaining } => Outcome::Within { limit, remaining, reset },
        Fit::Over => Outcome::Over { limit, reset },
        Fit::Commit(_) => Outcome::NoLimit,
    }
}

/// Which of two limits on a descriptor is reported: the one with fewer remaining hits, and of two that are over the
/// one with the longer reset.
fn tighter(one: Outcome, other: Outcome) -> Outcome {
    let other_is_tighter = match (&one, &other) {
        (Outcome::Over { reset: one, .. }, Outcome::Over { reset: other, .. }) => other > one,
        (Outcome::Within { remaining: one, .. }, Outcome::Within { remaining: other, .. }) => {
            other < one
        }
        (Outcome::Over { .. }, _) => false,
        (_, other) => matches!(other, Outcome::Over { .. } | Outcome::Shadowed { .. }),
    };
    if other_is_tighter { other } else { one }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        request::Hits,
        rule::{Policy, Rule, Unit},
        time::Timestamp,
    };

    fn rules() -> RuleSet {
        let mut rules = RuleSet::default();
        let domain = rules.domain_mut("shop");
        let (minute, day) = (limit(5, Unit::Minute), limit(20, Unit::Day));
        for (key, policy) in [
            ("user", Policy::Limited(vec![Arc::clone(&minute)])),
            ("both", Policy::Limited(vec![minute, day])),
            ("free", Policy::Unlimited),
        ] {
            let rule = Rule::new("p", "f:1".into(), policy);
            domain.insert(&[(key, None)], Some(Arc::new(rule)));
        }
        rules
    }

    fn limit(requests: u64, unit: Unit) -> Arc<Limit> {
        Arc::new(Limit::new(requests, unit, 1).unwrap())
    }

    fn request(domain: &str, keys: &[&'static str]) -> Request {
        let mut descriptors = Vec::new();
        for key in keys.iter().copied() {
            let entries = vec![Entry { key: key.into(), value: "x".into() }];
            descriptors.push(Descriptor {
                entries,
                hits: Hits::Charge(1),
                states_hits: false,
                limit: None,
            });
        }
        Request { domain: domain.into(), descriptors }
    }

    fn verdict(denied: bool, tallies: Vec<Tally>) -> Verdict {
        Verdict { denied, tallies, ..Verdict::default() }
    }

    fn over(seconds: u64) -> Tally {
        Tally::new(Fit::Over, Duration::from_secs(seconds))
    }

    fn fits(remaining: u64, seconds: u64) -> Tally {
        Tally::new(Fit::Fits { remaining }, Duration::from_secs(seconds))
    }

    #[test]
    fn only_descriptors_with_a_limit_are_charged() {
        let plan = Plan::draw(&rules(), &request("shop", &["free", "user", "other"]));
        let start = Timestamp::from_secs(60);
        let keys: Vec<_> = plan.charges.iter().map(|charge| charge.counter.key(start)).collect();
        assert_eq!(keys, ["tk1:fw:60s:{shop|user=x}:60"]);
        assert!(Plan::draw(&rules(), &request("unknown", &["user"])).charges.is_empty());
    }

    #[test]
    fn a_limit_of_a_request_is_bounded_in_the_windows_of_the_rule_that_it_replaces() {
        let bounding = Limit { override_max: Some(60), ..(*limit(5, Unit::Minute)).clone() };
        let mut rules = RuleSet::default();
        let policy = Policy::Limited(vec![Arc::new(bounding)]);
        let rule = Rule::new("p", "f:1".into(), policy);
        rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
        for (sent, unit, expected) in [
            (60, Unit::Minute, "60 per minute"),
            (61, Unit::Minute, "60 per minute"),
            (1, Unit::Second, "1 per second"),
            (2, Unit::Second, "60 per minute"),
            (60, Unit::Hour, "60 per hour"),
            (61, Unit::Hour, "60 per minute"),
            (0, Unit::Day, "0 per day"),
        ] {
            let mut request = request("shop", &["user"]);
            request.descriptors[0].limit = Limit::new(sent, unit, 1);
            let plan = Plan::draw(&rules, &request);
            let found = plan.charges[0].counter.limit.to_string();
            assert_eq!(found, expected, "{sent} per {unit:?}");
        }
    }

    #[test]
    fn slot_by_domain_applies_to_rules_and_to_limits_of_requests() {
        let mut rules = rules();
        rules.domain_mut("shop").slot_by = SlotBy::Domain;
        let mut request = request("shop", &["user", "other"]);
        request.descriptors[1].limit = Limit::new(5, Unit::Minute, 1);
        let plan = Plan::draw(&rules, &request);
        let keys = plan.charges.iter().map(|charge| charge.counter.key(Timestamp::from_secs(60)));
        let keys: Vec<_> = keys.collect();
        assert_eq!(keys, ["tk1:fw:60s:{shop}|user=x:60", "tk1:fw:60s:{shop}|other=x:60"]);
    }

    #[test]
    fn each_tally_goes_to_its_descriptor_and_one_over_denies_the_call() {
        let plan = Plan::draw(&rules(), &request("shop", &["user", "free", "user", "other"]));
        let reset = Duration::from_secs(7);
        let decision = plan.settle(verdict(true, vec![over(7), fits(3, 7)]));
        let limit = limit(5, Unit::Minute);
        let outcomes: Vec<_> = decision.statuses.into_iter().map(|status| status.outcome).collect();
        let within = Outcome::Within { limit: Arc::clone(&limit), remaining: 3, reset };
        let expected =
            [Outcome::Over { limit, reset }, Outcome::Unlimited, within, Outcome::NoLimit];
        assert_eq!(decision.code, Code::OverLimit);
        assert_eq!(outcomes, expected);
    }

    #[test]
    fn of_several_limits_the_tightest_is_reported() {
        for (tallies, reported) in [
            ([fits(3, 7), fits(2, 70)], 70),
            ([fits(3, 7), fits(3, 70)], 7),
            ([fits(0, 7), over(70)], 70),
            ([over(7), fits(0, 70)], 7),
            ([over(7), over(70)], 70),
        ] {
            let plan = Plan::draw(&rules(), &request("shop", &["both"]));
            let decision = plan.settle(verdict(false, tallies.to_vec()));
            let [Status { outcome, .. }] = &decision.statuses[..] else {
                panic!("one descriptor has one status: {decision:?}");
            };
            let (Outcome::Within { reset, .. } | Outcome::Over { reset, .. }) = outcome else {
                panic!("{outcome:?}");
            };
            assert_eq!(reset.as_secs(), reported, "{tallies:?}");
        }
    }
}
