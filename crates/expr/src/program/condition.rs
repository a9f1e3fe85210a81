//! Conditions: a comparison or a call that fails is false.
//!
//! VRL has every failure handled by the program, which is right where a record is changed: `.amount >
//! 10` does not compile, because `.amount` may be text or missing. A condition only asks, and the
//! answer to a question that makes no sense is no. So the syntax tree of a condition is rewritten
//! before it is compiled:
//!
//! - a comparison, `&&`, and a call whose truth is asked for become `{ they } ?? false`;
//! - every call becomes one with `!`, so that it may stand wherever a value may;
//! - arithmetic that stands by itself, as an argument does, becomes `{ it } ?? abort`: whatever is
//!   around it fails with it.
//!
//! Failures that the program handles itself, with `??` or `x, err = …`, stay as they are written.
//! Places in the source are kept, so messages point where they did.

use vrl::compiler::function::{ArgumentList, Compiled, Example, FunctionCompileContext};
use vrl::compiler::state::TypeState;
use vrl::compiler::{Context, Function, FunctionExpression, Resolved, TypeDef};
use vrl::diagnostic::Span;
use vrl::parser::ast::{
    Abort, Assignment, Block, Container, Expr, FunctionArgument, FunctionCall, FunctionClosure,
    Group, Ident, IfStatement, Literal, Node, Not, Op, Opcode, Predicate, Program, Query,
    QueryTarget, Return, RootExpr, Unary,
};
use vrl::value::Value;

/// What becomes of the value of an expression.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueUse {
    /// It is true or false.
    Truth,
    /// It is an operand: what it is an operand of fails with it.
    Operand,
    /// It is used as it is, where VRL takes nothing that may fail.
    Value,
}

/// The tree of a condition. `truth` is false where the type of the last expression is to be seen.
pub(super) fn rewrite(program: Program, truth: bool) -> Program {
    let last = program.0.len().saturating_sub(1);
    let wanted = |at| if truth && at == last { ValueUse::Truth } else { ValueUse::Value };
    let roots = program.0.into_iter().enumerate().map(|(at, root)| {
        root.map(|root| match root {
            RootExpr::Expr(node) => RootExpr::Expr(expression(node, wanted(at))),
            error @ RootExpr::Error(_) => error,
        })
    });
    Program(roots.collect())
}

fn expression(node: Node<Expr>, wanted: ValueUse) -> Node<Expr> {
    let (span, expr) = node.take();
    let expr = match expr {
        Expr::Op(node) => return operation(span, node, wanted),
        Expr::FunctionCall(node) => {
            let call = Expr::FunctionCall(node.map(call));
            return if wanted == ValueUse::Truth {
                or_false(span, call)
            } else {
                Node::new(span, call)
            };
        }
        Expr::Query(node) => {
            let is_plain =
                matches!(*node.target, QueryTarget::Internal(_) | QueryTarget::External(_));
            let query = Expr::Query(node.map(query));
            let can_fail = wanted == ValueUse::Truth && !is_plain;
            return if can_fail { or_false(span, query) } else { Node::new(span, query) };
        }
        Expr::Container(node) => Expr::Container(node.map(|node| container(node, wanted))),
        Expr::IfStatement(node) => Expr::IfStatement(node.map(|node| IfStatement {
            predicate: node.predicate.map(predicate),
            if_node: node.if_node.map(|block| self::block(block, wanted)),
            else_node: node.else_node.map(|node| node.map(|block| self::block(block, wanted))),
        })),
        Expr::Assignment(node) => Expr::Assignment(node.map(|assignment| match assignment {
            Assignment::Single { target, op, expr } => Assignment::Single {
                target,
                op,
                expr: Box::new(expression(*expr, ValueUse::Value)),
            },
            handled @ Assignment::Infallible { .. } => handled,
        })),
        Expr::Unary(node) => Expr::Unary(node.map(|Unary::Not(node)| {
            Unary::Not(node.map(|not| {
                let (sign, inner) = not.take();
                Not::new(sign.span(), expression(*inner, ValueUse::Truth))
            }))
        })),
        Expr::Return(node) => Expr::Return(
            node.map(|node| Return { expr: Box::new(expression(*node.expr, ValueUse::Truth)) }),
        ),
        other @ (Expr::Literal(_) | Expr::Variable(_) | Expr::Abort(_) | Expr::Break(_)) => other,
    };
    Node::new(span, expr)
}

