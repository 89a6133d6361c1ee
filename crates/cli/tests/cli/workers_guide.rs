//! What `docs/workers.md` says of a first worker, verbatim.

use crate::snippets::{Session, snippets};

#[test]
fn a_first_worker_does_what_the_page_says() {
    let mut session = Session::new();
    let page = snippets("docs/workers.md", "## A first worker\n");
    let [serve, start, work] = page.as_slice() else {
        panic!("the page has three snippets: {page:?}");
    };
    session.serve(serve);
    let started = session.run(&start.body);
    assert!(started.contains("run_"), "{started}");
    let worked = session.run(&work.body);
    for part in [
        "Dear Ann",
        "printers",
        "\"cancelRequested\":false",
        "\"status\":\"completed\"",
    ] {
        assert!(worked.contains(part), "{part}: {worked}");
    }
}
