//! Members of JSON objects.

use serde_json::Value;

/// The object without the members that are null.
pub(crate) fn present(mut object: Value) -> Value {
    if let Some(members) = object.as_object_mut() {
        members.retain(|_, member| !member.is_null());
    }
    object
}

/// Sets a member of an object; another value stays as it is.
pub(crate) fn set_member(object: &mut Value, name: &str, member: impl Into<Value>) {
    if let Some(object) = object.as_object_mut() {
        object.insert(name.to_owned(), member.into());
    }
}