fn operation(span: Span, node: Node<Op>, wanted: ValueUse) -> Node<Expr> {
    let (op_span, Op(lhs, opcode, rhs)) = node.take();
    let op =
        |lhs, rhs| Expr::Op(Node::new(op_span, Op(Box::new(lhs), opcode.clone(), Box::new(rhs))));
    match *opcode {
        // What may fail is handled: that is what it says.
        Opcode::Err => Node::new(span, op(*lhs, expression(*rhs, wanted))),
        Opcode::And => {
            let all = op(conjunct(*lhs), conjunct(*rhs));
            or_false(span, all)
        }
        Opcode::Or if wanted == ValueUse::Truth => {
            Node::new(span, op(expression(*lhs, wanted), expression(*rhs, wanted)))
        }
        // `a < b < c` is refused, and the refusal should be about that.
        Opcode::Eq | Opcode::Ne | Opcode::Lt | Opcode::Le | Opcode::Gt | Opcode::Ge
            if is_comparison(&lhs) =>
        {
            Node::new(span, op(*lhs, *rhs))
        }
        // Anything can be compared for being the same.
        Opcode::Eq | Opcode::Ne if is_plain(&lhs) && is_plain(&rhs) => {
            Node::new(span, op(*lhs, *rhs))
        }
        Opcode::Eq | Opcode::Ne | Opcode::Lt | Opcode::Le | Opcode::Gt | Opcode::Ge => {
            let compared =
                op(expression(*lhs, ValueUse::Operand), expression(*rhs, ValueUse::Operand));
            or_false(span, compared)
        }
        Opcode::Or | Opcode::Mul | Opcode::Div | Opcode::Add | Opcode::Sub | Opcode::Merge => {
            let computed =
                op(expression(*lhs, ValueUse::Operand), expression(*rhs, ValueUse::Operand));
            match wanted {
                ValueUse::Operand => Node::new(span, computed),
                ValueUse::Value | ValueUse::Truth => or(span, computed, aborted(span)),
            }
        }
    }
}

/// One side of `&&`. In `a && b && c` all sides are false together.
fn conjunct(node: Node<Expr>) -> Node<Expr> {
    let (span, expr) = node.take();
    match expr {
        Expr::Op(op) if op.1.inner() == &Opcode::And => {
            let (op_span, Op(lhs, opcode, rhs)) = op.take();
            let op = Op(Box::new(conjunct(*lhs)), opcode, Box::new(conjunct(*rhs)));
            Node::new(span, Expr::Op(Node::new(op_span, op)))
        }
        expr => expression(Node::new(span, expr), ValueUse::Truth),
    }
}

fn is_comparison(node: &Node<Expr>) -> bool {
    let Expr::Op(op) = node.inner() else { return false };
    matches!(
        op.1.inner(),
        Opcode::Eq | Opcode::Ne | Opcode::Lt | Opcode::Le | Opcode::Gt | Opcode::Ge
    )
}

/// True for what cannot fail by itself.
fn is_plain(node: &Node<Expr>) -> bool {
    match node.inner() {
        Expr::Literal(_) | Expr::Variable(_) => true,
        Expr::Query(query) => {
            matches!(*query.target, QueryTarget::Internal(_) | QueryTarget::External(_))
        }
        _ => false,
    }
}

