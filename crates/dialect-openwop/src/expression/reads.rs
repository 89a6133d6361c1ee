//! Finds the paths that an expression or a template reads, for checking definitions.

use super::ast::{Args, Expr, Post, Statement, Target};

/// A path that is read: a name and its literal fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The name, then its fields: `nodes.ask.answers` and `nodes['ask'].answers` are
    /// `["nodes", "ask", "answers"]`.
    pub path: Vec<String>,
    /// Byte offset of the name.
    pub offset: usize,
}

pub(super) fn of_expression(expr: &Expr, offset: usize, reads: &mut Vec<Read>) {
    let mut reader = Reader {
        offset,
        locals: Vec::new(),
        reads,
    };
    reader.expression(expr);
}

pub(super) fn of_template(statements: &[Statement], reads: &mut Vec<Read>) {
    let mut reader = Reader {
        offset: 0,
        locals: Vec::new(),
        reads,
    };
    reader.statements(statements);
}

struct Reader<'t, 'r> {
    offset: usize,
    /// Loop variables.
    locals: Vec<&'t str>,
    reads: &'r mut Vec<Read>,
}

impl<'t> Reader<'t, '_> {
    fn statements(&mut self, statements: &'t [Statement]) {
        for statement in statements {
            match statement {
                Statement::Text(_) => {}
                Statement::Print(expr) => self.expression(expr),
                Statement::If(branches) => {
                    for (condition, body) in &branches.tested {
                        self.expression(condition);
                        self.statements(body);
                    }
                    self.statements(&branches.otherwise);
                }
                Statement::For(each) => {
                    self.expression(&each.over);
                    let outer = self.locals.len();
                    self.locals.push("loop");
                    self.bind(&each.target);
                    self.all(each.filter.iter());
                    self.statements(&each.body);
                    self.locals.truncate(outer);
                    self.statements(&each.otherwise);
                }
            }
        }
    }

    fn bind(&mut self, target: &'t Target) {
        match target {
            Target::Name(name) => self.locals.push(name),
            Target::Parts(parts) => {
                for part in parts {
                    self.bind(part);
                }
            }
        }
    }

    fn all(&mut self, exprs: impl Iterator<Item = &'t Expr>) {
        for expr in exprs {
            self.expression(expr);
        }
    }

    fn name(&mut self, name: &str, at: usize, posts: &[Post]) {
        if self.locals.contains(&name) {
            return;
        }
        let fields = posts.iter().map_while(|post| match post {
            Post::Field(field) => Some(field.to_string()),
            Post::Item(key) => {
                let Expr::Text(field) = &**key else {
                    return None;
                };
                Some(field.to_string())
            }
            Post::Call(_) | Post::Slice(_) | Post::Filter(..) | Post::Test(_) => None,
        });
        let path = std::iter::once(name.to_owned()).chain(fields).collect();
        let offset = self.offset + at;
        self.reads.push(Read { path, offset });
    }

    fn expression(&mut self, expr: &'t Expr) {
        match expr {
            Expr::None | Expr::Bool(_) | Expr::Int(_) | Expr::Float(_) | Expr::Text(_) => {}
            Expr::Name(name, at) => self.name(name, *at, &[]),
            Expr::List(items) | Expr::Range(items) | Expr::All(items) | Expr::Any(items) => {
                self.all(items.iter());
            }
            Expr::Map(fields) => self.all(fields.iter().flat_map(|(name, value)| [name, value])),
            Expr::Not(operand) | Expr::Negative(operand) => self.expression(operand),
            Expr::Chain(first, rest) => {
                self.expression(first);
                self.all(rest.iter().map(|(_, operand)| operand));
            }
            Expr::Compare(first, rest) => {
                self.expression(first);
                self.all(rest.iter().map(|(_, operand)| operand));
            }
            Expr::If(choice) => {
                self.expression(&choice.then);
                self.expression(&choice.test);
                self.all(choice.otherwise.iter());
            }
            Expr::Post(value, posts) => {
                match &**value {
                    Expr::Name(name, at) => self.name(name, *at, posts),
                    other => self.expression(other),
                }
                for post in posts {
                    self.post(post);
                }
            }
        }
    }

    fn post(&mut self, post: &'t Post) {
        match post {
            Post::Field(_) => {}
            Post::Item(key) => self.expression(key),
            Post::Slice(slice) => self.all(slice.from.iter().chain(&slice.to)),
            Post::Call(call) => self.args(&call.1),
            Post::Test(call) => self.args(&call.args),
            Post::Filter(_, args) => self.args(args),
        }
    }

    fn args(&mut self, args: &'t Args) {
        self.all(args.by_place().iter());
        self.all(args.by_name().iter().map(|(_, arg)| arg));
    }
}
