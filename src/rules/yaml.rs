//! YAML as a tree in which every node knows its location. Scalars keep the text that was written:
//! the reader decides whether `no` or `1.10` is a word or a number. Merge keys (`<<`) are expanded.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

/// Most nodes of a tree, aliases included: they can make a small file expand to a large tree.
const NODES_MAX: usize = 1_000_000;

/// Deepest nesting. Rules nest two levels for each entry of a descriptor.
const DEPTH_MAX: usize = 128;

/// Line and column, both from 1.
pub(super) type Location = (usize, usize);

/// The first problem of a text: its location and a message.
type YamlError = (Location, String);

type Pairs = Vec<(YamlNode, YamlNode)>;

#[derive(Debug, Clone)]
pub(super) struct YamlNode {
    pub(super) location: Location,
    pub(super) content: Content,
}

#[derive(Debug, Clone)]
pub(super) enum Content {
    Scalar(String, Style),
    List(Vec<YamlNode>),
    Map(Pairs),
}

/// How a scalar is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
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

    /// Nodes below this one, and the node itself.
    fn nodes(&self) -> usize {
        1 + match &self.content {
            Content::Scalar(..) => 0,
            Content::List(items) => items.iter().map(Self::nodes).sum(),
            Content::Map(pairs) => {
                pairs.iter().map(|(key, value)| key.nodes() + value.nodes()).sum()
            }
        }
    }

    fn is_merge_key(&self) -> bool {
        matches!(&self.content, Content::Scalar(text, Style::Plain) if text == "<<")
    }

    /// The text of a key, if it is a scalar.
    fn name(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(text, _) => Some(text),
            Content::List(_) | Content::Map(_) => None,
        }
    }
}

/// A list or mapping whose end has not been read yet.
struct OpenCollection {
    node: YamlNode,
    /// The key that waits for its value.
    key: Option<YamlNode>,
    anchor: usize,
}

#[derive(Default)]
struct Builder {
    open: Vec<OpenCollection>,
    anchors: HashMap<usize, YamlNode>,
    nodes: usize,
    documents: usize,
    root: Option<YamlNode>,
}

/// Parses one document; `None` if it is empty or has only comments.
///
/// # Errors
/// The first syntax error, unsupported construct or exceeded bound.
pub(super) fn parse(text: &str) -> Result<Option<YamlNode>, YamlError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event
            .map_err(|error| (location(error.marker()), format!("not YAML: {}", error.info())))?;
        builder.take(event, span)?;
    }
    Ok(builder.root)
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), YamlError> {
        let at = location(&span.start);
        match event {
            Event::DocumentStart(_) => {
                self.documents += 1;
                if self.documents > 1 {
                    let message = "one YAML document per file; move this one into its own file";
                    return Err((at, message.to_owned()));
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let style = match (style, scalar_style(at, tag.as_deref())?) {
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
                check_tag(at, tag.as_deref(), "seq")?;
                self.begin(at, Content::List(vec![]), anchor)?;
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(at, tag.as_deref(), "map")?;
                self.begin(at, Content::Map(vec![]), anchor)?;
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(OpenCollection { mut node, anchor, .. }) = self.open.pop() {
                    if let Content::Map(pairs) = node.content {
                        node.content = Content::Map(merge(pairs)?);
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
fn merge(mut pairs: Pairs) -> Result<Pairs, YamlError> {
    let Some(index) = pairs.iter().position(|(key, _)| key.is_merge_key()) else {
        return Ok(pairs);
    };
    let (key, value) = pairs.remove(index);
    if let Some((second, _)) = pairs.iter().find(|(key, _)| key.is_merge_key()) {
        return Err((second.location, "<<: duplicate key; give it a list of mappings".to_owned()));
    }
    let sources = sources(value).ok_or_else(|| {
        (key.location, "<<: must be a mapping, an alias of one, or a list of these".to_owned())
    })?;
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
                let message = format!("<<: must come before `{name}`, which it merges as well");
                return Err((key.location, message));
            }
            Some(_) => {}
            None => {
                seen.insert(name.to_owned(), usize::MAX);
                pairs.push((merged, value));
            }
        }
    }
    Ok(pairs)
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
fn scalar_style(at: Location, tag: Option<&Tag>) -> Result<Style, YamlError> {
    match tag {
        None => Ok(Style::Plain),
        Some(tag) if tag.handle.is_empty() && tag.suffix == "!" => Ok(Style::Quoted),
        Some(_) => check_tag(at, tag, "str").map(|()| Style::Quoted),
    }
}

fn check_tag(at: Location, tag: Option<&Tag>, allowed: &str) -> Result<(), YamlError> {
    match tag {
        Some(tag) if !(tag.is_yaml_core_schema() && tag.suffix == allowed) => {
            Err((at, format!("the only tag allowed here is `!!{allowed}`")))
        }
        _ => Ok(()),
    }
}

fn location(marker: &Marker) -> Location {
    (marker.line(), marker.col() + 1)
}
