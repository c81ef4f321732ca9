//! What a `$ref` means: a place in the same document, by pointer, anchor or `$id`. Nothing is ever fetched.

use std::{collections::HashMap, rc::Rc};

use serde_json::Value;

use super::{Place, Result, extend, invalid};
use crate::error::{CompileError, Kind};

/// The longest URI of a resource. Each is kept, and most of it may be that of a resource around it.
const LONGEST_URI: usize = 1_000;

/// A schema that is referred to.
#[derive(Clone)]
pub(super) struct Target<'a> {
    pub(super) value: &'a Value,
    /// Where it is in the document, for errors.
    pub(super) pointer: String,
    /// The resource it lies in.
    pub(super) base: &'a Value,
}

/// The document's names: its anchors and the URIs of its resources.
pub(super) struct Document<'a> {
    root: &'a Value,
    /// By name; None where two schemas have it.
    anchors: HashMap<&'a str, Option<Target<'a>>>,
    /// Absolute, without a fragment.
    resources: HashMap<Rc<str>, Target<'a>>,
    /// A resource's absolute URI and itself, by the address of its value.
    by_address: HashMap<*const Value, (Rc<str>, Target<'a>)>,
    has_recursive_anchor: bool,
}

/// The URI that a schema gives itself, unless that is an anchor.
fn own_uri(value: &Value) -> Option<&str> {
    let id = value.get("$id").or_else(|| value.get("id"))?.as_str()?;
    (!id.starts_with('#') && !id.is_empty()).then(|| id.strip_suffix('#').unwrap_or(id))
}

