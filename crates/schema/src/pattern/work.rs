//! The cost of parsing a pattern, before its automaton is built.
//!
//! A class of a few bytes may name a million characters. Nested classes merge their character sets at every
//! level, and if case is ignored, each character of a set is looked up. The automaton's size does not show
//! this cost: for `\pL{0}` it is zero.

use std::convert::Infallible;

use regex_syntax::ast::{
    Ast, ClassSetBinaryOp, ClassSetItem, Flag, Flags, FlagsItemKind, GroupKind, Visitor,
    parse::ParserBuilder, visit,
};

use super::{MAX_NESTING, MAX_SOURCE};

/// A named class, such as `\pL`.
const UNICODE: usize = 100;
/// A class such as `\w`, a class in brackets, or an operator between two classes.
const CLASS: usize = 15;
/// The same if case is ignored.
const FOLDED_UNICODE: usize = 400;
const FOLDED_CLASS: usize = 100;
/// A negated class inside another class if case is ignored: it has almost all characters.
const FOLDED_ALL: usize = 13_000;
/// Characters of a range that one unit pays for if case is ignored.
const FOLDED_CHARS: u32 = 100;
/// A boundary assertion.
const ASSERTION: usize = 10;

/// The approximate time to parse a pattern, in microseconds. For an invalid pattern only its length counts.
pub fn work(source: &str) -> usize {
    let read = source.len() / 8 + 1;
    if source.len() > MAX_SOURCE {
        return read;
    }
    let Ok(ast) = ParserBuilder::new().nest_limit(MAX_NESTING).build().parse(source) else {
        return read;
    };
    let count = |ignores_case| {
        let counter = Counter {
            units: 0,
            depth: 0,
            ignores_case,
            found_flag: false,
        };
        match visit(&ast, counter) {
            Ok(counter) => counter,
            Err(never) => match never {},
        }
    };
    let mut counted = count(false);
    if counted.found_flag {
        counted = count(true);
    }
    counted.units.saturating_add(read)
}

struct Counter {
    units: usize,
    /// The number of classes around the visited item.
    depth: usize,
    ignores_case: bool,
    /// Whether any part of the pattern ignores case.
    found_flag: bool,
}

impl Counter {
    fn add(&mut self, exact: usize, folded: usize) {
        let units = if self.ignores_case { folded } else { exact };
        self.units = self.units.saturating_add(units.saturating_mul(self.depth.max(1)));
    }

    fn all_but(&mut self, negated: bool) {
        if negated && self.depth > 0 {
            self.add(0, FOLDED_ALL);
        }
    }

    fn flags(&mut self, flags: &Flags) {
        let mut kinds = flags.items.iter().map(|item| &item.kind);
        self.found_flag |= kinds.any(|kind| *kind == FlagsItemKind::Flag(Flag::CaseInsensitive));
    }
}

impl Visitor for Counter {
    type Output = Self;
    type Err = Infallible;

    fn finish(self) -> Result<Self, Infallible> {
        Ok(self)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), Infallible> {
        match ast {
            Ast::Flags(set) => self.flags(&set.flags),
            Ast::Group(group) => {
                if let GroupKind::NonCapturing(flags) = &group.kind {
                    self.flags(flags);
                }
            }
            Ast::ClassUnicode(_) => self.add(UNICODE, FOLDED_UNICODE),
            Ast::ClassPerl(_) => self.add(CLASS, CLASS),
            Ast::ClassBracketed(_) => {
                self.add(1, 2);
                self.depth += 1;
            }
            Ast::Assertion(_) => self.add(ASSERTION, ASSERTION),
            Ast::Empty(_)
            | Ast::Literal(_)
            | Ast::Dot(_)
            | Ast::Repetition(_)
            | Ast::Alternation(_)
            | Ast::Concat(_) => self.add(1, 2),
        }
        Ok(())
    }

    fn visit_post(&mut self, ast: &Ast) -> Result<(), Infallible> {
        if matches!(ast, Ast::ClassBracketed(_)) {
            self.depth = self.depth.saturating_sub(1);
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        match item {
            ClassSetItem::Empty(_) | ClassSetItem::Literal(_) | ClassSetItem::Union(_) => self.add(1, 2),
            ClassSetItem::Range(range) => {
                let chars = u32::from(range.end.c).saturating_sub(u32::from(range.start.c));
                self.add(1, 2 + (chars / FOLDED_CHARS) as usize);
            }
            ClassSetItem::Ascii(class) => {
                self.all_but(class.negated);
                self.add(CLASS, FOLDED_CLASS);
            }
            ClassSetItem::Perl(class) => {
                self.all_but(class.negated);
                self.add(2 * CLASS, FOLDED_CLASS);
            }
            ClassSetItem::Unicode(class) => {
                self.all_but(class.is_negated());
                self.add(UNICODE, FOLDED_UNICODE);
            }
            ClassSetItem::Bracketed(class) => {
                self.all_but(class.negated);
                self.add(CLASS, FOLDED_CLASS);
                self.depth += 1;
            }
        }
        Ok(())
    }

    fn visit_class_set_item_post(&mut self, item: &ClassSetItem) -> Result<(), Infallible> {
        if matches!(item, ClassSetItem::Bracketed(_)) {
            self.depth = self.depth.saturating_sub(1);
        }
        Ok(())
    }

    fn visit_class_set_binary_op_pre(&mut self, _: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.add(CLASS, FOLDED_CLASS);
        self.depth += 1;
        Ok(())
    }

    fn visit_class_set_binary_op_post(&mut self, _: &ClassSetBinaryOp) -> Result<(), Infallible> {
        self.depth = self.depth.saturating_sub(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::work;

    #[test]
    fn large_character_classes_are_charged() {
        for pattern in [
            r"(?i)[\Dx]{0}".to_owned(),
            "(?i)[[^a]x]{0}".to_owned(),
            "(?i)[\u{1}-\u{10ffff}&&a]".to_owned(),
            format!("(?i){}a-\u{ffff}{}", "[b".repeat(20), "]".repeat(20)),
            format!("(?i:{})", r"\pL{0}".repeat(20)),
            r"[\pL&&a]".repeat(40),
        ] {
            assert!(work(&pattern) > 5_000, "{}: {}", work(&pattern), &pattern[..8]);
        }
        for pattern in [
            r"^[\w.+-]+@[\w-]+\.[\w.]+$",
            "(?i)^[a-z0-9._%+-]+@[a-z0-9.-]+$",
            "(",
            "[^a-z]{3,9}",
        ] {
            assert!(work(pattern) < 300, "{}: {pattern}", work(pattern));
        }
    }
}
