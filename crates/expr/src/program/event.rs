//! VRL's view of a record: made of what the program looks at.
//!
//! Making a record into VRL's values costs more than most programs do with it. A program that only
//! looks at fields it names gets those; the whole record is made when it asks for anything else,
//! or changes something.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use vrl::compiler::{Program, SecretTarget, Target};
use vrl::path::{OwnedSegment, OwnedTargetPath, PathPrefix};
use vrl::value::{ObjectMap, Secrets, Value};

use super::{View, convert};
use crate::json::{Kind, Node, Parser};

thread_local! {
    /// Its buffers serve every run on the thread.
    static PARSER: RefCell<Parser> = RefCell::default();
}

/// The fields that a program looks at, where it looks at nothing else and changes nothing that
/// can be seen beforehand.
pub(super) fn named(program: &Program) -> Arc<[Box<str>]> {
    let info = program.info();
    let of_event = |path: &&OwnedTargetPath| path.prefix == PathPrefix::Event;
    if info.target_assignments.iter().any(|path| of_event(&path)) {
        return Arc::default();
    }
    let names = info.target_queries.iter().filter(of_event).map(first_field);
    let names: Option<BTreeSet<&str>> = names.collect();
    names.unwrap_or_default().into_iter().map(Box::from).collect()
}

fn first_field(path: &OwnedTargetPath) -> Option<&str> {
    match path.path.segments.first() {
        Some(OwnedSegment::Field(name)) => Some(name.as_str()),
        _ => None,
    }
}

#[derive(Debug)]
pub(super) struct Event<'a> {
    view: View<'a>,
    named: &'a [Box<str>],
    /// The named fields that are there.
    some: Value,
    /// Everything, once it is needed.
    whole: OnceCell<Result<Value, String>>,
    metadata: OnceCell<Value>,
    secrets: Secrets,
    changed: bool,
}

impl<'a> Event<'a> {
    pub fn new(view: View<'a>, named: &'a [Box<str>]) -> Result<Self, String> {
        let whole = OnceCell::new();
        let mut some = Value::Null;
        if named.is_empty() {
            // A program that looks at nothing is rare; what it works on is an object all the same.
            let _ = whole.set(Ok(read(view.value, convert::read)?));
        } else {
            some = read(view.value, |node| {
                let found = named.iter().filter_map(|name| Some((name, node.get(name)?)));
                let read = |(name, node): (&Box<str>, Node<'_>)| {
                    Ok(((**name).into(), convert::read(node)?))
                };
                Ok(Value::Object(found.map(read).collect::<Result<ObjectMap, String>>()?))
            })?;
        }
        let (metadata, secrets) = (OnceCell::new(), Secrets::default());
        Ok(Event { view, named, some, whole, metadata, secrets, changed: false })
    }

    /// The event as the program left it; `None` where it changed nothing.
    pub fn changed(&self) -> Option<&Value> {
        self.whole().ok().filter(|_| self.changed)
    }

    /// Why something could not be read.
    pub fn trouble(&self) -> Option<&str> {
        self.whole.get()?.as_ref().err().map(String::as_str)
    }

    fn whole(&self) -> Result<&Value, String> {
        let whole = self.whole.get_or_init(|| read(self.view.value, convert::read));
        whole.as_ref().map_err(Clone::clone)
    }

    fn metadata(&self) -> &Value {
        self.metadata.get_or_init(|| convert::metadata(&self.view))
    }

    /// What is at the path's beginning, to be changed.
    fn to_change(&mut self, path: &OwnedTargetPath) -> Result<&mut Value, String> {
        match path.prefix {
            PathPrefix::Event => {
                self.changed = true;
                self.whole()?;
                match self.whole.get_mut() {
                    Some(Ok(whole)) => Ok(whole),
                    _ => Err("the value cannot be read".to_owned()),
                }
            }
            PathPrefix::Metadata => {
                self.metadata();
                self.metadata.get_mut().ok_or_else(|| "there is no metadata".to_owned())
            }
        }
    }
}

fn read(
    bytes: &[u8],
    read: impl FnOnce(Node<'_>) -> Result<Value, String>,
) -> Result<Value, String> {
    PARSER.with_borrow_mut(|parser| {
        let node =
            parser.parse(bytes).map_err(|error| format!("the value is not JSON: {error}"))?;
        match node.kind() {
            Kind::Object => read(node),
            other => Err(format!("a program works on an object, and the value is {other}")),
        }
    })
}

impl Target for Event<'_> {
    fn target_insert(&mut self, path: &OwnedTargetPath, value: Value) -> Result<(), String> {
        self.to_change(path)?.insert(&path.path, value);
        Ok(())
    }

    fn target_get(&self, path: &OwnedTargetPath) -> Result<Option<&Value>, String> {
        if path.prefix == PathPrefix::Metadata {
            return Ok(self.metadata().get(&path.path));
        }
        let is_named =
            |name: &str| self.named.binary_search_by(|known| (**known).cmp(name)).is_ok();
        match first_field(path) {
            Some(name) if self.whole.get().is_none() && is_named(name) => {
                Ok(self.some.get(&path.path))
            }
            _ => Ok(self.whole()?.get(&path.path)),
        }
    }

    fn target_get_mut(&mut self, path: &OwnedTargetPath) -> Result<Option<&mut Value>, String> {
        Ok(self.to_change(path)?.get_mut(&path.path))
    }

    fn target_remove(
        &mut self,
        path: &OwnedTargetPath,
        compact: bool,
    ) -> Result<Option<Value>, String> {
        Ok(self.to_change(path)?.remove(&path.path, compact))
    }
}

impl SecretTarget for Event<'_> {
    fn get_secret(&self, key: &str) -> Option<&str> {
        self.secrets.get_secret(key)
    }

    fn insert_secret(&mut self, key: &str, value: &str) {
        self.secrets.insert_secret(key, value);
    }

    fn remove_secret(&mut self, key: &str) {
        self.secrets.remove_secret(key);
    }
}
