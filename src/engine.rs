//! The decision, as pure functions: no I/O, no clock, no wire types.
//!
//! By the rules of a [`RuleSet`](rule_set::RuleSet), a [`Request`](request::Request) becomes a
//! [`Plan`](plan::Plan) of charges. A store answers with tallies, and the plan settles into a
//! [`Decision`](decision::Decision).

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
pub mod time;
pub mod window;
