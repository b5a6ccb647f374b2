//! YAML as a tree in which every node knows its place. Scalars keep the text that was written:
//! whether `no` or `1.10` is a word or a number is for the schema to say.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

/// Aliases make small files large; a tree over this many nodes is refused.
const NODES_MAX: usize = 1_000_000;

/// Deeper nesting is refused. Rules nest two levels for each entry of a descriptor.
const DEPTH_MAX: usize = 128;

/// Line and column, both from 1.
pub(super) type Place = (usize, usize);

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    /// The text, and whether it was written without quotes.
    Scalar(String, bool),
    List(Vec<Node>),
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// How deep it nests, itself counted.
    fn depth(&self) -> usize {
        1 + match &self.content {
            Content::Scalar(..) => 0,
            Content::List(items) => items.iter().map(Self::depth).max().unwrap_or(0),
            Content::Map(pairs) => {
                pairs.iter().map(|(k, v)| k.depth().max(v.depth())).max().unwrap_or(0)
            }
        }
    }

    fn nodes(&self) -> usize {
        1 + match &self.content {
            Content::Scalar(..) => 0,
            Content::List(items) => items.iter().map(Self::nodes).sum(),
            Content::Map(pairs) => pairs.iter().map(|(k, v)| k.nodes() + v.nodes()).sum(),
        }
    }
}

/// A collection that is still open.
struct Open {
    node: Node,
    /// The key that waits for its value.
    key: Option<Node>,
    anchor: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    documents: usize,
    root: Option<Node>,
}

/// Parses one document; `None` if there is nothing but comments.
///
/// # Errors
/// The first thing that is not YAML, or that goes over a bound.
pub(super) fn parse(text: &str) -> Result<Option<Node>, (Place, String)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event
            .map_err(|error| (place(error.marker()), format!("not YAML: {}", error.info())))?;
        builder.take(event, span)?;
    }
    Ok(builder.root)
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), (Place, String)> {
        let at = place(&span.start);
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    return Err((at, "one document for each file".to_owned()));
                }
            }
            Event::Scalar(text, style, anchor, _) => {
                let content = Content::Scalar(text.into_owned(), style == ScalarStyle::Plain);
                self.add(Node { place: at, content }, anchor)?;
            }
            Event::Alias(anchor) => {
                let Some(mut node) = self.anchors.get(&anchor).cloned() else {
                    return Err((at, "alias of something that contains it".to_owned()));
                };
                if self.open.len() + node.depth() > DEPTH_MAX {
                    return Err((at, format!("nested deeper than {DEPTH_MAX}, aliases counted")));
                }
                self.nodes += node.nodes();
                node.place = at;
                self.add(node, 0)?;
            }
            Event::SequenceStart(anchor, _) => self.begin(at, Content::List(vec![]), anchor)?,
            Event::MappingStart(anchor, _) => self.begin(at, Content::Map(vec![]), anchor)?,
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(Open { node, anchor, .. }) = self.open.pop() {
                    self.add(node, anchor)?;
                }
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn begin(
        &mut self,
        place: Place,
        content: Content,
        anchor: usize,
    ) -> Result<(), (Place, String)> {
        if self.open.len() == DEPTH_MAX {
            return Err((place, format!("nested deeper than {DEPTH_MAX}")));
        }
        self.open.push(Open { node: Node { place, content }, key: None, anchor });
        Ok(())
    }

    fn add(&mut self, node: Node, anchor: usize) -> Result<(), (Place, String)> {
        self.nodes += 1;
        if anchor != 0 {
            // It is kept a second time, for its aliases.
            self.nodes += node.nodes();
        }
        if self.nodes > NODES_MAX {
            return Err((node.place, format!("more than {NODES_MAX} nodes, aliases counted")));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        match &mut parent.node.content {
            Content::List(items) => items.push(node),
            Content::Map(pairs) => match parent.key.take() {
                None => parent.key = Some(node),
                Some(key) => pairs.push((key, node)),
            },
            Content::Scalar(..) => {}
        }
        Ok(())
    }
}

fn place(marker: &Marker) -> Place {
    (marker.line(), marker.col() + 1)
}