fn call(call: FunctionCall) -> FunctionCall {
    let argument = |argument: FunctionArgument| FunctionArgument {
        ident: argument.ident,
        expr: expression(argument.expr, ValueUse::Value),
    };
    let closure = |closure: FunctionClosure| FunctionClosure {
        variables: closure.variables,
        block: closure.block.map(|block| self::block(block, ValueUse::Value)),
    };
    FunctionCall {
        ident: call.ident,
        abort_on_error: true,
        arguments: call.arguments.into_iter().map(|node| node.map(argument)).collect(),
        closure: call.closure.map(|node| node.map(closure)),
    }
}

fn query(query: Query) -> Query {
    let target = query.target.map(|target| match target {
        QueryTarget::FunctionCall(call) => QueryTarget::FunctionCall(self::call(call)),
        QueryTarget::Container(container) => {
            QueryTarget::Container(self::container(container, ValueUse::Value))
        }
        plain @ (QueryTarget::Internal(_) | QueryTarget::External(_)) => plain,
    });
    Query { target, path: query.path }
}

fn container(container: Container, wanted: ValueUse) -> Container {
    match container {
        Container::Group(node) => {
            Container::Group(Box::new(node.map(|group| Group(expression(group.0, wanted)))))
        }
        Container::Block(node) => Container::Block(node.map(|block| self::block(block, wanted))),
        // VRL keeps their parts to itself; what may fail in them is the program's to handle.
        other @ (Container::Array(_) | Container::Object(_)) => other,
    }
}

fn block(block: Block, wanted: ValueUse) -> Block {
    Block(statements(block.0, wanted))
}

fn predicate(predicate: Predicate) -> Predicate {
    match predicate {
        Predicate::One(node) => Predicate::One(Box::new(expression(*node, ValueUse::Truth))),
        Predicate::Many(nodes) => Predicate::Many(statements(nodes, ValueUse::Truth)),
    }
}

/// The value of several is that of the last.
fn statements(nodes: Vec<Node<Expr>>, wanted: ValueUse) -> Vec<Node<Expr>> {
    let last = nodes.len().saturating_sub(1);
    let wanted = |at| if at == last { wanted } else { ValueUse::Value };
    nodes.into_iter().enumerate().map(|(at, node)| expression(node, wanted(at))).collect()
}

fn or_false(span: Span, expr: Expr) -> Node<Expr> {
    let no = Expr::Literal(Node::new(span, Literal::Boolean(false)));
    or(span, expr, Node::new(span, no))
}

fn aborted(span: Span) -> Node<Expr> {
    Node::new(span, Expr::Abort(Node::new(span, Abort { message: None })))
}

/// `{ it may fail; expr } ?? other`: VRL refuses a `??` behind what it knows not to fail.
fn or(span: Span, expr: Expr, other: Node<Expr>) -> Node<Expr> {
    let may_fail = FunctionCall {
        ident: Node::new(span, Ident::new(MAY_FAIL)),
        abort_on_error: false,
        arguments: Vec::new(),
        closure: None,
    };
    let may_fail = Node::new(span, Expr::FunctionCall(Node::new(span, may_fail)));
    let block = Node::new(span, Block(vec![may_fail, Node::new(span, expr)]));
    let tried = Expr::Container(Node::new(span, Container::Block(block)));
    let op = Op(Box::new(Node::new(span, tried)), Node::new(span, Opcode::Err), Box::new(other));
    Node::new(span, Expr::Op(Node::new(span, op)))
}

/// No program can spell it.
const MAY_FAIL: &str = "it may fail";

/// A function that fails by its type and never when it runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct MayFail;

impl Function for MayFail {
    fn identifier(&self) -> &'static str {
        MAY_FAIL
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn category(&self) -> &'static str {
        ""
    }

    fn return_kind(&self) -> u16 {
        vrl::compiler::value::kind::NULL
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn compile(&self, _: &TypeState, _: &mut FunctionCompileContext, _: ArgumentList) -> Compiled {
        Ok(FunctionExpression::as_expr(self))
    }
}

impl FunctionExpression for MayFail {
    fn resolve(&self, _: &mut Context) -> Resolved {
        Ok(Value::Null)
    }

    fn type_def(&self, _: &TypeState) -> TypeDef {
        TypeDef::null().fallible()
    }
}
