//! What `docs/workers.md` says of a first worker, and `docs/agent-workflow.md` of a first execution, verbatim.

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

#[test]
fn an_execution_with_curl_does_what_the_page_says() {
    let mut session = Session::new();
    let page = snippets("docs/agent-workflow.md", "## An execution with curl\n");
    let [serve, register, work] = page.as_slice() else {
        panic!("the page has three snippets: {page:?}");
    };
    session.serve(serve);
    let registered = session.run(&register.body);
    assert!(registered.contains("\"wf_id\":\"review\""), "{registered}");
    let worked = session.run(&work.body);
    for part in [
        "\"status\":\"awaiting_activity\"",
        "\"status\":\"interrupted\"",
        "\"status\":\"completed\"",
        "\"phase\":\"completed\"",
    ] {
        assert!(worked.contains(part), "{part}: {worked}");
    }
}
