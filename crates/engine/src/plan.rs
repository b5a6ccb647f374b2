//! From a request to charges, and from tallies to a decision (`settle`). What one descriptor asks for is in
//! `descriptor_in_call`.

mod descriptor_in_call;
mod item;
mod settle;

use std::{iter, mem, slice, sync::Arc};

use self::{
    descriptor_in_call::{DescriptorInCall, is_quota},
    item::Item,
};
use crate::{
    decision::{Matched, Outcome, Status},
    directive::{Directive, DirectiveAction, Directives},
    hold::HoldBy,
    hold_id::HoldId,
    key::{self, Counter, SlotBy},
    ledger::{self, Charge, Few, Fit, HoldAction, JudgedBy, TakenHold, Tally, Verdict},
    parameters::Parameters,
    request::{Entry, Hits, HitsMeaning, Request},
    rule::{Algorithm, CountedBy, Defaults, Limit, ModeOverride},
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
    /// Whether the decision has the outcome of each limit of a descriptor, not only of the tightest.
    pub lists_limits: bool,
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
            lists_limits: false,
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
        for (index, sent) in request.descriptors.iter().enumerate() {
            let mut descriptor = DescriptorInCall::new(domain, sent, meaning);
            descriptor.is_commit = plan.is_commit(index);
            let found = match sent.limit {
                Some(_) => Found::NoLimit,
                // Its rule may have gone.
                None if descriptor.is_commit => Found::NoLimit,
                None => domain.find(&descriptor.path),
            };
            if let Some(directives) =
                directives.filter(|_| !descriptor.is_commit && !descriptor.ends_hold(&found))
            {
                let set = directives.find(&domain.name, &descriptor.path);
                descriptor.directive = set.map(|set| (set, directives.remaining(set)));
            }
            found_by_each.push((descriptor, found));
        }
        let replaced = found_by_each.iter().flat_map(|(_, found)| found.replaces());
        let replaced: Vec<&Arc<str>> = replaced.collect();
        for (descriptor, found) in &found_by_each {
            match &descriptor.sent.limit {
                Some(limit) => plan.add_override(domain, descriptor, limit, rules.defaults),
                None => plan.add(domain, descriptor, found, &replaced),
            }
        }
        let mut others =
            found_by_each.iter().filter(|(descriptor, _)| !descriptor.is_commit).peekable();
        if others.peek().is_some()
            && !others.any(|(descriptor, _)| domain.requirement.is_met(&descriptor.sent.entries))
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

    /// The label of the first rule of which no hits can be leased: its limit does not lease, or another descriptor charges the
    /// same counter, so that a commit of what calls have used would not say how much that is.
    pub fn not_leased(&self) -> Option<String> {
        let (own, _) = self.charges.split_at(self.charges.len() - self.commits);
        let mut charges = own.iter().zip(ledger::on_same_counter(own));
        let index = charges.position(|(charge, same)| same > 1 || !charge.counter.limit.is_lent());
        index.map(|index| self.label(index))
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
        descriptor: &DescriptorInCall<'_>,
        limit: &Limit,
        defaults: Defaults,
    ) {
        let (mut limits, slot_by, counted_by) = match domain.find(&descriptor.path) {
            Found::Rule(rule) => {
                (rule.bound(limit.clone()), domain.slot_of(rule.limits()), rule.secrets())
            }
            Found::NoLimit | Found::Nothing => (vec![limit.clone()], domain.slot_by, Vec::new()),
        };
        let directive = descriptor.directive(1);
        if directive.is_some_and(|set| matches!(set.action, DirectiveAction::Limit(_))) {
            // The number of an operator is not bound by the rule.
            limits.truncate(1);
        }
        let limits: Vec<_> =
            limits.into_iter().map(|limit| Arc::new(defaults.complete(limit))).collect();
        let matched = Matched::Override(Arc::clone(&domain.name));
        if let Some(settled) = descriptor.settled(&matched, &limits) {
            return self.settle_by_operator(domain, descriptor, &counted_by, settled);
        }
        for limit in &limits {
            self.charge((domain, slot_by), descriptor, &counted_by, limit, directive);
        }
        self.items.push(Item::Charged(matched, limits.len(), directive.cloned()));
    }

    fn add(
        &mut self,
        domain: &Domain,
        descriptor: &DescriptorInCall<'_>,
        found: &Found<'_>,
        replaced: &[&Arc<str>],
    ) {
        let name = Arc::clone(&domain.name);
        let (matched, limits, counted_by) = match found {
            Found::Rule(rule) => {
                (Matched::Rule(name, Arc::clone(rule)), rule.limits(), &rule.counted_by[..])
            }
            Found::NoLimit => (Matched::NoLimit(name), &[][..], &[][..]),
            Found::Nothing => (Matched::NoRule(name), &[][..], &[][..]),
        };
        if let Some(settled) = descriptor.settled(&matched, limits) {
            return self.settle_by_operator(domain, descriptor, counted_by, settled);
        }
        if limits.is_empty() {
            let is_rule = matches!(matched, Matched::Rule(..));
            let outcome = if is_rule { Outcome::Unlimited } else { Outcome::NoLimit };
            return self.settle_at_once(matched, outcome);
        }
        let directive = descriptor.directive(limits.len());
        let mut count = 0;
        for limit in limits {
            let is_replaced = limit.name.as_ref().is_some_and(|name| replaced.contains(&name));
            if !is_replaced && (is_quota(limit) || !directive.is_some_and(|set| set.exempts())) {
                let slot_by = domain.slot_of(slice::from_ref(limit));
                self.charge((domain, slot_by), descriptor, counted_by, limit, directive);
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
        descriptor: &DescriptorInCall<'_>,
        counted_by: &[CountedBy],
        settled: Item,
    ) {
        if let Item::Settled(Status { matched, outcome, directive: Some(directive), .. }) = &settled
            && let Outcome::Over { limit, reset, .. } = outcome
        {
            let counter =
                Counter::counted_by(&domain.name, &descriptor.path, counted_by, Arc::clone(limit));
            let charge = Charge::new(counter, Hits::Charge(1));
            let tally = Tally::new(Fit::Over, *reset);
            self.banned.push((matched.clone(), Arc::clone(directive), charge, tally));
        }
        self.items.push(settled);
    }

    fn charge(
        &mut self,
        (domain, slot_by): (&Domain, SlotBy),
        descriptor: &DescriptorInCall<'_>,
        counted_by: &[CountedBy],
        limit: &Arc<Limit>,
        directive: Option<&Arc<Directive>>,
    ) {
        let is_quota = is_quota(limit);
        let is_exempt = directive.is_some_and(|directive| directive.exempts());
        let is_shadow = directive.is_some_and(|set| set.action == DirectiveAction::Shadow);
        let changed = directive.map(|directive| Arc::new(directive.action.limit(limit)));
        let (entries, limit) =
            (&descriptor.path, descriptor.unheld(changed.as_ref().unwrap_or(limit), counted_by));
        let caller = caller(entries, counted_by, &limit.algorithm);
        let ban = limit.ban_ms.map(|for_ms| HoldAction::Ban { for_ms });
        let policy = limit.hold.clone();
        let carries_over = limit.algorithm.carries_over();
        let counter = Counter::counted_by(&domain.name, entries, counted_by, limit);
        let mut charge = Charge {
            counter: counter.with_slot_by(slot_by),
            hits: if is_exempt { Hits::Check } else { descriptor.sent.hits },
            caller,
            hold: None,
            quota_group: 0,
            draws_first: is_quota && domain.draws_first,
            always_fits: is_quota && (is_exempt || is_shadow),
            only_if_fits: carries_over && !descriptor.is_debit(),
            is_part: false,
            is_reserved: false,
            keeps_order: false,
        };
        if let Some(policy) = policy {
            descriptor.hold(&policy, &mut charge);
        } else if !charge.hits.asks_nothing() {
            charge.hold = ban;
        }
        charge.is_part = descriptor.meaning.is_part() && charge.hits.charged() > 0;
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

    /// The charges of each descriptor, in their order.
    pub fn by_descriptor(&self) -> impl Iterator<Item = &[Charge]> {
        let mut rest = &self.charges[..];
        self.items.iter().map(move |item| {
            let own = rest.split_off(..item.charges().min(rest.len()));
            own.unwrap_or_default()
        })
    }

    /// Drops the charges that are not kept, each judged with the index of its descriptor. A descriptor without any has no
    /// limit then.
    pub fn keep(&mut self, kept: impl Fn(usize, &Charge) -> bool) {
        let mut charges = mem::take(&mut self.charges).into_iter();
        for (index, item) in self.items.iter_mut().enumerate() {
            let before = self.charges.len();
            let own = charges.by_ref().take(item.charges());
            self.charges.extend(own.filter(|charge| kept(index, charge)));
            if let Item::Charged(matched, count, _) = item {
                *count = self.charges.len() - before;
                if *count == 0 {
                    *item = Item::settled(matched.clone(), Outcome::NoLimit, None);
                }
            }
        }
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
            Some(Item::Charged(matched, ..)) => matched.rule_label().to_owned(),
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
}

/// Whether a token names this charge.
fn is_by_token(charge: &Charge) -> bool {
    charge.counter.limit.hold.as_ref().is_some_and(|policy| policy.by == HoldBy::Token)
        && !matches!(charge.hold, Some(HoldAction::Commit { .. }))
}

/// The caller to store with the hits, if the algorithm remembers callers.
fn caller(entries: &[Entry], counted_by: &[CountedBy], algorithm: &Algorithm) -> Option<Box<str>> {
    let (Algorithm::SlidingLog { remember: Some(name) }
    | Algorithm::InFlight { remember: Some(name) }) = algorithm
    else {
        return None;
    };
    let place = entries.iter().position(|entry| *entry.key == *name.as_bytes())?;
    let value = &entries.get(place)?.value;
    Some(match counted_by.get(place) {
        Some(CountedBy::Digest) => key::secret_caller(value),
        _ => key::caller(value),
    })
}

#[cfg(test)]
mod tests;
