//! An object within a request, such as a message, an item or a tool, with its place: what is wrong with a member is told
//! with the client's own path to it.

use serde_json::{Map, Value};

use crate::http::error::{ApiError, Place};

pub struct Object<'a> {
    pub place: Place,
    members: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    pub fn of(place: Place, value: &'a Value) -> Result<Self, ApiError> {
        match value.as_object() {
            Some(members) => Ok(Self { place, members }),
            None => Err(ApiError::invalid(place, "must be an object")),
        }
    }

    /// A member that is not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.members.get(name).filter(|value| !value.is_null())
    }

    /// A member as it is, null where there is none.
    pub fn value(&self, name: &str) -> &'a Value {
        self.members.get(name).unwrap_or(&Value::Null)
    }

    pub fn whole(&self) -> Value {
        Value::Object(self.members.clone())
    }

    pub fn at(&self, name: &'static str) -> Place {
        self.place.member(name)
    }

    pub fn wrong(&self, name: &'static str, predicate: &'static str) -> ApiError {
        ApiError::invalid(self.at(name), predicate)
    }

    /// A string that has to be there.
    pub fn text(&self, name: &'static str) -> Result<&'a str, ApiError> {
        self.value(name).as_str().ok_or_else(|| self.wrong(name, "must be a string"))
    }

    /// What says which kind of object it is.
    pub fn kind(&self) -> Result<&'a str, ApiError> {
        self.text("type")
    }
}

/// The entries of a list that is at `place`, which are objects.
pub fn objects<'a>(
    place: &Place,
    list: &'a [Value],
) -> impl Iterator<Item = Result<Object<'a>, ApiError>> + use<'a> {
    let place = place.clone();
    list.iter().enumerate().map(move |(index, value)| Object::of(place.entry(index), value))
}