impl<'a> Document<'a> {
    /// Reads the names. The source's depth is limited before.
    pub(super) fn read(root: &'a Value) -> Result<Document<'a>> {
        let mut document = Document {
            root,
            anchors: HashMap::new(),
            resources: HashMap::new(),
            by_address: HashMap::new(),
            has_recursive_anchor: false,
        };
        let whole = Target { value: root, pointer: String::new(), base: root };
        document.by_address.insert(root, (own_uri(root).unwrap_or_default().into(), whole));
        document.names(root, &mut String::new(), root)?;
        Ok(document)
    }

    /// Takes in the names within a value, the last one first. The place in `pointer` is one for all, since of a name on the way each value
    /// below would have a copy.
    fn names(&mut self, value: &'a Value, pointer: &mut String, mut base: &'a Value) -> Result<()> {
        match value {
            Value::Object(members) => {
                let target = |base| Target { value, pointer: pointer.clone(), base };
                if let Some(id) = own_uri(value) {
                    let uri: Rc<str> = joined(self.uri_of(base), id).into();
                    if uri.len() > LONGEST_URI {
                        let reason = format!("`$id` is a URI of more than {LONGEST_URI} bytes");
                        return Err(CompileError::at(Kind::TooLarge, pointer.clone(), reason));
                    }
                    base = value;
                    self.by_address.insert(value, (uri.clone(), target(base)));
                    self.resources.entry(uri).or_insert_with(|| target(base));
                }
                let old =
                    ["$id", "id"].iter().filter_map(|key| members.get(*key)?.as_str()?.strip_prefix('#'));
                let new = ["$anchor", "$dynamicAnchor"].iter().filter_map(|key| members.get(*key)?.as_str());
                for name in old.chain(new) {
                    self.anchors
                        .entry(name)
                        .and_modify(|known| *known = None)
                        .or_insert_with(|| Some(target(base)));
                }
                self.has_recursive_anchor |= members.contains_key("$recursiveAnchor");
                for (key, member) in members.iter().rev() {
                    if !matches!(key.as_str(), "enum" | "const" | "default" | "examples") {
                        self.names_below(key, member, pointer, base)?;
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate().rev() {
                    self.names_below(&index.to_string(), item, pointer, base)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn names_below(
        &mut self,
        key: &str,
        value: &'a Value,
        pointer: &mut String,
        base: &'a Value,
    ) -> Result<()> {
        if value.is_object() || value.is_array() {
            let length = pointer.len();
            extend(pointer, key);
            self.names(value, pointer, base)?;
            pointer.truncate(length);
        }
        Ok(())
    }

    /// The place of a schema that is about to be read: a resource of its own is the base for what is within it.
    pub(super) fn enter(&self, schema: &Value, place: &Place<'a>) -> Place<'a> {
        let mut place = place.clone();
        // Schemas made by rewrites are not in the document; they name no resources.
        if let Some((_, target)) = self.by_address.get(&std::ptr::from_ref(schema)) {
            place.base = target.value;
        }
        place
    }

    /// A dynamic reference that can only ever mean one schema.
    pub(super) fn is_static(&self, key: &str, text: &str) -> bool {
        match key {
            "$recursiveRef" => !self.has_recursive_anchor,
            _ => text.strip_prefix('#').is_some_and(|name| {
                name.is_empty()
                    || name.starts_with('/')
                    || self.anchors.get(name).is_some_and(Option::is_some)
            }),
        }
    }

    /// The resource in which a place lies.
    pub(super) fn resource_of(&self, pointer: &str) -> Option<&'a Value> {
        let ends = pointer.match_indices('/').map(|(at, _)| at).chain([pointer.len()]);
        let around: Option<Vec<&Value>> = ends.map(|end| self.root.pointer(&pointer[..end])).collect();
        let known = |value: &&'a Value| self.by_address.contains_key(&std::ptr::from_ref(*value));
        around?.into_iter().rev().find(known)
    }

    /// What a reference in a schema of the resource `base` means, if anything.
    pub(super) fn find(&self, reference: &str, base: &'a Value) -> Option<Target<'a>> {
        self.resolve(reference, &Place { path: String::new(), base, depth: 0 }).ok()
    }

    pub(super) fn resolve(&self, reference: &str, place: &Place<'a>) -> Result<Target<'a>> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let resource = if uri.is_empty() {
            self.by_address[&std::ptr::from_ref(place.base)].1.clone()
        } else {
            let absolute = joined(self.uri_of(place.base), uri);
            self.resources.get(absolute.as_str()).cloned().ok_or_else(|| {
                place.refuse(
                    Kind::Unsupported,
                    format!("`$ref` {reference:?} is outside of the schema; it is not fetched"),
                )
            })?
        };
        let fragment = percent_decoded(fragment).ok_or_else(|| invalid(place, "a reference in UTF-8"))?;
        let missing =
            || place.refuse(Kind::Invalid, format!("`$ref` {reference:?} names nothing in the schema"));
        if fragment.is_empty() {
            return Ok(resource);
        }
        if fragment.starts_with('/') {
            // Where the resource has no such place, the document may: many schemas take `id` for a mere name.
            let whole = Target { value: self.root, pointer: String::new(), base: self.root };
            let found = self.walk(&resource, &fragment);
            return found
                .or_else(|| self.walk(&whole, &fragment).filter(|_| uri.is_empty()))
                .ok_or_else(missing);
        }
        self.anchors.get(fragment.as_str()).cloned().flatten().ok_or_else(missing)
    }

    fn walk(&self, from: &Target<'a>, pointer: &str) -> Option<Target<'a>> {
        let mut target = from.clone();
        for part in pointer[1..].split('/') {
            let key = part.replace("~1", "/").replace("~0", "~");
            target.value = match target.value {
                Value::Object(members) => members.get(&key)?,
                Value::Array(items) => items.get(key.parse::<usize>().ok()?)?,
                _ => return None,
            };
            extend(&mut target.pointer, &key);
            // A resource on the way is the base of what is within; at the end, `enter` sees to it.
            if own_uri(target.value).is_some()
                && self.by_address.contains_key(&std::ptr::from_ref(target.value))
            {
                target.base = target.value;
            }
        }
        (target.value.is_object() || target.value.is_boolean()).then_some(target)
    }

    fn uri_of(&self, base: &'a Value) -> &str {
        self.by_address.get(&std::ptr::from_ref(base)).map_or("", |(uri, _)| uri)
    }
}

/// `reference` relative to `base`, as RFC 3986 has it for what schemas use: whole URIs, absolute paths, siblings.
fn joined(base: &str, reference: &str) -> String {
    let has_scheme = reference.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    if has_scheme {
        return reference.to_owned();
    }
    let authority_end =
        base.find("://").map_or(0, |at| base[at + 3..].find('/').map_or(base.len(), |end| at + 3 + end));
    if reference.starts_with('/') {
        return format!("{}{reference}", &base[..authority_end]);
    }
    let directory = base[authority_end..].rfind('/').map_or(authority_end, |at| authority_end + at + 1);
    let slash = if directory == authority_end && authority_end > 0 { "/" } else { "" };
    format!("{}{slash}{}", &base[..directory], reference.strip_prefix("./").unwrap_or(reference))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_uris_are_joined() {
        assert_eq!(joined("http://a.b/c/d.json", "e.json"), "http://a.b/c/e.json");
        assert_eq!(joined("http://a.b/c/d.json", "/e.json"), "http://a.b/e.json");
        assert_eq!(joined("http://a.b", "e.json"), "http://a.b/e.json");
        assert_eq!(joined("http://a.b/c", "urn:x:y"), "urn:x:y");
        assert_eq!(joined("", "e.json"), "e.json");
    }

    #[test]
    fn fragments_are_decoded() {
        assert_eq!(percent_decoded("/a%20b%25").as_deref(), Some("/a b%"));
        assert_eq!(percent_decoded("/%ff"), None);
    }

    #[test]
    fn names_are_found_with_their_places() {
        let root = serde_json::json!({
            "$id": "http://a.b/c", "$defs": {"x/y": {"$anchor": "one"}, "z": [{"$id": "d", "items": {"$anchor": "two"}}]},
            "enum": [{"$anchor": "none"}],
        });
        let document = Document::read(&root).unwrap();
        let pointer = |reference: &str| document.find(reference, &root).map(|target| target.pointer);
        assert_eq!(pointer("#one").as_deref(), Some("/$defs/x~1y"));
        assert_eq!(pointer("#two").as_deref(), Some("/$defs/z/0/items"));
        assert_eq!(pointer("d").as_deref(), Some("/$defs/z/0"));
        assert_eq!(pointer("#none"), None);
    }

    /// Each of the names lies within it.
    #[test]
    fn a_long_key_or_uri_is_not_kept_for_each_name_below() {
        let names: Value =
            (0..1_000).map(|at| (at.to_string(), serde_json::json!({"$anchor": format!("a{at}")}))).collect();
        let mut root = serde_json::json!({});
        root["k".repeat(100_000)] = names;
        let document = Document::read(&root).unwrap();
        let kept: usize = document.anchors.values().flatten().map(|target| target.pointer.len()).sum();
        assert!(document.anchors.len() == 1_000 && kept < 1_000_000, "{kept} bytes");
        let root = serde_json::json!({"items": {"$id": format!("http://a/{}/b", "k".repeat(2_000)), "items": {"$id": "c"}}});
        let error = Document::read(&root).err().map(|error| (error.kind, error.path));
        assert_eq!(error, Some((Kind::TooLarge, "/items".into())));
    }
}
