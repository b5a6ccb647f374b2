//! YAML as a tree in which every node knows its location. Scalars keep the text that was written:
//! the reader decides whether `no` or `1.10` is a word or a number. Merge keys (`<<`) are expanded.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

/// Most nodes of a tree, aliases included: they can make a small file expand to a large tree.
const NODES_MAX: usize = 1_000_000;

/// Deepest nesting. Rules nest two levels for each entry of a descriptor.
const DEPTH_MAX: usize = 128;

/// Line and column, both from 1.
pub type Location = (usize, usize);

/// A problem of a text: its location and a message.
type YamlError = (Location, String);

pub type Pairs = Vec<(YamlNode, YamlNode)>;

#[derive(Debug, Clone)]
pub struct YamlNode {
    pub location: Location,
    pub content: Content,
}

#[derive(Debug, Clone)]
pub enum Content {
    Scalar(String, Style),
    List(Vec<YamlNode>),
    Map(Pairs),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Without quotes: it may mean a number, a boolean or null.
    Plain,
    /// In quotes, or tagged `!!str`: always text.
    Quoted,
}

impl YamlNode {
    /// Levels of nesting, including this node's own.
    fn depth(&self) -> usize {
        1 + match &self.content {
            Content::Scalar(..) => 0,
            Content::List(items) => items.iter().map(Self::depth).max().unwrap_or(0),
            Content::Map(pairs) => {
                let depths = pairs.iter().map(|(key, value)| key.depth().max(value.depth()));
                depths.max().unwrap_or(0)
            }
        }
    }

    /// Nodes below this one, and the node itself; a copy of a long text counts as one node for each 64 bytes.
    fn nodes(&self) -> usize {
        1 + match &self.content {
            Content::Scalar(text, _) => text.len() / 64,
            Content::List(items) => items.iter().map(Self::nodes).sum(),
            Content::Map(pairs) => {
                pairs.iter().map(|(key, value)| key.nodes() + value.nodes()).sum()
            }
        }
    }

    fn is_merge_key(&self) -> bool {
        matches!(&self.content, Content::Scalar(text, Style::Plain) if text == "<<")
    }

    /// The value of a key of a mapping.
    pub fn get(&self, name: &str) -> Option<&Self> {
        self.pairs().iter().find(|(key, _)| key.name() == Some(name)).map(|(_, value)| value)
    }

    /// The pairs of a mapping; of anything else none.
    pub fn pairs(&self) -> &[(Self, Self)] {
        if let Content::Map(pairs) = &self.content { pairs } else { &[] }
    }

    pub fn pairs_mut(&mut self) -> &mut [(Self, Self)] {
        if let Content::Map(pairs) = &mut self.content { pairs } else { &mut [] }
    }

    /// The items of a list; of anything else none.
    pub fn items(&self) -> &[Self] {
        if let Content::List(items) = &self.content { items } else { &[] }
    }

    pub fn items_mut(&mut self) -> &mut [Self] {
        if let Content::List(items) = &mut self.content { items } else { &mut [] }
    }

    /// Sets the value of a key of a mapping. Both are then where the mapping is.
    pub fn set(&mut self, key: &Self, value: &Self) {
        let mut pair = (key.clone(), value.clone());
        pair.0.move_to(self.location);
        pair.1.move_to(self.location);
        if let Content::Map(pairs) = &mut self.content {
            pairs.retain(|(known, _)| known.name() != key.name());
            pairs.push(pair);
        }
    }

    fn move_to(&mut self, location: Location) {
        self.location = location;
        self.items_mut().iter_mut().for_each(|item| item.move_to(location));
        for (key, value) in self.pairs_mut() {
            key.move_to(location);
            value.move_to(location);
        }
    }

    /// The text of a key, if it is a scalar.
    pub fn name(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(text, _) => Some(text),
            Content::List(_) | Content::Map(_) => None,
        }
    }
}

/// A list or mapping whose end has not been read yet.
struct OpenCollection {
    node: YamlNode,
    key: Option<YamlNode>,
    anchor: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, YamlNode>,
    nodes: usize,
    /// The start of the document that is being read, if it is not the first.
    later_document: Option<Location>,
    documents: usize,
    root: Option<YamlNode>,
    /// Problems after which reading goes on.
    errors: Vec<YamlError>,
}

/// Parses one document. Returns its root, and its problems. The root is `None` if the document is empty, has
/// only comments, is not YAML, or exceeds a bound.
pub fn parse(text: &str) -> (Option<YamlNode>, Vec<YamlError>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    if let Err(error) = builder.read(text) {
        builder.errors.push(error);
        builder.root = None;
    }
    (builder.root, builder.errors)
}

