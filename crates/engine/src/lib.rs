//! The decision of a rate limit, as pure functions: no I/O, no clock, no wire types.
//!
//! By the rules of a [`RuleSet`](rule_set::RuleSet), a [`Request`](request::Request) becomes a
//! [`Plan`](plan::Plan) of charges. A store answers with tallies, which [`judge`](ledger::judge) finds for accounts in
//! memory, and the plan settles into a [`Decision`](decision::Decision). Time is an argument: a store's
//! [`Timestamp`](time::Timestamp).
//!
//! What it leaves to others: where the accounts are kept, and that a call changes them in one step (the stores); how
//! rules are written (YAML, a control plane), and how calls arrive (gRPC, HTTP).
//!
//! Two hits a minute for each user, with the accounts in a map by the keys of their counters:
//!
//! ```
//! use std::{collections::HashMap, sync::Arc};
//!
//! use tollkeeper_engine::{
//!     decision::Code,
//!     ledger::{Posting, judge},
//!     plan::Plan,
//!     request::{Descriptor, Entry, Hits, Request},
//!     rule::{Defaults, Limit, Policy, Rule, Unit},
//!     rule_set::RuleSet,
//!     time::Timestamp,
//! };
//!
//! let limit = Arc::new(Limit::new(2, Unit::Minute, 1).expect("a minute is a window"));
//! let rule = Rule::new("user", "rules.yaml:4".to_owned(), Policy::Limited(vec![limit]));
//! let mut rules = RuleSet::new(Defaults::default());
//! rules.domain_mut("shop").insert(&[("user", None)], Some(Arc::new(rule)));
//!
//! let mut accounts = HashMap::new();
//! let mut decide = |user: &'static str, now: Timestamp| {
//!     let entries = vec![Entry { key: "user".into(), value: user.into() }];
//!     let call = Descriptor::new(entries, Hits::Charge(1));
//!     let request = Request { domain: "shop".to_owned(), descriptors: vec![call] };
//!     let plan = Plan::draw(&rules, &request);
//!     let (charge, terms) = (&plan.charges[0], plan.charges[0].terms(now));
//!     let account = accounts.entry(charge.counter.key(terms.span.start));
//!     let account = account.or_insert_with(|| charge.counter.limit.algorithm.new_account());
//!     let hits = charge.hits;
//!     let posting = Posting { account: Some(0), hold: None, reset: None, charge, hits, terms };
//!     let verdict = judge(&[posting], std::slice::from_mut(account)).expect("it has an account");
//!     plan.settle(verdict).code
//! };
//! let (now, later) = (Timestamp::from_secs(1_795_215_600), Timestamp::from_secs(1_795_215_660));
//! let codes = [("bob", now), ("bob", now), ("bob", now), ("ann", now), ("bob", later)]
//!     .map(|(user, at)| decide(user, at));
//! assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit, Code::Ok, Code::Ok]);
//! ```

#![warn(missing_docs)]
pub mod algorithm;
pub mod calendar;
pub mod decision;
pub mod descriptor_syntax;
pub mod directive;
pub mod hold;
pub mod hold_id;
pub mod key;
pub mod ledger;
pub mod parameters;
pub mod pattern;
pub mod plan;
pub mod request;
pub mod rule;
pub mod rule_set;
pub mod text;
pub mod time;
pub mod window;
