//! The secret of the conformance suite, which must not be stored with what agents remember.

use wopr_core::TenantId;
use wopr_engine::Secrets;

const NAME: &str = "conformance-test-secret";
/// Nobody's credential: the suite looks for it where it must not be.
const VALUE: &str = "conformance-canary-7f3a91d2c4";

#[derive(Debug)]
pub(crate) struct TestSecret;

impl Secrets for TestSecret {
    fn of(&self, _tenant: &TenantId) -> Vec<(String, String)> {
        vec![(NAME.to_owned(), VALUE.to_owned())]
    }
}