impl Builder {
    /// Reads up to the end or the second document that is not empty.
    fn read(&mut self, text: &str) -> Result<(), YamlError> {
        for event in Parser::new_from_str(text) {
            let (event, span) = event.map_err(|error| {
                (location(error.marker()), format!("not YAML: {}", error.info()))
            })?;
            let Some(start) = self.later_document else {
                self.take(event, span)?;
                continue;
            };
            if has_content(&event) {
                let message = "one YAML document per file; move this one into its own file";
                self.errors.push((start, message.to_owned()));
                return Ok(());
            }
        }
        Ok(())
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlError> {
        let at = location(&span.start);
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                self.later_document = (self.documents > 1).then_some(at);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tagged = scalar_style(at, tag.as_deref(), &mut self.errors);
                let style = match (style, tagged) {
                    (ScalarStyle::Plain, style) => style,
                    _ => Style::Quoted,
                };
                let content = Content::Scalar(text.into_owned(), style);
                self.add(YamlNode { location: at, content }, anchor)?;
            }
            Event::Alias(anchor) => {
                let Some(mut node) = self.anchors.get(&anchor).cloned() else {
                    return Err((at, "alias of something that contains it".to_owned()));
                };
                if self.open.len() + node.depth() > DEPTH_MAX {
                    return Err((at, format!("nested deeper than {DEPTH_MAX}, aliases included")));
                }
                self.nodes += node.nodes();
                node.location = at;
                self.add(node, 0)?;
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(at, tag.as_deref(), "seq", &mut self.errors);
                self.begin(at, Content::List(vec![]), anchor)?;
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(at, tag.as_deref(), "map", &mut self.errors);
                self.begin(at, Content::Map(vec![]), anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(OpenCollection { mut node, anchor, .. }) = self.open.pop() {
                    if let Content::Map(pairs) = node.content {
                        node.content = Content::Map(merge(pairs, &mut self.errors));
                    }
                    self.add(node, anchor)?;
                }
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn begin(&mut self, at: Location, content: Content, anchor: usize) -> Result<(), YamlError> {
        if self.open.len() == DEPTH_MAX {
            return Err((at, format!("nested deeper than {DEPTH_MAX}")));
        }
        self.open.push(OpenCollection {
            node: YamlNode { location: at, content },
            key: None,
            anchor,
        });
        Ok(())
    }

    fn add(&mut self, node: YamlNode, anchor: usize) -> Result<(), YamlError> {
        self.nodes += 1;
        if anchor != 0 {
            // A copy is stored for its aliases.
            self.nodes += node.nodes();
        }
        if self.nodes > NODES_MAX {
            return Err((node.location, format!("more than {NODES_MAX} nodes, aliases included")));
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

/// Expands `<<`: the mapping's own pairs take precedence, then the earlier source.
fn merge(mut pairs: Pairs, errors: &mut Vec<YamlError>) -> Pairs {
    let Some(index) = pairs.iter().position(|(key, _)| key.is_merge_key()) else {
        return pairs;
    };
    let (key, value) = pairs.remove(index);
    if let Some((second, _)) = pairs.iter().find(|(key, _)| key.is_merge_key()) {
        let message = "<<: duplicate key; give it a list of mappings";
        errors.push((second.location, message.to_owned()));
        pairs.retain(|(key, _)| !key.is_merge_key());
    }
    let Some(sources) = sources(value) else {
        let message = "<<: must be a mapping, an alias of a mapping, or a list of them";
        errors.push((key.location, message.to_owned()));
        return pairs;
    };
    // By hash, because a mapping may have many keys.
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (index, (key, _)) in pairs.iter().enumerate() {
        seen.extend(key.name().map(|name| (name.to_owned(), index)));
    }
    for (merged, value) in sources.into_iter().flatten() {
        let Some(name) = merged.name() else {
            pairs.push((merged, value));
            continue;
        };
        match seen.get(name) {
            // Here envoyproxy/ratelimit takes the merged value, and YAML's own rule the written one.
            Some(written) if *written < index => {
                let message =
                    format!("<<: put it before `{name}`, which the merged mapping also sets");
                errors.push((key.location, message));
            }
            Some(_) => {}
            None => {
                seen.insert(name.to_owned(), usize::MAX);
                pairs.push((merged, value));
            }
        }
    }
    pairs
}

/// Whether a document with this event is not empty. The parser writes `~` for nothing.
fn has_content(event: &Event<'_>) -> bool {
    match event {
        Event::Scalar(text, ScalarStyle::Plain, 0, None) => !matches!(&**text, "" | "~"),
        Event::Scalar(..)
        | Event::Alias(_)
        | Event::SequenceStart(..)
        | Event::MappingStart(..) => true,
        _ => false,
    }
}

/// The mappings that the value of a `<<` names.
fn sources(value: YamlNode) -> Option<Vec<Pairs>> {
    match value.content {
        Content::Map(pairs) => Some(vec![pairs]),
        Content::List(items) => {
            let mut sources = Vec::new();
            for item in items {
                let Content::Map(pairs) = item.content else { return None };
                sources.push(pairs);
            }
            Some(sources)
        }
        Content::Scalar(..) => None,
    }
}

/// `!` and `!!str` make a plain scalar text.
fn scalar_style(at: Location, tag: Option<&Tag>, errors: &mut Vec<YamlError>) -> Style {
    match tag {
        None => Style::Plain,
        Some(tag) if tag.handle.is_empty() && tag.suffix == "!" => Style::Quoted,
        Some(tag) => {
            check_tag(at, Some(tag), "str", errors);
            // Another tag than `!!str`, such as `!!int`, is one problem, and no second one of the value.
            if tag.suffix == "str" { Style::Quoted } else { Style::Plain }
        }
    }
}

fn check_tag(at: Location, tag: Option<&Tag>, allowed: &str, errors: &mut Vec<YamlError>) {
    if let Some(tag) = tag
        && !(tag.is_yaml_core_schema() && tag.suffix == allowed)
    {
        errors.push((at, format!("the only tag allowed here is `!!{allowed}`")));
    }
}

fn location(marker: &Marker) -> Location {
    (marker.line(), marker.col() + 1)
}
