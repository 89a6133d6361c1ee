//! The OpenWOP v1 face.

mod problem;

use std::sync::Arc;

use axum::Router;
use wopr_engine::Engine;

use crate::{Config, Host};

pub use problem::Problem;

/// What is advertised.
#[derive(Debug)]
pub struct Discovery;

impl Discovery {
    pub(crate) fn new(_config: &Config, _public_url: &str, _engine: &Engine) -> Self {
        Self
    }
}

/// The face's routes.
pub fn router(_host: Arc<Host>) -> Router {
    Router::new()
}
