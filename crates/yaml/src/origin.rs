//! Where rules are written: in a text, whose locations are lines and columns, or in a resource of a control plane,
//! whose locations are its descriptors.

use tollkeeper_engine::text::printable::printable;

use super::{Problem, tree::Location};

/// A step of a rule's path: a key, and a value if one is written.
pub type PathStep = (String, Option<String>);

#[derive(Debug)]
pub struct Origin {
    /// The name of the file or of the resource; no control characters.
    pub name: String,
    kind: OriginKind,
}

#[derive(Debug)]
enum OriginKind {
    Text,
    /// The descriptors: the line of a location is a number from 1 in this list, and 0 is the resource itself.
    Resource(Vec<DescriptorStep>),
}

#[derive(Debug)]
pub struct DescriptorStep {
    /// The location of the descriptor around it; 0 at the top.
    pub parent: usize,
    pub step: PathStep,
}

impl Origin {
    pub fn text(name: &str) -> Self {
        Self { name: name.to_owned(), kind: OriginKind::Text }
    }

    /// A resource with this name and these descriptors, parents first.
    pub fn resource(name: &str, descriptors: Vec<DescriptorStep>) -> Self {
        Self { name: printable(name.as_bytes()), kind: OriginKind::Resource(descriptors) }
    }

    pub fn problem(&self, location: Location, message: impl Into<String>) -> Problem {
        match &self.kind {
            OriginKind::Text => Problem::at(&self.name, location, message),
            OriginKind::Resource(descriptors) => {
                let path = printable(spell_path(descriptors, location.0).as_bytes());
                let separator = if path.is_empty() { "" } else { ": " };
                let file = format!("{}{separator}{path}", self.name);
                Problem { file, location: None, message: message.into() }
            }
        }
    }

    /// The location for messages: `file:line`, or the name of the resource.
    pub fn location(&self, location: Location) -> String {
        match self.kind {
            OriginKind::Text => format!("{}:{}", self.name, location.0),
            OriginKind::Resource(_) => self.name.clone(),
        }
    }

    /// The same for a message about another location of this origin.
    pub fn location_within(&self, location: Location) -> String {
        match self.kind {
            OriginKind::Text => format!("in line {}", location.0),
            OriginKind::Resource(_) => "beside it".to_owned(),
        }
    }
}

/// The path to a descriptor, as rules are shown: `path=/login|user`.
fn spell_path(descriptors: &[DescriptorStep], mut location: usize) -> String {
    let mut steps = Vec::new();
    while let Some(descriptor) = location.checked_sub(1).and_then(|index| descriptors.get(index)) {
        steps.push(spell_step(&descriptor.step));
        // Parents come first, so this ends.
        location = descriptor.parent.min(location - 1);
    }
    steps.reverse();
    steps.join("|")
}

pub fn spell_step((key, value): &PathStep) -> String {
    match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    }
}
