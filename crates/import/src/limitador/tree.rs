//! Limits as a tree of descriptors. The first match of each entry is final there, so below an exact value there are
//! also the limits that apply to any value.

use std::collections::{HashMap, HashSet};

use tollkeeper_rules::LIMITS_MAX;

use super::limit::{EntryLimit, EntryValue};

/// Most limits of all descriptors together: a limit for any value is repeated at each value that others name.
pub(super) const REPEATED_LIMITS_MAX: usize = 40_000;

#[derive(Debug)]
pub(super) struct DescriptorNode<'limits> {
    pub(super) key: &'limits str,
    pub(super) value: NodeValue<'limits>,
    /// The limits of requests whose descriptor ends here.
    pub(super) limits: Vec<&'limits EntryLimit>,
    pub(super) below: Vec<DescriptorNode<'limits>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeValue<'limits> {
    Exact(&'limits str),
    /// Any other value, with a counter of its own.
    Each,
    /// All other values, with one counter.
    Together,
}

/// A key of one level, with the limits whose next entry has it.
type LimitsOfKey<'limits> = (&'limits str, Vec<(&'limits EntryLimit, &'limits EntryValue)>);

/// Builds the descriptors of limits that can be side by side. `None` if they are too many.
pub(super) fn build<'limits>(
    limits: &[&'limits EntryLimit],
) -> Option<Vec<DescriptorNode<'limits>>> {
    LimitTree { remaining: REPEATED_LIMITS_MAX }.level(limits, 0)
}

/// The limits that no rule has room for, since each window is a limit of its own there.
pub(super) fn surplus<'limits>(nodes: &[DescriptorNode<'limits>]) -> Vec<&'limits EntryLimit> {
    let mut surplus = Vec::new();
    for node in nodes {
        let mut windows = HashSet::new();
        for limit in &node.limits {
            let window = (limit.unit, limit.unit_multiplier);
            if windows.len() < LIMITS_MAX || windows.contains(&window) {
                windows.insert(window);
            } else {
                surplus.push(*limit);
            }
        }
        surplus.extend(self::surplus(&node.below));
    }
    surplus
}

struct LimitTree {
    /// Number of limits that may still be added.
    remaining: usize,
}

impl LimitTree {
    /// The descriptors for the entry at `index`, of limits that the entries before it match.
    fn level<'limits>(
        &mut self,
        limits: &[&'limits EntryLimit],
        index: usize,
    ) -> Option<Vec<DescriptorNode<'limits>>> {
        let mut nodes = Vec::new();
        for (key, limits) in by_key(limits, index) {
            for (value, limits) in self.by_value(&limits)? {
                let below = self.level(&limits, index + 1)?;
                let ends_here = |limit: &&EntryLimit| limit.entries.len() == index + 1;
                let limits = limits.into_iter().filter(ends_here).collect();
                nodes.push(DescriptorNode { key, value, limits, below });
            }
        }
        Some(nodes)
    }

    /// The values that limits name, each with the limits that it matches, and then any other value.
    fn by_value<'limits>(
        &mut self,
        limits: &[(&'limits EntryLimit, &'limits EntryValue)],
    ) -> Option<Vec<(NodeValue<'limits>, Vec<&'limits EntryLimit>)>> {
        let (mut values, mut seen) = (Vec::new(), HashSet::new());
        let mut exact: HashMap<&str, Vec<&EntryLimit>> = HashMap::new();
        let mut any = Vec::new();
        for (limit, value) in limits {
            values.extend(value.named().into_iter().filter(|named| seen.insert(*named)));
            match value {
                EntryValue::Exact(value) => exact.entry(value).or_default().push(*limit),
                EntryValue::Each(_) | EntryValue::Together(_) => any.push((*limit, *value)),
            }
        }
        let mut found = Vec::new();
        for named in values {
            let mut matched = exact.remove(named).unwrap_or_default();
            self.remaining = self.remaining.checked_sub(matched.len() + any.len() + 1)?;
            let others = any.iter().filter(|(_, value)| !value.excludes(named));
            matched.extend(others.map(|(limit, _)| *limit));
            matched.sort_by_key(|limit| limit.location);
            found.push((NodeValue::Exact(named), matched));
        }
        if !any.is_empty() {
            self.remaining = self.remaining.checked_sub(any.len())?;
            let together = any.iter().any(|(_, value)| matches!(value, EntryValue::Together(_)));
            let value = if together { NodeValue::Together } else { NodeValue::Each };
            found.push((value, any.into_iter().map(|(limit, _)| limit).collect()));
        }
        Some(found)
    }
}

/// The limits that have an entry at `index`, by its key, in the order in which keys are first named.
fn by_key<'limits>(limits: &[&'limits EntryLimit], index: usize) -> Vec<LimitsOfKey<'limits>> {
    let mut keys: Vec<LimitsOfKey<'limits>> = Vec::new();
    let mut indexes: HashMap<&str, usize> = HashMap::new();
    for limit in limits {
        let Some((key, value)) = limit.entries.get(index) else { continue };
        let at = *indexes.entry(key).or_insert(keys.len());
        match keys.get_mut(at) {
            Some((_, of_key)) => of_key.push((limit, value)),
            None => keys.push((key, vec![(limit, value)])),
        }
    }
    keys
}

/// The first entry whose values two limits count differently, one all together and the other not, so that rules cannot
/// express both.
pub(super) fn conflict<'limits>(
    one: &'limits EntryLimit,
    other: &EntryLimit,
) -> Option<&'limits str> {
    for ((key, value), (other_key, other_value)) in one.entries.iter().zip(&other.entries) {
        if key != other_key {
            return None;
        }
        match (value, other_value) {
            (EntryValue::Exact(value), EntryValue::Exact(other)) if value != other => return None,
            (EntryValue::Exact(named), any) | (any, EntryValue::Exact(named))
                if any.excludes(named) =>
            {
                return None;
            }
            (EntryValue::Together(except), EntryValue::Together(other)) if except == other => {}
            (EntryValue::Together(_), _) | (_, EntryValue::Together(_)) => return Some(key),
            (EntryValue::Exact(_) | EntryValue::Each(_), _) => {}
        }
    }
    None
}
