//! Functions of numbers, computed alike on every machine by the crate `libm`.
//!
//! The standard library asks the machine's own library, whose results differ in the last digit between platforms; a run
//! that is decided again elsewhere has to find the same ones. Those of jq itself may differ in that digit, too.

use serde_json::Value;

use super::{
    binding::Scope,
    machine::{Flow, Item, Machine, Next, STEP, Stop},
    math,
    term::Term,
    text::shown,
};

/// Maximum order of a Bessel function, which takes as many rounds.
const MAX_ORDER: f64 = 1_000.0;

/// A function of numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum Function {
    One(fn(f64) -> f64),
    Two(fn(f64, f64) -> f64),
    Three(fn(f64, f64, f64) -> f64),
    /// A function with two results.
    Parts(fn(f64) -> (f64, f64)),
    /// A function whose first argument is its order.
    Order(fn(i32, f64) -> f64),
}

/// The function with a name and a number of arguments. One without arguments is of its input.
pub(super) fn find(name: &str, n_arguments: usize) -> Option<Function> {
    use Function::{One, Order, Parts, Three, Two};
    Some(match (name, n_arguments) {
        ("acos", 0) => One(libm::acos),
        ("acosh", 0) => One(libm::acosh),
        ("asin", 0) => One(libm::asin),
        ("asinh", 0) => One(libm::asinh),
        ("atan", 0) => One(libm::atan),
        ("atanh", 0) => One(libm::atanh),
        ("cbrt", 0) => One(libm::cbrt),
        ("ceil", 0) => One(f64::ceil),
        ("cos", 0) => One(libm::cos),
        ("cosh", 0) => One(libm::cosh),
        ("erf", 0) => One(libm::erf),
        ("erfc", 0) => One(libm::erfc),
        ("exp", 0) => One(libm::exp),
        ("exp10" | "pow10", 0) => One(libm::exp10),
        ("exp2", 0) => One(libm::exp2),
        ("expm1", 0) => One(libm::expm1),
        ("fabs", 0) => One(f64::abs),
        ("floor", 0) => One(f64::floor),
        ("gamma" | "lgamma", 0) => One(libm::lgamma),
        ("j0", 0) => One(libm::j0),
        ("j1", 0) => One(libm::j1),
        ("log", 0) => One(libm::log),
        ("log10", 0) => One(libm::log10),
        ("log1p", 0) => One(libm::log1p),
        ("log2", 0) => One(libm::log2),
        ("logb", 0) => One(logb),
        ("nearbyint" | "rint", 0) => One(f64::round_ties_even),
        ("round", 0) => One(f64::round),
        ("significand", 0) => One(significand),
        ("sin", 0) => One(libm::sin),
        ("sinh", 0) => One(libm::sinh),
        ("sqrt", 0) => One(f64::sqrt),
        ("tan", 0) => One(libm::tan),
        ("tanh", 0) => One(libm::tanh),
        ("tgamma", 0) => One(libm::tgamma),
        ("trunc", 0) => One(f64::trunc),
        ("y0", 0) => One(libm::y0),
        ("y1", 0) => One(libm::y1),
        ("frexp", 0) => Parts(|n| {
            let (part, exponent) = libm::frexp(n);
            (part, f64::from(exponent))
        }),
        ("lgamma_r", 0) => Parts(|n| {
            let (log, sign) = libm::lgamma_r(n);
            (log, f64::from(sign))
        }),
        ("modf", 0) => Parts(libm::modf),
        ("atan2", 2) => Two(libm::atan2),
        ("copysign", 2) => Two(f64::copysign),
        ("drem" | "remainder", 2) => Two(libm::remainder),
        ("fdim", 2) => Two(libm::fdim),
        ("fmax", 2) => Two(f64::max),
        ("fmin", 2) => Two(f64::min),
        ("fmod", 2) => Two(libm::fmod),
        ("hypot", 2) => Two(libm::hypot),
        ("ldexp" | "scalb" | "scalbln", 2) => Two(scaled),
        ("nextafter" | "nexttoward", 2) => Two(libm::nextafter),
        ("pow", 2) => Two(libm::pow),
        ("jn", 2) => Order(libm::jn),
        ("yn", 2) => Order(libm::yn),
        ("fma", 3) => Three(libm::fma),
        _ => return None,
    })
}

/// The exponent of a number to the base of two.
fn logb(n: f64) -> f64 {
    match n {
        0.0 => f64::NEG_INFINITY,
        n if !n.is_finite() => n.abs(),
        n => f64::from(libm::ilogb(n)),
    }
}

/// The part of a number that is at least one and less than two.
fn significand(n: f64) -> f64 {
    match n {
        0.0 => n,
        n if !n.is_finite() => n,
        n => libm::scalbn(n, -libm::ilogb(n)),
    }
}

fn scaled(n: f64, exponent: f64) -> f64 {
    // Beyond this it is zero or too large anyway.
    const MOST: f64 = 10_000.0;
    #[expect(clippy::cast_possible_truncation, reason = "clamped to what fits")]
    libm::scalbn(n, exponent.clamp(-MOST, MOST).trunc() as i32)
}

impl<'t> Machine<'t, '_> {
    /// Gives the results of a function, in each combination of its arguments; the last one is the outer loop.
    pub(super) fn number(
        &self,
        function: Function,
        arguments: &'t [Term],
        scope: &Scope<'t>,
        input: Item<'_>,
        next: Next<'_>,
    ) -> Flow {
        let number = |value: &Value| {
            self.meter.charge(STEP)?;
            value
                .as_f64()
                .ok_or_else(|| Stop::error(format!("{} number required", shown(value))))
        };
        let mut outputs = Vec::new();
        for argument in arguments {
            outputs.push(self.collect(argument, scope, input.plain())?);
        }
        match (function, outputs.as_slice()) {
            (Function::One(function), _) => {
                let n = function(number(&input.value)?);
                self.make(input, math::number(n), next)
            }
            (Function::Parts(function), _) => {
                let (first, second) = function(number(&input.value)?);
                self.meter.values(2)?;
                let pair = vec![math::number(first), math::number(second)];
                self.make(input, Value::Array(pair), next)
            }
            (Function::Two(function), [first, second]) => {
                for second in second {
                    for first in first {
                        let n = function(number(first)?, number(second)?);
                        self.make(input.again(), math::number(n), next)?;
                    }
                }
                Ok(())
            }
            (Function::Order(function), [first, second]) => {
                for second in second {
                    for first in first {
                        let order = number(first)?;
                        if order.abs() > MAX_ORDER {
                            let most = MAX_ORDER;
                            return Err(Stop::error(format!("the order is at most {most}, not {order}")));
                        }
                        #[expect(clippy::cast_possible_truncation, reason = "checked to be in range")]
                        let order = order as i32;
                        self.meter.charge(u64::from(order.unsigned_abs()))?;
                        let n = function(order, number(second)?);
                        self.make(input.again(), math::number(n), next)?;
                    }
                }
                Ok(())
            }
            (Function::Three(function), [first, second, third]) => {
                for third in third {
                    for second in second {
                        for first in first {
                            let n = function(number(first)?, number(second)?, number(third)?);
                            self.make(input.again(), math::number(n), next)?;
                        }
                    }
                }
                Ok(())
            }
            (Function::Two(_) | Function::Order(_) | Function::Three(_), _) => {
                Err(Stop::error("the function needs other arguments"))
            }
        }
    }
}
