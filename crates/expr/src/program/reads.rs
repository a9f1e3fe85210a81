//! What a program looks at, so that the rest of the record need not be read for it.
//!
//! Building the whole value costs several times as much as a filter that looks at one field. VRL
//! knows which paths a program names. That list is a hint, not a promise: [`Reads::covers`] is asked
//! at every look, and a program that looked elsewhere, or changed something, is run again on the
//! whole record. A program has no effect but its result, so that is safe.

use vrl::compiler::Program;
use vrl::path::{OwnedSegment, OwnedTargetPath, PathPrefix};

/// Fields of the event and whether metadata is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reads {
    /// The first step of every path into the event.
    pub fields: Vec<String>,
    pub metadata: bool,
}

impl Reads {
    /// `None` when the program needs all of the event, because it changes it or names it whole.
    pub fn of(program: &Program) -> Option<Reads> {
        let info = program.info();
        let changes = |path: &OwnedTargetPath| path.prefix == PathPrefix::Event;
        if info.target_assignments.iter().any(changes) {
            return None;
        }
        let mut reads = Reads { fields: Vec::new(), metadata: false };
        for path in &info.target_queries {
            match path.prefix {
                PathPrefix::Metadata => reads.metadata = true,
                PathPrefix::Event => {
                    let field = first_field(path)?;
                    if !reads.fields.iter().any(|known| known == field) {
                        reads.fields.push(field.to_owned());
                    }
                }
            }
        }
        Some(reads)
    }

    /// True when what lies at the path was read.
    pub fn covers(&self, path: &OwnedTargetPath) -> bool {
        match path.prefix {
            PathPrefix::Metadata => self.metadata,
            PathPrefix::Event => first_field(path)
                .is_some_and(|field| self.fields.iter().any(|known| known == field)),
        }
    }
}

fn first_field(path: &OwnedTargetPath) -> Option<&str> {
    match path.path.segments.first()? {
        OwnedSegment::Field(field) => Some(field.as_str()),
        OwnedSegment::Index(_) => None,
    }
}
