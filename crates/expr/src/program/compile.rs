//! From source text to a checked program, or to all that is wrong with it.

use std::any::Any;

use vrl::compiler::state::{ExternalEnv, LocalEnv, TypeState};
use vrl::compiler::{CompileConfig, Compiler, Function, Program};
use vrl::diagnostic::DiagnosticList;
use vrl::parser::ast;
use vrl::path::{OwnedSegment, OwnedTargetPath, PathPrefix};
use vrl::value::Kind;
use vrl::value::kind::Collection;

use super::{condition, explain};
use crate::{ExprError, nesting};

/// Compiling recurses more deeply than running; a thread of its own makes the room independent
/// of who asks. Only the pages that are touched cost memory.
const STACK_BYTES: usize = 64 * 1024 * 1024;

const METADATA: &[&str] = &["key", "headers", "topic", "time"];
const BATCH_METADATA: &[&str] = &["key", "group", "events"];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Transform,
    Predicate,
    Batch,
}

impl Purpose {
    fn config(self) -> CompileConfig {
        let mut config = CompileConfig::default();
        match self {
            Purpose::Transform | Purpose::Batch => {
                config.set_read_only_path(OwnedTargetPath::metadata_root(), true);
            }
            Purpose::Predicate => config.set_read_only(),
        }
        config
    }
}

pub(super) fn compile(source: &str, purpose: Purpose) -> Result<Program, Vec<ExprError>> {
    nesting::check(source).map_err(|error| vec![error])?;
    let whole = |message: String| vec![ExprError::new(0, source.len(), message)];
    let compiled = std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("vrl-compile".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || compile_here(source, purpose))
            .map(|thread| thread.join())
    });
    match compiled {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => {
            let what = panic_message(panic.as_ref());
            Err(whole(format!("the VRL compiler crashed on this program: {what}")))
        }
        Err(error) => Err(whole(format!("no thread to compile this program on: {error}"))),
    }
}

fn compile_here(source: &str, purpose: Purpose) -> Result<Program, Vec<ExprError>> {
    let (event, metadata) = match purpose {
        Purpose::Batch => (Kind::array(Collection::any()), batch_metadata_kind()),
        Purpose::Transform | Purpose::Predicate => {
            (Kind::object(Collection::any()), metadata_kind())
        }
    };
    let external = ExternalEnv::new_with_kind(event, metadata);
    let state = TypeState { local: LocalEnv::default(), external };
    let mut functions = vrl::stdlib::all();
    functions.push(Box::new(condition::MayFail));
    let refused = |problems: DiagnosticList| explain::refusals(source, &problems, &functions);
    // VRL would also look for results that nobody uses, and write what it finds into our log.
    let build = |tree: ast::Program| {
        let functions: &[Box<dyn Function>] = &functions;
        Compiler::compile(functions, tree, &state, purpose.config()).map_err(refused)
    };
    let tree = vrl::parser::parse(source)
        .map_err(|error| refused(DiagnosticList::from(vec![Box::new(error) as Box<_>])))?;
    let program = match purpose {
        Purpose::Transform | Purpose::Batch => build(tree.clone())?.program,
        Purpose::Predicate => build(condition::rewrite(tree.clone(), true))?.program,
    };
    let mut errors: Vec<ExprError> = unknown_metadata(source, &program, purpose).collect();
    if purpose == Purpose::Predicate {
        // Of what it was before its failure became false.
        let plain = build(condition::rewrite(tree, false))?.program;
        let kind = plain.final_type_info().result.kind().clone();
        if !kind.contains_boolean() {
            let message = format!("a condition must be true or false, and this is {kind}");
            errors.push(ExprError::new(0, source.len(), message));
        }
    }
    if purpose == Purpose::Batch {
        let kind = program.final_type_info().state.external.target_kind().clone();
        if !kind.contains_array() && !kind.contains_object() {
            let message = format!(
                "a program per group must leave an array or an object in `.`, and this leaves {kind}"
            );
            errors.push(ExprError::new(0, source.len(), message));
        }
    }
    if errors.is_empty() { Ok(program) } else { Err(errors) }
}

fn batch_metadata_kind() -> Kind {
    let events = Collection::from_unknown(metadata_kind());
    let group = Collection::empty()
        .with_known("key", Kind::bytes())
        .with_known("reason", Kind::bytes())
        .with_known("opened", Kind::timestamp())
        .with_known("closed", Kind::timestamp())
        .with_known("name", Kind::bytes());
    Kind::object(
        Collection::empty()
            .with_known("key", Kind::bytes())
            .with_known("group", Kind::object(group))
            .with_known("events", Kind::array(events)),
    )
}

fn metadata_kind() -> Kind {
    let headers = Collection::from_unknown(Kind::bytes().or_undefined());
    Kind::object(
        Collection::empty()
            .with_known("key", Kind::bytes().or_null())
            .with_known("headers", Kind::object(headers))
            .with_known("topic", Kind::bytes())
            .with_known("time", Kind::timestamp()),
    )
}

/// VRL takes any name behind `%` and finds nothing there; a slip must not pass for that.
fn unknown_metadata<'s>(
    source: &'s str,
    program: &Program,
    purpose: Purpose,
) -> impl Iterator<Item = ExprError> + use<'s> {
    let (known, there) = match purpose {
        Purpose::Batch => {
            (BATCH_METADATA, "in a program per group there are %key, %group and %events")
        }
        Purpose::Transform | Purpose::Predicate => {
            (METADATA, "there are %key, %headers, %topic and %time")
        }
    };
    let mut names: Vec<String> = Vec::new();
    for path in &program.info().target_queries {
        if let (PathPrefix::Metadata, Some(OwnedSegment::Field(name))) =
            (path.prefix, path.path.segments.first())
            && !known.contains(&name.as_str())
            && !names.iter().any(|known| known == name.as_str())
        {
            names.push(name.to_string());
        }
    }
    names.into_iter().map(move |name| {
        let spelled = format!("%{name}");
        let (at, len) = source.find(&spelled).map_or((0, source.len()), |at| (at, spelled.len()));
        let message = format!("there is no `{spelled}`; {there}");
        ExprError::new(at, len, message)
    })
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}
