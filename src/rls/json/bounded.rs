//! The shapes of protobuf's JSON: a message is an object, a scalar a number or a string, and a list has a
//! bound. Any other shape is refused where it begins. Elements of a list beyond its bound are counted, but
//! take no memory.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{
        Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor, value::MapAccessDeserializer,
    },
};
use serde_json::Number;

/// A message. The derived code for a struct would also read it from a list.
pub(in crate::rls) struct Object<T>(pub(in crate::rls) T);

/// The first elements of a list, at most this many, and the number of all.
pub(in crate::rls) struct AtMost<const MAX: usize, T> {
    pub(in crate::rls) first: Vec<T>,
    pub(in crate::rls) count: usize,
}

impl<const MAX: usize, T> Default for AtMost<MAX, T> {
    fn default() -> Self {
        Self { first: Vec::new(), count: 0 }
    }
}

/// A number, also written as a string, or the name of an enum's value.
pub(in crate::rls) enum Scalar {
    Number(Number),
    Text(String),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map)).map(Object)
    }
}

impl<'de, const MAX: usize, T: Deserialize<'de>> Deserialize<'de> for AtMost<MAX, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(AtMostVisitor(PhantomData))
    }
}

struct AtMostVisitor<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for AtMostVisitor<MAX, T> {
    type Value = AtMost<MAX, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<AtMost<MAX, T>, A::Error> {
        let mut first = Vec::new();
        while first.len() < MAX {
            match list.next_element()? {
                Some(element) => first.push(element),
                None => return Ok(AtMost { count: first.len(), first }),
            }
        }
        let mut count = first.len();
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(AtMost { first, count })
    }
}

/// The first entries of a map, at most this many, and the number of all.
pub(in crate::rls) struct MapAtMost<const MAX: usize, T>(
    pub(in crate::rls) AtMost<MAX, (String, T)>,
);

impl<'de, const MAX: usize, T: Deserialize<'de>> Deserialize<'de> for MapAtMost<MAX, T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MapAtMostVisitor(PhantomData))
    }
}

struct MapAtMostVisitor<const MAX: usize, T>(PhantomData<T>);

impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for MapAtMostVisitor<MAX, T> {
    type Value = MapAtMost<MAX, T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<MapAtMost<MAX, T>, A::Error> {
        let (mut first, mut count) = (Vec::<(String, T)>::new(), 0);
        while count < MAX
            && let Some(entry) = map.next_entry::<String, T>()?
        {
            if first.iter().any(|(key, _)| *key == entry.0) {
                return Err(A::Error::custom("duplicate key"));
            }
            first.push(entry);
            count += 1;
        }
        while count >= MAX && map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(MapAtMost(AtMost { first, count }))
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number or a string")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Scalar, E> {
        let finite = Number::from_f64(number).map(Scalar::Number);
        finite.ok_or_else(|| Error::invalid_value(Unexpected::Float(number), &self))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }
}
